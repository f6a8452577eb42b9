"""Run half of the CPU and of the null device: engines in the memory of the process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from smelt.devices.cpu import (
    CpuEvent,
    CpuMemory,
    CpuStream,
    MappedCode,
    Scratch,
    abi,
    native_runtime,
    worker_pool,
)
from smelt.devices.null import NullMemory
from smelt.engine import detect_host
from smelt.runtime._host_executor import HostExecutor, HostResources, thread_count
from smelt.runtime._index_errors import error_words
from smelt.runtime._loaded_code import DeviceRuntime, LoadedCode, LoadedWeights
from smelt.runtime._segments import CpuSegmentFactory, NullSegmentFactory
from smelt.runtime._staging import Staging
from smelt.types import override

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.devices.cpu import CpuAllocation
    from smelt.engine import EngineFile, EngineHeader, Fingerprint, Host
    from smelt.runtime._engine import Engine
    from smelt.runtime._index_errors import ErrorWords


class NullCode(LoadedCode):
    """The weights of an engine, without code."""

    def __init__(self, file: EngineFile) -> None:
        self.header = file.header
        self.weights = self.upload_weights(file.weights)

    @override
    def upload_weights(self, weights: NDArray[np.uint8]) -> LoadedWeights:
        aligned = _aligned(weights)
        return LoadedWeights(aligned, int(aligned.ctypes.data))

    @override
    def create_executor(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> HostExecutor:
        count = thread_count(threads)
        return HostExecutor(engine, self, count, self.resources(count, tracker))

    def resources(self, threads: int, tracker: AllocationTracker | None) -> HostResources:
        """Allocate the memory of a context with so many threads."""
        del threads
        arena = NullMemory(tracker).allocate(_arena_bytes(self.header), "arena")
        factory, staging = NullSegmentFactory(), Staging(None, self.header)
        return HostResources(factory, staging, arena, new_array=np.zeros)


class CpuCode(NullCode):
    """Code and weights in the memory of the process."""

    def __init__(self, file: EngineFile) -> None:
        super().__init__(file)
        self.runtime = native_runtime(file.runtime_code, dict(self.header.runtime_symbols))
        self._code = MappedCode(file.code)
        base = self._code.address
        self.functions = {name: base + offset for name, offset in self.header.symbols}

    @override
    def resources(self, threads: int, tracker: AllocationTracker | None) -> HostResources:
        header, memory = self.header, CpuMemory(tracker)
        arena = memory.allocate(_arena_bytes(header), "arena")
        scratch = Scratch(memory, max(plan.scratch_bytes for plan in header.plans), threads)
        staging = Staging(memory, header)
        errors = error_words(header, partial(memory.allocate, tag="index error records"))
        segment_factory = CpuSegmentFactory(
            self.functions,
            self.runtime,
            worker_pool(),
            memory,
            threads,
            scratch,
            header.layers,
            errors,
        )
        others: list[CpuAllocation | ErrorWords | Scratch] = [scratch, *staging.allocations]
        others += [] if errors is None else [errors]
        errors_address = 0 if errors is None else errors.address
        return HostResources(segment_factory, staging, arena, others, errors_address)


class NullDeviceRuntime(DeviceRuntime):
    """Loads engines that compute nothing."""

    abi_version = abi.ABI_VERSION

    @override
    def load(self, file: EngineFile, device: str | None, *, requires_device: bool) -> NullCode:
        return NullCode(file)

    @override
    def create_stream(self, device: str) -> CpuStream:
        return CpuStream()

    @override
    def create_event(self, device: str) -> CpuEvent:
        return CpuEvent()


class CpuDeviceRuntime(NullDeviceRuntime):
    """Runs engines on processors."""

    @override
    def host(self, built_for: Fingerprint) -> Host:
        return detect_host()

    @override
    def load(self, file: EngineFile, device: str | None, *, requires_device: bool) -> CpuCode:
        return CpuCode(file)


def _arena_bytes(header: EngineHeader) -> int:
    """Return the size in bytes of the arena that the plans of an engine share."""
    return max(plan.arena_bytes for plan in header.plans)


def _aligned(weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return weights at an aligned address; copy them if necessary, as bytes objects often need."""
    if weights.ctypes.data % abi.ALIGNMENT_BYTES == 0:
        return weights
    copy = CpuMemory().allocate(weights.size, "weights").bytes
    copy[:] = weights
    copy.flags.writeable = False
    return copy
