"""Convolutions and matrix products of int8 and uint8 in the microkernel, with int32 accumulators.

Zero points cost nothing at run time. The zero point of the activations times the sum of a filter's
weights is subtracted from the bias at build time, and the halo of an image holds the zero point.
Weights are int8 with a zero point of 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from smelt.backends import Family, Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, int8_dot_product
from smelt.backends.cpu.families._implicit_gemm import GemmStrides, ImplicitGemm
from smelt.backends.cpu.families._microkernel import write_microkernel
from smelt.backends.cpu.families._operand_packing import (
    constant_of,
    epilogue_of,
    epilogue_operand_strides,
    named,
    pack_bias,
    pack_epilogue_constants,
    pack_panels,
    plan_epilogue_operands,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._tiling import (
    TilingProblem,
    ranked_tilings,
    static_extent,
)
from smelt.backends.cpu.families.conv import (
    columns_in_runs,
    convolution_product,
    halo_of,
    image_strides,
    runs_over_columns,
    tiling_problem_of,
)
from smelt.engine import parameters
from smelt.ir import Constant
from smelt.ops import Add, Cast, ConvInteger, MatMulInteger, Mul, ReduceSum, Sub
from smelt.types import DType, Layout, TensorFormat, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends import Operands
    from smelt.backends.cpu._epilogue import Epilogue
    from smelt.backends.cpu.families._dot_product import DotProduct
    from smelt.engine import Halo, Json, KernelSpec, Step, View
    from smelt.ir import Node
    from smelt.types import Dim

_INT8_OFFSET = 128
"""Offset that turns signed bytes into the unsigned bytes that the dot products take."""
_MAX_SUMMED_PRODUCTS = 1 << 16
"""Largest number of products of bytes whose sum is certain to fit into int32."""


class Int8ProductFamily(Family[CpuTarget]):
    """Products of bytes over packed panels of weights."""

    name: ClassVar[str] = "int8_product"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, ConvInteger | MatMulInteger):
            return
        extras = plan_epilogue_operands(node, channel_axis_of(node))
        reason = unsupported_int8_product_reason(node) or _unsupported_reason(node)
        if reason or isinstance(extras, str):
            yield Refusal(self.name, reason or str(extras))
            return
        for options, seconds in _candidates(node, target):
            yield int8_tactic(self.name, node, options, extras.formats, seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        options = tactic.options
        lanes, vectors = options.integer("lanes"), options.integer("vectors")
        dot_product = DOT_PRODUCTS[options.text("dot_product")]
        groups = _groups(node)
        packed = pack_panels(_filters(node, dot_product), groups, lanes, vectors, dot_product)
        bias = pack_bias(zero_point_bias(node), groups, lanes)
        return (*packed, bias, *pack_epilogue_constants(node, channel_axis_of(node)))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        count = len(self.pack(node, tactic)) - len(
            pack_epilogue_constants(node, channel_axis_of(node))
        )
        dot_product = DOT_PRODUCTS[tactic.options.text("dot_product")]
        reads = _epilogue_reads(node, operands, count)
        make = _convolution if isinstance(root_of(node)[0], ConvInteger) else _matrix_product
        product = make(node, operands, reads, dot_product)
        views = (
            input_view(operands, 0),
            *operands.packed[:count],
            *reads.views,
            operands.outputs[0],
        )
        return (product.launch(self.name, tactic.parameters, views),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        del target
        return write_microkernel(kernel)


# ---- shared by all kernels of bytes


def unsupported_int8_product_reason(node: Node) -> str | None:
    """Return why a node is not a product of bytes by constant int8 weights, or None if it is."""
    x, weights, *others = [*node.inputs[: root_of(node)[1]], None, None, None]
    x_zero, w_zero, bias = others[:3]
    if x is None or weights is None or weights.constant is None:
        return "the weights are not constant"
    if weights.tensor.dtype is not DType.INT8:
        return "the weights are not int8"
    if w_zero is not None and (w_zero.constant is None or np.any(w_zero.constant.fix())):
        return "the weights have a zero point"
    if x_zero is not None and (x_zero.constant is None or x_zero.constant.fix().size != 1):
        return "the activation zero point is not a constant scalar"
    if bias is not None and bias.constant is None:
        return f"the bias {bias.name} is not constant"
    if 0 in weights.tensor.shape:
        return "the weights are empty"
    return None


def channel_axis_of(node: Node) -> int:
    """Return the axis of the result along which the filters run."""
    return 1 if isinstance(root_of(node)[0], ConvInteger) else node.output.tensor.rank - 1


def zero_point_of(node: Node) -> int:
    """Return the activations' zero point: the integer that represents the real number 0."""
    zero = node.inputs[2] if root_of(node)[1] > 2 else None
    return 0 if zero is None else int(constant_of(zero).fix().ravel()[0])


def int8_tactic(
    family: str,
    node: Node,
    options: tuple[tuple[str, Json], ...],
    extras: tuple[TensorFormat | None, ...],
    seconds: float,
) -> Tactic:
    """Return the tactic of a kernel that reads bytes.

    Images are channels-last, and their halo holds the zero point. ``extras`` are the formats of the
    epilogue's operands.
    """
    root, count = root_of(node)
    layout, halo = Layout.LINEAR, cast("Halo", ())
    if isinstance(root, ConvInteger):
        layout, halo = Layout.CHANNELS_LAST, halo_of(node, root)
    first = TensorFormat(required_input(node, 0).tensor.dtype, layout)
    return Tactic(
        family,
        options,
        (first, *[None] * (count - 1), *extras),
        (TensorFormat(node.output.tensor.dtype, layout),),
        (halo, *[()] * (len(node.inputs) - 1)) if halo else (),
        zero_point_of(node),
        cost_hint=seconds,
    )


def zero_point_bias(node: Node) -> Constant:
    """Return the initial values of the sums: the bias minus the zero point's contribution.

    Signed activations are read as unsigned bytes, which are larger by 128; the same correction
    removes that offset.
    """
    x, weights = required_input(node, 0), constant_of(node.inputs[1])
    count = root_of(node)[1]
    zero = node.inputs[2] if count > 2 else None
    bias = node.inputs[4] if count > 4 else None
    rank = len(weights.type.shape)
    axes = range(1, rank) if isinstance(root_of(node)[0], ConvInteger) else range(rank - 1)
    wide = Constant.derive("", Cast(DType.INT32), weights)
    over = Constant("", np.array(list(axes), np.int64))
    total = Constant.derive("", ReduceSum(keepdims=False), wide, over)
    shift = Constant("", np.array(_INT8_OFFSET if x.tensor.dtype is DType.INT8 else 0, np.int32))
    if zero is not None:
        zero_as_int32 = reshape(Constant.derive("", Cast(DType.INT32), constant_of(zero)))
        shift = Constant.derive("", Add(), zero_as_int32, shift)
    start = Constant("", np.array(0, np.int32)) if bias is None else constant_of(bias)
    return named(f"{weights.name}.sums", _minus(start, Constant.derive("", Mul(), total, shift)))


def _minus(a: Constant, b: Constant) -> Constant:
    """Return the recorded difference of two constants."""
    return Constant.derive("", Sub(), a, b)


# ---- panels


def _unsupported_reason(node: Node) -> str | None:
    """Return why the microkernel does not support a product of bytes, or None if it does."""
    root, weights = root_of(node)[0], constant_of(node.inputs[1]).type.shape
    depth = prod(fixed_shape(weights)) // max(1, fixed_extent(weights[0]))
    if isinstance(root, ConvInteger):
        if len(root.kernel_shape) not in {1, 2}:
            return f"a window has {len(root.kernel_shape)} dimensions; 1 and 2 are supported"
        if root.group > 1 and weights[1] == 1:
            return "depthwise: handled by the depthwise_int8 family"
    elif len(weights) != 2 or required_input(node, 0).tensor.rank < 2:
        return "an operand is not a matrix"
    if depth > _MAX_SUMMED_PRODUCTS:
        return f"sums of {depth} products may overflow int32"
    return None


def _groups(node: Node) -> int:
    """Return the number of groups of a convolution; 1 for a matrix product."""
    root = root_of(node)[0]
    return root.group if isinstance(root, ConvInteger) else 1


def _filters(node: Node, dot_product: DotProduct) -> Constant:
    """Return the weights as ``[filter, run, *taps]``."""
    weights = constant_of(node.inputs[1])
    if not isinstance(root_of(node)[0], ConvInteger):
        return transpose(weights, 1, 0)
    return columns_in_runs(weights) if runs_over_columns(weights, dot_product) else weights


def _problem(node: Node) -> TilingProblem:
    """Return the extents that determine the choice of tiles."""
    root = root_of(node)[0]
    if isinstance(root, ConvInteger):
        return tiling_problem_of(node, root)
    depth, filters = fixed_shape(constant_of(node.inputs[1]).type.shape)
    return TilingProblem(1, 1, 1, static_extent(node.output.tensor.shape[-2]), filters, depth)


def _candidates(
    node: Node, target: CpuTarget
) -> Iterator[tuple[tuple[tuple[str, Json], ...], float]]:
    """Yield the options and estimated seconds of the six best tilings and splits."""
    lanes, dot_product = target.vector_bits // 32, int8_dot_product(target)
    problem = _problem(node)
    words = replace(problem, depth=-(-problem.depth // dot_product.group))
    for tiling in ranked_tilings(words, problem.pixels * problem.depth, target, 6):
        options = parameters(
            lanes=lanes,
            vectors=tiling.vectors,
            pixels=tiling.pixels,
            parallel_split=tiling.parallel_split,
            dot_product=dot_product.name,
        )
        yield options, tiling.seconds


@dataclass(frozen=True, slots=True)
class _EpilogueReads:
    """The epilogue, and the strides and views of its operands."""

    epilogue: Epilogue
    strides: tuple[tuple[Dim, ...], ...]
    views: tuple[View, ...]


def _epilogue_reads(node: Node, operands: Operands, packed: int) -> _EpilogueReads:
    """Return the epilogue of a node and its operands, which follow ``packed`` packed constants."""
    axis = channel_axis_of(node)
    extras = epilogue_operand_strides(node, operands, operands.packed[packed:], axis)
    return _EpilogueReads(
        epilogue_of(node, axis),
        tuple(strides for _, strides in extras),
        tuple(view for view, _ in extras),
    )


def _convolution(
    node: Node, operands: Operands, reads: _EpilogueReads, dot_product: DotProduct
) -> ImplicitGemm:
    """Return a convolution as an implicit GEMM on the memory of its operands."""
    root = root_as(ConvInteger, node)
    filters = fixed_extent(constant_of(node.inputs[1]).type.shape[0]) // root.group
    strides = [image_strides(strides, filters) for strides in reads.strides]
    return convolution_product(
        node, root, operands, dot_product, (reads.epilogue, strides), has_bias=True
    )


def _matrix_product(
    node: Node, operands: Operands, reads: _EpilogueReads, dot_product: DotProduct
) -> ImplicitGemm:
    """Return the product of a stack of matrices with one matrix as an implicit GEMM."""
    del dot_product
    x, out = input_view(operands, 0), operands.outputs[0]
    depth, filters = fixed_shape(constant_of(node.inputs[1]).type.shape)
    *stack, rows, _ = node.output.tensor.shape

    def walk(strides: tuple[Dim, ...], channel: Dim) -> GemmStrides:
        return GemmStrides(tuple(strides[:-2]), 0, 0, strides[-2], channel)

    return ImplicitGemm(
        images=tuple(stack),
        groups=1,
        height=1,
        width=rows,
        filters=filters,
        taps=(1, 1, depth),
        a=walk(x.strides, 1),
        a_start=0,
        a_taps=(0, 0, x.strides[-1]),
        b_images=(0,) * len(stack),
        out=walk(out.strides, out.strides[-1]),
        extras=tuple(walk(strides, strides[-1]) for strides in reads.strides),
        epilogue=reads.epilogue,
        bias=True,
    )
