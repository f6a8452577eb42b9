"""Drawing of the optimised graph as SVG.

Each node is a box, in a row by its longest distance from the inputs. Each edge is a line that
passes the rows in between in lanes of their own. The order in the rows follows the barycentre
heuristic of layered graph drawing, in several sweeps down and up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from html import escape
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

from smelt.inspect._report import masked_report
from smelt.types import counted

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
MAX_PAGE_BOXES: Final = 30_000
"""Largest number of boxes in all graphs of a page."""
MAX_PAGE_PIECES: Final = 1 << 17
"""Largest number of pieces of lines in all graphs of a page: a line has one for each row."""
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

    width: int = _BOX_WIDTH
    title: str = ""
    subtitle: str = ""
    """Second line: a shape, the types of results, or the word output."""
    tooltip: str = ""
    """Further text of the box's tooltip, after title and subtitle."""
    fill: str = ""
    inputs: tuple[str, ...] = ()
    """Names of the tensors that the node reads."""
    outputs: tuple[str, ...] = ()
    """Names of the tensors that the node computes."""


@dataclass(slots=True)
class PageSpace:
    """What the graphs of a page may still draw: time and size of a page do not depend on edges."""

    boxes: int = field(default_factory=lambda: MAX_PAGE_BOXES)
    pieces: int = field(default_factory=lambda: MAX_PAGE_PIECES)


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """Drawing of a graph."""

    svg: str
    note: str
    """Sentences on what is not drawn; empty if everything is drawn."""


def graph_to_svg(plan: PlanReport, bindings: Sequence[BindingReport]) -> str:
    """Return the optimised graph of a plan as a complete SVG document.

    Grey boxes are views; red boxes run their op's reference in Python. The title says what is left
    out of a very large graph.
    """
    return draw_graph(*masked_report((plan, tuple(bindings))), PageSpace()).svg


def draw_graph(
    plan: PlanReport, bindings: Sequence[BindingReport], space: PageSpace
) -> GraphDrawing:
    """Return the drawing of a plan's graph; ``space`` shrinks by what is drawn.

    Args:
        plan: the plan; its names are masked.
        bindings: inputs and outputs of the engine; their names are masked.
        space: the space that the page has left.
    """
    boxes = list(islice(_boxes(plan, bindings), min(MAX_GRAPH_BOXES, space.boxes)))
    space.boxes -= len(boxes)
    lines, omitted = _connect(boxes, space)
    note = " ".join(_omissions(len(plan.nodes) + len(bindings), len(boxes), len(lines), omitted))
    return GraphDrawing(_drawn_graph(boxes, lines, note), note)


def _omissions(count: int, boxes: int, lines: int, omitted: int) -> Iterator[str]:
    """Yield sentences on what is not drawn."""
    if boxes < count:
        drawn = f"the first {boxes} are" if boxes else "none is"
        yield f"The graph has {count} boxes, of which {drawn} drawn."
    if omitted:
        longest, verb = ("longest", "is") if omitted == 1 else (f"longest {omitted}", "are")
        yield f"The {longest} of {counted(lines + omitted, 'line')} {verb} not drawn."


def _drawn_graph(boxes: Sequence[_Box], lines: Sequence[Sequence[_Item]], note: str) -> str:
    """Return the SVG document of boxes and lines."""
    rows = _rows(boxes, lines)
    width = _arrange(rows)
    height = len(rows) * _ROW - (_ROW - _BOX_HEIGHT) + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="11">',
        f"<title>The graph after the passes{escape(note and f'. {note}')}</title>",
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
            yield _Box(title=b.name, subtitle=shape, fill="#d7e8f7", outputs=(b.name,))
    for node in plan.nodes:
        yield _Box(
            title=f"{node.op}  {node.name}",
            subtitle=", ".join(node.types),
            tooltip=f"{' + '.join(node.layers)}\n{node.tactic}",
            fill=_fill(node),
            inputs=node.inputs,
            outputs=node.outputs,
        )
    for b in bindings:
        if not b.is_input:
            yield _Box(title=b.name, subtitle="output", fill="#d9f0dc", inputs=(b.name,))


def _fill(node: NodeReport) -> str:
    if node.is_reference:
        return "#f6cdca"
    return "#ececea" if node.is_view else "#fff3d6"


def _connect(boxes: Sequence[_Box], space: PageSpace) -> tuple[list[list[_Item]], int]:
    """Set the row of every box, and draw the shortest lines.

    Returns:
        The lines as the items that they pass, and the number of lines that are not drawn.
    """
    counts = Counter(lower.row - upper.row for upper, lower in _edges(boxes))
    drawn: dict[int, int] = {}
    for span in sorted(span for span in counts if span <= _MAX_LANE_ROWS):
        drawn[span] = min(counts[span], space.pieces // span)
        space.pieces -= drawn[span] * span
    omitted = counts.total() - sum(drawn.values())
    lines: list[list[_Item]] = []
    for upper, lower in _edges(boxes):
        span = lower.row - upper.row
        if drawn.get(span):
            drawn[span] -= 1
            lanes = [_Item(row) for row in range(upper.row + 1, lower.row)]
            lines.append([upper, *lanes, lower])
    for line in lines:
        for above, below in pairwise(line):
            above.below.append(below)
            below.above.append(above)
    return lines, omitted


def _edges(boxes: Sequence[_Box]) -> Iterator[tuple[_Box, _Box]]:
    """Set the row of every box, and yield the boxes that each edge leads from and to."""
    producers: dict[str, _Box] = {}
    for box in boxes:  # in the order of execution, so producers come first
        sources = {producers[n]: producers[n] for n in box.inputs if n in producers}.values()
        box.row = max((source.row for source in sources), default=-1) + 1
        producers.update(dict.fromkeys(box.outputs, box))
        yield from ((source, box) for source in sources)


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
            rows[number].sort(key=lambda i: _centre(i, i.above if downwards else i.below))
            place(number)
    return width


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
        f"<g><title>{escape(box.title)}\n{escape(box.subtitle)}\n{escape(box.tooltip)}</title>"
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="5" '
        f'fill="{box.fill}" stroke="#5b6470" stroke-width="0.8"/>'
    )
    yield (
        f'<text x="{x + 9:.0f}" y="{y + 18:.0f}" fill="#1a202c" font-weight="600">'
        f"{escape(_short(box.title))}</text>"
    )
    text = escape(_short(box.subtitle))
    yield f'<text x="{x + 9:.0f}" y="{y + 34:.0f}" fill="#4a5568">{text}</text></g>'


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
