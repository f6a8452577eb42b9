"""Layers that compute in float32 within a 16-bit build.

The builder decides which layers these are. Their inputs are stored in float32 and multiplied in it.
Their results are rounded unless another float32 layer reads them, so no conversion copies are
needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smelt.backends._base import Aliasing
from smelt.backends.cuda._float32_logits import PASS_THROUGH_OPS, stays_float32
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from smelt.backends._base import Tactic
    from smelt.ir import Node, Value

_STORED: Final = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
"""Types as which float32 tensors may be stored."""


def reads_float32(node: Node, kept: Collection[str]) -> bool:
    """Return whether a node reads float32: it is kept, or passes its input on to a kept node."""
    if not isinstance(node.op, PASS_THROUGH_OPS):
        return node.name in kept
    return any(_is_read_as_float32(value, kept) for value in node.outputs)


def _is_read_as_float32(value: Value, kept: Collection[str]) -> bool:
    """Return whether a kept node reads a value, directly or through pass-through ops."""
    users: list[Node] = list(value.users)
    seen: set[Node] = set()
    while users:
        user = users.pop()
        if user in seen:
            continue
        seen.add(user)
        if isinstance(user.op, PASS_THROUGH_OPS):
            users += [node for output in user.outputs for node in output.users]
        elif user.name in kept:
            return True
    return False


def with_results_for_readers(
    node: Node, tactic: Tactic, storage: DType, kept: Collection[str]
) -> Tactic:
    """Return the tactic with each result stored as its readers need, ``storage`` or float32."""

    def wanted(value: Value) -> DType:
        is_wide = not value.users or stays_float32(value) or _is_read_as_float32(value, kept)
        return DType.FLOAT32 if is_wide else storage

    return _with_results(node, tactic, wanted)


def with_float32_results(node: Node, tactic: Tactic) -> Tactic:
    """Return the tactic with all results stored as float32."""
    return _with_results(node, tactic, lambda _: DType.FLOAT32)


def _with_results(node: Node, tactic: Tactic, wanted: Callable[[Value], DType]) -> Tactic:
    """Return the tactic with its float results stored as ``wanted`` returns.

    Views and references are unchanged: views have the type of their source, and references compute
    in the model's types.
    """
    if tactic.aliasing is not Aliasing.NONE or tactic.runs_on_host:
        return tactic
    outputs = tuple(
        replace(fmt, dtype=wanted(value))
        if value.tensor.dtype is DType.FLOAT32 and fmt.dtype in _STORED
        else fmt
        for value, fmt in zip(node.outputs, tactic.outputs, strict=True)
    )
    return replace(tactic, outputs=outputs)
