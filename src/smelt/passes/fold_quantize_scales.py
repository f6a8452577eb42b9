"""The division by a scale, before numbers are rounded to steps, goes where it costs nothing.

Behind an integer product stands a factor for each channel, behind DequantizeLinear its scale: both
can be divided beforehand. What lies between is kept when every step of it scales along: sums,
rectifiers, bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt import ops
from smelt.ir import FreshNames, sole_user
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.passes._quant_params import quant_params_of
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value

_SUMS = (ops.Add, ops.Sub)
_HOMOGENEOUS = (ops.Relu, ops.LeakyRelu, ops.Neg, ops.Abs)
_MAX_NODES: Final = 32
"""Longest way back that is looked at."""


@dataclass(frozen=True)
class FoldQuantizeScales(Pass):
    """Divide factors and scales beforehand by the scale of what is quantised behind them."""

    name: ClassVar[str] = "fold-quantize-scales"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            if isinstance(node.op, ops.QuantizeLinear):
                notes.extend(_push(graph, node, names))
        return PassResult.of(notes)


def _push(graph: Graph, node: Node, names: FreshNames) -> list[Note]:
    source, scale = node.inputs[0], node.inputs[1]
    if source is None or scale is None or scale.constant is None or not scale.constant.array.size:
        return []
    if scale.constant.array.size != 1 or not _scales_along(graph, source, node, scale, _MAX_NODES):
        return []
    emit = Emitter(graph, node, names)
    pusher = _Pusher(emit, emit.op(ops.Reshape(), scale, emit.integers(hint="scalar")))
    divided = pusher.divided(_without_rectifier(node, source))
    emit.finish(emit.op(node.op, divided, None, *node.inputs[2:]))
    return [Note(node.layers, node.layers, "its scale was folded into the factors before it")]


def _without_rectifier(node: Node, source: Value) -> Value:
    """What a Relu reads, where rounding to steps cuts off what is negative anyway."""
    steps, before = quant_params_of(node), source.producer
    if steps is None or before is None or not isinstance(before.op, ops.Relu):
        return source
    least = np.iinfo(steps.dtype.numpy).min
    return source if steps.zero_point != least or before.inputs[0] is None else before.inputs[0]


def _scales_along(graph: Graph, value: Value, reader: Node, by: Value, most: int) -> bool:
    """Whether a value divided by a number follows from constants alone that can be divided."""
    node = value.producer
    if value.constant is not None:
        return value.tensor.dtype is DType.FLOAT32 and _divides(value, by)
    if node is None or most < 1 or value.tensor.dtype is not DType.FLOAT32:
        return False
    steps = quant_params_of(node)
    if isinstance(node.op, ops.DequantizeLinear):
        return steps is not None and steps.axis is None and _divides(steps.scale, by)
    if sole_user(graph, value) is not reader:
        return False
    present = [v for v in node.inputs if v is not None]
    varying = [v for v in present if v.constant is None]
    if not all(_divides(v, by) for v in present if v.constant is not None):
        return False
    if isinstance(node.op, ops.Mul):
        return len(varying) == 1 and len(node.inputs) == 2
    if isinstance(node.op, ops.Clip):
        return len(varying) == 1 and _scales_along(graph, varying[0], node, by, most - 1)
    if not isinstance(node.op, _SUMS + _HOMOGENEOUS):
        return False
    return bool(varying) and all(_scales_along(graph, v, node, by, most - 1) for v in varying)


def _divides(value: Value, by: Value) -> bool:
    """Whether the quotients of a constant stay in the range of float32."""
    return ops.combined_overflow_reason(ops.Div(), value.constant, by.constant) is None


class _Pusher:
    """Writes values divided by a number anew."""

    def __init__(self, emit: Emitter, by: Value) -> None:
        self.emit, self.by = emit, by

    def divided(self, value: Value) -> Value:
        node = value.producer
        if value.constant is not None or node is None:
            return self.emit.op(ops.Div(), value, self.by, hint="divided")
        inputs = list(node.inputs)
        if isinstance(node.op, ops.Mul):
            inputs = [v if v is None or v.constant is None else self.divided(v) for v in inputs]
        elif isinstance(node.op, ops.DequantizeLinear):
            inputs[1] = None if inputs[1] is None else self.divided(inputs[1])
        else:
            inputs = [None if v is None else self.divided(v) for v in inputs]
        made = self.emit.op(node.op, *inputs)
        if made.producer is not None:
            made.producer.layers = node.layers
        return made
