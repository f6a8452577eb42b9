"""Stem convolutions (few input channels): a copy to padded, channels-last pixels, then a product.

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
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends._base import Family, Operands, Refusal, Tactic, with_storage_dtype
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._cost_model import count_of, guessed_extent, pass_seconds
from smelt.backends.cuda._implicit_gemm import write_implicit_gemm
from smelt.backends.cuda._index_width import MAX_INT32_ELEMENTS
from smelt.backends.cuda._kernel_source import LANGUAGE_TYPES, VECTOR, Source, operand_parameters
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._gemm_operands import as_factor, weights_of
from smelt.backends.cuda.families._gemm_tiles import GemmShape, tiles_for
from smelt.backends.cuda.families.conv import (
    ConvLowering,
    formats_of,
    pack_filters,
    reason_against,
)
from smelt.engine import KernelSpec, Launch, View, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Conv, Pad
from smelt.types import (
    DType,
    Layout,
    TensorFormat,
    TensorType,
    ceil_div,
    element_count,
    fixed_extent,
    fixed_shape,
    override,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import Step
    from smelt.ir import Node
    from smelt.types import Dim

_WIDTHS: Final = (4, 8, 16)
"""Possible numbers of channels of a written pixel."""
_CACHED_RUN: Final = 4
"""Inner K that is reported to the cost model: because it is below a vector, tiles whose loads go
through the L1 cache are also candidates. Windows overlap, so they may be faster."""
_PIXELS: Final = 256
"""Pixels per program of the first launch. Chosen without a measurement."""
_WIDEST_BYTES: Final = 4
"""Maximum size of an element of a pixel in bytes."""


class StemFamily(Family[CudaTarget]):
    """Family of dense convolutions of images whose channels do not fill a vector."""

    name: ClassVar[str] = "stem"
    supports_reduced_precision: ClassVar[bool] = True
    lowering: ClassVar[type[ConvLowering]] = ConvLowering
    """Lowering of the second launch."""

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv):
            return
        if reason := reason_against(node) or why_no_stem(node, root):
            yield Refusal(self.name, reason)
            return
        (image, *others), output = formats_of(node)
        first = TensorFormat(image.dtype if image else output.dtype, Layout.LINEAR)
        pixels = element_count(padded_shape(node, root))
        shape = stem_shape(node, root, target)
        sizes = shape.dtype.size_bytes + first.dtype.size_bytes
        copy_seconds = pass_seconds(shape.image * sizes, target)
        for choice, seconds in tiles_for(shape, target):
            if choice.split_k == 1:
                tactic = choice.tactic(
                    self.name, (first, *others), output, 0, seconds + copy_seconds
                )
                yield replace(tactic, workspace_bytes=pixels * _WIDEST_BYTES)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        del target
        made = with_storage_dtype(dtype, node, tactic)
        if required_input(node, 0).producer is None:  # a binding is read directly, in its own type
            made = replace(made, inputs=(tactic.inputs[0], *made.inputs[1:]))
        options = {**dict(made.parameters), "factors": dtype.value}
        return (replace(made, parameters=parameters(**options)),)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        width, _ = row_of(node, root_as(Conv, node))
        return (as_factor(pack_filters(widened(node, width)), factors_of(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(Conv, node)
        _, run = row_of(node, root)
        copy, runs = pixels_of(node, root, factors_of(tactic), operands, self.run_read(run))
        rank = len(root.kernel_shape)
        unpadded = replace(root, pads=(0,) * (2 * rank), kernel_shape=(*root.kernel_shape[:-1], 1))
        run_operands = replace(operands, inputs=(runs, *operands.inputs[1:]))
        lowering = self.lowering(node, unpadded, _without_factors(tactic), run_operands, run)
        return (copy, *lowering.launches())

    def run_read(self, run: int) -> int:
        """Return how many elements of a window's row are read."""
        return run

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        is_product = any(name == "schedule" for name, _ in kernel.parameters)
        return write_implicit_gemm(kernel) if is_product else _write(kernel)


def stem_shape(node: Node, root: Conv, target: CudaTarget) -> GemmShape:
    """Return the shape of the product that the second launch computes."""
    filters, depth, *_ = fixed_shape(required_input(node, 1).tensor.shape)
    width, run = row_of(node, root)
    dtype = target.operand_dtype(required_input(node, 0).tensor.dtype)
    image_elements = width * count_of(required_input(node, 0)) // depth
    total, adds = run * prod(root.kernel_shape[:-1]), len(node.inputs) > 3
    rows = count_of(node.output) // filters
    return GemmShape(1, rows, filters, total, dtype, adds, _CACHED_RUN, image_elements)


def widened(node: Node, width: int) -> Constant:
    """Return the filters padded with zeros to the channels of a pixel."""
    weights = weights_of(node)
    after = np.zeros((2, weights.type.rank), np.int64)
    after[1, 1] = width - fixed_extent(weights.type.shape[1])
    amounts = Constant(f"{weights.name}.zeros", after.reshape(-1))
    return Constant.derive(f"{weights.name}.wide", Pad(), weights, amounts)


def why_no_stem(node: Node, root: Conv) -> str | None:
    """Return why the family does not run a convolution, or None."""
    depth = fixed_extent(required_input(node, 1).tensor.shape[1])
    if root.group > 1:
        return "grouped convolution is not supported"
    if depth % 8 == 0 or depth > _WIDTHS[-1]:
        return f"{depth} channels already fill the vectors: handled by the conv family"
    if root.dilations[-1] > 1:
        return "the window is dilated along its rows"
    if required_input(node, 0).tensor.shape[0] == 0:
        return "the input has no elements"
    if prod(map(guessed_extent, padded_shape(node, root)[1:])) > MAX_INT32_ELEMENTS:
        return "the pixels of an image exceed 32-bit indexing"
    return None


def row_of(node: Node, root: Conv) -> tuple[int, int]:
    """Return the channels of a written pixel, and the elements of a window's row.

    The number of channels is chosen so that every window starts at an aligned vector.
    """
    depth = fixed_extent(required_input(node, 1).tensor.shape[1])
    step = root.strides[-1]
    width = next(w for w in _WIDTHS if w >= depth and w * step % VECTOR == 0)
    return width, width * root.kernel_shape[-1]


def factors_of(tactic: Tactic) -> DType:
    """Return the element type that the product is computed in."""
    options = tactic.options
    return DType(options["factors"]) if "factors" in options else tactic.outputs[0].dtype


def _without_factors(tactic: Tactic) -> Tactic:
    """Return the tactic without the element type among its parameters."""
    options = {name: value for name, value in tactic.parameters if name != "factors"}
    return replace(tactic, parameters=parameters(**options))


def padded_shape(node: Node, root: Conv) -> tuple[Dim, ...]:
    """Return (images, padded spatial extents, channels); lines are padded to aligned vectors."""
    count, _, *extents = required_input(node, 0).tensor.shape
    padded = [e + sum(pair) for e, pair in zip(extents, root.pad_pairs, strict=True)]
    width, _ = row_of(node, root)
    if isinstance(line := padded[-1], int):
        padded[-1] = line + -line % (VECTOR // min(width, VECTOR))
    return (count, *padded, width)


def _strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the strides of the written pixels, channels last."""
    return contiguous_strides(TensorType(DType.FLOAT32, shape), Layout.LINEAR)


def pixels_of(
    node: Node, root: Conv, dtype: DType, operands: Operands, read: int
) -> tuple[Launch, View]:
    """Return the launch that writes the pixels, and a view of runs of ``read`` elements in them.

    A run begins at each pixel and covers a window's row, so runs overlap.
    """
    workspace, image = operands.workspace, input_view(operands, 0)
    if workspace is None:
        raise InternalError(f"{node} has no workspace for its pixels")
    width, _ = row_of(node, root)
    count, *extents, _ = shape = padded_shape(node, root)
    strides = _strides(shape)
    extents[-1] = extents[-1] - (ceil_div(read, width) - 1)
    steps = (strides[0], 1, *strides[1:-1])
    runs = View(workspace.buffer, workspace.offset, dtype, (count, read, *extents), steps)
    return _write_pixels(image, runs, root, shape), runs


def _write_pixels(image: View, runs: View, root: Conv, shape: tuple[Dim, ...]) -> Launch:
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
        StemFamily.name,
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


def _write(kernel: KernelSpec) -> str:
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
