"""Real GPUs: memory, order, graphs, errors and arrays of other libraries, by the driver itself."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.devices.cuda import (
    CudaArray,
    CudaError,
    CudaEvent,
    CudaGraph,
    CudaMemory,
    CudaModule,
    CudaStream,
    PinnedAllocation,
    copy_memory,
    cuda_device,
    fill_memory,
    is_on_gpu,
    owner_of,
    view_of,
)
from smelt.errors import BindingError, DeviceError, EngineFormatError, EngineMismatchError
from smelt.types import DType
from tests.support.gpu import (
    Adder,
    add_kernel,
    download,
    library,
    nothing_is_lost,
    occupied_bytes,
    occupy,
    upload,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.devices.cuda import CudaDevice

Array = np.ndarray[Any, Any]
_COUNT = 1 << 12
_MIB = 1 << 20


@pytest.fixture
def stream(gpu: CudaDevice) -> Iterator[CudaStream]:
    with CudaStream(gpu) as made:
        yield made
        made.synchronize()


@pytest.fixture(scope="module")
def adder(gpu: CudaDevice) -> Adder:
    return Adder(gpu)


def _zeros(gpu: CudaDevice, stream: CudaStream, count: int = _COUNT) -> CudaArray:
    allocation = CudaMemory(gpu).allocate(count * 4, "array")
    fill_memory(gpu, allocation.address, count * 4, stream)
    stream.synchronize()
    return CudaArray(allocation, DType.INT32, (count,))


def _content(gpu: CudaDevice, array: CudaArray, stream: CudaStream) -> Array:
    found: Array = np.empty(array.shape, np.int32)
    return download(gpu, array.allocation.address, found, stream)


# ---- the device and its memory


def test_a_gpu_says_what_it_is(gpu: CudaDevice) -> None:
    found = gpu.properties
    assert found.name
    assert found.capability >= (7, 5)
    assert found.multiprocessors > 0
    assert found.shared_bytes >= 48 << 10
    assert 0 < gpu.free_bytes <= found.memory_bytes
    with pytest.raises(DeviceError, match="nvidia-smi -L"):
        cuda_device(1000)


def test_what_is_written_comes_back(gpu: CudaDevice, stream: CudaStream) -> None:
    given = np.random.default_rng(0).integers(0, 256, 3 * _MIB + 7, np.uint8)
    there = CudaMemory(gpu).allocate(given.nbytes, "test")
    assert there.address % 256 == 0
    upload(gpu, there.address, given, stream)
    assert np.array_equal(download(gpu, there.address, np.empty_like(given), stream), given)
    fill_memory(gpu, there.address, 5, stream)
    found = download(gpu, there.address, np.empty_like(given), stream)
    assert not found[:5].any()
    assert np.array_equal(found[5:], given[5:])
    assert owner_of(gpu, there.address) == gpu.index
    assert owner_of(gpu, int(given.ctypes.data)) is None


def test_pinned_memory_is_the_hosts_and_the_gpus(gpu: CudaDevice, stream: CudaStream) -> None:
    pinned = PinnedAllocation(gpu, _MIB, "test")
    pinned.bytes[:] = np.random.default_rng(1).integers(0, 256, _MIB, np.uint8)
    wanted = pinned.bytes.copy()
    there = CudaMemory(gpu).allocate(_MIB, "test")
    copy_memory(gpu, there.address, pinned.address, _MIB, stream)
    stream.synchronize()
    pinned.bytes[:] = 0
    copy_memory(gpu, pinned.address, there.address, _MIB, stream)
    stream.synchronize()
    assert np.array_equal(pinned.bytes, wanted)
    pinned.close()
    pinned.close()


def test_memory_comes_back_closed_or_forgotten(gpu: CudaDevice) -> None:
    with nothing_is_lost(gpu):
        before = gpu.free_bytes
        kept = [CudaMemory(gpu).allocate(64 * _MIB, "test") for _ in range(8)]
        assert before - gpu.free_bytes >= 512 * _MIB
        kept.pop().close()
        del kept
    with CudaStream(gpu) as stream:
        pooled = gpu.call("cuMemAllocAsync", 16 * _MIB, stream.handle)  # as torch may
        assert owner_of(gpu, int(pooled)) == gpu.index
        fill_memory(gpu, int(pooled), 16 * _MIB, stream)
        gpu.call("cuMemFreeAsync", pooled, stream.handle)
        stream.synchronize()


def test_too_much_memory_is_refused_and_nothing_is_lost(gpu: CudaDevice) -> None:
    with nothing_is_lost(gpu):
        with pytest.raises(
            CudaError, match=r"arena: \d+ bytes cannot be allocated on .*OUT_OF_MEMORY"
        ) as caught:
            CudaMemory(gpu).allocate(gpu.properties.memory_bytes * 2, "arena")
        assert caught.value.status == 2
        CudaMemory(gpu).allocate(_MIB, "after").close()


def test_hundreds_of_streams_events_graphs_and_modules_leave_nothing(
    gpu: CudaDevice, adder: Adder
) -> None:
    def use_everything() -> None:
        with CudaStream(gpu) as stream:
            array = _zeros(gpu, stream)
            event = CudaEvent(gpu)
            address = array.allocation.address
            graph = CudaGraph(stream, lambda: adder(address, _COUNT, 1, stream))
            graph.launch(stream)
            event.record(stream)
            event.synchronize()
            module = CudaModule(gpu, adder.kernel.cubin)
            module.function(adder.kernel.entry)
            stream.synchronize()

    use_everything()
    with nothing_is_lost(gpu):
        for _ in range(300):
            use_everything()


def test_every_thread_may_use_the_gpu(gpu: CudaDevice, adder: Adder) -> None:
    found: list[int] = []

    def work() -> None:
        with CudaStream(gpu) as stream:
            array = _zeros(gpu, stream)
            for _ in range(20):
                adder(array.allocation.address, _COUNT, 1, stream)
            found.append(int(_content(gpu, array, stream).sum()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [20 * _COUNT] * 4


# ---- order


def test_work_is_queued_not_waited_for(gpu: CudaDevice, stream: CudaStream) -> None:
    memory = CudaMemory(gpu).allocate(occupied_bytes, "test")
    start, end = CudaEvent(gpu), CudaEvent(gpu)
    start.record(stream)
    occupy(gpu, memory.address, stream)
    end.record(stream)
    assert not stream.query()
    assert not end.query()
    with pytest.raises(DeviceError, match="synchronize first"):
        start.elapsed(end)
    end.synchronize()
    assert end.query()
    assert stream.query()
    assert 1 < start.elapsed(end) < 10_000
    memory.close()


def test_a_stream_waits_for_anothers_event(gpu: CudaDevice, adder: Adder) -> None:
    memory = CudaMemory(gpu).allocate(occupied_bytes, "test")
    with CudaStream(gpu) as first, CudaStream(gpu) as second:
        array, copy = _zeros(gpu, first), _zeros(gpu, first)
        written = CudaEvent(gpu, times=False)
        occupy(gpu, memory.address, first)
        adder(array.allocation.address, _COUNT, 7, first)
        written.record(first)
        written.wait(second)
        copy_memory(gpu, copy.allocation.address, array.allocation.address, _COUNT * 4, second)
        assert (_content(gpu, copy, second) == 7).all()
    memory.close()


def test_a_graph_runs_as_often_as_it_is_launched(
    gpu: CudaDevice, stream: CudaStream, adder: Adder
) -> None:
    array = _zeros(gpu, stream)
    address = array.allocation.address

    def record() -> None:
        for _ in range(10):
            adder(address, _COUNT, 1, stream)

    graph = CudaGraph(stream, record)
    assert not _content(gpu, array, stream).any()
    with CudaStream(gpu) as other:
        for _ in range(50):
            graph.launch(stream)
        stream.synchronize()
        graph.launch(other)
        other.synchronize()
    assert (_content(gpu, array, stream) == 510).all()
    graph.close()
    graph.close()


def test_what_a_graph_cannot_hold_is_said_and_the_stream_goes_on(
    gpu: CudaDevice, stream: CudaStream, adder: Adder
) -> None:
    array = _zeros(gpu, stream)
    with pytest.raises(CudaError, match=r"while a graph is being captured|lost"):
        CudaGraph(stream, stream.synchronize)

    def fail() -> None:
        adder(array.allocation.address, _COUNT, 1, stream)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        CudaGraph(stream, fail)
    adder(array.allocation.address, _COUNT, 3, stream)
    assert (_content(gpu, array, stream) == 3).all()


def test_launches_may_overlap(gpu: CudaDevice, stream: CudaStream, adder: Adder) -> None:
    if gpu.properties.capability < (9, 0):
        pytest.skip(f"{gpu!r} is older than early starts")
    array = _zeros(gpu, stream)
    address = array.allocation.address
    adder(address, _COUNT, 1, stream, uses_pdl=True)
    stream.synchronize()
    graph = CudaGraph(stream, lambda: adder(address, _COUNT, 1, stream, uses_pdl=True))
    graph.launch(stream)
    assert (_content(gpu, array, stream) == 2).all()


# ---- errors


def test_code_for_another_gpu_or_damaged_code_is_a_mismatch(gpu: CudaDevice) -> None:
    major = gpu.properties.capability[0]
    with pytest.raises(EngineMismatchError, match="architecture"):
        CudaModule(gpu, add_kernel(80 if major != 8 else 90).cubin)
    good = add_kernel(major * 10 + gpu.properties.capability[1]).cubin
    for damaged in (b"\x7fELF" + bytes(60), good[: len(good) // 2], good[:-1], bytes(4096), b""):
        with pytest.raises(EngineFormatError, match="cubin"):
            CudaModule(gpu, damaged)


def test_a_kernel_that_is_not_there_and_memory_no_block_has_are_named(
    gpu: CudaDevice, adder: Adder
) -> None:
    with pytest.raises(EngineFormatError, match="no kernel 'other'"):
        adder.module.function("other")
    most = gpu.properties.shared_bytes
    with pytest.raises(DeviceError, match=f"allows {most}"):
        adder.module.function(adder.kernel.entry, most + 1)
    assert adder.module.function(adder.kernel.entry, most).name == adder.kernel.entry


def test_more_threads_than_a_block_has_are_refused(
    gpu: CudaDevice, stream: CudaStream, adder: Adder
) -> None:
    array = _zeros(gpu, stream)
    kernel = adder.kernel
    adder.kernel = type(kernel)(kernel.entry, kernel.cubin, 4096, 0, kernel.scratch_words)
    try:
        with pytest.raises(CudaError, match=r"4096 threads per block: CUDA_ERROR_INVALID_VALUE"):
            adder(array.allocation.address, _COUNT, 1, stream)
    finally:
        adder.kernel = kernel
    adder(array.allocation.address, _COUNT, 1, stream)
    assert (_content(gpu, array, stream) == 1).all()


_FAULT = """
from smelt.devices.cuda import CudaError, CudaStream, cuda_device
from tests.support.gpu import Adder
device = cuda_device(0)
stream = CudaStream(device)
Adder(device)(4096, 128, 1, stream)
for _ in range(2):
    try:
        stream.synchronize()
    except CudaError as error:
        print(error.status, error.name, error)
"""


def test_a_kernel_that_leaves_its_memory_is_told_and_the_process_ends_well(
    gpu: CudaDevice,
) -> None:
    del gpu
    done = _python(_FAULT)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("700 CUDA_ERROR_ILLEGAL_ADDRESS")
    assert "outside of its memory" in first


_FORK = """
import multiprocessing, sys
from smelt.devices.cuda import CudaMemory, cuda_device
from smelt.errors import DeviceError
device = cuda_device(0)

def child():
    try:
        CudaMemory(device).allocate(1024, "test")
    except DeviceError as error:
        print(error)
        sys.exit(5)

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    print(process.exitcode)
"""


def test_a_forked_process_is_told_to_spawn(gpu: CudaDevice) -> None:
    del gpu
    done = _python(_FORK)
    assert "spawn" in done.stdout
    assert done.stdout.splitlines()[-1] == "5"


def _python(program: str) -> subprocess.CompletedProcess[str]:
    paths = [os.getcwd(), "src", os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )


# ---- streams of other libraries


def _torch_stream() -> object:
    return library("torch").cuda.Stream()


def _cupy_stream() -> object:
    return library("cupy").cuda.Stream(non_blocking=True)


def _core_stream() -> object:
    device = library("cuda.core").Device(0)
    device.set_current()
    return device.create_stream()


def _default_stream() -> object:
    return 0


_every_stream = pytest.mark.parametrize(
    "make",
    [_torch_stream, _cupy_stream, _core_stream, _default_stream],
    ids=["torch", "cupy", "cuda.core", "default"],
)


@_every_stream
def test_work_goes_onto_streams_of_other_libraries(
    gpu: CudaDevice, adder: Adder, make: Callable[[], object]
) -> None:
    theirs = make()
    with CudaStream(gpu, theirs) as ours:
        array = _zeros(gpu, ours)
        adder(array.allocation.address, _COUNT, 5, ours)
        assert (_content(gpu, array, ours) == 5).all()
    again = CudaStream(gpu, theirs)  # it is theirs still
    adder(array.allocation.address, _COUNT, 1, again)
    assert (_content(gpu, array, again) == 6).all()


# ---- arrays of other libraries


def _torch_array(values: Array) -> Any:
    torch = library("torch")
    return torch.from_numpy(values).cuda()


def _cupy_array(values: Array) -> Any:
    return library("cupy").asarray(values)


def _jax_array(values: Array) -> Any:
    jax = library("jax")
    device = next((d for d in jax.devices() if d.platform == "gpu"), None)
    if device is None:
        pytest.skip("jax sees no GPU")
    return jax.device_put(values, device)


_every_library = pytest.mark.parametrize(
    "make", [_torch_array, _cupy_array, _jax_array], ids=["torch", "cupy", "jax"]
)


@_every_library
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "bool"])
def test_arrays_of_other_libraries_are_read_where_they_are(
    gpu: CudaDevice, stream: CudaStream, make: Callable[[Array], Any], dtype: str
) -> None:
    values = (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    theirs = make(values)
    assert is_on_gpu(theirs)
    view = view_of(theirs, stream)
    assert (view.shape, view.dtype) == ((2, 3, 4), DType.from_numpy(values.dtype))
    assert view.is_contiguous
    assert owner_of(gpu, view.address) == gpu.index
    assert np.array_equal(download(gpu, view.address, np.empty_like(values), stream), values)


def test_a_transposed_tensor_is_not_contiguous(gpu: CudaDevice, stream: CudaStream) -> None:
    del gpu
    theirs = _torch_array(np.zeros((2, 3, 4), np.float32)).permute(2, 0, 1)
    view = view_of(theirs, stream)
    assert (view.shape, view.is_contiguous) == ((4, 2, 3), False)


def test_bfloat16_of_torch_is_read_by_dlpack(gpu: CudaDevice, stream: CudaStream) -> None:
    torch = library("torch")
    theirs = torch.arange(8, device="cuda").to(torch.bfloat16)
    view = view_of(theirs, stream)
    assert view.dtype is DType.BFLOAT16
    found = download(gpu, view.address, np.empty(8, np.uint16), stream)
    assert np.array_equal((found.astype(np.uint32) << 16).view(np.float32), np.arange(8))


def test_a_tensor_that_needs_gradients_is_refused_with_torchs_reason(stream: CudaStream) -> None:
    torch = library("torch")
    with pytest.raises((BindingError, RuntimeError), match="grad"):
        view_of(torch.zeros(3, device="cuda", requires_grad=True), stream)


def test_reading_waits_for_the_library_that_writes(gpu: CudaDevice) -> None:
    torch = library("torch")
    memory = CudaMemory(gpu).allocate(occupied_bytes, "test")
    theirs = torch.cuda.Stream()
    with CudaStream(gpu) as reading, torch.cuda.stream(theirs):
        occupy(gpu, memory.address, CudaStream(gpu, theirs))
        tensor = torch.full((_COUNT,), 9, dtype=torch.int32, device="cuda")
        view = view_of(tensor, reading)
        found = download(gpu, view.address, np.empty(_COUNT, np.int32), reading)
    assert (found == 9).all()
    memory.close()


def _to_torch(array: CudaArray) -> Any:
    return library("torch").from_dlpack(array)


def _to_cupy(array: CudaArray) -> Any:
    return library("cupy").from_dlpack(array)


def _to_cupy_by_interface(array: CudaArray) -> Any:
    return library("cupy").asarray(array)


def _to_jax(array: CudaArray) -> Any:
    return library("jax.numpy").from_dlpack(array)


_to_every_library = pytest.mark.parametrize(
    "give",
    [_to_torch, _to_cupy, _to_cupy_by_interface, _to_jax],
    ids=["torch", "cupy", "cupy's interface", "jax"],
)


def _as_numpy(array: Any) -> Array:
    found: Array = np.asarray(array.get() if hasattr(array, "get") else _on_host(array))
    return found


def _on_host(array: Any) -> Any:
    return array.cpu() if hasattr(array, "cpu") else array


@_to_every_library
def test_our_arrays_are_taken_without_a_copy_and_live_on(
    gpu: CudaDevice, adder: Adder, give: Callable[[CudaArray], Any]
) -> None:
    memory = CudaMemory(gpu).allocate(occupied_bytes, "test")
    with CudaStream(gpu) as writing:
        ours = _zeros(gpu, writing)
        address = ours.allocation.address
        occupy(gpu, memory.address, writing)
        adder(address, _COUNT, 11, writing)
        ours.written_on(writing)  # readers wait for the adder, which has hardly begun
        theirs = give(ours)
        with CudaStream(gpu) as reading:
            assert view_of(theirs, reading).address == address
        del ours
        gc.collect()
        others = [_zeros(gpu, writing) for _ in range(8)]  # would reuse memory that came back
        assert (_as_numpy(theirs) == 11).all()
        assert all(other.allocation.address != address for other in others)
    memory.close()


def test_shared_arrays_give_their_memory_back(gpu: CudaDevice) -> None:
    torch = library("torch")
    with CudaStream(gpu) as stream:
        torch.from_dlpack(_zeros(gpu, stream, 1 << 20)).sum().item()
        with nothing_is_lost(gpu):
            for _ in range(100):
                tensor = torch.from_dlpack(_zeros(gpu, stream, 1 << 20))
                view_of(tensor, stream)
                del tensor


# ---- two GPUs


def test_arrays_of_another_gpu_are_refused_with_both_numbers(
    gpus: tuple[CudaDevice, CudaDevice],
) -> None:
    torch = library("torch")
    theirs = torch.zeros(4, device="cuda:1")
    with CudaStream(gpus[0]) as stream, pytest.raises(BindingError, match=r"cuda:1.*cuda:0"):
        view_of(theirs, stream)
    assert owner_of(gpus[0], theirs.data_ptr()) == 1


def test_two_gpus_compute_beside_each_other(gpus: tuple[CudaDevice, CudaDevice]) -> None:
    for device in (*gpus, *gpus):
        adder = Adder(device)
        with CudaStream(device) as stream:
            array = _zeros(device, stream)
            adder(array.allocation.address, _COUNT, device.index + 1, stream)
            assert (_content(device, array, stream) == device.index + 1).all()
            assert owner_of(device, array.allocation.address) == device.index
