"""Converters of normalisations, recurrent ops, quantised ops and ops with counted results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import UnsupportedError
from smelt.importers.onnx._rules_conv_pool import convolve
from smelt.ops import NonMaxSuppression
from smelt.types import DType, element_count

if TYPE_CHECKING:
    from smelt.importers.onnx._node_context import NodeContext
    from smelt.ir import Value


def batch_normalization(context: NodeContext) -> list[Value]:
    """Convert BatchNormalization in inference mode."""
    if context.integer("training_mode", 0) or context.is_output_used(1):
        raise UnsupportedError("training mode is not supported; export the model for inference")
    if context.integer("spatial", 1) != 1:
        raise UnsupportedError("separate statistics for each element (spatial=0) are not supported")
    return context.emit_all(
        "BatchNormalization", *context.inputs, epsilon=context.number("epsilon", 1e-5)
    )


def layer_normalization(context: NodeContext) -> list[Value]:
    """Convert LayerNormalization, with mean and inverse deviation only if they are used."""
    x = context.input(0)
    axis, epsilon = context.integer("axis", -1), context.number("epsilon", 1e-5)
    normalised = context.emit(
        "LayerNormalization", x, *context.inputs[1:], axis=axis, epsilon=epsilon
    )
    if not (context.is_output_used(1) or context.is_output_used(2)):
        return [normalised]
    rank = x.tensor.rank
    if not -rank <= axis < rank:
        raise context.shape_error(f"axis {axis} is out of range for a tensor of rank {rank}")
    axes = context.integers_value(range(axis % rank, rank))
    mean = context.emit("ReduceMean", x, axes)
    deviation = context.emit("Sub", x, mean)
    variance = context.emit("ReduceMean", context.emit("Mul", deviation, deviation), axes)
    epsilon_value = context.constant(epsilon, x.tensor.dtype.numpy)
    standard_deviation = context.emit("Sqrt", context.emit("Add", variance, epsilon_value))
    return [normalised, mean, context.emit("Reciprocal", standard_deviation)]


def recurrent(context: NodeContext) -> list[Value]:
    """Convert LSTM, GRU and RNN; hidden_size defaults to the extent of the recurrence weights."""
    hidden = context.input(2).tensor.shape[-1:]
    attributes = {"hidden_size": hidden[0] if hidden else 0} | context.attributes
    return context.emit_all(context.op_type, *context.inputs, **attributes)


def quantize(context: NodeContext) -> list[Value]:
    """Convert QuantizeLinear and DequantizeLinear; blocks are not supported."""
    if context.integer("block_size", 0):
        raise UnsupportedError("blocked quantisation (block_size) is not supported")
    output = context.integer("output_dtype", 0)
    attributes = context.without("block_size", "saturate", "precision", "output_dtype")
    if output:
        attributes["output_dtype"] = output
    return context.emit_all(context.op_type, *context.inputs, **attributes)


def counted(context: NodeContext) -> list[Value]:
    """Convert ops whose number of results is known only at run time."""
    symbol = context.scope.state.symbols.reserve_count(context.name)
    results = context.emit_all(
        context.op_type, *context.inputs, **context.attributes, count_symbol=symbol
    )
    node = results[0].producer
    if node is not None:
        shape, axis = context.input(0).tensor.shape, context.attributes.get("axis")
        limit = shape[axis] if isinstance(axis, int) else element_count(shape)
        if isinstance(node.op, NonMaxSuppression):
            limit = node.op.count_bound(
                [None if value is None else value.operand for value in node.inputs]
            )
        for extent in results[0].tensor.shape:
            context.bound_symbol(symbol, extent, limit)
    return results


def quantized_convolution(context: NodeContext) -> list[Value]:
    """Convert QLinearConv to a quantised convolution of dequantised operands."""
    x_scale, w_scale = context.input(1), context.input(4)
    x = context.emit("DequantizeLinear", context.input(0), x_scale, context.input(2))
    weights = context.emit("DequantizeLinear", context.input(3), w_scale, context.input(5), axis=0)
    bias = context.optional(8)
    if bias is not None:
        bias_scale = context.emit("Mul", x_scale, w_scale)
        bias = context.emit("Mul", context.emit("Cast", bias, to=DType.FLOAT32), bias_scale)
    result = convolve(context, x, weights, bias)
    return context.emit_all("QuantizeLinear", result, context.input(6), context.input(7))


def quantized_matmul(context: NodeContext) -> list[Value]:
    """Convert QLinearMatMul to a quantised product of dequantised operands."""
    a = context.emit("DequantizeLinear", *context.inputs[0:3], axis=0)
    b = context.emit("DequantizeLinear", *context.inputs[3:6], axis=-1)
    product = context.emit("MatMul", a, b)
    return context.emit_all("QuantizeLinear", product, *context.inputs[6:8])
