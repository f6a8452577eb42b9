"""Run engines: load, bind, run, profile. Nothing from here down knows a compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.runtime._code import LoadedWeights, check_device, check_machine
from smelt.runtime._context import ExecutionContext, Profiler
from smelt.runtime._engine import Engine, Trust
from smelt.runtime._segments import (
    CpuMachinery,
    HostSegment,
    Machinery,
    Memories,
    NativeSegment,
    Segment,
    cut_plan,
)
from smelt.runtime._streams import Event, Stream, gpu_named

if TYPE_CHECKING:
    from smelt.runtime._cuda_segments import CudaMachinery

__all__ = [
    "CpuMachinery",
    "CudaMachinery",
    "Engine",
    "Event",
    "ExecutionContext",
    "HostSegment",
    "LoadedWeights",
    "Machinery",
    "Memories",
    "NativeSegment",
    "Profiler",
    "Segment",
    "Stream",
    "Trust",
    "check_device",
    "check_machine",
    "cut_plan",
    "gpu_named",
]


def __getattr__(name: str) -> object:
    """Load what only GPUs need when it is asked for."""
    if name != "CudaMachinery":
        raise AttributeError(f"module 'smelt.runtime' has no attribute {name!r}")
    from smelt.runtime._cuda_segments import CudaMachinery

    return CudaMachinery
