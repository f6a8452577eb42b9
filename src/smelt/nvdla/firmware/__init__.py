"""The firmware: schedules a task's operations and programs the engines' registers.

It talks to a register bus and to memory, whoever implements them: the machine, a trace, a mapped
device.
"""

from smelt.nvdla.firmware._graph import MAX_OPERATIONS
from smelt.nvdla.firmware._scheduler import DEFAULT_TIMEOUT_S, EngineScheduler
from smelt.nvdla.firmware._statistics import OperationStatistics, TaskStatistics
from smelt.nvdla.firmware._task import read_task
from smelt.nvdla.firmware._uio import MappedRegion, UioBus, UioMemory

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "MAX_OPERATIONS",
    "EngineScheduler",
    "MappedRegion",
    "OperationStatistics",
    "TaskStatistics",
    "UioBus",
    "UioMemory",
    "read_task",
]
