"""Recognise activations that exporters decompose, and restore them as one op.

A code generator needs fewer instructions for the single op, and the number of stages of an epilogue
is limited.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from smelt import ops
from smelt.passes._base import NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import input_at, layers_of_pattern, number_of, producer_of_kind
from smelt.types import DType, TensorType, override

if TYPE_CHECKING:
    from smelt.ir import FreshNames, Graph, Node, Op, Value

    Pattern = Callable[[Node], tuple[Value, Op] | None]

_RELATIVE_TOLERANCE = 3e-6
"""Relative tolerance for the constants of a pattern: exporters round them to float32 or to six
digits, as 0.166667 and 1.41421; 0.1667 is another number."""
_FLOAT64_TOLERANCE = 1e-15
"""Relative tolerance where the results have the precision of float64."""


class RecognizeActivations(NodePass):
    """Recognise Swish, HardSwish, Mish and Gelu."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        if node.outputs and not (node.output.users or graph.is_output(node.output)):
            return None
        if not _is_float(node):  # integers round between the steps, and have no such op
            return None
        matches = (match for pattern in _PATTERNS if (match := pattern(node)) is not None)
        match = next((m for m in matches if m[0].type == node.output.type), None)
        if match is None:
            return None
        source, op = match
        layers = layers_of_pattern(graph, node, source)
        emit = NodeEmitter(graph, node, names)
        return emit.finish_as(emit.op(op, source), layers, f"computed as one {type(op).__name__}")


def _is_float(node: Node) -> bool:
    """Return whether a node has one result, of a floating-point type."""
    kind = node.outputs[0].type if len(node.outputs) == 1 else None
    return isinstance(kind, TensorType) and kind.dtype.is_float


def _is_number(value: Value | None, expected: float) -> bool:
    """Return whether a value is a constant scalar that stands for ``expected``."""
    number = number_of(value)
    return value is not None and number is not None and _is_close(number, expected, value)


def _is_close(number: float, expected: float, like: Value) -> bool:
    """Return whether a number stands for ``expected`` in the element type of ``like``."""
    is_wide = like.tensor.dtype is DType.FLOAT64
    tolerance = _FLOAT64_TOLERANCE if is_wide else _RELATIVE_TOLERANCE
    return math.isclose(number, expected, rel_tol=tolerance, abs_tol=1e-12)


def _operand_orders(node: Node | None) -> list[tuple[Value, Value]]:
    """Return the operands of a binary op in both orders; none for other nodes."""
    if node is None or len(node.inputs) != 2:
        return []
    left, right = node.inputs
    return [] if left is None or right is None else [(left, right), (right, left)]


def _unscaled(value: Value, factor: float) -> Value | None:
    """Return ``x`` if the value is ``x * factor`` or ``x / (1 / factor)``, or None."""
    for x, number in _operand_orders(producer_of_kind(value, ops.Mul)):
        if _is_number(number, factor):
            return x
    divided = producer_of_kind(value, ops.Div)
    if divided is not None and _is_number(divided.inputs[1], 1 / factor):
        return divided.inputs[0]
    return None


def _unshifted(value: Value | None, term: float) -> Value | None:
    """Return ``x`` if the value is ``x + term``, or None."""
    for x, number in _operand_orders(producer_of_kind(value, ops.Add)):
        if _is_number(number, term):
            return x
    return None


def _swish(node: Node) -> tuple[Value, Op] | None:
    """Match ``x * sigmoid(x)``."""
    for x, gate in _operand_orders(node if isinstance(node.op, ops.Mul) else None):
        sigmoid = producer_of_kind(gate, ops.Sigmoid)
        if sigmoid is not None and sigmoid.inputs[0] is x:
            return x, ops.Swish()
    return None


def _mish(node: Node) -> tuple[Value, Op] | None:
    """Match ``x * tanh(softplus(x))``."""
    for x, gate in _operand_orders(node if isinstance(node.op, ops.Mul) else None):
        tanh = producer_of_kind(gate, ops.Tanh)
        softplus = None if tanh is None else producer_of_kind(tanh.inputs[0], ops.Softplus)
        if softplus is not None and softplus.inputs[0] is x:
            return x, ops.Mish()
    return None


def _is_hard_gate(value: Value | None, x: Value) -> bool:
    """Return whether the value is ``clip(x + 3, 0, 6)``."""
    clip = producer_of_kind(value, ops.Clip)
    if clip is None or not _is_number(input_at(clip, 1), 0) or not _is_number(input_at(clip, 2), 6):
        return False
    return _unshifted(clip.inputs[0], 3) is x


def _hard_swish(node: Node) -> tuple[Value, Op] | None:
    """Match the forms of ``x * hard_sigmoid(x)``.

    The forms are ``x * HardSigmoid(x)``, ``x * (clip(x + 3, 0, 6) / 6)`` and ``(x * clip(x + 3, 0,
    6)) / 6``.
    """
    for x, gate in _operand_orders(node if isinstance(node.op, ops.Mul) else None):
        hard = producer_of_kind(gate, ops.HardSigmoid)
        if hard is not None and hard.inputs[0] is x and _is_hard_swish_gate(hard.op, x):
            return x, ops.HardSwish()
        if _is_hard_gate(_unscaled(gate, 1 / 6), x):
            return x, ops.HardSwish()
    product = _unscaled(node.output, 1 / 6)
    for x, gate in _operand_orders(producer_of_kind(product, ops.Mul)):
        if _is_hard_gate(gate, x):
            return x, ops.HardSwish()
    return None


def _is_hard_swish_gate(op: Op, x: Value) -> bool:
    """Return whether an op is a HardSigmoid with the parameters of HardSwish."""
    if not isinstance(op, ops.HardSigmoid):
        return False
    return _is_close(op.alpha, 1 / 6, x) and _is_close(op.beta, 0.5, x)


def _factors(value: Value) -> tuple[float, list[Value]]:
    """Split a product into its constant factor and its other factors."""
    number, pending = 1.0, [value]
    others: list[Value] = []
    while pending and len(others) < 8:
        current = pending.pop()
        node = current.producer
        if (scalar := number_of(current)) is not None:
            number *= scalar
        elif node is not None and isinstance(node.op, ops.Mul):
            pending.extend(v for v in node.inputs if v is not None)
        elif node is not None and isinstance(node.op, ops.Div) and number_of(node.inputs[1]):
            number /= number_of(node.inputs[1]) or 1.0
            pending.extend(v for v in node.inputs[:1] if v is not None)
        else:
            others.append(current)
    return number, others


def _gelu(node: Node) -> tuple[Value, Op] | None:
    """Match ``0.5 * x * (1 + erf(x / sqrt(2)))``, with the factors in any order."""
    if not isinstance(node.op, ops.Mul | ops.Div):
        return None
    number, others = _factors(node.output)
    if len(others) != 2 or not _is_close(number, 0.5, node.output):
        return None
    for x, gate in (others, others[::-1]):
        erf = producer_of_kind(_unshifted(gate, 1), ops.Erf)
        scaled = None if erf is None else erf.inputs[0]
        if scaled is not None and _unscaled(scaled, math.sqrt(0.5)) is x:
            return x, ops.Gelu()
    return None


_PATTERNS: tuple[Pattern, ...] = (_gelu, _hard_swish, _swish, _mish)
