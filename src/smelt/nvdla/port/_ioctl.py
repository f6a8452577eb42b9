"""Structures and request numbers of the Linux driver's ioctl interface.

Source: nvdla/sw, nvdla_ioctl.h; drm.h for buffer sharing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from smelt.nvdla._descriptor_codec import Descriptor, at

NO_TIMEOUT: Final = 0xFFFFFFFF
"""Timeout of a task that may run for ever."""
CLOSE_ON_EXEC: Final = 0o2000000
"""DRM_CLOEXEC: the descriptor of a shared buffer is closed on exec."""

_READ_WRITE: Final = 3
"""Direction bits of an ioctl that reads and writes its argument."""
_DRM: Final = ord("d")
"""ioctl type of the DRM subsystem."""
_DRIVER_BASE: Final = 0x40
"""First ioctl number of a DRM driver (DRM_COMMAND_BASE)."""


@dataclass(frozen=True, slots=True)
class MemoryHandle(Descriptor):
    """nvdla_mem_handle: entry of an address list."""

    handle: int = at(0, "u32")
    """File descriptor of a shared buffer."""
    reserved: int = at(4, "u32")
    offset: int = at(8, "u64")


@dataclass(frozen=True, slots=True)
class SubmitTask(Descriptor):
    """nvdla_ioctl_submit_task: a task of a submission."""

    num_addresses: int = at(0, "u32")
    timeout: int = at(4, "u32", default=NO_TIMEOUT)
    address_list: int = at(8, "u64")
    """Pointer to an array of `MemoryHandle`."""


@dataclass(frozen=True, slots=True)
class SubmitArguments(Descriptor):
    """nvdla_submit_args: argument of a submission."""

    tasks: int = at(0, "u64")
    """Pointer to an array of `SubmitTask`."""
    num_tasks: int = at(8, "u16")
    flags: int = at(10, "u16")
    version: int = at(12, "u32")


@dataclass(frozen=True, slots=True)
class GemCreate(Descriptor):
    """nvdla_gem_create_args: allocation of a buffer; the driver returns the handle."""

    handle: int = at(0, "u32")
    flags: int = at(4, "u32")
    size: int = at(8, "u64")


@dataclass(frozen=True, slots=True)
class GemMap(Descriptor):
    """nvdla_gem_map_offset_args: mapping of a buffer; the driver returns the mmap offset."""

    handle: int = at(0, "u32")
    reserved: int = at(4, "u32")
    offset: int = at(8, "u64")


@dataclass(frozen=True, slots=True)
class GemDestroy(Descriptor):
    """nvdla_gem_destroy_args: release of a buffer."""

    handle: int = at(0, "u32")


@dataclass(frozen=True, slots=True)
class PrimeHandle(Descriptor):
    """drm_prime_handle: sharing of a buffer; the driver returns the file descriptor."""

    handle: int = at(0, "u32")
    flags: int = at(4, "u32")
    fd: int = at(8, "i32")


def _request(number: int, structure: type[Descriptor]) -> int:
    """Return the request number of an ioctl that reads and writes a structure (_IOWR)."""
    return _READ_WRITE << 30 | structure.size_bytes() << 16 | _DRM << 8 | number


IOCTL_SUBMIT: Final = _request(_DRIVER_BASE + 0, SubmitArguments)
IOCTL_GEM_CREATE: Final = _request(_DRIVER_BASE + 1, GemCreate)
IOCTL_GEM_MMAP: Final = _request(_DRIVER_BASE + 2, GemMap)
IOCTL_GEM_DESTROY: Final = _request(_DRIVER_BASE + 3, GemDestroy)
IOCTL_PRIME_HANDLE_TO_FD: Final = _request(0x2D, PrimeHandle)


def pack_version(version: tuple[int, int, int]) -> int:
    """Return the interface version as a submission encodes it.

    The kernel driver of 2019 ignores the version and expects 0.12.
    """
    major, minor, sub_minor = version
    return major << 16 | minor << 8 | sub_minor
