"""Strided loops: how a kernel walks several operands of one iteration space together.

Axes are put in the memory order of the operand that matters most, neighbours that run on in every
operand are joined, and the last axis becomes the *row*, which is walked by vectors. A chunk is a
few rows, or a segment of a long one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.types import Dim, ceil_div, element_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends.cpu._emit import Emitter, Int, Reg
    from smelt.backends.cpu._scalars import Scalars
    from smelt.engine import Json, View

SEGMENT: Final = 4096
"""Elements of a row that one chunk takes at most."""
_LEAST_SEGMENT: Final = 16
"""No chunk takes less of a row, so that it fills vectors."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an iteration space: its extent, and each operand's stride in elements."""

    extent: Dim
    strides: tuple[Dim, ...]

    def json(self, scalars: Scalars) -> Json:
        """What a spec holds."""
        return scalars.all_json((self.extent, *self.strides))


def broadcast_strides(view: View, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides of a view along the axes of a shape that it broadcasts to: 0 where it repeats."""
    missing = len(shape) - len(view.shape)
    own = [
        0 if extent == 1 else stride
        for extent, stride in zip(view.shape, view.strides, strict=True)
    ]
    return (*([0] * missing), *own)


def common_axes(
    shape: tuple[Dim, ...], strides: Sequence[tuple[Dim, ...]], lead: int
) -> list[Axis]:
    """The axes of an iteration space, in operand ``lead``'s memory order, as few as possible."""
    axes = [
        Axis(extent, tuple(s[i] for s in strides)) for i, extent in enumerate(shape) if extent != 1
    ]
    return join_axes(sort_axes(axes, lead))


def sort_axes(axes: Sequence[Axis], lead: int) -> list[Axis]:
    """The axes, outermost in the memory of operand ``lead`` first."""
    known = [abs(s) for a in axes if isinstance(s := a.strides[lead], int)]
    if len(known) < len(axes):
        # A symbolic stride is a product of inner extents: the unit stride alone is surely
        # innermost.
        return sorted(axes, key=lambda a: a.strides[lead] == 1)
    order = sorted(range(len(axes)), key=lambda i: -known[i])
    return [axes[i] for i in order]


def join_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Neighbours become one axis where, in every operand, the outer steps over all the inner."""
    joined: list[Axis] = []
    for axis in axes:
        if joined:
            above = joined[-1]
            runs_on = all(
                outer == axis.extent * inner
                for outer, inner in zip(above.strides, axis.strides, strict=True)
            )
            if runs_on:
                joined[-1] = Axis(above.extent * axis.extent, axis.strides)
                continue
        joined.append(axis)
    return joined


@dataclass(frozen=True, slots=True)
class Walk:
    """How rows are cut into chunks: what the launch and the kernel must agree on."""

    outer: tuple[Axis, ...]
    row: Axis
    grain: int
    """Work items (a row, or a segment of one) that a chunk takes."""
    segment: int
    """Elements of a segment."""

    @staticmethod
    def over(axes: Sequence[Axis], operand_count: int, work: Dim = 1) -> Walk:
        """Walk all axes, the last by vectors; ``work``: what an element stands for, a line say."""
        row = axes[-1] if axes else Axis(1, (1,) * operand_count)
        segment = max(_LEAST_SEGMENT, SEGMENT // max(1, work if isinstance(work, int) else 1))
        length = row.extent if isinstance(row.extent, int) else segment
        return Walk(tuple(axes[:-1]), row, max(1, segment // max(1, length)), segment)

    @property
    def chunks(self) -> Dim:
        """Chunks of the launch."""
        rows = element_count(tuple(a.extent for a in self.outer))
        return ceil_div(rows * ceil_div(self.row.extent, self.segment), self.grain)

    def json(self, scalars: Scalars) -> Json:
        """What a spec holds."""
        outer = tuple(a.json(scalars) for a in self.outer)
        return (outer, self.row.json(scalars), self.grain, self.segment)


def walk_rows(
    e: Emitter,
    walk: Any,
    pointers: Sequence[Reg],
    sizes: Sequence[int],
    body: Callable[[Sequence[Reg], Int, Int, tuple[Int, ...]], None],
) -> None:
    """Write the loops of a `Walk` as its JSON says.

    Args:
        e: writes.
        walk: ``Walk.json``.
        pointers: address of each operand's first element.
        sizes: bytes of each operand's element.
        body: called with each operand's address at the start of the row, the first and last index
            to do in the row, and the row's strides in elements.
    """
    outer_json, row_json, grain, segment = walk
    outer = [[e.extent(x) for x in axis] for axis in outer_json]
    length, *strides = [e.extent(x) for x in row_json]
    rows: Int = 1
    for extent, *_ in outer:
        rows = e.mul(rows, extent)
    segments = e.div(e.add(length, segment - 1), segment)
    total = e.mul(rows, segments)
    last = e.minimum(e.mul(e.end, grain), total)
    with e.loop(e.mul(e.begin, grain), last) as items:
        row = e.div(items.index, segments)
        first = e.mul(e.mod(items.index, segments), segment)
        places = e.unravel(row, [extent for extent, *_ in outer])
        starts: list[Reg] = []
        for number, (pointer, size) in enumerate(zip(pointers, sizes, strict=True)):
            offset: Int = 0
            for place, (_, *along) in zip(places, outer, strict=True):
                offset = e.add(offset, e.mul(place, e.mul(along[number], size)))
            starts.append(e.at(pointer, offset))
        body(starts, first, e.minimum(e.add(first, segment), length), tuple(strides))
