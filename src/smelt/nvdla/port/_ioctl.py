"""The Linux driver's interface, bit for bit: structures and request numbers.

Source: nvdla/sw, nvdla_ioctl.h; drm.h for buffer sharing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from smelt.nvdla._descriptor_codec import Descriptor, at

NO_TIMEOUT: Final = 0xFFFFFFFF
CLOSE_ON_EXEC: Final = 0o2000000
"""DRM_CLOEXEC: the flag of a shared buffer's descriptor."""

_READ_WRITE: Final = 3
_DRM: Final = ord("d")
_DRIVER_BASE: Final = 0x40


@dataclass(frozen=True, slots=True)
class MemoryHandle(Descriptor):
    """nvdla_mem_handle: an entry of an address list."""

    handle: int = at(0, "u32")
    """The file descriptor of a shared buffer."""
    reserved: int = at(4, "u32")
    offset: int = at(8, "u64")


@dataclass(frozen=True, slots=True)
class SubmitTask(Descriptor):
    """nvdla_ioctl_submit_task."""

    num_addresses: int = at(0, "u32")
    timeout: int = at(4, "u32", default=NO_TIMEOUT)
    address_list: int = at(8, "u64")
    """A pointer to `MemoryHandle`s."""


@dataclass(frozen=True, slots=True)
class SubmitArguments(Descriptor):
    """nvdla_submit_args."""

    tasks: int = at(0, "u64")
    """A pointer to `SubmitTask`s."""
    num_tasks: int = at(8, "u16")
    flags: int = at(10, "u16")
    version: int = at(12, "u32")


@dataclass(frozen=True, slots=True)
class GemCreate(Descriptor):
    """nvdla_gem_create_args; the handle comes back."""

    handle: int = at(0, "u32")
    flags: int = at(4, "u32")
    size: int = at(8, "u64")


@dataclass(frozen=True, slots=True)
class GemMap(Descriptor):
    """nvdla_gem_map_offset_args; the offset comes back."""

    handle: int = at(0, "u32")
    reserved: int = at(4, "u32")
    offset: int = at(8, "u64")


@dataclass(frozen=True, slots=True)
class GemDestroy(Descriptor):
    """nvdla_gem_destroy_args."""

    handle: int = at(0, "u32")


@dataclass(frozen=True, slots=True)
class PrimeHandle(Descriptor):
    """drm_prime_handle; the file descriptor comes back."""

    handle: int = at(0, "u32")
    flags: int = at(4, "u32")
    fd: int = at(8, "i32")


def _request(number: int, structure: type[Descriptor]) -> int:
    return _READ_WRITE << 30 | structure.size_bytes() << 16 | _DRM << 8 | number


IOCTL_SUBMIT: Final = _request(_DRIVER_BASE + 0, SubmitArguments)
IOCTL_GEM_CREATE: Final = _request(_DRIVER_BASE + 1, GemCreate)
IOCTL_GEM_MMAP: Final = _request(_DRIVER_BASE + 2, GemMap)
IOCTL_GEM_DESTROY: Final = _request(_DRIVER_BASE + 3, GemDestroy)
IOCTL_PRIME_HANDLE_TO_FD: Final = _request(0x2D, PrimeHandle)


def pack_version(version: tuple[int, int, int]) -> int:
    """The interface version in a submission; the kernel of 2019 ignores it and expects 0.12."""
    major, minor, sub_minor = version
    return major << 16 | minor << 8 | sub_minor
