"""One pass over an iteration space: the kernel under elementwise ops, copies and fills.

Axes that run on in every operand are joined. A program does a tile of the last axis and of one
other: the one along which an operand runs on that is turned over, if there is one, so that both
sides are read and written in whole lines; else the next. What is left of the axes is the program's
number. Within a tile, operands that repeat are read once.
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

MANY_ELEMENTS: Final = 4096
"""Of a program, where there is enough work for the whole GPU."""
_FEW: Final = ((1 << 17, 256), (1 << 20, 1024))
"""Below so many elements, smaller programs occupy more of the GPU."""
_WARPS: Final = 4
_LINE: Final = 64
"""Elements of a tile's side along which a turned operand runs on."""
_MIN_LINE: Final = 16
_MIN_BLOCK: Final = 256
_WASTE: Final = 1.15
"""How much more than an axis its tiles may cover, if shorter ones cover it better."""


def pointwise_launch(
    family: str, views: Sequence[View], stages: Json, elements: int | None = None
) -> Launch:
    """The launch of a program whose operands are ``views``, the last of them the result.

    Args:
        family: of the kernel.
        views: operands.
        stages: the program.
        elements: how many a block does; as fits the number of all when not given.
    """
    output = views[-1]
    strides = [broadcast_strides(v, output.shape) for v in views]
    axes = iteration_axes(output.shape, strides, len(views) - 1) or [Axis(1, (0,) * len(views))]
    whole = _product([axis.extent for axis in axes])
    tiling = _tiling(axes, elements or _elements_for(whole))
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
    axes: tuple[Axis, ...]
    """Those of the tile last."""
    tile: tuple[int, ...]
    """Extents along the last one or two axes."""

    @property
    def is_masked(self) -> tuple[bool, ...]:
        """For each axis of the tile, whether the last tile may reach beyond it."""
        extents = [axis.extent for axis in self.axes[len(self.axes) - len(self.tile) :]]
        return tuple(step_of(e) % size != 0 for e, size in zip(extents, self.tile, strict=True))

    @property
    def programs(self) -> Dim:
        count = len(self.axes) - len(self.tile)
        counts: list[Dim] = [axis.extent for axis in self.axes[:count]]
        for axis, size in zip(self.axes[count:], self.tile, strict=True):
            counts.append(ceil_div(axis.extent, size))
        return element_count(tuple(counts))


def _product(extents: Sequence[Dim]) -> int:
    count = 1
    for extent in extents:
        count *= guessed_extent(extent)
    return count


def step_of(extent: Dim) -> int:
    """The largest number that surely divides an extent."""
    return extent if isinstance(extent, int) else gcd(*(count for _, count in extent.terms))


def _elements_for(whole: int) -> int:
    return next((elements for limit, elements in _FEW if whole < limit), MANY_ELEMENTS)


def _tiling(axes: Sequence[Axis], elements: int) -> _PointwiseTiling:
    if len(axes) == 1:
        return _PointwiseTiling((axes[0],), (_flat(axes[0].extent, elements),))
    last = axes[-1]
    transposed = _transposed_axis(axes)
    other = axes[-2] if transposed is None else transposed
    rest = [axis for axis in axes[:-1] if axis is not other]
    if transposed is None:
        across = side_of(guessed_extent(last.extent), elements)
        along = side_of(guessed_extent(other.extent), max(1, elements // across))
    else:
        across = side_of(guessed_extent(last.extent), _LINE)
        along = side_of(guessed_extent(other.extent), max(_LINE, elements // across))
        across = side_of(guessed_extent(last.extent), max(across, elements // along))
    return _PointwiseTiling((*rest, other, last), (along, across))


def _flat(extent: Dim, elements: int) -> int:
    """Elements of a block of a single axis: fewer, if so no block of an open axis is cut."""
    step = step_of(extent) & -step_of(extent)
    return min(elements, step) if not isinstance(extent, int) and step >= _MIN_BLOCK else elements


def _transposed_axis(axes: Sequence[Axis]) -> Axis | None:
    """The axis along which an operand runs on that does not along the last."""
    for number, stride in enumerate(axes[-1].strides):
        if stride in (0, 1):
            continue
        found = [axis for axis in axes[:-1] if axis.strides[number] == 1]
        if found:
            return found[0]
    return None


def side_of(extent: int, most: int) -> int:
    """A power of two for tiles along an axis: long, but not much longer than what there is."""
    whole = next_power_of_two(extent)
    if whole <= most and extent <= _MIN_LINE:
        return whole
    sizes = [1 << n for n in range(4, 13) if 1 << n <= min(whole, most)] or [min(whole, most)]
    best = min(-(-extent // size) * size for size in sizes)
    return max(s for s in sizes if -(-extent // s) * s <= _WASTE * best)


def write_pointwise(kernel: KernelSpec) -> str:
    """The kernel's text."""
    return _PointwiseWriter(kernel).write()


class _PointwiseWriter:
    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.tile: tuple[int, ...] = tuple(kernel["tile"])
        axes: Any = kernel["axes"]
        self.inner = axes[len(axes) - len(self.tile) :]
        self.outer = axes[: len(axes) - len(self.tile)]
        self.masks: list[str | None] = []

    def write(self) -> str:
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
        s.store(s_last, self.place(s_last, whole=True), result, self.mask(s_last, whole=True))
        return s.text()

    def find_tile(self) -> None:
        """Name where the tile begins in each operand, and what lies inside of the result."""
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

    def place(self, operand: int, *, whole: bool = False) -> str:
        """Offsets of an operand's part of the tile: one along an axis that it repeats along."""
        terms = [f"base{operand}"]
        for number, axis in enumerate(self.inner):
            stride = axis[1 + operand]
            if stride != 0:
                # Further from a tile's first element, the next ones are counted in 64 bits.
                needs_int64_offsets = (
                    isinstance(stride, int) and abs(stride) * self.tile[number] > MAX_INT32
                )
                steps = f"e{number}.to(tl.int64)" if needs_int64_offsets else f"e{number}"
                terms.append(f"{self.spread(steps, number)} * {self.s.extent(stride)}")
            elif whole:
                terms.append(f"{self.spread(f'e{number}', number)} * 0")
        return " + ".join(terms)

    def mask(self, operand: int, *, whole: bool = False) -> str | None:
        conditions = [
            self.spread(mask, number)
            for number, (mask, axis) in enumerate(zip(self.masks, self.inner, strict=True))
            if mask is not None and (whole or axis[1 + operand] != 0)
        ]
        return " & ".join(conditions) or None

    def spread(self, vector: str, number: int) -> str:
        if len(self.tile) == 1:
            return vector
        return f"{vector}[:, None]" if number == 0 else f"{vector}[None, :]"


def write_element_offsets(s: Source, axes: Any, tile: tuple[int, int], places: Json) -> list[str]:
    """Write which elements a program does: a tile of some places along the last axis.

    Variables are ``c0``, ``c1``, … for the coordinates, all but the last along the tile's rows, and
    ``m`` for which of them exist, ``i_ok`` for which rows do. Returned are coordinates as they
    broadcast over the tile.
    """
    along, across = tile
    names = [f"c{a}" for a in range(len(axes))]
    last, width = names[-1], s.extent(axes[-1][0])
    stretches = f"(({width} + {across - 1}) // {across})"
    s.line("program = tl.program_id(0).to(tl.int64)")
    s.line(f"{last} = (program % {stretches}) * {across} + tl.arange(0, {across})")
    s.line(f"i = (program // {stretches}) * {along} + tl.arange(0, {along})")
    s.line(f"i_ok = i < {s.extent(places)}")
    s.line(f"{last}_ok = {last} < {width}")
    s.line(f"m = i_ok[:, None] & {last}_ok[None, :]")
    s.unravel("i", [axis[0] for axis in axes[:-1]], names[:-1])
    return [*(f"{name}[:, None]" for name in names[:-1]), f"{last}[None, :]"]
