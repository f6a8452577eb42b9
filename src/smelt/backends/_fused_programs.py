"""What fused nodes compute, as every backend's generators want it: ops as data, in order."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, TypeVar

from smelt.backends._base import Refusal, Tactic
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
    """Says why an op of arguments of these types is not written, or None."""

ABSENT_INPUT: Final = 1 << 20
"""Stands for an optional input that is not there."""

Program = list[tuple["Op", tuple[int, ...], tuple[DType, ...]]]
"""(op, arguments, their dtypes): ``k >= 0`` is the node's input k, ``-1 - j`` the result of op
j."""


_NOT_FINITE: Final = ("nan", "inf", "-inf")
"""Floats for which JSON has no numbers: they are written as text."""

OpT = TypeVar("OpT", bound=Op)

Stage = tuple[Any, tuple[int, ...], tuple[str, ...]]
"""An op as JSON, its arguments and their dtypes."""


def root_of(node: Node) -> tuple[Op, int]:
    """The op that a node computes before its epilogue, and how many inputs are its own."""
    if isinstance(node.op, Fused):
        return node.op.root, node.op.root_inputs
    return node.op, len(node.inputs)


def root_as(kind: type[OpT], node: Node) -> OpT:
    """The root of a node that the caller knows to be of a kind. Raises InternalError: it is not."""
    return _checked(kind, root_of(node)[0], node)


def op_as(kind: type[OpT], node: Node) -> OpT:
    """The op of a node that the caller knows to be of a kind. Raises InternalError: it is not."""
    return _checked(kind, node.op, node)


def _checked(kind: type[OpT], op: Op, node: Node) -> OpT:
    if isinstance(op, kind):
        return op
    raise InternalError(f"{node} computes {op.name}, expected {kind.name}")


def op_as_json(op: Op) -> Json:
    """The op as a spec holds it: its name, and its attributes by name."""
    fields = {f.name: _plain(getattr(op, f.name)) for f in dataclasses.fields(op)}
    return (op.name, as_json(parameters(**fields)))


def attributes_in(attributes: Sequence[tuple[str, Json]]) -> dict[str, Any]:
    """The attributes that `op_as_json` wrote."""
    return {name: float(v) if v in _NOT_FINITE else v for name, v in attributes}


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


def stages_of(node: Node) -> tuple[Stage, ...]:
    """The program of an elementwise node as a spec holds it, inputs counted without absent ones."""
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
    """How a tensor may lie, the likelier first: images with their channels last."""
    return (Layout.CHANNELS_LAST, Layout.LINEAR) if rank >= 3 else (Layout.LINEAR,)


def operand_format(value: Value, layout: Layout, rank: int) -> TensorFormat:
    """How an operand is stored beside a result of this rank and layout.

    With fewer axes, as a bias has, it lies in its own order.
    """
    own = layout if value.tensor.rank == rank else Layout.LINEAR
    return TensorFormat(value.tensor.dtype, own)


def elementwise_tactics(
    family: str,
    node: Node,
    unsupported_reason: UnsupportedReason,
    seconds_of: Callable[[Node], float],
) -> Iterator[Tactic | Refusal]:
    """Yield the tactics of a family that runs a program over its result, in every layout.

    Args:
        family: its name.
        node: any; one that is not elementwise has none.
        unsupported_reason: why the family cannot write one op.
        seconds_of: estimates what a node takes.
    """
    if not node.op.elementwise:
        return
    if reason := unsupported_elementwise_reason(node, unsupported_reason):
        yield Refusal(family, reason)
        return
    kind = node.output.tensor
    seconds = seconds_of(node)
    for layout in layouts_of(kind.rank):
        inputs = tuple(
            None if v is None else operand_format(v, layout, kind.rank) for v in node.inputs
        )
        output = TensorFormat(kind.dtype, layout)
        yield Tactic(family, (), inputs, (output,), cost_hint=seconds)


def unsupported_elementwise_reason(node: Node, unsupported_reason: UnsupportedReason) -> str | None:
    """Why a node is not a program over its result; ``unsupported_reason`` says it of one op."""
    shape = node.output.tensor.shape
    for value in node.inputs:
        if value is not None and not _broadcasts(value.tensor.shape, shape):
            return f"{value.name} {value.tensor} may not broadcast to {shape}"
    return next(
        (r for op, _, dtypes in program_of(node) if (r := unsupported_reason(op, dtypes))), None
    )


def _broadcasts(shape: tuple[Dim, ...], onto: tuple[Dim, ...]) -> bool:
    tail = onto[len(onto) - len(shape) :]
    return all(extent in (1, whole) for extent, whole in zip(shape, tail, strict=True))
