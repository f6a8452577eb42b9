"""Programs of fused nodes: their ops as data, in order, for the generators of every backend."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

from smelt.backends._base import Tactic, refuse_if
from smelt.engine import Json, as_json, parameters
from smelt.errors import InternalError
from smelt.ir import Op, Operand
from smelt.ops import Fused
from smelt.types import DType, Layout, TensorFormat, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.ir import Node, Value
    from smelt.types import Dim

    UnsupportedReason = Callable[[Op, Sequence[DType]], str | None]
    """Returns why a family cannot generate an op with arguments of these types, or None."""

ABSENT_INPUT: Final = 1 << 20
"""Argument number that stands for an optional input that is absent."""

Program = list[tuple["Op", tuple[int, ...], tuple[DType, ...]]]
"""Ops with their arguments and the arguments' dtypes. Argument ``k >= 0`` is the node's input k;
``-1 - j`` is the result of op j."""


_NOT_FINITE: Final = ("nan", "inf", "-inf")
"""Floats that JSON has no numbers for: they are written as text."""

OpT = TypeVar("OpT", bound=Op)

Stage = tuple[Any, tuple[int, ...], tuple[str, ...]]
"""An op as JSON, its arguments and their dtypes."""


def root_of(node: Node) -> tuple[Op, int]:
    """Return the op that a node computes before its epilogue, and the number of the op's inputs."""
    if isinstance(node.op, Fused):
        return node.op.root, node.op.root_inputs
    return node.op, len(node.inputs)


def root_as(kind: type[OpT], node: Node) -> OpT:
    """Return the root of a node, which must be a ``kind``. Raises InternalError otherwise."""
    return _checked(kind, root_of(node)[0], node)


def op_as(kind: type[OpT], node: Node) -> OpT:
    """Return the op of a node, which must be a ``kind``. Raises InternalError otherwise."""
    return _checked(kind, node.op, node)


def _checked(kind: type[OpT], op: Op, node: Node) -> OpT:
    if isinstance(op, kind):
        return op
    raise InternalError(f"{node} computes {op.name}, expected {kind.name}")


def op_as_json(op: Op) -> Json:
    """Return the op as a spec holds it: its name, and its attributes by name."""
    fields = {f.name: _plain(getattr(op, f.name)) for f in dataclasses.fields(op)}
    return (op.name, as_json(parameters(**fields)))


def attributes_in(attributes: Sequence[tuple[str, Json]]) -> dict[str, Any]:
    """Return the attributes that `op_as_json` wrote."""
    return {name: float(v) if v in _NOT_FINITE else v for name, v in attributes}


def _plain(value: Any) -> Json:
    """Return a value of an attribute as JSON."""
    if isinstance(value, DType):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return as_json(value)


def program_of(node: Node) -> Program:
    """Return the ops of an elementwise node in order, the root first."""
    op = node.op
    if not isinstance(op, Fused):
        arguments = tuple(k if v is not None else ABSENT_INPUT for k, v in enumerate(node.inputs))
        return [(op, arguments, tuple(v.tensor.dtype for v in node.inputs if v is not None))]
    root = [(op.root, tuple(range(op.root_inputs)))]
    return typed_program(node, [*root, *((s.op, s.arguments) for s in op.stages)], [])


def typed_program(
    node: Node, steps: Sequence[tuple[Op, tuple[int, ...]]], kinds: list[DType]
) -> Program:
    """Return the steps with their arguments' types, and append each result's type to ``kinds``."""
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
        (result_type,) = op.infer(operands)
        kinds.append(result_type.dtype if isinstance(result_type, TensorType) else DType.FLOAT32)
    return program


def stages_of(node: Node) -> tuple[Stage, ...]:
    """Return the program of an elementwise node as a spec holds it, without absent inputs."""
    present = [k for k, value in enumerate(node.inputs) if value is not None]
    positions = {k: position for position, k in enumerate(present)}
    return tuple(
        (
            op_as_json(op),
            tuple(positions.get(a, a) for a in arguments),
            tuple(d.value for d in dtypes),
        )
        for op, arguments, dtypes in program_of(node)
    )


def layouts_of(rank: int) -> tuple[Layout, ...]:
    """Return the layouts a tensor may have, the more likely first: channels last from rank 3 on."""
    return (Layout.CHANNELS_LAST, Layout.LINEAR) if rank >= 3 else (Layout.LINEAR,)


def operand_format(value: Value, layout: Layout, rank: int) -> TensorFormat:
    """Return the format of an operand that is broadcast to a result of this rank and layout.

    An operand of smaller rank, such as a bias, is linear.
    """
    own = layout if value.tensor.rank == rank else Layout.LINEAR
    return TensorFormat(value.tensor.dtype, own)


def elementwise_tactics(
    family: str,
    node: Node,
    unsupported_reason: UnsupportedReason,
    seconds_of: Callable[[Node], float],
) -> Iterator[Tactic]:
    """Yield the tactics of an elementwise family, one for each layout of the result.

    Args:
        family: name of the family.
        node: node of any op; a node that is not elementwise yields nothing.
        unsupported_reason: returns why the family cannot generate an op, or None.
        seconds_of: estimates the time of a node in seconds.

    Raises:
        NodeRefusedError: the family cannot generate the node.
    """
    if not node.op.elementwise:
        return
    refuse_if(unsupported_elementwise_reason(node, unsupported_reason))
    result_type = node.output.tensor
    seconds = seconds_of(node)
    for layout in layouts_of(result_type.rank):
        inputs = tuple(
            None if v is None else operand_format(v, layout, result_type.rank) for v in node.inputs
        )
        output = TensorFormat(result_type.dtype, layout)
        yield Tactic(family, (), inputs, (output,), estimated_seconds=seconds)


def unsupported_elementwise_reason(node: Node, unsupported_reason: UnsupportedReason) -> str | None:
    """Return why a node cannot be generated as an elementwise program, or None."""
    shape = node.output.tensor.shape
    for value in node.inputs:
        if value is not None and not _broadcasts(value.tensor.shape, shape):
            return (
                f"it is unknown at build time whether {value.name!r} ({value.tensor}) "
                f"broadcasts to {list(shape)}"
            )
    return next(
        (r for op, _, dtypes in program_of(node) if (r := unsupported_reason(op, dtypes))), None
    )


def _broadcasts(shape: tuple[Dim, ...], target: tuple[Dim, ...]) -> bool:
    """Return whether a shape is known to broadcast to another of at least its rank."""
    tail = target[len(target) - len(shape) :]
    return all(
        extent in (1, target_extent) for extent, target_extent in zip(shape, tail, strict=True)
    )
