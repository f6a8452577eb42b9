"""Decompose ops that no backend implements into ops that every backend implements.

Each rule is exact up to rounding. Sums stay reductions, so that each backend chooses their
accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt import ops
from smelt.errors import ShapeError
from smelt.ir import FreshNames, fix_numbers
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.passes._patterns import number_of, required_input
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.ir import Graph, Node, Op, Value

    Rule = Callable[[Emitter, Node], Value | None]

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
class Decompose(Pass):
    """Decompose normalisations, n-ary sums and rare reductions into elementwise ops and sums."""

    name: ClassVar[str] = "decompose"

    excluded: tuple[str, ...] = ()
    """Names of ops that are not decomposed because a backend implements them itself."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            rule = _RULES.get(type(node.op))
            unused = all(not value.users for value in node.outputs[1:])
            if rule is None or not unused or node.op.name in self.excluded:
                continue
            layers, kind = node.layers, type(node.op).__name__
            emit = Emitter(graph, node, names)
            try:
                result = rule(emit, node)
            except ShapeError:
                # The op may assume that symbolic extents are equal, or mix element types, where
                # the ops that replace it do not: the node then stays as it is.
                emit.discard()
                continue
            if result is not None and emit.finish(result) is not None:
                notes.append(Note(layers, layers, f"{kind} by simpler ops"))
        return PassResult.of(notes)


def _input(node: Node, index: int) -> Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _along_channels(emit: Emitter, vector: Value, rank: int) -> Value:
    """Reshape a vector with one element per channel to broadcast to [N, C, ...]."""
    return emit.op(ops.Reshape(), vector, emit.integers(-1, *[1] * (rank - 2)))


def _batch_normalization(emit: Emitter, node: Node) -> Value | None:
    """Write batch normalisation as ``x * factor + term`` per channel."""
    if not isinstance(node.op, ops.BatchNormalization):
        return None
    x, gamma, beta, mean, variance = (required_input(node, i) for i in range(5))
    epsilon = emit.floats(node.op.epsilon, variance, "epsilon")
    deviation = emit.op(ops.Sqrt(), emit.op(ops.Add(), variance, epsilon))
    factor = emit.op(ops.Div(), gamma, deviation)
    term = emit.op(ops.Sub(), beta, emit.op(ops.Mul(), mean, factor))
    rank = x.tensor.rank
    scaled = emit.op(ops.Mul(), x, _along_channels(emit, factor, rank), hint="scale")
    return emit.op(ops.Add(), scaled, _along_channels(emit, term, rank), hint="shift")


def _normalized(emit: Emitter, x: Value, axes: list[int], epsilon: float) -> Value:
    """Return ``(x - mean) / sqrt(variance + epsilon)`` with the statistics over ``axes``."""
    over = emit.integers(*axes, hint="axes")
    centred = emit.op(ops.Sub(), x, emit.op(ops.ReduceMean(), x, over, hint="mean"))
    square = emit.op(ops.Mul(), centred, centred)
    variance = emit.op(ops.ReduceMean(), square, over, hint="variance")
    safe = emit.op(ops.Add(), variance, emit.floats(epsilon, x, "epsilon"))
    return emit.op(ops.Div(), centred, emit.op(ops.Sqrt(), safe))


def _affine(emit: Emitter, x: Value, scale: Value, bias: Value) -> Value:
    """Return ``x * scale + bias`` with one scale and bias per channel."""
    rank = x.tensor.rank
    scaled = emit.op(ops.Mul(), x, _along_channels(emit, scale, rank), hint="scale")
    return emit.op(ops.Add(), scaled, _along_channels(emit, bias, rank), hint="shift")


def _instance_normalization(emit: Emitter, node: Node) -> Value | None:
    if not isinstance(node.op, ops.InstanceNormalization):
        return None
    x, scale, bias = (required_input(node, i) for i in range(3))
    normalised = _normalized(emit, x, list(range(2, x.tensor.rank)), node.op.epsilon)
    return _affine(emit, normalised, scale, bias)


def _group_normalization(emit: Emitter, node: Node) -> Value | None:
    """Normalise each group of channels as one axis; the inner extents must be static."""
    if not isinstance(node.op, ops.GroupNormalization):
        return None
    x, scale, bias = (required_input(node, i) for i in range(3))
    inner_extents = [d for d in x.tensor.shape[1:] if isinstance(d, int)]
    if len(inner_extents) != x.tensor.rank - 1 or 0 in inner_extents:
        return None
    groups = emit.integers(0, node.op.num_groups, -1)
    grouped = emit.op(ops.Reshape(), x, groups)
    normalised = _normalized(emit, grouped, [2], node.op.epsilon)
    ungrouped = emit.op(ops.Reshape(), normalised, emit.integers(0, *inner_extents))
    return _affine(emit, ungrouped, scale, bias)


def _row_norm(emit: Emitter, node: Node) -> Value | None:
    """Move the scale and bias out of a norm if they differ between rows.

    The kernels of norms take one scale and bias for all rows.
    """
    if not isinstance(node.op, ops.LayerNormalization | ops.RMSNormalization):
        return None
    x, scale = required_input(node, 0), required_input(node, 1)
    bias = _input(node, 2)
    types = [scale.tensor] if bias is None else [scale.tensor, bias.tensor]
    if all(ops.is_same_for_rows(type_, x.tensor, node.op.axis) for type_ in types):
        return None
    result = emit.op(node.op, x, emit.floats(1, x, "one"), hint="rows")
    result = emit.op(ops.Mul(), result, scale, hint="scale")
    return result if bias is None else emit.op(ops.Add(), result, bias, hint="shift")


def _lp_normalization(emit: Emitter, node: Node) -> Value | None:
    """Divide by the L1 or L2 norm along an axis."""
    if not isinstance(node.op, ops.LpNormalization):
        return None
    x = required_input(node, 0)
    axis = emit.integers(node.op.axis, hint="axis")
    if node.op.p == 1:
        norm = emit.op(ops.ReduceSum(), emit.op(ops.Abs(), x), axis)
    else:
        norm = emit.op(ops.Sqrt(), emit.op(ops.ReduceSum(), emit.op(ops.Mul(), x, x), axis))
    # Elements with norm 0 become 0, also where the norm is 0 because the squares underflow.
    is_zero = emit.op(ops.Equal(), norm, emit.floats(0, x, "zero"))
    divisor = emit.op(ops.Where(), is_zero, emit.floats(float("inf"), x, "infinity"), norm)
    return emit.op(ops.Div(), x, divisor)


def _log_softmax(emit: Emitter, node: Node) -> Value | None:
    if not isinstance(node.op, ops.LogSoftmax):
        return None
    x = required_input(node, 0)
    axis = emit.integers(node.op.axis, hint="axis")
    below = emit.op(ops.Sub(), x, emit.op(ops.ReduceMax(), x, axis))
    total = emit.op(ops.ReduceSum(), emit.op(ops.Exp(), below), axis)
    return emit.op(ops.Sub(), below, emit.op(ops.Log(), total))


def _gemm(emit: Emitter, node: Node) -> Value | None:
    """Fold alpha and beta into the weights and bias, and transposes into constants.

    Alpha is applied to the product instead if the weights are not constant or would overflow. A
    transpose of ``a`` becomes a Transpose node.
    """
    op, kind = node.op, node.output.tensor.dtype
    if not isinstance(op, ops.Gemm) or not (kind.is_float or op.has_integer_scales):
        return None
    a, b, c = required_input(node, 0), required_input(node, 1), _input(node, 2)
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
        if b.constant is None or ops.combined_overflow_reason(
            ops.Mul(), b.constant, factor.constant
        ):
            product_factor = factor
        else:
            b = emit.op(ops.Mul(), b, factor, hint="weights")
    op = replace(op, alpha=1.0, beta=1.0)
    if product_factor is not None:
        scaled = emit.op(ops.Mul(), emit.op(op, a, b), product_factor)
        return scaled if c is None else emit.op(ops.Add(), scaled, c)
    if op == node.op and c is _input(node, 2):
        return None
    return emit.op(op, a, b, c) if c is not None else emit.op(op, a, b)


def _pairwise(pair: Op) -> Rule:
    """Return a rule that turns an op of many inputs into a chain of binary ops."""

    def rule(emit: Emitter, node: Node) -> Value | None:
        if len(node.inputs) < 2 or (len(node.inputs) == 2 and type(node.op) is type(pair)):
            return None
        values = [required_input(node, i) for i in range(len(node.inputs))]
        return reduce(lambda left, right: emit.op(pair, left, right), values)

    return rule


def _mean(emit: Emitter, node: Node) -> Value | None:
    total = _pairwise(ops.Add())(emit, node)
    if total is None:
        return None
    return emit.op(ops.Mul(), total, emit.floats(1 / len(node.inputs), total, "share"))


def _reduction(
    *, before: tuple[Op, ...] = (), square: bool = False, after: tuple[Op, ...] = ()
) -> Rule:
    """Return a rule that writes a reduction as a ReduceSum.

    The ops of ``before`` and, if set, a squaring are applied to the elements, the ops of ``after``
    to the sum.
    """

    def rule(emit: Emitter, node: Node) -> Value | None:
        x = required_input(node, 0)
        if after and not x.tensor.dtype.is_float:
            return None
        for op in before:
            x = emit.op(op, x)
        if square:
            x = emit.op(ops.Mul(), x, x)
        attributes = {"keepdims": getattr(node.op, "keepdims", 1)}
        attributes["noop_with_empty_axes"] = getattr(node.op, "noop_with_empty_axes", 0)
        total = emit.op(ops.ReduceSum(**attributes), x, *node.inputs[1:])
        return reduce(lambda value, op: emit.op(op, value), after, total)

    return rule


def _normalize(emit: Emitter, node: Node) -> Value | None:
    """Decompose Caffe's Normalize, which divides by the norm of a pixel or of the image."""
    if not isinstance(node.op, ops.Normalize):
        return None
    x, scale = required_input(node, 0), required_input(node, 1)
    axes = range(1, x.tensor.rank) if node.op.across_spatial else [1]
    over = emit.integers(*axes, hint="axes")
    total = emit.op(ops.ReduceSum(), emit.op(ops.Mul(), x, x), over)
    safe = emit.op(ops.Add(), total, emit.floats(node.op.eps, x, "epsilon"))
    unit = emit.op(ops.Div(), x, emit.op(ops.Sqrt(), safe))
    return emit.op(ops.Mul(), unit, _along_channels(emit, scale, x.tensor.rank), hint="scale")


def _pow(emit: Emitter, node: Node) -> Value | None:
    """Replace a Pow with exponent 2, 0.5 or -1 by Mul, Sqrt or Reciprocal."""
    x, exponent = required_input(node, 0), required_input(node, 1)
    if exponent.constant is None or exponent.constant.array.size != 1:
        return None
    if x.type != node.output.type or not x.tensor.dtype.is_float:
        return None
    number = float(exponent.constant.array.ravel()[0])
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
    if _is_square(node):
        deciding.append(node.inputs[1])
        return True
    if isinstance(node.op, _NON_NEGATIVE):
        return True
    terms = node.inputs[: _NON_NEGATIVE_IF_INPUTS_ARE.get(type(node.op), 0)]
    return bool(terms) and all(_is_never_negative(v, deciding, depth - 1) for v in terms)


def _is_positive(value: Value | None) -> bool:
    """Return whether a value is a constant scalar above 0."""
    return value is not None and (number_of(value) or 0) > 0


def _is_square(node: Node) -> bool:
    """Return whether a node computes the square of a value."""
    if isinstance(node.op, ops.Mul):
        return node.inputs[0] is node.inputs[1]
    return isinstance(node.op, ops.Pow) and number_of(node.inputs[1]) == 2


def _gather(emit: Emitter, node: Node) -> Value | None:
    """Replace a Gather of consecutive constant indices by a Slice, which is a view."""
    x, indices = required_input(node, 0), required_input(node, 1)
    if not isinstance(node.op, ops.Gather) or indices.constant is None or x.constant is not None:
        return None
    axis = node.op.axis % x.tensor.rank
    extent, index_array = x.tensor.shape[axis], indices.constant.array
    if (
        not isinstance(extent, int)
        or index_array.ndim > 1
        or not index_array.size
        or node.output.dims
    ):
        return None
    first = int(index_array.ravel()[0]) % max(extent, 1)
    if [int(i) % max(extent, 1) for i in index_array.ravel()] != [
        *range(first, first + index_array.size)
    ]:
        return None
    fix_numbers(indices)
    bounds = [emit.integers(n) for n in (first, first + index_array.size, axis)]
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
