"""Machine model: configurations, memory and engines, bit-exact at register level."""

from smelt.nvdla.hardware._configuration import (
    CONFIGURATIONS,
    NV_FULL,
    NV_LARGE,
    NV_MEDIUM_512,
    NV_MEDIUM_1024_FULL,
    NV_SMALL,
    NV_SMALL_256,
    NV_SMALL_256_FULL,
    Configuration,
    Precision,
    find_configuration,
)
from smelt.nvdla.hardware._machine import Fault, Machine, OperationRecord, SoftwareMemoryAccess
from smelt.nvdla.hardware._operation import AddressSpan, Counters, TaskAccessLimits

__all__ = [
    "CONFIGURATIONS",
    "NV_FULL",
    "NV_LARGE",
    "NV_MEDIUM_512",
    "NV_MEDIUM_1024_FULL",
    "NV_SMALL",
    "NV_SMALL_256",
    "NV_SMALL_256_FULL",
    "AddressSpan",
    "Configuration",
    "Counters",
    "Fault",
    "Machine",
    "SoftwareMemoryAccess",
    "OperationRecord",
    "Precision",
    "TaskAccessLimits",
    "find_configuration",
]
