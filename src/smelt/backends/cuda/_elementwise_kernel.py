"""Elementwise kernels: one pass over an iteration space, for elementwise ops, copies and fills.

The launch and the offsets of other kernels that compute each element on its own are here, too. Axes
that are contiguous in every operand are merged. A program processes a two-dimensional tile of the
last axis and one other. If an operand is transposed, the other axis is the one along which that
operand has stride 1, so that reads and writes both cover whole cache lines; otherwise it is the
axis before the last. The remaining axes are part of the program number. Within a tile, operands
that are broadcast are loaded once.
"""

from __future__ import annotations

from math import gcd, prod
from typing import TYPE_CHECKING, Any, Final

from smelt.backends._iteration_space import Axis, broadcast_strides, iteration_axes
from smelt.backends.cuda._cost_model import next_power_of_two
from smelt.backends.cuda._elementwise import write_stages
from smelt.backends.cuda._index_limits import MAX_INT32
from smelt.backends.cuda._kernel_source import KernelWriter, kernel_launch
from smelt.types import ceil_div, element_count, guessed_extent, override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends._base import Tactic
    from smelt.backends.cuda._kernel_source import KernelField, KernelSource
    from smelt.engine import Json, KernelSpec, Launch, View
    from smelt.types import Dim

_MAX_PROGRAM_ELEMENTS: Final = 4096
"""Elements per program if there is enough work for the whole GPU. Chosen without a measurement of
its own; with these sizes kernels reach 85 to 98 % of an H200's memory bandwidth above 70 MB
(docs/lab/other-kernels-on-gpus.md)."""
_SMALL_PROGRAMS: Final = ((1 << 17, 256), (1 << 20, 1024))
"""(limit, elements per program): below the limit of elements in total, smaller programs use more of
the GPU. Chosen without a measurement."""
_LINE_ELEMENTS: Final = 64
"""Elements of a tile along each contiguous axis if an operand is transposed. 64 elements of 16 bits
are a cache line of 128 bytes."""
_MAX_WHOLE_EXTENT: Final = 16
"""Extent in elements up to which a tile covers an axis whole. Chosen without a measurement."""
_MIN_PROGRAM_ELEMENTS: Final = 256
"""Minimum elements per program when the size is reduced to divide a symbolic extent. Chosen without
a measurement."""
_TILE_ELEMENTS: Final = 1024
"""Elements per program of kernels that compute each element on its own. Chosen without a
measurement."""
_MAX_PADDING_FACTOR: Final = 1.15
"""Maximum size of the tiles along an axis, relative to the size with the least padding. Chosen
without a measurement."""


def pointwise_launch(family: str, views: Sequence[View], stages: Json) -> Launch:
    """Return the launch of an elementwise program on ``views``, the last of which is the result."""
    output = views[-1]
    strides = [broadcast_strides(v, output.shape) for v in views]
    axes = iteration_axes(output.shape, strides, len(views) - 1) or [Axis(1, (0,) * len(views))]
    axes, tile = _tiling(axes, _elements_for(prod(guessed_extent(axis.extent) for axis in axes)))
    outer, inner = axes[: -len(tile)], list(zip(axes[-len(tile) :], tile, strict=True))
    tiles = (ceil_div(axis.extent, size) for axis, size in inner)
    return kernel_launch(
        family,
        views,
        element_count((*(axis.extent for axis in outer), *tiles)),
        axes=fields_of(axes),
        tile=tile,
        # Whether the last tile may extend past the end.
        masked=tuple(known_divisor(axis.extent) % size != 0 for axis, size in inner),
        stages=stages,
    )


def fields_of(axes: Sequence[Axis]) -> tuple[tuple[Dim, ...], ...]:
    """Return axes as fields of a kernel: the extent of each, then its strides."""
    return tuple((axis.extent, *axis.strides) for axis in axes)


def known_divisor(extent: Dim) -> int:
    """Return the largest number that is known to divide an extent."""
    return extent if isinstance(extent, int) else gcd(*(count for _, count in extent.terms))


def _elements_for(total_elements: int) -> int:
    """Return the elements per program for a total number of elements."""
    return next(
        (elements for limit, elements in _SMALL_PROGRAMS if total_elements < limit),
        _MAX_PROGRAM_ELEMENTS,
    )


def _tiling(axes: list[Axis], elements: int) -> tuple[list[Axis], tuple[int, ...]]:
    """Return the axes, those of the tile last, and the extents of the tile along them."""
    if len(axes) == 1:
        return axes, (_single_axis_tile(axes[0].extent, elements),)
    last_axis = axes[-1]
    transposed = _transposed_axis(axes)
    other_axis = axes[-2] if transposed is None else transposed
    outer_axes = [axis for axis in axes[:-1] if axis is not other_axis]
    other, last = guessed_extent(other_axis.extent), guessed_extent(last_axis.extent)
    if transposed is None:
        last_size = tile_side(last, elements)
        other_size = tile_side(other, max(1, elements // last_size))
    else:
        last_size = tile_side(last, _LINE_ELEMENTS)
        other_size = tile_side(other, max(_LINE_ELEMENTS, elements // last_size))
        last_size = tile_side(last, max(last_size, elements // other_size))
    return [*outer_axes, other_axis, last_axis], (other_size, last_size)


def _single_axis_tile(extent: Dim, elements: int) -> int:
    """Return the tile of a single axis: smaller if it then divides a symbolic extent."""
    step = known_divisor(extent) & -known_divisor(extent)
    is_divisible = not isinstance(extent, int) and step >= _MIN_PROGRAM_ELEMENTS
    return min(elements, step) if is_divisible else elements


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
    most = min(covering, limit)
    sizes = [1 << n for n in range(4, 13) if 1 << n <= most] or [most]
    best = min(-(-extent // size) * size for size in sizes)
    return max(s for s in sizes if -(-extent // s) * s <= _MAX_PADDING_FACTOR * best)


class PointwiseWriter(KernelWriter):
    """Writer of a pointwise kernel."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.tile: tuple[int, ...] = tuple(kernel["tile"])
        axes: Any = kernel["axes"]
        self.outer, self.inner = axes[: -len(self.tile)], axes[-len(self.tile) :]
        self.masks: list[str | None] = []

    @override
    def write(self) -> str:
        s, last = self.s, self.last
        self.find_tile()
        read = s.extra_reader(0, lambda n: s.load(n, self.place(n), self.mask(n)))
        result = write_stages(s.line, self.k["stages"], read, [])
        s.store(last, self.place(last), result, self.mask(last))
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
        names = s.coordinates("rest", self.outer, "c")
        names += [f"t{number}" for number in range(len(self.inner))]
        for operand in range(len(s.dtypes)):
            s.line(f"base{operand} = {s.offset(names, (*self.outer, *self.inner), operand)}")

    def place(self, operand: int) -> str:
        """Return the offsets of an operand's part of the tile; size 1 if it is broadcast."""
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
            elif operand == self.last:
                terms.append(f"{self.spread(f'e{number}', number)} * 0")
        return " + ".join(terms)

    def mask(self, operand: int) -> str | None:
        """Return the condition of the elements of an operand that exist, or None."""
        conditions = [
            self.spread(mask, number)
            for number, (mask, axis) in enumerate(zip(self.masks, self.inner, strict=True))
            if mask is not None and (operand == self.last or axis[1 + operand] != 0)
        ]
        return " & ".join(conditions) or None

    def spread(self, vector: str, number: int) -> str:
        """Return a vector along one axis of the tile, broadcast over the other."""
        if len(self.tile) == 1:
            return vector
        return f"{vector}[:, None]" if number == 0 else f"{vector}[None, :]"


def element_launch(
    tactic: Tactic, views: Sequence[View], marks: Sequence[Json], **fields: KernelField
) -> Launch:
    """Return the launch of a kernel that computes each element of a result on its own.

    Args:
        tactic: tactic of the node.
        views: operands, the input first and the result last.
        marks: what the kernel needs to know of each axis.
        fields: further parameters of the kernel.
    """
    x, *_, out = views
    order = tactic.output_formats[0].layout.axis_order(len(out.shape))
    last = out.shape[order[-1]]
    column_tile = tile_side(guessed_extent(last), _TILE_ELEMENTS)
    row_tile = _TILE_ELEMENTS // column_tile
    places = element_count(tuple(out.shape[a] for a in order[:-1]))
    return kernel_launch(
        tactic.family,
        views,
        ceil_div(places, row_tile) * ceil_div(last, column_tile),
        axes=tuple((out.shape[a], x.strides[a], out.strides[a], marks[a]) for a in order),
        **fields,
        places=places,
        tile=(row_tile, column_tile),
    )


def write_element_offsets(
    s: KernelSource, axes: Any, tile: tuple[int, int], row_count: Json
) -> list[str]:
    """Write the coordinates of a program's tile: positions by elements of the last axis.

    The variables are ``c0``, ``c1``, … for the coordinates (all but the last along the tile's
    rows), ``m`` for the elements that exist and ``i_ok`` for the rows that exist. Return the
    coordinates in a form that broadcasts over the tile.
    """
    last_name, width = f"c{len(axes) - 1}", s.extent(axes[-1][0])
    s.find_tile(last_name, width, tile)
    s.line(f"i_ok = i < {s.extent(row_count)}")
    s.line(f"{last_name}_ok = {last_name} < {width}")
    s.line(f"m = i_ok[:, None] & {last_name}_ok[None, :]")
    names = s.coordinates("i", axes[:-1], "c")
    return [*(f"{name}[:, None]" for name in names), f"{last_name}[None, :]"]
