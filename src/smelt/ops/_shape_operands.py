"""Access to operands, arithmetic of dimensions, and sample data for ops on shapes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from smelt.errors import InternalError, ShapeError, UnboundSymbolError
from smelt.ops._shape import optional_type, require_rank

if TYPE_CHECKING:
    from smelt.ir import Array, Op, Operand
    from smelt.types import Dim, Shape

_Input = TypeVar("_Input")

MAXIMUM_TERMS = 256
"""Maximum number of terms of a dimension, as repeated squaring would exhaust the memory."""

MAXIMUM_DIMS = 4096
"""Maximum length of a vector whose elements are tracked as dimensions."""


def input_at(inputs: Sequence[_Input | None], index: int) -> _Input | None:
    """Return the operand or array at ``index``, or None if it is absent."""
    return inputs[index] if index < len(inputs) else None


def present(inputs: Sequence[Array | None], index: int) -> Array:
    """Return an array that inference has required. Raises InternalError when it is absent."""
    array = input_at(inputs, index)
    if array is None:
        raise InternalError(
            f"the reference implementation of an op was called without input {index}"
        )
    return array


def known_dims(inputs: Sequence[Operand | None], index: int) -> tuple[Dim, ...] | None:
    """Return the elements of an integer input as dimensions, or None if they are unknown."""
    operand = input_at(inputs, index)
    return None if operand is None else operand.dims


def dims_at(
    op: Op, inputs: Sequence[Operand | None], index: int, what: str, *, allows_scalar: bool = False
) -> tuple[Dim, ...] | None:
    """Return the elements of an optional integer vector, or None if it is absent.

    Args:
        op: the op.
        inputs: operands of the op.
        index: position of the input.
        what: name of the vector in messages.
        allows_scalar: whether a tensor of rank 0 is accepted, too.

    Raises ShapeError when the input is not a vector, or its elements are not known.
    """
    operand, kind = input_at(inputs, index), optional_type(op, inputs, index)
    if operand is None or kind is None:
        return None
    named = f"{what} (input {index} of {op.name})"
    require_rank(kind, named, 0 if allows_scalar else 1, 1)
    if operand.dims is None:
        raise ShapeError(
            f"{named} must be known before a run: give a constant, or compute this input from "
            "shapes with ops such as Shape, Add, Mul, Div, Concat, Gather and Slice"
        )
    return operand.dims


def number_at(op: Op, inputs: Sequence[Operand | None], index: int, what: str) -> Dim:
    """Return the only element of an integer input. Raises ShapeError: not one known number."""
    dims = dims_at(op, inputs, index, what, allows_scalar=True) or ()
    if len(dims) != 1:
        raise ShapeError(
            f"{what} (input {index} of {op.name}) has {len(dims)} numbers; it must have one"
        )
    return dims[0]


def ints_at(
    op: Op, inputs: Sequence[Operand | None], index: int, what: str, *, allows_scalar: bool = False
) -> tuple[int, ...] | None:
    """Return `dims_at` as ints. Raises ShapeError when an element is symbolic."""
    dims = dims_at(op, inputs, index, what, allows_scalar=allows_scalar)
    if dims is None:
        return None
    for dim in dims:
        if not isinstance(dim, int):
            raise ShapeError(f"{what} (input {index} of {op.name}) must be constant, not {dim}")
    return tuple(d for d in dims if isinstance(d, int))


def bounded(dim: Dim) -> Dim:
    """Return the dimension itself. Raises ShapeError when it has more than MAXIMUM_TERMS terms."""
    if not isinstance(dim, int) and len(dim.terms) > MAXIMUM_TERMS:
        raise ShapeError(
            f"the formula of an extent has more than {MAXIMUM_TERMS} terms: fix the values of some "
            "symbols in the model"
        )
    return dim


def count_elements(shape: Shape) -> Dim:
    """Return the product of extents. Raises ShapeError when it has too many terms."""
    count: Dim = 1
    for extent in shape:
        count = bounded(count * extent)
    return count


def divide_dims(count: Dim, divisor: Dim) -> Dim | None:
    """Return the exact quotient, or None.

    If symbols decide whether the division is exact, the floored quotient is returned.
    """
    if isinstance(count, int) and isinstance(divisor, int):
        return count // divisor if divisor and count % divisor == 0 else None
    if isinstance(count, int):
        return 0 if count == 0 else None
    try:
        return count // divisor
    except (UnboundSymbolError, ZeroDivisionError):
        return None


def sample(*shape: int, dtype: str = "float32", int_low: int = -9, int_high: int = 10) -> Array:
    """Return pseudo-random data for a case, which depends only on the arguments."""
    seed = zlib.crc32(repr((shape, dtype, int_low, int_high)).encode())
    kind = np.dtype(dtype)
    source = np.random.default_rng(seed)
    if kind == np.bool_:
        return np.asarray(source.integers(0, 2, shape), np.bool_)
    if kind.kind == "u":
        return np.asarray(source.integers(max(int_low, 0), int_high, shape), kind)
    if kind.kind == "i":
        return np.asarray(source.integers(int_low, int_high, shape), kind)
    return np.asarray(source.uniform(int_low, int_high, shape) / 4, kind)
