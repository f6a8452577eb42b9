"""A network loaded onto a device: its memories, bound tensors and tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla.loadable import (
    Interface,
    Loadable,
    Memory,
    MemoryDomain,
    MemoryFlags,
    RelocationType,
    SubInterface,
    find_interface_version,
)
from smelt.nvdla.port import MAX_ADDRESSES_PER_TASK, NvDlaHeap, NvDlaMemDesc, NvDlaTask
from smelt.nvdla.runtime._emulator import run_emulated_task
from smelt.nvdla.runtime._tensor import NvDlaTensor, check_change
from smelt.types import ForkLock, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeVar

    from smelt.nvdla.loadable import Address, Blob, Relocation, Task, TensorDescriptor
    from smelt.nvdla.port import PinnedMemory
    from smelt.nvdla.runtime._runtime import OpenDevice

    Entry = TypeVar("Entry", Address, Memory, Task, TensorDescriptor)

_STRIDE_BYTES: Final = 4
"""Size of a stride in a descriptor."""
_DEPENDENCY_GRAPH: Final = "dep_graph"
"""Part of the names of the blobs that are uploaded again before every submission."""
_DRIVER_MAJOR: Final = 0
"""Major version of the firmware interface that this driver supports."""


@dataclass(slots=True)
class LoadedMemory:
    """A memory of the loadable, with its pinned memory once allocated or bound."""

    entry: Memory
    pinned: PinnedMemory | None = None


class LoadedNetwork:
    """A network on a device: creating it allocates its memory, `release` frees it."""

    def __init__(self, loadable: Loadable, device: OpenDevice) -> None:
        """Check a loadable, allocate its memories and fill them.

        Raises:
            NvdlaError: BAD_PARAMETER or INVALID_STATE if the loadable is invalid;
                INSUFFICIENT_MEMORY. No memory stays allocated then.
        """
        if not (loadable.submits and loadable.tasks and loadable.memories):
            raise NvError.BAD_PARAMETER.error(
                "the loadable must have at least one submission, one task and one memory "
                f"(submissions: {len(loadable.submits)}, tasks: {len(loadable.tasks)}, memories: "
                f"{len(loadable.memories)})"
            )
        self.loadable = loadable
        self.device = device
        self._lock = ForkLock()
        """Held during submissions and changes of what they read."""
        self.addresses = _by_id("address", loadable.addresses)
        self.tasks = _by_id("task", loadable.tasks)
        self.blobs = {blob.name: blob for blob in loadable.blobs}
        self.memories = {
            number: LoadedMemory(entry)
            for number, entry in _by_id("memory", loadable.memories).items()
        }
        self.tensors = {
            number: NvDlaTensor.from_descriptor(entry)
            for number, entry in _by_id("tensor", loadable.tensors).items()
        }
        self.inputs = _bindable(self.memories.values(), MemoryFlags.INPUT)
        self.outputs = _bindable(self.memories.values(), MemoryFlags.OUTPUT)
        _bindable(self.memories.values(), MemoryFlags.DEBUG)
        try:
            for memory in self.memories.values():
                self._allocate(memory)
        except NvdlaError:
            self.release()
            raise

    def release(self) -> None:
        """Free the memory that was allocated; memory that the application bound stays.

        Raises:
            NvdlaError: BUSY in a signal handler that interrupts a submission of this network.
        """
        self.check_idle()
        with self._lock:
            for memory in self.memories.values():
                if memory.pinned is not None and not memory.entry.is_bindable:
                    self.device.free(memory.pinned)
                memory.pinned = None

    def abandon(self) -> None:
        """Leave the memory to the end of the session, which frees it.

        A submission that another thread begins later finds no memory.

        Raises:
            NvdlaError: As `release`.
        """
        self.check_idle()
        with self._lock:
            for memory in self.memories.values():
                memory.pinned = None

    def _allocate(self, memory: LoadedMemory) -> None:
        """Allocate and fill a memory, unless the application binds it."""
        entry = memory.entry
        if not entry.flags & MemoryFlags.ALLOC or entry.is_bindable:
            return
        heap = NvDlaHeap.SRAM if entry.domain == MemoryDomain.SRAM else NvDlaHeap.SYSTEM
        contents = list(self._contents(entry))
        memory.pinned = self.device.allocate(max(entry.size, 1), heap)
        for offset, blob in contents:
            _fill(memory.pinned, offset, blob)

    def _contents(self, entry: Memory) -> Iterator[tuple[int, Blob]]:
        """Yield offset and blob for the blobs that fill a memory.

        Raises:
            NvdlaError: INVALID_STATE if a blob is missing, too large, or overlaps another.
        """
        if not entry.flags & MemoryFlags.SET:
            return
        memory_name = f"memory {entry.id}"
        if len(entry.contents) != len(entry.offsets):
            raise NvError.INVALID_STATE.error(
                f"{memory_name} lists {counted(len(entry.contents), 'blob')} but "
                f"{counted(len(entry.offsets), 'offset')}"
            )
        end, owner = 0, ""
        for offset, name in sorted(zip(entry.offsets, entry.contents, strict=True)):
            blob = self.blobs.get(name)
            if blob is None:
                raise NvError.INVALID_STATE.error(
                    f"{memory_name} refers to the blob {name!r}, which does not exist"
                )
            if offset + len(blob.data) > entry.size:
                raise NvError.INVALID_STATE.error(
                    f"blob {name!r} of {len(blob.data)} bytes at offset {offset} is too large for "
                    f"{memory_name}, which has {entry.size} bytes"
                )
            if offset < end:
                raise NvError.INVALID_STATE.error(
                    f"{memory_name}: blobs {owner!r} and {name!r} overlap"
                )
            end, owner = offset + len(blob.data), name
            yield offset, blob

    # ---- tensors

    def tensor_id(self, memory: LoadedMemory) -> int:
        """Return the id of a bindable memory's tensor.

        Raises:
            NvdlaError: BAD_PARAMETER if the tensor does not exist.
        """
        number = memory.entry.tensor_desc_id
        if number not in self.tensors:
            raise NvError.BAD_PARAMETER.error(
                f"memory {memory.entry.id} refers to tensor {number}, which is not in the tensor "
                "list"
            )
        return number

    def set_tensor(self, memory: LoadedMemory, tensor: NvDlaTensor) -> None:
        """Change a tensor's strides, in the network and in the descriptors that hold them.

        Raises:
            NvdlaError: As `check_change`, or if a relocation is invalid.
        """
        number = self.tensor_id(memory)
        old = self.tensors[number]
        check_change(old, tensor)
        self.check_idle()
        with self._lock:
            for pinned, offset, stride in list(self._relocate(memory, tensor.stride)):
                pinned.data[offset : offset + _STRIDE_BYTES] = list(
                    stride.to_bytes(_STRIDE_BYTES, "little")
                )
            self.tensors[number] = replace(old, stride=tuple(tensor.stride))

    def _relocate(
        self, memory: LoadedMemory, strides: Sequence[int]
    ) -> Iterator[tuple[PinnedMemory, int, int]]:
        """Yield memory, byte offset and new value for each copy of a stride of a bound tensor.

        Raises:
            NvdlaError: NOT_SUPPORTED if a relocation writes to the dependency graph; INVALID_STATE
                or INVALID_ADDRESS if a relocation is invalid.
        """
        number = memory.entry.id
        address_ids = {item.id for item in self.addresses.values() if item.mem_id == number}
        for relocation in self.loadable.relocations:
            if relocation.address_id not in address_ids:
                continue
            if relocation.interface not in (Interface.DLA1, Interface.EMU1):
                continue
            target = self.memories.get(relocation.write_id)
            if relocation.sub_interface == SubInterface.DEPS and target is not None:
                raise NvError.NOT_SUPPORTED.error(
                    "the strides of the tensor cannot be changed: a relocation would write them "
                    f"to memory {relocation.write_id}, which holds the dependency graph"
                )
            if relocation.sub_interface not in (SubInterface.OPS, SubInterface.SURFS):
                continue
            if target is not None and target.pinned is not None:
                yield target.pinned, *_resolve_relocation(relocation, target.pinned, strides)

    def bind(self, memory: LoadedMemory, pinned: PinnedMemory) -> None:
        """Bind a memory of the network to pinned memory.

        Raises:
            NvdlaError: INVALID_SIZE if the pinned memory is too small.
        """
        if pinned.data.nbytes < memory.entry.size:
            raise NvError.INVALID_SIZE.error(
                f"{_direction(memory.entry)} {memory.entry.bind_id} needs {memory.entry.size} "
                f"bytes, but the memory to bind to it has {pinned.data.nbytes}"
            )
        self.check_idle()
        with self._lock:
            memory.pinned = pinned

    def unbind(self, pinned: PinnedMemory) -> None:
        """Unbind pinned memory wherever it is bound, before it is freed."""
        self.check_idle()
        with self._lock:
            for memory in self.memories.values():
                if memory.entry.is_bindable and memory.pinned is pinned:
                    memory.pinned = None

    # ---- submission

    def submit(self, *, is_emulator_running: bool) -> None:
        """Run the sets of tasks in the order of their ids, one task after the other.

        A submission of another thread begins when this one has ended: both use the dependency
        graphs in the network's memory.

        Raises:
            NvdlaError: As `Runtime.submit`.
        """
        self.check_idle()
        with self._lock:
            self._restore_dependency_graphs()
            self._run_submissions(is_emulator_running=is_emulator_running)

    def check_idle(self) -> None:
        """Raise NvdlaError, BUSY, in a signal handler that interrupts a submission."""
        if self._lock.is_held:
            raise NvError.BUSY.error(
                "a submission of this network was interrupted by a signal handler; the handler "
                "cannot submit, change or unload the network until the submission has ended"
            )

    def _run_submissions(self, *, is_emulator_running: bool) -> None:
        for entry in sorted(self.loadable.submits, key=lambda entry: entry.id):
            for number in entry.task_id:
                task = self.tasks.get(number)
                if task is None:
                    raise NvError.BAD_PARAMETER.error(
                        f"submission {entry.id} refers to task {number}, which does not exist"
                    )
                self._run(task, is_emulator_running=is_emulator_running)

    def _run(self, task: Task, *, is_emulator_running: bool) -> None:
        """Run a task on the device or on the emulator."""
        if task.interface == Interface.DLA1:
            self.device.submit(self._dla_task(task))
        elif task.interface == Interface.EMU1:
            if not is_emulator_running:
                raise NvError.NOT_INITIALIZED.error("the emulator was stopped; call init_emu first")
            if task.instance > 0:
                raise NvError.BAD_PARAMETER.error(
                    f"task {task.id} requires emulator {task.instance}; only emulator 0 exists"
                )
            windows = [pinned.data[offset:end] for pinned, offset, end in self._windows(task)]
            try:
                run_emulated_task(windows)
            except NvdlaError as error:
                raise error.within(f"task {task.id}") from error
        else:
            raise NvError.BAD_PARAMETER.error(
                f"task {task.id} is for interface {task.interface}; it must be 1 (DLA1) or 2 (EMU1)"
            )

    def _dla_task(self, task: Task) -> NvDlaTask:
        """Return a task of the accelerator with the memory handles of its address list."""
        version = find_interface_version(self.loadable, task)
        if version.major != _DRIVER_MAJOR:
            raise NvError.NOT_SUPPORTED.error(
                f"task {task.id} is for firmware {version}; firmware 0.10 to 0.12 is supported"
            )
        address_list = tuple(
            NvDlaMemDesc(pinned.mem_handle, end - offset, offset)
            for pinned, offset, end in self._windows(task)
        )
        return NvDlaTask(task.id, address_list, version)

    def _windows(self, task: Task) -> Iterator[tuple[PinnedMemory, int, int]]:
        """Yield memory, start and end (exclusive) of each entry of a task's address list.

        Raises:
            NvdlaError: BAD_PARAMETER if the list is too long or an entry does not exist;
                INVALID_STATE if a memory is not bound; INVALID_ADDRESS if an entry lies outside
                its memory.
        """
        if len(task.address_list) > MAX_ADDRESSES_PER_TASK:
            raise NvError.BAD_PARAMETER.error(
                f"task {task.id} has {len(task.address_list)} addresses; "
                f"at most {MAX_ADDRESSES_PER_TASK} are allowed"
            )
        for index, number in enumerate(task.address_list):
            location = f"task {task.id}, address {index}"
            address = self.addresses.get(number)
            if address is None:
                raise NvError.BAD_PARAMETER.error(
                    f"{location}: entry {number} is not in the address list"
                )
            memory = self.memories.get(address.mem_id)
            if memory is None:
                raise NvError.BAD_PARAMETER.error(
                    f"{location}: memory {address.mem_id} is not in the memory list"
                )
            if memory.pinned is None:
                raise NvError.INVALID_STATE.error(f"{location}: {_explain_unbound(memory)}")
            memory_bytes = memory.pinned.data.nbytes
            if address.offset + address.size > memory_bytes or address.offset >= memory_bytes:
                raise NvError.INVALID_ADDRESS.error(
                    f"{location}: {address.size} bytes at offset {address.offset} lie outside "
                    f"memory {address.mem_id} of {memory_bytes} bytes"
                )
            end = address.offset + address.size if address.size else memory_bytes
            yield memory.pinned, address.offset, end

    def _restore_dependency_graphs(self) -> None:
        """Upload the dependency graphs again: the scheduler counts down in them as it runs."""
        for memory in self.memories.values():
            if memory.pinned is None or memory.entry.is_bindable:
                continue
            for offset, blob in self._contents(memory.entry):
                if _DEPENDENCY_GRAPH in blob.name or blob.sub_interface == SubInterface.DEPS:
                    _fill(memory.pinned, offset, blob)


def _fill(pinned: PinnedMemory, offset: int, blob: Blob) -> None:
    pinned.data[offset : offset + len(blob.data)] = np.frombuffer(blob.data, np.uint8)


def _resolve_relocation(
    relocation: Relocation, pinned: PinnedMemory, strides: Sequence[int]
) -> tuple[int, int]:
    """Return the byte offset and the new value of the stride that a relocation names."""
    if relocation.reloc_type not in tuple(RelocationType):
        raise NvError.INVALID_STATE.error(
            f"a relocation has type {relocation.reloc_type}; it must be 1 (line) or 2 (surface)"
        )
    if relocation.offset + _STRIDE_BYTES > pinned.data.nbytes:
        raise NvError.INVALID_ADDRESS.error(
            f"a relocation is at byte {relocation.offset} of memory {relocation.write_id}, "
            f"which has {pinned.data.nbytes} bytes"
        )
    return relocation.offset, strides[relocation.reloc_type]


def _explain_unbound(memory: LoadedMemory) -> str:
    entry = memory.entry
    if not entry.is_bindable:
        return f"memory {entry.id} is neither allocated nor bound"
    direction = _direction(entry)
    return f"{direction} {entry.bind_id} has no memory; call bind_{direction}_tensor first"


def _direction(entry: Memory) -> str:
    return "input" if entry.flags & MemoryFlags.INPUT else "output"


def _by_id(what: str, entries: Sequence[Entry]) -> dict[int, Entry]:
    by_id = {entry.id: entry for entry in entries}
    if len(by_id) != len(entries):
        raise NvError.BAD_PARAMETER.error(f"two entries of the {what} list have the same id")
    return by_id


def _bindable(memories: Iterable[LoadedMemory], flag: MemoryFlags) -> tuple[LoadedMemory, ...]:
    """Return the memories that have a flag, ordered by bind id.

    Raises:
        NvdlaError: BAD_PARAMETER if the bind ids have gaps or duplicates.
    """
    bindable = sorted(
        (memory for memory in memories if memory.entry.flags & flag),
        key=lambda memory: memory.entry.bind_id,
    )
    ids = [memory.entry.bind_id for memory in bindable]
    if ids != list(range(len(ids))):
        raise NvError.BAD_PARAMETER.error(
            f"the {flag.name} bind ids are {ids}; they must be {list(range(len(ids)))}"
        )
    return tuple(bindable)
