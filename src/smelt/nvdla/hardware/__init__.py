"""Machine model: configurations, memory and engines, bit-exact at register level."""

from smelt.nvdla._protocols import Precision
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
    find_configuration,
)
from smelt.nvdla.hardware._machine import Machine
from smelt.nvdla.hardware._running_operation import AddressSpan, TaskAccessLimits

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
    "Machine",
    "Precision",
    "TaskAccessLimits",
    "find_configuration",
]
