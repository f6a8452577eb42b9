"""Arrays in and out of the memory that a tensor is bound to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.loadable import DataCategory, DataType
from smelt.nvdla.runtime._atoms import AtomLayout
from smelt.nvdla.runtime._enums import PixelFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.nvdla.port import Bytes
    from smelt.nvdla.runtime._tensor import NvDlaTensor

_DTYPES: Final[dict[int, np.dtype[np.generic]]] = {
    int(DataType.HALF): np.dtype(np.float16),
    int(DataType.INT16): np.dtype(np.int16),
    int(DataType.INT8): np.dtype(np.int8),
    int(DataType.UINT8): np.dtype(np.uint8),
    int(DataType.UINT16): np.dtype(np.uint16),
}
_PIXEL_LANES: Final = {
    **dict.fromkeys(range(PixelFormat.R8, PixelFormat.A16B16G16R16), 1),
    **dict.fromkeys(range(PixelFormat.A16B16G16R16, PixelFormat.A2B10G10R10), 4),
}


def dtype_of_tensor(tensor: NvDlaTensor) -> np.dtype[np.generic]:
    """The type of a tensor's elements. Raises NvdlaError(NOT_SUPPORTED): arrays have none such."""
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None:
        raise NvdlaError(
            NvError.NOT_SUPPORTED,
            f"tensor {tensor.name!r} has data type {tensor.data_type}; half, int16 and int8 are "
            "supported",
        )
    return dtype


def array_from_tensor(
    tensor: NvDlaTensor, memory: Bytes, *, atom_bytes: int = 32
) -> NDArray[np.generic]:
    """Copy a tensor out of its memory, [channel, line, column].

    Args:
        tensor: Its extents, type and strides.
        memory: What it is bound to.
        atom_bytes: Of the hardware: 32, 16 or 8.

    Raises:
        NvdlaError: INVALID_SIZE or INVALID_ADDRESS, it reaches outside its memory.
    """
    where = _layout(tensor, atom_bytes).find_bytes(memory.nbytes, f"tensor {tensor.name!r}")
    return memory[where].view(dtype_of_tensor(tensor))[..., 0]


def write_tensor(
    tensor: NvDlaTensor, array: NDArray[np.generic], memory: Bytes, *, atom_bytes: int = 32
) -> None:
    """Copy an array, [channel, line, column], into a tensor's memory.

    Raises:
        NvdlaError: BAD_PARAMETER, it has another shape, or elements that are neither bool, integer
            nor float; BAD_VALUE, the tensor's type cannot hold a value; else as
            `array_from_tensor`.
    """
    expected = (tensor.dims.c, tensor.dims.h, tensor.dims.w)
    if array.shape != expected:
        raise NvdlaError(
            NvError.BAD_PARAMETER,
            f"tensor {tensor.name!r} is {expected} (CxHxW); the array is {array.shape}",
        )
    if array.dtype.kind not in "biuf":
        raise NvdlaError(
            NvError.BAD_PARAMETER,
            f"tensor {tensor.name!r} takes bool, integers or floats; the array is {array.dtype}",
        )
    where = _layout(tensor, atom_bytes).find_bytes(memory.nbytes, f"tensor {tensor.name!r}")
    values = _converted(tensor, array)
    memory[where] = values.view(np.uint8).reshape(where.shape)


def _converted(tensor: NvDlaTensor, array: NDArray[np.generic]) -> NDArray[np.generic]:
    dtype = dtype_of_tensor(tensor)
    if np.issubdtype(dtype, np.integer) and array.size:
        limits = np.iinfo(dtype.name)
        is_whole = array.dtype.kind in "biu"
        if not is_whole or array.min() < limits.min or array.max() > limits.max:
            raise NvdlaError(
                NvError.BAD_VALUE,
                f"tensor {tensor.name!r} holds {dtype.name}; an array of {array.dtype} from "
                f"{array.min()} to {array.max()} must be quantised first",
            )
    return np.ascontiguousarray(array, dtype)


def _layout(tensor: NvDlaTensor, atom_bytes: int) -> AtomLayout:
    element = dtype_of_tensor(tensor).itemsize
    lanes = atom_bytes // element
    if tensor.data_category == DataCategory.IMAGE:
        lanes = _PIXEL_LANES.get(tensor.pixel_format, lanes)
    return AtomLayout(
        tensor.dims.c,
        tensor.dims.h,
        tensor.dims.w,
        tensor.stride[1],
        tensor.stride[2],
        lanes,
        element,
    )
