"""Arrays on a GPU: access to arrays of other libraries, and smelt's arrays for other libraries.

Sources: "CUDA Array Interface (Version 3)" of the Numba documentation; DLPack's C structures and
"Python Specification for DLPack" (stream semantics: 1 is the default stream, never 0).
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda._memory import owner_of
from smelt.devices.cuda._stream import CudaEvent, CudaStream
from smelt.errors import BindingError
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.devices.cuda._memory import CudaAllocation

DLPACK_CUDA: Final = 2
DLPACK_MANAGED: Final = 13
_ON_GPU: Final = frozenset({DLPACK_CUDA, DLPACK_MANAGED})
_DEFAULT_STREAM: Final = 1
_CODES: Final = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_CAPSULE: Final = b"dltensor"


_Deleter: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLDevice(ctypes.Structure):
    """DLDevice of dlpack.h."""

    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    """DLDataType of dlpack.h."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


@dataclass(frozen=True, slots=True)
class GpuArrayView:
    """View of an array in a GPU's memory, of any library."""

    address: int
    shape: tuple[int, ...]
    dtype: DType
    keep_alive: object
    """Object that must live as long as the memory is used."""
    is_contiguous: bool = True
    """Whether the elements are in the order of the axes, without gaps."""
    is_read_only: bool = False
    framework: Any = None
    """Library on whose current stream the array is used; None if the stream of its reader waits for
    it."""


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    rows = zip(shape, strides, contiguous_strides(shape), strict=True)
    return 0 in shape or all(extent == 1 or stride == wanted for extent, stride, wanted in rows)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of an array without gaps, the last axis fastest."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def is_on_gpu(value: object) -> bool:
    """Return whether ``value`` is an array in the memory of a GPU."""
    where = getattr(value, "__dlpack_device__", None)
    if where is not None:
        return int(where()[0]) in _ON_GPU
    return hasattr(value, "__cuda_array_interface__")


def view_of(value: object, stream: CudaStream) -> GpuArrayView:
    """Return a view of an array of any library on a GPU; ``stream`` waits for pending writes.

    DLPack is preferred: the array interface has no bfloat16 (torch reports float16) and does not
    name the GPU, and most implementations do not name the stream that still writes.

    Args:
        value: object with the two methods of DLPack, or ``__cuda_array_interface__``.
        stream: stream that will read or write the array.

    Raises:
        BindingError: the object is not such an array, is on another GPU, or has an unsupported
            dtype.
    """
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _from_dlpack(value, stream)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        raise BindingError(
            f"{type(value).__name__} is not a GPU array: it has neither __dlpack__ nor "
            "__cuda_array_interface__"
        )
    return _from_interface(value, interface, stream)


def _from_interface(value: object, interface: Any, stream: CudaStream) -> GpuArrayView:
    try:
        address, is_read_only = interface["data"]
        shape = tuple(int(extent) for extent in interface["shape"])
        dtype = DType.from_numpy(np.dtype(interface["typestr"]))
        steps = interface.get("strides")
        queue = interface.get("stream")
    except (KeyError, TypeError, ValueError) as error:
        raise BindingError(
            f"__cuda_array_interface__ does not follow version 3 of the protocol: {error}"
        ) from error
    if interface.get("mask") is not None:
        raise BindingError("masked arrays are not supported; fill them first")
    if (owner := owner_of(stream.device, int(address or 0))) not in {None, stream.device.index}:
        raise BindingError(_elsewhere(owner, stream))
    if queue is not None:
        stream.wait_for(CudaStream(stream.device, int(queue)))
    size, is_contiguous = dtype.size_bytes, True
    if steps is not None:
        if any(int(step) % size for step in steps):
            raise BindingError("the array's strides are not multiples of its element size; copy it")
        is_contiguous = _is_contiguous(shape, [int(step) // size for step in steps])
    place = int(address or 0)
    return GpuArrayView(place, shape, dtype, value, is_contiguous, is_read_only=bool(is_read_only))


def _from_dlpack(value: Any, stream: CudaStream) -> GpuArrayView:
    kind, number = value.__dlpack_device__()
    if int(kind) not in _ON_GPU:
        raise BindingError(
            f"the array is on a device of DLPack device type {int(kind)}, not on a GPU; copy it "
            f"to cuda:{stream.device.index}"
        )
    if int(number) != stream.device.index:
        raise BindingError(_elsewhere(number, stream))
    try:
        capsule = value.__dlpack__(stream=int(stream.handle) or _DEFAULT_STREAM)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise BindingError(f"the array cannot be read by DLPack: {error}") from error
    tensor = _managed(capsule).tensor
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    is_contiguous = not tensor.strides or _is_contiguous(shape, tensor.strides[: tensor.ndim])
    address, dtype = (tensor.data or 0) + tensor.byte_offset, _dtype(tensor.dtype)
    # The capsule is never marked as used: its deletion frees the producer's tensor.
    return GpuArrayView(address, shape, dtype, (value, capsule), is_contiguous)


def _elsewhere(number: object, stream: CudaStream) -> str:
    return (
        f"the array is on cuda:{number}, but the stream is on cuda:{stream.device.index}; copy the "
        "array to the GPU of the stream"
    )


def _dtype(found: Any) -> DType:
    for dtype in DType:
        if _data_type(dtype) == (found.code, found.bits) and found.lanes == 1:
            return dtype
    raise BindingError(
        f"arrays of the DLPack data type with code {found.code}, {found.bits} bits and lane count "
        f"{found.lanes} are not supported; convert the array to the dtype of the binding"
    )


def _data_type(dtype: DType) -> tuple[int, int]:
    name = dtype.value.rstrip("0123456789")
    return _CODES[name], dtype.size_bytes * 8


_OBJECT, _ADDRESS, _TEXT = ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p


def _interpreter_function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_get_pointer = _interpreter_function("PyCapsule_GetPointer", _ADDRESS, _OBJECT, _TEXT)
_is_valid = _interpreter_function("PyCapsule_IsValid", ctypes.c_int, _OBJECT, _TEXT)
_get_pointer_at = _interpreter_function("PyCapsule_GetPointer", _ADDRESS, _ADDRESS, _TEXT)
_is_valid_at = _interpreter_function("PyCapsule_IsValid", ctypes.c_int, _ADDRESS, _TEXT)
_new_capsule = _interpreter_function("PyCapsule_New", _OBJECT, _ADDRESS, _TEXT, _ADDRESS)


def _managed(capsule: object) -> Any:
    if not _is_valid(capsule, _CAPSULE):
        raise BindingError(
            "__dlpack__ did not return a DLPack capsule, or returned one that was already consumed"
        )
    return _DLManagedTensor.from_address(_get_pointer(capsule, _CAPSULE))


# ---- our own arrays


class CudaArray:
    """A contiguous array in a GPU's memory, which torch, cupy and jax accept without a copy."""

    __slots__ = ("__weakref__", "_ready", "allocation", "dtype", "shape")

    def __init__(self, allocation: CudaAllocation, dtype: DType, shape: Sequence[int]) -> None:
        """Wrap memory as an array; the memory must be large enough."""
        self.allocation = allocation
        self.dtype = dtype
        self.shape = tuple(shape)
        self._ready: CudaEvent | None = None

    def __repr__(self) -> str:
        device = self.allocation.device
        return f"CudaArray({self.dtype.value}{list(self.shape)} on cuda:{device.index})"

    def written_on(self, stream: CudaStream) -> None:
        """Record that queued work on ``stream`` writes the array: readers wait for it."""
        self._ready = CudaEvent(stream.device, times=False)
        self._ready.record(stream)

    def synchronize(self) -> None:
        """Wait until the array is written."""
        if self._ready is not None:
            self._ready.synchronize()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array for numba, cupy and others; waits, because the interface names no stream."""
        self.synchronize()
        return {
            "shape": self.shape,
            "typestr": self.dtype.numpy.str,
            "data": (self.allocation.address, False),
            "strides": None,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type (CUDA) and number of the GPU."""
        return DLPACK_CUDA, self.allocation.device.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a capsule; the consumer's ``stream`` (-1: none) waits for pending writes.

        Raises:
            BufferError: a copy or another device is requested.
        """
        del max_version  # every consumer accepts structures without a version
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(
                "the array can be exported only on the device where it is; copy it first"
            )
        if self._ready is not None and stream != -1:
            handle = 0 if stream in {None, _DEFAULT_STREAM} else stream
            CudaStream(self.allocation.device, handle).wait(self._ready)
        return _capsule_for(self)


_shown: dict[int, tuple[object, ...]] = {}
"""Objects that consumers of capsules keep alive, by the address of the structure."""


def _capsule_for(array: CudaArray) -> object:
    rank = len(array.shape)
    shape = (ctypes.c_int64 * max(rank, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(rank, 1))(*contiguous_strides(array.shape))
    managed = _DLManagedTensor()
    tensor = managed.tensor
    tensor.data = array.allocation.address
    tensor.device = _DLDevice(*array.__dlpack_device__())
    tensor.ndim = rank
    tensor.dtype = _DLDataType(*_data_type(array.dtype), 1)
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _FORGET
    address = ctypes.addressof(managed)
    _shown[address] = (managed, shape, strides, array)
    return _new_capsule(address, _CAPSULE, ctypes.cast(_DROP_CAPSULE, ctypes.c_void_p))


def _forget(address: int) -> None:
    """Release the objects of a structure that its consumer has deleted."""
    _shown.pop(address, None)


def _drop_capsule(capsule: int) -> None:
    """Handle the deletion of a capsule, given by address because a reference would revive it.

    A tensor that no consumer has taken is released.
    """
    if _is_valid_at(capsule, _CAPSULE):
        _shown.pop(_get_pointer_at(capsule, _CAPSULE), None)


_FORGET: Final = _Deleter(_forget)
_DROP_CAPSULE: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop_capsule)
