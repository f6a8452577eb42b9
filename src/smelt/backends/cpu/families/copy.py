"""Copies between formats, and zeros around tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cpu._emit import (
    LLVM_TYPES,
    Emitter,
    Int,
    Reg,
    element_type,
    emitter_for,
    lane_count,
    vector_type,
)
from smelt.backends.cpu.families._register_transpose import (
    LEAST_TILE,
    AxisRange,
    RegisterTransposer,
)
from smelt.backends.cpu.families._vectors import ElementConversion
from smelt.engine import KernelSpec, Launch, parameters
from smelt.types import ceil_div, element_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Json, View
    from smelt.types import Dim

COPY: Final = "copy"
CLEAR: Final = "clear"
_CHUNK_BYTES: Final = 16 << 10
"""About what one worker takes at a time: large against the cost of taking it, small against a
cache."""
_TILE: Final = 16
_BLOCK: Final = 64
_MAX_INTERLEAVED_LINES: Final = 4
"""Lines, say the channels of a picture, that are read at once to be written as one."""


@dataclass(frozen=True, slots=True)
class _Axis:
    extent: Dim
    source: Dim
    destination: Dim


def copy_launch(source: View, destination: View) -> Launch:
    """Copy ``source`` to ``destination``: one shape, any strides; floats are converted."""
    axes = _merged(
        [
            _Axis(e, s, d)
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
    total = element_count(tuple(a.extent for a in outer))
    conversion = element_count(blocks or tuple(a.extent for a in inner))
    for axis, block in zip(inner, blocks, strict=False):
        total = total * ceil_div(axis.extent, block)
    items_per_chunk = (
        max(1, _CHUNK_BYTES // max(1, conversion * size)) if isinstance(conversion, int) else 1
    )
    spec = KernelSpec(
        COPY,
        parameters(
            conversion=element_conversion.as_json(),
            outer=tuple(_json(a, scalars) for a in outer),
            inner=tuple(_json(a, scalars) for a in inner),
            blocks=blocks,
            items_per_chunk=items_per_chunk,
        ),
    )
    chunks = ceil_div(total, items_per_chunk)
    return Launch(spec, (source, destination), (1,), scalars.values, chunks)


def _blocks(inner: Sequence[_Axis], size: int) -> tuple[int, ...]:
    """How much of a line, or of what is transposed, is copied at a time; () for all of it."""
    if len(inner) == 1:
        line, most = inner[0].extent, _CHUNK_BYTES // size
        return () if isinstance(line, int) and line <= 2 * most else (most,)
    if len(inner) < 2 or inner[0].destination != 1 or inner[1].source != 1:
        return ()
    extents = [a.extent if isinstance(a.extent, int) else _BLOCK for a in inner]
    if min(extents) < LEAST_TILE:
        return ()
    # Whole lines of a short axis, so that there is enough to do at a time.
    first = min(_BLOCK, -(-extents[0] // _TILE) * _TILE)
    second = min(_BLOCK, -(-extents[1] // _TILE) * _TILE)
    room = max(1, _CHUNK_BYTES // (first * second * size))
    if extents[0] <= extents[1]:
        return (first, second * room)
    return (first * room, second)


def clear_launch(view: View, value: int = 0) -> Launch:
    """Write elements of the bits ``value`` into the halo of ``view`` and nowhere else."""
    scalars = LaunchScalars()
    slabs: list[Json] = []
    for axis, (before, after) in enumerate(view.halo):
        for first, count in ((-before, before), (view.shape[axis], after)):
            if count:
                slabs.append(_slab(view, axis, first, count, scalars))
    size = view.dtype.size_bytes
    spec = KernelSpec(CLEAR, parameters(size=size, slabs=tuple(slabs), value=value))
    return Launch(spec, (view,), (0,), scalars.values, len(slabs))


def _slab(view: View, axis: int, first: Dim, count: int, scalars: LaunchScalars) -> Json:
    """One side of the halo: whole along later axes, without what earlier axes' sides cover."""
    start: Dim = first * view.strides[axis]
    axes: list[_Axis] = []
    for other, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        length: Dim = count if other == axis else extent
        if other > axis:
            before, after = view.halo[other]
            length = extent + before + after
            start = start - before * stride
        if length != 1:
            axes.append(_Axis(length, stride, stride))
    merged = _merged(axes)
    return (scalars.json(start), tuple(_json(a, scalars) for a in merged))


def generate_copy(kernel: KernelSpec, target: CpuTarget) -> str:
    """The code of a ``copy`` kernel."""
    e = emitter_for(kernel, 2)
    element_conversion = ElementConversion.from_json(kernel["conversion"])
    items_per_chunk, blocks = kernel["items_per_chunk"], kernel["blocks"]
    read, written = element_conversion.sizes
    outer = [tuple(e.extent(x) for x in axis) for axis in kernel["outer"]]
    inner = [tuple(e.extent(x) for x in axis) for axis in kernel["inner"]]
    extents = [extent for extent, _, _ in outer]
    for (extent, _, _), block in zip(inner, blocks, strict=False):
        extents.append(e.div(e.add(extent, block - 1), block))
    total: Int = 1
    for extent in extents:
        total = e.mul(total, extent)
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
                begin = e.mul(coordinates[-1], blocks[0])
                pointers, inner = _part(e, pointers, inner[0], element_conversion, begin, blocks[0])
            _copy_inner(e, pointers, inner, element_conversion, target.vector_bits)
    return e.module()


def _part(
    e: Emitter,
    pointers: list[Reg],
    line: tuple[Int, ...],
    element_conversion: ElementConversion,
    begin: Int,
    most: int,
) -> tuple[list[Reg], list[tuple[Int, ...]]]:
    """``most`` elements of a line from ``begin`` on."""
    extent, *strides = line
    starts = [
        e.at(p, e.mul(begin, e.mul(stride, size)))
        for p, stride, size in zip(pointers, strides, element_conversion.sizes, strict=True)
    ]
    return starts, [(e.minimum(e.sub(extent, begin), most), *strides)]


def _span(e: Emitter, coordinate: Int, block: int, extent: Int) -> AxisRange:
    """Block number ``coordinate`` of an axis."""
    begin = e.mul(coordinate, block)
    left = extent if isinstance(extent, int) else None
    return AxisRange(begin, e.minimum(e.add(begin, block), extent), left)


def _tile_lanes(extents: Sequence[Int], size: int, vector_bits: int) -> int:
    """Lanes of the largest tile that fits registers and both axes."""
    tile = min(_TILE, vector_bits // (8 * size))
    while tile > LEAST_TILE and any(isinstance(x, int) and x < tile for x in extents):
        tile //= 2
    return tile


def _copy_inner(
    e: Emitter,
    pointers: list[Reg],
    inner: list[tuple[Int, ...]],
    element_conversion: ElementConversion,
    vector_bits: int,
) -> None:
    read, written = element_conversion.sizes
    if len(inner) == 2:
        if _is_interleaved(inner):
            inner = [inner[0], _interleave(e, pointers, inner, element_conversion, vector_bits)]
        extent, source, destination = inner[0]
        with e.loop(0, extent) as steps:
            conversion = [
                e.at(p, e.mul(steps.index, e.mul(stride, size)))
                for p, stride, size in zip(
                    pointers, (source, destination), element_conversion.sizes, strict=True
                )
            ]
            _copy_inner(e, conversion, inner[1:], element_conversion, vector_bits)
        return
    extent, source, destination = inner[0] if inner else (1, 1, 1)
    element = LLVM_TYPES[element_conversion.destination]
    lanes = vector_bits // (8 * element_conversion.widest)
    whole: Int = 0
    if source == 1:
        whole = e.mul(e.div(extent, lanes), lanes)
        with e.loop(0, whole, lanes) as steps:
            value = element_conversion.load(e, e.at(pointers[0], e.mul(steps.index, read)), lanes)
            to = e.at(pointers[1], e.mul(steps.index, e.mul(destination, written)))
            if destination == 1:
                e.store(value, to)
            else:
                for lane in range(lanes):
                    one = e.emit(element, f"extractelement {value}, i64 {lane}")
                    e.store(one, e.at(to, e.mul(destination, lane * written)))
    with e.loop(whole, extent) as steps:
        one = element_conversion.load(e, e.at(pointers[0], e.mul(steps.index, e.mul(source, read))))
        e.store(one, e.at(pointers[1], e.mul(steps.index, e.mul(destination, written))))


def _is_interleaved(inner: list[tuple[Int, ...]]) -> bool:
    """Whether a few lines of the source become one of the destination, element by element."""
    (count, _, beside), (_, along, pitch) = inner
    few = isinstance(count, int) and 2 <= count <= _MAX_INTERLEAVED_LINES
    return few and beside == along == 1 and pitch == count


def _interleave(
    e: Emitter,
    pointers: list[Reg],
    inner: list[tuple[Int, ...]],
    element_conversion: ElementConversion,
    vector_bits: int,
) -> tuple[Int, ...]:
    """Write what fills vectors; move the pointers to the rest, and give its axis."""
    (count, plane, _), (extent, source, pitch) = inner
    assert isinstance(count, int)  # noqa: S101  (checked before)
    lanes = vector_bits // (8 * element_conversion.widest)
    whole = e.mul(e.div(extent, lanes), lanes)
    read, written = element_conversion.sizes
    with e.loop(0, whole, lanes) as steps:
        at = e.at(pointers[0], e.mul(steps.index, read))
        lines = [
            element_conversion.load(e, e.at(at, e.mul(plane, k * read)), lanes)
            for k in range(count)
        ]
        to = e.at(pointers[1], e.mul(steps.index, count * written))
        e.store(_interleave_lines(e, lines), to)
    pointers[0] = e.at(pointers[0], e.mul(whole, read))
    pointers[1] = e.at(pointers[1], e.mul(whole, count * written))
    return (e.sub(extent, whole), source, pitch)


def _interleave_lines(e: Emitter, lines: Sequence[Reg]) -> Reg:
    """The first elements of all lines, then their second ones, and so on."""
    lanes, element = lane_count(lines[0].type), element_type(lines[0].type)
    parts = [*lines, *[Reg("poison", lines[0].type)] * (-len(lines) % 2)]
    while len(parts) > 1:
        width = lane_count(parts[0].type)
        order = ", ".join(f"i32 {i}" for i in range(2 * width))
        kind = vector_type(element, 2 * width)
        parts = [
            e.emit(kind, f"shufflevector {a}, {b}, <{2 * width} x i32> <{order}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
    order = ", ".join(f"i32 {k * lanes + i}" for i in range(lanes) for k in range(len(lines)))
    total = lanes * len(lines)
    whole = parts[0]
    mask = f"<{total} x i32> <{order}>"
    kind = vector_type(element, total)
    return e.emit(kind, f"shufflevector {whole}, {whole.type} poison, {mask}")


def generate_clear(kernel: KernelSpec, target: CpuTarget) -> str:
    """The code of a ``clear`` kernel: chunk ``k`` is side ``k`` of the halo."""
    e = emitter_for(kernel, 1)
    size = kernel["size"]
    for number, (start, axes) in enumerate(kernel["slabs"]):
        first = e.compare("sle", e.begin, number)
        mine = e.binary("and", first, e.compare("sgt", e.end, number))
        with e.when(mine):
            pointer = e.at(e.pointer(0), e.mul(e.extent(start), size))
            extents = [(e.extent(a[0]), e.extent(a[2])) for a in axes]
            _fill(e, pointer, extents, (size, kernel["value"]), target.vector_bits)
    return e.module()


def _fill(
    e: Emitter, pointer: Reg, axes: list[tuple[Int, Int]], what: tuple[int, int], vector_bits: int
) -> None:
    """Store elements of ``what`` = (bytes, bits) along all axes."""
    size, value = what
    if not axes:
        e.store(e.constant(value, f"i{8 * size}"), pointer)
        return
    (extent, stride), *rest = axes
    if rest:
        with e.loop(0, extent) as steps:
            _fill(
                e, e.at(pointer, e.mul(steps.index, e.mul(stride, size))), rest, what, vector_bits
            )
        return
    lanes = vector_bits // (8 * size)
    whole: Int = 0
    if stride == 1:
        whole = e.mul(e.div(extent, lanes), lanes)
        zeros = e.constant(value, vector_type(f"i{8 * size}", lanes))
        with e.loop(0, whole, lanes) as steps:
            e.store(zeros, e.at(pointer, e.mul(steps.index, size)))
    with e.loop(whole, extent) as steps:
        to = e.at(pointer, e.mul(steps.index, e.mul(stride, size)))
        e.store(e.constant(value, f"i{8 * size}"), to)


def _json(axis: _Axis, scalars: LaunchScalars) -> Json:
    return scalars.all_json((axis.extent, axis.source, axis.destination))


def _merged(axes: Sequence[_Axis]) -> list[_Axis]:
    """Axes in the destination's memory order, neighbours that run on joined."""
    ordered = list(axes)
    if all(isinstance(a.destination, int) for a in axes):
        ordered.sort(key=lambda a: -abs(int(str(a.destination))))
    merged: list[_Axis] = []
    for axis in ordered:
        if merged:
            above = merged[-1]
            runs_on = (
                above.source == axis.extent * axis.source
                and above.destination == axis.extent * axis.destination
            )
            if runs_on:
                merged[-1] = _Axis(above.extent * axis.extent, axis.source, axis.destination)
                continue
        merged.append(axis)
    return merged


def _inner_axes(axes: Sequence[_Axis]) -> list[_Axis]:
    """What a row of a chunk walks: the source's contiguous axis last, the destination's before."""
    if not axes:
        return []
    contiguous = [a for a in axes if a.source == 1]
    if not contiguous or contiguous[-1] is axes[-1]:
        return [axes[-1]]
    return [axes[-1], contiguous[-1]]
