"""NVDLA: loadables, runtime, portability layer, engine scheduler and a bit-exact machine."""

from smelt.nvdla._protocols import DmaMemory, MemorySpace, RegisterBus
from smelt.nvdla._status import NvdlaError, NvError

__all__ = ["DmaMemory", "MemorySpace", "NvError", "NvdlaError", "RegisterBus"]
