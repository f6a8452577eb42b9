"""Drawing of the optimised graph as SVG.

Each node is a box, in a row by its longest distance from the inputs. Each edge is a line that
passes the rows in between in lanes of their own. The order in the rows follows the barycentre
heuristic of layered graph drawing, in several sweeps down and up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from smelt.inspect._report import masked_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.inspect._report import BindingReport, NodeReport, PlanReport

# Sizes in pixels.
_BOX_WIDTH: Final = 230
_BOX_HEIGHT: Final = 44
_LANE_WIDTH: Final = 8
_GAP: Final = 18
_ROW: Final = 74
_MARGIN: Final = 16

_MAX_CHARACTERS: Final = 31
"""Largest number of characters that fit in a box."""
_SWEEPS: Final = 6
"""Number of sweeps over all rows that reorder them."""
MAX_GRAPH_BOXES: Final = 3000
"""Largest number of boxes that are drawn."""
_MAX_LANE_ROWS: Final = 80
"""Edges over more rows are not drawn, because their lanes would take most of the picture."""


@dataclass(slots=True, eq=False)
class _Item:
    """An item in a row: a box, or the lane of a line that passes the row."""

    row: int = 0
    width: int = _LANE_WIDTH
    left: float = 0.0
    above: list[_Item] = field(default_factory=list["_Item"])
    below: list[_Item] = field(default_factory=list["_Item"])

    @property
    def middle(self) -> float:
        return self.left + self.width / 2

    @property
    def top(self) -> float:
        return _MARGIN + self.row * _ROW


@dataclass(slots=True, eq=False)
class _Box(_Item):
    """The box of a node or a binding."""

    title: str = ""
    text: str = ""
    tooltip: str = ""
    """Further text of the box's tooltip, after title and text."""
    fill: str = ""
    inputs: tuple[str, ...] = ()
    """Names of the tensors that the node reads."""
    outputs: tuple[str, ...] = ()
    """Names of the tensors that the node computes."""


def graph_to_svg(plan: PlanReport, bindings: Sequence[BindingReport]) -> str:
    """Return the optimised graph of a plan as a complete SVG document.

    Grey boxes are views; red boxes run their op's reference in Python.
    """
    boxes = list(_boxes(*masked_report((plan, tuple(bindings)))))[:MAX_GRAPH_BOXES]
    lines = _connect(boxes)
    rows = _rows(boxes, lines)
    width = _arrange(rows)
    height = len(rows) * _ROW - (_ROW - _BOX_HEIGHT) + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="11">',
        "<title>The graph after the passes</title>",
        f'<rect width="{width}" height="{height}" fill="#fbfbfa"/>',
    ]
    parts += [_drawn_line(line) for line in lines]
    for box in boxes:
        parts += _drawn_box(box)
    return "\n".join([*parts, "</svg>"]) + "\n"


# ---- boxes and lines


def _boxes(plan: PlanReport, bindings: Sequence[BindingReport]) -> Iterator[_Box]:
    """Yield a box for each input, node and output, in the order of execution."""
    for b in bindings:
        if b.is_input:
            shape = f"{b.dtype}[{', '.join(map(str, b.shape))}]"
            yield _box(b.name, shape, "#d7e8f7", outputs=(b.name,))
    for node in plan.nodes:
        yield _box(
            f"{node.op}  {node.name}",
            ", ".join(node.types),
            _fill(node),
            inputs=node.inputs,
            outputs=node.outputs,
            tooltip=f"{' + '.join(node.layers)}\n{node.tactic}",
        )
    for b in bindings:
        if not b.is_input:
            yield _box(b.name, "output", "#d9f0dc", inputs=(b.name,))


def _box(
    title: str,
    text: str,
    fill: str,
    *,
    inputs: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    tooltip: str = "",
) -> _Box:
    return _Box(
        width=_BOX_WIDTH,
        title=title,
        text=text,
        tooltip=tooltip,
        fill=fill,
        inputs=inputs,
        outputs=outputs,
    )


def _fill(node: NodeReport) -> str:
    if node.is_reference:
        return "#f6cdca"
    return "#ececea" if node.is_view else "#fff3d6"


def _connect(boxes: Sequence[_Box]) -> list[list[_Item]]:
    """Set the row of every box, and return the lines as the items that they pass."""
    producers: dict[str, _Box] = {}
    lines: list[list[_Item]] = []
    for box in boxes:  # in the order of execution, so producers come first
        sources = {producers[n]: producers[n] for n in box.inputs if n in producers}.values()
        box.row = max((source.row for source in sources), default=-1) + 1
        producers.update(dict.fromkeys(box.outputs, box))
        for source in sources:
            if box.row - source.row <= _MAX_LANE_ROWS:
                lanes = [_Item(row) for row in range(source.row + 1, box.row)]
                lines.append([source, *lanes, box])
    for line in lines:
        for upper, lower in pairwise(line):
            upper.below.append(lower)
            lower.above.append(upper)
    return lines


# ---- layout


def _rows(boxes: Sequence[_Box], lines: Sequence[Sequence[_Item]]) -> list[list[_Item]]:
    items: list[_Item] = [*boxes, *(lane for line in lines for lane in line[1:-1])]
    rows: list[list[_Item]] = [[] for _ in range(max((i.row for i in items), default=-1) + 1)]
    for item in items:
        rows[item.row].append(item)
    return rows


def _arrange(rows: Sequence[list[_Item]]) -> int:
    """Sort each row to reduce line crossings, and centre it; return the picture's width.

    Each sweep sorts the items of a row by the mean position of their neighbours in the row before,
    alternately from the top and from the bottom.
    """
    widths = [sum(item.width + _GAP for item in row) - _GAP for row in rows]
    width = max(widths, default=0) + 2 * _MARGIN

    def place(number: int) -> None:
        left = (width - widths[number]) / 2
        for item in rows[number]:
            item.left = left
            left += item.width + _GAP

    for number in range(len(rows)):
        place(number)
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for number in range(len(rows)) if downwards else reversed(range(len(rows))):
            rows[number].sort(key=_centre_above if downwards else _centre_below)
            place(number)
    return width


def _centre_above(item: _Item) -> float:
    return _centre(item, item.above)


def _centre_below(item: _Item) -> float:
    return _centre(item, item.below)


def _centre(item: _Item, neighbours: Sequence[_Item]) -> float:
    if not neighbours:
        return item.middle
    return sum(other.middle for other in neighbours) / len(neighbours)


# ---- drawing


def _drawn_line(line: Sequence[_Item]) -> str:
    """Return the SVG path of a line: curves between rows, straight in lanes."""
    first = line[0]
    path = [f"M{first.middle:.0f} {first.top + _BOX_HEIGHT:.0f}"]
    for upper, lower in pairwise(line):
        start, end = upper.top + _BOX_HEIGHT, lower.top
        half = (start + end) / 2
        path.append(
            f"C{upper.middle:.0f} {half:.0f} {lower.middle:.0f} {half:.0f} "
            f"{lower.middle:.0f} {end:.0f}"
        )
        if lower is not line[-1]:
            path.append(f"V{end + _BOX_HEIGHT:.0f}")
    return f'<path d="{" ".join(path)}" fill="none" stroke="#8a8f98" stroke-width="1.2"/>'


def _drawn_box(box: _Box) -> Iterator[str]:
    """Yield the SVG of a box with its tooltip and two lines of text."""
    x, y = box.left, box.top
    yield (
        f"<g><title>{escape(box.title)}\n{escape(box.text)}\n{escape(box.tooltip)}</title>"
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" '
        f'fill="{box.fill}" stroke="#5b6470" stroke-width="0.8"/>'
    )
    yield (
        f'<text x="{x + 9:.0f}" y="{y + 18:.0f}" fill="#1a202c" font-weight="600">'
        f"{escape(_short(box.title))}</text>"
    )
    text = escape(_short(box.text))
    yield f'<text x="{x + 9:.0f}" y="{y + 34:.0f}" fill="#4a5568">{text}</text></g>'


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
