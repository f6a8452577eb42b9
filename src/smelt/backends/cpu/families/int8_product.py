"""Convolutions and matrix products of int8 and uint8 in the microkernel, with int32 accumulators.

Zero points cost nothing at run time. The zero point of the activations times the sum of a filter's
weights is subtracted from the bias at build time, and the halo of an image holds the zero point.
Weights are int8 with a zero point of 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.backends import Family, NodeRefusedError, Operands, Tactic, root_of
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu._epilogue import plan_epilogue
from smelt.backends.cpu._refusals import check_dtype
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, DotProduct, int8_dot_product
from smelt.backends.cpu.families._implicit_gemm import GemmStrides, ImplicitGemm
from smelt.backends.cpu.families._microkernel import write_microkernel
from smelt.backends.cpu.families._operand_packing import (
    constant_of,
    epilogue_operand_strides,
    pack_bias,
    pack_epilogue_constants,
    pack_panels,
    packed_tactic,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._pixel_loops import check_images
from smelt.backends.cpu.families._tiling import TilingProblem, ranked_tilings, static_extent
from smelt.backends.cpu.families.conv import (
    columns_in_runs,
    convolution_product,
    halo_of,
    image_strides,
    runs_over_columns,
    tiling_problem_of,
)
from smelt.ir import Constant, Node
from smelt.ops import Add, Cast, ConvInteger, MatMulInteger, Mul, ReduceSum, Sub
from smelt.types import Dim, DType, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from smelt.engine import KernelSpec, Parameters, Step

_INT8_OFFSET = 128
"""Offset that turns signed bytes into the unsigned bytes that the dot products take."""
_MAX_SUMMED_PRODUCTS = 1 << 16
"""Largest number of products of bytes whose sum is certain to fit into int32."""


class Int8ProductFamily(Family[CpuTarget]):
    """Products of bytes over packed panels of weights."""

    name: ClassVar[str] = "int8_product"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root, _ = root_of(node)
        if not isinstance(root, ConvInteger | MatMulInteger):
            return
        check_int8_product(node)
        _check(node)
        for options, seconds in _candidates(node, target):
            yield int8_tactic(self.name, node, options, seconds)

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
        axis, packed = channel_axis_of(node), operands.packed
        count = len(packed) - len(pack_epilogue_constants(node, axis))
        dot_product = DOT_PRODUCTS[tactic.options.text("dot_product")]
        extras = epilogue_operand_strides(node, operands, packed[count:], axis)
        product = _product(node, operands, [strides for _, strides in extras], dot_product)
        reads = (view for view, _ in extras)
        views = (input_view(operands, 0), *packed[:count], *reads, operands.outputs[0])
        return (product.launch(self.name, tactic.parameters, views),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return write_microkernel(kernel)


# ---- shared by all kernels of bytes


def check_int8_product(node: Node) -> None:
    """Check that a node is a product of bytes by constant int8 weights."""
    weights = required_input(node, 1)
    x_zero, w_zero, bias = (*node.inputs[2 : root_of(node)[1]], None, None, None)[:3]
    if weights.constant is None:
        raise NodeRefusedError("the weights are not constant")
    check_dtype("the tensor of weights", weights.tensor.dtype, DType.INT8)
    if w_zero is not None and (w_zero.constant is None or np.any(w_zero.constant.fix())):
        raise NodeRefusedError("the zero point of the weights is not a constant 0")
    if x_zero is not None and (x_zero.constant is None or x_zero.constant.fix().size != 1):
        raise NodeRefusedError("the activation zero point is not a constant scalar")
    if bias is not None and bias.constant is None:
        raise NodeRefusedError(f"the bias {bias.name!r} is not constant")
    if 0 in weights.tensor.shape:
        raise NodeRefusedError("the weights are empty")


def channel_axis_of(node: Node) -> int:
    """Return the axis of the result along which the filters run."""
    return 1 if isinstance(root_of(node)[0], ConvInteger) else node.output.tensor.rank - 1


def zero_point_of(node: Node) -> int:
    """Return the activations' zero point: the integer that represents the real number 0."""
    zero = node.inputs[2] if root_of(node)[1] > 2 else None
    return 0 if zero is None else int(constant_of(zero).fix().ravel()[0])


def int8_tactic(family: str, node: Node, options: Parameters, seconds: float) -> Tactic:
    """Return the tactic of a kernel that reads bytes; the halo of an image holds the zero point."""
    root, _ = root_of(node)
    halo = halo_of(node, root) if isinstance(root, ConvInteger) else ()
    axis = channel_axis_of(node)
    tactic = packed_tactic(family, node, options, seconds, channel_axis=axis, halo=halo)
    return replace(tactic, halo_value=zero_point_of(node))


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
    return Constant.derive(
        f"{weights.name}.sums", Sub(), start, Constant.derive("", Mul(), total, shift)
    )


# ---- panels


def _check(node: Node) -> None:
    """Check that the microkernel supports a product of bytes."""
    root, weights = root_of(node)[0], constant_of(node.inputs[1]).type.shape
    depth = prod(fixed_shape(weights)) // max(1, fixed_extent(weights[0]))
    if isinstance(root, ConvInteger):
        check_images(node)
        if root.group > 1 and weights[1] == 1:
            raise NodeRefusedError(
                "depthwise convolutions are handled by the depthwise_int8 family"
            )
    elif len(weights) != 2 or required_input(node, 0).tensor.rank < 2:
        raise NodeRefusedError("the weights are not a matrix, or the first operand is a vector")
    if depth > _MAX_SUMMED_PRODUCTS:
        raise NodeRefusedError(
            f"sums of {depth} products may overflow int32; at most {_MAX_SUMMED_PRODUCTS} are "
            "supported"
        )


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


def _candidates(node: Node, target: CpuTarget) -> Iterator[tuple[Parameters, float]]:
    """Yield the options and estimated seconds of the six best tilings and splits."""
    lanes, dot_product = target.vector_bits // 32, int8_dot_product(target)
    problem = _problem(node)
    words = replace(problem, depth=-(-problem.depth // dot_product.group))
    for tiling in ranked_tilings(words, problem.pixels * problem.depth, target, 6):
        yield tiling.options(lanes, dot_product=dot_product.name), tiling.seconds


def _product(
    node: Node, operands: Operands, reads: Sequence[tuple[Dim, ...]], dot_product: DotProduct
) -> ImplicitGemm:
    """Return a convolution or matrix product as an implicit GEMM on the memory of its operands.

    ``reads`` are the strides of the epilogue's operands.
    """
    root, epilogue = root_of(node)[0], plan_epilogue(node)
    if isinstance(root, ConvInteger):
        product = convolution_product(node, root, operands, dot_product)
        extras = tuple(image_strides(strides, fixed_extent(product.filters)) for strides in reads)
        return replace(product, extras=extras, epilogue=epilogue, has_bias=True)
    x, out = input_view(operands, 0), operands.outputs[0]
    depth, filters = fixed_shape(constant_of(node.inputs[1]).type.shape)
    *stack, rows, _ = node.output.tensor.shape

    def walk(strides: tuple[Dim, ...], channel: Dim) -> GemmStrides:
        return GemmStrides(tuple(strides[:-2]), 0, 0, strides[-2], channel)

    return ImplicitGemm(
        images=tuple(stack),
        width=rows,
        filters=filters,
        taps=(1, 1, depth),
        a=walk(x.strides, 1),
        a_taps=(0, 0, x.strides[-1]),
        b_images=(0,) * len(stack),
        out=walk(out.strides, out.strides[-1]),
        extras=tuple(walk(strides, strides[-1]) for strides in reads),
        epilogue=epilogue,
        has_bias=True,
    )
