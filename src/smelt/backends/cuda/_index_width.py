"""Which tensors kernels can count through: most count all but whole items in 32 bits."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from smelt.backends._fused_programs import root_of
from smelt.backends.cuda._cost_model import count_of, guessed_extent
from smelt.ops import Conv, ConvSum, FusedPair, Gemm, MatMul, Transpose
from smelt.types import Guard, Relation, element_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Node, Value
    from smelt.types import Dim

MAX_INT32: Final = (1 << 31) - 1
"""What 32 bits count."""
MAX_INT32_ELEMENTS: Final = 1 << 30
"""Half of what 32 bits count: images go in pairs, and tiles end behind the last place."""
_MAX_GEMM_ROWS: Final = MAX_INT32 - 4096
"""Rows of a product: tiles end behind the last."""


def why_index_overflow(node: Node) -> str | None:
    """Why kernels that count in 32 bits cannot run a node, or None.

    Only the first axis of a tensor that is not constant is counted in 64, and rows are not.
    """
    root, count = root_of(node)[0], count_of(node.outputs[0])
    if isinstance(root, FusedPair | Conv | ConvSum | Gemm | MatMul):
        is_image = isinstance(root, FusedPair | Conv | ConvSum)
        columns = node.outputs[0].tensor.shape[1 if is_image else -1 :][:1]
        places = count // max([1, *map(guessed_extent, columns)])
        if places > _MAX_GEMM_ROWS:
            return f"the result has {places} rows, which exceeds 32-bit indexing"
    for value in (*node.inputs, *node.outputs):
        if value is not None and (count := _elements(value)) > MAX_INT32_ELEMENTS:
            return (
                f"{value.name} has {count} elements for each index of its first axis, which "
                "exceeds 32-bit indexing"
            )
    return None


def index_limits_of(node: Node) -> tuple[Guard, ...]:
    """The same of extents that symbols leave open: what a run's extents must keep below."""
    root, where = root_of(node)[0], f"{node.op.name} {node.name!r}"
    found: list[Guard] = []

    def keep_below(most: int, shape: Sequence[Dim], what: str) -> None:
        count = element_count(tuple(shape))
        if not isinstance(count, int):
            found.append(Guard(most, Relation.AT_LEAST, count, what, where))

    if isinstance(root, FusedPair | Conv | ConvSum | Gemm | MatMul):
        shape = node.outputs[0].tensor.shape
        axis = 1 if isinstance(root, FusedPair | Conv | ConvSum) else len(shape) - 1
        rows = [extent for a, extent in enumerate(shape) if a != axis]
        keep_below(_MAX_GEMM_ROWS, rows, "rows of the implicit GEMM, indexed with 32 bits")
    for value in (*node.inputs, *node.outputs):
        if value is None or value.constant is not None:
            continue
        # A transposed factor is read through its strides, where any axis may go far.
        turned = value.producer is not None and isinstance(value.producer.op, Transpose)
        shape = value.tensor.shape[0 if turned else 1 :]
        keep_below(MAX_INT32_ELEMENTS, shape, f"elements of {value.name}, counted in 32 bits")
    return tuple(found)


def _elements(value: Value) -> int:
    extents = [guessed_extent(extent) for extent in value.tensor.shape]
    return prod(extents if value.constant is not None else extents[1:])
