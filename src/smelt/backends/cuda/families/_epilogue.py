"""Epilogues of GPU kernels: their programs and the strides of their operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends._base import NodeRefusedError, refuse_if
from smelt.backends._fused_programs import op_as_json, operand_format, root_of
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends.cuda._elementwise import unsupported_op_reason
from smelt.ops import Fused
from smelt.types import DType, Layout, TensorFormat

if TYPE_CHECKING:
    from smelt.backends._base import Operands
    from smelt.engine import Json, View
    from smelt.ir import Node, Value
    from smelt.types import Dim

FLOATS: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
"""Types that epilogues are computed for."""
FLOAT_NAMES: Final = "float32, float16 and bfloat16"
"""The same types, as messages list them."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Program after a root, as a spec holds it, and the formats of its operands."""

    stages: Json
    """(op, arguments, dtypes): argument ``k >= 0`` is epilogue operand k, -1 the root's result."""
    formats: tuple[TensorFormat | None, ...]


def plan_epilogue(node: Node, layout: Layout, first_extra: int = 0) -> Epilogue:
    """Return the epilogue of a floating-point node.

    Args:
        node: node with or without an epilogue.
        layout: layout of the result, also of operands of the result's rank.
        first_extra: number of epilogue operands before the program's own (such as a bias).

    Raises:
        NodeRefusedError: the epilogue cannot be generated.
    """
    root, count = root_of(node)
    if not isinstance(node.op, Fused):
        return Epilogue((), ())
    shape = node.output.tensor.shape
    formats: list[TensorFormat | None] = []
    for value in node.inputs[count:]:
        if value is not None:
            _check_operand(value, shape)
        formats.append(None if value is None else operand_format(value, layout, len(shape)))
    present = [k for k in range(count, len(node.inputs)) if node.inputs[k] is not None]
    positions = {k: first_extra + number for number, k in enumerate(present)}
    stages: list[Json] = []
    for stage in node.op.stages:
        kinds = [DType.FLOAT32] * len(stage.arguments)
        refuse_if(unsupported_op_reason(stage.op, kinds))
        if any(0 <= a < count for a in stage.arguments):
            raise NodeRefusedError(
                f"the epilogue op {stage.op.name} reads an input of {root.name} directly"
            )
        arguments = tuple(positions[a] if a >= 0 else a for a in stage.arguments)
        stages.append((op_as_json(stage.op), arguments, tuple(k.value for k in kinds)))
    return Epilogue(tuple(stages), tuple(formats))


def _check_operand(value: Value, shape: tuple[Dim, ...]) -> None:
    """Raise NodeRefusedError if an epilogue cannot read a value."""
    if value.tensor.dtype not in FLOATS:
        raise NodeRefusedError(
            f"the epilogue reads {value.name!r}, which is {value.tensor.dtype.value}; only "
            f"{FLOAT_NAMES} are supported"
        )
    tail = shape[len(shape) - value.tensor.rank :]
    for extent, result_extent in zip(value.tensor.shape, tail, strict=True):
        if extent not in (1, result_extent):
            raise NodeRefusedError(
                f"the epilogue's operand {value.name!r} ({value.tensor}) does not broadcast to the "
                "result"
            )


def extra_views(node: Node, operands: Operands) -> list[tuple[View, tuple[Dim, ...]]]:
    """Return each epilogue operand's view and strides along the result's axes; 0 if broadcast."""
    count = root_of(node)[1]
    shape = node.output.tensor.shape
    views = [view for view in operands.inputs[count:] if view is not None]
    return [(view, broadcast_strides(view, shape)) for view in views]
