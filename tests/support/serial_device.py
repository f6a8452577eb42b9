"""A device added by the recipe of CONTRIBUTING.md: kernels of the CPU, called one by one.

It is slow and complete: engines are built, saved, loaded and run for it. Its three classes and its
row are all that a device needs that shares the memory of the process and the kernels of another.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from smelt.builder._cpu_toolchain import CpuToolchain
from smelt.devices import DeviceKind
from smelt.errors import ContextError
from smelt.runtime._host_code import CpuCode, CpuDeviceRuntime
from smelt.runtime._host_executor import HostExecutor, thread_count
from smelt.runtime._segments import CpuSegmentFactory, word_count
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.engine import EngineFile, Launch
    from smelt.runtime import Engine

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)

SERIAL = DeviceKind(
    name="serial",
    description="a processor that runs one kernel after another",
    forms=("serial",),
    runtime="tests.support.serial_device:SerialRuntime",
    backend="smelt.backends.cpu:CpuBackend",
    toolchain="tests.support.serial_device:SerialToolchain",
    compiler="llvmlite",
)
"""The row of the table."""
calls: list[str] = []
"""Symbols of the kernels that were called."""


class SerialRunList:
    """Launches that are called one after another, in the calling thread."""

    def __init__(self, steps: Sequence[Launch], functions: dict[str, int], scratch: int) -> None:
        self.words: NDArray[np.int64] = np.zeros(sum(map(word_count, steps)), np.int64)
        self._rows = [
            (step.kernel.symbol, _KERNEL(functions[step.kernel.symbol]), word_count(step))
            for step in steps
        ]
        self._scratch, self._chunks = scratch, [0] * len(steps)
        self._is_closed = False

    def set_chunks(self, chunks: Sequence[int]) -> None:
        self._chunks = list(chunks)

    def run(self, *, timed: bool = False) -> None:
        if self._is_closed:
            raise ContextError("this run list is closed")
        address = int(self.words.ctypes.data)
        for (symbol, kernel, words), chunks in zip(self._rows, self._chunks, strict=True):
            calls.append(symbol)
            kernel(address, 0, chunks, self._scratch)
            address += words * self.words.itemsize

    def row_ticks(self) -> list[int]:
        return [0] * len(self._rows)

    def close(self) -> None:
        self._is_closed = True


class SerialSegmentFactory(CpuSegmentFactory):
    """Creates segments that call their kernels one by one."""

    @override
    def run_list(self, steps: Sequence[Launch]) -> SerialRunList:
        return SerialRunList(steps, dict(self.functions), self.scratch.address)


class SerialCode(CpuCode):
    """Code of the CPU, for a context whose segments are serial."""

    @override
    def create_executor(
        self, engine: Engine, threads: int | None, tracker: AllocationTracker | None
    ) -> HostExecutor:
        resources = self.resources(1, tracker)
        factory = resources.segment_factory
        assert isinstance(factory, CpuSegmentFactory)
        parts = {f.name: getattr(factory, f.name) for f in dataclasses.fields(factory)}
        resources = dataclasses.replace(resources, segment_factory=SerialSegmentFactory(**parts))
        return HostExecutor(engine, self, thread_count(1), resources)


class SerialRuntime(CpuDeviceRuntime):
    """The run half."""

    @override
    def load(self, file: EngineFile, device: str | None, *, requires_device: bool) -> SerialCode:
        return SerialCode(file)


class SerialToolchain(CpuToolchain):
    """The compile half: that of the CPU, whose candidates are chosen by estimates."""

    @property
    @override
    def can_measure(self) -> bool:
        return False
