"""A chart of speeds as SVG, readable on a light and on a dark page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LEFT: Final = 150
_SCALE: Final = 340
"""Pixels of a speed of 1."""
_BAR: Final = 13
_GAP: Final = 14
_TOP: Final = 44
_LABEL: Final = 35
"""Pixels that a number takes beside its bar."""
_STYLE: Final = """
text { font: 12px sans-serif; fill: #444 } .name { font-weight: 600 } .line { stroke: #999 }
.in { fill: #111 }
.bar0 { fill: #1f6feb } .bar1 { fill: #b0b8c1 } .bar2 { fill: #8a939d } .bar3 { fill: #69727c }
@media (prefers-color-scheme: dark) {
text { fill: #c5ccd3 } .bar0 { fill: #58a6ff } .bar1 { fill: #4a525b } .bar2 { fill: #6a737d }
.bar3 { fill: #8b949e } .in { fill: #fff } }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A network: the speed of each engine."""

    name: str
    speeds: Mapping[str, float]


def chart(bars: Sequence[Bar]) -> str:
    """Return the picture: for each network a bar for each engine."""
    engines = list(dict.fromkeys(name for bar in bars for name in bar.speeds))
    widest = max((speed for bar in bars for speed in bar.speeds.values()), default=1.0)
    width = _LEFT + round(_SCALE * max(widest, 1.0)) + 60
    group = _BAR * len(engines) + _GAP
    height = _TOP + group * len(bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        "<title>Speed beside the fastest other engine, which is 1</title>",
        f"<style>{_STYLE}</style>",
    ]
    for number, engine in enumerate(engines):
        x = _LEFT + 110 * number
        parts.append(f'<rect class="bar{number}" x="{x}" y="10" width="12" height="12"/>')
        parts.append(f'<text x="{x + 18}" y="20">{escape(engine)}</text>')
    one = _LEFT + _SCALE
    for place, bar in enumerate(bars):
        top = _TOP + group * place
        middle = top + _BAR * len(engines) / 2 + 4
        name = escape(bar.name)
        parts.append(
            f'<text class="name" x="{_LEFT - 8}" y="{middle}" text-anchor="end">{name}</text>'
        )
        for number, engine in enumerate(engines):
            if engine in bar.speeds:
                y, length = top + _BAR * number, round(_SCALE * bar.speeds[engine], 1)
                parts.append(
                    f'<rect class="bar{number}" x="{_LEFT}" y="{y}" width="{length}"'
                    f' height="{_BAR - 2}"/>'
                )
                speed = f"{bar.speeds[engine]:.2f}"
                end = _LEFT + length
                if one - _LABEL < end < one:  # beside the bar the line would strike it through
                    where = f'class="in" x="{end - 5}" text-anchor="end"'
                else:
                    where = f'x="{end + 5}"'
                parts.append(f'<text {where} y="{y + 10}">{speed}</text>')
    parts.append(f'<line class="line" x1="{one}" y1="{_TOP - 8}" x2="{one}" y2="{height - 6}"/>')
    return "\n".join([*parts, "</svg>", ""])
