"""Fold per-channel multiplications and additions into the weights before them.

Batch normalisation is one of each (after ``decompose``), as is Caffe's BatchNorm followed by Scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from smelt import ops
from smelt.ir import Array, FreshNames, Graph, Node, Value, sole_user, substitute
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import channel_axis, input_at, merged_layers
from smelt.types import DType, override

_ROOTS = (ops.Conv, ops.ConvTranspose, ops.Gemm, ops.MatMul)
_FACTORS = (ops.Mul, ops.Div)
_TERMS = (ops.Add, ops.Sub)
_ROUNDING: Final = {DType.FLOAT16: 1e-3, DType.BFLOAT16: 4e-3}
"""Upper bound of the relative rounding error of each storage type in its normal range. Rounding to
11 and 8 significant bits errs by at most 4.9e-4 and 3.9e-3."""


@dataclass(frozen=True)
class FoldScaleShift(Pass):
    """Fold per-channel Mul, Div, Add and Sub into the weights and bias of the op before them.

    A factor is not folded if the storage type could not represent the scaled weights with full
    precision. It then stays behind the sum, where an epilogue computes it in float32.
    """

    storage: DType = DType.FLOAT32
    """Element type in which the weights will be stored."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            if isinstance(node.op, _ROOTS) and node.output.users:
                notes.extend(_fold_all(graph, node, names, self.storage))
        return PassResult.of(notes)


def _fold_all(graph: Graph, root: Node, names: FreshNames, storage: DType) -> list[Note]:
    """Fold the readers of a root one after the other until one cannot be folded."""
    notes: list[Note] = []
    while True:
        user = root.output.users[0] if root.output.users else None
        operand = None if user is None else _constant_side(root, user)
        if user is None or operand is None:
            return notes
        before = (*root.layers, *user.layers)
        reason = _refusal(graph, root, user) or _precision_loss_reason(root, user, operand, storage)
        if reason is None:
            reason = _fold(graph, root, user, operand, names)
        if reason is not None:
            notes.extend([Note.refusal(before, reason)] if reason else [])
            return notes
        place = "bias" if isinstance(user.op, _TERMS) else "weights"
        notes.append(Note(before, root.layers, f"{user.op.name} is folded into the {place}"))


def _constant_side(root: Node, user: Node) -> Value | None:
    """Return the constant that ``user`` applies to each channel of the root's result, or None."""
    if not isinstance(user.op, _FACTORS + _TERMS) or len(user.inputs) != 2:
        return None
    left, right = user.inputs
    other = right if left is root.output else left
    if isinstance(user.op, ops.Div | ops.Sub) and other is not right:
        return None
    if other is None or other.constant is None or user.output.type != root.output.type:
        return None
    if not root.output.tensor.dtype.is_float:  # the quotient of a sum is not that of its terms
        return None
    shape, axis = other.tensor.shape, channel_axis(root)
    aligned = (1,) * (root.output.tensor.rank - len(shape)) + shape
    channels = root.output.tensor.shape[axis]
    fits = all(d == 1 for i, d in enumerate(aligned) if i != axis)
    return other if fits and aligned[axis] in {1, channels} else None


def _refusal(graph: Graph, root: Node, user: Node) -> str | None:
    """Return why nothing may be folded into the root, or None."""
    if graph.is_output(root.output):
        return f"{root.output.name!r} is an output of the network"
    if sole_user(graph, root.output) is not user:
        return f"{root.output.name!r} has several readers"
    if not all(v is None or v.constant is not None for v in root.inputs[1:]):
        return "the weights are not constant"
    if _is_taken_back(graph, user):
        return (
            "the next op cancels the added term to round the sum; in the bias, the term would "
            "round each product"
        )
    return None


def _is_taken_back(graph: Graph, user: Node) -> bool:
    """Return whether the reader of a sum cancels its term, which would round each product."""
    reader = sole_user(graph, user.output)
    if reader is None or not all(isinstance(node.op, _TERMS) for node in (user, reader)):
        return False
    values = [value for node in (user, reader) for value in node.inputs if value is not None]
    constants = [value.constant for value in values if value.constant is not None]
    op = ops.Add() if type(user.op) is type(reader.op) else ops.Sub()
    return len(constants) == 2 and ops.combined_overflow_reason(op, *constants) is not None


def _precision_loss_reason(root: Node, user: Node, factor: Value, storage: DType) -> str | None:
    """Return why scaled weights would lose precision in their storage type, or None.

    A loss that the unscaled weights have already is accepted.
    """
    weights = root.inputs[1]
    if storage.size_bytes >= DType.FLOAT32.size_bytes or not isinstance(user.op, _FACTORS):
        return None
    if weights is None or weights.constant is None or factor.constant is None:
        return None
    unscaled = weights.constant.array.astype(np.float32)
    by_filter = np.moveaxis(unscaled, _filter_axis(root), -1)
    factors = factor.constant.array.astype(np.float32).reshape(-1)
    if factors.size > by_filter.shape[-1]:  # a grouped deconvolution: use the largest factor
        factors = np.abs(factors).max(keepdims=True)
    with np.errstate(all="ignore"):
        scaled = by_filter / factors if isinstance(user.op, ops.Div) else by_filter * factors
    error = _rounding_error(scaled, storage)
    if error <= max(_ROUNDING[storage], _rounding_error(unscaled, storage)):
        return None
    return (
        f"in {storage.value}, the scaled weights would have a rounding error of {error:.1g} of "
        "their largest magnitude"
    )


def _filter_axis(root: Node) -> int:
    """Return the axis of the weights that runs over filters, within a group if grouped."""
    match root.op:
        case ops.Conv() | ops.Gemm(trans_b=True):
            return 0
        case ops.ConvTranspose():
            return 1
        case _:
            return -1


def _rounding_error(weights: Array, storage: DType) -> float:
    """Return the largest error of weights in a storage type, relative to the largest weight."""
    largest = float(np.abs(weights).max(initial=0))
    if not largest:
        return 0.0
    with np.errstate(all="ignore"):
        stored = weights.astype(storage.numpy).astype(np.float32)
        return float(np.abs(stored - weights).max()) / largest


def _fold(graph: Graph, root: Node, user: Node, operand: Value, names: FreshNames) -> str | None:
    """Fold one node, with its constant operand, into the root.

    Returns the reason for a refusal, "" if the root can never absorb the node, or None on success.
    """
    channels = root.output.tensor.shape[channel_axis(root)]
    if not isinstance(channels, int):
        return ""
    emit = NodeEmitter(graph, root, names)
    vector = emit.op(ops.Reshape(), operand, emit.integers(-1))
    if vector.tensor.shape != (channels,):
        vector = emit.op(ops.Expand(), vector, emit.integers(channels))
    if isinstance(user.op, _FACTORS):
        reason = _scale(emit, graph, root, vector, user.op)
    else:
        reason = _shift(emit, graph, root, vector, subtract=isinstance(user.op, ops.Sub))
    if reason is not None:
        return reason
    if not substitute(graph, user.output, root.output):
        return ""
    root.layers = merged_layers(root, user)
    graph.remove(user)
    return None


def _scale(emit: NodeEmitter, graph: Graph, root: Node, vector: Value, op: ops.Op) -> str | None:
    """Multiply or divide weights and bias by a vector.

    Returns the reason for a refusal, "" if the weights are not constant, or None on success.
    """
    weights = root.inputs[1]
    if weights is None or weights.constant is None or weights.tensor.rank < 2:
        return ""
    scaled = [_scaled_weights(emit, root, weights, vector, op)]
    bias = input_at(root, 2)
    if bias is not None:
        scaled.append(emit.op(op, bias, vector, hint="bias"))
    for index, value in enumerate(scaled, start=1):
        reason = ops.derived_overflow_reason(value.constant)
        if reason is not None:
            return f"{'the bias' if index > 1 else 'the weights'} cannot be combined: {reason}"
    for index, value in enumerate(scaled, start=1):
        graph.set_input(root, index, value)
    return None


def _scaled_weights(
    emit: NodeEmitter, root: Node, weights: Value, vector: Value, op: ops.Op
) -> Value:
    """Return the weights with the filters of each output channel multiplied or divided."""
    shape = [d for d in weights.tensor.shape if isinstance(d, int)]
    match root.op:
        case ops.Conv():
            factors = emit.op(ops.Reshape(), vector, emit.integers(-1, *[1] * (len(shape) - 1)))
        case ops.ConvTranspose(group=group):
            kernel = shape[2:]
            grouped = emit.integers(group, shape[0] // group, shape[1], *kernel)
            parts = emit.op(ops.Reshape(allowzero=1), weights, grouped)
            ones = [1] * len(kernel)
            rows = emit.integers(group, 1, shape[1], *ones)
            factors = emit.op(ops.Reshape(allowzero=1), vector, rows)
            scaled = emit.op(op, parts, factors)
            flat = emit.integers(*shape)
            return emit.op(ops.Reshape(allowzero=1), scaled, flat, hint="weights")
        case ops.Gemm(trans_b=True):
            factors = emit.op(ops.Reshape(), vector, emit.integers(-1, 1))
        case _:
            factors = vector
    return emit.op(op, weights, factors, hint="weights")


def _shift(
    emit: NodeEmitter, graph: Graph, root: Node, vector: Value, *, subtract: bool
) -> str | None:
    """Add a vector to, or subtract it from, the bias.

    Returns the reason for a refusal, "" if the root has no bias to absorb it, or None on success.
    """
    if isinstance(root.op, ops.MatMul) or (isinstance(root.op, ops.Gemm) and root.op.beta != 1):
        return ""
    bias = input_at(root, 2)
    if bias is None:
        term = emit.op(ops.Neg(), vector, hint="bias") if subtract else vector
    else:
        term = emit.op(ops.Sub() if subtract else ops.Add(), bias, vector, hint="bias")
    reason = ops.derived_overflow_reason(term.constant)
    if reason is not None:
        return f"the bias cannot be combined: {reason}"
    root.inputs.extend([None] * (3 - len(root.inputs)))
    graph.set_input(root, 2, term)
    return None
