"""Fold the division by a QuantizeLinear's scale into the factors before it.

An integer product is followed by a factor per channel, and a DequantizeLinear has a scale: both can
be divided at build time. The ops in between must be homogeneous, such as sums, rectifiers and
clipping, so that dividing their inputs divides their results.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Value, sole_user
from smelt.passes._base import NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._quant_params import quant_params_of
from smelt.types import DType, override

_SUMS = (ops.Add, ops.Sub)
_HOMOGENEOUS = (ops.Relu, ops.LeakyRelu, ops.Neg, ops.Abs)
_MAX_DEPTH: Final = 32
"""Longest chain of nodes that is searched for foldable factors. Chosen without a measurement."""


class FoldQuantizeScales(NodePass):
    """Divide preceding factors and scales by the scale of each QuantizeLinear."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        """Fold the scale of a QuantizeLinear into the values before it."""
        if not isinstance(node.op, ops.QuantizeLinear):
            return None
        source, scale = node.inputs[0], node.inputs[1]
        if source is None or scale is None or scale.constant is None:
            return None
        is_scalar = scale.constant.array.size == 1
        if not is_scalar or not _is_divisible(graph, source, node, scale, _MAX_DEPTH):
            return None
        emit = NodeEmitter(graph, node, names)
        by = emit.op(ops.Reshape(), scale, emit.integers(hint="scalar"))
        divided = _divided(emit, _without_rectifier(node, source), by)
        emit.finish(emit.op(node.op, divided, None, *node.inputs[2:]))
        return Note(node.layers, node.layers, "its scale is folded into the factors before it")


def _without_rectifier(node: Node, source: Value) -> Value:
    """Return the input of a Relu that quantisation makes redundant, or ``source``.

    If the zero point is the least integer, saturation already clips negative numbers.
    """
    params, producer = quant_params_of(node), source.producer
    if params is None or producer is None or not isinstance(producer.op, ops.Relu):
        return source
    least = np.iinfo(params.dtype.numpy).min
    if params.zero_point != least or producer.inputs[0] is None:
        return source
    params.fix()
    return producer.inputs[0]


def _is_divisible(graph: Graph, value: Value, reader: Node, by: Value, max_depth: int) -> bool:
    """Return whether dividing a value by ``by`` can be folded into constants it depends on."""
    node = value.producer
    if value.constant is not None:
        return value.tensor.dtype is DType.FLOAT32 and _quotient_fits(value, by)
    if node is None or max_depth < 1 or value.tensor.dtype is not DType.FLOAT32:
        return False
    params = quant_params_of(node)
    if isinstance(node.op, ops.DequantizeLinear):
        return params is not None and params.axis is None and _quotient_fits(params.scale, by)
    if sole_user(graph, value) is not reader:
        return False
    present = [v for v in node.inputs if v is not None]
    varying = [v for v in present if v.constant is None]
    if not all(_quotient_fits(v, by) for v in present if v.constant is not None):
        return False
    if isinstance(node.op, ops.Mul):
        return len(varying) == 1 and len(node.inputs) == 2
    if isinstance(node.op, ops.Clip):
        return len(varying) == 1 and _is_divisible(graph, varying[0], node, by, max_depth - 1)
    if not isinstance(node.op, _SUMS + _HOMOGENEOUS):
        return False
    return bool(varying) and all(_is_divisible(graph, v, node, by, max_depth - 1) for v in varying)


def _quotient_fits(value: Value, by: Value) -> bool:
    """Return whether dividing a constant stays in the range of float32."""
    return ops.combined_overflow_reason(ops.Div(), value.constant, by.constant) is None


def _divided(emit: NodeEmitter, value: Value, by: Value) -> Value:
    """Return ``value / by``, with the division folded into constants."""
    node = value.producer
    if value.constant is not None or node is None:
        return emit.op(ops.Div(), value, by, hint="divided")
    inputs = list(node.inputs)
    if isinstance(node.op, ops.Mul):
        inputs = [v if v is None or v.constant is None else _divided(emit, v, by) for v in inputs]
    elif isinstance(node.op, ops.DequantizeLinear):
        inputs[1] = None if inputs[1] is None else _divided(emit, inputs[1], by)
    else:
        inputs = [None if v is None else _divided(emit, v, by) for v in inputs]
    quotient = emit.op(node.op, *inputs)
    if quotient.producer is not None:
        quotient.producer.layers = node.layers
    return quotient
