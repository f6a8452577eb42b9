"""Loop nests: loops over several strided operands of one iteration space.

Axes are sorted into the memory order of one operand, and adjacent axes that are contiguous in every
operand are merged. The last axis becomes the *row*, which is processed in vectors. A chunk is a few
rows, or a segment of a long row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.backends._iteration_space import Axis, coalesce_axes, sort_axes
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.engine import Launch
from smelt.types import Dim, ceil_div, element_count

if TYPE_CHECKING:
    from smelt.backends._launch_scalars import LaunchScalars
    from smelt.backends.cpu._emit import Emitter, Int, Reg
    from smelt.engine import Json, View

SEGMENT: Final = 4096
"""Largest number of elements of a row per chunk. Chosen without a measurement."""
_MIN_SEGMENT: Final = 16
"""Smallest number of elements of a segment, so that it fills vectors. A register of AVX-512 has 16
float32."""


@dataclass(frozen=True, slots=True)
class LoopNest:
    """Division of an iteration space into chunks, on which launch and kernel must agree."""

    outer: tuple[Axis, ...]
    """Axes outside the row."""
    row: Axis
    """The innermost axis."""
    rows_per_chunk: int
    """Work items per chunk; an item is a row, or a segment of a row."""
    segment: int
    """Elements per segment."""

    @staticmethod
    def over(axes: Sequence[Axis], operand_count: int, work: Dim = 1) -> LoopNest:
        """Return the loop nest over all axes, of which the last is the row.

        ``work`` is the number of elements that one element of the iteration space stands for, such
        as the length of a line that is reduced.
        """
        row = axes[-1] if axes else Axis(1, (1,) * operand_count)
        segment = max(_MIN_SEGMENT, SEGMENT // max(1, work if isinstance(work, int) else 1))
        length = row.extent if isinstance(row.extent, int) else segment
        return LoopNest(tuple(axes[:-1]), row, max(1, segment // max(1, length)), segment)

    @property
    def chunks(self) -> Dim:
        """Number of chunks of the launch."""
        rows = element_count(tuple(a.extent for a in self.outer))
        return ceil_div(rows * ceil_div(self.row.extent, self.segment), self.rows_per_chunk)

    def json(self, scalars: LaunchScalars) -> Json:
        """Return the loop nest as a JSON value for a kernel spec."""
        outer = tuple(a.json(scalars) for a in self.outer)
        return (outer, self.row.json(scalars), self.rows_per_chunk, self.segment)

    def launch(
        self,
        family: str,
        views: Sequence[View],
        scalars: LaunchScalars,
        writes: tuple[int, ...] = (),
        **own: Json,
    ) -> Launch:
        """Return the launch of a kernel that ends with this loop nest.

        It writes the last view, unless ``writes`` lists others; ``own`` are its other parameters.
        """
        spec = kernel_spec(family, **own, loop_nest=self.json(scalars))
        written = writes or (len(views) - 1,)
        return Launch(spec, tuple(views), written, scalars.values, self.chunks)


def axes_along(
    shape: tuple[Dim, ...], strides: Sequence[tuple[Dim, ...]], chosen: Sequence[int]
) -> list[Axis]:
    """Return the chosen axes with their strides, merged where they are contiguous."""
    axes = [Axis(shape[a], tuple(s[a] for s in strides)) for a in chosen]
    return coalesce_axes(sort_axes([a for a in axes if a.extent != 1], 0))


def write_loop_nest(
    e: Emitter,
    loop_nest: Any,
    sizes: Sequence[int],
    body: Callable[[Sequence[Reg], Int, Int, tuple[Int, ...]], None],
    pointers: Sequence[Reg] = (),
) -> str:
    """Write the loops of a `LoopNest`, which end the kernel, and return the module.

    Args:
        e: emitter of the kernel.
        loop_nest: the value of ``LoopNest.json``.
        sizes: size in bytes of each operand's elements.
        body: writes a segment; its arguments are each operand's address at the start of the
            row, the first index and the end of the segment within the row, and the row's
            strides in elements.
        pointers: address of each operand's first element; the kernel's first operands by default.
    """
    pointers = pointers or [e.pointer(k) for k in range(len(sizes))]
    outer_json, row_json, rows_per_chunk, segment = loop_nest
    outer = [[e.extent(x) for x in axis] for axis in outer_json]
    length, *strides = [e.extent(x) for x in row_json]
    rows = e.product(extent for extent, *_ in outer)
    segments = e.div(e.add(length, segment - 1), segment)
    total = e.mul(rows, segments)
    last = e.minimum(e.mul(e.end, rows_per_chunk), total)
    with e.loop(e.mul(e.begin, rows_per_chunk), last) as items:
        row = e.div(items.index, segments)
        first = e.mul(e.mod(items.index, segments), segment)
        coordinates = e.unravel(row, [extent for extent, *_ in outer])
        starts: list[Reg] = []
        for number, (pointer, size) in enumerate(zip(pointers, sizes, strict=True)):
            offset: Int = 0
            for coordinate, (_, *along) in zip(coordinates, outer, strict=True):
                offset = e.add(offset, e.mul(coordinate, e.mul(along[number], size)))
            starts.append(e.at(pointer, offset))
        body(starts, first, e.minimum(e.add(first, segment), length), tuple(strides))
    return e.module()
