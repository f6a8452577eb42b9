"""NVDLA: loadables, runtime, portability layer, engine scheduler and a bit-exact machine."""

from smelt.nvdla._protocols import DmaMemory, MemorySpace, RegisterBus
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.loadable import Loadable

__all__ = ["DmaMemory", "Loadable", "MemorySpace", "NvError", "NvdlaError", "RegisterBus"]
