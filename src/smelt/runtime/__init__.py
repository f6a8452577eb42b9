"""Run engines: load, bind, run, profile. Nothing from here down knows a compiler."""

from smelt.runtime._context import ExecutionContext, Profiler
from smelt.runtime._engine import Engine, Trust
from smelt.runtime._streams import Event, Stream

__all__ = ["Engine", "Event", "ExecutionContext", "Profiler", "Stream", "Trust"]
