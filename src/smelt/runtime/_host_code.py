"""Run half of the CPU and of the null device: engines in the memory of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.devices.cpu import CpuEvent, CpuMemory, CpuStream, MappedCode, abi, native_runtime
from smelt.engine import detect_host
from smelt.runtime._host_machinery import (
    HostMachinery,
    cpu_resources,
    null_resources,
    thread_count,
)
from smelt.runtime._loaded_code import DeviceRuntime, LoadedCode, LoadedWeights
from smelt.types import override

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.engine import EngineFile, Fingerprint, Host
    from smelt.runtime._engine import Engine


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
    def create_machinery(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> HostMachinery:
        resources = null_resources(self.header, tracker)
        return HostMachinery(engine, self, thread_count(threads), resources)


class CpuCode(NullCode):
    """Code and weights in the memory of the process."""

    def __init__(self, file: EngineFile) -> None:
        super().__init__(file)
        self.runtime = native_runtime(file.runtime_code, dict(self.header.runtime_symbols))
        self._code = MappedCode(file.code)
        base = self._code.address
        self.functions = {name: base + offset for name, offset in self.header.symbols}

    @override
    def create_machinery(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> HostMachinery:
        count = thread_count(threads)
        return HostMachinery(engine, self, count, cpu_resources(self, count, tracker))


class NullRuntime(DeviceRuntime):
    """Loads engines that compute nothing."""

    abi_version = abi.ABI_VERSION

    @override
    def check_device(self, built_for: Fingerprint, device: str | None) -> None:
        """Do nothing: every machine has the device."""

    @override
    def load(self, file: EngineFile, device: str | None, *, is_needed: bool) -> NullCode:
        return NullCode(file)

    @override
    def create_stream(self, device: str) -> CpuStream:
        return CpuStream()

    @override
    def create_event(self, device: str) -> CpuEvent:
        return CpuEvent()


class CpuRuntime(NullRuntime):
    """Runs engines on processors."""

    @override
    def host(self, built_for: Fingerprint) -> Host:
        return detect_host()

    @override
    def load(self, file: EngineFile, device: str | None, *, is_needed: bool) -> CpuCode:
        return CpuCode(file)


def _aligned(weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return weights at an aligned address; copy them if necessary, as bytes objects often need."""
    if weights.ctypes.data % abi.ALIGNMENT_BYTES == 0:
        return weights
    copy = CpuMemory().allocate(weights.size, "weights").bytes
    copy[:] = weights
    copy.flags.writeable = False
    return copy
