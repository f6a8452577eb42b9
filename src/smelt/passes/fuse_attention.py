"""Two products with a softmax between them become one ``Attention``: scores are never stored.

The scale may stand on the queries, on the keys or on the scores. Where heads are split off before
and joined after, as exporters write it, the op takes places as they lie in memory and no transpose
is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from smelt import ops
from smelt.ir import FreshNames, remove_dead, sole_user
from smelt.passes._base import Note, Pass, PassResult
from smelt.passes._node_emitter import Emitter
from smelt.passes._patterns import fix_numbers_between, layers_between, made_by, number_of
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Graph, Node, Value

_RANK = 4
_BY_HEAD = (0, 2, 1, 3)
"""Places and heads change their places."""
_MAX_SCALE: Final = float(1 << 32)
"""Factors up to this, and from its inverse, may as well be applied to the scores together."""


@dataclass(frozen=True)
class FuseAttention(Pass):
    """Fuse ``softmax(scale * Q @ K^T + mask) @ V``."""

    name: ClassVar[str] = "fuse-attention"

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        for node in list(graph.nodes):
            found = _attention_ending_at(graph, node)
            if found is not None and (note := _fuse(graph, node, found, names)) is not None:
                notes.append(note)
        return PassResult.of(notes)


@dataclass(frozen=True, slots=True)
class _PermutedValue:
    """A value, and the order in which its axes are wanted."""

    value: Value
    perm: tuple[int, ...] = (0, 1, 2, 3)

    def before_head_split(self) -> Value | None:
        """The tensor of places from which the heads were split off; None when they were not."""
        split = made_by(self.value, ops.Reshape)
        if self.perm != _BY_HEAD or split is None or split.inputs[0] is None:
            return None
        places, apart = split.inputs[0], self.value.tensor.shape
        joined = (*apart[:2], apart[2] * apart[3])
        return places if places.tensor.shape == joined else None


@dataclass(frozen=True, slots=True)
class _Found:
    scale: float
    factors: tuple[_PermutedValue, _PermutedValue, _PermutedValue]
    """Queries, keys and values, by head."""
    mask: Value | None


def _attention_ending_at(graph: Graph, last: Node) -> _Found | None:
    if not isinstance(last.op, ops.MatMul) or last.output.tensor.rank != _RANK:
        return None
    weights, values = last.inputs
    soft = made_by(weights, ops.Softmax)
    if weights is None or values is None or soft is None or sole_user(graph, weights) is not last:
        return None
    if not isinstance(soft.op, ops.Softmax) or soft.op.axis not in (-1, _RANK - 1):
        return None
    scores, mask = _without_mask(soft.inputs[0])
    scores, scale = _without_scale(scores)
    product = made_by(scores, ops.MatMul)
    if product is None:
        return None
    queries, factor = _without_scale(product.inputs[0])
    permuted, other = _without_scale(product.inputs[1])
    keys = _keys(permuted)
    if queries is None or keys is None:
        return None
    factors = (_permuted_value(queries), keys, _permuted_value(values))
    found = _Found(scale * factor * other, factors, mask)
    return found if _fits(last, found) else None


def _without_mask(value: Value | None) -> tuple[Value | None, Value | None]:
    """Scores, and what is added to them: the operand that is not a product."""
    node = made_by(value, ops.Add)
    if node is None:
        return value, None
    left, right = node.inputs
    is_left = made_by(_without_scale(left)[0], ops.MatMul) is not None
    return (left, right) if is_left else (right, left)


def _without_scale(value: Value | None) -> tuple[Value | None, float]:
    """A value before it is multiplied or divided by a number, and by what it is multiplied."""
    for kind in (ops.Mul, ops.Div):
        node = made_by(value, kind)
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
    """The keys by head, of which a product reads the transpose."""
    found = None if permuted is None else _permuted_value(permuted)
    if found is None or found.value is permuted:
        return None
    perm = found.perm
    return _PermutedValue(found.value, (*perm[:2], perm[3], perm[2]))


def _permuted_value(value: Value) -> _PermutedValue:
    """The value with a transpose before it taken into the order of its axes."""
    node = made_by(value, ops.Transpose)
    if node is None or not isinstance(node.op, ops.Transpose) or node.inputs[0] is None:
        return _PermutedValue(value)
    perm = node.op.perm
    return _PermutedValue(value) if perm is None else _PermutedValue(node.inputs[0], perm)


def _fits(last: Node, found: _Found) -> bool:
    """Whether inference takes it: heads are not shared, and nothing broadcasts but the mask."""
    shapes = [_shape(factor) for factor in found.factors]
    q, k, v = shapes
    kinds = {factor.value.tensor.dtype for factor in found.factors}
    alike = q[:2] == k[:2] == v[:2] and q[3] == k[3] and k[2] == v[2]
    if not alike or len(kinds) > 1 or last.output.tensor.shape != (*q[:3], v[3]):
        return False
    if found.mask is None:
        return True
    mask = found.mask.tensor
    tail = (*q[:3], k[2])[_RANK - mask.rank :] if mask.rank <= _RANK else ()
    return mask.dtype in kinds and all(
        extent in (1, whole) for extent, whole in zip(mask.shape, tail, strict=True)
    )


def _shape(factor: _PermutedValue) -> tuple[object, ...]:
    shape = factor.value.tensor.shape
    return tuple(shape[axis] for axis in factor.perm)


def _fuse(graph: Graph, product: Node, found: _Found, names: FreshNames) -> Note | None:
    """One node in the place of them all."""
    before_head_split = [factor.before_head_split() for factor in found.factors]
    joined, heads = _join_after(graph, product), found.factors[0].value.tensor.shape[2]
    if joined is None or None in before_head_split or not isinstance(heads, int):
        joined, heads = None, 0
    last = joined or product
    sources = before_head_split if heads else [factor.value for factor in found.factors]
    read = list(last.inputs)
    layers = layers_between(graph, last, *sources, found.mask)
    fix_numbers_between(graph, last, *sources, found.mask)
    emit = Emitter(graph, last, names)
    if not heads:
        sources = [_by_head(emit, factor) for factor in found.factors]
    mask = () if found.mask is None else (found.mask,)
    made = emit.finish(emit.op(ops.Attention(found.scale, heads), *sources, *mask))
    if made is None:
        return None
    made.layers = layers
    remove_dead(graph, read)
    return Note(layers, layers, "one Attention")


def _by_head(emit: Emitter, factor: _PermutedValue) -> Value:
    if factor.perm == tuple(range(_RANK)):
        return factor.value
    return emit.op(ops.Transpose(factor.perm), factor.value)


def _join_after(graph: Graph, product: Node) -> Node | None:
    """The reshape behind a product that, turned by head, joins the heads of a place again."""
    permuted = sole_user(graph, product.output)
    if (
        permuted is None
        or not isinstance(permuted.op, ops.Transpose)
        or permuted.op.perm != _BY_HEAD
    ):
        return None
    joined = sole_user(graph, permuted.output)
    apart = permuted.output.tensor.shape
    if joined is None or not isinstance(joined.op, ops.Reshape):
        return None
    whole = (*apart[:2], apart[2] * apart[3])
    return joined if joined.output.tensor.shape == whole else None
