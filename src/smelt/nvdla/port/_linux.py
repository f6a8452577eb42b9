"""Transport to the Linux driver: buffers and submissions by ioctl on a render node.

Structures and request numbers are those of nvdla/sw, nvdla_ioctl.h, and of drm.h for buffer
sharing.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np

from smelt.nvdla._descriptor_codec import Descriptor, at
from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla.port._handle_port import HandlePort
from smelt.signal_errors import convert_own, pass_on_handler_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Buffer

    from smelt.nvdla.port._interfaces import Bytes, NvDlaHeap, NvDlaTask

_FIRST_RENDER_NODE: Final = 128
"""Minor number of the first DRM render node."""
_STATUS_BY_ERRNO: Final = {
    errno.ENOMEM: NvError.INSUFFICIENT_MEMORY,
    errno.ETIMEDOUT: NvError.TIMEOUT,
    errno.EBUSY: NvError.BUSY,
}


_NO_TIMEOUT: Final = 0xFFFFFFFF
"""Timeout of a task that may run for ever."""
_CLOSE_ON_EXEC: Final = 0o2000000
"""DRM_CLOEXEC: the descriptor of a shared buffer is closed on exec."""

_READ_WRITE: Final = 3
"""Direction bits of an ioctl that reads and writes its argument."""
_DRM: Final = ord("d")
"""ioctl type of the DRM subsystem."""
_DRIVER_BASE: Final = 0x40
"""First ioctl number of a DRM driver (DRM_COMMAND_BASE)."""


class MemoryHandle(Descriptor):
    """nvdla_mem_handle: entry of an address list."""

    handle: int = at(0, "u32")
    """File descriptor of a shared buffer."""
    reserved: int = at(4, "u32")
    offset: int = at(8, "u64")


class SubmitTask(Descriptor):
    """nvdla_ioctl_submit_task: a task of a submission."""

    num_addresses: int = at(0, "u32")
    timeout: int = at(4, "u32", default=_NO_TIMEOUT)
    address_list: int = at(8, "u64")
    """Pointer to an array of `MemoryHandle`."""


class SubmitArguments(Descriptor):
    """nvdla_submit_args: argument of a submission."""

    tasks: int = at(0, "u64")
    """Pointer to an array of `SubmitTask`."""
    num_tasks: int = at(8, "u16")
    flags: int = at(10, "u16")
    version: int = at(12, "u32")


class GemCreate(Descriptor):
    """nvdla_gem_create_args: allocation of a buffer; the driver returns the handle."""

    handle: int = at(0, "u32")
    flags: int = at(4, "u32")
    size: int = at(8, "u64")


class GemMap(Descriptor):
    """nvdla_gem_map_offset_args: mapping of a buffer; the driver returns the mmap offset."""

    handle: int = at(0, "u32")
    reserved: int = at(4, "u32")
    offset: int = at(8, "u64")


class GemDestroy(Descriptor):
    """nvdla_gem_destroy_args: release of a buffer."""

    handle: int = at(0, "u32")


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


class DeviceFile(Protocol):
    """An open device node of the driver, or a substitute for tests."""

    def ioctl(self, request: int, argument: bytearray, /) -> None:
        """Send a request; the driver overwrites the argument with its reply. Raises OSError."""
        ...

    def mmap(self, offset: int, size_bytes: int, /) -> Buffer:
        """Map a buffer's memory for reading and writing. Raises OSError."""
        ...

    def close_descriptor(self, descriptor: int, /) -> None:
        """Close the descriptor of a shared buffer."""
        ...

    def close(self) -> None:
        """Close the node."""
        ...


class RenderNode:
    """A DRM render node of the kernel."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def ioctl(self, request: int, argument: bytearray, /) -> None:
        """Send a request; the driver overwrites the argument with its reply."""
        import fcntl

        fcntl.ioctl(self._descriptor, request, argument, True)  # noqa: FBT003  (fcntl's signature)

    def mmap(self, offset: int, size_bytes: int, /) -> Buffer:
        """Map a buffer's memory."""
        return mmap.mmap(self._descriptor, size_bytes, offset=offset)

    def close_descriptor(self, descriptor: int, /) -> None:
        """Close the descriptor of a shared buffer."""
        os.close(descriptor)

    def close(self) -> None:
        """Close the node."""
        os.close(self._descriptor)


def open_render_node(instance: int) -> DeviceFile:
    """Open the render node of a device instance. Raises OSError."""
    return RenderNode(f"/dev/dri/renderD{_FIRST_RENDER_NODE + instance}")


@dataclass(frozen=True, slots=True)
class _Gem:
    """A buffer of the driver: its GEM handle and the file descriptor that shares it."""

    handle: int
    descriptor: int


T = TypeVar("T", bound=Descriptor)


class LinuxPort(HandlePort[DeviceFile, _Gem]):
    """Port to the Linux driver; tests pass an ``open_device`` that returns a substitute."""

    def __init__(self, open_device: Callable[[int], DeviceFile] = open_render_node) -> None:
        super().__init__()
        self._open = open_device

    def _open_device(self, instance: int) -> DeviceFile:
        """Open the device node of an instance."""
        try:
            return self._open(instance)
        except FileNotFoundError as error:
            pass_on_handler_error(error)
            raise NvError.BAD_PARAMETER.error(
                f"device instance {instance} has no device node: {error}; check that its driver is "
                "loaded"
            ) from error
        except OSError as error:
            pass_on_handler_error(error)
            raise NvError.RESOURCE_ERROR.error(
                f"device instance {instance} cannot be opened: {error}"
            ) from error

    def _close_device(self, device: DeviceFile) -> None:
        device.close()

    def _allocate(self, device: DeviceFile, size: int, heap: NvDlaHeap) -> tuple[_Gem, Bytes]:
        """Create, share and map a buffer; undo all steps if one fails."""
        gem = _ioctl(device, IOCTL_GEM_CREATE, GemCreate(flags=heap, size=size), "allocate memory")
        with contextlib.ExitStack() as undo:
            undo.callback(_ioctl, device, IOCTL_GEM_DESTROY, GemDestroy(gem.handle), "free memory")
            request = PrimeHandle(handle=gem.handle, flags=_CLOSE_ON_EXEC)
            shared = _ioctl(device, IOCTL_PRIME_HANDLE_TO_FD, request, "share memory")
            undo.callback(device.close_descriptor, shared.fd)
            mapping = _ioctl(device, IOCTL_GEM_MMAP, GemMap(handle=gem.handle), "map memory")
            with _driver_errors("map memory"):
                mapped = memoryview(device.mmap(mapping.offset, size))
            undo.pop_all()
        return _Gem(gem.handle, shared.fd), np.frombuffer(mapped, np.uint8, size)

    def _free(self, device: DeviceFile, memory: _Gem) -> None:
        device.close_descriptor(memory.descriptor)
        _ioctl(device, IOCTL_GEM_DESTROY, GemDestroy(memory.handle), "free memory")

    def _run(
        self, device: DeviceFile, tasks: Sequence[NvDlaTask], memory: Mapping[int, _Gem]
    ) -> None:
        """Submit the tasks one by one."""
        for task in tasks:  # the kernel driver of 2019 runs only the first task of a submission
            address_list = b"".join(
                MemoryHandle(memory[address.handle].descriptor, offset=address.offset).to_bytes()
                for address in task.address_list
            )
            list_bytes = np.frombuffer(address_list, np.uint8).copy()
            submit_task = SubmitTask(task.num_addresses, address_list=list_bytes.ctypes.data)
            task_bytes = np.frombuffer(submit_task.to_bytes(), np.uint8).copy()
            version = pack_version(task.interface_version)
            submission = SubmitArguments(task_bytes.ctypes.data, num_tasks=1, version=version)
            _ioctl(device, IOCTL_SUBMIT, submission, f"run task {task.task_id}")


def _ioctl(device: DeviceFile, request: int, argument: T, action: str) -> T:
    """Send a request and return the driver's reply; ``action`` names the action in errors."""
    data = bytearray(argument.to_bytes())
    with _driver_errors(action):
        device.ioctl(request, data)
    return type(argument).from_bytes(data)


def _driver_errors(action: str) -> AbstractContextManager[None]:
    """Convert the errors of a call of the driver."""

    def explain(error: OSError) -> NvdlaError:
        status = _STATUS_BY_ERRNO.get(error.errno or 0, NvError.IOCTL_FAILED)
        return NvdlaError(status, f"the driver cannot {action}: {error}")

    return convert_own(explain, OSError)
