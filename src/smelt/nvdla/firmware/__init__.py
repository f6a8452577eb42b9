"""The firmware: schedules the operations of a task and programs the engines' registers.

It accesses hardware only through `RegisterBus` and `DmaMemory`, which the machine model, the trace
recorder and mapped devices implement.
"""

from smelt.nvdla.firmware._graph import MAX_OPERATIONS
from smelt.nvdla.firmware._scheduler import DEFAULT_TIMEOUT_S, EngineScheduler
from smelt.nvdla.firmware._task import read_task
from smelt.nvdla.firmware._task_run import TaskStatistics
from smelt.nvdla.firmware._uio import DmaRegion, UioBus, UioMemory

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "MAX_OPERATIONS",
    "EngineScheduler",
    "DmaRegion",
    "TaskStatistics",
    "UioBus",
    "UioMemory",
    "read_task",
]
