"""Loading of cubins on a GPU, and launches of their kernels.

Source: CUDA Driver API reference, "Library Management" and "Execution Control".
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.devices._allocations import Resource
from smelt.devices.cuda._cubin import check_is_whole
from smelt.errors import DeviceError, EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._kernel_loader import LaunchArguments
    from smelt.devices.cuda._stream import CudaStream

_FREE_SHARED_BYTES: Final = 48 << 10
"""Dynamic shared memory in bytes above which a kernel must opt in by an attribute."""


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A kernel, ready to be launched on one GPU."""

    name: str
    handle: Any


class CudaModule(Resource):
    """Kernels of one cubin on one GPU; unloaded when closed or garbage-collected."""

    __slots__ = ("_functions", "_library", "device")

    def __init__(self, device: CudaDevice, code: bytes) -> None:
        """Load a cubin.

        Raises:
            EngineFormatError: the code is not a cubin, or is damaged.
            EngineMismatchError: the code is for another GPU or newer than the driver.
            CudaError: the driver rejects the code for another reason.
        """
        check_is_whole(code)
        self.device = device
        what = f"the code of {len(code)} bytes cannot be loaded on {device!r}"
        self._library: Any = device.call("cuLibraryLoadData", code, [], [], 0, [], [], 0, what=what)
        self._functions: dict[tuple[str, int], CudaFunction] = {}
        self.release_by(device.give_back, "cuLibraryUnload", self._library)
        # The driver loads a library lazily: force loading now so that errors surface here.
        device.call("cuLibraryGetModule", self._library, what=what)

    def function(self, name: str, dynamic_shared_bytes: int = 0) -> CudaFunction:
        """Return a kernel by name, configured for ``dynamic_shared_bytes`` of shared memory.

        Raises:
            EngineFormatError: the code has no such kernel.
            DeviceError: the GPU has less shared memory per block.
        """
        key = (name, dynamic_shared_bytes)
        if key not in self._functions:
            self._functions[key] = self._find(name, dynamic_shared_bytes)
        return self._functions[key]

    def _find(self, name: str, dynamic_shared_bytes: int) -> CudaFunction:
        device = self.device
        limit = device.properties.shared_bytes
        if dynamic_shared_bytes > limit:
            raise DeviceError(
                f"the kernel {name} needs {dynamic_shared_bytes} bytes of shared memory, but "
                f"{device!r} allows {limit} per block; build the engine for this GPU"
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


class KernelArguments:
    """The arguments of one launch, in memory that the driver reads: words of 64 bits.

    A word holds an address or an integer; a kernel that takes 32 bits reads the low half.
    """

    __slots__ = ("_pointers", "_words")

    def __init__(self, words: Sequence[int]) -> None:
        """Store addresses and integers of up to 64 bits, signed or unsigned."""
        self._words = (ctypes.c_uint64 * len(words))(*[word & (1 << 64) - 1 for word in words])
        first = ctypes.addressof(self._words)
        addresses = range(first, first + ctypes.sizeof(self._words), ctypes.sizeof(ctypes.c_uint64))
        self._pointers = (ctypes.c_void_p * max(len(words), 1))(*addresses)

    @property
    def address(self) -> int:
        """Address of the array of pointers to the arguments, as cuLaunchKernelEx expects it."""
        return ctypes.addressof(self._pointers)


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Grid, block size, shared memory and attributes of a launch."""

    grid: tuple[int, int, int]
    """Number of blocks in each dimension."""
    threads: int
    """Threads per block."""
    dynamic_shared_bytes: int = 0
    uses_pdl: bool = False
    """Whether it may start before its predecessor has ended (programmatic dependent launch); its
    code then waits for the predecessor's results."""
    cluster_size: int = 1
    """Blocks per cluster, which run at the same time; the grid must be a multiple of it."""


def launch(
    function: CudaFunction,
    config: LaunchConfig,
    arguments: KernelArguments | LaunchArguments,
    stream: CudaStream,
) -> None:
    """Enqueue one launch; the arguments are read before the function returns.

    Raises:
        CudaError: the driver rejects the launch, or earlier work failed.
    """
    if 0 in config.grid:
        return
    api = stream.device.driver.api
    native = api.CUlaunchConfig()
    native.gridDimX, native.gridDimY, native.gridDimZ = config.grid
    native.blockDimX, native.blockDimY, native.blockDimZ = config.threads, 1, 1
    native.sharedMemBytes = config.dynamic_shared_bytes
    native.hStream = stream.handle
    attributes: list[Any] = []
    if config.uses_pdl:
        pdl = api.CUlaunchAttribute()
        pdl.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        pdl.value.programmaticStreamSerializationAllowed = 1
        attributes.append(pdl)
    if config.cluster_size > 1:
        cluster = api.CUlaunchAttribute()
        cluster.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = cluster.value.clusterDim
        extents.x, extents.y, extents.z = config.cluster_size, 1, 1
        attributes.append(cluster)
    native.attrs, native.numAttrs = attributes, len(attributes)
    what = (
        f"kernel {function.name} cannot be launched with grid {config.grid} and "
        f"{config.threads} threads per block"
    )
    stream.device.call("cuLaunchKernelEx", native, function.handle, arguments.address, 0, what=what)
