"""Cubins on a GPU: loaded once, launched by name.

Source: CUDA Driver API reference, "Library Management" and "Execution Control".
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from smelt.devices.cuda._cubin import check_is_whole
from smelt.errors import DeviceError, EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream

_FREE_SHARED_BYTES: Final = 48 << 10
"""Dynamic shared memory that a kernel may have without asking."""


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A kernel, ready to be launched on one GPU."""

    name: str
    handle: Any


class CudaModule:
    """The kernels of one code object on one GPU; unloaded when closed or forgotten."""

    __slots__ = ("__weakref__", "_finalizer", "_functions", "_library", "device")

    def __init__(self, device: CudaDevice, code: bytes) -> None:
        """Load a cubin.

        Raises:
            EngineFormatError: it is not a cubin, or damaged.
            EngineMismatchError: it is for another GPU, or newer than the driver.
            CudaError: the driver refuses it for another reason.
        """
        check_is_whole(code)
        self.device = device
        what = f"code of {len(code)} bytes cannot be loaded on {device!r}"
        self._library: Any = device.call("cuLibraryLoadData", code, [], [], 0, [], [], 0, what=what)
        self._functions: dict[tuple[str, int], CudaFunction] = {}
        self._finalizer = weakref.finalize(self, device.give_back, "cuLibraryUnload", self._library)
        self._finalizer.atexit = False
        # A library is looked at only when it is first used; what is wrong with it shall come now.
        device.call("cuLibraryGetModule", self._library, what=what)

    def function(self, name: str, dynamic_shared_bytes: int = 0) -> CudaFunction:
        """Return the kernel of this name, allowed to have so much dynamic shared memory.

        Raises:
            EngineFormatError: there is no such kernel.
            DeviceError: the GPU has less shared memory.
        """
        key = (name, dynamic_shared_bytes)
        if key not in self._functions:
            self._functions[key] = self._find(name, dynamic_shared_bytes)
        return self._functions[key]

    def _find(self, name: str, dynamic_shared_bytes: int) -> CudaFunction:
        device = self.device
        most = device.properties.shared_bytes
        if dynamic_shared_bytes > most:
            raise DeviceError(
                f"{name} needs {dynamic_shared_bytes} bytes of shared memory, and {device!r} "
                f"allows {most} per block; build the engine for this GPU"
            )
        try:
            kernel = device.call("cuLibraryGetKernel", self._library, name.encode())
        except DeviceError as error:
            raise EngineFormatError(f"the code has no kernel {name!r}: {error}") from error
        handle = device.call("cuKernelGetFunction", kernel)
        if dynamic_shared_bytes > _FREE_SHARED_BYTES:
            kinds = device.driver.api.CUfunction_attribute
            largest = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device.call("cuFuncSetAttribute", handle, largest, dynamic_shared_bytes)
        return CudaFunction(name, handle)

    def close(self) -> None:
        """Unload the code once no launch uses it; again is harmless."""
        self._finalizer()


class Arguments(Protocol):
    """Arguments of one launch, in memory that the driver reads."""

    @property
    def address(self) -> int:
        """Where the pointers to the arguments lie."""
        ...


class KernelArguments:
    """The arguments of one launch, in memory that the driver reads: words of 64 bits.

    A word holds an address or an integer; a kernel that takes 32 bits reads the low half.
    """

    __slots__ = ("_pointers", "_words")

    def __init__(self, words: Sequence[int]) -> None:
        """Take addresses and integers of up to 64 bits, negative or not."""
        self._words = (ctypes.c_uint64 * len(words))(*[word & (1 << 64) - 1 for word in words])
        first = ctypes.addressof(self._words)
        addresses = range(first, first + ctypes.sizeof(self._words), ctypes.sizeof(ctypes.c_uint64))
        self._pointers = (ctypes.c_void_p * max(len(words), 1))(*addresses)

    @property
    def address(self) -> int:
        """Where the pointers to the arguments lie, as a launch wants it."""
        return ctypes.addressof(self._pointers)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """How many threads a launch has, and what each block gets."""

    grid: tuple[int, int, int]
    """Blocks."""
    threads: int
    """Threads of a block."""
    dynamic_shared_bytes: int = 0
    supports_pdl: bool = False
    """Whether it may start before the launch before it has ended: its code waits by itself
    (programmatic dependent launch)."""
    cluster: int = 1
    """Blocks that run at the same time, side by side in the grid; their number divides it."""


def launch(
    function: CudaFunction,
    shape: LaunchShape,
    arguments: Arguments,
    stream: CudaStream,
) -> None:
    """Queue one launch; the arguments are read before this returns.

    Raises:
        CudaError: the driver refuses the shape, or earlier work failed.
    """
    if 0 in shape.grid:
        return
    api = stream.device.driver.api
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.threads, 1, 1
    config.sharedMemBytes = shape.dynamic_shared_bytes
    config.hStream = stream.handle
    attributes: list[Any] = []
    if shape.supports_pdl:
        early = api.CUlaunchAttribute()
        early.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    if shape.cluster > 1:
        side_by_side = api.CUlaunchAttribute()
        side_by_side.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = side_by_side.value.clusterDim
        extents.x, extents.y, extents.z = shape.cluster, 1, 1
        attributes.append(side_by_side)
    config.attrs, config.numAttrs = attributes, len(attributes)
    what = f"{function.name} on {shape.grid} blocks of {shape.threads} threads"
    stream.device.call("cuLaunchKernelEx", config, function.handle, arguments.address, 0, what=what)
