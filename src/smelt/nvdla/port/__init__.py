"""Portability layer: the user-mode driver's access to devices, memory and the engine scheduler.

Three transports have the same behaviour: calls in this process, another process over a Unix socket,
and the Linux driver.
"""

from smelt.nvdla._protocols import PhysicalAddress
from smelt.nvdla.port._handle_port import Port
from smelt.nvdla.port._interfaces import (
    MAX_ADDRESSES_PER_TASK,
    Bytes,
    DeviceHardware,
    Driver,
    NvDlaHeap,
    NvDlaMemDesc,
    NvDlaTask,
    PhysicalRegion,
    PhysicalTask,
    PinnedMemory,
)
from smelt.nvdla.port._linux import LinuxPort, RenderNode
from smelt.nvdla.port._local import LocalPort
from smelt.nvdla.port._machine_driver import MachineDriver, PageHeap
from smelt.nvdla.port._server import PortServer
from smelt.nvdla.port._socket_port import SocketPort
from smelt.nvdla.port._traced_driver import TracedDriver

__all__ = [
    "MAX_ADDRESSES_PER_TASK",
    "Bytes",
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
    "PhysicalRegion",
    "PhysicalTask",
    "PinnedMemory",
    "Port",
    "PortServer",
    "RenderNode",
    "SocketPort",
    "TracedDriver",
]
