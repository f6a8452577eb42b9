"""What a root's epilogue reads on a GPU, and with which strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends._fused_programs import op_as_json, operand_format, root_of
from smelt.backends._iteration_space import broadcast_strides
from smelt.backends.cuda._elementwise import why_not_written
from smelt.errors import InternalError
from smelt.ops import Fused
from smelt.types import DType, Layout, TensorFormat

if TYPE_CHECKING:
    from smelt.backends._base import Operands
    from smelt.engine import Json, View
    from smelt.ir import Node, Value
    from smelt.types import Dim

FLOATS: Final = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The program behind a root, as a spec holds it, and how its operands are stored."""

    stages: Json
    """(op, arguments, dtypes): ``k >= 0`` is extra operand k, -1 the root's result."""
    formats: tuple[TensorFormat | None, ...]


def plan_epilogue(node: Node, layout: Layout, first_extra: int = 0) -> Epilogue | str:
    """The epilogue of a floating-point node, or why it cannot be generated.

    Args:
        node: fused or not.
        layout: of the result; extra operands of its rank are stored so, too.
        first_extra: number of extra operands before the epilogue's own (a bias).
    """
    root, count = root_of(node)
    if not isinstance(node.op, Fused):
        return Epilogue((), ())
    shape = node.output.tensor.shape
    formats: list[TensorFormat | None] = []
    for value in node.inputs[count:]:
        if value is not None and (reason := _unsupported_reason(value, shape)):
            return reason
        formats.append(None if value is None else operand_format(value, layout, len(shape)))
    positions = _positions(node)
    stages: list[Json] = []
    for stage in node.op.stages:
        kinds = [DType.FLOAT32] * len(stage.arguments)
        if reason := why_not_written(stage.op, kinds):
            return reason
        if any(0 <= a < count for a in stage.arguments):
            return f"{stage.op.name} of the epilogue reads an input of {root.name}"
        moved = tuple(positions[a] + first_extra if a >= 0 else a for a in stage.arguments)
        stages.append((op_as_json(stage.op), moved, tuple(k.value for k in kinds)))
    return Epilogue(tuple(stages), tuple(formats))


def planned_epilogue(node: Node, layout: Layout, first_extra: int = 0) -> Epilogue:
    """The epilogue of a node that has tactics."""
    epilogue = plan_epilogue(node, layout, first_extra)
    if isinstance(epilogue, str):
        raise InternalError(f"{node} has tactics, but {epilogue}")
    return epilogue


def _positions(node: Node) -> dict[int, int]:
    """Number of each extra input among those that are there."""
    count = root_of(node)[1]
    present = [k for k in range(count, len(node.inputs)) if node.inputs[k] is not None]
    return {k: number for number, k in enumerate(present)}


def _unsupported_reason(value: Value, shape: tuple[Dim, ...]) -> str | None:
    if value.tensor.dtype not in FLOATS:
        return f"the epilogue reads {value.name}, which is {value.tensor.dtype.value}"
    tail = shape[len(shape) - value.tensor.rank :]
    for extent, whole in zip(value.tensor.shape, tail, strict=True):
        if extent not in (1, whole):
            return (
                f"the epilogue's operand {value.name} of {value.tensor} does not broadcast to the "
                "result"
            )
    return None


def extra_views(node: Node, operands: Operands) -> list[tuple[View, tuple[Dim, ...]]]:
    """Each extra operand's memory, and its strides along the result's axes; 0 where it repeats."""
    count = root_of(node)[1]
    shape = node.output.tensor.shape
    views = [view for view in operands.inputs[count:] if view is not None]
    return [(view, broadcast_strides(view, shape)) for view in views]
