"""Fold the division by a QuantizeLinear's scale into the factors before it.

An integer product is followed by a factor per channel, and a DequantizeLinear has a scale: both can
be divided at build time. The ops in between must be homogeneous, such as sums, rectifiers and
clipping, so that dividing their inputs divides their results.
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
_MAX_DEPTH: Final = 32
"""Longest chain of nodes that is searched for foldable factors. Chosen without a measurement."""


@dataclass(frozen=True)
class FoldQuantizeScales(Pass):
    """Divide preceding factors and scales by the scale of each QuantizeLinear."""

    name: ClassVar[str] = "fold-quantize-scales"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            if isinstance(node.op, ops.QuantizeLinear):
                notes.extend(_fold_scale(graph, node, names))
        return PassResult.of(notes)


def _fold_scale(graph: Graph, node: Node, names: FreshNames) -> list[Note]:
    """Fold the scale of one QuantizeLinear into the values before it."""
    source, scale = node.inputs[0], node.inputs[1]
    if source is None or scale is None or scale.constant is None or not scale.constant.array.size:
        return []
    if scale.constant.array.size != 1 or not _is_divisible(graph, source, node, scale, _MAX_DEPTH):
        return []
    emit = Emitter(graph, node, names)
    divider = _Divider(emit, emit.op(ops.Reshape(), scale, emit.integers(hint="scalar")))
    divided = divider.divided(_without_rectifier(node, source))
    emit.finish(emit.op(node.op, divided, None, *node.inputs[2:]))
    return [Note(node.layers, node.layers, "its scale was folded into the factors before it")]


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


class _Divider:
    """Rewrites a value as its quotient by a number."""

    def __init__(self, emit: Emitter, by: Value) -> None:
        self.emit, self.by = emit, by

    def divided(self, value: Value) -> Value:
        """Return ``value / by``, with the division folded into constants."""
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
        quotient = self.emit.op(node.op, *inputs)
        if quotient.producer is not None:
            quotient.producer.layers = node.layers
        return quotient
