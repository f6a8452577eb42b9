"""Cubins on a GPU: loaded once, launched by name.

Source: CUDA Driver API reference, "Library Management" and "Execution Control".
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from smelt.errors import DeviceError, EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream

WORD_BYTES: Final = 8
TENSOR_MAP_BYTES: Final = 128
_TENSOR_MAP_ALIGNMENT: Final = 64
_FREE_SHARED_BYTES: Final = 48 << 10
"""Dynamic shared memory that a kernel may have without asking."""


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A kernel, ready to be launched on one GPU."""

    name: str
    handle: Any
    registers: int
    """Registers of a thread."""
    local_bytes: int
    """Memory of a thread for what registers do not hold."""
    shared_bytes: int
    """Shared memory of a block that the code itself declares."""
    max_threads: int
    """Threads that a block may have."""


class CudaModule:
    """The kernels of one code object on one GPU; unloaded when closed or forgotten."""

    __slots__ = ("__weakref__", "_finalizer", "_functions", "_library", "device")

    def __init__(self, device: CudaDevice, code: bytes) -> None:
        """Load a cubin.

        Raises:
            EngineMismatchError: it is for another GPU, or newer than the driver.
            CudaError: the driver refuses it for another reason.
        """
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
                f"{name} needs {dynamic_shared_bytes} bytes of shared memory, and a block of "
                f"{device!r} has {most}; build the engine for this GPU"
            )
        try:
            kernel = device.call("cuLibraryGetKernel", self._library, name.encode())
        except DeviceError as error:
            raise EngineFormatError(f"the code has no kernel {name!r}: {error}") from error
        handle = device.call("cuKernelGetFunction", kernel)
        kinds = device.driver.api.CUfunction_attribute
        if dynamic_shared_bytes > _FREE_SHARED_BYTES:
            largest = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device.call("cuFuncSetAttribute", handle, largest, dynamic_shared_bytes)

        def read(attribute: str) -> int:
            kind = getattr(kinds, f"CU_FUNC_ATTRIBUTE_{attribute}")
            return int(device.call("cuFuncGetAttribute", kind, handle))

        return CudaFunction(
            name,
            handle,
            registers=read("NUM_REGS"),
            local_bytes=read("LOCAL_SIZE_BYTES"),
            shared_bytes=read("SHARED_SIZE_BYTES"),
            max_threads=read("MAX_THREADS_PER_BLOCK"),
        )

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
    """The arguments of one launch, in memory that the driver reads: words and tensor maps.

    A word holds an address or an integer; a kernel that takes 32 bits reads the low half.
    """

    __slots__ = ("_memory", "_places", "_pointers")

    def __init__(self, kinds: Sequence[int]) -> None:
        """Make room; ``kinds`` has the size of each, `WORD_BYTES` or `TENSOR_MAP_BYTES`."""
        places: list[int] = []
        end = 0
        for size in kinds:
            alignment = _TENSOR_MAP_ALIGNMENT if size == TENSOR_MAP_BYTES else WORD_BYTES
            end = -(-end // alignment) * alignment
            places.append(end)
            end += size
        self._memory = (ctypes.c_uint8 * (end + _TENSOR_MAP_ALIGNMENT))()
        base = ctypes.addressof(self._memory)
        base += -base % _TENSOR_MAP_ALIGNMENT
        self._places = [base + place for place in places]
        self._pointers = (ctypes.c_void_p * max(len(places), 1))(*self._places)

    @property
    def address(self) -> int:
        """Where the pointers to the arguments lie, as a launch wants it."""
        return ctypes.addressof(self._pointers)

    def set_word(self, position: int, value: int) -> None:
        """Give an address or an integer of up to 64 bits, negative or not."""
        ctypes.c_uint64.from_address(self._places[position]).value = value & (1 << 64) - 1

    def set_tensor_map(self, position: int, content: bytes) -> None:
        """Give an encoded tensor map. Raises ValueError: it has another size."""
        if len(content) != TENSOR_MAP_BYTES:
            raise ValueError(f"a tensor map has {TENSOR_MAP_BYTES} bytes, not {len(content)}")
        ctypes.memmove(self._places[position], content, TENSOR_MAP_BYTES)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """How many threads a launch has, and what each block gets."""

    grid: tuple[int, int, int]
    """Blocks."""
    threads: int
    """Threads of a block."""
    dynamic_shared_bytes: int = 0
    cluster: int = 1
    """Blocks, along the grid's first axis, that share memory."""
    may_start_early: bool = False
    """Whether it may start before the launch before it has ended: its code waits by itself
    (programmatic dependent launch)."""


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
    attributes = list(_attributes(api, shape))
    config.attrs, config.numAttrs = attributes, len(attributes)
    what = f"{function.name} on {shape.grid} blocks of {shape.threads} threads"
    stream.device.call("cuLaunchKernelEx", config, function.handle, arguments.address, 0, what=what)


def _attributes(api: Any, shape: LaunchShape) -> Sequence[Any]:
    found: list[Any] = []
    if shape.may_start_early:
        early = api.CUlaunchAttribute()
        early.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        found.append(early)
    if shape.cluster > 1:
        cluster = api.CUlaunchAttribute()
        cluster.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x = shape.cluster
        cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
        found.append(cluster)
    return found
