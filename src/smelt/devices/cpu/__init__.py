"""The CPU as a device: memory, mapped code, worker pool, run lists, streams and events."""

from smelt.devices._allocations import CpuAllocation
from smelt.devices.cpu import _abi as abi
from smelt.devices.cpu._mapped_code import MappedCode
from smelt.devices.cpu._memory import CpuMemory, map_pages, protect
from smelt.devices.cpu._native_runtime import NativeRuntime, native_runtime
from smelt.devices.cpu._processors import (
    available_processors,
    default_thread_count,
    processor_count,
)
from smelt.devices.cpu._run_list import RunList, RunListRow, Scratch
from smelt.devices.cpu._stream import (
    CompletionFlag,
    CpuEvent,
    CpuStream,
    DeferredError,
    is_awaited_by,
)
from smelt.devices.cpu._worker_pool import Lease, WorkerPool, worker_pool

__all__ = [
    "CpuAllocation",
    "CpuEvent",
    "CpuMemory",
    "CpuStream",
    "DeferredError",
    "Lease",
    "MappedCode",
    "CompletionFlag",
    "NativeRuntime",
    "RunListRow",
    "RunList",
    "Scratch",
    "WorkerPool",
    "abi",
    "available_processors",
    "default_thread_count",
    "is_awaited_by",
    "map_pages",
    "native_runtime",
    "processor_count",
    "protect",
    "worker_pool",
]
