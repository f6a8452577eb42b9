"""What backends list for nodes in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smelt.passes import assign_precision
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.backends import Backend, Refusal, Tactic
    from smelt.ir import Node


def candidates_in(
    dtype: DType, backend: Backend[Any], node: Node, target: Any
) -> tuple[list[Tactic], list[Refusal]]:
    """Return the candidates of a node whose float32 tensors are stored as a type."""
    assign_precision([node], dtype, supports_mixed_precision=backend.supports_mixed_precision)
    try:
        return backend.candidates(node, target)
    finally:
        assign_precision([node], DType.FLOAT32)
