"""The processor as a device: memory, mapped code, the worker pool and run lists."""

from smelt.devices.cpu import _abi as abi
from smelt.devices.cpu._code import MappedCode
from smelt.devices.cpu._memory import CpuAllocation, CpuMemory, GuardedMemory, protect

__all__ = ["CpuAllocation", "CpuMemory", "GuardedMemory", "MappedCode", "abi", "protect"]
