"""Inference and evaluation of regions, the graphs inside If and Loop.

A region reads only its own inputs and constants. Values of the surrounding graph are passed to it
as captures: inputs of the node after those of the op, and inputs of the region in the same order.
Inferring a node also infers its regions from the operands of these inputs, so the types of a region
always agree with those of its node. A region belongs to one node.
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
    """Infer a region for operands and return those of its results. Raises ShapeError."""
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
    """Return the types of a region's results for arrays, without running or changing the region.

    A copy is inferred, because inference changes the types of a region and a reference must not
    change its op. Elements of inputs are known only if they were known in the last inference of the
    region, so that a region that is never run cannot fail because of other elements.
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
    """Run a region node by node on references; ``most`` has upper bounds of runtime symbols.

    Raises ShapeError when an array differs from its inferred type or a guard does not hold.
    """
    arrays_of_values: dict[Value, Array] = {}
    symbols: dict[str, int] = {}
    for value, array in zip(region.inputs, arrays, strict=True):
        if array is not None:
            check_array(value, array, symbols, region.name)
            arrays_of_values[value] = array
    for node in region.nodes:
        inputs = [None if v is None else _read(v, arrays_of_values) for v in node.inputs]
        check_guards(node.guards, symbols)
        results = evaluate(node.op, inputs, str(node), most)
        for value, array in zip(node.outputs, results, strict=True):
            check_array(value, array, symbols, str(node))
            arrays_of_values[value] = array
    return [_read(value, arrays_of_values) for value in region.outputs]


def _read(value: Value, arrays_of_values: dict[Value, Array]) -> Array:
    if value in arrays_of_values:
        return arrays_of_values[value]
    if value.constant is None:
        raise InternalError(f"a region reads {value.name} before it is computed")
    return value.constant.array


def require_condition(operand: Operand | None, what: str) -> bool | None:
    """Check that a condition is one bool; return its value or None. Raises ShapeError."""
    kind = None if operand is None else operand.type
    if not isinstance(kind, TensorType) or kind.dtype is not DType.BOOL:
        raise ShapeError(f"the condition of {what} must be a bool tensor, not {kind}")
    if any(d != 1 for d in kind.shape):
        raise ShapeError(f"the condition of {what} must be one element, not {kind}")
    known = operand.value if operand is not None else None
    return None if known is None else bool(known.reshape(-1)[0])


def truth(array: Array) -> bool:
    """Return the element of a condition as a bool."""
    return bool(np.asarray(array).reshape(-1)[0])
