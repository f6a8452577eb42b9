"""Pointwise kernel: one pass over an iteration space, for elementwise ops, copies and fills.

Axes that are contiguous in every operand are merged. A program processes a two-dimensional tile of
the last axis and one other. If an operand is transposed, the other axis is the one along which that
operand has stride 1, so that reads and writes both cover whole cache lines; otherwise it is the
axis before the last. The remaining axes are part of the program number. Within a tile, operands
that are broadcast are loaded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any, Final

from smelt.backends._iteration_space import Axis, broadcast_strides, iteration_axes
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cuda._cost_model import guessed_extent, next_power_of_two
from smelt.backends.cuda._elementwise import write_stages
from smelt.backends.cuda._index_width import MAX_INT32
from smelt.backends.cuda._kernel_source import Source, operand_parameters
from smelt.engine import KernelSpec, Launch, parameters
from smelt.types import ceil_div, element_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Json, View
    from smelt.types import Dim

MAX_PROGRAM_ELEMENTS: Final = 4096
"""Elements per program if there is enough work for the whole GPU. Chosen without a measurement of
its own; with these sizes kernels reach 85 to 98 % of an H200's memory bandwidth above 70 MB
(docs/lab/other-kernels-on-gpus.md)."""
_SMALL_PROGRAMS: Final = ((1 << 17, 256), (1 << 20, 1024))
"""(limit, elements per program): below the limit of elements in total, smaller programs use more of
the GPU. Chosen without a measurement."""
_WARPS: Final = 4
"""Warps per program. Chosen without a measurement."""
_LINE_ELEMENTS: Final = 64
"""Elements of a tile along each contiguous axis if an operand is transposed. 64 elements of 16 bits
are a cache line of 128 bytes."""
_MAX_WHOLE_EXTENT: Final = 16
"""Extent in elements up to which a tile covers an axis whole. Chosen without a measurement."""
_MIN_PROGRAM_ELEMENTS: Final = 256
"""Minimum elements per program when the size is reduced to divide a symbolic extent. Chosen without
a measurement."""
_MAX_PADDING_FACTOR: Final = 1.15
"""Maximum size of the tiles along an axis, relative to the size with the least padding. Chosen
without a measurement."""


def pointwise_launch(
    family: str, views: Sequence[View], stages: Json, elements: int | None = None
) -> Launch:
    """Return the launch of an elementwise program on ``views``, the last of which is the result.

    Args:
        family: family of the kernel.
        views: operands.
        stages: the program.
        elements: elements per program; None chooses by the total number.
    """
    output = views[-1]
    strides = [broadcast_strides(v, output.shape) for v in views]
    axes = iteration_axes(output.shape, strides, len(views) - 1) or [Axis(1, (0,) * len(views))]
    total_elements = _product([axis.extent for axis in axes])
    tiling = _tiling(axes, elements or _elements_for(total_elements))
    scalars = LaunchScalars()
    spec = KernelSpec(
        family,
        parameters(
            axes=tuple(a.json(scalars) for a in tiling.axes),
            tile=tiling.tile,
            masked=tiling.is_masked,
            stages=stages,
            num_warps=_WARPS,
            num_stages=1,
            **operand_parameters(views, len(scalars.values)),
        ),
    )
    return Launch(spec, tuple(views), (len(views) - 1,), scalars.values, tiling.programs)


@dataclass(frozen=True, slots=True)
class _PointwiseTiling:
    """Order of the axes, and the tile along the last ones."""

    axes: tuple[Axis, ...]
    """Axes, those of the tile last."""
    tile: tuple[int, ...]
    """Extents along the last one or two axes."""

    @property
    def is_masked(self) -> tuple[bool, ...]:
        """Whether the last tile may extend past the end, for each axis of the tile."""
        extents = [axis.extent for axis in self.axes[len(self.axes) - len(self.tile) :]]
        return tuple(
            known_divisor(e) % size != 0 for e, size in zip(extents, self.tile, strict=True)
        )

    @property
    def programs(self) -> Dim:
        """Number of programs."""
        count = len(self.axes) - len(self.tile)
        counts: list[Dim] = [axis.extent for axis in self.axes[:count]]
        for axis, size in zip(self.axes[count:], self.tile, strict=True):
            counts.append(ceil_div(axis.extent, size))
        return element_count(tuple(counts))


def _product(extents: Sequence[Dim]) -> int:
    """Return the product of extents, with a guess for each symbol."""
    count = 1
    for extent in extents:
        count *= guessed_extent(extent)
    return count


def known_divisor(extent: Dim) -> int:
    """Return the largest number that is known to divide an extent."""
    return extent if isinstance(extent, int) else gcd(*(count for _, count in extent.terms))


def _elements_for(total_elements: int) -> int:
    """Return the elements per program for a total number of elements."""
    return next(
        (elements for limit, elements in _SMALL_PROGRAMS if total_elements < limit),
        MAX_PROGRAM_ELEMENTS,
    )


def _tiling(axes: Sequence[Axis], elements: int) -> _PointwiseTiling:
    """Choose the axes and the extents of the tile."""
    if len(axes) == 1:
        return _PointwiseTiling((axes[0],), (_single_axis_tile(axes[0].extent, elements),))
    last_axis = axes[-1]
    transposed = _transposed_axis(axes)
    other_axis = axes[-2] if transposed is None else transposed
    outer_axes = [axis for axis in axes[:-1] if axis is not other_axis]
    if transposed is None:
        last_extent = tile_side(guessed_extent(last_axis.extent), elements)
        other_extent = tile_side(guessed_extent(other_axis.extent), max(1, elements // last_extent))
    else:
        last_extent = tile_side(guessed_extent(last_axis.extent), _LINE_ELEMENTS)
        other_extent = tile_side(
            guessed_extent(other_axis.extent), max(_LINE_ELEMENTS, elements // last_extent)
        )
        last_extent = tile_side(
            guessed_extent(last_axis.extent), max(last_extent, elements // other_extent)
        )
    return _PointwiseTiling((*outer_axes, other_axis, last_axis), (other_extent, last_extent))


def _single_axis_tile(extent: Dim, elements: int) -> int:
    """Return the tile of a single axis: smaller if it then divides a symbolic extent."""
    step = known_divisor(extent) & -known_divisor(extent)
    return (
        min(elements, step)
        if not isinstance(extent, int) and step >= _MIN_PROGRAM_ELEMENTS
        else elements
    )


def _transposed_axis(axes: Sequence[Axis]) -> Axis | None:
    """Return the axis along which an operand has stride 1 that has not along the last axis."""
    for number, stride in enumerate(axes[-1].strides):
        if stride in (0, 1):
            continue
        contiguous = [axis for axis in axes[:-1] if axis.strides[number] == 1]
        if contiguous:
            return contiguous[0]
    return None


def tile_side(extent: int, limit: int) -> int:
    """Return a power of two as tile extent: large, but with little padding past the axis's end."""
    covering = next_power_of_two(extent)
    if covering <= limit and extent <= _MAX_WHOLE_EXTENT:
        return covering
    sizes = [1 << n for n in range(4, 13) if 1 << n <= min(covering, limit)] or [
        min(covering, limit)
    ]
    best = min(-(-extent // size) * size for size in sizes)
    return max(s for s in sizes if -(-extent // s) * s <= _MAX_PADDING_FACTOR * best)


def write_pointwise(kernel: KernelSpec) -> str:
    """Return the text of the kernel."""
    return _PointwiseWriter(kernel).write()


class _PointwiseWriter:
    """Writer of a pointwise kernel."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.tile: tuple[int, ...] = tuple(kernel["tile"])
        axes: Any = kernel["axes"]
        self.inner = axes[len(axes) - len(self.tile) :]
        self.outer = axes[: len(axes) - len(self.tile)]
        self.masks: list[str | None] = []

    def write(self) -> str:
        """Return the text of the kernel."""
        s = self.s
        self.find_tile()
        s_last = len(s.dtypes) - 1
        loaded: dict[int, str] = {}

        def read(operand: int) -> str:
            if operand not in loaded:
                name = loaded[operand] = f"x{operand}"
                s.line(f"{name} = {s.load(operand, self.place(operand), self.mask(operand))}")
            return loaded[operand]

        result = write_stages(s.line, self.k["stages"], read, [])
        s.store(
            s_last,
            self.place(s_last, covers_tile=True),
            result,
            self.mask(s_last, covers_tile=True),
        )
        return s.text()

    def find_tile(self) -> None:
        """Write the start of the tile in each operand, and the masks of its axes."""
        s = self.s
        s.line("rest = tl.program_id(0).to(tl.int64)")
        for number in reversed(range(len(self.tile))):
            extent, size = self.inner[number][0], self.tile[number]
            if number or self.outer:
                count = f"(({s.extent(extent)} + {size - 1}) // {size})"
                s.line(f"t{number} = (rest % {count}) * {size}")
                s.line(f"rest = rest // {count}")
            else:
                s.line(f"t{number} = rest * {size}")
            s.line(f"e{number} = tl.arange(0, {size})")
            needed = self.k["masked"][number]
            s.line(f"m{number} = t{number} + e{number} < {s.extent(extent)}")
            self.masks.append(f"m{number}" if needed else None)
        self.masks.reverse()
        names = [f"c{number}" for number in range(len(self.outer))]
        s.unravel("rest", [axis[0] for axis in self.outer], names)
        for operand in range(len(s.dtypes)):
            terms = [
                (name, axis[1 + operand]) for name, axis in zip(names, self.outer, strict=True)
            ]
            terms += [(f"t{n}", axis[1 + operand]) for n, axis in enumerate(self.inner)]
            s.line(f"base{operand} = {s.sum_of(*terms)}")

    def place(self, operand: int, *, covers_tile: bool = False) -> str:
        """Return the offsets of an operand's part of the tile; size 1 along broadcast axes."""
        terms = [f"base{operand}"]
        for number, axis in enumerate(self.inner):
            stride = axis[1 + operand]
            if stride != 0:
                # Offsets within the tile need 64 bits if the tile spans more than 32 bits.
                needs_int64_offsets = (
                    isinstance(stride, int) and abs(stride) * self.tile[number] > MAX_INT32
                )
                steps = f"e{number}.to(tl.int64)" if needs_int64_offsets else f"e{number}"
                terms.append(f"{self.spread(steps, number)} * {self.s.extent(stride)}")
            elif covers_tile:
                terms.append(f"{self.spread(f'e{number}', number)} * 0")
        return " + ".join(terms)

    def mask(self, operand: int, *, covers_tile: bool = False) -> str | None:
        """Return the condition of the elements of an operand that exist, or None."""
        conditions = [
            self.spread(mask, number)
            for number, (mask, axis) in enumerate(zip(self.masks, self.inner, strict=True))
            if mask is not None and (covers_tile or axis[1 + operand] != 0)
        ]
        return " & ".join(conditions) or None

    def spread(self, vector: str, number: int) -> str:
        """Return a vector along one axis of the tile, broadcast over the other."""
        if len(self.tile) == 1:
            return vector
        return f"{vector}[:, None]" if number == 0 else f"{vector}[None, :]"


def write_element_offsets(
    s: Source, axes: Any, tile: tuple[int, int], row_count: Json
) -> list[str]:
    """Write the coordinates of a program's tile: positions by elements of the last axis.

    The variables are ``c0``, ``c1``, … for the coordinates (all but the last along the tile's
    rows), ``m`` for the elements that exist and ``i_ok`` for the rows that exist. Return the
    coordinates in a form that broadcasts over the tile.
    """
    row_tile, column_tile = tile
    names = [f"c{a}" for a in range(len(axes))]
    last_name, width = names[-1], s.extent(axes[-1][0])
    column_tiles = f"(({width} + {column_tile - 1}) // {column_tile})"
    s.line("program = tl.program_id(0).to(tl.int64)")
    s.line(
        f"{last_name} = (program % {column_tiles}) * {column_tile} + tl.arange(0, {column_tile})"
    )
    s.line(f"i = (program // {column_tiles}) * {row_tile} + tl.arange(0, {row_tile})")
    s.line(f"i_ok = i < {s.extent(row_count)}")
    s.line(f"{last_name}_ok = {last_name} < {width}")
    s.line(f"m = i_ok[:, None] & {last_name}_ok[None, :]")
    s.unravel("i", [axis[0] for axis in axes[:-1]], names[:-1])
    return [*(f"{name}[:, None]" for name in names[:-1]), f"{last_name}[None, :]"]
