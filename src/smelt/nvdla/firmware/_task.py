"""Access to a task's descriptors in memory, through its address list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from smelt.nvdla._errors import NvError
from smelt.nvdla._protocols import MemorySpace, PhysicalAddress
from smelt.nvdla.firmware._graph import MAX_OPERATIONS, OperationDescriptors, TaskGraph
from smelt.nvdla.loadable import (
    DESCRIPTOR_CLASSES,
    OPERATION_STRIDE_BYTES,
    STATISTICS_STRIDE_BYTES,
    SURFACE_STRIDE_BYTES,
    CommonOperation,
    Descriptor,
    LutParameters,
    NetworkDescriptor,
    OperationType,
    Roi,
    RoiArray,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.nvdla._protocols import DmaMemory
    from smelt.nvdla.loadable import DescriptorVersion, Operation, Surface

_COMMON_BYTES = CommonOperation.size_bytes()
"""Size of a node of the dependency graph."""
_D = TypeVar("_D", bound=Descriptor)


@dataclass(frozen=True, slots=True)
class TaskDescriptors:
    """The descriptor lists of a task; the network descriptor holds their address indices."""

    memory: DmaMemory
    addresses: Sequence[PhysicalAddress]
    layout: DescriptorVersion
    network: NetworkDescriptor
    num_rois: int

    @property
    def has_statistics(self) -> bool:
        """Whether the network has a list for the engines' statistics."""
        return self.network.stat_list_index != -1

    def address(self, index: int, what: str) -> PhysicalAddress:
        """Return the entry at an index of the address list.

        Raises:
            NvdlaError: INVALID_ADDRESS if the index is outside the list.
        """
        if not 0 <= index < len(self.addresses):
            raise NvError.INVALID_ADDRESS.error(
                f"the address index of {what} is {index}; it must be 0 to "
                f"{len(self.addresses) - 1}, the last index of the task's address list"
            )
        return self.addresses[index]

    def extents(self) -> list[tuple[PhysicalAddress, int]]:
        """Return address and size in bytes of each descriptor list of the task."""
        network, count = self.network, self.network.num_operations * self.num_rois
        sizes = {
            network.dependency_graph_index: count * _COMMON_BYTES,
            network.operation_desc_index: count * OPERATION_STRIDE_BYTES,
            network.surface_desc_index: count * SURFACE_STRIDE_BYTES,
            network.lut_data_index: network.num_luts * LutParameters.size_bytes(),
            network.roi_array_index: RoiArray.size_bytes() + self.num_rois * Roi.size_bytes(),
        }
        lists = [
            (self.addresses[index], size)
            for index, size in sizes.items()
            if 0 <= index < len(self.addresses)
        ]
        return [(self.addresses[0], NetworkDescriptor.size_bytes(self.layout)), *lists]

    def read_graph(self) -> TaskGraph:
        """Read the dependency graph, for all regions of interest."""
        count = self.network.num_operations * self.num_rois
        return TaskGraph(
            heads=self.network.op_head,
            num_operations=self.network.num_operations,
            num_rois=self.num_rois,
            operations=OperationDescriptors(
                self.memory.read(*self._locate_node(0), count * _COMMON_BYTES)
            ),
        )

    def write_common(self, node: int, operation: CommonOperation) -> None:
        """Write a node of the dependency graph back to memory."""
        self.memory.write(*self._locate_node(node), operation.to_bytes())

    def read_common(self, node: int) -> CommonOperation:
        """Read a node of the dependency graph."""
        data = self.memory.read(*self._locate_node(node), _COMMON_BYTES)
        return CommonOperation.from_bytes(data)

    def _locate_node(self, node: int) -> PhysicalAddress:
        index = self.network.dependency_graph_index
        space, address = self.address(index, "the network's dependency graph")
        return PhysicalAddress(space, address + node * _COMMON_BYTES)

    def read_operation(self, op_type: OperationType, node: int) -> Operation:
        """Read the operation descriptor of a node."""
        cls = DESCRIPTOR_CLASSES[op_type].operation
        index, what = self.network.operation_desc_index, "the network's operation list"
        return self._read(cls, index, what, OPERATION_STRIDE_BYTES, node)

    def read_surface(self, op_type: OperationType, node: int) -> Surface:
        """Read the surface descriptor of a node."""
        cls = DESCRIPTOR_CLASSES[op_type].surface
        index, what = self.network.surface_desc_index, "the network's surface list"
        return self._read(cls, index, what, SURFACE_STRIDE_BYTES, node)

    def read_lut(self, index: int) -> LutParameters:
        """Read a lookup table."""
        size, what = LutParameters.size_bytes(), "the network's list of lookup tables"
        return self._read(LutParameters, self.network.lut_data_index, what, size, index)

    def read_roi(self, index: int) -> Roi:
        """Read a region of interest."""
        space, address = self.address(
            self.network.roi_array_index, "the list of regions of interest"
        )
        offset = RoiArray.size_bytes() + index * Roi.size_bytes()
        return Roi.from_bytes(self.memory.read(space, address + offset, Roi.size_bytes()))

    def write_statistics(self, node: int, statistics: Descriptor) -> None:
        """Write an engine's statistics to the network's list of statistics."""
        space, address = self.address(self.network.stat_list_index, "the list of statistics")
        self.memory.write(
            space, address + node * STATISTICS_STRIDE_BYTES, statistics.to_bytes(self.layout)
        )

    def _read(self, cls: type[_D], index: int, what: str, stride: int, node: int) -> _D:
        space, address = self.address(index, what)
        size = cls.size_bytes(self.layout)
        data = self.memory.read(space, address + node * stride, size)
        return cls.from_bytes(data, 0, self.layout)


def read_task(
    memory: DmaMemory, addresses: Sequence[tuple[MemorySpace, int]], layout: DescriptorVersion
) -> TaskDescriptors:
    """Read a task's network descriptor, at the first entry of its address list.

    Raises:
        NvdlaError: INVALID_ADDRESS if the address list is empty or leads outside memory;
            COUNT_MISMATCH if the list is too short for the network; BAD_PARAMETER if there are too
            many regions of interest; RESOURCE_ERROR if there are more than `MAX_OPERATIONS`
            operations.
    """
    address_list = [PhysicalAddress(MemorySpace(space), address) for space, address in addresses]
    if not address_list:
        raise NvError.INVALID_ADDRESS.error(
            "the task has no addresses; the first address must be that of its network descriptor"
        )
    data = memory.read(
        address_list[0].space, address_list[0].address, NetworkDescriptor.size_bytes(layout)
    )
    network = NetworkDescriptor.from_bytes(data, 0, layout)
    if network.num_addresses > len(address_list):
        raise NvError.COUNT_MISMATCH.error(
            f"the network needs {network.num_addresses} addresses, but the task has "
            f"{len(address_list)}"
        )
    task = TaskDescriptors(memory, address_list, layout, network, network.num_rois)
    if network.dynamic_roi:
        task = TaskDescriptors(memory, address_list, layout, network, _count_rois(task))
    count = network.num_operations * task.num_rois
    if count > MAX_OPERATIONS:
        raise NvError.RESOURCE_ERROR.error(
            f"the task has {count} operations ({network.num_operations} for each region of "
            f"interest); the scheduler supports at most {MAX_OPERATIONS}"
        )
    return task


def _count_rois(task: TaskDescriptors) -> int:
    """Return the number of dynamic regions of interest, which the list in memory holds."""
    space, address = task.address(task.network.roi_array_index, "the list of regions of interest")
    array = RoiArray.from_bytes(task.memory.read(space, address, RoiArray.size_bytes()))
    if array.array_length > task.network.num_rois:
        raise NvError.BAD_PARAMETER.error(
            f"the task has {array.array_length} regions of interest; the network supports at most "
            f"{task.network.num_rois}"
        )
    return array.array_length
