"""Interpretation of a loadable: the operations of its tasks, their dependencies and tensors.

Interpretation runs nothing and allocates no device memory. It accepts every valid loadable, even if
no hardware configuration has the engines that the loadable needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.errors import ModelFormatError
from smelt.nvdla._descriptor_codec import Descriptor, DescriptorVersion
from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla.loadable._descriptors import (
    DESCRIPTOR_CLASSES,
    OPERATION_STRIDE_BYTES,
    SURFACE_STRIDE_BYTES,
    CommonOperation,
    LutParameters,
    NetworkDescriptor,
    Operation,
    OperationType,
    Roi,
    RoiArray,
    Surface,
)
from smelt.nvdla.loadable._emulator_descriptors import (
    EMU_BUFFERS_BYTES,
    EMU_OPERATION_BYTES,
    EmuBuffers,
    EmuNetworkDescriptor,
    EmuOperation,
    find_emu_layout,
    read_emu_operation,
)
from smelt.nvdla.loadable._model import Address, Interface, Memory, Task, Version
from smelt.types import Limit, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeVar

    from smelt.nvdla.loadable._loadable import Loadable

    D = TypeVar("D", bound=Descriptor)
    Entry = TypeVar("Entry", Address, Memory, Task)

_MAX_ROIS: Final = 1 << 16
"""Maximum number of regions of interest that are read."""
_CONTENT_BYTES: Final = 16
"""Bytes as which each blob of a memory is counted when descriptors are read."""
_COMMON_BYTES: Final = CommonOperation.size_bytes()
"""Size of a node of the dependency graph."""
_UNSET: Final = Version(0, 0, 0)
_KNOWN_FIRMWARE: Final = ((0, 10), (0, 11), (0, 12))
"""Firmware interface versions, major and minor, whose descriptor layout is known."""


@dataclass(frozen=True, slots=True)
class OperationView:
    """Operation of the accelerator, with its descriptors."""

    index: int
    type: OperationType
    common: CommonOperation
    operation: Operation
    surface: Surface

    def edges(self) -> Iterator[Edge]:
        """Yield the edges of the dependency graph that begin at the operation."""
        for consumer in self.common.consumers:
            if consumer.index >= 0:
                yield Edge(self.index, consumer.index, consumer.event, is_fused=False)
        parent = self.common.fused_parent
        if parent.index >= 0:
            yield Edge(self.index, parent.index, parent.event, is_fused=True)


@dataclass(frozen=True, slots=True)
class EmuOperationView:
    """Operation of the emulator, with its descriptors."""

    index: int
    operation: EmuOperation
    buffers: EmuBuffers


@dataclass(frozen=True, slots=True)
class Edge:
    """Dependency: operation ``target`` waits until operation ``source`` raises ``event``."""

    source: int
    target: int
    event: int
    is_fused: bool
    """Whether the target is the fused parent, which streams data to the source."""


@dataclass(frozen=True, slots=True)
class DlaTaskView:
    """Task of the accelerator."""

    task: Task
    version: Version
    layout: DescriptorVersion
    network: NetworkDescriptor
    operations: tuple[OperationView, ...]
    luts: tuple[LutParameters, ...]
    rois: tuple[Roi, ...]

    @property
    def warning(self) -> str | None:
        """Warning that the layout of an unknown firmware's descriptors may differ, or None."""
        if (self.version.major, self.version.minor) in _KNOWN_FIRMWARE:
            return None
        shown = "0.12" if self.layout is DescriptorVersion.WITH_OFFSETS else "0.11"
        return (
            f"the firmware version {self.version} is unknown; its descriptors are read with the "
            f"layout of {shown} and may be wrong"
        )

    def edges(self) -> Iterator[Edge]:
        """Yield the edges of the dependency graph."""
        for view in self.operations:
            yield from view.edges()


@dataclass(frozen=True, slots=True)
class EmuTaskView:
    """Task of the emulator."""

    task: Task
    layout: DescriptorVersion
    network: EmuNetworkDescriptor
    operations: tuple[EmuOperationView, ...]


@dataclass(frozen=True, slots=True)
class OpaqueTaskView:
    """Task for an unknown interface, which is not interpreted."""

    task: Task


TaskView = DlaTaskView | EmuTaskView | OpaqueTaskView


@dataclass(frozen=True, slots=True)
class DecodedLoadable:
    """A loadable and the interpretation of its tasks."""

    loadable: Loadable
    tasks: tuple[TaskView, ...]


def interpret(loadable: Loadable) -> DecodedLoadable:
    """Interpret the tasks of a loadable.

    Raises:
        ModelFormatError: If the loadable refers to entries, blobs or bytes that do not exist.
    """
    contents = AddressContents(loadable)
    return DecodedLoadable(loadable, tuple(_view(contents, task) for task in loadable.tasks))


def find_interface_version(loadable: Loadable, task: Task) -> Version:
    """Return the interface version of a task's descriptors."""
    return AddressContents(loadable).version_of(task)


class AddressContents:
    """Contents of the addresses of a loadable."""

    def __init__(self, loadable: Loadable) -> None:
        self.addresses = _by_id("address", loadable.addresses)
        self.memories = _by_id("memory", loadable.memories)
        self._blobs = {blob.name: blob for blob in loadable.blobs}
        if len(self._blobs) != len(loadable.blobs):
            raise ModelFormatError("two blobs of the loadable have the same name")
        self._read_bytes = 0
        self._versions = {memory.id: self._first_version(memory) for memory in loadable.memories}

    def locate(self, task: Task, index: int, what: str) -> tuple[Memory, int, int]:
        """Return memory, offset and size of an entry of a task's address list.

        Raises:
            ModelFormatError: If the entry does not exist or lies outside its memory.
        """
        if not 0 <= index < len(task.address_list):
            raise ModelFormatError(
                f"task {task.id}: the address index of {what} is {index}, "
                f"but the task's address list has length {len(task.address_list)}"
            )
        entry = self.addresses.get(task.address_list[index])
        if entry is None:
            raise ModelFormatError(
                f"task {task.id}: address {index} refers to entry {task.address_list[index]}, "
                "which is not in the address list"
            )
        memory = self.memories.get(entry.mem_id)
        if memory is None:
            raise ModelFormatError(
                f"address {entry.id} is in memory {entry.mem_id}, which is not in the memory list"
            )
        available = memory.size - entry.offset
        if available < 0 or entry.size > available:
            raise ModelFormatError(
                f"address {entry.id} covers {entry.size} bytes at offset {entry.offset} of "
                f"memory {memory.id}, which has {memory.size} bytes"
            )
        return memory, entry.offset, entry.size or available

    def read(self, task: Task, index: int, size: int, what: str) -> bytes:
        """Return the first bytes at an address; bytes that no blob sets are 0.

        Raises:
            ModelFormatError: If the address has fewer bytes or refers to a missing blob.
        """
        memory, start, available = self.locate(task, index, what)
        if size > available:
            raise ModelFormatError(
                f"task {task.id}: {what} needs {size} bytes, but address {index} has {available}"
            )
        self._count_read(size + _CONTENT_BYTES * len(memory.contents))
        data = bytearray(size)
        for offset, name in zip(memory.offsets, memory.contents, strict=False):
            blob = self._blobs.get(name)
            if blob is None:
                if name:
                    raise ModelFormatError(
                        f"memory {memory.id} refers to the blob {name!r}, which does not exist"
                    )
                continue
            low, high = max(start, offset), min(start + size, offset + len(blob.data))
            if low < high:
                self._count_read(high - low)
                data[low - start : high - start] = blob.data[low - offset : high - offset]
        return bytes(data)

    def _count_read(self, size: int) -> None:
        """Count bytes that are read: all tasks may have the same descriptors.

        Raises:
            ModelFormatError: If the limit is exceeded.
        """
        self._read_bytes += size
        if self._read_bytes > Limit.MAX_DESCRIPTOR_BYTES.most:
            detail = Limit.MAX_DESCRIPTOR_BYTES.excess(self._read_bytes)
            raise ModelFormatError(f"the descriptors of the loadable's tasks have {detail}")

    def version_of(self, task: Task) -> Version:
        """Return the interface version of a task: the first that a blob at its addresses has."""
        for index in range(len(task.address_list)):
            memory, _, _ = self.locate(task, index, "an entry")
            if (version := self._versions[memory.id]) != _UNSET:
                return version
        return _UNSET

    def _first_version(self, memory: Memory) -> Version:
        """Return the first version that a blob of a memory has."""
        blobs = (self._blobs.get(name) for name in memory.contents)
        versions = (blob.version for blob in blobs if blob is not None)
        return next((version for version in versions if version != _UNSET), _UNSET)


def _by_id(what: str, entries: Sequence[Entry]) -> dict[int, Entry]:
    by_id = {entry.id: entry for entry in entries}
    if len(by_id) != len(entries):
        raise ModelFormatError(f"two entries of the {what} list have the same id")
    return by_id


def _view(contents: AddressContents, task: Task) -> TaskView:
    try:
        if task.interface == Interface.DLA1:
            return _view_dla(contents, task)
        if task.interface == Interface.EMU1:
            return _view_emulator(contents, task)
    except NvdlaError as error:
        raise ModelFormatError(f"task {task.id}: {error}") from error
    return OpaqueTaskView(task)


def _view_dla(contents: AddressContents, task: Task) -> DlaTaskView:
    """Interpret a task of the accelerator."""
    version = contents.version_of(task)
    layout = DescriptorVersion.of_version(version.major, version.minor)
    head = contents.read(task, 0, NetworkDescriptor.size_bytes(), "the network")
    network = NetworkDescriptor.from_bytes(head)
    count = network.num_operations
    operations: tuple[OperationView, ...] = ()
    if count:
        lists = [
            contents.read(task, index, item_bytes * count, what)
            for index, item_bytes, what in (
                (network.dependency_graph_index, _COMMON_BYTES, "the dependency graph"),
                (network.operation_desc_index, OPERATION_STRIDE_BYTES, "the operation list"),
                (network.surface_desc_index, SURFACE_STRIDE_BYTES, "the surface list"),
            )
        ]
        operations = tuple(_view_operation(index, layout, *lists) for index in range(count))
    view = DlaTaskView(
        task,
        version,
        layout,
        network,
        operations,
        _read_luts(contents, task, network),
        _read_rois(contents, task, network),
    )
    _check_graph(view)
    return view


def _view_operation(
    index: int, layout: DescriptorVersion, graph: bytes, operation_bytes: bytes, surfaces: bytes
) -> OperationView:
    """Decode the descriptors of one operation."""
    common = CommonOperation.from_bytes(graph, index * _COMMON_BYTES)
    try:
        kind = OperationType(common.op_type)
    except ValueError as error:
        raise NvError.BAD_PARAMETER.error(  # `_view` adds the task
            f"operation {index} has type {common.op_type}; the type must be 0 to 5"
        ) from error
    classes = DESCRIPTOR_CLASSES[kind]
    operation = classes.operation.from_bytes(
        operation_bytes, index * OPERATION_STRIDE_BYTES, layout
    )
    surface = classes.surface.from_bytes(surfaces, index * SURFACE_STRIDE_BYTES, layout)
    return OperationView(index, kind, common, operation, surface)


def _check_graph(view: DlaTaskView) -> None:
    """Refuse a task whose edges or first operations do not exist."""
    count = len(view.operations)
    for edge in view.edges():
        if edge.target >= count:
            raise ModelFormatError(
                f"task {view.task.id}: operation {edge.source} refers to operation "
                f"{edge.target}, but the task has {counted(count, 'operation')}, numbered from 0"
            )
    for kind, head in zip(OperationType, view.network.op_head, strict=True):
        if head >= count:
            raise ModelFormatError(
                f"task {view.task.id}: the first {kind.name} operation is number {head}, counted "
                f"from 0, but the task has {count or 'no'} operation{'s'[: count != 1]}"
            )


def _read_luts(
    contents: AddressContents, task: Task, network: NetworkDescriptor
) -> tuple[LutParameters, ...]:
    count, index = network.num_luts, network.lut_data_index
    if not count or index < 0:
        return ()
    size = LutParameters.size_bytes()
    data = contents.read(task, index, size * count, "the list of lookup tables")
    return tuple(LutParameters.from_bytes(data, size * i) for i in range(count))


def _read_rois(
    contents: AddressContents, task: Task, network: NetworkDescriptor
) -> tuple[Roi, ...]:
    """Return the fixed regions of interest; dynamic ones are not part of the loadable."""
    index, what = network.roi_array_index, "the list of regions of interest"
    if not network.num_rois or index < 0 or network.dynamic_roi:
        return ()
    head, size = RoiArray.size_bytes(), Roi.size_bytes()
    data = contents.read(task, index, head, what)
    count = min(RoiArray.from_bytes(data).array_length, network.num_rois, _MAX_ROIS)
    data = contents.read(task, index, head + size * count, what)
    return tuple(Roi.from_bytes(data, head + size * i) for i in range(count))


def _view_emulator(contents: AddressContents, task: Task) -> EmuTaskView:
    """Interpret a task of the emulator."""
    head = contents.read(task, 0, 6, "the network").ljust(EmuNetworkDescriptor.size_bytes(), b"\0")
    network = EmuNetworkDescriptor.from_bytes(head)
    count = network.num_operations
    if not count:
        return EmuTaskView(task, DescriptorVersion.WITH_OFFSETS, network, ())
    _, _, list_bytes = contents.locate(task, network.operation_desc_index, "the operation list")
    layout = find_emu_layout(list_bytes, count)
    operation_bytes = contents.read(
        task,
        network.operation_desc_index,
        EMU_OPERATION_BYTES[layout] * count,
        "the operation list",
    )
    buffers = contents.read(
        task, network.operation_buffer_desc_index, EMU_BUFFERS_BYTES * count, "the buffer list"
    )
    operations = tuple(
        EmuOperationView(
            index,
            read_emu_operation(operation_bytes, index, layout),
            EmuBuffers.from_bytes(buffers, EMU_BUFFERS_BYTES * index, layout),
        )
        for index in range(count)
    )
    return EmuTaskView(task, layout, network, operations)
