"""Run engines: load, bind, run, profile. Nothing from here down knows a compiler."""

from smelt.runtime._code import check_machine
from smelt.runtime._context import ExecutionContext, Profiler
from smelt.runtime._engine import Engine, Trust
from smelt.runtime._segments import (
    CpuMachinery,
    Memories,
    NativeSegment,
    Segment,
    cut_plan,
)
from smelt.runtime._streams import Event, Stream

__all__ = [
    "CpuMachinery",
    "Engine",
    "Event",
    "ExecutionContext",
    "Memories",
    "NativeSegment",
    "Profiler",
    "Segment",
    "Stream",
    "Trust",
    "check_machine",
    "cut_plan",
]
