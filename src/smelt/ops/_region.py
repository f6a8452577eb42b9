"""Regions: graphs inside If and Loop, inferred from and run on what the node passes in.

A region reads only its own inputs and constants: what the surrounding graph computes reaches it as
captures, inputs of the node after the op's own and inputs of the region in the same order.
Inferring the node infers the region again with what is known of those inputs, so a region's types
always follow the node's; a region belongs to one node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import InternalError, ShapeError
from smelt.ir import Operand, check_array, check_guards, clone, evaluate
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.ir import Array, Graph, Value
    from smelt.types import ValueType


def infer_region(op_name: str, region: Graph, operands: Sequence[Operand | None]) -> list[Operand]:
    """What is known of a region's results, given its inputs. Raises ShapeError."""
    if len(operands) != len(region.inputs):
        raise ShapeError(
            f"{op_name} passes {len(operands)} values to {region.name}, "
            f"which has {len(region.inputs)} inputs"
        )
    for value, operand in zip(region.inputs, operands, strict=True):
        if operand is None:
            raise ShapeError(f"{op_name} passes nothing for input {value.name} of {region.name}")
        value.type, value.dims = operand.type, operand.dims
    region.infer()
    return [value.operand for value in region.outputs]


def types_for_arrays(region: Graph, arrays: Sequence[Array | None]) -> list[ValueType]:
    """Types of a region's results on arrays, without running it or changing its own types.

    A copy is inferred: inference changes the types of the regions inside, and a reference leaves
    its op as it was. Elements are known only where they were when the region's own types were
    inferred: a region that nobody runs cannot fail on others.
    """
    copy = clone(region)
    for value, array in zip(copy.inputs, arrays, strict=True):
        if array is not None:
            known = Operand.constant(array)
            value.type = known.type
            value.dims = None if value.dims is None else known.dims
    copy.infer()
    return [value.type for value in copy.outputs]


def run_region(
    region: Graph, arrays: Sequence[Array | None], most: Mapping[str, int]
) -> list[Array]:
    """The region's results, node by node on the references, with symbols of at most ``most``.

    Raises ShapeError: an array has another shape than was inferred, or a guard does not hold.
    """
    made: dict[Value, Array] = {}
    symbols: dict[str, int] = {}
    for value, array in zip(region.inputs, arrays, strict=True):
        if array is not None:
            check_array(value, array, symbols, region.name)
            made[value] = array
    for node in region.nodes:
        inputs = [None if v is None else _read(v, made) for v in node.inputs]
        check_guards(node.guards, symbols)
        results = evaluate(node.op, inputs, str(node), most)
        for value, array in zip(node.outputs, results, strict=True):
            check_array(value, array, symbols, str(node))
            made[value] = array
    return [_read(value, made) for value in region.outputs]


def _read(value: Value, made: dict[Value, Array]) -> Array:
    if value in made:
        return made[value]
    if value.constant is None:
        raise InternalError(f"a region reads {value.name} before it is computed")
    return value.constant.array


def require_condition(operand: Operand | None, what: str) -> bool | None:
    """Check that a condition is one bool; its value where it is known. Raises ShapeError."""
    kind = None if operand is None else operand.type
    if not isinstance(kind, TensorType) or kind.dtype is not DType.BOOL:
        raise ShapeError(f"the condition of {what} must be a bool tensor, not {kind}")
    if any(d != 1 for d in kind.shape):
        raise ShapeError(f"the condition of {what} must be one element, not {kind}")
    known = operand.value if operand is not None else None
    return None if known is None else bool(known.reshape(-1)[0])


def truth(array: Array) -> bool:
    """The one element of a condition."""
    return bool(np.asarray(array).reshape(-1)[0])
