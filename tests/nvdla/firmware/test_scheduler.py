"""The scheduler on hardware that finishes in any order."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.firmware import EngineScheduler
from smelt.nvdla.hardware import NV_FULL
from smelt.nvdla.loadable import (
    DESCRIPTOR_CLASSES,
    CommonOperation,
    OperationEvent,
    OperationType,
)
from tests.nvdla.firmware._graphs import task_graphs
from tests.nvdla.firmware._hardware import FakeHardware, FakeMemory
from tests.nvdla.firmware._tasks import GRAPH, PLACES, TaskBuilder, number_of

if TYPE_CHECKING:
    from random import Random

    from smelt.nvdla.firmware import TaskStatistics

COMPLETED, PROGRAMMED, ENABLED = (
    OperationEvent.COMPLETED,
    OperationEvent.PROGRAMMED,
    OperationEvent.ENABLED,
)


def run(
    task: TaskBuilder, hardware: FakeHardware | None = None, timeout_s: float = 5.0
) -> tuple[TaskStatistics, FakeMemory, FakeHardware]:
    memory = FakeMemory()
    hardware = hardware or FakeHardware(NV_FULL, lambda _: 0)
    scheduler = EngineScheduler(hardware, memory, NV_FULL)
    return scheduler.execute_task(task.write(memory), timeout_s=timeout_s), memory, hardware


def moments(task: TaskBuilder, hardware: FakeHardware) -> dict[tuple[str, int, int], int]:
    """When each operation was enabled and completed, by operation and region."""
    found: dict[tuple[str, int, int], int] = {}
    for moment, (what, engine, number) in enumerate(hardware.log):
        for index, operation in enumerate(task.operations):
            for roi in range(task.num_rois):
                own = number_of(index, roi)
                own = own - PLACES[-1] + 32 if engine == "BDMA" else own
                if operation.op_type.name == engine and own == number:
                    found[what, index, roi] = moment
    return found


@given(task_graphs(), st.randoms(use_true_random=False))
@pytest.mark.requirement("D-4", "D-6", "D-7")
def test_every_valid_graph_completes_in_the_order_that_its_edges_ask_for(
    task: TaskBuilder, random: Random
) -> None:
    choose = random.randrange
    statistics, memory, hardware = run(task, FakeHardware(NV_FULL, choose))
    count = len(task.operations) * task.num_rois
    assert len(statistics.operations) == count
    assert task.remaining(memory) == [0] * count, "a dependency never happened, or twice"
    when = moments(task, hardware)
    for source, target, event in task.edges():
        for roi in range(task.num_rois):
            then = when.get(("enabled", target, roi))
            first = when.get(("enabled" if event == ENABLED else "completed", source, roi))
            if then is not None and first is not None and event in (COMPLETED, ENABLED):
                assert first < then, f"{source} {event} before {target}"


@given(task_graphs(), st.randoms(use_true_random=False))
def test_one_scheduler_runs_task_after_task(task: TaskBuilder, random: Random) -> None:
    choose = random.randrange
    memory, hardware = FakeMemory(), FakeHardware(NV_FULL, choose)
    scheduler = EngineScheduler(hardware, memory, NV_FULL)
    for _ in range(3):  # the consumer pointers stay where the last task left them
        statistics = scheduler.execute_task(task.write(memory), timeout_s=5)
        assert len(statistics.operations) == len(task.operations) * task.num_rois


def test_an_engine_takes_every_region_of_an_operation_before_the_next_operation() -> None:
    task = TaskBuilder(num_rois=3)
    for _ in range(2):
        task.add(OperationType.PDP)
    task.chain()
    statistics, _, _ = run(task)
    order = [(item.index, item.roi) for item in statistics.operations]
    assert order == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_groups_alternate() -> None:
    task = TaskBuilder()
    for _ in range(4):
        task.add(OperationType.CDP)
    task.chain()
    statistics, _, _ = run(task)
    assert [item.group for item in statistics.operations] == [0, 1, 0, 1]


def test_both_groups_are_enabled_before_the_first_completes() -> None:
    task = TaskBuilder()
    for _ in range(2):
        task.add(OperationType.PDP)
    task.chain()
    _, _, hardware = run(task)
    assert [what for what, _, _ in hardware.log] == ["enabled", "enabled", "completed", "completed"]


def test_a_fused_sdp_is_enabled_before_its_convolution() -> None:
    task = TaskBuilder()
    task.fuse(task.add(OperationType.CONV), task.add(OperationType.SDP))
    _, _, hardware = run(task)
    enabled = [engine for what, engine, _ in hardware.log if what == "enabled"]
    assert enabled == ["SDP", "CONV"]


def test_a_task_without_operations_is_done_at_once() -> None:
    statistics, _, hardware = run(TaskBuilder())
    assert statistics.operations == ()
    assert hardware.log == []


@pytest.mark.parametrize(
    ("op_type", "register", "counter"),
    [
        (OperationType.BDMA, "BDMA.STATUS_GRP0_READ_STALL", "read_stall"),
        (OperationType.CONV, "CACC.D_OUT_SATURATION", "saturation_count"),
        (OperationType.SDP, "SDP.D_PERF_LUT_HYBRID", "lut_hybrid"),
        (OperationType.PDP, "PDP.D_PERF_WRITE_STALL", "write_stall"),
        (OperationType.CDP, "CDP.D_PERF_LUT_UFLOW", "lut_uflow"),
        (OperationType.RUBIK, "RBK.D_PERF_READ_STALL", "read_stall"),
    ],
)
def test_counters_are_read_and_written_where_the_network_wants_them(
    op_type: OperationType, register: str, counter: str
) -> None:
    task = TaskBuilder(has_statistics=True)
    task.add(OperationType.PDP if op_type is not OperationType.PDP else OperationType.CDP)
    counted = task.add(op_type)
    if op_type is OperationType.CONV:
        task.fuse(counted, task.add(OperationType.SDP))
    hardware = FakeHardware(NV_FULL, lambda _: 0)
    hardware.words[register, 0] = 77
    statistics, memory, _ = run(task, hardware)
    kind = DESCRIPTOR_CLASSES[op_type].statistics
    written = kind.from_bytes(task.statistics_of(memory, counted))
    assert written.to_dict()[counter] == 77
    assert written in [item.counters for item in statistics.operations]


def test_nothing_is_counted_unasked() -> None:
    task = TaskBuilder()
    task.add(OperationType.RUBIK)
    statistics, _, hardware = run(task)
    assert statistics.operations[0].counters is None
    assert ("RBK.D_PERF_ENABLE", 0) not in hardware.words


def test_hardware_that_never_answers_ends_the_task_at_its_timeout_with_its_state() -> None:
    task = TaskBuilder()
    task.fuse(task.add(OperationType.CONV), task.add(OperationType.SDP))
    task.connect(1, task.add(OperationType.PDP), COMPLETED)
    hardware = FakeHardware(NV_FULL, lambda _: 0)
    hardware.is_stuck = True
    with pytest.raises(NvdlaError) as caught:
        run(task, hardware, timeout_s=0.05)
    assert caught.value.status is NvError.TIMEOUT
    message = str(caught.value)
    assert "0 of 3 operations have completed" in message
    assert "operation 2 (PDP) waits for 1 dependency" in message
    assert "CACC groups running/idle" in message


def test_an_interrupt_that_means_nothing_does_not_stop_the_clock() -> None:
    class Chatty(FakeHardware):
        def wait_for_interrupt(self, timeout_s: float, /) -> bool:
            time.sleep(min(timeout_s, 0.005))
            return True

    task = TaskBuilder()
    task.add(OperationType.PDP)
    with pytest.raises(NvdlaError, match="did not end in") as caught:
        run(task, Chatty(NV_FULL, lambda _: 0), timeout_s=0.05)
    assert caught.value.status is NvError.TIMEOUT


def test_what_an_earlier_task_left_running_is_reported_not_overwritten() -> None:
    task = TaskBuilder()
    task.add(OperationType.PDP)
    memory, hardware = FakeMemory(), FakeHardware(NV_FULL, lambda _: 0)
    scheduler = EngineScheduler(hardware, memory, NV_FULL)
    hardware.is_stuck = True
    with pytest.raises(NvdlaError, match="did not end"):
        scheduler.execute_task(task.write(memory), timeout_s=0.01)
    with pytest.raises(NvdlaError, match="still in use by an earlier task") as caught:
        scheduler.execute_task(task.write(memory), timeout_s=0.01)
    assert caught.value.status is NvError.INVALID_STATE
    hardware.is_stuck = False
    assert hardware.wait_for_interrupt(0)  # it ends at last; nobody waits for it any more
    assert len(scheduler.execute_task(task.write(memory)).operations) == 1


def test_a_second_task_at_the_same_time_is_busy() -> None:
    task = TaskBuilder()
    task.add(OperationType.PDP)
    memory = FakeMemory()
    entered, leave = threading.Event(), threading.Event()

    class Slow(FakeHardware):
        def wait_for_interrupt(self, timeout_s: float, /) -> bool:
            entered.set()
            leave.wait(timeout_s)
            return super().wait_for_interrupt(timeout_s)

    scheduler = EngineScheduler(Slow(NV_FULL, lambda _: 0), memory, NV_FULL)
    addresses = task.write(memory)
    thread = threading.Thread(target=scheduler.execute_task, args=(addresses,))
    thread.start()
    assert entered.wait(5)
    with pytest.raises(NvdlaError, match="another task is running") as caught:
        scheduler.execute_task(addresses)
    assert caught.value.status is NvError.BUSY
    leave.set()
    thread.join(5)
    assert not thread.is_alive()


def test_a_refused_operation_lets_the_others_finish_so_that_the_next_task_can_run() -> None:
    task = TaskBuilder()
    task.add(OperationType.PDP)
    task.add(OperationType.CDP)
    memory, hardware = FakeMemory(), FakeHardware(NV_FULL, lambda _: 0)
    scheduler = EngineScheduler(hardware, memory, NV_FULL)
    task.operations[1].lut_index = 9  # there is no such table
    with pytest.raises(NvdlaError, match="lookup table 9") as caught:
        scheduler.execute_task(task.write(memory))
    assert "operation 1 (CDP)" in str(caught.value)
    task.operations[1].lut_index = -1
    assert len(scheduler.execute_task(task.write(memory)).operations) == 2


def test_two_tables_never_share_the_engine_that_is_running() -> None:
    task = TaskBuilder()
    for lut_index in (0, 1, 1, -1, 2):
        task.operations[task.add(OperationType.SDP)].lut_index = lut_index
    task.chain()
    statistics, _, _ = run(task)  # the fake hardware refuses writes to a locked table
    assert len(statistics.operations) == 5


def test_a_graph_that_changes_while_it_runs_is_noticed() -> None:
    class Meddler(FakeHardware):
        def wait_for_interrupt(self, timeout_s: float, /) -> bool:
            at = PLACES[GRAPH] + last * CommonOperation.size_bytes()
            memory.data[at : at + CommonOperation.size_bytes()] = changed.to_bytes()
            return super().wait_for_interrupt(timeout_s)

    task = TaskBuilder()
    for _ in range(4):  # the last is first read when the second is programmed
        task.add(OperationType.PDP)
    task.chain(OperationEvent.NONE)
    memory = FakeMemory()
    last = 3
    changed = replace(task.graph()[last], op_type=OperationType.CDP)
    scheduler = EngineScheduler(Meddler(NV_FULL, lambda _: 0), memory, NV_FULL)
    with pytest.raises(NvdlaError, match="dependency graph changed") as caught:
        scheduler.execute_task(task.write(memory))
    assert caught.value.status is NvError.INVALID_STATE
    changed = replace(task.graph()[last], dependency_count=1)
    with pytest.raises(
        NvdlaError, match=r"no operation is running.*operation 3 \(PDP\) waits for 1"
    ) as caught:
        scheduler.execute_task(task.write(memory))
    assert caught.value.status is NvError.INVALID_STATE


@pytest.mark.parametrize(
    ("op_type", "status", "message"),
    [
        (OperationType.CONV, "CDMA.S_CBUF_FLUSH_STATUS", "flushing the convolution buffer"),
        (OperationType.BDMA, "BDMA.STATUS", "stays full"),
    ],
)
def test_hardware_that_never_gets_ready_is_a_timeout(
    op_type: OperationType, status: str, message: str
) -> None:
    class Unready(FakeHardware):
        def read(self, address: int, /) -> int:
            is_it = self.map.by_address[address].full_name == status
            return 0 if is_it else super().read(address)

    task = TaskBuilder()
    task.add(op_type)
    if op_type is OperationType.CONV:
        task.fuse(0, task.add(OperationType.SDP))
    with pytest.raises(NvdlaError, match=message) as caught:
        run(task, Unready(NV_FULL, lambda _: 0))
    assert caught.value.status is NvError.TIMEOUT


def test_an_interrupt_of_a_group_that_does_not_run_completes_nothing() -> None:
    class Stray(FakeHardware):
        def wait_for_interrupt(self, timeout_s: float, /) -> bool:
            register = self.map.register("GLB.S_INTR_STATUS")
            if not self.log[1:]:  # the pooling is programmed, but waits
                self.status |= register.field("PDP_DONE_STATUS0").mask
            return super().wait_for_interrupt(timeout_s)

    task = TaskBuilder()
    task.connect(task.add(OperationType.CDP), task.add(OperationType.PDP), COMPLETED)
    _, _, hardware = run(task, Stray(NV_FULL, lambda _: 0))
    assert [(what, engine) for what, engine, _ in hardware.log] == [
        ("enabled", "CDP"),
        ("completed", "CDP"),
        ("enabled", "PDP"),
        ("completed", "PDP"),
    ]
