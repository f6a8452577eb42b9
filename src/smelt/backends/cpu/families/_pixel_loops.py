"""Loops of the kernels that compute one pixel at a time, with vectors along the channels.

Depthwise convolution, pooling and local response normalisation work on channels-last images. A
chunk is some rows of one image. Inside, the kernel loops over pixels and then over channels:
several vectors at a time, and a masked remainder.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from dataclasses import fields as dataclass_fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from smelt.backends import Family, NodeRefusedError
from smelt.backends._node_operands import required_input
from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu._epilogue import Epilogue, plan_epilogue
from smelt.backends.cpu._refusals import check_dtype
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._operand_packing import (
    epilogue_operand_strides,
    pack_epilogue_constants,
)
from smelt.backends.cpu.families._vectors import load_channels, store, unravel
from smelt.engine import Json, KernelSpec, Launch, View, as_json
from smelt.types import Dim, DType, ceil_div, fixed_extent, override

if TYPE_CHECKING:
    from smelt.backends import Operands, Tactic
    from smelt.backends._launch_scalars import LaunchScalars
    from smelt.ir import Constant, Node

DimT = TypeVar("DimT", bound="Dim")

Position = tuple[Int, Int, Int]
"""Image, row and column of a pixel."""
Masks = list[Reg | None]
"""For each vector, the mask of its channels; None for a full vector."""
CHANNEL_AXIS = 1
"""Axis of the channels in the model's order (N, C, ...)."""
_CHUNK_OPERATIONS = 1 << 20
"""Least work per chunk that repays handing it to a worker, in operations per element
(multiply-adds, comparisons, ...). The value is that of `_tiling._CHUNK_FLOPS`, chosen without a
measurement of these kernels."""


@dataclass(frozen=True, slots=True)
class PixelStrides:
    """Strides of an operand along the result's coordinates, in elements."""

    image: Json
    row: Json
    column: Json
    channel: Json
    stored: str
    """Name of the element type in memory."""

    @property
    def dtype(self) -> DType:
        """Element type in memory."""
        return DType(self.stored)

    def as_json(self) -> Json:
        """Return the strides as a JSON value for a kernel spec."""
        return as_json(astuple(self))

    def bytes_of(self, e: Emitter, index: Int, stride: Json = 1) -> Int:
        """Return the bytes of ``index`` steps of a stride; the default stride is one element."""
        return e.mul(index, e.mul(e.extent(stride), self.dtype.size_bytes))


@dataclass(frozen=True, slots=True)
class PixelLoopSpec:
    """Extents of a kernel's result, and the strides of its operands."""

    images: Json
    height: Json
    width: Json
    channels: int
    lanes: int
    rows: int
    """Rows per chunk."""
    blocks: Json
    """Chunks per image."""
    out: PixelStrides
    extras: tuple[PixelStrides, ...]
    epilogue: Json

    def as_json(self) -> Json:
        """Return the loops as a JSON value for a kernel spec."""
        return as_json(astuple(self))

    @staticmethod
    def from_spec(kernel: KernelSpec) -> PixelLoopSpec:
        """Return the loops in the parameter ``pixels`` of a kernel spec."""
        values: Any = as_json(kernel["pixels"])
        fields = dict(zip([f.name for f in dataclass_fields(PixelLoopSpec)], values, strict=True))
        fields["out"] = PixelStrides(*fields["out"])
        fields["extras"] = tuple(PixelStrides(*x) for x in fields["extras"])
        return PixelLoopSpec(**fields)


def pixel_strides_of(strides: Sequence[Dim], scalars: LaunchScalars, dtype: DType) -> PixelStrides:
    """Return the strides of an operand from those along (N, C, H, W) or (N, C, W)."""
    image, channel, *spatial_pair = strides
    row, column = spatial_pair if len(spatial_pair) == 2 else (0, spatial_pair[0])
    image_, row_, column_, channel_ = scalars.all_json((image, row, column, channel))
    return PixelStrides(image_, row_, column_, channel_, dtype.value)


def spatial_pair(extents: Sequence[DimT], missing: DimT) -> tuple[DimT, DimT]:
    """Return the values for rows and columns of (H, W), or (``missing``, W) of (W,)."""
    return (extents[0], extents[1]) if len(extents) == 2 else (missing, extents[0])


def check_float_images(node: Node, dimensions: tuple[int, ...] = (1, 2)) -> None:
    """Check that a node's input and result are float32 images, as `check_images` does."""
    for what, value in (("the input", required_input(node, 0)), ("the result", node.output)):
        check_dtype(what, value.tensor.dtype, DType.FLOAT32)
    check_images(node, dimensions)


def check_images(node: Node, dimensions: tuple[int, ...] = (1, 2)) -> None:
    """Check that a node's input and result are images.

    The number of channels must be known at build time, and the number of spatial axes must be one
    of ``dimensions``.
    """
    channels, *spatial = node.output.tensor.shape[1:]
    if len(spatial) not in dimensions:
        supported = " or ".join(map(str, dimensions))
        raise NodeRefusedError(
            f"the number of spatial axes is {len(spatial)}; it must be {supported}"
        )
    if not isinstance(channels, int):
        raise NodeRefusedError(f"the number of channels, {channels}, is not known at build time")
    if channels == 0:
        raise NodeRefusedError("the result has 0 channels")


class PixelFamily(Family[CpuTarget], ABC):
    """Base of the families of windows without weights, which pack the epilogue's constants only."""

    supports_reduced_precision: ClassVar[bool] = True

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return pack_epilogue_constants(node, CHANNEL_AXIS)


def pixel_loop_of(
    node: Node,
    operands: Operands,
    packed: Sequence[View],
    scalars: LaunchScalars,
    lanes: int,
    work: int,
) -> tuple[PixelLoopSpec, list[View]]:
    """Return the loops over the result's pixels, and the views of the extra operands.

    ``work`` is the number of operations per element of the result. A chunk has at least
    `_CHUNK_OPERATIONS`, but an image of known height is cut into at least four chunks.
    """
    shape = node.output.tensor.shape
    height, width = spatial_pair(shape[2:], 1)
    channels, out = fixed_extent(shape[1]), operands.outputs[0]
    extra_operands = epilogue_operand_strides(node, operands, packed, CHANNEL_AXIS)
    row_work = (width if isinstance(width, int) else 56) * channels * work
    rows = max(1, _CHUNK_OPERATIONS // max(1, row_work))
    if isinstance(height, int):
        rows = max(1, min(rows, -(-height // 4)))
    pixels = PixelLoopSpec(
        images=scalars.json(shape[0]),
        height=scalars.json(height),
        width=scalars.json(width),
        channels=channels,
        lanes=lanes,
        rows=rows,
        blocks=scalars.json(ceil_div(height, rows)),
        out=pixel_strides_of(out.strides, scalars, out.dtype),
        extras=tuple(
            pixel_strides_of(strides, scalars, view.dtype) for view, strides in extra_operands
        ),
        epilogue=plan_epilogue(node).as_json(),
    )
    return pixels, [view for view, _ in extra_operands]


def pixel_launch(
    kernel: KernelSpec,
    pixels: PixelLoopSpec,
    node: Node,
    views: tuple[View, ...],
    scalars: LaunchScalars,
) -> Launch:
    """Return the launch of a kernel whose last operand is the result."""
    shape = node.output.tensor.shape
    height = spatial_pair(shape[2:], 1)[0]
    chunks = shape[0] * ceil_div(height, pixels.rows)
    return Launch(kernel, views, (len(views) - 1,), scalars.values, chunks)


@dataclass(slots=True)
class PixelLoopWriter:
    """Writes the loops of a pixel kernel. Operands: ``first`` of its own, extras, result."""

    e: Emitter
    p: PixelLoopSpec
    first: int

    @property
    def kind(self) -> str:
        """LLVM type of a vector of float32."""
        return f"<{self.p.lanes} x float>" if self.p.lanes > 1 else "float"

    @contextmanager
    def chunks(self) -> Generator[tuple[Int, Int, Int]]:
        """Write the loop over chunks; yield the image, the first row and the end of the rows."""
        e, p = self.e, self.p
        with e.loop(e.begin, e.end) as chunk:
            image, block = unravel(e, chunk.index, (p.images, p.blocks))
            top = e.mul(block, p.rows)
            yield image, top, e.minimum(e.add(top, p.rows), e.extent(p.height))

    @contextmanager
    def rows(self) -> Generator[tuple[Int, Int]]:
        """Write the loops over chunks and rows; yield the image and the row."""
        with self.chunks() as (image, top, bottom), self.e.loop(top, bottom) as row:
            yield image, row.index

    def row_tiles(self, columns: int, tile: Callable[[Int, int], None]) -> None:
        """Write a row as tiles: ``tile(left, columns)`` writes pixels from ``left`` on.

        The last tile ends at the border. If the width is known at run time alone, rows shorter than
        a tile are computed pixel by pixel.
        """
        e = self.e
        width = e.extent(self.p.width)
        if isinstance(width, int):
            self._tiles(min(columns, width), tile)
            return
        with e.when(e.compare("sge", width, columns)):
            self._tiles(columns, tile)
        with e.when(e.compare("slt", width, columns)):
            self._tiles(1, tile)

    def _tiles(self, columns: int, tile: Callable[[Int, int], None]) -> None:
        e, width = self.e, self.e.extent(self.p.width)
        with e.loop(0, e.div(e.add(width, columns - 1), columns)) as index:
            tile(e.minimum(e.mul(index.index, columns), e.sub(width, columns)), columns)

    def channel_blocks(self, vectors: int, body: Callable[[Int, Int, Reg | None], None]) -> None:
        """Write ``body(first, end, mask)`` for blocks of ``vectors`` vectors of channels.

        The channels beyond the last full vector are one more call with a mask.
        """
        e, lanes, count = self.e, self.p.lanes, self.p.channels
        full_end = count // lanes * lanes
        with e.loop(0, full_end, vectors * lanes) as block:
            body(block.index, e.minimum(e.add(block.index, vectors * lanes), full_end), None)
        if count > full_end:
            body(full_end, count, e.tail_mask(count - full_end, lanes))

    def offset(self, walk: PixelStrides, image: Int, row: Int, column: Int) -> Int:
        """Return the byte offset of a pixel in an operand."""
        pairs = ((image, walk.image), (row, walk.row), (column, walk.column))
        return self.e.sum(walk.bytes_of(self.e, index, stride) for index, stride in pairs)

    def channels(self, maximum: int) -> Generator[tuple[Int, Masks]]:
        """Write loops over all channels; yield the first channel and the masks of some vectors.

        There are ``maximum`` vectors, or fewer at the end, where the last one may have a mask.
        """
        for first, count in self.e.blocks(self.p.channels, maximum * self.p.lanes):
            yield first, self.masks(count)

    def masks(self, count: int) -> Masks:
        """Return the masks of the vectors of ``count`` channels; None for a full vector."""
        lanes = self.p.lanes
        masks: Masks = [None] * (count // lanes)
        return [*masks, self.e.tail_mask(count % lanes, lanes)] if count % lanes else masks

    def finish(self, value: Reg, position: Position, channel: Int, mask: Reg | None) -> None:
        """Write the epilogue and the store of one vector of channels of a pixel."""
        e, p = self.e, self.p

        def read(k: int) -> Reg:
            walk = p.extras[k]
            at = e.at(e.pointer(self.first + k), self.offset(walk, *position))
            stride = e.extent(walk.channel)
            at = e.at(at, walk.bytes_of(e, channel, walk.channel))
            return load_channels(e, self.kind, at, stride, mask, walk.dtype)

        value = Epilogue.from_json(p.epilogue).emit(e, value, read)
        at = e.at(e.pointer(self.first + len(p.extras)), self.offset(p.out, *position))
        store(e, value, e.at(at, p.out.bytes_of(e, channel)), mask, p.out.dtype)


class PixelKernelWriter:
    """Base of the writers of kernels whose result is an image."""

    def __init__(self, kernel: KernelSpec, first: int) -> None:
        """Create a writer of a kernel with ``first`` operands before the epilogue's."""
        self.k = kernel
        self.p = PixelLoopSpec.from_spec(kernel)
        self.e = Emitter(kernel.symbol, first + len(self.p.extras) + 1)
        self.w = PixelLoopWriter(self.e, self.p, first)

    @cached_property
    def a(self) -> PixelStrides:
        """Strides of the image that the kernel reads."""
        return PixelStrides(*self.k["a"])


def clipped(e: Emitter, start: Int, window: int, dilation: int, extent: Int) -> tuple[Int, Int]:
    """Return the range of a window's taps, from ``start`` on, that lie in ``[0, extent)``."""

    def taps_before(bound: Int) -> Int:
        """Return the number of taps before ``bound``, which counts from the window's start."""
        ahead = e.add(e.maximum(bound, 0), dilation - 1)
        return e.minimum(e.div(ahead, dilation), window)

    return taps_before(e.sub(0, start)), taps_before(e.sub(extent, start))
