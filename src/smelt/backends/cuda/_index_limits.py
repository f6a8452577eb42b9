"""Limits of 32-bit indexing: kernels use 64-bit offsets along the outermost axis only."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from smelt.backends._fused_programs import root_of
from smelt.ops import Conv, ConvSum, FusedPair, Gemm, MatMul, Transpose
from smelt.types import Guard, Relation, element_count, guessed_extent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Node, Value
    from smelt.types import Dim

MAX_INT32: Final = (1 << 31) - 1
"""Largest signed 32-bit integer."""
MAX_INT32_ELEMENTS: Final = 1 << 30
"""Maximum number of elements that kernels index with 32 bits: half the range, because half2 kernels
process images in pairs and tiles extend past the last position."""
_MAX_GEMM_ROWS: Final = MAX_INT32 - 4096
"""Maximum number of rows of a product: the last tile extends past the last row. No tile has 4,096
rows."""


def index_overflow_reason(node: Node) -> str | None:
    """Return why kernels with 32-bit offsets cannot run a node, or None.

    Offsets along the first axis of a non-constant tensor are computed with 64 bits; row numbers are
    not.
    """
    rows = prod(map(guessed_extent, _row_extents(node)))
    if rows > _MAX_GEMM_ROWS:
        return (
            f"the result has {rows} rows; at most {_MAX_GEMM_ROWS} are supported, because row "
            "numbers have 32 bits"
        )
    for value in (*node.inputs, *node.outputs):
        if value is not None and (count := _elements(value)) > MAX_INT32_ELEMENTS:
            return (
                f"{value.name!r} has {count} elements for each index of its first axis; at most "
                f"{MAX_INT32_ELEMENTS} are supported, because offsets have 32 bits"
            )
    return None


def index_limits_of(node: Node) -> tuple[Guard, ...]:
    """Return the conditions on symbolic extents under which 32-bit indexing suffices."""
    location = f"{node.op.name} {node.name!r}"
    guards: list[Guard] = []

    def add_limit(limit: int, shape: Sequence[Dim], description: str) -> None:
        count = element_count(tuple(shape))
        if not isinstance(count, int):
            guards.append(Guard(limit, Relation.AT_LEAST, count, description, location))

    add_limit(
        _MAX_GEMM_ROWS, _row_extents(node), "32-bit indexing limits the rows of the implicit GEMM"
    )
    for value in (*node.inputs, *node.outputs):
        if value is None or value.constant is not None:
            continue
        # A transposed operand is read through its strides, so any axis may have a large one.
        is_transposed = value.producer is not None and isinstance(value.producer.op, Transpose)
        shape = value.tensor.shape[0 if is_transposed else 1 :]
        add_limit(
            MAX_INT32_ELEMENTS, shape, f"32-bit indexing limits the elements of {value.name!r}"
        )
    return tuple(guards)


def _row_extents(node: Node) -> list[Dim]:
    """Return the extents of the result that are rows of a product; none for other ops."""
    root, shape = root_of(node)[0], node.outputs[0].tensor.shape
    if not isinstance(root, FusedPair | Conv | ConvSum | Gemm | MatMul):
        return []
    axis = 1 if isinstance(root, FusedPair | Conv | ConvSum) else len(shape) - 1
    return [extent for a, extent in enumerate(shape) if a != axis]


def _elements(value: Value) -> int:
    """Return how many elements of a value kernels index with 32 bits."""
    extents = [guessed_extent(extent) for extent in value.tensor.shape]
    return prod(extents if value.constant is not None else extents[1:])
