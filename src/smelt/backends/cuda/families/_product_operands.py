"""Operands of products: formats, element types and packed weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from smelt.backends._node_operands import required_input
from smelt.backends.cuda._cost_model import count_of
from smelt.backends.cuda._implicit_gemm import TF32
from smelt.backends.cuda._index_limits import MAX_INT32_ELEMENTS
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Cast, Pad, Reshape, RoundMantissa, Transpose
from smelt.types import DType, Layout, TensorFormat, fixed_extent

if TYPE_CHECKING:
    from smelt.backends._base import Tactic
    from smelt.ir import Node, Value


def format_of_factor(value: Value) -> TensorFormat:
    """Return the format in which a product reads an operand, with any strides if it is transposed.

    A large transposed operand is copied: offsets along any axis might exceed 32 bits.
    """
    producer = value.producer
    is_transposed = (
        producer is not None and isinstance(producer.op, Transpose) and value.constant is None
    )
    fits_int32 = count_of(value) <= MAX_INT32_ELEMENTS
    layout = Layout.STRIDED if is_transposed and fits_int32 else Layout.LINEAR
    return TensorFormat(value.tensor.dtype, layout)


def weights_of(node: Node, index: int = 1) -> Constant:
    """Return the constant input of a node that has tactics only if the input is constant."""
    weights = required_input(node, index).constant
    if weights is None:
        raise InternalError(f"the weights of {node} are not constant, but its tactics require that")
    return weights


def variable_weights_reason(weights: Value) -> str | None:
    """Return why kernels that pack their weights cannot use an input, or None."""
    is_constant = weights.constant is not None
    return None if is_constant else f"the weights {weights.name!r} are not constant"


def reshaped(source: Constant, name: str, *shape: int) -> Constant:
    """Return a constant in another shape."""
    extents = Constant(f"{name}.shape", np.array(shape, np.int64))
    return Constant.derive(name, Reshape(), source, extents)


def padded(source: Constant, name: str, axis: int, count: int) -> Constant:
    """Return a constant with so many zeros at the end of an axis."""
    if not count:
        return source
    amounts = np.zeros((2, source.type.rank), np.int64)
    amounts[1, axis] = count
    return Constant.derive(name, Pad(), source, Constant(f"{name}.amounts", amounts.reshape(-1)))


def end_in_whole(source: Constant, name: str, unit: int) -> Constant:
    """Return a constant whose last axis is padded with zeros to a multiple of a unit."""
    return padded(source, name, -1, -fixed_extent(source.type.shape[-1]) % unit)


def taps_first(weights: Constant) -> Constant:
    """Return filters with their channels last: (filters, taps..., channels)."""
    order = (0, *range(2, weights.type.rank), 1)
    return Constant.derive(f"{weights.name}.taps_first", Transpose(order), weights)


def taps_in_rows(weights: Constant) -> Constant:
    """Return filters as rows: (filters, channels, taps...) to (filters, taps x channels)."""
    filters = fixed_extent(weights.type.shape[0])
    return reshaped(taps_first(weights), f"{weights.name}.taps", filters, -1)


def columns_first(weights: Constant, *, is_transposed: bool) -> Constant:
    """Return a second operand with the elements of each column contiguous."""
    rank = weights.type.rank
    if rank == 1 or is_transposed:
        return weights
    order = (*range(rank - 2), rank - 1, rank - 2)
    return Constant.derive(f"{weights.name}.columns_first", Transpose(order), weights)


def wide_operand_reason(dtype: DType) -> str | None:
    """Return why kernels for 16-bit operands cannot multiply a type, or None."""
    is_wide = dtype.size_bytes != DType.FLOAT16.size_bytes
    return f"the operands are {dtype.value}; only 16-bit types are supported" if is_wide else None


def factor_type(tactic: Tactic) -> DType:
    """Return the element type in which a tactic's operands are stored."""
    return cast("TensorFormat", tactic.input_formats[0]).dtype


def as_factor(weights: Constant, dtype: DType, tactic: Tactic) -> Constant:
    """Return packed weights in the element type and precision that the tactic multiplies in."""
    if dtype is not weights.type.dtype:
        weights = Constant.derive(f"{weights.name}.{dtype.value}", Cast(dtype), weights)
    if dtype is DType.FLOAT32 and tactic.options.get("input_precision") == TF32:
        weights = Constant.derive(f"{weights.name}.{TF32}", RoundMantissa(), weights)
    return weights
