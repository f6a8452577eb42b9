"""Conversion of ``TensorProto`` messages to arrays; sizes are checked before they are used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from onnx import TensorProto

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.types import DType, Limit, counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from smelt.importers.onnx._external_data import ExternalData
    from smelt.ir import Array

_ONNX_NAMES = {DType.FLOAT32: "FLOAT", DType.FLOAT64: "DOUBLE"}
"""ONNX's names of element types that differ from ours."""
ONNX_CODES = {
    dtype: TensorProto.DataType.Value(_ONNX_NAMES.get(dtype, dtype.name)) for dtype in DType
}
"""The ``TensorProto.DataType`` code of each element type."""
_DTYPES: dict[int, DType] = {code: dtype for dtype, code in ONNX_CODES.items()}
_TYPED_FIELDS = {
    DType.FLOAT32: "float_data",
    DType.FLOAT64: "double_data",
    DType.INT64: "int64_data",
    DType.UINT64: "uint64_data",
    DType.UINT32: "uint64_data",
}
_MAX_ELEMENT_BYTES = 8
"""Size in bytes of the largest element type."""


def dtype_from_onnx(code: int, where: str) -> DType:
    """Return the element type of a ``TensorProto.DataType`` code.

    Raises:
        UnsupportedError: smelt does not support the type.
        ModelFormatError: the code is not defined.
    """
    dtype = _DTYPES.get(code)
    if dtype is not None:
        return dtype
    if code in TensorProto.DataType.values() and code != TensorProto.UNDEFINED:
        name = TensorProto.DataType.Name(code).lower()
        supported = ", ".join(d.value for d in DType)
        raise UnsupportedError(
            f"{where}: element type {name} is not supported; the supported types are: {supported}"
        )
    raise ModelFormatError(f"{where}: element type {code} is unknown; the file is damaged")


def array_from_tensor(tensor: TensorProto, external: ExternalData, where: str) -> Array:
    """Return the elements of a tensor.

    Raises:
        ModelFormatError: sizes contradict each other, or external data is missing or in another
            folder.
        UnsupportedError: smelt does not support the element type.
    """
    dtype = dtype_from_onnx(tensor.data_type, where)
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise ModelFormatError(f"{where}: shape {list(shape)} has a negative extent")
    if tensor.HasField("segment"):
        raise UnsupportedError(
            f"{where}: tensors in segments are not supported; save the model again"
        )
    count = math.prod(shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        flat = _elements(external.read(tensor, count * dtype.size_bytes, where), dtype)
    elif tensor.HasField("raw_data"):
        flat = _from_raw(tensor.raw_data, dtype, count, where)
    else:
        flat = _from_typed_field(tensor, dtype, count, where)
    return _reshaped(flat, shape, where)


def _reshaped(flat: Array, shape: tuple[int, ...], where: str) -> Array:
    """Return as many elements in a shape; beside an extent of 0 another one may be too large."""
    Limit.MAX_RANK.check(len(shape), f"{where} has", ModelFormatError)
    try:
        return flat.reshape(shape)
    except ValueError as error:
        raise ModelFormatError(f"{where}: shape {list(shape)} is too large ({error})") from error


def embed_data(message: Message, external: ExternalData) -> None:
    """Embed the external data of all tensors of a message.

    Raises:
        ModelFormatError: data is missing or in another folder, or too large for one message.
        UnsupportedError: smelt does not support an element type.
    """
    total = message.ByteSize()
    for part in external_tensors(message):
        array = array_from_tensor(part, external, f"weight {part.name!r}")
        total += array.nbytes
        what = "the ONNX model with its external data has"
        Limit.MAX_MODEL_BYTES.check(total, what, ModelFormatError)
        part.raw_data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        part.data_location = TensorProto.DEFAULT
        del part.external_data[:]


def external_tensors(message: Message) -> Iterator[TensorProto]:
    """Yield the tensors in a message that have external data."""
    unread = [message]
    while unread:
        part = unread.pop()
        if isinstance(part, TensorProto) and part.data_location == TensorProto.EXTERNAL:
            yield part
            continue
        for field, content in part.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                unread.extend([content] if hasattr(content, "ListFields") else content)


def dense_bytes(tensor: onnx.SparseTensorProto) -> int:
    """Return an upper bound of the bytes that a sparse tensor takes in dense form."""
    return math.prod(max(extent, 0) for extent in tensor.dims) * _MAX_ELEMENT_BYTES


def array_from_sparse(tensor: onnx.SparseTensorProto, external: ExternalData, where: str) -> Array:
    """Return a sparse tensor in dense form.

    Raises:
        ModelFormatError: shapes or indices are invalid.
        UnsupportedError: smelt does not support the element type.
    """
    values = array_from_tensor(tensor.values, external, where).ravel()
    indices = array_from_tensor(tensor.indices, external, f"{where}, indices")
    shape = tuple(tensor.dims)
    count = math.prod(shape)
    if any(extent < 0 for extent in shape):
        raise ModelFormatError(f"{where}: sparse shape {list(shape)} has a negative extent")
    if indices.dtype != np.int64 or indices.ndim not in (1, 2) or len(indices) != len(values):
        raise ModelFormatError(
            f"{where}: sparse indices must be an int64 array of rank 1 or 2, with one entry for "
            "each value"
        )
    if indices.ndim == 2:
        is_inside = indices.shape[1] == len(shape) <= Limit.MAX_RANK.most and bool(
            ((indices >= 0) & (indices < np.array(shape, np.int64))).all()
        )
        flat = np.zeros(len(indices), np.int64)  # of a scalar, whose indices have no columns
        if is_inside and len(values) and shape:
            flat = np.ravel_multi_index(tuple(indices.T), shape)
    else:
        is_inside = bool(((indices >= 0) & (indices < count)).all())
        flat = indices
    if not is_inside:
        raise ModelFormatError(f"{where}: a sparse index lies outside shape {list(shape)}")
    dense = np.zeros(count, values.dtype)
    dense[flat] = values
    return _reshaped(dense, shape, where)


def _from_raw(data: bytes, dtype: DType, count: int, where: str) -> Array:
    expected = count * dtype.size_bytes
    if len(data) != expected:
        raise ModelFormatError(
            f"{where}: its shape and type {dtype.value} need {counted(expected, 'byte')}, but "
            f"there are {len(data)}; the file is damaged"
        )
    return _elements(np.frombuffer(data, np.uint8), dtype)


def _elements(data: Array, dtype: DType) -> Array:
    """Return the elements that little-endian bytes hold, without a copy where possible."""
    if dtype is DType.BOOL:
        return data.astype(np.bool_)
    little_endian = dtype.numpy.newbyteorder("<")
    native: Array = data.view(little_endian).astype(dtype.numpy, copy=False)
    return native


def _from_typed_field(tensor: TensorProto, dtype: DType, count: int, where: str) -> Array:
    """Return the elements that are stored in a typed field such as ``float_data``."""
    name = _TYPED_FIELDS.get(dtype, "int32_data")
    content = getattr(tensor, name)
    if len(content) != count:
        raise ModelFormatError(
            f"{where}: its shape needs {counted(count, 'element')}, but {name} has "
            f"{len(content)}; the file is damaged"
        )
    if dtype is DType.FLOAT32 or dtype is DType.FLOAT64:
        reals: Array = np.array(content, dtype.numpy)
        return reals
    wide: Array = np.array(content, np.uint64 if name == "uint64_data" else np.int64)
    if dtype is DType.BOOL:
        return wide.astype(np.bool_)
    bits = np.dtype(np.uint16) if dtype.is_float else dtype.numpy
    limits = np.iinfo(bits)
    if count and not limits.min <= int(wide.min()) <= int(wide.max()) <= limits.max:
        raise ModelFormatError(f"{where}: {name} has elements outside the range of {dtype.value}")
    narrow: Array = wide.astype(bits)
    return narrow.view(dtype.numpy)
