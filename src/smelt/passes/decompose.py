"""Decompose ops that no backend implements into ops that every backend implements.

Each rule is exact up to rounding. Sums stay reductions, so that each backend chooses their
accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt import ops
from smelt.errors import ShapeError
from smelt.ir import FreshNames, Graph, Node, Op, Value, fix_numbers
from smelt.passes._base import NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import number_of, square_root_of
from smelt.types import override

if TYPE_CHECKING:
    Rule = Callable[..., Value | None]
    RowNorm = ops.LayerNormalization | ops.RMSNormalization

_NON_NEGATIVE: Final = (ops.Abs, ops.Exp, ops.Sigmoid, ops.ReduceSumSquare)
"""Ops whose results are at least +0 (or NaN) for all inputs."""
_NON_NEGATIVE_IF_INPUTS_ARE: Final[dict[type[Op], int]] = {
    ops.Add: 2,
    ops.ReduceSum: 1,
    ops.ReduceMean: 1,
    ops.Sqrt: 1,
}
"""Ops whose results are at least +0 if their first inputs are, and the number of these inputs."""


@dataclass(frozen=True)
class Decompose(NodePass):
    """Decompose normalisations, n-ary sums and rare reductions into elementwise ops and sums."""

    excluded: tuple[str, ...] = ()
    """Names of ops that are not decomposed because a backend implements them itself."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        rule = _RULES.get(type(node.op))
        unused = all(not value.users for value in node.outputs[1:])
        if rule is None or not unused or node.op.name in self.excluded:
            return None
        layers, kind = node.layers, type(node.op).__name__
        emit = NodeEmitter(graph, node, names)
        try:
            result = rule(emit, node.op, *node.inputs)
        except ShapeError:
            # The op may assume that symbolic extents are equal, or mix element types, where the
            # ops that replace it do not: the node then stays as it is.
            emit.discard()
            return None
        if result is None or emit.finish(result) is None:
            return None
        return Note(layers, layers, f"{kind} is replaced by simpler ops")


def _batch_normalization(emit: NodeEmitter, op: ops.BatchNormalization, *inputs: Value) -> Value:
    """Write batch normalisation as ``x * factor + term`` per channel."""
    x, gamma, beta, mean, variance = inputs
    epsilon = emit.floats(op.epsilon, variance, "epsilon")
    deviation = emit.op(ops.Sqrt(), emit.op(ops.Add(), variance, epsilon))
    factor = emit.op(ops.Div(), gamma, deviation)
    term = emit.op(ops.Sub(), beta, emit.op(ops.Mul(), mean, factor))
    return _affine(emit, x, factor, term)


def _normalized(emit: NodeEmitter, x: Value, axes: list[int], epsilon: float) -> Value:
    """Return ``(x - mean) / sqrt(variance + epsilon)`` with the statistics over ``axes``."""
    over = emit.integers(*axes, hint="axes")
    centred = emit.op(ops.Sub(), x, emit.op(ops.ReduceMean(), x, over, hint="mean"))
    square = emit.op(ops.Mul(), centred, centred)
    variance = emit.op(ops.ReduceMean(), square, over, hint="variance")
    safe = emit.op(ops.Add(), variance, emit.floats(epsilon, x, "epsilon"))
    return emit.op(ops.Div(), centred, emit.op(ops.Sqrt(), safe))


def _affine(emit: NodeEmitter, x: Value, scale: Value, bias: Value) -> Value:
    """Return ``x * scale + bias`` with one scale and bias per channel."""
    trailing_axes = x.tensor.rank - 2
    scaled = emit.op(ops.Mul(), x, emit.spread(scale, trailing_axes), hint="scale")
    return emit.op(ops.Add(), scaled, emit.spread(bias, trailing_axes), hint="shift")


def _instance_normalization(
    emit: NodeEmitter, op: ops.InstanceNormalization, x: Value, scale: Value, bias: Value
) -> Value:
    normalised = _normalized(emit, x, list(range(2, x.tensor.rank)), op.epsilon)
    return _affine(emit, normalised, scale, bias)


def _group_normalization(
    emit: NodeEmitter, op: ops.GroupNormalization, x: Value, scale: Value, bias: Value
) -> Value | None:
    """Normalise each group of channels as one axis; the inner extents must be static."""
    inner_extents = [d for d in x.tensor.shape[1:] if isinstance(d, int)]
    if len(inner_extents) != x.tensor.rank - 1 or 0 in inner_extents:
        return None
    groups = emit.integers(0, op.num_groups, -1)
    grouped = emit.op(ops.Reshape(), x, groups)
    normalised = _normalized(emit, grouped, [2], op.epsilon)
    ungrouped = emit.op(ops.Reshape(), normalised, emit.integers(0, *inner_extents))
    return _affine(emit, ungrouped, scale, bias)


def _row_norm(
    emit: NodeEmitter, op: RowNorm, x: Value, scale: Value, bias: Value | None = None
) -> Value | None:
    """Move the scale and bias out of a norm if they differ between rows.

    The kernels of norms take one scale and bias for all rows.
    """
    types = [scale.tensor] if bias is None else [scale.tensor, bias.tensor]
    if all(ops.is_same_for_rows(type_, x.tensor, op.axis) for type_ in types):
        return None
    result = emit.op(op, x, emit.floats(1, x, "one"), hint="rows")
    result = emit.op(ops.Mul(), result, scale, hint="scale")
    return result if bias is None else emit.op(ops.Add(), result, bias, hint="shift")


def _lp_normalization(emit: NodeEmitter, op: ops.LpNormalization, x: Value) -> Value:
    """Divide by the L1 or L2 norm along an axis."""
    axis = emit.integers(op.axis, hint="axis")
    if op.p == 1:
        norm = emit.op(ops.ReduceSum(), emit.op(ops.Abs(), x), axis)
    else:
        norm = emit.op(ops.Sqrt(), emit.op(ops.ReduceSum(), emit.op(ops.Mul(), x, x), axis))
    # Elements with norm 0 become 0, also where the norm is 0 because the squares underflow.
    is_zero = emit.op(ops.Equal(), norm, emit.floats(0, x, "zero"))
    divisor = emit.op(ops.Where(), is_zero, emit.floats(float("inf"), x, "infinity"), norm)
    return emit.op(ops.Div(), x, divisor)


def _log_softmax(emit: NodeEmitter, op: ops.LogSoftmax, x: Value) -> Value:
    axis = emit.integers(op.axis, hint="axis")
    below = emit.op(ops.Sub(), x, emit.op(ops.ReduceMax(), x, axis))
    total = emit.op(ops.ReduceSum(), emit.op(ops.Exp(), below), axis)
    return emit.op(ops.Sub(), below, emit.op(ops.Log(), total))


def _gemm(
    emit: NodeEmitter, op: ops.Gemm, a: Value, b: Value, c: Value | None = None
) -> Value | None:
    """Fold alpha and beta into the weights and bias, and transposes into constants.

    Alpha is applied to the product instead if the weights are not constant or would overflow. A
    transpose of ``a`` becomes a Transpose node.
    """
    original, kind = (op, c), a.tensor.dtype
    if not (kind.is_float or op.has_integer_scales):
        return None
    if op.trans_b and b.constant is not None:
        b, op = emit.op(ops.Transpose((1, 0)), b, hint="weights"), replace(op, trans_b=False)
    if op.trans_a:
        a, op = emit.op(ops.Transpose((1, 0)), a), replace(op, trans_a=False)
    if op.beta == 0:
        c = None
    if op.beta != 1 and c is not None:
        c = emit.op(ops.Mul(), c, emit.array(op.scale(op.beta, kind.numpy), "beta"), hint="bias")
    product_factor = None
    if op.alpha != 1:
        factor = emit.array(op.scale(op.alpha, kind.numpy), "alpha")
        reason = ops.combined_overflow_reason(ops.Mul(), b.constant, factor.constant)
        if b.constant is None or reason is not None:
            product_factor = factor
        else:
            b = emit.op(ops.Mul(), b, factor, hint="weights")
    op = replace(op, alpha=1.0, beta=1.0)
    if product_factor is not None:
        scaled = emit.op(ops.Mul(), emit.op(op, a, b), product_factor)
        return scaled if c is None else emit.op(ops.Add(), scaled, c)
    if (op, c) == original:
        return None
    return emit.op(op, a, b, c) if c is not None else emit.op(op, a, b)


def _pairwise(pair: Op) -> Rule:
    """Return a rule that turns an op of many inputs into a chain of binary ops."""

    def rule(emit: NodeEmitter, op: Op, *values: Value) -> Value | None:
        if len(values) < 2 or (len(values) == 2 and type(op) is type(pair)):
            return None
        return reduce(lambda left, right: emit.op(pair, left, right), values)

    return rule


def _mean(emit: NodeEmitter, op: ops.Mean, *values: Value) -> Value | None:
    total = _pairwise(ops.Add())(emit, op, *values)
    if total is None:
        return None
    return emit.op(ops.Mul(), total, emit.floats(1 / len(values), total, "share"))


def _reduction(
    *, before: tuple[Op, ...] = (), square: bool = False, after: tuple[Op, ...] = ()
) -> Rule:
    """Return a rule that writes a reduction as a ReduceSum.

    The ops of ``before`` and, if set, a squaring are applied to the elements, the ops of ``after``
    to the sum.
    """

    def rule(emit: NodeEmitter, reduction: Op, x: Value, *axes: Value | None) -> Value | None:
        if after and not x.tensor.dtype.is_float:
            return None
        for op in before:
            x = emit.op(op, x)
        if square:
            x = emit.op(ops.Mul(), x, x)
        attributes = {"keepdims": getattr(reduction, "keepdims", 1)}
        attributes["noop_with_empty_axes"] = getattr(reduction, "noop_with_empty_axes", 0)
        total = emit.op(ops.ReduceSum(**attributes), x, *axes)
        return reduce(lambda value, op: emit.op(op, value), after, total)

    return rule


def _normalize(emit: NodeEmitter, op: ops.Normalize, x: Value, scale: Value) -> Value:
    """Decompose Caffe's Normalize, which divides by the norm of a pixel or of the image."""
    axes = range(1, x.tensor.rank) if op.across_spatial else [1]
    over = emit.integers(*axes, hint="axes")
    total = emit.op(ops.ReduceSum(), emit.op(ops.Mul(), x, x), over)
    safe = emit.op(ops.Add(), total, emit.floats(op.eps, x, "epsilon"))
    unit = emit.op(ops.Div(), x, emit.op(ops.Sqrt(), safe))
    return emit.op(ops.Mul(), unit, emit.spread(scale, x.tensor.rank - 2), hint="scale")


def _pow(emit: NodeEmitter, _op: ops.Pow, x: Value, exponent: Value) -> Value | None:
    """Replace a Pow with exponent 2, 0.5 or -1 by Mul, Sqrt or Reciprocal."""
    if x.type != emit.node.output.type or not x.tensor.dtype.is_float:
        return None
    number = number_of(exponent)
    deciding: list[Value | None] = [exponent]
    if number == 2:
        result = emit.op(ops.Mul(), x, x)
    elif number == 0.5 and _is_never_negative(x, deciding):
        result = emit.op(ops.Sqrt(), x)
    elif number == -1:
        result = emit.op(ops.Reciprocal(), x)
    else:
        return None
    fix_numbers(*deciding)
    return result


def _is_never_negative(value: Value | None, deciding: list[Value | None], depth: int = 8) -> bool:
    """Return whether all elements are at least +0 or NaN, so that ``x ** 0.5`` equals the root.

    IEEE 754's power of minus infinity is plus infinity and that of -0 is +0, unlike their roots.
    The constants on which the answer depends are appended to ``deciding``. ``depth`` limits the
    recursion.
    """
    if value is None or not depth:
        return False
    if value.constant is not None:
        deciding.append(value)
        return not np.signbit(value.constant.array).any()
    node = value.producer
    if node is None:
        return False
    if isinstance(node.op, ops.Clip):
        # If the lower bound exceeds the upper one, all elements become the upper bound.
        low, high = (*node.inputs[1:], None, None)[:2]
        deciding += (low, high)
        return _is_positive(low) and (high is None or _is_positive(high))
    if isinstance(node.op, ops.Max):
        bounds = [value for value in node.inputs if _is_positive(value)]
        deciding += bounds
        return bool(bounds)
    if square_root_of(value) is not None:
        deciding.append(node.inputs[1])
        return True
    if isinstance(node.op, _NON_NEGATIVE):
        return True
    terms = node.inputs[: _NON_NEGATIVE_IF_INPUTS_ARE.get(type(node.op), 0)]
    return bool(terms) and all(_is_never_negative(v, deciding, depth - 1) for v in terms)


def _is_positive(value: Value | None) -> bool:
    """Return whether a value is a constant scalar above 0."""
    return value is not None and (number_of(value) or 0) > 0


def _gather(emit: NodeEmitter, op: ops.Gather, x: Value, indices: Value) -> Value | None:
    """Replace a Gather of consecutive constant indices by a Slice, which is a view."""
    if indices.constant is None or x.constant is not None:
        return None
    axis = op.axis % x.tensor.rank
    extent, index_array = x.tensor.shape[axis], indices.constant.array
    if not isinstance(extent, int) or index_array.ndim > 1 or not index_array.size:
        return None
    positions = [int(i) % max(extent, 1) for i in index_array.ravel()]
    first, end = positions[0], positions[0] + len(positions)
    if positions != [*range(first, end)] or emit.node.output.dims:
        return None
    fix_numbers(indices)
    bounds = [emit.integers(n) for n in (first, end, axis)]
    window = emit.op(ops.Slice(), x, *bounds)
    return window if index_array.ndim else emit.op(ops.Squeeze(), window, emit.integers(axis))


_RULES: dict[type, Rule] = {
    ops.BatchNormalization: _batch_normalization,
    ops.InstanceNormalization: _instance_normalization,
    ops.GroupNormalization: _group_normalization,
    ops.LayerNormalization: _row_norm,
    ops.RMSNormalization: _row_norm,
    ops.LpNormalization: _lp_normalization,
    ops.Normalize: _normalize,
    ops.Pow: _pow,
    ops.Gather: _gather,
    ops.LogSoftmax: _log_softmax,
    ops.Gemm: _gemm,
    ops.Sum: _pairwise(ops.Add()),
    ops.Max: _pairwise(ops.Max()),
    ops.Min: _pairwise(ops.Min()),
    ops.Mean: _mean,
    ops.ReduceL1: _reduction(before=(ops.Abs(),)),
    ops.ReduceL2: _reduction(square=True, after=(ops.Sqrt(),)),
    ops.ReduceSumSquare: _reduction(square=True),
    ops.ReduceLogSum: _reduction(after=(ops.Log(),)),
}
