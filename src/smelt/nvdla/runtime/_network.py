"""A loadable on a device: its memory there, what the application bound, and its tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.nvdla._status import NvdlaError, NvError
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
from smelt.nvdla.port import (
    MAX_ADDRESSES_PER_TASK,
    NvDlaHeap,
    NvDlaMemDesc,
    NvDlaTask,
)
from smelt.nvdla.runtime._emulator import run_emulated_task
from smelt.nvdla.runtime._tensor import NvDlaTensor, check_change

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from smelt.nvdla.loadable import Address, Blob, Relocation, Task, TensorDescriptor
    from smelt.nvdla.port import PinnedMemory
    from smelt.nvdla.runtime._device import OpenDevice

    Entry = TypeVar("Entry", Address, Memory, Task, TensorDescriptor)

_STRIDE_BYTES: Final = 4
_DEPENDENCY_GRAPH: Final = "dep_graph"
"""What the name of a blob has that is uploaded anew before every submission."""
_DRIVER_MAJOR: Final = 0


@dataclass(slots=True)
class LoadedMemory:
    """A memory of the loadable, and where it is once it has a place."""

    entry: Memory
    pinned: PinnedMemory | None = None


@dataclass(slots=True)
class LoadedNetwork:
    """What `load` makes; `release` gives its memory back."""

    loadable: Loadable
    device: OpenDevice
    memories: dict[int, LoadedMemory] = field(default_factory=dict[int, LoadedMemory])
    inputs: tuple[LoadedMemory, ...] = ()
    outputs: tuple[LoadedMemory, ...] = ()
    tensors: dict[int, NvDlaTensor] = field(default_factory=dict[int, NvDlaTensor])
    addresses: Mapping[int, Address] = field(default_factory=dict[int, "Address"])
    tasks: Mapping[int, Task] = field(default_factory=dict[int, "Task"])
    blobs: Mapping[str, Blob] = field(default_factory=dict[str, "Blob"])

    @classmethod
    def load(cls, loadable: Loadable, device: OpenDevice) -> LoadedNetwork:
        """Check a loadable, allocate its memory and fill it; on failure nothing stays behind."""
        if not (loadable.submits and loadable.tasks and loadable.memories):
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                "the loadable must have at least one submission, one task and one memory",
            )
        network = cls(loadable, device)
        network.addresses = _by_id("address", loadable.addresses)
        network.tasks = _by_id("task", loadable.tasks)
        network.blobs = {blob.name: blob for blob in loadable.blobs}
        network.memories = {
            number: LoadedMemory(entry)
            for number, entry in _by_id("memory", loadable.memories).items()
        }
        network.tensors = {
            number: NvDlaTensor.from_descriptor(entry)
            for number, entry in _by_id("tensor", loadable.tensors).items()
        }
        network.inputs = _bindable(network.memories.values(), MemoryFlags.INPUT)
        network.outputs = _bindable(network.memories.values(), MemoryFlags.OUTPUT)
        _bindable(network.memories.values(), MemoryFlags.DEBUG)
        try:
            for memory in network.memories.values():
                network._allocate(memory)
        except NvdlaError:
            network.release()
            raise
        return network

    def release(self) -> None:
        """Free what `load` allocated; what the application bound is the application's."""
        for memory in self.memories.values():
            if memory.pinned is not None and not memory.entry.is_bindable:
                self.device.free(memory.pinned)
            memory.pinned = None

    def _allocate(self, memory: LoadedMemory) -> None:
        entry = memory.entry
        if not entry.flags & MemoryFlags.ALLOC or entry.is_bindable:
            return
        heap = NvDlaHeap.SRAM if entry.domain == MemoryDomain.SRAM else NvDlaHeap.SYSTEM
        contents = list(self._contents(entry))
        memory.pinned = self.device.allocate(max(entry.size, 1), heap)
        for offset, blob in contents:
            _fill(memory.pinned, offset, blob)

    def _contents(self, entry: Memory) -> Iterator[tuple[int, Blob]]:
        """Give the blobs that fill a memory; check that they can."""
        if not entry.flags & MemoryFlags.SET:
            return
        where = f"memory {entry.id}"
        if len(entry.contents) != len(entry.offsets):
            raise NvdlaError(
                NvError.INVALID_STATE,
                f"{where} has {len(entry.contents)} contents and {len(entry.offsets)} offsets",
            )
        end, owner = 0, ""
        for offset, name in sorted(zip(entry.offsets, entry.contents, strict=True)):
            blob = self.blobs.get(name)
            if blob is None:
                raise NvdlaError(
                    NvError.INVALID_STATE,
                    f"{where} refers to the blob {name!r}, which does not exist",
                )
            if offset + len(blob.data) > entry.size:
                raise NvdlaError(
                    NvError.INVALID_STATE,
                    f"blob {name!r} of {len(blob.data)} bytes at {offset} is too large for "
                    f"{where}, which has {entry.size}",
                )
            if offset < end:
                raise NvdlaError(
                    NvError.INVALID_STATE, f"{where}: blobs {owner!r} and {name!r} overlap"
                )
            end, owner = offset + len(blob.data), name
            yield offset, blob

    # ---- tensors

    def tensor_id(self, memory: LoadedMemory) -> int:
        """The tensor of a bindable memory. Raises NvdlaError(BAD_PARAMETER): there is none."""
        number = memory.entry.tensor_desc_id
        if number not in self.tensors:
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"memory {memory.entry.id} refers to tensor {number}, which is not in the tensor "
                "list",
            )
        return number

    def set_tensor(self, memory: LoadedMemory, tensor: NvDlaTensor) -> None:
        """Change a tensor's strides, here and in the descriptors that use them."""
        number = self.tensor_id(memory)
        old = self.tensors[number]
        check_change(old, tensor)
        for pinned, offset, stride in list(self._relocate(memory, tensor.stride)):
            pinned.data[offset : offset + _STRIDE_BYTES] = list(
                stride.to_bytes(_STRIDE_BYTES, "little")
            )
        self.tensors[number] = NvDlaTensor(
            old.name,
            old.buffer_size,
            old.dims,
            old.data_format,
            old.data_type,
            old.data_category,
            old.pixel_format,
            old.pixel_mapping,
            tuple(tensor.stride),
        )

    def _relocate(
        self, memory: LoadedMemory, strides: Sequence[int]
    ) -> Iterator[tuple[PinnedMemory, int, int]]:
        """Give the places that hold a stride of a bound tensor, and the stride."""
        number = memory.entry.id
        places = {address.id for address in self.addresses.values() if address.mem_id == number}
        for relocation in self.loadable.relocations:
            if relocation.address_id not in places:
                continue
            if relocation.interface not in (Interface.DLA1, Interface.EMU1):
                continue
            written = self.memories.get(relocation.write_id)
            if relocation.sub_interface == SubInterface.DEPS and written is not None:
                raise NvdlaError(
                    NvError.NOT_SUPPORTED,
                    f"a relocation would write into the dependency graph, memory "
                    f"{relocation.write_id}",
                )
            if relocation.sub_interface not in (SubInterface.OPS, SubInterface.SURFS):
                continue
            if written is not None and written.pinned is not None:
                yield written.pinned, *_relocated(relocation, written.pinned, strides)

    def bind(self, memory: LoadedMemory, pinned: PinnedMemory) -> None:
        """Give a bindable memory its bytes. Raises NvdlaError(INVALID_SIZE): too few."""
        if pinned.data.nbytes < memory.entry.size:
            raise NvdlaError(
                NvError.INVALID_SIZE,
                f"memory of {pinned.data.nbytes} bytes is bound, and the network needs "
                f"{memory.entry.size}",
            )
        memory.pinned = pinned

    def unbind(self, pinned: PinnedMemory) -> None:
        """Forget memory that is about to be freed."""
        for memory in self.memories.values():
            if memory.entry.is_bindable and memory.pinned is pinned:
                memory.pinned = None

    # ---- submission

    def submit(self, *, has_emulator: bool) -> None:
        """Run every set of tasks, by id, one task after the other."""
        self._restore_dependency_graphs()
        for entry in sorted(self.loadable.submits, key=lambda entry: entry.id):
            for number in entry.task_id:
                task = self.tasks.get(number)
                if task is None:
                    raise NvdlaError(
                        NvError.BAD_PARAMETER,
                        f"submission {entry.id} refers to task {number}, which does not exist",
                    )
                self._run(task, has_emulator=has_emulator)

    def _run(self, task: Task, *, has_emulator: bool) -> None:
        if task.interface == Interface.DLA1:
            self.device.submit(self._dla_task(task))
        elif task.interface == Interface.EMU1:
            if not has_emulator:
                raise NvdlaError(
                    NvError.NOT_INITIALIZED, "the emulator was stopped; call init_emu first"
                )
            if task.instance > 0:
                raise NvdlaError(
                    NvError.BAD_PARAMETER,
                    f"task {task.id} requires emulator {task.instance}; there is only emulator 0",
                )
            places = [pinned.data[offset:end] for pinned, offset, end in self._places(task)]
            try:
                run_emulated_task(places)
            except NvdlaError as error:
                raise error.within(f"task {task.id}") from error
        else:
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"task {task.id} is for interface {task.interface}; it must be 1 (DLA1) or 2 "
                "(EMU1)",
            )

    def _dla_task(self, task: Task) -> NvDlaTask:
        version = find_interface_version(self.loadable, task)
        if version.major != _DRIVER_MAJOR:
            raise NvdlaError(
                NvError.NOT_SUPPORTED,
                f"task {task.id} is for firmware {version}; firmware 0.10 to 0.12 is supported",
            )
        places = tuple(
            NvDlaMemDesc(pinned.mem_handle, end - offset, offset)
            for pinned, offset, end in self._places(task)
        )
        return NvDlaTask(task.id, places, version)

    def _places(self, task: Task) -> Iterator[tuple[PinnedMemory, int, int]]:
        """Give the memory, first and last byte of each entry of a task's address list."""
        if len(task.address_list) > MAX_ADDRESSES_PER_TASK:
            raise NvdlaError(
                NvError.BAD_PARAMETER,
                f"task {task.id} has {len(task.address_list)} addresses; "
                f"at most {MAX_ADDRESSES_PER_TASK} are allowed",
            )
        for index, number in enumerate(task.address_list):
            where = f"task {task.id}, address {index}"
            address = self.addresses.get(number)
            if address is None:
                raise NvdlaError(
                    NvError.BAD_PARAMETER, f"{where}: entry {number} is not in the address list"
                )
            memory = self.memories.get(address.mem_id)
            if memory is None:
                raise NvdlaError(
                    NvError.BAD_PARAMETER,
                    f"{where}: memory {address.mem_id} is not in the memory list",
                )
            if memory.pinned is None:
                raise NvdlaError(NvError.INVALID_STATE, f"{where}: {_explain_unbound(memory)}")
            room = memory.pinned.data.nbytes
            if address.offset + address.size > room or address.offset >= room:
                raise NvdlaError(
                    NvError.INVALID_ADDRESS,
                    f"{where}: {address.size} bytes at {address.offset} lie outside memory "
                    f"{address.mem_id} of {room} bytes",
                )
            end = address.offset + address.size if address.size else room
            yield memory.pinned, address.offset, end

    def _restore_dependency_graphs(self) -> None:
        for memory in self.memories.values():
            if memory.pinned is None or memory.entry.is_bindable:
                continue
            for offset, blob in self._contents(memory.entry):
                if _DEPENDENCY_GRAPH in blob.name or blob.sub_interface == SubInterface.DEPS:
                    _fill(memory.pinned, offset, blob)


def _fill(pinned: PinnedMemory, offset: int, blob: Blob) -> None:
    pinned.data[offset : offset + len(blob.data)] = np.frombuffer(blob.data, np.uint8)


def _relocated(
    relocation: Relocation, pinned: PinnedMemory, strides: Sequence[int]
) -> tuple[int, int]:
    if relocation.reloc_type not in tuple(RelocationType):
        raise NvdlaError(
            NvError.INVALID_STATE,
            f"a relocation has type {relocation.reloc_type}; it must be 1 (line) or 2 (surface)",
        )
    if relocation.offset + _STRIDE_BYTES > pinned.data.nbytes:
        raise NvdlaError(
            NvError.INVALID_ADDRESS,
            f"a relocation is at byte {relocation.offset} of memory {relocation.write_id}, "
            f"which has {pinned.data.nbytes} bytes",
        )
    return relocation.offset, strides[relocation.reloc_type]


def _explain_unbound(memory: LoadedMemory) -> str:
    entry = memory.entry
    if not entry.is_bindable:
        return f"memory {entry.id} is neither allocated nor bound"
    direction = "input" if entry.flags & MemoryFlags.INPUT else "output"
    return f"{direction} {entry.bind_id} has no memory; call bind_{direction}_tensor first"


def _by_id(what: str, entries: Sequence[Entry]) -> dict[int, Entry]:
    found = {entry.id: entry for entry in entries}
    if len(found) != len(entries):
        raise NvdlaError(NvError.BAD_PARAMETER, f"two entries of the {what} list have the same id")
    return found


def _bindable(memories: Iterable[LoadedMemory], flag: MemoryFlags) -> tuple[LoadedMemory, ...]:
    """Give the memories of one direction by their bind ids, which have no gaps or duplicates."""
    found = sorted(
        (memory for memory in memories if memory.entry.flags & flag),
        key=lambda memory: memory.entry.bind_id,
    )
    ids = [memory.entry.bind_id for memory in found]
    if ids != list(range(len(ids))):
        raise NvdlaError(
            NvError.BAD_PARAMETER,
            f"the {flag.name} bind ids are {ids}: each of 0 to {len(ids) - 1} must occur once",
        )
    return tuple(found)
