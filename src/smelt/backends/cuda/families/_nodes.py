"""What families ask of a node and of its memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smelt.backends.cuda._source import operand_parameters
from smelt.engine import Launch
from smelt.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends._base import Operands
    from smelt.backends._scalars import Scalars
    from smelt.backends.cuda._product import ProductKernel
    from smelt.engine import View
    from smelt.ir import Node, Value
    from smelt.types import Dim


def value_of(node: Node, index: int) -> Value:
    """An input that the node must have."""
    value = node.inputs[index]
    if value is None:
        raise InternalError(f"input {index} of {node} is absent")
    return value


def view_of(operands: Operands, index: int) -> View:
    """The memory of an input that the tactic reads."""
    view = operands.inputs[index]
    if view is None:
        raise InternalError(f"input {index} of a kernel has no memory")
    return view


def finished(
    kernel: ProductKernel, family: str, views: Sequence[View], scalars: Scalars, chunks: Dim
) -> Launch:
    """The launch of a product, once every scalar is known; the last view is the result."""
    operands = tuple(operand_parameters(views, len(scalars.values)).items())
    spec = dataclasses.replace(kernel, operands=operands).spec(family)
    return Launch(spec, tuple(views), (len(views) - 1,), scalars.values, chunks)
