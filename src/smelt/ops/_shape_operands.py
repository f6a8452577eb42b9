"""What ops that compute with shapes share: operands, arithmetic of dimensions, sample data."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import InternalError, ShapeError, UnboundSymbolError
from smelt.ops._shape import optional_type, require_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Array, Op, Operand
    from smelt.types import Dim, Shape

MAXIMUM_TERMS = 256
"""A dimension with more terms is refused: repeated squaring would fill the memory."""

MAXIMUM_DIMS = 4096
"""A vector with more elements is not followed as dimensions."""


def given(inputs: Sequence[Operand | None], index: int) -> Operand | None:
    """The operand at ``index``, None when it is absent or not named at all."""
    return inputs[index] if index < len(inputs) else None


def present(inputs: Sequence[Array | None], index: int) -> Array:
    """An array that inference has made sure of. Raises InternalError when it is absent."""
    array = optional_array(inputs, index)
    if array is None:
        raise InternalError(f"the reference of an op was called without input {index}")
    return array


def optional_array(inputs: Sequence[Array | None], index: int) -> Array | None:
    """The array at ``index``, None when it is absent or not named at all."""
    return inputs[index] if index < len(inputs) else None


def known_dims(inputs: Sequence[Operand | None], index: int) -> tuple[Dim, ...] | None:
    """Elements of an integer input as far as they are known."""
    operand = given(inputs, index)
    return None if operand is None else operand.dims


def dims_at(
    op: Op, inputs: Sequence[Operand | None], index: int, what: str, *, scalar: bool = False
) -> tuple[Dim, ...] | None:
    """Elements of an optional integer vector, None when it is absent.

    Args:
        op: whose input it is.
        inputs: the op's.
        index: the input's.
        what: the vector's name in messages.
        scalar: whether a single number without an axis will do, too.

    Raises ShapeError: when it is not a vector, or its elements are not known.
    """
    operand, kind = given(inputs, index), optional_type(op, inputs, index)
    if operand is None or kind is None:
        return None
    named = f"{what} (input {index} of {op.name})"
    require_rank(kind, named, 0 if scalar else 1, 1)
    if operand.dims is None:
        raise ShapeError(
            f"{named} must be known before a run: it must be constant, or computed from shapes by "
            "ops such as Shape, Add, Mul, Div, Concat, Gather and Slice"
        )
    return operand.dims


def number_at(op: Op, inputs: Sequence[Operand | None], index: int, what: str) -> Dim:
    """The only element of an integer input. Raises ShapeError: it is not one number, or unknown."""
    dims = dims_at(op, inputs, index, what, scalar=True) or ()
    if len(dims) != 1:
        raise ShapeError(f"{what} (input {index} of {op.name}) must be one number")
    return dims[0]


def ints_at(
    op: Op, inputs: Sequence[Operand | None], index: int, what: str, *, scalar: bool = False
) -> tuple[int, ...] | None:
    """As ``dims_at``, but the elements must be plain numbers. Raises ShapeError."""
    dims = dims_at(op, inputs, index, what, scalar=scalar)
    if dims is None:
        return None
    for dim in dims:
        if not isinstance(dim, int):
            raise ShapeError(f"{what} (input {index} of {op.name}) must be constant, not {dim}")
    return tuple(d for d in dims if isinstance(d, int))


def bounded(dim: Dim) -> Dim:
    """The dim itself. Raises ShapeError when it is too large a polynomial to compute with."""
    if not isinstance(dim, int) and len(dim.terms) > MAXIMUM_TERMS:
        raise ShapeError(f"a dimension has more than {MAXIMUM_TERMS} terms: fix some symbols")
    return dim


def count_elements(shape: Shape) -> Dim:
    """Product of extents. Raises ShapeError when it is too large a polynomial."""
    count: Dim = 1
    for extent in shape:
        count = bounded(count * extent)
    return count


def divide_dims(count: Dim, divisor: Dim) -> Dim | None:
    """The exact quotient, floored where symbols decide whether it is; None for no quotient."""
    if isinstance(count, int) and isinstance(divisor, int):
        return count // divisor if divisor and count % divisor == 0 else None
    if isinstance(count, int):
        return 0 if count == 0 else None
    try:
        return count // divisor
    except (UnboundSymbolError, ZeroDivisionError):
        return None


def sample(*shape: int, dtype: str = "float32", low: int = -9, high: int = 10) -> Array:
    """Fixed, well spread data for the cases of ops: the same everywhere."""
    seed = zlib.crc32(repr((shape, dtype, low, high)).encode())
    kind = np.dtype(dtype)
    source = np.random.default_rng(seed)
    if kind == np.bool_:
        return np.asarray(source.integers(0, 2, shape), np.bool_)
    if kind.kind == "u":
        return np.asarray(source.integers(max(low, 0), high, shape), kind)
    if kind.kind == "i":
        return np.asarray(source.integers(low, high, shape), kind)
    return np.asarray(source.uniform(low, high, shape) / 4, kind)
