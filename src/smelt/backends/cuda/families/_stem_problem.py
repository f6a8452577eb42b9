"""Stem convolutions (few input channels) and the launch that writes their pixels.

Pixels of three channels do not fill a vector, so each element would be loaded and masked alone. A
first launch therefore writes the image channels last, in the element type of the product, with zero
channels appended and zeros around the image. Then no position needs a mask, and the pixels of a
window's row are contiguous and loaded as vectors of whole pixels. Loads never exceed the window,
even where the weights are zero, because zero times infinity is NaN. If the image is a binding, the
first launch replaces the copy that is needed anyway.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends._fused_programs import root_as
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._cost_model import count_of, guessed_extent
from smelt.backends.cuda._index_width import MAX_INT32_ELEMENTS
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR, Source, operand_parameters
from smelt.backends.cuda._product_schedules import GemmShape
from smelt.backends.cuda.families._conv_problem import ConvProblem
from smelt.backends.cuda.families._gemm_operands import weights_of
from smelt.engine import KernelSpec, Launch, View, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Conv, Pad
from smelt.types import (
    DType,
    Layout,
    TensorType,
    ceil_div,
    element_count,
    override,
)

if TYPE_CHECKING:
    from smelt.backends._base import Operands
    from smelt.backends.cuda._target import CudaTarget
    from smelt.ir import Node
    from smelt.types import Dim

STEM: Final = "stem"
"""Family of the kernels that write pixels, and of the products that follow them."""
_WIDTHS: Final = (4, 8, 16)
"""Possible numbers of channels of a written pixel."""
_CACHED_RUN: Final = 4
"""Inner K that is reported to the cost model: because it is below a vector, tiles whose loads go
through the L1 cache are also candidates. Windows overlap, so they may be faster."""
_PIXELS: Final = 256
"""Pixels per program of the first launch. Chosen without a measurement."""
_WIDEST_BYTES: Final = 4
"""Maximum size of an element of a pixel in bytes."""


class StemProblem(ConvProblem):
    """A dense convolution of an image whose channels do not fill a vector."""

    def __init__(self, node: Node, root: Conv | None = None) -> None:
        """Describe a node; ``root`` is its convolution, if it has another padding here."""
        super().__init__(node, root or root_as(Conv, node))

    @property
    def stem_reason(self) -> str | None:
        """Why the convolution is not computed as a stem, or None."""
        if self.reason:
            return self.reason
        depth, root = self.filter_shape[1], self.root
        if root.group > 1:
            return "grouped convolution is not supported"
        if depth % 8 == 0 or depth > _WIDTHS[-1]:
            return f"{depth} channels already fill the vectors: handled by the conv family"
        if root.dilations[-1] > 1:
            return "the window is dilated along its rows"
        if required_input(self.node, 0).tensor.shape[0] == 0:
            return "the input has no elements"
        if prod(map(guessed_extent, self.padded_shape[1:])) > MAX_INT32_ELEMENTS:
            return "the pixels of an image exceed 32-bit indexing"
        return None

    @property
    def width(self) -> int:
        """Channels of a written pixel, chosen so that every window starts at an aligned vector."""
        depth, step = self.filter_shape[1], self.root.strides[-1]
        return next(w for w in _WIDTHS if w >= depth and w * step % VECTOR == 0)

    @property
    def run(self) -> int:
        """Elements of a window's row."""
        return self.width * self.root.kernel_shape[-1]

    @override
    def shape(self, target: CudaTarget) -> GemmShape:
        """Return the sizes of the product that the second launch computes."""
        filters, depth, *_ = self.filter_shape
        return GemmShape(
            matrices=1,
            rows=count_of(self.node.output) // filters,
            columns=filters,
            depth=self.run * prod(self.root.kernel_shape[:-1]),
            dtype=target.operand_dtype(self.dtype),
            adds=len(self.node.inputs) > 3,
            run=_CACHED_RUN,
            image=self.width * count_of(required_input(self.node, 0)) // depth,
        )

    def widened(self) -> Constant:
        """Return the filters padded with zeros to the channels of a pixel."""
        weights = weights_of(self.node)
        after = np.zeros((2, weights.type.rank), np.int64)
        after[1, 1] = self.width - self.filter_shape[1]
        amounts = Constant(f"{weights.name}.zeros", after.reshape(-1))
        return Constant.derive(f"{weights.name}.wide", Pad(), weights, amounts)

    # ---- pixels

    @property
    def padded_shape(self) -> tuple[Dim, ...]:
        """Images, padded spatial extents, channels; lines are padded to aligned vectors."""
        count, _, *extents = required_input(self.node, 0).tensor.shape
        padded = [e + sum(pair) for e, pair in zip(extents, self.root.pad_pairs, strict=True)]
        if isinstance(line := padded[-1], int):
            padded[-1] = line + -line % (VECTOR // min(self.width, VECTOR))
        return (count, *padded, self.width)

    @property
    def pixel_bytes(self) -> Dim:
        """Size of all pixels in bytes, whatever their type."""
        return element_count(self.padded_shape) * _WIDEST_BYTES

    def write_pixels(self, dtype: DType, operands: Operands, read: int) -> tuple[Launch, View]:
        """Return the launch that writes the pixels, and runs of ``read`` elements in them.

        A run begins at each pixel and covers a window's row, so runs overlap.
        """
        workspace, image = operands.workspace, input_view(operands, 0)
        if workspace is None:
            raise InternalError(f"{self.node} has no workspace for its pixels")
        count, *extents, _ = shape = self.padded_shape
        strides = _strides(shape)
        extents[-1] = extents[-1] - (ceil_div(read, self.width) - 1)
        steps = (strides[0], 1, *strides[1:-1])
        runs = View(workspace.buffer, workspace.offset, dtype, (count, read, *extents), steps)
        return _pixel_launch(image, runs, self.root, shape), runs


def _strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the strides of the written pixels, channels last."""
    return contiguous_strides(TensorType(DType.FLOAT32, shape), Layout.LINEAR)


def _pixel_launch(image: View, runs: View, root: Conv, shape: tuple[Dim, ...]) -> Launch:
    """Return the launch that writes every element of the pixels."""
    scalars = LaunchScalars()
    pixels = View(runs.buffer, runs.offset, runs.dtype, shape, _strides(shape))
    views = (image, pixels)
    total = element_count(shape[:-1])
    befores = (0, *(before for before, _ in root.pad_pairs))
    axes = tuple(
        (*scalars.all_json((shape[a], image.shape[b], image.strides[b])), before)
        for (a, b), before in zip(enumerate((0, *range(2, len(image.shape)))), befores, strict=True)
    )
    spec = KernelSpec(
        STEM,
        parameters(
            axes=axes,
            channels=scalars.all_json((image.shape[1], image.strides[1], shape[-1])),
            total=scalars.json(total),
            num_warps=4,
            num_stages=1,
            **operand_parameters(views, len(scalars.values)),
        ),
    )
    return Launch(spec, views, (1,), scalars.values, ceil_div(total, _PIXELS))


def write_pixel_kernel(kernel: KernelSpec) -> str:
    """Return the text of the kernel that writes pixels."""
    s = Source(kernel)
    axes: Any = kernel["axes"]
    count, stride, width = kernel["channels"]
    names = [f"d{n}" for n in range(len(axes))]
    # The pixels of all images may exceed 32 bits; those of two images do not.
    image_pixels = s.product_of(axis[0] for axis in axes[1:])
    s.line(f"first = {s.program}.to(tl.int64) * {_PIXELS}")
    s.line(f"i = first + tl.arange(0, {_PIXELS})")
    s.line(f"within = (first % {image_pixels}).to(tl.int32) + tl.arange(0, {_PIXELS})")
    s.line(f"c = tl.arange(0, {width})")
    s.line(f"is_pixel = i < {s.extent(kernel['total'])}")
    s.unravel("within", [axis[0] for axis in axes], names)
    s.line(f"{names[0]} = {names[0]} + first // {image_pixels}")
    conditions = ["is_pixel"]
    terms: list[tuple[str, Any]] = []
    for name, (_, extent, source_stride, pad_before) in zip(names, axes, strict=True):
        s.line(f"{name} = {name} - {pad_before}")
        if name != names[0]:
            conditions.append(f"({name} >= 0) & ({name} < {s.extent(extent)})")
        terms.append((f"{name}.to(tl.int64)" if name == names[0] else name, source_stride))
    s.line(f"inside = {' & '.join(conditions)}")
    s.line(f"at = p0 + ({s.sum_of(*terms)})")
    mask = f"inside[:, None] & (c < {count})[None, :]"
    s.line(f"x = tl.load(at[:, None] + ({s.sum_of(('c', stride))})[None, :], mask={mask}, other=0)")
    address = f"(p1 + i * {width})[:, None] + c[None, :]"
    kind = LANGUAGE_TYPES[s.dtypes[1]]
    s.line(f"tl.store({address}, x.to({kind}), mask=is_pixel[:, None])")
    return s.text()
