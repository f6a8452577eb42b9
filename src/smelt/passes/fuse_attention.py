"""Fuse two matrix products with a softmax between them into one ``Attention``.

The scores are then never stored. The scale may be applied to the queries, the keys or the scores.
Where the heads are split before and joined after, as exporters write it, the op reads tokens in
their memory order and no transpose remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from smelt import ops
from smelt.ir import FreshNames, Graph, Node, Value, sole_user
from smelt.passes._base import NodePass, Note
from smelt.passes._node_emitter import NodeEmitter
from smelt.passes._patterns import layers_of_pattern, number_of, producer_of_kind
from smelt.types import override

_RANK = 4
"""Rank of queries, keys and values: batch, heads, tokens and features."""
_BY_HEAD = (0, 2, 1, 3)
"""Permutation that exchanges the axes of tokens and heads."""
_MAX_SCALE: Final = float(1 << 32)
"""Largest magnitude of a factor that may be moved to the scores; the inverse is the smallest.
Chosen without a measurement."""


class FuseAttention(NodePass):
    """Fuse ``softmax(scale * Q @ K^T + mask) @ V``."""

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        pattern = _attention_ending_at(graph, node)
        return None if pattern is None else _fuse(graph, node, pattern, names)


@dataclass(frozen=True, slots=True)
class _PermutedValue:
    """A value and the permutation of its axes in which attention uses it."""

    value: Value
    perm: tuple[int, ...] = (0, 1, 2, 3)

    def before_head_split(self) -> Value | None:
        """Return the [N, tokens, features] tensor from which the heads were split, or None."""
        split = producer_of_kind(self.value, ops.Reshape)
        if self.perm != _BY_HEAD or split is None or split.inputs[0] is None:
            return None
        tokens, by_head = split.inputs[0], self.value.tensor.shape
        joined = (*by_head[:2], by_head[2] * by_head[3])
        return tokens if tokens.tensor.shape == joined else None


@dataclass(frozen=True, slots=True)
class _AttentionPattern:
    """The operands of a recognised attention."""

    scale: float
    factors: tuple[_PermutedValue, _PermutedValue, _PermutedValue]
    """Queries, keys and values, each of shape [N, heads, tokens, features] after its permutation.
    """
    mask: Value | None


def _attention_ending_at(graph: Graph, last: Node) -> _AttentionPattern | None:
    """Return the attention whose second product is ``last``, or None."""
    if not isinstance(last.op, ops.MatMul) or last.output.tensor.rank != _RANK:
        return None
    weights, values = last.inputs
    softmax = producer_of_kind(weights, ops.Softmax)
    if weights is None or values is None or softmax is None:
        return None
    if sole_user(graph, weights) is not last:
        return None
    if not isinstance(softmax.op, ops.Softmax) or softmax.op.axis not in (-1, _RANK - 1):
        return None
    scores, mask = _without_mask(softmax.inputs[0])
    scores, scale = _without_scale(scores)
    product = producer_of_kind(scores, ops.MatMul)
    if product is None:
        return None
    queries, query_scale = _without_scale(product.inputs[0])
    permuted, key_scale = _without_scale(product.inputs[1])
    keys = _keys(permuted)
    if queries is None or keys is None:
        return None
    operands = (_permuted_value(queries), keys, _permuted_value(values))
    pattern = _AttentionPattern(scale * query_scale * key_scale, operands, mask)
    return pattern if _fits(last, pattern) else None


def _without_mask(value: Value | None) -> tuple[Value | None, Value | None]:
    """Return the scores, and the operand that is added to them as a mask, or None."""
    node = producer_of_kind(value, ops.Add)
    if node is None:
        return value, None
    left, right = node.inputs
    is_left = producer_of_kind(_without_scale(left)[0], ops.MatMul) is not None
    return (left, right) if is_left else (right, left)


def _without_scale(value: Value | None) -> tuple[Value | None, float]:
    """Return a value before its multiplication or division by a number, and the factor.

    If there is none, return the value and 1.
    """
    for kind in (ops.Mul, ops.Div):
        node = producer_of_kind(value, kind)
        if node is None:
            continue
        x, number = node.inputs[0], number_of(node.inputs[1])
        if number is None and kind is ops.Mul:
            x, number = node.inputs[1], number_of(node.inputs[0])
        if number is None or not 1 / _MAX_SCALE <= abs(number) <= _MAX_SCALE:
            continue
        if x is not None and x.type == node.output.type:
            return x, number if kind is ops.Mul else 1.0 / number
    return value, 1.0


def _keys(permuted: Value | None) -> _PermutedValue | None:
    """Return the keys by head from the transposed keys that the first product reads, or None."""
    keys = None if permuted is None else _permuted_value(permuted)
    if keys is None or keys.value is permuted:
        return None
    perm = keys.perm
    return _PermutedValue(keys.value, (*perm[:2], perm[3], perm[2]))


def _permuted_value(value: Value) -> _PermutedValue:
    """Return a value with a Transpose that computes it expressed as a permutation."""
    node = producer_of_kind(value, ops.Transpose)
    if node is None or not isinstance(node.op, ops.Transpose) or node.inputs[0] is None:
        return _PermutedValue(value)
    perm = node.op.perm
    return _PermutedValue(value) if perm is None else _PermutedValue(node.inputs[0], perm)


def _fits(last: Node, pattern: _AttentionPattern) -> bool:
    """Return whether ``ops.Attention`` supports the operands.

    Queries, keys and values must have the same heads, and only the mask may broadcast.
    """
    shapes = [_shape(operand) for operand in pattern.factors]
    q, k, v = shapes
    types = {operand.value.tensor.dtype for operand in pattern.factors}
    matches = q[:2] == k[:2] == v[:2] and q[3] == k[3] and k[2] == v[2]
    if not matches or len(types) > 1 or last.output.tensor.shape != (*q[:3], v[3]):
        return False
    if pattern.mask is None:
        return True
    mask = pattern.mask.tensor
    tail = (*q[:3], k[2])[_RANK - mask.rank :] if mask.rank <= _RANK else ()
    return mask.dtype in types and all(
        extent in (1, score_extent) for extent, score_extent in zip(mask.shape, tail, strict=True)
    )


def _shape(operand: _PermutedValue) -> tuple[object, ...]:
    """Return the permuted shape of an operand."""
    shape = operand.value.tensor.shape
    return tuple(shape[axis] for axis in operand.perm)


def _fuse(
    graph: Graph, product: Node, pattern: _AttentionPattern, names: FreshNames
) -> Note | None:
    """Replace the pattern by one Attention node."""
    before_head_split = [factor.before_head_split() for factor in pattern.factors]
    join, heads = _join_after(graph, product), pattern.factors[0].value.tensor.shape[2]
    if join is None or None in before_head_split or not isinstance(heads, int):
        join, heads = None, 0
    last = join or product
    sources = before_head_split if heads else [factor.value for factor in pattern.factors]
    layers = layers_of_pattern(graph, last, *sources, pattern.mask)
    emit = NodeEmitter(graph, last, names)
    if not heads:
        sources = [_by_head(emit, factor) for factor in pattern.factors]
    mask = () if pattern.mask is None else (pattern.mask,)
    attention = emit.op(ops.Attention(pattern.scale, heads), *sources, *mask)
    return emit.finish_as(attention, layers, "computed as one Attention")


def _by_head(emit: NodeEmitter, operand: _PermutedValue) -> Value:
    """Return an operand as a tensor [N, heads, tokens, features]."""
    if operand.perm == tuple(range(_RANK)):
        return operand.value
    return emit.op(ops.Transpose(operand.perm), operand.value)


def _join_after(graph: Graph, product: Node) -> Node | None:
    """Return the Reshape that joins the heads again after the product, or None."""
    permuted = sole_user(graph, product.output)
    if permuted is None or permuted.op != ops.Transpose(_BY_HEAD):
        return None
    join = sole_user(graph, permuted.output)
    split_shape = permuted.output.tensor.shape
    if join is None or not isinstance(join.op, ops.Reshape):
        return None
    joined_shape = (*split_shape[:2], split_shape[2] * split_shape[3])
    return join if join.output.tensor.shape == joined_shape else None
