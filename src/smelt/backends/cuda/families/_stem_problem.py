"""Stem convolutions (few input channels) and the launch that writes their pixels.

Pixels of three channels do not fill a vector, so each element would be loaded and masked alone. A
first launch therefore writes the image channels last, in the element type of the product, with zero
channels appended and zeros around the image. Then no position needs a mask, and the pixels of a
window's row are contiguous and loaded as vectors of whole pixels. Loads never exceed the window,
even where the weights are zero, because zero times infinity is NaN. If the image is a binding, the
first launch replaces the copy that is needed anyway.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Final

from smelt.backends._fused_programs import root_as
from smelt.backends._node_operands import input_view, required_input, workspace_of
from smelt.backends.cuda._index_limits import MAX_INT32_ELEMENTS
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR, KernelWriter, kernel_launch
from smelt.backends.cuda.families._conv_problem import ConvProblem
from smelt.backends.cuda.families._product_launches import linear_strides
from smelt.backends.cuda.families._product_operands import padded, weights_of
from smelt.engine import View
from smelt.ops import Conv
from smelt.types import Layout, TensorFormat, ceil_div, element_count, guessed_extent, override

if TYPE_CHECKING:
    from smelt.backends._base import Operands
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda._tile_configs import GemmShape
    from smelt.backends.cuda.families._product_problem import Formats
    from smelt.engine import Launch
    from smelt.ir import Constant, Node
    from smelt.types import Dim, DType

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
            return f"convolutions with {depth} input channels are handled by the conv family"
        if root.dilations[-1] > 1:
            return "the window is dilated along its rows"
        if required_input(self.node, 0).tensor.shape[0] == 0:
            return "the input has no elements"
        if prod(map(guessed_extent, self.padded_shape[1:])) > MAX_INT32_ELEMENTS:
            return (
                f"a padded image has more than {MAX_INT32_ELEMENTS} elements, the limit of 32-bit "
                "indexing"
            )
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

    @property
    @override
    def formats(self) -> Formats:
        """Formats of the inputs and the result; the first launch reads a linear image."""
        (_, *others), output = super().formats
        return (TensorFormat(self.dtype, Layout.LINEAR), *others), output

    @override
    def shape(self, target: CudaTarget) -> GemmShape:
        """Return the sizes of the product that the second launch computes."""
        shape = super().shape(target)
        depth = self.run * prod(self.root.kernel_shape[:-1])
        image = self.width * shape.image // self.filter_shape[1]
        return replace(shape, depth=depth, windows=False, run=_CACHED_RUN, image=image)

    def widened(self) -> Constant:
        """Return the filters padded with zeros to the channels of a pixel."""
        weights = weights_of(self.node)
        return padded(weights, f"{weights.name}.wide", 1, self.width - self.filter_shape[1])

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
        workspace, image = workspace_of(self.node, operands), input_view(operands, 0)
        count, *extents, _ = shape = self.padded_shape
        strides, total = linear_strides(shape), element_count(shape[:-1])
        pixels = View(workspace.buffer, workspace.offset, dtype, shape, strides)
        extents[-1] = extents[-1] - (ceil_div(read, self.width) - 1)
        steps = (strides[0], 1, *strides[1:-1])
        runs = replace(pixels, shape=(count, read, *extents), strides=steps)
        befores = (0, *(before for before, _ in self.root.pad_pairs))
        order = (0, *range(2, len(image.shape)))
        launch = kernel_launch(
            STEM,
            (image, pixels),
            ceil_div(total, _PIXELS),
            axes=tuple(
                (shape[number], image.shape[axis], image.strides[axis], before)
                for number, (axis, before) in enumerate(zip(order, befores, strict=True))
            ),
            channels=(image.shape[1], image.strides[1], shape[-1]),
            total=total,
        )
        return launch, runs


class ImagePackingWriter(KernelWriter):
    """Writer of the kernel that writes the padded image, channels last."""

    @override
    def write(self) -> str:
        s, axes = self.s, self.k["axes"]
        count, stride, width = self.k["channels"]
        # The pixels of all images may exceed 32 bits; those of two images do not.
        image_pixels = s.product_of(axis[0] for axis in axes[1:])
        s.line(f"first = {s.program}.to(tl.int64) * {_PIXELS}")
        s.line(f"i = first + tl.arange(0, {_PIXELS})")
        s.line(f"within = (first % {image_pixels}).to(tl.int32) + tl.arange(0, {_PIXELS})")
        s.line(f"c = tl.arange(0, {width})")
        s.line(f"is_pixel = i < {s.extent(self.k['total'])}")
        names = s.coordinates("within", axes, "d")
        s.line(f"{names[0]} = {names[0]} + first // {image_pixels}")
        conditions = ["is_pixel"]
        for name, (_, extent, _, pad_before) in zip(names, axes, strict=True):
            s.line(f"{name} = {name} - {pad_before}")
            if name != names[0]:
                conditions.append(f"({name} >= 0) & ({name} < {s.extent(extent)})")
        s.line(f"inside = {' & '.join(conditions)}")
        s.line(f"at = p0 + ({s.offset(names, axes, 1, uses_int64_offsets=True)})")
        place = f"at[:, None] + ({s.sum_of(('c', stride))})[None, :]"
        mask = f"inside[:, None] & (c < {count})[None, :]"
        s.line(f"x = tl.load({place}, mask={mask}, other=0)")
        address = f"(p1 + i * {width})[:, None] + c[None, :]"
        kind = LANGUAGE_TYPES[s.dtypes[1]]
        s.line(f"tl.store({address}, x.to({kind}), mask=is_pixel[:, None])")
        return s.text()
