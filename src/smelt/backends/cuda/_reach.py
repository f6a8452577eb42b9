"""Which tensors kernels can count through: most count all but whole items in 32 bits."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._costs import guess

if TYPE_CHECKING:
    from smelt.ir import Node, Value

MOST_ELEMENTS: Final = 1 << 30
"""Half of what 32 bits count: images go in pairs, and tiles end behind the last place."""


def why_too_far(node: Node) -> str | None:
    """Why kernels that count in 32 bits cannot run a node, or None.

    Only the first axis of a tensor that is not constant is counted in 64.
    """
    for value in (*node.inputs, *node.outputs):
        if value is not None and (count := _elements(value)) > MOST_ELEMENTS:
            return (
                f"{value.name} has {count} elements behind its first axis, more than 32 bits tell"
            )
    return None


def _elements(value: Value) -> int:
    extents = [guess(extent) for extent in value.tensor.shape]
    return prod(extents if value.constant is not None else extents[1:])
