# ruff: noqa: N802  (functions have the driver's own names)
"""A driver without a GPU: the functions of ``cuda.bindings.driver`` that smelt calls, on the host.

Memory is the process's own, streams do their work at once, and "code" names Python functions, so
what is launched, captured, waited for and given back can be looked at. It is as strict as the real
one: unknown handles, code for other GPUs and leaks are seen.
"""

from __future__ import annotations

import ctypes
import json
from enum import IntEnum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class CUresult(IntEnum):
    """The results that tests see."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


class _Names:
    """An enumeration whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        return name


class _Failing:
    """A function that fails in one way."""

    def __init__(self, status: CUresult) -> None:
        self._status = status

    def __call__(self, *_arguments: object) -> tuple[CUresult, None, None]:
        return self._status, None, None


OK = CUresult.CUDA_SUCCESS
BAD_HANDLE = CUresult.CUDA_ERROR_INVALID_HANDLE
MOST_THREADS = 1024


def code_for(architecture: str, *kernels: str) -> bytes:
    """Return "code" for an architecture that holds kernels by name."""
    return json.dumps([architecture, kernels]).encode()


class StubDriver:
    """Put it where ``cuda.bindings.driver`` is expected."""

    CUdevice_attribute = CUfunction_attribute = CUpointer_attribute = _Names()
    CUstreamCaptureMode = CUlaunchAttributeID = _Names()
    CUstream = int

    def __init__(self, *, version: int = 13000, devices: int = 2, memory: int = 1 << 30) -> None:
        self.version, self.devices, self.memory = version, devices, memory
        self.architecture = "sm_90"
        self.kernels: dict[str, Callable[[Sequence[int]], None]] = {}
        self.live: dict[int, tuple[str, Any]] = {}
        """Every handle that was given out and not given back: its kind, and what it stands for."""
        self.calls: list[str] = []
        self.failures: dict[str, CUresult] = {}
        """Functions that fail at their next call, and how."""
        self.current: object = None
        self.launches: list[SimpleNamespace] = []
        self.words = 0
        """Argument words that every launch has."""
        self._capture: list[Callable[[], object]] | None = None
        self._next = 1000

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or not callable(found) or name == "current":
            return found
        self.calls.append(name)
        if name in self.failures:
            failure = self.failures.pop(name)
            return _Failing(failure)
        return found

    def _new(self, kind: str, content: Any = None) -> int:
        self._next += 8
        self.live[self._next] = (kind, content)
        return self._next

    def _drop(self, kind: str, handle: Any) -> tuple[CUresult]:
        if self.live.get(int(handle), ("",))[0] != kind:
            return (BAD_HANDLE,)
        del self.live[int(handle)]
        return (OK,)

    def _do(self, work: Callable[[], object]) -> tuple[CUresult]:
        if self._capture is None:
            work()
        else:
            self._capture.append(work)
        return (OK,)

    def live_kinds(self) -> list[str]:
        """Return the kinds of what was not given back, sorted."""
        return sorted(kind for kind, _ in self.live.values())

    # ---- the driver, devices, contexts

    def cuInit(self, _flags: int) -> tuple[CUresult]:
        return (OK if self.devices else CUresult.CUDA_ERROR_NO_DEVICE,)

    def cuDriverGetVersion(self) -> tuple[CUresult, int]:
        return OK, self.version

    def cuGetErrorName(self, status: CUresult) -> tuple[CUresult, bytes]:
        return OK, status.name.encode()

    def cuGetErrorString(self, status: CUresult) -> tuple[CUresult, bytes]:
        return OK, status.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower().encode()

    def cuDeviceGetCount(self) -> tuple[CUresult, int]:
        return OK, self.devices

    def cuDeviceGet(self, index: int) -> tuple[CUresult, int]:
        return OK, index

    def cuDeviceGetName(self, _size: int, device: int) -> tuple[CUresult, bytes]:
        return OK, f"Stub {device}\0".encode()

    def cuDeviceTotalMem(self, _device: int) -> tuple[CUresult, int]:
        return OK, self.memory

    def cuDeviceGetAttribute(self, kind: str, _device: int) -> tuple[CUresult, int]:
        values = {"COUNT": 132, "OPTIN": 232448, "SIZE": 60 << 20, "MAJOR": 9, "MINOR": 0}
        return OK, values[kind.rpartition("_")[2]]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, int]:
        return OK, self._new("context", device)

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[CUresult]:
        held = [h for h, found in self.live.items() if found == ("context", device)]
        return self._drop("context", held[0])

    def cuCtxSetCurrent(self, context: int) -> tuple[CUresult]:
        self.current = self.live[context][1]
        return (OK,)

    def cuCtxSynchronize(self) -> tuple[CUresult]:
        return (OK,)

    # ---- memory

    def _taken(self) -> int:
        return sum(len(c) for kind, c in self.live.values() if kind == "memory")

    def cuMemGetInfo(self) -> tuple[CUresult, int, int]:
        return OK, self.memory - self._taken(), self.memory

    def cuMemAlloc(self, size: int) -> tuple[CUresult, int]:
        if self._taken() + size > self.memory:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        memory = (ctypes.c_uint8 * size)()
        address = ctypes.addressof(memory)
        self.live[address] = ("memory", memory)
        return OK, address

    def cuMemFree(self, address: int) -> tuple[CUresult]:
        return self._drop("memory", address)

    def cuMemAllocAsync(self, size: int, _stream: int) -> tuple[CUresult, int]:
        return self.cuMemAlloc(size)

    def cuMemFreeAsync(self, address: int, _stream: int) -> tuple[CUresult]:
        return self._drop("memory", address)

    def cuMemHostAlloc(self, size: int, _flags: int) -> tuple[CUresult, int]:
        memory = (ctypes.c_uint8 * size)()
        self.live[ctypes.addressof(memory)] = ("pinned", memory)
        return OK, ctypes.addressof(memory)

    def cuMemFreeHost(self, address: int) -> tuple[CUresult]:
        return self._drop("pinned", address)

    def cuMemcpyAsync(self, target: int, source: int, size: int, _s: int) -> tuple[CUresult]:
        return self._do(lambda: ctypes.memmove(target, source, size))

    def cuMemsetD8Async(self, target: int, value: int, size: int, _s: int) -> tuple[CUresult]:
        return self._do(lambda: ctypes.memset(target, value, size))

    def cuPointerGetAttribute(self, _kind: str, address: int) -> tuple[CUresult, int | None]:
        if self.live.get(address, ("",))[0] != "memory":
            return CUresult.CUDA_ERROR_INVALID_VALUE, None
        return OK, 0

    # ---- streams and events

    def cuStreamCreate(self, _flags: int) -> tuple[CUresult, int]:
        return OK, self._new("stream")

    def cuStreamDestroy(self, stream: int) -> tuple[CUresult]:
        return self._drop("stream", stream)

    def cuStreamQuery(self, _stream: int) -> tuple[CUresult]:
        return (OK,)

    def cuStreamSynchronize(self, _stream: int) -> tuple[CUresult]:
        return (
            CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if self._capture is not None else OK,
        )

    def cuStreamWaitEvent(self, _stream: int, event: int, _flags: int) -> tuple[CUresult]:
        return (OK if event in self.live else BAD_HANDLE,)

    def cuEventCreate(self, _flags: int) -> tuple[CUresult, int]:
        return OK, self._new("event")

    def cuEventDestroy(self, event: int) -> tuple[CUresult]:
        return self._drop("event", event)

    def cuEventRecord(self, event: int, _stream: int) -> tuple[CUresult]:
        return (OK if event in self.live else BAD_HANDLE,)

    def cuEventQuery(self, _event: int) -> tuple[CUresult]:
        return (OK,)

    def cuEventSynchronize(self, _event: int) -> tuple[CUresult]:
        return (OK,)

    def cuEventElapsedTime(self, _start: int, _end: int) -> tuple[CUresult, float]:
        return OK, 0.25

    # ---- code and launches

    def cuLibraryLoadData(self, code: bytes, *_options: Any) -> tuple[CUresult, int]:
        try:
            architecture, kernels = json.loads(code)
        except ValueError:
            return CUresult.CUDA_ERROR_INVALID_IMAGE, 0
        if architecture != self.architecture:  # which is seen when it is first used
            return OK, self._new("library", None)
        return OK, self._new("library", kernels)

    def cuLibraryGetModule(self, library: int) -> tuple[CUresult, int]:
        if self.live[library][1] is None:
            return CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, 0
        return OK, library

    def cuLibraryUnload(self, library: int) -> tuple[CUresult]:
        return self._drop("library", library)

    def cuLibraryGetKernel(self, library: int, name: bytes) -> tuple[CUresult, str]:
        known = name.decode() in self.live[library][1]
        return (OK if known else CUresult.CUDA_ERROR_NOT_FOUND), name.decode()

    def cuKernelGetFunction(self, kernel: str) -> tuple[CUresult, str]:
        return OK, kernel

    def cuFuncSetAttribute(self, _function: str, _kind: str, _value: int) -> tuple[CUresult]:
        return (OK,)

    def cuFuncGetAttribute(self, _kind: str, _function: str) -> tuple[CUresult, int]:
        return OK, 64

    def CUlaunchConfig(self) -> SimpleNamespace:
        return SimpleNamespace()

    def CUlaunchAttribute(self) -> SimpleNamespace:
        return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))

    def cuLaunchKernelEx(
        self, config: SimpleNamespace, function: str, arguments: int, _extra: int
    ) -> tuple[CUresult]:
        if config.blockDimX > MOST_THREADS:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        pointers = (ctypes.c_void_p * self.words).from_address(arguments)
        words = [ctypes.c_uint64.from_address(p or 0).value for p in pointers]
        self.launches.append(config)
        run = self.kernels.get(function)
        return self._do(lambda: run(words) if run else None)

    # ---- graphs

    def cuStreamBeginCapture(self, _stream: int, _mode: str) -> tuple[CUresult]:
        self._capture = []
        return (OK,)

    def cuStreamEndCapture(self, _stream: int) -> tuple[CUresult, int]:
        recorded, self._capture = self._capture, None
        return OK, self._new("graph", recorded)

    def cuGraphDestroy(self, graph: int) -> tuple[CUresult]:
        return self._drop("graph", graph)

    def cuGraphInstantiate(self, graph: int, _flags: int) -> tuple[CUresult, int]:
        return OK, self._new("executable graph", self.live[graph][1])

    def cuGraphUpload(self, _graph: int, _stream: int) -> tuple[CUresult]:
        return (OK,)

    def cuGraphLaunch(self, graph: int, _stream: int) -> tuple[CUresult]:
        for work in self.live[graph][1]:
            work()
        return (OK,)

    def cuGraphExecDestroy(self, graph: int) -> tuple[CUresult]:
        return self._drop("executable graph", graph)
