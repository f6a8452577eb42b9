"""The user-mode driver does what its interface documents, failure codes included."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.nvdla import NvdlaError, NvError, create_runtime, destroy_runtime
from smelt.nvdla.loadable import (
    Address,
    DataType,
    Interface,
    Loadable,
    MemoryFlags,
    Relocation,
    SubInterface,
    Submit,
    Task,
    Version,
)
from smelt.nvdla.port import LocalPort, NvDlaHeap
from smelt.nvdla.runtime._network import LoadedNetwork
from tests.support.nvdla_driver import RecordingDriver
from tests.support.nvdla_loadables import LINE_PLACE, SURFACE_PLACE, pooling_loadable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from smelt.nvdla import Runtime
    from smelt.nvdla.port import PhysicalTask, PinnedMemory


@pytest.fixture
def driver() -> RecordingDriver:
    return RecordingDriver(num_devices=2)


@pytest.fixture
def runtime(driver: RecordingDriver) -> Generator[Runtime]:
    with create_runtime(LocalPort(driver), max_devices=4) as made:
        yield made


@contextmanager
def fails(status: NvError, match: str | None = None) -> Generator[None]:
    with pytest.raises(NvdlaError, match=match) as caught:
        yield
    assert caught.value.status is status


def load_and_bind(
    runtime: Runtime, loadable: Loadable | None = None
) -> tuple[PinnedMemory, PinnedMemory]:
    runtime.load((loadable or pooling_loadable()).to_bytes())
    source = runtime.allocate_system_memory(64)
    target = runtime.allocate_system_memory(64)
    runtime.bind_input_tensor(0, source.mem_handle)
    runtime.bind_output_tensor(0, target.mem_handle)
    return source, target


def changed(number: int, **fields: Any) -> Loadable:
    loadable = pooling_loadable()
    memories = tuple(
        replace(memory, **fields) if memory.id == number else memory for memory in loadable.memories
    )
    return replace(loadable, memories=memories)


@pytest.mark.requirement("D-15", "D-12", "D-30")
def test_a_network_is_loaded_bound_and_run(runtime: Runtime, driver: RecordingDriver) -> None:
    source, target = load_and_bind(runtime)
    source.data[:] = 5
    seen: list[bytes] = []

    def pool(driver: RecordingDriver, task: PhysicalTask) -> None:
        seen.append(driver.at(task.addresses[4])[:64].tobytes())
        driver.at(task.addresses[5])[:64] = 9

    driver.on_execute = pool
    runtime.submit()
    assert seen == [b"\5" * 64]
    assert target.data.tobytes() == b"\x09" * 64
    ((instance, task),) = driver.tasks
    assert instance == 0
    assert task.interface_version == (0, 12, 3)
    assert len(task.addresses) == 7


def test_a_submission_of_another_thread_waits_for_the_end_of_the_first(
    runtime: Runtime, driver: RecordingDriver
) -> None:
    load_and_bind(runtime)
    blobs = pooling_loadable().blobs
    (number,) = (n for n, blob in enumerate(blobs) if blob.sub_interface == SubInterface.DEPS)
    graph = list(driver.regions.values())[number].data
    second = threading.Thread(target=runtime.submit)
    seen: list[bytes] = []

    def run(_driver: RecordingDriver, _task: PhysicalTask) -> None:
        if not seen:
            graph[:] = 0xAB  # as the scheduler counts down in it
            second.start()
            second.join(0.3)
        seen.append(graph.tobytes())

    driver.on_execute = run
    runtime.submit()
    second.join()
    assert seen == [b"\xab" * len(graph), blobs[number].data]


@pytest.mark.parametrize(("call", "left"), [("unload", 2), ("close", 0)])
def test_a_network_is_unloaded_when_its_emulated_task_has_ended(
    call: str, left: int, runtime: Runtime, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    loadable = pooling_loadable()
    tasks = tuple(replace(task, interface=Interface.EMU1, instance=0) for task in loadable.tasks)
    load_and_bind(runtime, replace(loadable, tasks=tasks))
    unloading = threading.Thread(target=getattr(runtime, call))
    seen: list[int] = []

    def run(_windows: object) -> None:
        unloading.start()
        unloading.join(0.3)
        seen.append(len(driver.regions))

    monkeypatch.setattr("smelt.nvdla.runtime._network.run_emulated_task", run)
    loaded = len(driver.regions)
    runtime.submit()
    unloading.join()
    assert seen == [loaded]
    assert len(driver.regions) == left, "the application's memory stays until the end"


@pytest.mark.parametrize("interface", [Interface.DLA1, Interface.EMU1])
def test_a_submission_that_waited_for_the_end_of_the_runtime_runs_nothing(
    interface: Interface,
    runtime: Runtime,
    driver: RecordingDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An emulated task ran in memory that was freed, and that another session may have had."""
    loadable = pooling_loadable()
    tasks = tuple(replace(task, interface=interface, instance=0) for task in loadable.tasks)
    load_and_bind(runtime, replace(loadable, tasks=tasks))
    submit = LoadedNetwork.submit
    ran: list[object] = []

    def late_submit(network: LoadedNetwork, *, is_emulator_running: bool) -> None:
        runtime.close()
        submit(network, is_emulator_running=is_emulator_running)

    monkeypatch.setattr(LoadedNetwork, "submit", late_submit)
    monkeypatch.setattr("smelt.nvdla.runtime._network.run_emulated_task", ran.append)
    driver.on_execute = lambda _driver, task: ran.append(task)
    with fails(NvError.INVALID_STATE, "neither allocated nor bound"):
        runtime.submit()
    assert not ran


def test_of_two_threads_that_free_one_memory_or_network_only_one_frees_it(
    runtime: Runtime, driver: RecordingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second had found the network, or the memory, before the first freed it."""
    source, _ = load_and_bind(runtime)
    release, unbind = LoadedNetwork.release, LoadedNetwork.unbind
    first = iter([True])

    def late_release(network: LoadedNetwork) -> None:
        if next(first, False):
            runtime.unload(0)
        release(network)

    def late_unbind(network: LoadedNetwork, pinned: PinnedMemory) -> None:
        if next(first, False):
            runtime.free_system_memory(source.mem_handle)
        unbind(network, pinned)

    monkeypatch.setattr(LoadedNetwork, "unbind", late_unbind)
    with fails(NvError.BAD_PARAMETER):
        runtime.free_system_memory(source.mem_handle)
    first = iter([True])
    monkeypatch.setattr(LoadedNetwork, "release", late_release)
    runtime.unload(0)
    assert len(driver.regions) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals of POSIX")
@pytest.mark.parametrize("call", ["submit", "unload", "close", "free"])
def test_a_handler_that_interrupts_a_submission_gets_busy(
    call: str, runtime: Runtime, driver: RecordingDriver
) -> None:
    source, target = load_and_bind(runtime)
    calls: dict[str, Callable[[], object]] = {
        "submit": runtime.submit,
        "unload": lambda: runtime.unload(0),
        "close": runtime.close,
        "free": lambda: runtime.free_system_memory(source.mem_handle),
    }
    seen: list[object] = []

    def handle(*_: object) -> None:
        with pytest.raises(NvdlaError) as caught:
            calls[call]()
        seen.append(caught.value.status)

    def run(driver: RecordingDriver, task: PhysicalTask) -> None:
        signal.raise_signal(signal.SIGUSR1)
        driver.at(task.addresses[5])[:64] = 9

    driver.on_execute = run
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        runtime.submit()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [NvError.BUSY]
    assert target.data.tobytes() == b"\x09" * 64


@pytest.mark.requirement("D-14", "D-2")
def test_loading_allocates_and_fills_memory(runtime: Runtime, driver: RecordingDriver) -> None:
    runtime.load(pooling_loadable())
    assert [region.heap for region in driver.regions.values()] == [NvDlaHeap.SYSTEM] * 4 + [
        NvDlaHeap.SRAM
    ]
    contents = [region.data.tobytes() for region in driver.regions.values()]
    assert contents[:4] == [blob.data for blob in pooling_loadable().blobs]


@pytest.mark.requirement("D-31", "DX-15")
def test_unloading_frees_what_loading_took(runtime: Runtime, driver: RecordingDriver) -> None:
    source, _ = load_and_bind(runtime)
    runtime.unload(0)
    assert len(driver.regions) == 2, "the application's memory stays"
    with fails(NvError.INVALID_STATE):
        runtime.unload(0)
    with fails(NvError.INVALID_STATE):
        runtime.submit()
    runtime.free_system_memory(source.mem_handle, 64)
    assert len(driver.regions) == 1


@pytest.mark.requirement("D-17", "D-18", "DX-7")
def test_devices_are_counted_by_opening_them(runtime: Runtime) -> None:
    assert runtime.get_max_devices() == 4
    assert runtime.get_num_devices() == 2


@pytest.mark.requirement("D-19", "D-20")
def test_each_device_runs_its_own_network(runtime: Runtime, driver: RecordingDriver) -> None:
    for instance in (0, 1):
        runtime.load(pooling_loadable(), instance)
        for bind in (runtime.bind_input_tensor, runtime.bind_output_tensor):
            bind(0, runtime.allocate_system_memory(64).mem_handle)
    runtime.submit()
    runtime.submit(instance=0)
    assert [instance for instance, _ in driver.tasks] == [1, 0]
    foreign = runtime.allocate_system_memory(64, instance=1)
    with fails(NvError.BAD_PARAMETER, "another"):
        runtime.bind_input_tensor(0, foreign.mem_handle, instance=0)


@pytest.mark.requirement("DX-7")
def test_a_negative_instance_is_the_first_and_a_missing_one_fails(runtime: Runtime) -> None:
    runtime.load(pooling_loadable(), -3)
    assert runtime.get_num_input_tensors(instance=0) == 1
    with fails(NvError.BAD_PARAMETER):
        runtime.load(pooling_loadable(), 2)


@pytest.mark.requirement("DX-7")
@pytest.mark.parametrize("part", ["tasks", "submits", "memories"])
def test_a_loadable_without_work_is_refused(part: str, runtime: Runtime) -> None:
    empty: dict[str, Any] = {part: ()}
    with fails(NvError.BAD_PARAMETER, "at least one"):
        runtime.load(replace(pooling_loadable(), **empty))


@pytest.mark.requirement("D-20", "D-33")
def test_what_is_no_loadable_is_refused(runtime: Runtime) -> None:
    with fails(NvError.BAD_PARAMETER):
        runtime.load(b"not a loadable at all")
    with fails(NvError.NOT_SUPPORTED):
        runtime.load(replace(pooling_loadable(), version=Version(1, 0, 0)).to_bytes())


@pytest.mark.requirement("DX-10")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"offsets": ()}, "offsets"),
        ({"contents": ("missing",)}, "missing"),
        ({"size": 643}, "too large"),
        ({"offsets": (1,)}, "too large"),
    ],
)
def test_contents_that_do_not_fit_their_memory_are_refused(
    change: dict[str, Any], text: str, runtime: Runtime, driver: RecordingDriver
) -> None:
    with fails(NvError.INVALID_STATE, text):
        runtime.load(changed(3, **change))
    assert not driver.regions, "what was allocated before is free again"


def test_blobs_that_overlap_are_refused(runtime: Runtime) -> None:
    names = ("task-0-addr0", "task-0-dep_graph")
    both = changed(3, contents=names, offsets=(0, 39))
    with fails(NvError.INVALID_STATE, "overlap"):
        runtime.load(both)


@pytest.mark.requirement("DX-10")
def test_bind_ids_have_no_gaps_and_no_duplicates(runtime: Runtime) -> None:
    with fails(NvError.BAD_PARAMETER):
        runtime.load(changed(4, bind_id=1))
    both = MemoryFlags.ALLOC | MemoryFlags.INPUT
    with fails(NvError.BAD_PARAMETER):
        runtime.load(changed(5, flags=both))


@pytest.mark.requirement("D-21", "D-22", "DX-2")
def test_inputs_are_counted_and_described(runtime: Runtime) -> None:
    runtime.load(pooling_loadable())
    assert runtime.get_num_input_tensors() == 1
    tensor = runtime.get_input_tensor_desc(0)
    assert (tensor.name, tensor.buffer_size) == ("tensor-0", 64)
    assert tensor.dims == (1, 32, 1, 2)
    assert (tensor.data_format, tensor.data_type, tensor.data_category) == (3, 4, 2)
    assert (tensor.pixel_format, tensor.pixel_mapping) == (36, 0)
    assert tensor.stride == (1, 64, 64, 0, 0, 0, 0, 0)
    assert runtime.get_network_data_type() is DataType.INT8


@pytest.mark.requirement("D-23", "D-24")
def test_outputs_are_counted_and_described(runtime: Runtime) -> None:
    runtime.load(pooling_loadable())
    assert runtime.get_num_output_tensors() == 1
    assert runtime.get_output_tensor_desc(0).name == "tensor-1"
    for number in (-1, 1):
        with fails(NvError.BAD_PARAMETER):
            runtime.get_output_tensor_desc(number)


def test_a_long_name_is_cut_to_80_bytes(runtime: Runtime) -> None:
    loadable = pooling_loadable()
    first, second = loadable.tensors
    runtime.load(replace(loadable, tensors=(replace(first, name="é" * 60), second)))
    assert runtime.get_input_tensor_desc(0).name == "é" * 40


@pytest.mark.requirement("DX-8", "D-25")
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": "other"}, NvError.NOT_SUPPORTED),
        ({"data_format": 1}, NvError.NOT_IMPLEMENTED),
        ({"data_type": 2}, NvError.NOT_IMPLEMENTED),
        ({"data_category": 0}, NvError.NOT_IMPLEMENTED),
        ({"pixel_format": 0}, NvError.NOT_SUPPORTED),
        ({"pixel_mapping": 1}, NvError.NOT_SUPPORTED),
        ({"dims": (1, 32, 2, 1)}, NvError.NOT_SUPPORTED),
        ({"stride": (1, 2)}, NvError.BAD_PARAMETER),
        ({"stride": (1, -2, 0, 0, 0, 0, 0, 0)}, NvError.BAD_PARAMETER),
    ],
)
def test_only_strides_of_a_tensor_may_change(
    change: dict[str, Any], status: NvError, runtime: Runtime
) -> None:
    runtime.load(pooling_loadable())
    old = runtime.get_input_tensor_desc(0)
    with fails(status):
        runtime.set_input_tensor_desc(0, replace(old, **change))
    assert runtime.get_input_tensor_desc(0) == old
    nothing: Any = None
    with fails(NvError.BAD_PARAMETER):
        runtime.set_input_tensor_desc(0, nothing)
    with fails(NvError.BAD_PARAMETER):
        runtime.set_input_tensor_desc(7, old)


@pytest.mark.requirement("DX-8", "D-25", "D-26")
def test_new_strides_stick_and_reach_the_descriptors(
    runtime: Runtime, driver: RecordingDriver
) -> None:
    load_and_bind(runtime)
    surfaces = list(driver.regions.values())[3].data
    tensor = runtime.get_input_tensor_desc(0)
    runtime.set_input_tensor_desc(0, replace(tensor, stride=(1, 128, 256, 0, 0, 0, 0, 0)))
    output = runtime.get_output_tensor_desc(0)
    runtime.set_output_tensor_desc(0, replace(output, stride=(1, 0x12345678, 0, 0, 0, 0, 0, 0)))
    for _ in range(2):
        words = surfaces.view("<u4")
        assert words[LINE_PLACE // 4] == 128
        assert words[SURFACE_PLACE // 4] == 256
        assert words[(LINE_PLACE + 32) // 4] == 0x12345678
        assert np.count_nonzero(words) == 3
        runtime.submit()
    assert runtime.get_input_tensor_desc(0).stride[1] == 128


@pytest.mark.parametrize(
    ("relocation", "status"),
    [
        (Relocation(4, 3, 642, 1, 4, 1), NvError.INVALID_ADDRESS),
        (Relocation(4, 3, 1 << 62, 1, 4, 1), NvError.INVALID_ADDRESS),
        (Relocation(4, 3, 0, 1, 4, 3), NvError.INVALID_STATE),
        (Relocation(4, 1, 0, 1, 2, 1), NvError.NOT_SUPPORTED),
    ],
    ids=["beyond", "far", "type", "graph"],
)
def test_a_relocation_never_writes_where_it_must_not(
    relocation: Relocation, status: NvError, runtime: Runtime, driver: RecordingDriver
) -> None:
    loadable = pooling_loadable()
    runtime.load(replace(loadable, relocations=(*loadable.relocations, relocation)))
    before = [region.data.tobytes() for region in driver.regions.values()]
    tensor = runtime.get_input_tensor_desc(0)
    with fails(status):
        runtime.set_input_tensor_desc(0, replace(tensor, stride=(9,) * 8))
    assert [region.data.tobytes() for region in driver.regions.values()] == before
    assert runtime.get_input_tensor_desc(0) == tensor


@pytest.mark.requirement("D-27", "D-28", "D-29")
def test_memory_is_allocated_and_bound(runtime: Runtime) -> None:
    runtime.load(pooling_loadable())
    memory = runtime.allocate_system_memory(64)
    assert memory.mem_handle
    assert memory.data.shape == (64,)
    assert not memory.data.any()
    runtime.bind_input_tensor(0, memory.mem_handle)
    runtime.bind_output_tensor(0, memory.mem_handle)
    for bind in (runtime.bind_input_tensor, runtime.bind_output_tensor):
        with fails(NvError.BAD_PARAMETER):
            bind(1, memory.mem_handle)
        with fails(NvError.BAD_PARAMETER):
            bind(-1, memory.mem_handle)
        with fails(NvError.BAD_PARAMETER):
            bind(0, 10_000)
    small = runtime.allocate_system_memory(63)
    with fails(NvError.INVALID_SIZE):
        runtime.bind_input_tensor(0, small.mem_handle)
    with fails(NvError.INVALID_SIZE):
        runtime.allocate_system_memory(1 << 32)
    with fails(NvError.BAD_PARAMETER):
        runtime.free_system_memory(memory.mem_handle, 32)


@pytest.mark.requirement("DX-9")
def test_submit_without_a_network_is_an_invalid_state(runtime: Runtime) -> None:
    with fails(NvError.INVALID_STATE):
        runtime.submit()


@pytest.mark.requirement("DX-9")
def test_an_unbound_tensor_is_named(runtime: Runtime, driver: RecordingDriver) -> None:
    source, _ = load_and_bind(runtime)
    runtime.free_system_memory(source.mem_handle)
    with fails(NvError.INVALID_STATE, "input 0 has no memory"):
        runtime.submit()
    assert not driver.tasks


@pytest.mark.requirement("DX-9")
def test_a_task_that_does_not_exist_is_a_bad_parameter(runtime: Runtime) -> None:
    load_and_bind(runtime, replace(pooling_loadable(), submits=(Submit(0, (0, 1)),)))
    with fails(NvError.BAD_PARAMETER, "task 1"):
        runtime.submit()


@pytest.mark.requirement("DX-9", "D-9")
def test_a_task_of_an_unknown_interface_loads_but_does_not_run(runtime: Runtime) -> None:
    loadable = replace(pooling_loadable(), tasks=(Task(0, 3, -1, (0,)),))
    load_and_bind(runtime, loadable)
    with fails(NvError.BAD_PARAMETER, "interface 3"):
        runtime.submit()


def test_a_firmware_of_another_major_version_is_not_supported(runtime: Runtime) -> None:
    loadable = pooling_loadable()
    blobs = tuple(replace(blob, version=Version(1, 0, 0)) for blob in loadable.blobs)
    load_and_bind(runtime, replace(loadable, blobs=blobs))
    with fails(NvError.NOT_SUPPORTED, "firmware 1.0.0"):
        runtime.submit()


@pytest.mark.requirement("DX-9")
def test_sets_of_tasks_run_in_the_order_of_their_ids(
    runtime: Runtime, driver: RecordingDriver
) -> None:
    loadable = pooling_loadable()
    (task,) = loadable.tasks
    tasks = tuple(replace(task, id=number) for number in range(4))
    submits = (Submit(2, (3,)), Submit(0, (1, 0)), Submit(1, (2,)))
    load_and_bind(runtime, replace(loadable, tasks=tasks, submits=submits))
    runtime.submit()
    assert [ran.task_id for _, ran in driver.tasks] == [1, 0, 2, 3]


@pytest.mark.requirement("DX-9", "D-7")
def test_the_dependency_graph_is_fresh_at_every_submission(
    runtime: Runtime, driver: RecordingDriver
) -> None:
    load_and_bind(runtime)
    graphs: list[bytes] = []

    def use_up(driver: RecordingDriver, task: PhysicalTask) -> None:
        graph = driver.at(task.addresses[1])[:36]
        graphs.append(graph.tobytes())
        graph[:] = 0xFF
        driver.at(task.addresses[2])[:1] += 1

    driver.on_execute = use_up
    runtime.submit()
    runtime.submit()
    assert graphs == [pooling_loadable().blobs[1].data] * 2
    assert list(driver.regions.values())[2].data[0] == 2, "other memory is left alone"


@pytest.mark.parametrize(
    ("address", "status"),
    [
        (Address(6, 6, 200, 57), NvError.INVALID_ADDRESS),
        (Address(6, 6, 256), NvError.INVALID_ADDRESS),
        (Address(6, 6, (1 << 64) - 1, 2), NvError.INVALID_ADDRESS),
        (Address(6, 60), NvError.BAD_PARAMETER),
        (Address(60, 6), NvError.BAD_PARAMETER),
    ],
)
def test_an_address_outside_memory_is_refused(
    address: Address, status: NvError, runtime: Runtime, driver: RecordingDriver
) -> None:
    loadable = pooling_loadable()
    load_and_bind(runtime, replace(loadable, addresses=(*loadable.addresses[:6], address)))
    with fails(status, "address 6"):
        runtime.submit()
    assert not driver.tasks


@pytest.mark.requirement("DX-5")
def test_a_task_with_too_many_addresses_is_refused(runtime: Runtime) -> None:
    loadable = pooling_loadable()
    (task,) = loadable.tasks
    long = replace(task, address_list=(0,) * 6145)
    load_and_bind(runtime, replace(loadable, tasks=(long,)))
    with fails(NvError.BAD_PARAMETER, "6145"):
        runtime.submit()


@pytest.mark.requirement("D-16", "DX-6")
def test_a_destroyed_runtime_leaves_nothing(driver: RecordingDriver) -> None:
    runtime = create_runtime(LocalPort(driver))
    assert runtime.get_max_devices() == 1
    load_and_bind(runtime)
    assert driver.regions
    destroy_runtime(runtime)
    assert not driver.regions


def test_memory_that_does_not_fit_leaves_nothing_behind(
    runtime: Runtime, driver: RecordingDriver
) -> None:
    with fails(NvError.INSUFFICIENT_MEMORY):
        runtime.load(changed(6, size=1 << 30))
    assert not driver.regions
    with fails(NvError.INVALID_SIZE):
        runtime.load(changed(6, size=(1 << 64) - 1))
    assert not driver.regions
