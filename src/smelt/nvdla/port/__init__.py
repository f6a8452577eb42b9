"""The portability layer: how the user-mode driver reaches devices, memory and the scheduler."""

from smelt.nvdla.port._types import (
    MOST_ADDRESSES_PER_TASK,
    MOST_TASKS_PER_SUBMIT,
    SIZE_LIMIT_BYTES,
    Bytes,
    NvDlaHeap,
    NvDlaMemDesc,
    NvDlaTask,
    PinnedMemory,
    Port,
)

__all__ = [
    "MOST_ADDRESSES_PER_TASK",
    "MOST_TASKS_PER_SUBMIT",
    "SIZE_LIMIT_BYTES",
    "Bytes",
    "NvDlaHeap",
    "NvDlaMemDesc",
    "NvDlaTask",
    "PinnedMemory",
    "Port",
]
