"""Copies between formats, and fills of the halos around tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from smelt.backends._iteration_space import Axis, coalesce_axes, sort_axes
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Int, Reg, lane_count, vector_type
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu.families._vectors import (
    LEAST_TILE,
    AxisRange,
    ElementConversion,
    RegisterTransposer,
)
from smelt.engine import Json, KernelSpec, Launch, View
from smelt.types import Dim, ceil_div, element_count

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget

COPY: Final = "copy"
"""Family name of copy kernels."""
CLEAR: Final = "clear"
"""Family name of kernels that fill halos."""
_CHUNK_BYTES: Final = 16 << 10
"""Approximate bytes per chunk: large against the cost of handing over a chunk, small against a
cache. Chosen without a measurement."""
_TILE: Final = 16
"""Largest side of a tile that is transposed in registers, in elements. A register of AVX-512 has 16
float32."""
_BLOCK: Final = 64
"""Largest side of a block of such tiles, in elements. Chosen without a measurement."""
_MAX_INTERLEAVED_LINES: Final = 4
"""Largest number of source lines, such as the channels of a picture, that are interleaved into one
line of the destination. Chosen without a measurement."""


def copy_launch(source: View, destination: View) -> Launch:
    """Return the launch that copies ``source`` to ``destination``.

    Both views have the same shape and any strides; elements are converted if their types differ.
    """
    axes = _merged(
        [
            Axis(e, (s, d))
            for e, s, d in zip(destination.shape, source.strides, destination.strides, strict=True)
            if e != 1
        ]
    )
    inner = _inner_axes(axes)
    outer = [axis for axis in axes if axis not in inner]
    element_conversion = ElementConversion.between(source.dtype, destination.dtype)
    size = element_conversion.widest
    blocks = _blocks(inner, size)
    scalars = LaunchScalars()
    items = element_count(tuple(a.extent for a in outer))
    item_elements = element_count(blocks or tuple(a.extent for a in inner))
    for axis, block in zip(inner, blocks, strict=False):
        items = items * ceil_div(axis.extent, block)
    items_per_chunk = (
        max(1, _CHUNK_BYTES // max(1, item_elements * size))
        if isinstance(item_elements, int)
        else 1
    )
    spec = kernel_spec(
        COPY,
        conversion=element_conversion.as_json(),
        outer=tuple(a.json(scalars) for a in outer),
        inner=tuple(a.json(scalars) for a in inner),
        blocks=blocks,
        items_per_chunk=items_per_chunk,
    )
    chunks = ceil_div(items, items_per_chunk)
    return Launch(spec, (source, destination), (1,), scalars.values, chunks)


def _blocks(inner: Sequence[Axis], size: int) -> tuple[int, ...]:
    """Return the extent of a work item along each inner axis; () if an item covers them.

    A long line is cut into segments. A transposition is cut into blocks that fill `_CHUNK_BYTES`,
    longer along the longer axis.
    """
    if len(inner) == 1:
        line, maximum = inner[0].extent, _CHUNK_BYTES // size
        return () if isinstance(line, int) and line <= 2 * maximum else (maximum,)
    if len(inner) < 2 or inner[0].strides[1] != 1 or inner[1].strides[0] != 1:
        return ()
    extents = [a.extent if isinstance(a.extent, int) else _BLOCK for a in inner]
    if min(extents) < LEAST_TILE:
        return ()
    # A block covers a short axis completely and extends along the other, to have enough work.
    first = min(_BLOCK, -(-extents[0] // _TILE) * _TILE)
    second = min(_BLOCK, -(-extents[1] // _TILE) * _TILE)
    capacity = max(1, _CHUNK_BYTES // (first * second * size))
    if extents[0] <= extents[1]:
        return (first, second * capacity)
    return (first * capacity, second)


def clear_launch(view: View, value: int = 0) -> Launch:
    """Return the launch that writes elements with the bits ``value`` into the halo of ``view``."""
    scalars = LaunchScalars()
    slabs: list[Json] = []
    for axis, (before, after) in enumerate(view.halo):
        for first, count in ((-before, before), (view.shape[axis], after)):
            if count:
                slabs.append(_slab(view, axis, first, count, scalars))
    size = view.dtype.size_bytes
    spec = kernel_spec(CLEAR, size=size, slabs=tuple(slabs), value=value)
    return Launch(spec, (view,), (0,), scalars.values, len(slabs))


def _slab(view: View, axis: int, first: Dim, count: int, scalars: LaunchScalars) -> Json:
    """Return one side of the halo as its start and axes.

    The side covers the full extent of later axes with their halos, and earlier axes without theirs,
    so that the sides do not overlap.
    """
    start: Dim = first * view.strides[axis]
    axes: list[Axis] = []
    for other, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        length: Dim = count if other == axis else extent
        if other > axis:
            before, after = view.halo[other]
            length = extent + before + after
            start = start - before * stride
        if length != 1:
            axes.append(Axis(length, (stride, stride)))
    return (scalars.json(start), tuple(a.json(scalars) for a in _merged(axes)))


def generate_copy(kernel: KernelSpec, target: CpuTarget) -> str:
    """Return the LLVM IR of a copy kernel."""
    e = Emitter(kernel.symbol, 2)
    element_conversion = ElementConversion.from_json(kernel["conversion"])
    items_per_chunk, blocks = kernel["items_per_chunk"], kernel["blocks"]
    read, written = element_conversion.sizes
    outer = [tuple(e.extent(x) for x in axis) for axis in kernel["outer"]]
    inner = [tuple(e.extent(x) for x in axis) for axis in kernel["inner"]]
    extents = [extent for extent, _, _ in outer]
    for (extent, _, _), block in zip(inner, blocks, strict=False):
        extents.append(e.div(e.add(extent, block - 1), block))
    total = e.product(extents)
    last = e.minimum(e.mul(e.end, items_per_chunk), total)
    with e.loop(e.mul(e.begin, items_per_chunk), last) as rows:
        coordinates = e.unravel(rows.index, extents)
        offsets: list[Int] = [0, 0]
        for coordinate, (_, source, destination) in zip(coordinates, outer, strict=False):
            offsets[0] = e.add(offsets[0], e.mul(coordinate, e.mul(source, read)))
            offsets[1] = e.add(offsets[1], e.mul(coordinate, e.mul(destination, written)))
        pointers = [e.at(e.pointer(k), offsets[k]) for k in (0, 1)]
        if len(blocks) == 2:
            extents = [extent for extent, _, _ in inner]
            spans = list(map(partial(_span, e), coordinates[-2:], blocks, extents))
            steps = (e.mul(inner[0][1], read), e.mul(inner[1][2], written))
            tile = _tile_lanes(extents, element_conversion.widest, target.vector_bits)
            RegisterTransposer(e, pointers[0], pointers[1], *steps, element_conversion).rectangle(
                spans[0], spans[1], tile
            )
        else:
            if blocks:
                (extent, *strides), begin = inner[0], e.mul(coordinates[-1], blocks[0])
                pointers = e.advanced(pointers, begin, strides, element_conversion.sizes)
                inner = [(e.minimum(e.sub(extent, begin), blocks[0]), *strides)]
            _InnerCopyWriter(e, element_conversion, target.vector_bits).copy(pointers, inner)
    return e.module()


def _span(e: Emitter, coordinate: Int, block: int, extent: Int) -> AxisRange:
    """Return the range of block number ``coordinate`` along an axis."""
    begin = e.mul(coordinate, block)
    remainder = extent if isinstance(extent, int) else None
    return AxisRange(begin, e.minimum(e.add(begin, block), extent), remainder)


def _tile_lanes(extents: Sequence[Int], size: int, vector_bits: int) -> int:
    """Return the side of the largest tile that fits a register and both axes."""
    tile = min(_TILE, vector_bits // (8 * size))
    while tile > LEAST_TILE and any(isinstance(x, int) and x < tile for x in extents):
        tile //= 2
    return tile


@dataclass(frozen=True, slots=True)
class _InnerCopyWriter:
    """Writes the copy of the inner axes of a chunk's items."""

    e: Emitter
    element_conversion: ElementConversion
    vector_bits: int

    @property
    def lanes(self) -> int:
        """Number of elements in a vector."""
        return self.vector_bits // (8 * self.element_conversion.widest)

    def copy(self, pointers: list[Reg], inner: list[tuple[Int, ...]]) -> None:
        """Write the copy; vectors run along the source's contiguous axis."""
        e, (read, written) = self.e, self.element_conversion.sizes
        if len(inner) == 2:
            if _is_interleaved(inner):
                inner = [inner[0], self.interleave(pointers, inner)]
            extent, source, destination = inner[0]
            with e.loop(0, extent) as steps:
                starts = e.advanced(pointers, steps.index, (source, destination), (read, written))
                self.copy(starts, inner[1:])
            return
        extent, source, destination = inner[0] if inner else (1, 1, 1)
        element = LLVM_TYPES[self.element_conversion.destination]
        for index, width in e.vector_steps(0, extent, self.lanes if source == 1 else 1):
            at = e.at(pointers[0], e.mul(index, e.mul(source, read)))
            value = self.element_conversion.load(e, at, width)
            target = e.at(pointers[1], e.mul(index, e.mul(destination, written)))
            if width == 1 or destination == 1:
                e.store(value, target)
                continue
            for lane in range(width):
                one = e.emit(element, f"extractelement {value}, i64 {lane}")
                e.store(one, e.at(target, e.mul(destination, lane * written)))

    def interleave(self, pointers: list[Reg], inner: list[tuple[Int, ...]]) -> tuple[Int, ...]:
        """Write the interleaving of full vectors, and return the axis of the remaining elements.

        The pointers are moved to the remaining elements.
        """
        e, lanes, (read, written) = self.e, self.lanes, self.element_conversion.sizes
        (count, plane, _), (extent, source, pitch) = inner
        assert isinstance(count, int)  # noqa: S101  (checked before)
        full_end = e.mul(e.div(extent, lanes), lanes)
        with e.loop(0, full_end, lanes) as steps:
            at = e.at(pointers[0], e.mul(steps.index, read))
            lines = [
                self.element_conversion.load(e, e.at(at, e.mul(plane, k * read)), lanes)
                for k in range(count)
            ]
            target = e.at(pointers[1], e.mul(steps.index, count * written))
            e.store(_interleave_lines(e, lines), target)
        pointers[0] = e.at(pointers[0], e.mul(full_end, read))
        pointers[1] = e.at(pointers[1], e.mul(full_end, count * written))
        return (e.sub(extent, full_end), source, pitch)


def _is_interleaved(inner: list[tuple[Int, ...]]) -> bool:
    """Return whether a few lines of the source are interleaved into one line of the destination."""
    (count, _, destination_step), (_, source_step, pitch) = inner
    few = isinstance(count, int) and 2 <= count <= _MAX_INTERLEAVED_LINES
    return few and destination_step == source_step == 1 and pitch == count


def _interleave_lines(e: Emitter, lines: Sequence[Reg]) -> Reg:
    """Return the vectors interleaved: first elements of all lines, then second ones, ..."""
    lanes = lane_count(lines[0].type)
    parts = [*lines, *[Reg("poison", lines[0].type)] * (-len(lines) % 2)]
    while len(parts) > 1:
        width = lane_count(parts[0].type)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [e.shuffle(a, b, range(2 * width)) for a, b in pairs]
    order = [k * lanes + i for i in range(lanes) for k in range(len(lines))]
    return e.shuffle(parts[0], Reg("poison", parts[0].type), order)


def generate_clear(kernel: KernelSpec, target: CpuTarget) -> str:
    """Return the LLVM IR of a kernel that fills a halo; chunk ``k`` is side ``k`` of the halo."""
    e = Emitter(kernel.symbol, 1)
    size = kernel["size"]
    for number, (start, axes) in enumerate(kernel["slabs"]):
        first = e.compare("sle", e.begin, number)
        in_range = e.binary("and", first, e.compare("sgt", e.end, number))
        with e.when(in_range):
            pointer = e.at(e.pointer(0), e.mul(e.extent(start), size))
            extents = [(e.extent(a[0]), e.extent(a[2])) for a in axes]
            _fill(e, pointer, extents, (size, kernel["value"]), target.vector_bits)
    return e.module()


def _fill(
    e: Emitter,
    pointer: Reg,
    axes: list[tuple[Int, Int]],
    element: tuple[int, int],
    vector_bits: int,
) -> None:
    """Write stores of one element along all axes; ``element`` is its size in bytes and its bits."""
    size, value = element
    if not axes:
        e.store(e.constant(value, f"i{8 * size}"), pointer)
        return
    (extent, stride), *rest = axes
    if rest:
        with e.loop(0, extent) as steps:
            start = e.at(pointer, e.mul(steps.index, e.mul(stride, size)))
            _fill(e, start, rest, element, vector_bits)
        return
    lanes = vector_bits // (8 * size) if stride == 1 else 1
    for index, width in e.vector_steps(0, extent, lanes):
        target = e.at(pointer, e.mul(index, e.mul(stride, size)))
        e.store(e.constant(value, vector_type(f"i{8 * size}", width)), target)


def _merged(axes: list[Axis]) -> list[Axis]:
    """Return the axes in the destination's memory order, with contiguous neighbours merged."""
    is_known = all(isinstance(a.strides[1], int) for a in axes)
    return coalesce_axes(sort_axes(axes, 1) if is_known else axes)


def _inner_axes(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes that one work item covers, outermost first.

    The source's contiguous axis is last, and the destination's innermost axis comes before it if it
    is another one.
    """
    if not axes:
        return []
    contiguous = [a for a in axes if a.strides[0] == 1]
    if not contiguous or contiguous[-1] is axes[-1]:
        return [axes[-1]]
    return [axes[-1], contiguous[-1]]
