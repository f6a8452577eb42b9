"""Convolution in one or two dimensions as implicit GEMM, without im2col.

Images are stored channels-last, so that the run of input channels is contiguous. The planner stores
a halo of zeros around the input, so that no tap needs a bounds check. An input with a halo, a slice
of a concatenation and a plain tensor differ only in their strides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from smelt.backends import Family, Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._implicit_gemm import GemmStrides, ImplicitGemm
from smelt.backends.cpu.families._microkernel import write_microkernel
from smelt.backends.cpu.families._operand_packing import (
    CHANNELS_LAST,
    LINEAR,
    constant_of,
    dot_product_of,
    epilogue_of,
    epilogue_operand_strides,
    named,
    pack_bias,
    pack_epilogue_constants,
    pack_panels,
    plan_epilogue_operands,
    reduced_precision_products,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._tiling import (
    TilingProblem,
    ranked_tilings,
    static_extent,
)
from smelt.engine import parameters
from smelt.ops import Conv
from smelt.types import DType, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends import Operands
    from smelt.backends.cpu._epilogue import Epilogue
    from smelt.backends.cpu.families._dot_product import DotProduct
    from smelt.engine import Halo, Json, KernelSpec, Step, View
    from smelt.ir import Constant, Node, Value
    from smelt.ops import ConvInteger
    from smelt.types import Dim, TensorFormat

_CHANNEL_AXIS = 1
"""Axis of the channels in the model's order (N, C, ...)."""
_FEW_CHANNELS = 8
"""Number of channels from which runs of input channels are long enough. Inputs with fewer may stay
in planes, and their runs may cover all columns of the window. Chosen without a measurement."""
_MIN_MULTI_PASS_PANEL_BYTES = 400 << 10
"""Size in bytes from which a panel is summed in several passes, one per row of the window, so that
each pass uses a smaller part of the panel. Chosen without a measurement."""


class ConvFamily(Family[CpuTarget]):
    """Direct convolution over packed panels of weights."""

    name: ClassVar[str] = "conv"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, Conv):
            return
        reason = _unsupported_reason(node, root)
        if reason:
            yield Refusal(self.name, reason)
            return
        extras = plan_epilogue_operands(node, _CHANNEL_AXIS)
        if isinstance(extras, str):
            yield Refusal(self.name, extras)
            return
        bias = bias_of(node)
        others = (
            None,
            *([] if len(_root_inputs(node)) < 3 else [LINEAR if _varies(bias) else None]),
            *extras.formats,
        )
        halo = halo_of(node, root)
        halos = (halo, *[()] * (len(node.inputs) - 1)) if halo else ()
        for options, seconds in _candidates(node, root, target):
            for first in _layouts(node):
                yield Tactic(
                    self.name,
                    options,
                    (first, *others),
                    (CHANNELS_LAST,),
                    halos,
                    cost_hint=seconds,
                )

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        return reduced_precision_products(node, tactic, dtype, target)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        root = root_as(Conv, node)
        options = tactic.options
        lanes, vectors = options.integer("lanes"), options.integer("vectors")
        weights, bias = constant_of(node.inputs[1]), bias_of(node)
        dot_product = dot_product_of(tactic)
        if runs_over_columns(weights, dot_product):
            weights = columns_in_runs(weights)
        packed = pack_panels(weights, root.group, lanes, vectors, dot_product)
        if bias is not None and bias.constant is not None:
            packed += (pack_bias(bias.constant, root.group, lanes),)
        return packed + pack_epilogue_constants(node, _CHANNEL_AXIS)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        count = len(self.pack(node, tactic)) - len(pack_epilogue_constants(node, _CHANNEL_AXIS))
        product, extras = implicit_gemm_of(node, tactic, operands, count)
        views = (input_view(operands, 0), *operands.packed[:count], *extras, operands.outputs[0])
        return (product.launch(self.name, tactic.parameters, views),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        del target
        return write_microkernel(kernel)


def _unsupported_reason(node: Node, root: Conv) -> str | None:
    """Return why the family does not support a convolution, or None if it does."""
    x, weights = node.inputs[0], node.inputs[1]
    if x is None or weights is None:
        return "the input or the weights are missing"
    if x.tensor.dtype is not DType.FLOAT32:
        return f"only float32 is supported, not {x.tensor.dtype.value}"
    if node.output.tensor.dtype is not DType.FLOAT32:
        return f"the result is {node.output.tensor.dtype.value}, not float32"
    if len(root.kernel_shape) not in {1, 2}:
        return f"a window has {len(root.kernel_shape)} dimensions; 1 and 2 are supported"
    if weights.constant is None:
        return f"the weights {weights.name} are not constant"
    if weights.tensor.shape[0] == 0:
        return "there are no filters"
    return None


def _layouts(node: Node) -> tuple[TensorFormat, ...]:
    """Return the layouts that the input may have.

    Images of a few channels, such as pictures, can also be read as planes, which saves a copy of
    the network's input to channels-last.
    """
    channels = required_input(node, 0).tensor.shape[1]
    few = isinstance(channels, int) and 1 < channels < _FEW_CHANNELS
    return (CHANNELS_LAST, LINEAR) if few else (CHANNELS_LAST,)


def _root_inputs(node: Node) -> list[Value | None]:
    """Return the inputs of the convolution without those of the epilogue."""
    return node.inputs[: root_of(node)[1]]


def bias_of(node: Node) -> Value | None:
    """Return the bias of a convolution or transposed convolution, or None if there is none."""
    inputs = _root_inputs(node)
    return inputs[2] if len(inputs) > 2 else None


def _varies(value: Value | None) -> bool:
    """Return whether a value is present and not constant."""
    return value is not None and value.constant is None


def halo_of(node: Node, root: Conv | ConvInteger) -> Halo:
    """Return the halo of zeros that the taps read around the input.

    The trailing padding is the part that a window reaches: it may be less than the model's padding
    if strides leave elements over.
    """
    x = required_input(node, 0)
    pairs: list[tuple[int, int]] = [(0, 0), (0, 0)]
    for axis, (before, after) in enumerate(root.pad_pairs):
        reach = (root.kernel_shape[axis] - 1) * root.dilations[axis] + 1
        extent, count = x.tensor.shape[2 + axis], node.output.tensor.shape[2 + axis]
        beyond = (count - 1) * root.strides[axis] + reach - before - extent
        pairs.append((before, max(0, beyond) if isinstance(beyond, int) else after))
    return tuple(pairs) if any(map(any, pairs)) else ()


def problem_of(node: Node, root: Conv | ConvInteger) -> TilingProblem:
    """Return the extents that determine the choice of tiles."""
    shape = node.output.tensor.shape
    weights = constant_of(node.inputs[1]).type.shape
    depth = 1
    for extent in weights[1:]:
        depth *= fixed_extent(extent)
    height, width = shape[2:] if len(shape) == 4 else (1, shape[2])
    return TilingProblem(
        static_extent(shape[0]),
        root.group,
        static_extent(height),
        static_extent(width),
        fixed_extent(weights[0]) // root.group,
        depth,
    )


def tiling_problem_of(node: Node, root: Conv | ConvInteger) -> TilingProblem:
    """Return the extents, with each image of a 1x1 convolution as one row of pixels.

    `ImplicitGemm.flattened` merges the rows if the image's memory has no gaps.
    """
    problem = problem_of(node, root)
    plain = {*root.kernel_shape, *root.strides} == {1} and not any(root.pads)
    if plain and problem.height is not None and problem.width is not None:
        return replace(problem, height=1, width=problem.height * problem.width)
    return problem


def _candidates(
    node: Node, root: Conv, target: CpuTarget
) -> Iterator[tuple[tuple[tuple[str, Json], ...], float]]:
    """Yield the options and estimated seconds of the six best tilings and splits."""
    lanes = target.vector_bits // 32
    problem = tiling_problem_of(node, root)
    a_bytes = problem.pixels * problem.depth * 4 // max(1, root.kernel_shape[-1] ** 2)
    for tiling in ranked_tilings(problem, a_bytes, target, 6):
        panel_bytes = problem.depth * tiling.vectors * lanes * 4
        multi_pass = panel_bytes > _MIN_MULTI_PASS_PANEL_BYTES and tiling.parallel_split == "panels"
        options = parameters(
            lanes=lanes,
            vectors=tiling.vectors,
            pixels=tiling.pixels,
            parallel_split=tiling.parallel_split,
            reduction_passes=root.kernel_shape[0] if multi_pass else 1,
        )
        yield options, tiling.seconds


def runs_over_columns(weights: Constant, dot_product: DotProduct) -> bool:
    """Return whether a run covers all columns of the window.

    Runs of few channels would leave the words of narrow elements partly empty.
    """
    depth, *_, width = fixed_shape(weights.type.shape[1:])
    return width > 1 and depth % dot_product.group != 0 and depth < _FEW_CHANNELS


def columns_in_runs(weights: Constant) -> Constant:
    """Return ``[filter, channel, *rows, column]`` as ``[filter, column and channel, *rows]``."""
    filters, depth, *rows, width = fixed_shape(weights.type.shape)
    axes = range(2, 2 + len(rows))
    permuted = transpose(weights, 0, 2 + len(rows), 1, *axes)
    return named(weights.name, reshape(permuted, filters, width * depth, *rows))


def implicit_gemm_of(
    node: Node, tactic: Tactic, operands: Operands, packed: int
) -> tuple[ImplicitGemm, list[View]]:
    """Return the convolution as an implicit GEMM, and the views that its epilogue reads.

    The first ``packed`` of the packed operands are the weights and the bias.
    """
    root = root_as(Conv, node)
    filters = fixed_extent(constant_of(node.inputs[1]).type.shape[0]) // root.group
    epilogue, operand_strides, views = _reads(node, operands, packed, filters)
    has_bias = bias_of(node) is not None and not _varies(bias_of(node))
    reads = (epilogue, operand_strides)
    product = convolution_product(
        node, root, operands, dot_product_of(tactic), reads, has_bias=has_bias
    )
    return product, views


def convolution_product(
    node: Node,
    root: Conv | ConvInteger,
    operands: Operands,
    dot_product: DotProduct,
    reads: tuple[Epilogue, Sequence[GemmStrides]],
    *,
    has_bias: bool,
) -> ImplicitGemm:
    """Return a convolution as an implicit GEMM on the memory of its operands.

    ``reads`` are the epilogue and the strides of its operands.
    """
    x, out = input_view(operands, 0), operands.outputs[0]
    weights = constant_of(node.inputs[1])
    filters, depth, *_ = fixed_shape(weights.type.shape)
    window, dilations = (1, *root.kernel_shape)[-2:], (1, *root.dilations)[-2:]
    steps, before = (1, *root.strides)[-2:], (0, *(pair[0] for pair in root.pad_pairs))[-2:]
    row, column = _spatial_strides(x.strides)
    a_taps: tuple[Dim, Dim, Dim] = (row * dilations[0], column * dilations[1], x.strides[1])
    taps = (window[0], window[1], depth)
    joined = runs_over_columns(weights, dot_product)
    runs_on = window[1] > 1 and a_taps[2] == 1 and a_taps[1] == depth
    if joined or (runs_on and depth % dot_product.group == 0):
        taps = (window[0], 1, window[1] * depth)
    batch, _, *spatial = node.output.tensor.shape
    height, width = (1, *spatial)[-2:]
    return ImplicitGemm(
        images=(batch,),
        groups=root.group,
        height=height,
        width=width,
        filters=filters // root.group,
        taps=taps,
        a=GemmStrides((x.strides[0],), depth * x.strides[1], row * steps[0], column * steps[1]),
        a_start=row * -before[0] + column * -before[1],
        a_taps=a_taps,
        b_images=(0,),
        out=GemmStrides((out.strides[0],), filters // root.group, *_spatial_strides(out.strides)),
        extras=tuple(reads[1]),
        epilogue=reads[0],
        bias=has_bias,
        column_run=depth if joined and not runs_on else 0,
    )


def _reads(
    node: Node, operands: Operands, packed: int, filters: int
) -> tuple[Epilogue, list[GemmStrides], list[View]]:
    """Return the epilogue, and the strides and views of its operands.

    A bias that is not constant becomes the first stage of the epilogue.
    """
    extras = epilogue_operand_strides(node, operands, operands.packed[packed:], _CHANNEL_AXIS)
    operand_strides = [image_strides(strides, filters) for _, strides in extras]
    views = [view for view, _ in extras]
    epilogue = epilogue_of(node, _CHANNEL_AXIS)
    if _varies(bias_of(node)):
        view = input_view(operands, 2)
        step = view.strides[0]
        operand_strides.append(GemmStrides((0,), filters * step, 0, 0, step))
        views.append(view)
        epilogue = epilogue.after("add", len(operand_strides) - 1)
    return epilogue, operand_strides, views


def _spatial_strides(strides: tuple[Dim, ...]) -> tuple[Dim, Dim]:
    """Return the strides along rows and columns; one-dimensional images are one row."""
    return (strides[2], strides[3]) if len(strides) == 4 else (0, strides[2])


def image_strides(strides: tuple[Dim, ...], filters: int) -> GemmStrides:
    """Return the strides of an operand of the epilogue from those along (N, C, *spatial)."""
    image, channel, *_ = strides
    return GemmStrides((image,), filters * channel, *_spatial_strides(strides), channel)
