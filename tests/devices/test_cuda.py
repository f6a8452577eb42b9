"""GPUs through a driver without one: what is called, what errors say, and that nothing leaks."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import re
import struct
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.devices.cuda import (
    CudaArray,
    CudaDevice,
    CudaError,
    CudaEvent,
    CudaGraph,
    CudaKernel,
    CudaMemory,
    CudaModule,
    CudaStream,
    Driver,
    KernelArguments,
    LaunchConfig,
    PinnedAllocation,
    copy_memory,
    cuda_driver,
    fill_memory,
    handle_of,
    is_on_gpu,
    launch,
    owner_of,
    view_of,
)
from smelt.errors import (
    BindingError,
    DeviceError,
    EngineFormatError,
    EngineMismatchError,
    MissingExtraError,
)
from smelt.types import DType
from tests.support.cuda_driver_stub import CUresult, StubDriver, code_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture
def stub() -> StubDriver:
    return StubDriver()


@pytest.fixture
def device(stub: StubDriver) -> Iterator[CudaDevice]:
    """A GPU; whatever a test takes must have been given back at its end."""
    found = CudaDevice(Driver(stub), 0)
    yield found
    gc.collect()
    found.release()
    assert stub.live_kinds() == []


# ---- the driver and its errors


def test_without_the_bindings_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("smelt.devices.cuda._driver")
    monkeypatch.setattr(module, "_drivers", {})
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    monkeypatch.setattr(module, "_has_driver", lambda: True)
    with pytest.raises(MissingExtraError, match=r"run pip install \'smelt-engine\[cuda\]\', or"):
        cuda_driver()
    monkeypatch.setattr(module, "_has_driver", lambda: False)
    with pytest.raises(DeviceError, match="the NVIDIA driver is not found on this machine"):
        cuda_driver()


def test_a_driver_without_gpus_says_where_to_look() -> None:
    with pytest.raises(CudaError, match=r"CUDA_ERROR_NO_DEVICE .*nvidia-smi") as caught:
        Driver(StubDriver(devices=0))
    assert caught.value.status == 100


def test_an_old_driver_is_refused_with_both_versions() -> None:
    with pytest.raises(DeviceError, match=r"supports CUDA 11\.8, but CUDA 12\.0 or newer is"):
        Driver(StubDriver(version=11080))


def test_a_driver_that_cannot_be_loaded_is_an_error_of_the_device(stub: StubDriver) -> None:
    class DynamicLibNotFoundError(RuntimeError):
        """What cuda-bindings raises where there is none."""

    class Unloadable(StubDriver):
        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.error = error

        def cuInit(self, _flags: int) -> tuple[CUresult]:  # noqa: N802  (the driver's name)
            raise self.error

    for error, detail in (
        (OSError("libcuda.so.1: wrong ELF class\nand more"), " (libcuda.so.1: wrong ELF class)"),
        (RuntimeError(), " (RuntimeError)"),
    ):
        with pytest.raises(DeviceError, match=re.escape(f"cannot be loaded{detail}")):
            Driver(Unloadable(error))
    with pytest.raises(DeviceError, match="the NVIDIA driver is not found on this machine"):
        Driver(Unloadable(DynamicLibNotFoundError("found via system search alone")))


def test_a_gpu_that_does_not_exist_is_named(stub: StubDriver) -> None:
    with pytest.raises(
        DeviceError, match=r"cuda:7 does not exist: this process sees cuda:0 to cuda:1"
    ):
        CudaDevice(Driver(stub), 7)


def test_a_gpu_says_what_it_is(device: CudaDevice) -> None:
    assert repr(device) == "<cuda:0 Stub 0, sm_90>"
    assert device.properties.multiprocessors == 132
    assert device.free_bytes == 1 << 30


def test_an_error_has_the_drivers_name_number_and_a_remedy(
    device: CudaDevice, stub: StubDriver
) -> None:
    stub.failures["cuCtxSynchronize"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(CudaError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS .*outside of its memory") as e:
        device.synchronize()
    assert (e.value.status, e.value.name) == (700, "CUDA_ERROR_ILLEGAL_ADDRESS")


def test_a_forked_process_is_told_to_spawn(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(DeviceError, match="spawn"):
        device.synchronize()
    monkeypatch.undo()


def test_each_call_is_made_for_its_own_gpu(stub: StubDriver) -> None:
    driver = Driver(stub)
    first, second = CudaDevice(driver, 0), CudaDevice(driver, 1)
    for device in (first, second, first):
        device.synchronize()
        assert stub.current is None  # the thread keeps what it had
    assert stub.synchronized == [0, 1, 0]
    first.release()
    second.release()
    with pytest.raises(DeviceError, match="cuda:0 was closed"):
        first.synchronize()


# ---- memory


class Ledger:
    """A tracker that counts."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}

    def allocated(self, address: int, size_bytes: int, tag: str) -> None:
        del address
        self.bytes[tag] = self.bytes.get(tag, 0) + size_bytes

    def released(self, address: int, size_bytes: int, tag: str) -> None:
        self.allocated(address, -size_bytes, tag)


def test_memory_is_tracked_by_purpose_and_given_back(device: CudaDevice) -> None:
    ledger = Ledger()
    memory = CudaMemory(device, ledger)
    kept, other = memory.allocate(100, "arena"), memory.allocate(50, "output")
    assert ledger.bytes == {"arena": 100, "output": 50}
    kept.close()
    kept.close()
    other.close()
    assert ledger.bytes == {"arena": 0, "output": 0}


def test_forgotten_memory_comes_back(device: CudaDevice, stub: StubDriver) -> None:
    CudaMemory(device).allocate(64, "forgotten")
    gc.collect()
    assert stub.live_kinds() == ["context"]


def test_too_much_memory_names_purpose_size_and_gpu(device: CudaDevice) -> None:
    with pytest.raises(
        CudaError, match=r"arena: 2147483648 bytes cannot be allocated on <cuda:0 .*OUT_OF_MEMORY"
    ):
        CudaMemory(device).allocate(1 << 31, "arena")
    with pytest.raises(DeviceError, match="-1 bytes"):
        CudaMemory(device).allocate(-1, "arena")


def test_nothing_can_be_allocated(device: CudaDevice) -> None:
    empty = CudaMemory(device).allocate(0, "empty")
    assert (empty.address, empty.size_bytes) == (0, 0)
    assert PinnedAllocation(device, 0, "empty").bytes.size == 0


def test_bytes_go_to_the_gpu_and_back(device: CudaDevice) -> None:
    source = PinnedAllocation(device, 256, "staging")
    source.bytes[:] = np.arange(256, dtype=np.uint8)
    there = CudaMemory(device).allocate(256, "array")
    commit = np.zeros(256, np.uint8)
    with CudaStream(device) as stream:
        copy_memory(device, there.address, source.address, 256, stream)
        fill_memory(device, there.address, 8, stream)
        copy_memory(device, commit.ctypes.data, there.address, 256, stream)
        stream.synchronize()
    assert commit[8:].tolist() == list(range(8, 256))
    assert not commit[:8].any()
    assert owner_of(device, there.address) == 0
    assert owner_of(device, commit.ctypes.data) is None
    source.close()
    there.close()


def test_memory_is_told_apart_by_the_gpu_that_has_it(stub: StubDriver) -> None:
    driver = Driver(stub)
    devices = [CudaDevice(driver, index) for index in (0, 1)]
    memory = [CudaMemory(device).allocate(64, "array") for device in devices]
    pinned = PinnedAllocation(devices[0], 64, "staging")
    for device in devices:
        assert [owner_of(device, there.address + 8) for there in memory] == [0, 1]
        assert owner_of(device, pinned.address) == device.index
        assert stub.current is None
    del memory, pinned
    gc.collect()
    for device in devices:
        device.release()


# ---- streams and events


class _Torch:
    cuda_stream = 4711


class _Core:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 815


@pytest.mark.parametrize(("foreign", "handle"), [(_Torch(), 4711), (_Core(), 815), (0, 0), (9, 9)])
def test_streams_of_other_libraries_are_used_and_never_destroyed(
    device: CudaDevice, stub: StubDriver, foreign: object, handle: int
) -> None:
    with CudaStream(device, foreign) as stream:
        assert int(stream.handle) == handle
        assert stream.query()
    assert "cuStreamDestroy" not in stub.calls


@pytest.mark.parametrize("wrong", ["stream", -1, True, object()])
def test_what_is_no_stream_is_refused(wrong: object) -> None:
    with pytest.raises(DeviceError, match=r"not a stream handle|not a CUDA stream"):
        handle_of(wrong)


def test_our_streams_speak_the_protocol_of_others(device: CudaDevice) -> None:
    with CudaStream(device) as stream:
        assert handle_of(stream) == int(stream.handle)


def test_events_measure_milliseconds_once_both_are_recorded(device: CudaDevice) -> None:
    start, end = CudaEvent(device), CudaEvent(device)
    with CudaStream(device) as stream:
        start.record(stream)
        with pytest.raises(DeviceError, match="must be recorded"):
            start.elapsed(end)
        end.record(stream)
        end.wait(stream)
        end.synchronize()
        assert start.elapsed(end) == 0.25
        untimed = CudaEvent(device, times=False)
        untimed.record(stream)
        with pytest.raises(DeviceError, match="without timing"):
            start.elapsed(untimed)
    for event in (start, end, untimed):
        event.close()


def test_work_that_is_not_done_is_told_from_work_that_failed(
    device: CudaDevice, stub: StubDriver
) -> None:
    with CudaStream(device) as stream:
        stub.failures["cuStreamQuery"] = CUresult.CUDA_ERROR_NOT_READY
        assert not stream.query()
        stub.failures["cuStreamQuery"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        with pytest.raises(CudaError, match="ILLEGAL_ADDRESS"):
            stream.query()


# ---- code, launches, graphs


def _adds_one(words: Sequence[int], _blocks: int) -> None:
    array = (ctypes.c_uint8 * words[1]).from_address(words[0])
    for i in range(words[1]):
        array[i] += 1


@pytest.fixture
def module(device: CudaDevice, stub: StubDriver) -> Iterator[CudaModule]:
    stub.kernels["adds_one"] = _adds_one
    stub.words["adds_one"] = 2
    found = CudaModule(device, code_for("sm_90", "adds_one"))
    yield found
    found.close()


def test_a_launch_gets_its_words_and_shape(
    device: CudaDevice, stub: StubDriver, module: CudaModule
) -> None:
    array = np.zeros(4, np.uint8)
    arguments = KernelArguments([array.ctypes.data, 3])
    function = module.function("adds_one", 100 << 10)
    shape = LaunchConfig((2, 1, 1), 128, 100 << 10, uses_pdl=True)
    with CudaStream(device) as stream:
        launch(function, shape, arguments, stream)
        launch(function, LaunchConfig((0, 1, 1), 128), arguments, stream)
        assert array.tolist() == [1, 1, 1, 0]
        with pytest.raises(
            CudaError, match=r"adds_one cannot .* grid \(1, 1, 1\) and 4096 threads"
        ):
            launch(function, LaunchConfig((1, 1, 1), 4096), arguments, stream)
    config = stub.launches[0]
    assert (config.gridDimX, config.blockDimX, config.sharedMemBytes) == (2, 128, 100 << 10)
    assert config.numAttrs == 1


def test_blocks_that_wait_for_each_other_are_launched_as_clusters(
    device: CudaDevice, stub: StubDriver, module: CudaModule
) -> None:
    array = np.zeros(1, np.uint8)
    words, function = KernelArguments([array.ctypes.data, 1]), module.function("adds_one")
    with CudaStream(device) as stream:
        launch(function, LaunchConfig((8, 1, 1), 128, cluster_size=4), words, stream)
        with pytest.raises(CudaError, match=r"with grid \(6, 1, 1\)"):
            launch(function, LaunchConfig((6, 1, 1), 128, cluster_size=4), words, stream)
    (attribute,) = stub.launches[0].attrs
    assert attribute.id == "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION"
    assert attribute.value.clusterDim.x == 4


@pytest.mark.parametrize("cluster", [0, 9])
def test_a_record_of_an_impossible_cluster_is_refused(cluster: int) -> None:
    record = CudaKernel("k", code_for("sm_90", "k"), 32, 0, cluster=cluster).to_bytes()
    with pytest.raises(
        EngineFormatError, match=f"kernel k is damaged: it has {cluster} blocks in a cluster"
    ):
        CudaKernel.from_bytes(record, 0)


@pytest.mark.parametrize("value", ["1e999", "NaN", "2.9", "true", '"2"', "null", "[2]"])
@pytest.mark.parametrize("name", ["threads", "dynamic_shared_bytes", "scratch_words", "cluster"])
def test_a_record_whose_numbers_are_not_whole_is_refused(name: str, value: str) -> None:
    fields = {"threads": "32", "dynamic_shared_bytes": "0", "scratch_words": "0", "cluster": "1"}
    rest = '"entry": "k", "supports_pdl": false'
    for number, wanted in ((fields[name], True), (value, False)):
        detail = ", ".join(f'"{key}": {x}' for key, x in {**fields, name: number}.items())
        text = f"{{{detail}, {rest}}}".encode()
        record = struct.pack("<II", len(text), 0) + text
        if wanted:
            assert CudaKernel.from_bytes(record, 0).threads == 32
            continue
        with pytest.raises(EngineFormatError, match="is not an integer"):
            CudaKernel.from_bytes(record, 0)


@pytest.mark.parametrize("text", [b'"library"', b'["library"]', b"7"])
def test_a_record_without_fields_is_refused(text: bytes) -> None:
    with pytest.raises(EngineFormatError, match="not a JSON object"):
        CudaKernel.from_bytes(struct.pack("<II", len(text), 0) + text, 0)


def test_words_are_as_wide_as_addresses_and_may_be_negative(device: CudaDevice) -> None:
    del device
    arguments = KernelArguments([1 << 63, -1])
    pointers = (ctypes.c_void_p * 2).from_address(arguments.address)
    assert ctypes.c_uint64.from_address(pointers[0] or 0).value == 1 << 63
    assert ctypes.c_int64.from_address(pointers[1] or 0).value == -1


def test_code_for_another_gpu_is_a_mismatch(device: CudaDevice) -> None:
    with pytest.raises(EngineMismatchError, match="another architecture; build the engine again"):
        CudaModule(device, code_for("sm_80", "adds_one"))


def test_damaged_code_does_not_reach_the_driver(device: CudaDevice) -> None:
    good = code_for("sm_90", "adds_one")
    for damaged in (b"\x7fELF and no more", good[: len(good) // 2], b""):
        with pytest.raises(EngineFormatError, match="not a valid cubin"):
            CudaModule(device, damaged)


def test_a_kernel_that_the_code_lacks_is_named(module: CudaModule) -> None:
    with pytest.raises(EngineFormatError, match="no kernel 'subtracts_one'"):
        module.function("subtracts_one")


def test_shared_memory_that_no_block_has_is_refused(module: CudaModule) -> None:
    with pytest.raises(
        DeviceError, match=r"needs 300000 bytes of shared memory, .* allows 232448 per block"
    ):
        module.function("adds_one", 300_000)


def test_a_graph_repeats_what_was_recorded_and_runs_nothing_before(
    device: CudaDevice, module: CudaModule
) -> None:
    array = np.zeros(2, np.uint8)
    arguments = KernelArguments([array.ctypes.data, 2])
    function, shape = module.function("adds_one"), LaunchConfig((1, 1, 1), 32)
    with CudaStream(device) as stream:

        def launch_twice() -> None:
            launch(function, shape, arguments, stream)
            launch(function, shape, arguments, stream)

        graph = CudaGraph(stream, launch_twice)
        assert array.tolist() == [0, 0]
        graph.launch(stream)
        graph.launch(stream)
        assert array.tolist() == [4, 4]
        graph.close()


def test_a_recording_that_fails_leaves_the_stream_usable(device: CudaDevice) -> None:
    with CudaStream(device) as stream:
        with pytest.raises(CudaError, match="CAPTURE_UNSUPPORTED"):
            CudaGraph(stream, stream.synchronize)
        stream.synchronize()


def test_what_is_garbage_while_a_graph_is_recorded_is_given_back_behind_it(
    device: CudaDevice, stub: StubDriver
) -> None:
    ring: list[object] = [CudaMemory(device).allocate(64, "dropped")]
    ring.append(ring)
    held, thresholds = [ring], gc.get_threshold()
    del ring

    def drop() -> None:
        held.clear()
        gc.set_threshold(1, 1, 1)
        made: list[list[int]] = [[] for _ in range(1000)]
        assert len(made) == 1000
        gc.set_threshold(*thresholds)

    with CudaStream(device) as stream:
        CudaGraph(stream, drop).close()
    assert gc.isenabled()
    gc.collect()
    assert not [found for found in stub.live.values() if found[0] == "memory"]


def test_a_capture_that_is_lost_reports_the_first_cause(
    device: CudaDevice, stub: StubDriver
) -> None:
    with CudaStream(device) as stream:
        stub.failures["cuStreamEndCapture"] = CUresult.CUDA_ERROR_INVALID_VALUE
        with pytest.raises(CudaError, match="CAPTURE_UNSUPPORTED"):
            CudaGraph(stream, stream.synchronize)
        stub.cuStreamEndCapture(0)
        stub.live = {h: found for h, found in stub.live.items() if found[0] != "graph"}


# ---- arrays


def _array(device: CudaDevice, shape: tuple[int, ...], dtype: DType) -> CudaArray:
    count = int(np.prod(shape)) * dtype.size_bytes
    return CudaArray(CudaMemory(device).allocate(count, "array"), dtype, shape)


@pytest.mark.parametrize("dtype", list(DType))
def test_our_arrays_are_seen_through_dlpack(device: CudaDevice, dtype: DType) -> None:
    ours = _array(device, (2, 3), dtype)
    assert is_on_gpu(ours)
    with CudaStream(device) as stream:
        ours.written_on(stream)
        theirs = view_of(ours, stream)
    assert theirs.address == ours.allocation.address
    assert (theirs.shape, theirs.dtype) == ((2, 3), dtype)
    assert theirs.is_contiguous


def test_memory_lives_as_long_as_a_capsule_does(device: CudaDevice, stub: StubDriver) -> None:
    capsule = _array(device, (4,), DType.FLOAT32).__dlpack__()
    gc.collect()
    assert "memory" in stub.live_kinds()
    del capsule
    gc.collect()
    assert "memory" not in stub.live_kinds()


def test_our_arrays_are_seen_through_the_array_interface(device: CudaDevice) -> None:
    ours = _array(device, (2, 2), DType.FLOAT16)
    with CudaStream(device) as stream:
        ours.written_on(stream)
        theirs = view_of(_OnlyInterface(ours), stream)
    assert (theirs.shape, theirs.dtype, theirs.is_read_only) == ((2, 2), DType.FLOAT16, False)


class _OnlyInterface:
    """An array without DLPack."""

    def __init__(self, array: CudaArray) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__


class _Interface:
    """An array of a library that speaks the array interface."""

    def __init__(self, **changes: object) -> None:
        self.__cuda_array_interface__: dict[str, object] = {
            "data": (4096, True),
            "shape": (2, 3),
            "typestr": "<f4",
            "version": 3,
            "stream": 77,
            **changes,
        }


def test_a_reader_waits_for_the_writers_stream(device: CudaDevice, stub: StubDriver) -> None:
    with CudaStream(device) as stream:
        view = view_of(_Interface(strides=(4, 8)), stream)
    assert (view.is_read_only, view.is_contiguous) == (True, False)
    assert stub.calls.index("cuEventRecord") < stub.calls.index("cuStreamWaitEvent")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"typestr": "<c8"}, "does not follow version 3"),
        ({"data": 5}, "does not follow version 3"),
        ({"mask": object()}, "masked"),
        ({"strides": (5, 4)}, "not multiples of its element size"),
    ],
)
def test_a_strange_interface_is_refused(
    device: CudaDevice, changes: dict[str, object], message: str
) -> None:
    with CudaStream(device) as stream, pytest.raises(BindingError, match=message):
        view_of(_Interface(**changes), stream)


def test_arrays_elsewhere_are_refused(device: CudaDevice, stub: StubDriver) -> None:
    with CudaStream(device) as stream:
        with pytest.raises(BindingError, match="device type 1, not on a GPU"):
            view_of(np.zeros(3), stream)
        with pytest.raises(BindingError, match="neither"):
            view_of([1, 2], stream)
    other = CudaDevice(Driver(stub), 1)
    array = _array(other, (2,), DType.FLOAT32)
    with CudaStream(device) as stream, pytest.raises(BindingError, match="is on cuda:1"):
        view_of(array, stream)
    with pytest.raises(BufferError, match="copy it first"):
        array.__dlpack__(copy=True)
    del array
    gc.collect()
    other.release()
