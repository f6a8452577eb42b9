"""Error codes of the portability layer, and the exception that carries one."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from smelt.errors import SmeltError


class NvError(IntEnum):
    """Error codes of the portability layer (NvDlaError). Source: nvdla/sw, dlaerror.h."""

    SUCCESS = 0
    NOT_IMPLEMENTED = 1
    NOT_SUPPORTED = 2
    NOT_INITIALIZED = 3
    BAD_PARAMETER = 4
    TIMEOUT = 5
    INSUFFICIENT_MEMORY = 6
    READ_ONLY_ATTRIBUTE = 7
    INVALID_STATE = 8
    INVALID_ADDRESS = 9
    INVALID_SIZE = 0xA
    BAD_VALUE = 0xB
    ALREADY_ALLOCATED = 0xD
    BUSY = 0xE
    RESOURCE_ERROR = 0xF
    COUNT_MISMATCH = 0x10
    OVERFLOW = 0x11
    DISCONNECTED = 0x12
    FILE_NOT_FOUND = 0x13
    TEST_APPLICATION_FAILED = 0x14
    DEVICE_NOT_FOUND = 0x15
    MODULE_NOT_PRESENT = 0x000A000E
    SURFACE_NOT_SUPPORTED = 0x00010003
    FILE_WRITE_FAILED = 0x30000
    FILE_READ_FAILED = 0x30001
    END_OF_FILE = 0x30002
    FILE_OPERATION_FAILED = 0x30003
    DIR_OPERATION_FAILED = 0x30004
    END_OF_DIR_LIST = 0x30005
    IOCTL_FAILED = 0x3000F
    PATH_ALREADY_EXISTS = 0x30014

    def error(self, message: str) -> NvdlaError:
        """Return the failure that has this code."""
        return NvdlaError(self, message)


NvDlaError: TypeAlias = NvError
"""Name of the error codes in the official C++ sources; the exception is `NvdlaError`."""


class NvdlaError(SmeltError):
    """Failure of the NVDLA stack; ``status`` is its documented `NvError` code."""

    def __init__(self, status: NvError, message: str) -> None:
        super().__init__(message)
        self.status = status

    def within(self, location: str) -> NvdlaError:
        """Return the same failure with a location in front of its message."""
        return NvdlaError(NvError(self.status or NvError.SUCCESS), f"{location}: {self}")
