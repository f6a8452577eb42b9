"""Convert convolutions and matrix products of dequantised integers to integer ops.

A sum of products of quantised numbers is the integer sum times both scales. The pass therefore
multiplies the integers and applies one factor per result, which is fused as an epilogue. Weights
must have zero point 0; the integer kernels handle the zero point of the activations. The mean of
dequantised integers is likewise computed from the mean of the integers.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from smelt import ops
from smelt.passes._base import NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import channel_axis, input_at
from smelt.passes._quant_params import QuantParams, dequantized, elements
from smelt.types import DType, fixed_shape, override

if TYPE_CHECKING:
    from smelt.ir import FreshNames, Graph, Node, Value

_BYTE_TYPES = frozenset({DType.INT8, DType.UINT8})
_PRODUCTS = (ops.Conv, ops.Gemm, ops.MatMul)
_MEANS = (ops.AveragePool, ops.GlobalAveragePool)
_UINT8_MIDDLE = 128
"""Zero point of uint8 weights that subtracting 128 turns into int8 weights with zero point 0."""
_BIAS_ERROR = 1e-5
"""Largest relative difference between a bias's scale and the product of both scales. Chosen without
a measurement, well above the rounding of a float32 product."""
_MAX_PRODUCT = 255 * 128
"""Largest magnitude of (activation - zero point) * weight."""
_MAX_SUM = (1 << 31) - 1
"""Largest sum that int32 holds."""


class AbsorbQuantization(NodePass):
    """Compute products and means on quantised integers instead of dequantised floats."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        if not isinstance(node.op, _PRODUCTS + _MEANS):
            return None
        rule = _product if isinstance(node.op, _PRODUCTS) else _mean
        reason = rule(graph, node, names)
        if reason is None:
            return Note(node.layers, node.layers, "computes with integers")
        return Note.refusal(node.layers, reason) if reason else None


def _product(graph: Graph, node: Node, names: FreshNames) -> str | None:
    """Convert one product.

    Returns the reason for a refusal, "" if the input is not quantised, or None on success.
    """
    activations = dequantized(node.inputs[0])
    if activations is None or activations[1].dtype not in _BYTE_TYPES:
        return ""
    x, params = activations
    if params.axis is not None:
        return "its input has a scale for each channel"
    emit = NodeEmitter(graph, node, names)
    quantised = _weights(emit, node)
    if isinstance(quantised, str):
        return quantised
    weights, weight_scale = quantised
    depth = _reduction_length(node, weights)
    if depth * _MAX_PRODUCT > _MAX_SUM:
        return f"sums of {depth} products might not fit into int32"
    reason = ops.combined_overflow_reason(ops.Mul(), weight_scale.constant, params.scale.constant)
    if reason is not None:
        return f"its scales cannot be folded: {reason}"
    scale = emit.op(ops.Mul(), weight_scale, params.scale, hint="scale")
    bias, term = _bias(emit, node, scale, depth)
    op = _integer_op(node)
    total = emit.op(op, x, weights, params.zero, None, bias, hint="integers")
    result = emit.op(ops.Cast(DType.FLOAT32), total, hint="sums")
    result = emit.op(ops.Mul(), result, _spread(emit, node, scale), hint="scaled")
    if term is not None:
        result = emit.op(ops.Add(), result, _spread(emit, node, term), hint="biased")
    emit.finish(result)
    return None


def _reduction_length(node: Node, weights: Value) -> int:
    """Return the number of products that are summed for one element of the result."""
    shape = fixed_shape(weights.tensor.shape)
    return prod(shape[1:]) if isinstance(node.op, ops.Conv) else shape[0]


def _integer_op(node: Node) -> ops.ConvInteger | ops.MatMulInteger:
    op = node.op
    if isinstance(op, ops.Conv):
        return ops.ConvInteger(op.kernel_shape, op.strides, op.pads, op.dilations, op.group)
    return ops.MatMulInteger()


def _weights(emit: NodeEmitter, node: Node) -> tuple[Value, Value] | str:
    """Return weights for the integer kernels with their scale, or the reason for a refusal.

    The weights are int8 with zero point 0; there is one scale per filter or for all.
    """
    quantised = dequantized(node.inputs[1])
    if quantised is None or quantised[0].constant is None:
        return "its weights are not quantised constants"
    weights, params = quantised
    op, rank = node.op, weights.tensor.rank
    if isinstance(op, ops.Gemm) and (op.alpha, op.beta, op.trans_a) != (1.0, 1.0, False):
        return "its alpha or beta is not 1, or trans_a is set"
    is_transposed = isinstance(op, ops.Gemm) and op.trans_b
    filter_axis = 0 if isinstance(op, ops.Conv) or is_transposed else rank - 1
    if not isinstance(op, ops.Conv) and rank != 2:
        return f"its weights have rank {rank}, not 2"
    has_scales = len(elements(params.scale)) > 1
    if has_scales and params.axis is not None and params.axis % rank != filter_axis:
        return f"its weights have scales along axis {params.axis}, not along axis {filter_axis}"
    integers = _without_zero_point(emit, weights, params)
    if integers is None:
        return "its weights have a zero point"
    if is_transposed:
        integers = emit.op(ops.Transpose((1, 0)), integers, hint="weights")
    return integers, emit.op(ops.Reshape(), params.scale, emit.integers(-1))


def _without_zero_point(emit: NodeEmitter, weights: Value, params: QuantParams) -> Value | None:
    """Return the weights as int8 with zero point 0, or None.

    The weights must be int8 with zero point 0, or uint8 with zero point 128.
    """
    zeros = {0.0} if params.zero is None else set(elements(params.zero))
    if zeros != {{DType.INT8: 0, DType.UINT8: _UINT8_MIDDLE}.get(params.dtype)}:
        return None
    params.fix()
    if params.dtype is DType.INT8:
        return weights
    wide = emit.op(ops.Cast(DType.INT32), weights)
    middle = emit.integers(_UINT8_MIDDLE, hint="middle")
    shifted = emit.op(ops.Sub(), wide, emit.op(ops.Cast(DType.INT32), middle))
    return emit.op(ops.Cast(DType.INT8), shifted, hint="weights")


def _bias(
    emit: NodeEmitter, node: Node, scale: Value, depth: int
) -> tuple[Value | None, Value | None]:
    """Return the bias as an int32 constant in units of ``scale``, or as a float32 term.

    At most one element of the result is not None. The int32 constant is added inside the integer
    sum, the float32 term after scaling.
    """
    bias = input_at(node, 2)
    if bias is None:
        return None, None
    quantised = dequantized(bias)
    if quantised is None or quantised[0].constant is None or quantised[1].dtype is not DType.INT32:
        return None, bias
    source, params = quantised
    actual, expected = np.array(elements(params.scale)), np.array(elements(scale))
    channels = node.output.tensor.shape[channel_axis(node)]
    if source.tensor.shape != (channels,) or not np.allclose(actual, expected, rtol=_BIAS_ERROR):
        return None, bias
    # Derived from the dequantised bias, so that a refit of the scales changes it accordingly.
    real = emit.op(ops.DequantizeLinear(0), source, params.scale, hint="bias")
    rounded = emit.op(ops.Round(), emit.op(ops.Div(), real, scale))
    constant = emit.op(ops.Cast(DType.INT32), rounded, hint="bias")
    # Half of the int32 range is reserved for the bias; a refit checks that a new bias fits.
    fits = 2 * depth * _MAX_PRODUCT <= _MAX_SUM
    is_usable = fits and ops.derived_overflow_reason(constant.constant) is None
    return (constant, None) if is_usable else (None, bias)


def _spread(emit: NodeEmitter, node: Node, vector: Value) -> Value:
    """Reshape a vector with one element per channel so that it broadcasts to the result."""
    trailing_axes = node.output.tensor.rank - 1 - channel_axis(node)
    return emit.spread(vector, trailing_axes) if vector.tensor.rank == 1 else vector


def _mean(graph: Graph, node: Node, names: FreshNames) -> str | None:
    """Convert one mean.

    Returns the reason for a refusal, "" if the input is not quantised, or None on success.
    """
    quantised = dequantized(node.inputs[0])
    if quantised is None or quantised[1].dtype not in _BYTE_TYPES or quantised[1].axis is not None:
        return ""
    if isinstance(node.op, ops.AveragePool) and node.op.count_include_pad and any(node.op.pads):
        return "its average includes padding, whose value is 0 instead of the zero point"
    x, params = quantised
    emit = NodeEmitter(graph, node, names)
    mean = emit.op(node.op, x, hint="integers")
    if params.zero is not None:
        mean = emit.op(ops.Sub(), mean, emit.op(ops.Cast(DType.FLOAT32), params.zero, hint="zero"))
    emit.finish(emit.op(ops.Mul(), mean, params.scale, hint="scaled"))
    return None
