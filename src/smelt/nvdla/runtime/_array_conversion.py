"""Conversion between numpy arrays and the memory that a tensor is bound to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla._errors import NvError
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
_CHANNELS_PER_PIXEL: Final = {
    **dict.fromkeys(range(PixelFormat.R8, PixelFormat.A16B16G16R16), 1),
    **dict.fromkeys(range(PixelFormat.A16B16G16R16, PixelFormat.A2B10G10R10), 4),
}


def dtype_of_tensor(tensor: NvDlaTensor) -> np.dtype[np.generic]:
    """Return the numpy dtype of a tensor's elements.

    Raises:
        NvdlaError: NOT_SUPPORTED if no numpy dtype corresponds to the tensor's data type.
    """
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None:
        raise NvError.NOT_SUPPORTED.error(
            f"tensor {tensor.name!r} has data type {tensor.data_type}; half, int8, int16, uint8 "
            "and uint16 are supported"
        )
    return dtype


def array_from_tensor(
    tensor: NvDlaTensor, memory: Bytes, *, atom_bytes: int = 32
) -> NDArray[np.generic]:
    """Return a copy of a tensor's elements, [channel, line, column].

    Args:
        tensor: Extents, type and strides of the tensor.
        memory: The memory that the tensor is bound to.
        atom_bytes: Size of the hardware's memory atom in bytes: 32, 16 or 8.

    Raises:
        NvdlaError: INVALID_SIZE or INVALID_ADDRESS if the tensor lies partly outside the memory;
            NOT_SUPPORTED if its data type is not supported.
    """
    offsets = _layout(tensor, atom_bytes).byte_offsets(memory.nbytes, f"tensor {tensor.name!r}")
    return memory[offsets].view(dtype_of_tensor(tensor))[..., 0]


def write_tensor(
    tensor: NvDlaTensor, array: NDArray[np.generic], memory: Bytes, *, atom_bytes: int = 32
) -> None:
    """Copy an array, [channel, line, column], into a tensor's memory.

    Args:
        tensor: Extents, type and strides of the tensor.
        array: The elements; a float array is accepted for a half tensor only.
        memory: The memory that the tensor is bound to.
        atom_bytes: Size of the hardware's memory atom in bytes: 32, 16 or 8.

    Raises:
        NvdlaError: BAD_PARAMETER if the array's shape differs from the tensor's, or its elements
            are neither bool, integer nor float; BAD_VALUE if the tensor's type cannot hold a
            value; other codes as in `array_from_tensor`.
    """
    expected = (tensor.dims.c, tensor.dims.h, tensor.dims.w)
    if array.shape != expected:
        raise NvError.BAD_PARAMETER.error(
            f"tensor {tensor.name!r} has shape {list(expected)} (CxHxW), but the array has shape "
            f"{list(array.shape)}"
        )
    if array.dtype.kind not in "biuf":
        raise NvError.BAD_PARAMETER.error(
            f"tensor {tensor.name!r} takes bool, integers or floats; the array has dtype "
            f"{array.dtype}"
        )
    offsets = _layout(tensor, atom_bytes).byte_offsets(memory.nbytes, f"tensor {tensor.name!r}")
    values = _convert(tensor, array)
    memory[offsets] = values.view(np.uint8).reshape(offsets.shape)


def _convert(tensor: NvDlaTensor, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Convert an array to the tensor's type; raise NvdlaError if a value does not fit."""
    dtype = dtype_of_tensor(tensor)
    if np.issubdtype(dtype, np.integer) and array.size:
        limits = np.iinfo(dtype.name)
        is_integer = array.dtype.kind in "biu"
        if not is_integer or array.min() < limits.min or array.max() > limits.max:
            raise NvError.BAD_VALUE.error(
                f"tensor {tensor.name!r} holds {dtype.name}; an array of {array.dtype} with values "
                f"from {array.min()} to {array.max()} must be quantised first"
            )
    return np.ascontiguousarray(array, dtype)


def _layout(tensor: NvDlaTensor, atom_bytes: int) -> AtomLayout:
    """Return a tensor's layout: an image's pixel takes the place of an atom."""
    element_bytes = dtype_of_tensor(tensor).itemsize
    lanes = atom_bytes // element_bytes
    if tensor.data_category == DataCategory.IMAGE:
        lanes = _CHANNELS_PER_PIXEL.get(tensor.pixel_format, lanes)
    extents = (tensor.dims.c, tensor.dims.h, tensor.dims.w)
    return AtomLayout(extents, (tensor.stride[1], tensor.stride[2]), lanes, element_bytes)
