"""Converters of normalisations, recurrent ops, quantised ops and ops with counted results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError, UnsupportedError
from smelt.importers.onnx._rules_conv_pool import convolve
from smelt.ops import NonMaxSuppression
from smelt.types import DType, element_count

if TYPE_CHECKING:
    from smelt.importers.onnx._node_context import NodeContext
    from smelt.ir import Value


def batch_normalization(node_context: NodeContext) -> list[Value]:
    """Convert BatchNormalization in inference mode."""
    if node_context.integer("training_mode", 0) or node_context.is_output_used(1):
        raise UnsupportedError("training mode is not supported; export the model for inference")
    if node_context.integer("spatial", 1) != 1:
        raise UnsupportedError("statistics of each element (spatial=0) are not supported")
    return node_context.emit_all(
        "BatchNormalization", *node_context.inputs, epsilon=node_context.number("epsilon", 1e-5)
    )


def layer_normalization(node_context: NodeContext) -> list[Value]:
    """Convert LayerNormalization, with mean and inverse deviation only if they are used."""
    x = node_context.input(0)
    axis, epsilon = node_context.integer("axis", -1), node_context.number("epsilon", 1e-5)
    results = [
        node_context.emit(
            "LayerNormalization", x, *node_context.inputs[1:], axis=axis, epsilon=epsilon
        )
    ]
    if not (node_context.is_output_used(1) or node_context.is_output_used(2)):
        return results
    rank = x.tensor.rank
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is outside a tensor of rank {rank}", node=node_context.where)
    axes = node_context.integers_value(range(axis % rank, rank))
    mean = node_context.emit("ReduceMean", x, axes)
    deviation = node_context.emit("Sub", x, mean)
    variance = node_context.emit("ReduceMean", node_context.emit("Mul", deviation, deviation), axes)
    epsilon_value = node_context.constant(np.array(epsilon, x.tensor.dtype.numpy))
    standard_deviation = node_context.emit(
        "Sqrt", node_context.emit("Add", variance, epsilon_value)
    )
    normalised = results[0]
    return [normalised, mean, node_context.emit("Reciprocal", standard_deviation)]


def recurrent(node_context: NodeContext) -> list[Value]:
    """Convert LSTM, GRU and RNN; hidden_size defaults to the extent of the recurrence weights."""
    hidden = node_context.input(2).tensor.shape[-1:]
    attributes = {"hidden_size": hidden[0] if hidden else 0} | node_context.attributes
    return node_context.emit_all(node_context.op_type, *node_context.inputs, **attributes)


def quantize(node_context: NodeContext) -> list[Value]:
    """Convert QuantizeLinear and DequantizeLinear; blocks are not supported."""
    if node_context.integer("block_size", 0):
        raise UnsupportedError("blocked quantisation (block_size) is not supported")
    output = node_context.integer("output_dtype", 0)
    attributes = node_context.without("block_size", "saturate", "precision", "output_dtype")
    if output:
        attributes["output_dtype"] = output
    return node_context.emit_all(node_context.op_type, *node_context.inputs, **attributes)


def counted(node_context: NodeContext) -> list[Value]:
    """Convert ops whose number of results is known only at run time."""
    symbol = node_context.scope.state.symbols.reserve_count(node_context.name)
    results = node_context.emit_all(
        node_context.op_type, *node_context.inputs, **node_context.attributes, count_symbol=symbol
    )
    node = results[0].producer
    if node is not None:
        axis = node_context.integer("axis", -1) if node_context.op_type == "Compress" else None
        limit = (
            element_count(node_context.input(0).tensor.shape)
            if axis is None or "axis" not in node_context.attributes
            else node_context.input(0).tensor.shape[axis]
        )
        if isinstance(node.op, NonMaxSuppression):
            limit = node.op.count_bound(
                [None if value is None else value.operand for value in node.inputs]
            )
        for extent in results[0].tensor.shape:
            node_context.bound_symbol(symbol, extent, limit)
    return results


def quantized_convolution(node_context: NodeContext) -> list[Value]:
    """Convert QLinearConv to a quantised convolution of dequantised operands."""
    x_scale, w_scale = node_context.input(1), node_context.input(4)
    x = node_context.emit("DequantizeLinear", node_context.input(0), x_scale, node_context.input(2))
    weights = node_context.emit(
        "DequantizeLinear", node_context.input(3), w_scale, node_context.input(5), axis=0
    )
    bias = node_context.optional(8)
    if bias is not None:
        bias_scale = node_context.emit("Mul", x_scale, w_scale)
        bias = node_context.emit(
            "Mul", node_context.emit("Cast", bias, to=DType.FLOAT32), bias_scale
        )
    result = convolve(node_context, x, weights, bias)
    return node_context.emit_all(
        "QuantizeLinear", result, node_context.input(6), node_context.input(7)
    )


def quantized_matmul(node_context: NodeContext) -> list[Value]:
    """Convert QLinearMatMul to a quantised product of dequantised operands."""
    a = node_context.emit("DequantizeLinear", *node_context.inputs[0:3], axis=0)
    b = node_context.emit("DequantizeLinear", *node_context.inputs[3:6], axis=-1)
    product = node_context.emit("MatMul", a, b)
    return node_context.emit_all("QuantizeLinear", product, *node_context.inputs[6:8])
