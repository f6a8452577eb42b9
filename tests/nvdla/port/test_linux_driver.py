"""The Linux driver's structures and request numbers are the kernel's, bit for bit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from smelt.nvdla import MemorySpace, NvdlaError, NvError
from smelt.nvdla.port import LinuxPort, NvDlaHeap, NvDlaMemDesc, NvDlaTask, RenderNode
from tests.support.nvdla_driver import FakeDeviceFile, RecordingDriver


class _Stubborn(FakeDeviceFile):
    """Fails one request."""

    def __init__(self, request: int, number: int) -> None:
        super().__init__(RecordingDriver(), 0)
        self._failing = request
        self._number = number

    def ioctl(self, request: int, argument: bytearray, /) -> None:
        if request == self._failing:
            raise OSError(self._number, "refused")
        super().ioctl(request, argument)


@pytest.mark.requirement("D-13", "D-32")
def test_a_submission_reaches_the_kernel_as_its_structures() -> None:
    driver = RecordingDriver()
    node = FakeDeviceFile(driver, 0)
    with LinuxPort(lambda _: node) as port:
        session = port.initialize()
        device = port.open(session, 0)
        memory = port.alloc_mem(session, device, 5000, NvDlaHeap.SRAM)
        task = NvDlaTask(3, (NvDlaMemDesc(memory.mem_handle, offset=4097),) * 2, (0, 11, 2))
        port.submit(session, device, [task])
        (region,) = driver.regions.values()
        assert region.heap is NvDlaHeap.SRAM
        ((instance, ran),) = driver.tasks
        assert instance == 0
        assert ran.addresses == ((MemorySpace.SRAM, region.address + 4097),) * 2
        assert ran.interface_version == (0, 11, 2)
        assert memory.data[4097] == 1, "the mapping is the buffer itself"
    assert node.is_closed
    assert node.requests == [0xC0106441, 0xC00C642D, 0xC0106442, 0xC0106440, 0xC0046443]


@pytest.mark.parametrize(
    ("request_number", "error", "status"),
    [
        (0xC0106440, errno.EINVAL, NvError.IOCTL_FAILED),
        (0xC0106440, errno.ETIMEDOUT, NvError.TIMEOUT),
        (0xC0106441, errno.ENOMEM, NvError.INSUFFICIENT_MEMORY),
        (0xC00C642D, errno.EBADF, NvError.IOCTL_FAILED),
        (0xC0106442, errno.EBUSY, NvError.BUSY),
    ],
)
def test_what_the_kernel_refuses_has_a_documented_code(
    request_number: int, error: int, status: NvError
) -> None:
    node = _Stubborn(request_number, error)
    with LinuxPort(lambda _: node) as port:
        session = port.initialize()
        device = port.open(session, 0)

        def use() -> None:
            memory = port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
            port.submit(session, device, [NvDlaTask(0, (NvDlaMemDesc(memory.mem_handle),))])

        with pytest.raises(NvdlaError) as caught:
            use()
        assert caught.value.status is status


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no device node to open")
def test_a_real_device_node_is_asked_and_mapped() -> None:
    """Any node does: this one knows no ioctl, but maps."""
    node = RenderNode("/dev/zero")
    mapped = memoryview(node.mmap(0, 4096))
    mapped[5] = 7
    assert mapped[5] == 7
    spare = os.dup(0)
    node.close_descriptor(spare)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(spare)
    with LinuxPort(lambda _: node) as port:
        session = port.initialize()
        device = port.open(session, 0)
        with pytest.raises(NvdlaError) as caught:
            port.alloc_mem(session, device, 64, NvDlaHeap.SYSTEM)
        assert caught.value.status is NvError.IOCTL_FAILED


def test_a_node_that_may_not_be_opened_is_no_resource(tmp_path: Path) -> None:
    with LinuxPort(lambda _: RenderNode(str(tmp_path))) as port:
        with pytest.raises(NvdlaError) as caught:
            port.open(port.initialize(), 0)
        assert caught.value.status is NvError.RESOURCE_ERROR


def test_a_machine_without_the_driver_says_so() -> None:
    with LinuxPort() as port, pytest.raises(NvdlaError, match="renderD1000128") as caught:
        port.open(port.initialize(), 1_000_000)
    assert caught.value.status is NvError.BAD_PARAMETER
