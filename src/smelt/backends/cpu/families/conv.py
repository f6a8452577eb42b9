"""Convolution in one or two dimensions as implicit GEMM, without im2col.

Images are stored channels-last, so that the run of input channels is contiguous. The planner stores
a halo of zeros around the input, so that no tap needs a bounds check. An input with a halo, a slice
of a concatenation and a plain tensor differ only in their strides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from smelt.backends import NodeRefusedError, Operands, Tactic, root_as, root_of
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu._epilogue import Epilogue, plan_epilogue
from smelt.backends.cpu.families._implicit_gemm import GemmStrides, ImplicitGemm, ProductFamily
from smelt.backends.cpu.families._operand_packing import (
    CHANNELS_LAST,
    LINEAR,
    constant_of,
    dot_product_of,
    epilogue_operand_strides,
    named,
    pack_bias,
    pack_epilogue_constants,
    pack_panels,
    packed_tactic,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._pixel_loops import CHANNEL_AXIS, check_float_images, spatial_pair
from smelt.backends.cpu.families._tiling import TilingProblem, ranked_tilings, static_extent
from smelt.ops import Conv, ConvInteger
from smelt.types import Dim, TensorFormat, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.backends.cpu.families._dot_product import DotProduct
    from smelt.engine import Halo, Parameters, Step, View
    from smelt.ir import Constant, Node, Value

_FEW_CHANNELS = 8
"""Number of channels from which runs of input channels are long enough. Inputs with fewer may stay
in planes, and their runs may cover all columns of the window. Chosen without a measurement."""
_MIN_MULTI_PASS_PANEL_BYTES = 400 << 10
"""Size in bytes from which a panel is summed in several passes, one per row of the window, so that
each pass uses a smaller part of the panel. Chosen without a measurement."""


class ConvFamily(ProductFamily):
    """Direct convolution over packed panels of weights."""

    name: ClassVar[str] = "conv"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        if not isinstance(root, Conv):
            return
        _check(node)
        halo = halo_of(node, root)
        for options, seconds in _candidates(node, root, target):
            tactic = packed_tactic(self.name, node, options, seconds, halo=halo)
            for first in _layouts(node):
                yield replace(tactic, input_formats=(first, *tactic.input_formats[1:]))

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
        return packed + pack_epilogue_constants(node, CHANNEL_AXIS)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        count = len(operands.packed) - len(pack_epilogue_constants(node, CHANNEL_AXIS))
        product, extras = implicit_gemm_of(node, tactic, operands, count)
        views = (input_view(operands, 0), *operands.packed[:count], *extras, operands.outputs[0])
        return (product.launch(self.name, tactic.parameters, views),)


def _check(node: Node) -> None:
    """Check that the family supports a convolution."""
    check_float_images(node)
    weights = required_input(node, 1)
    if weights.constant is None:
        raise NodeRefusedError(f"the weights {weights.name!r} are not constant")


def _layouts(node: Node) -> tuple[TensorFormat, ...]:
    """Return the layouts that the input may have.

    Images of a few channels, such as pictures, can also be read as planes, which saves a copy of
    the network's input to channels-last.
    """
    channels = required_input(node, 0).tensor.shape[1]
    few = isinstance(channels, int) and 1 < channels < _FEW_CHANNELS
    return (CHANNELS_LAST, LINEAR) if few else (CHANNELS_LAST,)


def bias_of(node: Node) -> Value | None:
    """Return the bias of a convolution or transposed convolution, or None if there is none."""
    inputs = node.inputs[: root_of(node)[1]]
    return inputs[2] if len(inputs) > 2 else None


def _varies(value: Value | None) -> bool:
    """Return whether a value is present and not constant."""
    return value is not None and value.constant is None


def check_constant_weights(node: Node) -> None:
    """Check that the weights and the bias are constant."""
    weights, bias = required_input(node, 1), bias_of(node)
    if weights.constant is None:
        raise NodeRefusedError("the weights are not constant")
    if bias is not None and bias.constant is None:
        raise NodeRefusedError(f"the bias {bias.name!r} is not constant")


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
    images, height, width = map(static_extent, (shape[0], *spatial_pair(shape[2:], 1)))
    filters, *taps = fixed_shape(weights)
    return TilingProblem(images, root.group, height, width, filters // root.group, math.prod(taps))


def tiling_problem_of(node: Node, root: Conv | ConvInteger) -> TilingProblem:
    """Return the extents, with each image of a 1x1 convolution as one row of pixels.

    `ImplicitGemm.flattened` merges the rows if the image's memory has no gaps.
    """
    problem = problem_of(node, root)
    plain = {*root.kernel_shape, *root.strides} == {1} and not any(root.pads)
    if plain and problem.height is not None and problem.width is not None:
        return replace(problem, height=1, width=problem.height * problem.width)
    return problem


def _candidates(node: Node, root: Conv, target: CpuTarget) -> Iterator[tuple[Parameters, float]]:
    """Yield the options and estimated seconds of the six best tilings and splits."""
    lanes = target.vector_bits // 32
    problem = tiling_problem_of(node, root)
    a_bytes = problem.pixels * problem.depth * 4 // max(1, root.kernel_shape[-1] ** 2)
    for tiling in ranked_tilings(problem, a_bytes, target, 6):
        panel_bytes = problem.depth * tiling.vectors * lanes * 4
        multi_pass = panel_bytes > _MIN_MULTI_PASS_PANEL_BYTES and tiling.parallel_split == "panels"
        passes = root.kernel_shape[0] if multi_pass else 1
        yield tiling.options(lanes, reduction_passes=passes), tiling.seconds


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
    product = replace(
        convolution_product(node, root, operands, dot_product_of(tactic)),
        extras=tuple(operand_strides),
        epilogue=epilogue,
        has_bias=bias_of(node) is not None and not _varies(bias_of(node)),
    )
    return product, views


def convolution_product(
    node: Node, root: Conv | ConvInteger, operands: Operands, dot_product: DotProduct
) -> ImplicitGemm:
    """Return a convolution, without bias and epilogue, as an implicit GEMM on memory."""
    x, out = input_view(operands, 0), operands.outputs[0]
    weights = constant_of(node.inputs[1])
    filters, depth, *_ = fixed_shape(weights.type.shape)
    window, dilations = (1, *root.kernel_shape)[-2:], (1, *root.dilations)[-2:]
    steps, before = (1, *root.strides)[-2:], (0, *(pair[0] for pair in root.pad_pairs))[-2:]
    row, column = spatial_pair(x.strides[2:], 0)
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
        out=replace(image_strides(out.strides, filters // root.group), channel=1),
        window_column_elements=depth if joined and not runs_on else 0,
    )


def _reads(
    node: Node, operands: Operands, packed: int, filters: int
) -> tuple[Epilogue, list[GemmStrides], list[View]]:
    """Return the epilogue, and the strides and views of its operands.

    A bias that is not constant becomes the first stage of the epilogue.
    """
    extras = epilogue_operand_strides(node, operands, operands.packed[packed:], CHANNEL_AXIS)
    operand_strides = [image_strides(strides, filters) for _, strides in extras]
    views = [view for view, _ in extras]
    epilogue = plan_epilogue(node)
    if _varies(bias_of(node)):
        view = input_view(operands, 2)
        step = view.strides[0]
        operand_strides.append(GemmStrides((0,), filters * step, 0, 0, step))
        views.append(view)
        epilogue = epilogue.after("add", len(operand_strides) - 1)
    return epilogue, operand_strides, views


def image_strides(strides: tuple[Dim, ...], filters: int) -> GemmStrides:
    """Return the strides of an operand of the epilogue from those along (N, C, *spatial)."""
    image, channel, *spatial = strides
    return GemmStrides((image,), filters * channel, *spatial_pair(spatial, 0), channel)
