"""Transport to the Linux driver: buffers and submissions by ioctl on a render node."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.port._handles import HandlePort
from smelt.nvdla.port._ioctl import (
    CLOSE_ON_EXEC,
    IOCTL_GEM_CREATE,
    IOCTL_GEM_DESTROY,
    IOCTL_GEM_MMAP,
    IOCTL_PRIME_HANDLE_TO_FD,
    IOCTL_SUBMIT,
    GemCreate,
    GemDestroy,
    GemMap,
    MemoryHandle,
    PrimeHandle,
    SubmitArguments,
    SubmitTask,
    pack_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Buffer

    from smelt.nvdla._descriptor_codec import Descriptor
    from smelt.nvdla.port._types import Bytes, NvDlaHeap, NvDlaTask

_FIRST_RENDER_NODE: Final = 128
"""Minor number of the first DRM render node."""
_STATUS_BY_ERRNO: Final = {
    errno.ENOMEM: NvError.INSUFFICIENT_MEMORY,
    errno.ETIMEDOUT: NvError.TIMEOUT,
    errno.EBUSY: NvError.BUSY,
}


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


T = TypeVar("T", bound="Descriptor")


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
            raise NvdlaError(
                NvError.BAD_PARAMETER, f"device instance {instance} has no device node: {error}"
            ) from error
        except OSError as error:
            raise NvdlaError(
                NvError.RESOURCE_ERROR, f"device instance {instance} cannot be opened: {error}"
            ) from error

    def _close_device(self, device: DeviceFile) -> None:
        device.close()

    def _allocate(self, device: DeviceFile, size: int, heap: NvDlaHeap) -> tuple[_Gem, Bytes]:
        """Create, share and map a buffer; undo all steps if one fails."""
        gem = _ioctl(device, IOCTL_GEM_CREATE, GemCreate(flags=heap, size=size), "allocate memory")
        with contextlib.ExitStack() as undo:
            undo.callback(_ioctl, device, IOCTL_GEM_DESTROY, GemDestroy(gem.handle), "free memory")
            request = PrimeHandle(handle=gem.handle, flags=CLOSE_ON_EXEC)
            shared = _ioctl(device, IOCTL_PRIME_HANDLE_TO_FD, request, "share memory")
            undo.callback(device.close_descriptor, shared.fd)
            mapping = _ioctl(device, IOCTL_GEM_MMAP, GemMap(handle=gem.handle), "map memory")
            mapped = memoryview(_map(device, mapping.offset, size))
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
            _ioctl(
                device,
                IOCTL_SUBMIT,
                SubmitArguments(
                    tasks=task_bytes.ctypes.data,
                    num_tasks=1,
                    version=pack_version(task.interface_version),
                ),
                f"run task {task.task_id}",
            )


def _ioctl(device: DeviceFile, request: int, argument: T, action: str) -> T:
    """Send a request and return the driver's reply; ``action`` names the action in errors."""
    data = bytearray(argument.to_bytes())
    try:
        device.ioctl(request, data)
    except OSError as error:
        raise _explain(error, action) from error
    return type(argument).from_bytes(data)


def _map(device: DeviceFile, offset: int, size_bytes: int) -> Buffer:
    try:
        return device.mmap(offset, size_bytes)
    except OSError as error:
        raise _explain(error, "map memory") from error


def _explain(error: OSError, action: str) -> NvdlaError:
    status = _STATUS_BY_ERRNO.get(error.errno or 0, NvError.IOCTL_FAILED)
    return NvdlaError(status, f"the driver cannot {action}: {error}")
