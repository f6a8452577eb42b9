"""Transport within one process: direct calls of a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.nvdla._errors import NvError
from smelt.nvdla.port._handle_port import HandlePort
from smelt.nvdla.port._interfaces import Driver, PhysicalRegion, PhysicalTask
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.nvdla.port._interfaces import Bytes, DeviceHardware, NvDlaHeap, NvDlaTask


class LocalPort(HandlePort[int, PhysicalRegion]):
    """Port to a driver in this process; memory is not copied."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    @property
    def hardware(self) -> DeviceHardware | None:
        """Hardware of the driver's devices; None if the driver does not report it."""
        return self._driver.hardware

    def _open_device(self, instance: int) -> int:
        count = self._driver.num_devices
        if instance >= count:
            raise NvError.BAD_PARAMETER.error(
                f"device instance {instance} does not exist: the driver has "
                f"{counted(count, 'device')}, numbered from 0"
            )
        return instance

    def _close_device(self, device: int) -> None:
        self.debug_printf("device %d is closed", device)

    def _allocate(self, device: int, size: int, heap: NvDlaHeap) -> tuple[PhysicalRegion, Bytes]:
        region = self._driver.allocate(device, size, heap)
        return region, region.data

    def _free(self, device: int, memory: PhysicalRegion) -> None:
        self._driver.release(device, memory)

    def _run(
        self, device: int, tasks: Sequence[NvDlaTask], memory: Mapping[int, PhysicalRegion]
    ) -> None:
        for task in tasks:
            addresses = tuple(memory[item.handle].at(item.offset) for item in task.address_list)
            self._driver.execute(
                device, PhysicalTask(task.task_id, addresses, task.interface_version)
            )
