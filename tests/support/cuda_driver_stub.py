# ruff: noqa: N802  (functions have the driver's own names)
"""A driver without a GPU: the functions of ``cuda.bindings.driver`` that smelt calls, on the host.

Memory is the process's own and "code" names Python functions, so what is launched, captured, waited
for and given back can be looked at. It is as strict as the real one: unknown handles, code for
other GPUs and leaks are seen. Streams do their work at once, or, if they are *lazy*, as late as the
rules allow: only when somebody waits for it, the latest of what may go on at once first. Whoever
relies on an order that nothing guarantees then gets wrong results.
"""

from __future__ import annotations

import ctypes
import functools
import json
from enum import IntEnum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.cubins import Kernel, make_cubin
from tests.support.cuda_stream_stub import Node, Queue, Queues, perform

if TYPE_CHECKING:
    from collections.abc import Callable


class CUresult(IntEnum):
    """The results that tests see."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
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
MAX_THREADS = 1024
_MEMORY_ALIGNMENT = 256
GRANULE = 4096
"""Memory is mapped behind reserved addresses in multiples of it."""
_SPACE_BYTES = 256 << 20
_POISON = 0xFF
"""No number in any float."""


def code_for(architecture: str, *kernels: str) -> bytes:
    """Return "code" for an architecture that holds kernels by name: a cubin, and they behind it."""
    cubin = make_cubin(*(Kernel(name) for name in kernels))
    return cubin + b"\n" + json.dumps([architecture, kernels]).encode()


def _aligned(size: int, alignment: int) -> Any:
    """New memory at a multiple of ``alignment``."""
    memory = np.empty(size + alignment, np.uint8)
    start = -int(memory.ctypes.data) % alignment
    return memory[start : start + size]


class StubDriver:
    """Put it where ``cuda.bindings.driver`` is expected."""

    CUdevice_attribute = CUfunction_attribute = CUpointer_attribute = _Names()
    CUstreamCaptureMode = CUlaunchAttributeID = _Names()
    CUmemAllocationType = CUmemLocationType = CUmemAccess_flags = _Names()
    CUmemAllocationGranularity_flags = _Names()
    CUstream = int

    def __init__(
        self,
        *,
        version: int = 13000,
        devices: int = 2,
        memory: int = 1 << 30,
        lazy: bool = False,
    ) -> None:
        self.version, self.devices, self.memory, self.lazy = version, devices, memory, lazy
        self.architecture = "sm_90"
        self.kernels: dict[str, Callable[[list[int], int], None]] = {}
        """What kernels do with their argument words and number of blocks."""
        self.words: dict[str, int] = {}
        """Argument words of each kernel."""
        self.live: dict[int, tuple[str, Any]] = {}
        """Every handle that was given out and not given back: its kind, and what it stands for."""
        self.calls: list[str] = []
        self.failures: dict[str, CUresult] = {}
        """Functions that fail at their next call, and how."""
        self.current: int | None = None
        """The thread's GPU."""
        self.synchronized: list[int | None] = []
        """The thread's GPU at each synchronization of a whole GPU."""
        self.launches: list[SimpleNamespace] = []
        self.has_virtual_memory = True
        self.now_ms: float = 0.0
        """Of a clock, where there is one."""
        self._owners: dict[int, int | None] = {}
        self._space = _aligned(_SPACE_BYTES, GRANULE)
        """What may be reserved; the system gives memory for what is written."""
        self._unreachable: dict[int, Any] = {}
        """Memory by its address that is mapped, and that nobody may use yet."""
        self._queues = Queues()
        self._records: dict[int, tuple[int, int]] = {}
        """For each event the stream and the number at which it was last recorded."""
        self._clock = 0
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

    def _do(self, stream: int, work: Callable[[], object]) -> tuple[CUresult]:
        """Do work, or queue it, or let it be recorded."""
        queue = self._queues[int(stream)]
        if queue.captured is not None:
            node = Node(work, queue.last)
            queue.captured.append(node)
            queue.last = [node]
            return (OK,)
        if queue.is_blocking:  # the default stream takes turns with these
            for other, rival in self._queues.items():
                if rival.is_blocking and 0 in {other, int(stream)} and rival is not queue:
                    self._queue(queue, functools.partial(self._run, other, self._clock))
        self._queue(queue, work)
        if not self.lazy:
            self._run(int(stream))
        return (OK,)

    def _queue(self, queue: Queue, work: Callable[[], object]) -> None:
        self._clock += 1
        queue.work.append((self._clock, work))

    def _run(self, stream: int, until: int | None = None) -> None:
        """Do what was queued, up to a number."""
        queue = self._queues.get(stream)
        limit = self._clock if until is None else until
        while queue is not None and queue.work and queue.work[0][0] <= limit:
            queue.work.popleft()[1]()

    def _run_all(self) -> None:
        for stream in reversed(list(self._queues)):
            self._run(stream)

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
        values["SUPPORTED"] = self.has_virtual_memory
        return OK, values[kind.rpartition("_")[2]]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, int]:
        return OK, self._new("context", device)

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[CUresult]:
        held = [h for h, found in self.live.items() if found == ("context", device)]
        return self._drop("context", held[0])

    def cuCtxSetCurrent(self, context: int) -> tuple[CUresult]:
        self.current = self.live[context][1] if context else None
        return (OK,)

    def cuCtxGetCurrent(self) -> tuple[CUresult, int]:
        held = [h for h, found in self.live.items() if found == ("context", self.current)]
        return OK, held[0] if held else 0

    def cuCtxGetDevice(self) -> tuple[CUresult, int | None]:
        if self.current is None:
            return CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        return OK, self.current

    def cuCtxSynchronize(self) -> tuple[CUresult]:
        self.synchronized.append(self.current)
        self._run_all()
        return (OK,)

    # ---- memory

    def _taken(self) -> int:
        return sum(len(c) for kind, c in self.live.values() if kind == "memory")

    def cuMemGetInfo(self) -> tuple[CUresult, int, int]:
        return OK, self.memory - self._taken(), self.memory

    def cuMemAlloc(self, size: int) -> tuple[CUresult, int]:
        if self._taken() + size > self.memory:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        return OK, self._memory("memory", size)

    def _memory(self, kind: str, size: int) -> int:
        memory = _aligned(size, _MEMORY_ALIGNMENT)
        memory[:] = _POISON
        address = int(memory.ctypes.data)
        self.live[address] = (kind, memory)
        self._owners[address] = self.current
        return address

    def _owner(self, kind: str, address: int) -> int | None:
        """The first address of the live memory that an address is in."""
        for first, (found, memory) in self.live.items():
            if found == kind and first <= address < first + len(memory):
                return first
        return None

    @property
    def _captures(self) -> bool:
        """Whether any stream is being recorded."""
        return any(queue.captured is not None for queue in self._queues.values())

    def cuMemFree(self, address: int) -> tuple[CUresult]:
        if self._captures:
            return (CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        self._run_all()
        return self._drop("memory", address)

    def cuMemHostAlloc(self, size: int, _flags: int) -> tuple[CUresult, int]:
        return OK, self._memory("pinned", size)

    def cuMemFreeHost(self, address: int) -> tuple[CUresult]:
        self._run_all()
        return self._drop("pinned", address)

    def cuMemcpyAsync(self, target: int, source: int, size: int, s: int) -> tuple[CUresult]:
        if self._lacks_memory(target, size) or self._lacks_memory(source, size):
            return (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
        known = [
            self._owner("memory", address) is None and self._owner("pinned", address) is None
            for address in (target, source)
        ]
        if known[1]:  # pageable memory is read at once
            data = ctypes.string_at(source, size)
            return self._do(s, lambda: ctypes.memmove(target, data, size))
        done = self._do(s, lambda: ctypes.memmove(target, source, size))
        if known[0]:  # and waited for when it is written
            self._run(int(s))
        return done

    def cuMemsetD8Async(self, target: int, value: int, size: int, s: int) -> tuple[CUresult]:
        if self._lacks_memory(target, size):
            return (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
        return self._do(s, lambda: ctypes.memset(target, value, size))

    def cuPointerGetAttribute(self, kind: str, address: int) -> tuple[CUresult, int | None]:
        found = self._owner("memory", address)
        is_pinned = found is None and self._owner("pinned", address) is not None
        if found is None and not is_pinned:
            return CUresult.CUDA_ERROR_INVALID_VALUE, None
        if kind.endswith("MEMORY_TYPE"):
            return OK, 1 if is_pinned else 2
        if kind.endswith("DEVICE_ORDINAL"):
            return OK, 0  # whatever the driver says: an error of cuda.bindings
        owner = None if found is None else self._owners[found]
        return OK, next(h for h, live in self.live.items() if live == ("context", owner))

    # ---- addresses without memory

    def CUmemAllocationProp(self) -> SimpleNamespace:
        return SimpleNamespace(location=SimpleNamespace())

    def CUmemAccessDesc(self) -> SimpleNamespace:
        return SimpleNamespace(location=SimpleNamespace())

    def cuMemGetAllocationGranularity(self, _what: object, _flag: str) -> tuple[CUresult, int]:
        return OK, GRANULE

    def cuMemAddressReserve(
        self, size: int, _alignment: int, _address: int, _flags: int
    ) -> tuple[CUresult, int]:
        if size % GRANULE:
            return CUresult.CUDA_ERROR_INVALID_VALUE, 0
        start, end = 0, len(self._space)  # the first that are free, so often those given back last
        base = int(self._space.ctypes.data)
        taken = [(-at - base, len(c)) for at, (k, c) in self.live.items() if k == "addresses"]
        for first, length in sorted(taken):
            if start + size <= first:
                break
            start = first + length
        if start + size > end:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        addresses = self._space[start : start + size]
        addresses[:] = _POISON
        self.live[-base - start] = ("addresses", addresses)
        return OK, base + start

    def _reserved(self, address: int) -> Any:
        """The first of the reserved addresses that an address is of, and they; None if of none."""
        for first, (kind, addresses) in self.live.items():
            if kind == "addresses" and -first <= address < -first + len(addresses):
                return -first, addresses
        return None

    def _lacks_memory(self, address: int, size: int) -> bool:
        """Whether some of it is reserved and has no memory."""
        return any(
            self._reserved(place) is not None and self._owner("memory", place) is None
            for place in (*range(address, address + size, GRANULE), address + size - 1)
        )

    def cuMemCreate(self, size: int, _what: object, _flags: int) -> tuple[CUresult, int]:
        if self._taken() + size > self.memory:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        return OK, self._new("unmapped memory", size)

    def cuMemMap(
        self, address: int, size: int, _offset: int, memory: int, _flags: int
    ) -> tuple[CUresult]:
        found = self._reserved(address)
        taken = [self._owner("memory", p) for p in range(address, address + size, GRANULE)]
        if found is None or any(taken) or self.live[memory] != ("unmapped memory", size):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        start = address - found[0]
        self._unreachable[address] = found[1][start : start + size]
        return (OK,)

    def cuMemRelease(self, memory: int) -> tuple[CUresult]:
        return self._drop("unmapped memory", memory)

    def cuMemSetAccess(
        self, address: int, size: int, access: list[SimpleNamespace], count: int
    ) -> tuple[CUresult]:
        if len(self._unreachable.get(address, ())) != size or len(access) != count:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        self.live[address] = ("memory", self._unreachable.pop(address))
        self._owners[address] = self.current
        return (OK,)

    def cuMemUnmap(self, address: int, size: int) -> tuple[CUresult]:
        """Waits for nothing: that nobody uses it any more is the caller's concern."""
        if any(queue.work for queue in self._queues.values()):
            return (CUresult.CUDA_ERROR_NOT_READY,)
        if self._unreachable.pop(address, None) is None:
            memory = self.live.get(address, ("", ()))[1]
            if len(memory) != size or self._drop("memory", address) != (OK,):
                return (CUresult.CUDA_ERROR_INVALID_VALUE,)
            memory[:] = _POISON
        return (OK,)

    def cuMemAddressFree(self, address: int, size: int) -> tuple[CUresult]:
        """Fails where some are mapped, and where somebody wrote to those that were not."""
        kind, addresses = self.live.get(-address, ("", np.empty(0, np.uint8)))
        if len(addresses) != size or not (addresses == _POISON).all():
            return (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,)
        return self._drop(kind, -address)

    # ---- streams and events

    def cuStreamCreate(self, flags: int) -> tuple[CUresult, int]:
        handle = self._new("stream")
        self._queues[handle] = Queue(is_blocking=flags == 0)
        return OK, handle

    def cuStreamDestroy(self, stream: int) -> tuple[CUresult]:
        return self._drop("stream", stream)  # what was queued is done some time

    def cuStreamQuery(self, stream: int) -> tuple[CUresult]:
        return (CUresult.CUDA_ERROR_NOT_READY if self._queues[int(stream)].work else OK,)

    def cuStreamSynchronize(self, stream: int) -> tuple[CUresult]:
        if self._captures:
            return (CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        self._run(int(stream))
        return (OK,)

    def cuStreamWaitEvent(self, stream: int, event: int, _flags: int) -> tuple[CUresult]:
        if event not in self.live:
            return (BAD_HANDLE,)
        other, number = self._records.get(event, (0, 0))
        return self._do(stream, lambda: self._run(other, number))

    def cuEventCreate(self, _flags: int) -> tuple[CUresult, int]:
        return OK, self._new("event")

    def cuEventDestroy(self, event: int) -> tuple[CUresult]:
        return self._drop("event", event)

    def cuEventRecord(self, event: int, stream: int) -> tuple[CUresult]:
        if event not in self.live:
            return (BAD_HANDLE,)
        if self._queues[int(stream)].captured is not None:
            return (CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)
        done = self._do(stream, lambda: None)
        self._records[event] = (int(stream), self._clock)
        return done

    def cuEventRecordWithFlags(self, event: int, stream: int, flags: int) -> tuple[CUresult]:
        if flags != 1:
            return self.cuEventRecord(event, stream)
        if event not in self.live:
            return (BAD_HANDLE,)
        self._do(stream, lambda: None)
        self._queues[int(stream)].last[0].event = event
        return (OK,)

    def cuEventQuery(self, event: int) -> tuple[CUresult]:
        stream, number = self._records.get(event, (0, 0))
        queue = self._queues.get(stream)
        waits = queue is not None and queue.work and queue.work[0][0] <= number
        return (CUresult.CUDA_ERROR_NOT_READY if waits else OK,)

    def cuEventSynchronize(self, event: int) -> tuple[CUresult]:
        self._run(*self._records.get(event, (0, 0)))
        return (OK,)

    def cuEventElapsedTime(self, _start: int, _end: int) -> tuple[CUresult, float]:
        return OK, 0.25

    # ---- code and launches

    def cuLibraryLoadData(self, code: bytes, *_options: Any) -> tuple[CUresult, int]:
        try:
            architecture, kernels = json.loads(code.rpartition(b"\n")[2])
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

    def CUlaunchConfig(self) -> SimpleNamespace:
        return SimpleNamespace()

    def CUlaunchAttribute(self) -> SimpleNamespace:
        return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace(x=1)))

    def cuLaunchKernelEx(
        self, config: SimpleNamespace, function: str, arguments: int, _extra: int
    ) -> tuple[CUresult]:
        if config.blockDimX > MAX_THREADS:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        if any(config.gridDimX % attribute.value.clusterDim.x for attribute in config.attrs):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        words = self._words(function, arguments)
        self.launches.append(config)
        blocks = config.gridDimX
        return self._do(config.hStream, lambda: self._launch(function, words, blocks))

    def _words(self, function: str, arguments: int) -> list[int]:
        pointers = (ctypes.c_void_p * self.words.get(function, 0)).from_address(arguments)
        return [ctypes.c_uint64.from_address(p or 0).value for p in pointers]

    def _launch(self, function: str, words: list[int], blocks: int) -> None:
        if (run := self.kernels.get(function)) is not None:
            run(words, blocks)

    # ---- graphs

    def cuStreamBeginCapture(self, stream: int, _mode: str) -> tuple[CUresult]:
        queue = self._queues[int(stream)]
        queue.captured, queue.last = [], []
        return (OK,)

    def cuStreamEndCapture(self, stream: int) -> tuple[CUresult, int]:
        queue = self._queues[int(stream)]
        recorded, queue.captured = queue.captured, None
        return OK, self._new("graph", recorded)

    def cuStreamGetCaptureInfo(
        self, stream: int
    ) -> tuple[CUresult, str, int, int, list[Node], list[None], int]:
        last = self._queues[int(stream)].last
        return OK, "active", 1, 0, last, [None] * len(last), len(last)

    def cuStreamUpdateCaptureDependencies(
        self, stream: int, nodes: list[Node], _edges: object, count: int, flags: int
    ) -> tuple[CUresult]:
        if flags != 1 or count != len(nodes):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        self._queues[int(stream)].last = list(nodes)
        return (OK,)

    def cuGraphDestroy(self, graph: int) -> tuple[CUresult]:
        return self._drop("graph", graph)

    def cuGraphInstantiate(self, graph: int, _flags: int) -> tuple[CUresult, int]:
        nodes = self.live[graph][1]
        return OK, self._new("executable graph", {id(node): [node, node.work] for node in nodes})

    def CUDA_KERNEL_NODE_PARAMS(self) -> SimpleNamespace:
        return SimpleNamespace()

    def cuGraphExecKernelNodeSetParams(
        self, graph: int, node: Node, parameters: SimpleNamespace
    ) -> tuple[CUresult]:
        known = self.live[graph][1].get(id(node))
        if known is None:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        words = self._words(parameters.func, parameters.kernelParams)
        function, blocks = parameters.func, parameters.gridDimX
        known[1] = lambda: self._launch(function, words, blocks)
        return (OK,)

    def cuGraphLaunch(self, graph: int, stream: int) -> tuple[CUresult]:
        nodes = [tuple(pair) for pair in self.live[graph][1].values()]
        done = self._do(stream, lambda: perform(nodes))
        for node, _ in nodes:
            if node.event is not None:
                self._records[node.event] = (int(stream), self._clock)
        return done

    def cuGraphExecDestroy(self, graph: int) -> tuple[CUresult]:
        return self._drop("executable graph", graph)
