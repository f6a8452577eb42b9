"""What fused nodes compute, as every backend's generators want it: ops as data, in order."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final

from smelt.engine import Json, as_json, parameters
from smelt.ir import Operand
from smelt.ops import Fused
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Node, Op

ABSENT_INPUT: Final = 1 << 20
"""Stands for an optional input that is not there."""

Program = list[tuple["Op", tuple[int, ...], tuple[DType, ...]]]
"""(op, arguments, their dtypes): ``k >= 0`` is the node's input k, ``-1 - j`` the result of op
j."""


Stage = tuple[Any, tuple[int, ...], tuple[str, ...]]
"""An op as JSON, its arguments and their dtypes."""


def root_of(node: Node) -> tuple[Op, int]:
    """The op that a node computes before its epilogue, and how many inputs are its own."""
    if isinstance(node.op, Fused):
        return node.op.root, node.op.root_inputs
    return node.op, len(node.inputs)


def op_as_json(op: Op) -> Json:
    """The op as a spec holds it: its name, and its attributes by name."""
    fields = {f.name: _plain(getattr(op, f.name)) for f in dataclasses.fields(op)}
    return (op.name, as_json(parameters(**fields)))


def _plain(value: Any) -> Json:
    if isinstance(value, DType):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return as_json(value)


def program_of(node: Node) -> Program:
    """The ops of an elementwise node in order, the root first."""
    op = node.op
    if not isinstance(op, Fused):
        arguments = tuple(k if v is not None else ABSENT_INPUT for k, v in enumerate(node.inputs))
        return [(op, arguments, tuple(v.tensor.dtype for v in node.inputs if v is not None))]
    root = [(op.root, tuple(range(op.root_inputs)))]
    return typed_program(node, [*root, *((s.op, s.arguments) for s in op.stages)], [])


def typed_program(
    node: Node, steps: Sequence[tuple[Op, tuple[int, ...]]], kinds: list[DType]
) -> Program:
    """The steps with the types of their arguments; ``kinds`` of results begin before them."""
    program: Program = []
    for op, arguments in steps:
        present: list[DType] = []
        operands: list[Operand | None] = []
        resolved: list[int] = []
        for a in arguments:
            value = node.inputs[a] if a >= 0 else None
            if a >= 0 and value is None:
                operands.append(None)
                resolved.append(ABSENT_INPUT)
                continue
            kind = value.tensor.dtype if value is not None else kinds[-a - 1]
            present.append(kind)
            operands.append(Operand(TensorType(kind, ())))
            resolved.append(a)
        program.append((op, tuple(resolved), tuple(present)))
        (made,) = op.infer(operands)
        kinds.append(made.dtype if isinstance(made, TensorType) else DType.FLOAT32)
    return program
