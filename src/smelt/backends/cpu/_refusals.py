"""Checks of nodes that several families make: each raises NodeRefusedError with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backends._base import NodeRefusedError
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.ir import Value


def check_dtype(what: str, dtype: DType, *supported: DType) -> None:
    """Check that an element type is one of those that a kernel supports."""
    if dtype not in supported:
        *others, last = (d.value for d in supported)
        names = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        raise NodeRefusedError(f"{what} is {dtype.value}; only {names} supported")


def check_float_values(*values: Value | None) -> None:
    """Check that all values are float32 tensors; absent ones are ignored."""
    for value in values:
        if value is not None:
            check_dtype(repr(value.name), value.tensor.dtype, DType.FLOAT32)


def check_indices(indices: Value) -> None:
    """Check that indices are int32 or int64."""
    check_dtype("the tensor of indices", indices.tensor.dtype, DType.INT32, DType.INT64)
