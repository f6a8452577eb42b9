"""Runtime: load, bind, run and profile engines. This package does not depend on compilers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.runtime._context import ExecutionContext
from smelt.runtime._engine import Engine, Trust
from smelt.runtime._host_step_memory import MemoryMap
from smelt.runtime._loaded_code import DeviceRuntime, LoadedWeights, check_device, check_machine
from smelt.runtime._plan_executor import Profiler
from smelt.runtime._plan_splitter import split_plan
from smelt.runtime._segments import CpuSegmentFactory, NativeSegment, Segment, SegmentFactory
from smelt.runtime._streams import Event, Stream, gpu_named

if TYPE_CHECKING:
    from smelt.runtime._cuda_graph_segments import CudaSegmentFactory

__all__ = [
    "CpuSegmentFactory",
    "CudaSegmentFactory",
    "DeviceRuntime",
    "Engine",
    "Event",
    "ExecutionContext",
    "LoadedWeights",
    "SegmentFactory",
    "MemoryMap",
    "NativeSegment",
    "Profiler",
    "Segment",
    "Stream",
    "Trust",
    "check_device",
    "check_machine",
    "split_plan",
    "gpu_named",
]


def __getattr__(name: str) -> object:
    """Load GPU-only names on first access."""
    if name != "CudaSegmentFactory":
        raise AttributeError(f"module 'smelt.runtime' has no attribute {name!r}")
    from smelt.runtime._cuda_graph_segments import CudaSegmentFactory

    return CudaSegmentFactory
