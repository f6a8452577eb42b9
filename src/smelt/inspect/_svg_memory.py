"""Drawing of the arena over time as SVG.

The horizontal axis has the plan's steps, the vertical axis the bytes of the arena; each tensor is a
box.
"""

from __future__ import annotations

import hashlib
from html import escape
from typing import TYPE_CHECKING, Final

from smelt.inspect._report import masked_report
from smelt.inspect._text import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.inspect._report import PlanReport, TensorLifetime

# Sizes in pixels.
_WIDTH: Final = 1000
_HEIGHT: Final = 380
_LEFT: Final = 76
_BOTTOM: Final = 34
_TOP: Final = 12
_CHARACTER_WIDTH: Final = 6.2
"""Approximate width of a character at the font size of the picture."""


def memory_to_svg(plan: PlanReport) -> str:
    """Return the arena of a plan over its steps as a complete SVG document."""
    plan = masked_report(plan)
    steps, top = max(plan.steps, 1), max(plan.arena_bytes, 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"',
        'font-family="system-ui, sans-serif" font-size="11">',
        "<title>Memory over time</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fbfbfa"/>',
    ]
    lines += _axes(steps, top)
    for life in sorted(plan.memory, key=lambda one: -one.size_bytes):
        lines += _box(life, steps, top)
    if plan.arena_lower_bound_bytes:
        y = _y(plan.arena_lower_bound_bytes, top)
        text = f"lower bound {format_bytes(plan.arena_lower_bound_bytes)}"
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="#b3261e" '
            f'stroke-dasharray="5 4"><title>{text}</title></line>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _x(step: float, steps: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - 8) * step / steps


def _y(offset: float, top: int) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * offset / top


def _axes(steps: int, top: int) -> Iterator[str]:
    """Yield the SVG of grid lines and labels."""
    for part in range(5):
        offset = top * part / 4
        y = _y(offset, top)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e3df"/>'
        text = format_bytes(round(offset), like=top)
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{text}</text>'
    for step in range(0, steps + 1, _interval(steps)):
        yield (
            f'<text x="{_x(step, steps):.1f}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="middle" '
            f'fill="#555">{step}</text>'
        )
    middle = (_LEFT + _WIDTH) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 4}" text-anchor="middle" fill="#555">step</text>'


def _interval(steps: int) -> int:
    """Return the distance of ticks: 1, 2 or 5 times a power of ten, for at most ten intervals."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power * 10 >= steps:
                return factor * power
        power *= 10


def _box(life: TensorLifetime, steps: int, top: int) -> Iterator[str]:
    """Yield the SVG of a tensor's box, with its name if it fits."""
    x, right = _x(life.first_step, steps), _x(life.last_step + 1, steps)
    y, bottom = _y(life.offset + life.size_bytes, top), _y(life.offset, top)
    width, height = max(right - x - 0.6, 0.6), max(bottom - y - 0.6, 0.6)
    title = escape(
        f"{life.name}: {format_bytes(life.size_bytes)} at {life.offset}, "
        f"steps {life.first_step} to {life.last_step}"
    )
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5" '
        f'fill="{_color(life.name)}" stroke="#4a5568" stroke-width="0.4">'
        f"<title>{title}</title></rect>"
    )
    characters = int(width / _CHARACTER_WIDTH) - 1
    if height >= 13 and characters >= 4:
        name = life.name if len(life.name) <= characters else f"{life.name[: characters - 1]}…"
        yield (
            f'<text x="{x + 4:.1f}" y="{y + height / 2 + 4:.1f}" fill="#1a202c" '
            f'pointer-events="none">{escape(name)}</text>'
        )


def _color(name: str) -> str:
    hue = int(hashlib.sha256(name.encode()).hexdigest()[:6], 16) % 360
    return f"hsl({hue} 55% 78%)"
