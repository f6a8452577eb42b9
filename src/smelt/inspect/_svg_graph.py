"""The optimised graph as a picture: a box for each node, in rows by distance from the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smelt.inspect._report import BindingReport, NodeReport, PlanReport

_BOX_WIDTH: Final = 230
_BOX_HEIGHT: Final = 44
_GAP: Final = 18
_ROW: Final = 74
_MARGIN: Final = 16
_LETTERS: Final = 34
_SWEEPS: Final = 4
_MOST_NODES: Final = 3000


@dataclass(slots=True)
class _Box:
    key: str
    title: str
    text: str
    fill: str
    reads: tuple[str, ...]
    """Names of the tensors that lead here."""
    makes: tuple[str, ...]
    hint: str = ""
    row: int = 0
    place: float = 0.0


def graph_to_svg(plan: PlanReport, bindings: Sequence[BindingReport]) -> str:
    """The optimised graph of a plan, as a complete SVG document.

    A grey box only looks differently at memory; a red one runs its reference, and is slow.
    """
    boxes = list(_boxes(plan, bindings))[:_MOST_NODES]
    makers = {name: box for box in boxes for name in box.makes}
    for box in boxes:  # in the order in which they run, so makers come first
        box.row = max((makers[n].row for n in box.reads if n in makers), default=-1) + 1
    rows = _arranged(boxes, makers)
    across = max((len(row) for row in rows.values()), default=1)
    width = across * (_BOX_WIDTH + _GAP) - _GAP + 2 * _MARGIN
    height = len(rows) * _ROW - (_ROW - _BOX_HEIGHT) + 2 * _MARGIN
    for row in rows.values():
        left = (width - len(row) * (_BOX_WIDTH + _GAP) + _GAP) / 2
        for index, box in enumerate(row):
            box.place = left + index * (_BOX_WIDTH + _GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="11">',
        "<title>The graph after the passes</title>",
        f'<rect width="{width}" height="{height}" fill="#fbfbfa"/>',
    ]
    lines += [_edge(makers[name], box) for box in boxes for name in box.reads if name in makers]
    for box in boxes:
        lines += _drawn(box)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _boxes(plan: PlanReport, bindings: Sequence[BindingReport]) -> Iterator[_Box]:
    for b in bindings:
        if b.is_input:
            shape = f"{b.dtype}[{', '.join(map(str, b.shape))}]"
            yield _Box(f"in {b.name}", b.name, shape, "#d7e8f7", (), (b.name,))
    for node in plan.nodes:
        yield _Box(
            node.name,
            f"{node.op}  {node.name}",
            ", ".join(node.types),
            _fill(node),
            node.inputs,
            node.outputs,
            f"{' + '.join(node.layers)}\n{node.tactic}",
        )
    for b in bindings:
        if not b.is_input:
            yield _Box(f"out {b.name}", b.name, "output", "#d9f0dc", (b.name,), ())


def _fill(node: NodeReport) -> str:
    if node.is_reference:
        return "#f6cdca"
    return "#ececea" if node.is_view else "#fff3d6"


def _arranged(boxes: Sequence[_Box], makers: Mapping[str, _Box]) -> dict[int, list[_Box]]:
    """Rows of boxes, each box near the middle of what it reads: fewer lines cross."""
    rows: dict[int, list[_Box]] = {}
    for box in boxes:
        box.place = float(len(rows.setdefault(box.row, [])))
        rows[box.row].append(box)
    for _ in range(_SWEEPS):
        for number in sorted(rows):
            row = rows[number]
            centres = {id(box): _centre(box, makers) for box in row}
            row.sort(key=lambda box: centres[id(box)])
            for index, box in enumerate(row):
                box.place = index - (len(row) - 1) / 2
    return dict(sorted(rows.items()))


def _centre(box: _Box, makers: Mapping[str, _Box]) -> float:
    places = [makers[name].place for name in box.reads if name in makers]
    return sum(places) / len(places) if places else box.place


def _top(box: _Box) -> float:
    return _MARGIN + box.row * _ROW


def _edge(maker: _Box, reader: _Box) -> str:
    x1, y1 = maker.place + _BOX_WIDTH / 2, _top(maker) + _BOX_HEIGHT
    x2, y2 = reader.place + _BOX_WIDTH / 2, _top(reader)
    # A line over several rows swings out, so that it is not hidden behind the boxes between.
    swing = 0.0 if reader.row == maker.row + 1 else (_BOX_WIDTH / 2 + 24)
    bend = min((y2 - y1) / 2, 60)
    return (
        f'<path d="M{x1:.0f} {y1:.0f} C{x1 + swing:.0f} {y1 + bend:.0f} {x2 + swing:.0f} '
        f'{y2 - bend:.0f} {x2:.0f} {y2:.0f}" fill="none" stroke="#8a8f98" stroke-width="1.2"/>'
    )


def _drawn(box: _Box) -> Iterator[str]:
    x, y = box.place, _top(box)
    yield (
        f"<g><title>{escape(box.title)}\n{escape(box.text)}\n{escape(box.hint)}</title>"
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
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
