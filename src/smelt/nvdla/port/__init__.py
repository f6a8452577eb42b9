"""Portability layer: the user-mode driver's access to devices, memory and the engine scheduler.

Three transports have the same behaviour: calls in this process, another process over a Unix socket,
and the Linux driver.
"""

from smelt.nvdla.port._client import SocketPort
from smelt.nvdla.port._linux import DeviceFile, LinuxPort, RenderNode, open_render_node
from smelt.nvdla.port._local import LocalPort
from smelt.nvdla.port._machine import MachineDriver, PageHeap
from smelt.nvdla.port._server import PortServer
from smelt.nvdla.port._traced import TracedDriver
from smelt.nvdla.port._types import (
    MAX_ADDRESSES_PER_TASK,
    MAX_TASKS_PER_SUBMIT,
    SIZE_LIMIT_BYTES,
    Bytes,
    DeviceHardware,
    Driver,
    NvDlaHeap,
    NvDlaMemDesc,
    NvDlaTask,
    PhysicalAddress,
    PhysicalTask,
    PinnedMemory,
    Port,
    Region,
)

__all__ = [
    "MAX_ADDRESSES_PER_TASK",
    "MAX_TASKS_PER_SUBMIT",
    "SIZE_LIMIT_BYTES",
    "Bytes",
    "DeviceFile",
    "DeviceHardware",
    "Driver",
    "LinuxPort",
    "LocalPort",
    "MachineDriver",
    "NvDlaHeap",
    "NvDlaMemDesc",
    "NvDlaTask",
    "PageHeap",
    "PhysicalAddress",
    "PhysicalTask",
    "PinnedMemory",
    "Port",
    "PortServer",
    "Region",
    "RenderNode",
    "SocketPort",
    "TracedDriver",
    "open_render_node",
]
