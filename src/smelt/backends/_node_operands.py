"""Accessors to the inputs of a node and their memory, with checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.errors import InternalError

if TYPE_CHECKING:
    from smelt.backends._base import Operands
    from smelt.engine import View
    from smelt.ir import Array, Node, Value


def required_input(node: Node, index: int) -> Value:
    """Return an input that the node must have. Raises InternalError if it is absent."""
    value = node.inputs[index]
    if value is None:
        raise InternalError(f"input {index} of {node} is missing")
    return value


def input_view(operands: Operands, index: int) -> View:
    """Return the memory of an input that the tactic reads. Raises InternalError if it has none."""
    view = operands.inputs[index]
    if view is None:
        raise InternalError(f"no memory is assigned to input {index} of a kernel")
    return view


def workspace_of(node: Node, operands: Operands) -> View:
    """Return the workspace of a tactic that requests one. Raises InternalError if it is absent."""
    if operands.workspace is None:
        raise InternalError(f"{node} has no workspace")
    return operands.workspace


def error_words_of(node: Node, operands: Operands) -> View:
    """Return the error words of a node whose family reports index errors. Raises InternalError."""
    if operands.errors is None:
        raise InternalError(f"{node} has no error buffer")
    return operands.errors


def constant_input(node: Node, index: int) -> Array | None:
    """Return the elements of a constant input, for what the code or the plan depends on.

    They are excluded from refits. The result is None if the input is absent or not constant.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None or value.constant is None else value.constant.fix()
