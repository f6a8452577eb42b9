"""Which tensors kernels can count through: most count all but whole items in 32 bits."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from smelt.backends._fusion import root_of
from smelt.backends.cuda._costs import count_of, guess
from smelt.ops import Chain, Conv, ConvSum, Gemm, MatMul, Transpose
from smelt.types import Guard, Relation, element_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Node, Value
    from smelt.types import Dim

FARTHEST: Final = (1 << 31) - 1
"""What 32 bits count."""
MOST_ELEMENTS: Final = 1 << 30
"""Half of what 32 bits count: images go in pairs, and tiles end behind the last place."""
_MOST_PLACES: Final = FARTHEST - 4096
"""Rows of a product: tiles end behind the last."""


def why_too_far(node: Node) -> str | None:
    """Why kernels that count in 32 bits cannot run a node, or None.

    Only the first axis of a tensor that is not constant is counted in 64, and rows are not.
    """
    root, count = root_of(node)[0], count_of(node.outputs[0])
    if isinstance(root, Chain | Conv | ConvSum | Gemm | MatMul):
        is_image = isinstance(root, Chain | Conv | ConvSum)
        columns = node.outputs[0].tensor.shape[1 if is_image else -1 :][:1]
        places = count // max([1, *map(guess, columns)])
        if places > _MOST_PLACES:
            return f"the result has {places} places, more than 32 bits tell"
    for value in (*node.inputs, *node.outputs):
        if value is not None and (count := _elements(value)) > MOST_ELEMENTS:
            return (
                f"{value.name} has {count} elements behind its first axis, more than 32 bits tell"
            )
    return None


def limits_of(node: Node) -> tuple[Guard, ...]:
    """The same of extents that symbols leave open: what a run's extents must keep below."""
    root, where = root_of(node)[0], f"{node.op.name} {node.name!r}"
    found: list[Guard] = []

    def keep_below(most: int, shape: Sequence[Dim], what: str) -> None:
        count = element_count(tuple(shape))
        if not isinstance(count, int):
            found.append(Guard(most, Relation.AT_LEAST, count, what, where))

    if isinstance(root, Chain | Conv | ConvSum | Gemm | MatMul):
        shape = node.outputs[0].tensor.shape
        axis = 1 if isinstance(root, Chain | Conv | ConvSum) else len(shape) - 1
        rows = [extent for a, extent in enumerate(shape) if a != axis]
        keep_below(_MOST_PLACES, rows, "rows of the product, counted in 32 bits")
    for value in (*node.inputs, *node.outputs):
        if value is None or value.constant is not None:
            continue
        # A transposed factor is read through its strides, where any axis may go far.
        turned = value.producer is not None and isinstance(value.producer.op, Transpose)
        shape = value.tensor.shape[0 if turned else 1 :]
        keep_below(MOST_ELEMENTS, shape, f"elements of {value.name}, counted in 32 bits")
    return tuple(found)


def _elements(value: Value) -> int:
    extents = [guess(extent) for extent in value.tensor.shape]
    return prod(extents if value.constant is not None else extents[1:])
