"""Base of all transports: handles, and the checks that give invalid calls their documented code."""

from __future__ import annotations

import itertools
import logging
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from smelt.nvdla._errors import NvError
from smelt.nvdla.port._interfaces import (
    MAX_ADDRESSES_PER_TASK,
    MAX_TASKS_PER_SUBMIT,
    SIZE_LIMIT_BYTES,
    Bytes,
    NvDlaHeap,
    NvDlaMemDesc,
    NvDlaTask,
    PinnedMemory,
)
from smelt.types import ForkLock, require_instance, require_int, require_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

D = TypeVar("D")
"""Type by which a transport identifies a device."""
M = TypeVar("M")
"""Type by which a transport identifies memory."""

_LOG = logging.getLogger(__name__)
_bad_parameter: Final = NvError.BAD_PARAMETER.error
"""Return the failure of an invalid argument."""


@dataclass(slots=True)
class _Allocation(Generic[M]):
    """Allocated memory: the transport's identifier and the bytes in this process."""

    memory: M
    data: Bytes


@dataclass(slots=True)
class _Device(Generic[D, M]):
    """An open device and its allocations by handle."""

    key: D
    lock: ForkLock = field(default_factory=ForkLock)
    memory: dict[int, _Allocation[M]] = field(default_factory=dict[int, _Allocation[M]])


class HandlePort(ABC, Generic[D, M]):
    """The portability layer's functions; no two handles of sessions, devices and memory are equal.

    Every failure is an `NvdlaError`.
    """

    def __init__(self) -> None:
        self._sessions: Final[dict[int, dict[int, _Device[D, M]]]] = {}
        self._numbers: Final = itertools.count(1)
        self._table_lock: Final = threading.RLock()

    # ---- implemented by a transport

    @abstractmethod
    def _open_device(self, instance: int) -> D:
        """Open a device instance.

        Raises:
            NvdlaError: BAD_PARAMETER if the instance does not exist.
        """

    @abstractmethod
    def _close_device(self, device: D) -> None:
        """Close a device whose memory has been freed."""

    @abstractmethod
    def _allocate(self, device: D, size: int, heap: NvDlaHeap) -> tuple[M, Bytes]:
        """Allocate zeroed memory."""

    @abstractmethod
    def _free(self, device: D, memory: M) -> None:
        """Free memory."""

    @abstractmethod
    def _run(self, device: D, tasks: Sequence[NvDlaTask], memory: Mapping[int, M]) -> None:
        """Run tasks that have been checked; ``memory`` has all memory that they use, by handle."""

    # ---- the portability API

    def initialize(self) -> int:
        """Start a session and return its handle."""
        with self._table_lock:
            session_handle = next(self._numbers)
            self._sessions[session_handle] = {}
            return session_handle

    def destroy(self, session_handle: int, /) -> None:
        """End a session: close its devices and free their memory; ignore an unknown session."""
        handle = require_int(session_handle, "the handle of a session", _bad_parameter)
        with self._table_lock:
            for device_handle in list(self._sessions.get(handle, ())):
                self.close(handle, device_handle)
            self._sessions.pop(handle, None)

    def open(self, session_handle: int, instance: int, /) -> int:
        """Open a device instance and return its handle.

        Raises:
            NvdlaError: BAD_PARAMETER if the session or the instance does not exist.
        """
        with self._table_lock:
            devices = self._devices(session_handle)
            instance = require_int(instance, "the device instance", _bad_parameter, minimum=0)
            key = self._open_device(instance)
            device_handle = next(self._numbers)
            devices[device_handle] = _Device(key)
            return device_handle

    def close(self, session_handle: int, device_handle: int, /) -> None:
        """Close a device and free the memory that was allocated on it.

        Raises:
            NvdlaError: BAD_PARAMETER if the device is not open in the session.
        """
        with self._table_lock:
            device = self._device(session_handle, device_handle)
            with device.lock:
                for allocation in device.memory.values():
                    self._free(device.key, allocation.memory)
                device.memory.clear()
            del self._sessions[session_handle][device_handle]
            self._close_device(device.key)

    def submit(
        self, session_handle: int, device_handle: int, tasks: Sequence[NvDlaTask], /
    ) -> None:
        """Run tasks one after the other; return when the last has ended.

        Raises:
            NvdlaError: BAD_PARAMETER if a handle or a count is invalid; INVALID_ADDRESS if an
                offset lies outside its memory; otherwise the code that the device reports.
        """
        device = self._device(session_handle, device_handle)
        tasks = require_list(tasks, "the task list of a submission", _bad_parameter)
        for task in tasks:
            _check_types(task)
        with device.lock:
            check_tasks(tasks)
            handles = {address.handle for task in tasks for address in task.address_list}
            for handle in handles:
                if handle not in device.memory:
                    raise _bad_parameter(
                        f"a task uses memory {handle}, which is not allocated on this device"
                    )
            for task in tasks:
                for index, address in enumerate(task.address_list):
                    size = device.memory[address.handle].data.nbytes
                    if not 0 <= address.offset < max(size, 1):
                        raise NvError.INVALID_ADDRESS.error(
                            f"task {task.task_id}: address {index} is at byte {address.offset}, "
                            f"outside its memory of {size} bytes"
                        )
            memory = {handle: device.memory[handle].memory for handle in handles}
            self._run(device.key, tasks, memory)

    def alloc_mem(
        self, session_handle: int, device_handle: int, size: int, heap: NvDlaHeap, /
    ) -> PinnedMemory:
        """Allocate zeroed memory that both this process and the engines can access.

        Raises:
            NvdlaError: INVALID_SIZE if the size is not 1 byte to 4 GiB less one; BAD_PARAMETER if
                a handle or the heap is invalid; INSUFFICIENT_MEMORY.
        """
        device = self._device(session_handle, device_handle)
        kind = check_allocation(size, heap)
        size = int(size)  # numpy's integers wrap around
        with device.lock:
            memory, data = self._allocate(device.key, size, kind)
            mem_handle = next(self._numbers)
            device.memory[mem_handle] = _Allocation(memory, data)
            return PinnedMemory(mem_handle, data)

    def free_mem(
        self, session_handle: int, device_handle: int, mem_handle: int, data: Bytes, size: int, /
    ) -> None:
        """Free memory of `alloc_mem`.

        Raises:
            NvdlaError: BAD_PARAMETER if handle, array and size are not those of an allocation of
                `alloc_mem`, or the memory was freed before.
        """
        device = self._device(session_handle, device_handle)
        handle = require_int(mem_handle, "the memory handle", _bad_parameter)
        size = require_int(size, "the memory size", _bad_parameter)
        with device.lock:
            allocation = device.memory.get(handle)
            if allocation is None:
                raise _bad_parameter(
                    f"memory {mem_handle} is not allocated on this device, or was freed before"
                )
            if allocation.data is not data or size != data.nbytes:
                raise _bad_parameter(
                    f"the array or the size does not match memory {mem_handle} of "
                    f"{allocation.data.nbytes} bytes: pass the array that alloc_mem returned, and "
                    "its size"
                )
            self._free(device.key, allocation.memory)
            del device.memory[handle]

    def debug_printf(self, message: str, /, *args: object) -> None:
        """Write to the debug console: the log of this module."""
        _LOG.debug(message, *args)

    def __enter__(self) -> Self:
        """Return the port; leaving the context ends every session."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End every session."""
        for session_handle in list(self._sessions):
            self.destroy(session_handle)

    # ---- look-ups

    def _devices(self, session_handle: int) -> dict[int, _Device[D, M]]:
        handle = require_int(session_handle, "the handle of a session", _bad_parameter)
        devices = self._sessions.get(handle)
        if devices is None:
            raise _bad_parameter(f"session {session_handle} does not exist; call initialize first")
        return devices

    def _device(self, session_handle: int, device_handle: int) -> _Device[D, M]:
        handle = require_int(device_handle, "the handle of a device", _bad_parameter)
        with self._table_lock:
            device = self._devices(session_handle).get(handle)
        if device is None:
            raise _bad_parameter(
                f"device {device_handle} is not open in this session; call open first"
            )
        if device.lock.is_held:
            raise NvError.BUSY.error(
                f"a call for device {device_handle} was interrupted by a signal handler; the "
                "handler cannot use the device until the call has ended"
            )
        return device


Port: TypeAlias = HandlePort[Any, Any]
"""A port of any transport."""


def check_allocation(size: int, heap: int) -> NvDlaHeap:
    """Check the size and heap of an allocation and return the heap.

    Raises:
        NvdlaError: INVALID_SIZE if the size is not 1 byte to 4 GiB less one; BAD_PARAMETER if the
            heap does not exist.
    """
    require_int(size, "the size of an allocation", NvError.INVALID_SIZE.error)
    if not 0 < size < SIZE_LIMIT_BYTES:
        raise NvError.INVALID_SIZE.error(
            f"an allocation has {size} bytes; 1 to {SIZE_LIMIT_BYTES - 1} bytes are allowed"
        )
    try:
        return NvDlaHeap(heap)
    except ValueError as error:
        raise _bad_parameter(
            f"the heap is {heap}; the heap must be 0 (SYSTEM) or 1 (SRAM)"
        ) from error


def _check_types(task: object) -> None:
    """Check a task's type, and those of its addresses. Raises NvdlaError: BAD_PARAMETER."""
    require_instance(task, NvDlaTask, "a task of a submission", _bad_parameter, "an NvDlaTask")
    for address in task.address_list if isinstance(task, NvDlaTask) else ():
        require_instance(
            address, NvDlaMemDesc, "an address of a task", _bad_parameter, "an NvDlaMemDesc"
        )
        require_int(address.handle, "the handle of a task's memory", _bad_parameter)
        require_int(address.offset, "the offset of a task's address", _bad_parameter)


def check_tasks(tasks: Sequence[NvDlaTask]) -> None:
    """Check the numbers of tasks and addresses of a submission.

    Raises:
        NvdlaError: BAD_PARAMETER if a number is 0 or too large.
    """
    if not 0 < len(tasks) <= MAX_TASKS_PER_SUBMIT:
        raise _bad_parameter(
            f"a submission has {len(tasks)} tasks; 1 to {MAX_TASKS_PER_SUBMIT} are allowed"
        )
    for task in tasks:
        if not 0 < task.num_addresses <= MAX_ADDRESSES_PER_TASK:
            raise _bad_parameter(
                f"task {task.task_id} has {task.num_addresses} addresses; 1 to "
                f"{MAX_ADDRESSES_PER_TASK} are allowed"
            )
