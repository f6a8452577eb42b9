"""From a TensorProto to an array, with every size checked before it is used."""

from __future__ import annotations

import math
import mmap
import os
import stat
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto

from smelt.errors import ModelFormatError, UnsupportedError
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.ir import Array

_DTYPES = {
    TensorProto.FLOAT: DType.FLOAT32,
    TensorProto.DOUBLE: DType.FLOAT64,
    TensorProto.FLOAT16: DType.FLOAT16,
    TensorProto.BFLOAT16: DType.BFLOAT16,
    TensorProto.INT64: DType.INT64,
    TensorProto.INT32: DType.INT32,
    TensorProto.INT16: DType.INT16,
    TensorProto.INT8: DType.INT8,
    TensorProto.UINT64: DType.UINT64,
    TensorProto.UINT32: DType.UINT32,
    TensorProto.UINT16: DType.UINT16,
    TensorProto.UINT8: DType.UINT8,
    TensorProto.BOOL: DType.BOOL,
}
_TYPED_FIELDS = {
    DType.FLOAT32: "float_data",
    DType.FLOAT64: "double_data",
    DType.INT64: "int64_data",
    DType.UINT64: "uint64_data",
    DType.UINT32: "uint64_data",
}
_LARGEST_DENSE = 1 << 28
"""Most elements to which a sparse constant is spread out."""


def dtype_from_onnx(code: int, where: str) -> DType:
    """The element type of a TensorProto code.

    Raises UnsupportedError: a type that ONNX knows and smelt does not.
    Raises ModelFormatError: a code that stands for nothing.
    """
    found = _DTYPES.get(code)  # type: ignore[call-overload]
    if found is not None:
        return DType(found)
    if code in TensorProto.DataType.values() and code != TensorProto.UNDEFINED:
        name = TensorProto.DataType.Name(code).lower()
        known = ", ".join(d.value for d in DType)
        raise UnsupportedError(f"{where}: element type {name} is not supported; these are: {known}")
    raise ModelFormatError(f"{where}: {code} is no element type")


def array_from_tensor(tensor: TensorProto, folder: Path | None, where: str) -> Array:
    """The elements of a tensor; those of external data are mapped, not read.

    Raises ModelFormatError: sizes that contradict each other, external data that is missing or
    elsewhere.
    Raises UnsupportedError: an element type that smelt has not.
    """
    dtype = dtype_from_onnx(tensor.data_type, where)
    if dtype is DType.BFLOAT16:
        raise UnsupportedError(
            f"{where}: weights in bfloat16 are not supported; store them as float32"
        )
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise ModelFormatError(f"{where}: shape {list(shape)} has a negative extent")
    if tensor.HasField("segment"):
        raise UnsupportedError(
            f"{where}: tensors in segments are not supported; save the model again"
        )
    count = math.prod(shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        flat = _map_external(tensor, dtype, count, folder, where)
    elif tensor.HasField("raw_data"):
        flat = _from_raw(tensor.raw_data, dtype, count, where)
    else:
        flat = _from_typed_field(tensor, dtype, count, where)
    try:
        return flat.reshape(shape)
    except ValueError as error:
        raise ModelFormatError(f"{where}: shape {list(shape)} is too large ({error})") from error


def array_from_sparse(tensor: onnx.SparseTensorProto, folder: Path | None, where: str) -> Array:
    """The sparse tensor, spread out. Raises ModelFormatError and UnsupportedError."""
    values = array_from_tensor(tensor.values, folder, where).ravel()
    indices = array_from_tensor(tensor.indices, folder, f"{where}, indices")
    shape = tuple(tensor.dims)
    count = math.prod(shape)
    if any(extent < 0 for extent in shape) or count > _LARGEST_DENSE:
        raise ModelFormatError(
            f"{where}: sparse shape {list(shape)} is negative or too large to spread out"
        )
    if indices.dtype != np.int64 or indices.ndim not in (1, 2) or len(indices) != len(values):
        raise ModelFormatError(f"{where}: sparse indices must be int64, one entry for each value")
    if indices.ndim == 2:
        inside = indices.shape[1] == len(shape) and bool(
            ((indices >= 0) & (indices < np.array(shape, np.int64))).all()
        )
        flat = (
            np.ravel_multi_index(tuple(indices.T), shape)
            if inside and len(values)
            else indices[:0, 0]
        )
    else:
        inside = bool(((indices >= 0) & (indices < count)).all())
        flat = indices
    if not inside:
        raise ModelFormatError(f"{where}: a sparse index lies outside shape {list(shape)}")
    dense = np.zeros(count, values.dtype)
    dense[flat] = values
    return dense.reshape(shape)


def _from_raw(data: bytes, dtype: DType, count: int, where: str) -> Array:
    expected = count * dtype.size_bytes
    if len(data) != expected:
        raise ModelFormatError(
            f"{where}: its shape and type {dtype.value} need {expected} bytes and it holds "
            f"{len(data)}; "
            "the file is damaged"
        )
    flat: Array = np.frombuffer(data, np.dtype("uint8" if dtype is DType.BOOL else _little(dtype)))
    return flat != 0 if dtype is DType.BOOL else flat.astype(dtype.numpy, copy=False)


def _from_typed_field(tensor: TensorProto, dtype: DType, count: int, where: str) -> Array:
    name = _TYPED_FIELDS.get(dtype, "int32_data")
    content = getattr(tensor, name)
    if len(content) != count:
        raise ModelFormatError(
            f"{where}: its shape needs {count} elements and {name} holds {len(content)}; the file "
            "is damaged"
        )
    if dtype is DType.FLOAT32 or dtype is DType.FLOAT64:
        reals: Array = np.array(content, dtype.numpy)
        return reals
    wide: Array = np.array(content, np.uint64 if name == "uint64_data" else np.int64)
    if dtype is DType.BOOL:
        return wide.astype(np.bool_)
    bits = np.dtype(np.uint16) if dtype is DType.FLOAT16 else dtype.numpy
    limits = np.iinfo(bits)
    if count and not limits.min <= int(wide.min()) <= int(wide.max()) <= limits.max:
        raise ModelFormatError(f"{where}: {name} holds elements outside {dtype.value}")
    narrow: Array = wide.astype(bits)
    return narrow.view(np.float16) if dtype is DType.FLOAT16 else narrow


def _little(dtype: DType) -> np.dtype[Any]:
    return dtype.numpy.newbyteorder("<")


def _map_external(
    tensor: TensorProto, dtype: DType, count: int, folder: Path | None, where: str
) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelFormatError(
            f"{where}: its data is in the file {location!r} beside the model, and the model came "
            "without a "
            "path; import it by its path"
        )
    path = _external_path(folder, location, where)
    offset = _number(entries, "offset", 0, where)
    expected = count * dtype.size_bytes
    length = _number(entries, "length", expected, where)
    if length != expected:
        raise ModelFormatError(
            f"{where}: its shape and type {dtype.value} need {expected} bytes and {location!r} "
            f"holds {length}"
        )
    if count == 0:
        return np.zeros(0, dtype.numpy)
    mapped = _map_file(path, offset, expected, where)
    flat: Array = np.frombuffer(mapped, np.uint8, expected, offset)
    if dtype is DType.BOOL:
        return flat.astype(np.bool_)
    elements: Array = flat.view(_little(dtype)).astype(dtype.numpy, copy=False)
    return elements


def _external_path(folder: Path, location: str, where: str) -> Path:
    """The file that a model names, which must lie in the model's folder and be no link."""
    parts = PurePosixPath(location).parts
    forbidden = not parts or location.startswith("/") or ".." in parts or "\0" in location
    if forbidden or "\\" in location or Path(location).is_absolute() or Path(location).drive:
        raise ModelFormatError(
            f"{where}: external data {location!r} must be a plain path inside the model's folder; "
            "nothing "
            "outside is read"
        )
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise ModelFormatError(
                f"{where}: external data {location!r} goes through the link {path}; put the file "
                "itself there"
            )
    return path


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelFormatError(f"{where}: {key} {text!r} of its external data is no count of bytes")
    return int(text)


def _map_file(path: Path, offset: int, length: int, where: str) -> mmap.mmap:
    try:
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        )
    except (OSError, ValueError) as error:
        raise ModelFormatError(
            f"{where}: cannot read its external data: {error}; put that file beside the model"
        ) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(f"{where}: its external data {path} is no regular file")
        if offset + length > status.st_size:
            raise ModelFormatError(
                f"{where}: bytes {offset} to {offset + length} of {path} are needed and it has "
                f"{status.st_size}; the file is cut off, fetch it again"
            )
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFormatError(f"{where}: cannot map its external data {path}: {error}") from error
    finally:
        os.close(handle)
