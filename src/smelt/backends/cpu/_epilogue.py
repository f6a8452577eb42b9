"""Epilogues: the elementwise program that a kernel runs on its root's result before the store.

`plan_epilogue` translates the stages of a `Fused` op into data for a kernel's spec. Element types
may change within the program: integer sums become floating point, and bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.backends._base import NodeRefusedError, refuse_if
from smelt.backends._fused_programs import ABSENT_INPUT, Stage, op_as_json, root_of, typed_program
from smelt.backends.cpu._elementwise import ABSENT, emit_op, unsupported_op_reason
from smelt.backends.cpu._refusals import check_dtype
from smelt.engine import Json, as_json, parameters
from smelt.ops import Fused
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Emitter, Reg
    from smelt.ir import Node

_BYTES: Final = frozenset({DType.INT8, DType.UINT8})
"""8-bit integer types."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """An elementwise program on a root's result, as a kernel's spec holds it."""

    stages: tuple[Stage, ...] = ()
    """Each stage as (op, arguments, element types of the arguments). Argument ``k >= 0`` is
    extra operand k, -1 is the root's result, and -1 - j is the result of stage j (counted
    from 1)."""
    extras: int = 0
    """Number of extra operands."""

    def as_json(self) -> Json:
        """Return the epilogue as a JSON value for a kernel spec."""
        return (self.stages, self.extras)

    @staticmethod
    def from_json(value: Json) -> Epilogue:
        """Return the epilogue that `as_json` wrote, also after a round trip through JSON."""
        stages, extras = cast("tuple[Any, int]", as_json(value))
        return Epilogue(stages, extras)

    def after(self, op: str, extra: int, **attributes: Json) -> Epilogue:
        """Return the program with one more stage before all others.

        The new stage is a binary ``op`` of the root's result and extra operand ``extra``.
        """
        stages = tuple(
            (stage, tuple(a if a >= 0 else a - 1 for a in arguments), dtypes)
            for stage, arguments, dtypes in self.stages
        )
        first = ((op, parameters(**attributes)), (-1, extra), (DType.FLOAT32.value,) * 2)
        return Epilogue((first, *stages), max(self.extras, extra + 1))

    def emit(self, e: Emitter, root: Reg, read: Callable[[int], Reg]) -> Reg:
        """Emit the stages on one register; ``read(k)`` loads extra operand k at its position."""
        return emit_stages(e, self.stages, [root], read)


def emit_stages(
    e: Emitter, stages: Sequence[Stage], values: Sequence[Reg], read: Callable[[int], Reg]
) -> Reg:
    """Emit the stages of an elementwise program, and return the last result.

    A negative argument refers to ``values`` and the results of the stages; any other is read.
    """
    results = [*values]
    for op, arguments, dtypes in stages:
        args = [
            ABSENT if a == ABSENT_INPUT else read(a) if a >= 0 else results[-a - 1]
            for a in arguments
        ]
        results.append(emit_op(e, op, args, [DType(d) for d in dtypes]))
    return results[-1]


def computes_on_int8(node: Node) -> bool:
    """Return whether a node computes on 8-bit integers, so its epilogue may start from them."""
    x = node.inputs[0] if node.inputs else None
    return x is not None and x.tensor.dtype in _BYTES


def plan_epilogue(node: Node) -> Epilogue:
    """Return the epilogue of a node.

    All values of an epilogue are float32, except after roots that compute on 8-bit integers.

    Raises:
        NodeRefusedError: the epilogue is not supported.
    """
    if not isinstance(node.op, Fused):
        return Epilogue()
    first = node.op.root_inputs
    if not computes_on_int8(node):
        for value in node.inputs[first:]:
            if value is not None:
                what = f"the epilogue's operand {value.name!r}"
                check_dtype(what, value.tensor.dtype, DType.FLOAT32)
    stages: list[Stage] = []
    present = [k for k in range(first, len(node.inputs)) if node.inputs[k] is not None]
    positions = {k: position for position, k in enumerate(present)}
    steps = [(stage.op, stage.arguments) for stage in node.op.stages]
    for op, arguments, dtypes in typed_program(node, steps, [_root_dtype(node, first)]):
        refuse_if(unsupported_op_reason(op, dtypes))
        if any(0 <= a < first for a in arguments):
            raise NodeRefusedError(
                f"the epilogue op {op.name} reads an input of {root_of(node)[0].name} directly"
            )
        moved = tuple(positions.get(a, a) for a in arguments)
        stages.append((op_as_json(op), moved, tuple(d.value for d in dtypes)))
    _fold_fake_quantization(stages)
    return Epilogue(tuple(stages), len(present))


def _fold_fake_quantization(stages: list[Stage]) -> None:
    """Replace adjacent quantisation and dequantisation by arithmetic in float32.

    Both must have the same zero point, and the quantised value no other reader. The first stage
    then gives whole steps from the zero point, and the second multiplies them by the scale.
    """
    for position in range(len(stages) - 1):
        (op, arguments, dtypes), (after, again, kinds) = stages[position : position + 2]
        result = -2 - position
        readers = [k for k, (_, read, _) in enumerate(stages) if result in read]
        if (op[0], after[0], readers) != ("quantize_linear", "dequantize_linear", [position + 1]):
            continue
        x, scale, zero = (*arguments, ABSENT_INPUT)[:3]
        if again[0] != result or (*again, ABSENT_INPUT)[2] != zero:
            continue
        stages[position] = (("quantize_steps", op[1]), (x, scale, zero), dtypes)
        stages[position + 1] = (("mul", ()), (result, again[1]), (DType.FLOAT32.value, kinds[1]))


def _root_dtype(node: Node, count: int) -> DType:
    """Return the element type of the root's result; floating point is computed in float32."""
    root, _ = root_of(node)
    (result,) = root.infer([None if v is None else v.operand for v in node.inputs[:count]])
    dtype = result.dtype if isinstance(result, TensorType) else DType.FLOAT32
    return DType.FLOAT32 if dtype.is_float else dtype
