"""Normalisations and quantised arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import ShapeError, UnsupportedError
from smelt.importers.onnx._rules_windows import convolve
from smelt.ops import NonMaxSuppression
from smelt.types import DType, element_count

if TYPE_CHECKING:
    from smelt.importers.onnx._call import Call
    from smelt.ir import Value


def batch_normalization(call: Call) -> list[Value]:
    """BatchNormalization in inference."""
    if call.integer("training_mode", 0) or call.wants(1):
        raise UnsupportedError("it is in training mode; export the model for inference")
    if call.integer("spatial", 1) != 1:
        raise UnsupportedError("statistics for each element (spatial=0) are not supported")
    return call.emit_all("BatchNormalization", *call.inputs, epsilon=call.number("epsilon", 1e-5))


def layer_normalization(call: Call) -> list[Value]:
    """LayerNormalization, with the statistics where somebody reads them."""
    x = call.input(0)
    axis, epsilon = call.integer("axis", -1), call.number("epsilon", 1e-5)
    results = [call.emit("LayerNormalization", x, *call.inputs[1:], axis=axis, epsilon=epsilon)]
    if not (call.wants(1) or call.wants(2)):
        return results
    rank = x.tensor.rank
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is outside a tensor of rank {rank}", node=call.where)
    axes = call.integers_value(range(axis % rank, rank))
    mean = call.emit("ReduceMean", x, axes)
    deviation = call.emit("Sub", x, mean)
    variance = call.emit("ReduceMean", call.emit("Mul", deviation, deviation), axes)
    least = call.constant(np.array(epsilon, x.tensor.dtype.numpy))
    spread = call.emit("Sqrt", call.emit("Add", variance, least))
    main = results[0]
    return [main, mean, call.emit("Reciprocal", spread)]


def recurrent(call: Call) -> list[Value]:
    """LSTM, GRU, RNN: hidden_size follows from the recurrence weights."""
    hidden = call.input(2).tensor.shape[-1:]
    attributes = {"hidden_size": hidden[0] if hidden else 0} | call.attributes
    return call.emit_all(call.op_type, *call.inputs, **attributes)


def quantize(call: Call) -> list[Value]:
    """QuantizeLinear and DequantizeLinear, without blocks and the types that are not here."""
    if call.integer("block_size", 0):
        raise UnsupportedError("scales for blocks (block_size) are not supported")
    output = call.integer("output_dtype", 0)
    attributes = call.without("block_size", "saturate", "precision", "output_dtype")
    if output:
        attributes["output_dtype"] = output
    return call.emit_all(call.op_type, *call.inputs, **attributes)


def counted(call: Call) -> list[Value]:
    """Ops of whose results a run determines how many elements there are."""
    symbol = call.scope.state.symbols.reserve(f"{call.name}_count")
    results = call.emit_all(call.op_type, *call.inputs, **call.attributes, count_symbol=symbol)
    node = results[0].producer
    if node is not None:
        axis = call.integer("axis", -1) if call.op_type == "Compress" else None
        limit = (
            element_count(call.input(0).tensor.shape)
            if axis is None or "axis" not in call.attributes
            else call.input(0).tensor.shape[axis]
        )
        if isinstance(node.op, NonMaxSuppression):
            limit = node.op.count_bound(
                [None if value is None else value.operand for value in node.inputs]
            )
        for extent in results[0].tensor.shape:
            call.bound_symbol(symbol, extent, limit)
    return results


def quantized_convolution(call: Call) -> list[Value]:
    """QLinearConv: the convolution of what is dequantised, quantised again."""
    x_scale, w_scale = call.input(1), call.input(4)
    x = call.emit("DequantizeLinear", call.input(0), x_scale, call.input(2))
    weights = call.emit("DequantizeLinear", call.input(3), w_scale, call.input(5), axis=0)
    bias = call.optional(8)
    if bias is not None:
        unit = call.emit("Mul", x_scale, w_scale)
        bias = call.emit("Mul", call.emit("Cast", bias, to=DType.FLOAT32), unit)
    made = convolve(call, x, weights, bias)
    return call.emit_all("QuantizeLinear", made, call.input(6), call.input(7))


def quantized_matmul(call: Call) -> list[Value]:
    """QLinearMatMul: the product of what is dequantised, quantised again."""
    a = call.emit("DequantizeLinear", *call.inputs[0:3], axis=0)
    b = call.emit("DequantizeLinear", *call.inputs[3:6], axis=-1)
    made = call.emit("MatMul", a, b)
    return call.emit_all("QuantizeLinear", made, *call.inputs[6:8])
