"""Arrays in a GPU's memory: other libraries' as inputs and outputs, in their own order of work.

torch and cupy have a current stream, on which their arrays are made and used, so work on their
arrays is queued there and nobody waits. Other libraries say through DLPack when an array is ready.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from smelt.devices.cuda import (
    CudaArray,
    CudaMemory,
    CudaStream,
    is_on_gpu,
    owner_of,
    selected_index,
    view_of,
)
from smelt.errors import BindingError, ContextError
from smelt.runtime._array_interop import library_of, unreadable
from smelt.types import DType, application_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.devices.cuda import CudaDevice
    from smelt.engine import Binding

ALIGNED_BYTES: Final = 16
"""Kernels read so many bytes at once: an array elsewhere is copied first."""
_MAX_KNOWN: Final = 256


class ArrayLibrary(Protocol):
    """A library that has a current stream and makes arrays by itself."""

    def current_stream(self, device: CudaDevice) -> int:
        """Handle of the stream on which it works now."""
        ...

    def is_on_gpu(self, value: Any) -> bool:
        """Whether an array of the library is in a GPU's memory."""
        ...

    def view(self, value: Any, device: CudaDevice) -> GpuArray:
        """An array that is there. Raises BindingError: it is on another GPU."""
        ...

    def address(self, value: Any) -> int:
        """Where an array starts."""
        ...

    def contiguous(self, value: Any) -> Any:
        """The array without gaps."""
        ...

    def empty(self, shape: Sequence[int], dtype: DType, device: CudaDevice) -> Any:
        """A new array."""
        ...


@dataclass(frozen=True, slots=True)
class GpuArray:
    """An array in the engine's GPU."""

    address: int
    shape: tuple[int, ...]
    dtype: DType
    is_contiguous: bool
    is_read_only: bool
    framework: ArrayLibrary | None
    """On whose current stream it is written and read; None: the context's own waits for it."""
    keep_alive: object


class _Torch:
    """PyTorch."""

    def __init__(self, module: Any) -> None:
        self._torch = module
        self._dtypes: dict[Any, DType] = {
            getattr(module, dtype.value): dtype for dtype in DType if hasattr(module, dtype.value)
        }

    def current_stream(self, device: CudaDevice) -> int:
        return int(self._torch.cuda.current_stream(device.index).cuda_stream)

    def is_on_gpu(self, value: Any) -> bool:
        return bool(value.is_cuda)

    def view(self, value: Any, device: CudaDevice) -> GpuArray:
        index = value.get_device()
        if index != device.index:
            raise _elsewhere(index, device)
        if value.dtype not in self._dtypes:
            raise BindingError(f"the element type {value.dtype} is not supported")
        return GpuArray(
            value.data_ptr(),
            tuple(value.shape),
            self._dtypes[value.dtype],
            is_contiguous=value.is_contiguous(),
            is_read_only=False,
            framework=self,
            keep_alive=value,
        )

    def address(self, value: Any) -> int:
        return int(value.data_ptr())

    def contiguous(self, value: Any) -> Any:
        return value.contiguous()

    def empty(self, shape: Sequence[int], dtype: DType, device: CudaDevice) -> Any:
        torch = self._torch
        place = torch.device("cuda", device.index)
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype.value), device=place)


class _Cupy:
    """CuPy."""

    def __init__(self, module: Any) -> None:
        self._cupy = module

    def current_stream(self, device: CudaDevice) -> int:
        return int(self._cupy.cuda.get_current_stream(device.index).ptr)

    def is_on_gpu(self, value: Any) -> bool:
        del value
        return True

    def view(self, value: Any, device: CudaDevice) -> GpuArray:
        if value.device.id != device.index:
            raise _elsewhere(value.device.id, device)
        return GpuArray(
            self.address(value),
            tuple(value.shape),
            DType.from_numpy(value.dtype),
            is_contiguous=bool(value.flags.c_contiguous),
            is_read_only=False,
            framework=self,
            keep_alive=value,
        )

    def address(self, value: Any) -> int:
        return int(value.data.ptr)

    def contiguous(self, value: Any) -> Any:
        return self._cupy.ascontiguousarray(value)

    def empty(self, shape: Sequence[int], dtype: DType, device: CudaDevice) -> Any:
        # CuPy has no bfloat16: it gets, and may give, an array of its bits.
        kind = np.dtype(np.uint16) if dtype is DType.BFLOAT16 else dtype.numpy
        with self._cupy.cuda.Device(device.index):
            return self._cupy.empty(tuple(shape), kind)


_KINDS: Final[dict[str, Any]] = {"torch": _Torch, "cupy": _Cupy}
_libraries: dict[str, ArrayLibrary] = {}


def library_with_stream(value: object) -> ArrayLibrary | None:
    """Return the library of an array, if it has a current stream."""
    name = type(value).__module__.partition(".")[0]
    if name not in _libraries:
        module = sys.modules.get(name)
        if name not in _KINDS or not hasattr(module, "from_dlpack"):
            return None
        _libraries[name] = _KINDS[name](module)
    return _libraries[name]


def gpu_array(value: object, binding: Binding, stream: CudaStream) -> GpuArray | None:
    """Return an array in a GPU's memory as one that has the binding's dtype; None for others.

    Args:
        value: any array.
        binding: what it is for.
        stream: waits for whoever writes it, unless its library has a current stream.

    Raises:
        BindingError: it lies on another GPU, has another dtype, or cannot be written.
    """
    library = library_with_stream(value)
    with application_errors(partial(unreadable, binding)):
        try:
            if not (is_on_gpu(value) if library is None else library.is_on_gpu(value)):
                return None
            if library is None:
                found = _foreign(value, stream)
            else:
                found = library.view(value, stream.device)
                if binding.is_input and not found.is_contiguous:
                    found = library.view(library.contiguous(value), stream.device)
        except BindingError as error:
            raise BindingError(f"{binding.name}: {error}") from error
    _check(found, binding)
    return found


def _foreign(value: object, stream: CudaStream) -> GpuArray:
    view = view_of(value, stream)
    return GpuArray(
        view.address,
        view.shape,
        view.dtype,
        is_contiguous=view.is_contiguous,
        is_read_only=view.is_read_only,
        framework=None,
        keep_alive=view.keep_alive,
    )


def _check(array: GpuArray, binding: Binding) -> None:
    wanted = binding.dtype
    are_bits = (
        wanted is DType.BFLOAT16
        and array.dtype is DType.UINT16
        and isinstance(array.framework, _Cupy)
    )
    if array.dtype is not wanted and not are_bits:
        raise BindingError(
            f"{binding.name}: the array has dtype {array.dtype.value}, and {wanted.value} is "
            "needed; convert it"
        )
    if not array.is_contiguous:
        raise BindingError(
            f"{binding.name}: a GPU array must be contiguous; make a contiguous copy"
        )
    if not binding.is_input and array.is_read_only:
        raise BindingError(f"{binding.name}: an output array must be writable")


def _elsewhere(index: int, device: CudaDevice) -> BindingError:
    return BindingError(
        f"the array is on cuda:{index}, and the engine is on cuda:{device.index}; move the array"
    )


class ResultMaker:
    """Makes the results of a run as arrays of the library of its inputs."""

    def __init__(self, like: object, device: CudaDevice) -> None:
        """Take an input that is on the GPU."""
        self._device = device
        self.framework = library_with_stream(like)
        self._home = library_of(like)

    def current_stream(self) -> int | None:
        """Handle of the stream on which the library works; None when it has none."""
        return None if self.framework is None else self.framework.current_stream(self._device)

    def empty(self, binding: Binding, shape: Sequence[int]) -> tuple[Any, int]:
        """A new array, and its address."""
        if self.framework is not None:
            array = self.framework.empty(shape, binding.dtype, self._device)
            return array, self.framework.address(array)
        size = prod(shape) * binding.dtype.size_bytes
        memory = CudaMemory(self._device).allocate(size, "results")
        return CudaArray(memory, binding.dtype, shape), memory.address

    def finish(self, array: Any, shape: Sequence[int], stream: CudaStream) -> Any:
        """The array cut to the shape that the run gave it, for whoever asked; not waited for."""
        if tuple(array.shape) != tuple(shape):
            if self.framework is None:
                array = CudaArray(array.allocation, array.dtype, shape)
            else:
                array = array.reshape(-1)[: prod(shape)].reshape(tuple(shape))
        if self.framework is not None:
            return array
        array.written_on(stream)
        if self._home is None or not hasattr(self._home, "from_dlpack"):
            return array
        return self._home.from_dlpack(array)


def libraries_of(arrays: Sequence[Any]) -> set[ArrayLibrary | None]:
    """Whose arrays are on the GPU; None stands for those without a current stream."""
    return {array.framework for array in arrays if isinstance(array, GpuArray)}


class CheckedAddresses:
    """Addresses that were seen to be one GPU's, so that the driver is asked once."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._known: set[int] = set()

    def check(self, binding: Binding, address: int) -> None:
        """Refuse at once what would make the GPU unusable for the whole process.

        Raises:
            BindingError: the address is not in memory that the GPU reaches.
        """
        if address in self._known:
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
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add(address)


def check_selected(device: CudaDevice) -> None:
    """Refuse a thread that has selected another GPU: its addresses would be that's.

    Raises:
        ContextError: it has.
    """
    index = selected_index(device.driver)
    if index is not None and index != device.index:
        raise ContextError(
            f"the engine is bound to cuda:{device.index}, and the current device of this thread "
            f"is cuda:{index}; select the engine's device, or load the engine with "
            f"device='cuda:{index}'"
        )
