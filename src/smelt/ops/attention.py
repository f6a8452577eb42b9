"""Attention: sums of values, weighted by the softmax of scaled query-key products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import TEMPORARY_OPERATIONS, Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    input_types,
    known,
    optional_type,
    require_broadcast,
    require_rank,
    shape_text,
)
from smelt.ops._shape_operands import input_at, present
from smelt.types import Dim, Shape, TensorType, ValueType, assume_equal, element_count, override

_PARTS = ("batch", "heads", "positions", "width")


class Attention(BuiltinOp):
    """``softmax(scale * Q @ K^T + mask) @ V`` for every head of every item of a batch.

    Inputs are the queries, the keys, the values, and optionally a mask that is added to the scores.
    With ``heads`` the inputs have three axes, and the last axis holds the heads one after the
    other. Without it, the heads have an axis of their own.

    Shapes: queries ``[batch, M, heads * D]``, keys ``[batch, N, heads * D]`` and values ``[batch,
    N, heads * E]`` give ``[batch, M, heads * E]``; or ``[batch, heads, M, D]`` and so on. The mask
    broadcasts to ``[batch, heads, M, N]``.

    Dtypes: floating-point, one for all.

    Raises ShapeError: when the shapes of the inputs or the number of heads do not match.

    Source: ONNX Attention-23, without its cache and its causal mask.
    """

    scale: float
    """Factor of the products of queries and keys."""
    heads: int = 0
    """Number of heads that share the last axis; 0 if axis 1 is the axis of heads."""

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        kinds = input_types(self, inputs, 3, 4, FLOATS)
        for kind, what in zip(kinds, ("queries", "keys", "values"), strict=True):
            require_rank(kind, what, 3 if self.heads else 4)
        q, k, v = (self.split(kind.shape) for kind in kinds)
        if not _fit(q, k, v):
            texts = ", ".join(shape_text(kind.shape) for kind in kinds)
            raise ShapeError(
                f"the shapes {texts} of queries, keys and values do not match: all must have equal "
                "batch and heads, queries and keys equal widths, keys and values equal lengths"
            )
        batch = known(known(q[0], k[0]), v[0])
        scores = (batch, known(q[1], k[1]), q[2], known(k[2], v[2]))
        require_broadcast(optional_type(self, inputs, 3), scores, "the mask of attention")
        shape = (batch, q[2], v[3] * self.heads) if self.heads else (*scores[:3], v[3])
        return (TensorType(kinds[0].dtype, shape),)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        q, k, v = (self.split(input_type(self, inputs, index).shape) for index in range(3))
        scores = element_count((known(known(q[0], k[0]), v[0]), known(q[1], k[1]), q[2], k[2]))
        return 2 * scores * (q[3] + v[3])

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        q, k = (self.split(input_type(self, inputs, index).shape) for index in range(2))
        scores = element_count((known(q[0], k[0]), known(q[1], k[1]), q[2], k[2]))
        return self.count_flop(inputs) + TEMPORARY_OPERATIONS * scores

    def split(self, shape: Shape) -> tuple[Dim, Dim, Dim, Dim]:
        """Return batch, heads, sequence length and the width of a head. Raises ShapeError."""
        if not self.heads:
            batch, heads, length, width = shape
            return batch, heads, length, width
        batch, length, elements = shape
        if self.heads < 0:
            raise ShapeError(f"the number of heads is {self.heads}; it must be at least 0")
        if not isinstance(elements, int) or elements % self.heads:
            raise ShapeError(
                f"the last extent of the queries, keys or values is {elements}; it must be static "
                f"and a multiple of the number of heads, {self.heads}"
            )
        return batch, self.heads, length, elements // self.heads

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        arrays = [present(inputs, index) for index in range(3)]
        q, k, v = (self._by_head(widen(array)) for array in arrays)
        scores = np.asarray(np.matmul(q, np.swapaxes(k, -1, -2))) * q.dtype.type(self.scale)
        mask = input_at(inputs, 3)
        if mask is not None:
            scores = scores + widen(mask)
        if scores.shape[-1]:
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = scores / scores.sum(axis=-1, keepdims=True)
        result = np.asarray(np.matmul(weights, v))
        if self.heads:
            batch, _, length, width = result.shape
            result = result.transpose(0, 2, 1, 3).reshape(batch, length, self.heads * width)
        return (narrow(result, arrays[0].dtype),)

    def _by_head(self, array: Array) -> Array:
        if not self.heads:
            return array
        width = array.shape[2] // self.heads
        return array.reshape(*array.shape[:2], self.heads, width).transpose(0, 2, 1, 3)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        def arrays(*shapes: tuple[int, ...]) -> tuple[Array, ...]:
            return tuple(floats(*s, low=-2, high=2, seed=n) for n, s in enumerate(shapes))

        def alike(*shape: int) -> tuple[Array, ...]:
            return arrays(shape, shape, shape)

        yield Case("heads_in_places", cls(0.25, heads=3), alike(2, 37, 3 * 16))
        yield Case("heads_apart", cls(0.125), alike(2, 3, 21, 32))
        yield Case("narrow_head", cls(0.5), alike(1, 2, 9, 5))
        yield Case("one_query", cls(0.3), arrays((2, 2, 1, 16), (2, 2, 70, 16), (2, 2, 70, 24)))
        yield Case("many_keys", cls(0.2, heads=2), arrays((1, 5, 64), (1, 301, 64), (1, 301, 64)))
        mask = np.where(floats(2, 1, 1, 19, seed=5) > 0.3, np.float32(-1e9), np.float32(0))
        yield Case("masked_keys", cls(0.25, heads=2), (*alike(2, 19, 32), mask))
        whole = floats(3, 11, 11, low=-3, high=3, seed=6)
        yield Case("mask_of_heads", cls(1.0), (*alike(2, 3, 11, 16), whole))
        ruled_out = np.where(np.tri(8, dtype=np.bool_), np.float32(0), np.float32("-inf"))
        yield Case("causal", cls(0.5), (*alike(1, 2, 8, 16), ruled_out))
        half = tuple(array.astype(np.float16) for array in alike(2, 3, 33, 32))
        yield Case("half", cls(0.176), half, tolerance=HALF_TOLERANCE)


def _fit(q: Shape, k: Shape, v: Shape) -> bool:
    """Return whether queries, keys and values, as returned by `split`, match each other.

    If symbols decide it, guards are recorded.
    """
    kinds = (("keys and values", k, v, (0, 1, 2)), ("queries and keys", q, k, (0, 1, 3)))
    return all(
        assume_equal(one[axis], other[axis], f"{_PARTS[axis]} of {names}")
        for names, one, other, axes in kinds
        for axis in axes
    )
