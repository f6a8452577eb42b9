"""Interoperation with arrays of other libraries in GPU memory, in the order of their streams.

PyTorch and CuPy have a current stream on which their arrays are created and used, so work on their
arrays is enqueued there without waiting. Other libraries synchronise through DLPack.
"""

from __future__ import annotations

import sys
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.devices.cuda import (
    CudaArray,
    CudaMemory,
    CudaStream,
    GpuArrayView,
    is_on_gpu,
    owner_of,
    selected_index,
    view_of,
)
from smelt.errors import Argument, BindingError, ContextError
from smelt.runtime._array_interop import library_of, unreadable
from smelt.types import DType, application_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.devices.cuda import CudaDevice
    from smelt.engine import Binding

ALIGNED_BYTES: Final = 16
"""Alignment in bytes that kernels require; arrays at other addresses are copied first."""
_MAX_CHECKED_ADDRESSES: Final = 256
"""Number of checked addresses that are remembered."""


class _Torch:
    """Adapter for PyTorch."""

    def __init__(self, module: Any) -> None:
        self._torch = module
        self._dtypes: dict[Any, DType] = {
            getattr(module, dtype.value): dtype for dtype in DType if hasattr(module, dtype.value)
        }

    def current_stream(self, device: CudaDevice) -> int:
        """Return the handle of the library's current stream."""
        return int(self._torch.cuda.current_stream(device.index).cuda_stream)

    def is_on_gpu(self, value: Any) -> bool:
        """Return whether an array of the library is in GPU memory."""
        return bool(value.is_cuda)

    def view(self, value: Any, device: CudaDevice) -> GpuArrayView:
        """Describe a GPU array. Raises BindingError: the array is on another GPU."""
        _check_device(value.get_device(), device)
        if value.dtype not in self._dtypes:
            raise BindingError(f"the element type {value.dtype} is not supported")
        address, shape, dtype = self.address(value), tuple(value.shape), self._dtypes[value.dtype]
        return GpuArrayView(address, shape, dtype, value, value.is_contiguous(), framework=self)

    def address(self, value: Any) -> int:
        """Return the address of an array."""
        return int(value.data_ptr())

    def contiguous(self, value: Any) -> Any:
        """Return a contiguous array with the same elements."""
        return value.contiguous()

    def empty(self, shape: Sequence[int], dtype: DType, device: CudaDevice) -> Any:
        """Allocate an array on the GPU."""
        torch = self._torch
        target = torch.device("cuda", device.index)
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype.value), device=target)


class _Cupy:
    """Adapter for CuPy, with the methods of `_Torch`."""

    def __init__(self, module: Any) -> None:
        self._cupy = module

    def current_stream(self, device: CudaDevice) -> int:
        return int(self._cupy.cuda.get_current_stream(device.index).ptr)

    def is_on_gpu(self, value: Any) -> bool:
        del value
        return True

    def view(self, value: Any, device: CudaDevice) -> GpuArrayView:
        _check_device(value.device.id, device)
        address, shape, dtype = (
            self.address(value),
            tuple(value.shape),
            DType.from_numpy(value.dtype),
        )
        is_contiguous = bool(value.flags.c_contiguous)
        return GpuArrayView(address, shape, dtype, value, is_contiguous, framework=self)

    def address(self, value: Any) -> int:
        return int(value.data.ptr)

    def contiguous(self, value: Any) -> Any:
        return self._cupy.ascontiguousarray(value)

    def empty(self, shape: Sequence[int], dtype: DType, device: CudaDevice) -> Any:
        # CuPy has no bfloat16; such tensors are exchanged as uint16 arrays of their bits.
        kind = np.dtype(np.uint16) if dtype is DType.BFLOAT16 else dtype.numpy
        with self._cupy.cuda.Device(device.index):
            return self._cupy.empty(tuple(shape), kind)


ArrayLibrary = _Torch | _Cupy
"""A library that has a current stream and allocates arrays."""
_LIBRARY_CLASSES: Final[dict[str, Any]] = {"torch": _Torch, "cupy": _Cupy}
_libraries: dict[str, ArrayLibrary] = {}


def library_with_stream(value: object) -> ArrayLibrary | None:
    """Return the adapter of an array's library; None if the library has no current stream."""
    name = type(value).__module__.partition(".")[0]
    if name not in _libraries:
        module = sys.modules.get(name)
        if name not in _LIBRARY_CLASSES or not hasattr(module, "from_dlpack"):
            return None
        _libraries[name] = _LIBRARY_CLASSES[name](module)
    return _libraries[name]


def gpu_array(value: object, binding: Binding, stream: CudaStream) -> GpuArrayView | None:
    """Return a GPU array after checking its device and dtype; None for an array on the host.

    Args:
        value: any array.
        binding: the binding that the array is for.
        stream: stream that waits for pending writes, unless the library has a current stream.

    Raises:
        BindingError: the array is on another GPU, has another dtype, is not contiguous, or is a
            read-only output.
    """
    library = library_with_stream(value)
    with application_errors(partial(unreadable, binding)):
        try:
            if not (is_on_gpu(value) if library is None else library.is_on_gpu(value)):
                return None
            if library is None:
                array = view_of(value, stream)
            else:
                array = library.view(value, stream.device)
                if binding.is_input and not array.is_contiguous:
                    array = library.view(library.contiguous(value), stream.device)
        except BindingError as error:
            raise BindingError(f"{binding.name}: {error}") from error
    _check(array, binding)
    return array


def _check(array: GpuArrayView, binding: Binding) -> None:
    """Check dtype, contiguity and writability of a GPU array."""
    expected = binding.dtype
    are_bits = (
        expected is DType.BFLOAT16
        and array.dtype is DType.UINT16
        and isinstance(array.framework, _Cupy)
    )
    if array.dtype is not expected and not are_bits:
        raise BindingError(
            f"{binding.name}: the array has dtype {array.dtype.value}, expected {expected.value}; "
            "convert it"
        )
    if not array.is_contiguous:
        raise BindingError(
            f"{binding.name}: a GPU array must be contiguous; make a contiguous copy"
        )
    if not binding.is_input and array.is_read_only:
        raise BindingError(f"{binding.name}: an output array must be writable")


def _check_device(index: int, device: CudaDevice) -> None:
    if index != device.index:
        raise BindingError(
            f"the array is on cuda:{index}, but the engine is on cuda:{device.index}; move the "
            "array"
        )


class OutputAllocator:
    """Allocates the outputs of a run as arrays of the inputs' library."""

    def __init__(self, like: object, device: CudaDevice) -> None:
        """Create results for the library of ``like``, an input on the GPU."""
        self._device = device
        self.framework = library_with_stream(like)
        self._dlpack_module = library_of(like)

    def current_stream(self) -> int | None:
        """Return the handle of the library's current stream; None if it has none."""
        return None if self.framework is None else self.framework.current_stream(self._device)

    def empty(self, binding: Binding, shape: Sequence[int]) -> tuple[Any, int]:
        """Allocate an output array; return it with its address."""
        if self.framework is not None:
            array = self.framework.empty(shape, binding.dtype, self._device)
            return array, self.framework.address(array)
        size = prod(shape) * binding.dtype.size_bytes
        memory = CudaMemory(self._device).allocate(size, "results")
        return CudaArray(memory, binding.dtype, shape), memory.address

    def finish(self, array: Any, shape: Sequence[int], stream: CudaStream) -> Any:
        """Cut an array to its final shape and convert it to the library, without waiting."""
        if tuple(array.shape) != tuple(shape):
            if self.framework is None:
                array = CudaArray(array.allocation, array.dtype, shape)
            else:
                array = array.reshape(-1)[: prod(shape)].reshape(tuple(shape))
        if self.framework is not None:
            return array
        array.written_on(stream)
        if self._dlpack_module is None or not hasattr(self._dlpack_module, "from_dlpack"):
            return array
        return self._dlpack_module.from_dlpack(array)


def libraries_of(arrays: Sequence[Any]) -> set[ArrayLibrary | None]:
    """Return the libraries of the GPU arrays; None stands for those without a current stream."""
    return {array.framework for array in arrays if isinstance(array, GpuArrayView)}


class CheckedAddresses:
    """Addresses known to be in one GPU's memory, so that the driver is queried once for each."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._checked: set[int] = set()

    def check(self, binding: Binding, address: int) -> None:
        """Check an address before a kernel faults on it, which would make the GPU unusable.

        Raises:
            BindingError: the address is not in memory that the GPU reaches.
        """
        if address in self._checked:
            return
        device = self._device
        owner = owner_of(device, address)
        if owner != device.index:
            where = (
                "not memory that a GPU can access" if owner is None else f"memory of cuda:{owner}"
            )
            raise BindingError(
                f"{binding.name}: {address:#x} is {where}, and the engine is on "
                f"cuda:{device.index}; pass an array, or an address on that GPU"
            )
        if len(self._checked) >= _MAX_CHECKED_ADDRESSES:
            self._checked.clear()
        self._checked.add(address)


def check_selected(device: CudaDevice) -> None:
    """Check that the thread has not selected another GPU, whose addresses it would pass.

    Raises:
        ContextError: the thread's current device is another GPU.
    """
    index = selected_index(device.driver)
    if index is not None and index != device.index:
        selected = Argument("device", f"cuda:{index}")
        raise ContextError(
            f"the engine is bound to cuda:{device.index}, but the current device of this thread "
            f"is cuda:{index}; select the engine's device, or load the engine with {selected}",
            arguments=[selected],
        )
