"""NVDLA: loadables, runtime, portability layer, engine scheduler and a bit-exact model."""

from smelt.nvdla._errors import NvDlaError, NvdlaError, NvError
from smelt.nvdla._protocols import DmaMemory, MemorySpace, RegisterBus
from smelt.nvdla.loadable import Loadable
from smelt.nvdla.runtime import Runtime, create_runtime, destroy_runtime
from smelt.nvdla.traces import TraceResult, find_traces, run_trace

__all__ = [
    "DmaMemory",
    "Loadable",
    "MemorySpace",
    "NvDlaError",
    "NvError",
    "NvdlaError",
    "RegisterBus",
    "Runtime",
    "TraceResult",
    "create_runtime",
    "destroy_runtime",
    "find_traces",
    "run_trace",
]
