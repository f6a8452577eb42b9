"""The processor as a device: memory, mapped code, the worker pool and run lists."""

from smelt.devices.cpu import _abi as abi
from smelt.devices.cpu._code import MappedCode
from smelt.devices.cpu._memory import CpuAllocation, CpuMemory, GuardedMemory, protect
from smelt.devices.cpu._native import NativeRuntime, native_runtime
from smelt.devices.cpu._pool import Lease, WorkerPool, available_processors, worker_pool
from smelt.devices.cpu._run_list import Row, RunList, Scratch
from smelt.devices.cpu._stream import CpuEvent, CpuStream, Mark

__all__ = [
    "CpuAllocation",
    "CpuEvent",
    "CpuMemory",
    "CpuStream",
    "GuardedMemory",
    "Lease",
    "MappedCode",
    "Mark",
    "NativeRuntime",
    "Row",
    "RunList",
    "Scratch",
    "WorkerPool",
    "abi",
    "available_processors",
    "native_runtime",
    "protect",
    "worker_pool",
]
