"""Dependency graphs that cannot run are refused before hardware is touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla import MemorySpace, NvdlaError, NvError
from smelt.nvdla.firmware import MAX_OPERATIONS, EngineScheduler
from smelt.nvdla.hardware import NV_FULL
from smelt.nvdla.loadable import (
    CommonOperation,
    Consumer,
    NetworkDescriptor,
    OperationEvent,
    OperationType,
    Roi,
)
from tests.nvdla.firmware._graphs import task_graphs
from tests.nvdla.firmware._hardware import FakeHardware, FakeMemory
from tests.nvdla.firmware._tasks import GRAPH, PLACES, TaskBuilder

COMPLETED, PROGRAMMED = OperationEvent.COMPLETED, OperationEvent.PROGRAMMED


def refuse(
    task: TaskBuilder,
    *,
    graph: list[CommonOperation] | None = None,
    network: NetworkDescriptor | None = None,
    status: NvError = NvError.BAD_PARAMETER,
) -> str:
    """The message with which a task is refused; no register was written."""
    memory, hardware = FakeMemory(), FakeHardware(NV_FULL, lambda _: 0)
    scheduler = EngineScheduler(hardware, memory, NV_FULL)
    with pytest.raises(NvdlaError) as caught:
        scheduler.execute_task(task.write(memory, graph=graph, network=network), timeout_s=5)
    assert caught.value.status is status
    assert not hardware.words
    return str(caught.value)


def pooling_after_normalisation() -> TaskBuilder:
    task = TaskBuilder()
    task.connect(task.add(OperationType.CDP), task.add(OperationType.PDP), COMPLETED)
    return task


def two_poolings() -> TaskBuilder:
    task = TaskBuilder()
    task.add(OperationType.PDP)
    task.add(OperationType.PDP)
    task.chain()
    return task


def change(task: TaskBuilder, index: int, **values: object) -> list[CommonOperation]:
    graph = task.graph()
    graph[index] = replace(graph[index], **values)  # type: ignore[arg-type]  # a test's freedom
    return graph


@pytest.mark.requirement("D-7")
def test_a_cycle_is_refused_and_told_step_by_step() -> None:
    task = pooling_after_normalisation()
    task.connect(1, 0, COMPLETED)
    message = refuse(task)
    assert "form a cycle" in message
    assert "operation 0 (CDP) is enabled after operation 1 (PDP) completes" in message


def test_a_cycle_through_the_order_of_an_engine_is_refused() -> None:
    task = TaskBuilder()
    for _ in range(3):
        task.add(OperationType.PDP)
    task.chain()
    late = task.add(OperationType.CDP)
    task.connect(2, late, PROGRAMMED)  # the third needs the first's registers ...
    task.connect(late, 0, COMPLETED)  # ... and the first waits for the third
    assert "cycle" in refuse(task)


def test_two_fused_pairs_in_opposite_orders_are_refused() -> None:
    task = TaskBuilder()
    first, second = task.add(OperationType.CONV), task.add(OperationType.CONV)
    third, fourth = task.add(OperationType.SDP), task.add(OperationType.SDP)
    task.fuse(first, fourth)
    task.fuse(second, third)
    task.chain()
    assert "cycle" in refuse(task)


def test_a_self_edge_is_refused_by_name() -> None:
    task = pooling_after_normalisation()
    consumers = [*task.operations[0].consumers]
    consumers[OperationType.CDP] = Consumer(index=0, event=COMPLETED)
    assert "consumers[CDP] of operation 0 (CDP) refers to the operation itself" in refuse(
        task, graph=change(task, 0, consumers=tuple(consumers))
    )


@pytest.mark.parametrize("count", [0, 2, 255])
def test_a_count_that_differs_from_the_edges_is_refused(count: int) -> None:
    task = pooling_after_normalisation()
    message = refuse(task, graph=change(task, 1, dependency_count=count))
    assert f"operation 1 (PDP) has a dependency count of {count}, but 1 edge leads" in message


def test_an_edge_outside_the_task_is_refused() -> None:
    task = pooling_after_normalisation()
    consumers = [*task.operations[0].consumers]
    consumers[OperationType.PDP] = Consumer(index=7, event=COMPLETED)
    message = refuse(task, graph=change(task, 0, consumers=tuple(consumers)))
    assert "consumers[PDP] of operation 0 (CDP) is 7, which is not the index of an" in message


def test_an_edge_to_another_type_is_refused() -> None:
    task = pooling_after_normalisation()
    consumers = [*task.operations[0].consumers]
    consumers[OperationType.SDP] = Consumer(index=1, event=COMPLETED)
    assert "refers to operation 1 (PDP); expected SDP" in refuse(
        task, graph=change(task, 0, consumers=tuple(consumers))
    )


def test_an_event_that_does_not_exist_is_refused() -> None:
    task = pooling_after_normalisation()
    task.connect(0, 1, 9)
    assert "has the unknown event 9" in refuse(task)


def test_a_buffer_event_of_another_engine_than_convolution_is_refused() -> None:
    task = pooling_after_normalisation()
    task.connect(0, 1, OperationEvent.CDMA_DATA_DONE)
    assert "CDMA_DATA_DONE, which only CONV raises" in refuse(task)


def test_a_fused_parent_of_the_wrong_type_is_refused() -> None:
    task = TaskBuilder()
    task.add(OperationType.CONV)
    task.add(OperationType.PDP)
    parent = Consumer(index=0, event=OperationEvent.ENABLED)
    graph = change(task, 1, fused_parent=parent)
    graph[0] = replace(graph[0], dependency_count=1)
    message = refuse(task, graph=graph)
    assert "fused_parent of operation 1 (PDP) refers to operation 0 (CONV); expected SDP" in message


def test_a_fused_parent_of_an_engine_that_nothing_feeds_is_refused() -> None:
    task = TaskBuilder()
    task.add(OperationType.PDP)
    task.add(OperationType.CDP)
    graph = change(task, 1, fused_parent=Consumer(index=0, event=OperationEvent.ENABLED))
    assert "has a fused parent; only SDP and PDP may" in refuse(task, graph=graph)


def test_an_operation_in_no_chain_is_refused() -> None:
    task = two_poolings()
    consumers = (Consumer(index=-1, event=0),) * 6
    graph = change(task, 0, consumers=consumers)
    graph[1] = replace(graph[1], dependency_count=0)
    assert "operation 1 (PDP) cannot be reached" in refuse(task, graph=graph)


def test_a_chain_that_comes_back_is_refused() -> None:
    task = two_poolings()
    task.connect(1, 0, COMPLETED)
    assert "reaches operation 0 (PDP) twice" in refuse(task)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (2, "which is not the index of an operation"),
        (-2, "which is not the index of an operation"),
        (0, "refers to operation 0"),
    ],
)
def test_a_wrong_head_is_refused(head: int, expected: str) -> None:
    task = pooling_after_normalisation()
    heads = [*task.heads()]
    heads[OperationType.PDP] = head
    message = refuse(task, network=replace(task.network(), op_head=tuple(heads)))
    assert "op_head[PDP]" in message
    assert expected in message


def test_a_type_that_does_not_exist_is_refused() -> None:
    task = two_poolings()
    assert "operation 1 has the unknown type 6" in refuse(task, graph=change(task, 1, op_type=6))


def test_of_many_problems_the_first_are_told() -> None:
    task = TaskBuilder()
    for _ in range(10):
        task.add(OperationType.PDP)
    message = refuse(task)  # nine are in no chain
    assert message.count("cannot be reached") == 6
    assert "; and further problems." in message


@pytest.mark.parametrize("name", ["operation_desc_index", "surface_desc_index"])
def test_a_list_outside_the_address_list_is_refused(name: str) -> None:
    task = pooling_after_normalisation()
    memory = FakeMemory()
    network = replace(task.network(), **{name: 99})  # type: ignore[arg-type]  # a test's freedom
    scheduler = EngineScheduler(FakeHardware(NV_FULL, lambda _: 0), memory, NV_FULL)
    with pytest.raises(NvdlaError, match="is 99; it must be 0 to 7") as caught:
        scheduler.execute_task(task.write(memory, network=network))
    assert caught.value.status is NvError.INVALID_ADDRESS


def test_a_task_without_addresses_is_refused() -> None:
    scheduler = EngineScheduler(FakeHardware(NV_FULL, lambda _: 0), FakeMemory(), NV_FULL)
    with pytest.raises(NvdlaError, match="no addresses"):
        scheduler.execute_task([])


def test_more_addresses_than_the_task_has_are_a_mismatch() -> None:
    task = pooling_after_normalisation()
    network = replace(task.network(), num_addresses=9)
    message = refuse(task, network=network, status=NvError.COUNT_MISMATCH)
    assert "needs 9 addresses, but the task has 8" in message


def test_a_size_that_nobody_could_run_is_refused() -> None:
    task = pooling_after_normalisation()
    network = replace(task.network(), num_operations=60_000, num_rois=60_000)
    message = refuse(task, network=network, status=NvError.RESOURCE_ERROR)
    assert f"at most {MAX_OPERATIONS}" in message


def test_more_regions_than_the_network_takes_are_refused() -> None:
    task = two_poolings()
    memory = FakeMemory()
    addresses = task.write(memory, network=replace(task.network(), dynamic_roi=1))
    task.write_rois(memory, [Roi(), Roi()])
    scheduler = EngineScheduler(FakeHardware(NV_FULL, lambda _: 0), memory, NV_FULL)
    with pytest.raises(NvdlaError, match="2 regions of interest; the network supports at most 1"):
        scheduler.execute_task(addresses)


def test_as_many_regions_as_were_found_are_run() -> None:
    task = two_poolings()
    task.num_rois = 3
    for count in range(4):
        memory = FakeMemory()
        addresses = task.write(memory, network=replace(task.network(), dynamic_roi=1))
        task.write_rois(memory, [Roi()] * count)
        scheduler = EngineScheduler(FakeHardware(NV_FULL, lambda _: 0), memory, NV_FULL)
        assert len(scheduler.execute_task(addresses).operations) == 2 * count


@given(task_graphs(most_stages=5), st.data())
def test_a_damaged_graph_is_refused_or_runs_but_never_hangs(
    task: TaskBuilder, data: st.DataObject
) -> None:
    memory, hardware = FakeMemory(), FakeHardware(NV_FULL, lambda _: 0)
    addresses = task.write(memory)
    size = len(task.operations) * task.num_rois * CommonOperation.size_bytes()
    for _ in range(data.draw(st.integers(1, 4))):
        at = PLACES[GRAPH] + data.draw(st.integers(0, size - 1))
        memory.write(MemorySpace.DRAM, at, bytes([data.draw(st.integers(0, 255))]))
    scheduler = EngineScheduler(hardware, memory, NV_FULL)
    status: int | None = NvError.SUCCESS
    try:
        scheduler.execute_task(addresses, timeout_s=2)
    except NvdlaError as error:
        status = error.status
    assert status is not NvError.TIMEOUT
    assert status or not any(task.remaining(memory))
