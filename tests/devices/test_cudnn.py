"""cuDNN as data and through its C interface, here a stub that computes with numpy."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.devices.cuda import (
    ConvolutionCall,
    CudaLaunch,
    CudaRunList,
    CudaStream,
    CudnnError,
    KernelLoader,
    RunListGraph,
    _cublaslt,
    _cudnn,
    call_to_bytes,
    open_cudnn,
    read_record,
)
from smelt.devices.cuda._cublaslt import load_cublaslt
from smelt.errors import DeviceError, EngineFormatError, EngineMismatchError, MissingExtraError
from smelt.types import DType
from tests.support.cublaslt_stub import hide_cublaslt
from tests.support.cuda_driver_stub import StubDriver
from tests.support.cudnn_stub import VERSION, StubCudnn, StubEngine, hide_cudnn
from tests.support.vendor_library_operands import CallOperands, rows_of

if TYPE_CHECKING:
    from smelt.devices.cuda import CudaDevice

Array = np.ndarray[Any, Any]
CALL = ConvolutionCall(
    version=VERSION,
    images=(2, 4, 1, 5),
    filters=(3, 4, 1, 1),
    strides=(1, 1),
    dilations=(1, 1),
    pads=(0, 0, 0, 0),
    factors=DType.FLOAT32,
    result=DType.FLOAT32,
    input_precision="ieee",
    adds=True,
    bias=True,
    relu=True,
)
"""A product of matrices: how windows are taken, the families' tests look at."""


@pytest.fixture
def library(driver: StubDriver, monkeypatch: pytest.MonkeyPatch) -> StubCudnn:
    made = StubCudnn(driver)
    made.install(monkeypatch)
    return made


def _operands() -> CallOperands:
    """Images, filters, residual, bias and result of `CALL`."""
    return CallOperands((10, 4), (3, 4), (10, 3), (3,), (10, 3))


def _wanted(operands: CallOperands) -> Array:
    x, w, residual, bias, _ = operands.parts
    total: Array = x @ w.T + residual + bias
    return np.maximum(total, 0)


def chosen(device: CudaDevice, call: ConvolutionCall, number: int = 0) -> ConvolutionCall:
    """The call with one of the engines that the library proposes."""
    engine = open_cudnn(device).engines(call, count=4)[number]
    return replace(
        call, engine=engine.number, knobs=engine.knobs, workspace_bytes=engine.workspace_bytes
    )


def test_a_call_convolves_adds_and_activates_when_the_stream_comes_to_it(
    device: CudaDevice, library: StubCudnn
) -> None:
    operands = _operands()
    rows = rows_of(device, chosen(device, CALL), operands.words)
    with CudaStream(device) as stream:
        rows.launch_all(stream)
        assert not library.done
        stream.synchronize()
    np.testing.assert_allclose(operands.parts[-1], _wanted(operands), rtol=1e-5)
    (seen,) = library.calls
    assert (seen.engine, seen.knobs, seen.what.relu) == (10, ((2, 5), (13, 1)), True)


def test_a_graph_holds_a_call_and_its_workspace(device: CudaDevice, library: StubCudnn) -> None:
    operands, call = _operands(), chosen(device, CALL, 1)
    assert call.workspace_bytes == 4000
    rows = rows_of(device, call, [*operands.words, operands.workspace])
    with CudaStream(device) as stream:
        graph = RunListGraph(rows, stream)
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
        graph.close()
    assert (len(library.calls), library.done) == (1, 3)
    assert (operands.room == 0xEE).sum() == 4000
    np.testing.assert_allclose(operands.parts[-1], _wanted(operands), rtol=1e-5)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_what_is_not_there_is_no_operand(
    device: CudaDevice, library: StubCudnn, *, adds: bool, bias: bool, relu: bool
) -> None:
    operands = _operands()
    call = chosen(device, replace(CALL, adds=adds, bias=bias, relu=relu))
    kept = [0, 1, *[2] * adds, *[3] * bias, 4]
    x, w, residual, offsets, result = operands.parts
    with CudaStream(device) as stream:
        rows_of(device, call, [operands.words[k] for k in kept]).launch_all(stream)
        stream.synchronize()
    wanted = x @ w.T + residual * adds + offsets * bias
    np.testing.assert_allclose(result, np.maximum(wanted, 0) if relu else wanted, rtol=1e-5)
    assert len(library.calls[0].what.operands) == call.words == len(kept)


def test_everything_is_given_back(device: CudaDevice, library: StubCudnn) -> None:
    test_a_call_convolves_adds_and_activates_when_the_stream_comes_to_it(device, library)
    library.checks_fail = True
    with pytest.raises(EngineMismatchError):
        KernelLoader(device).load(call_to_bytes(chosen(device, CALL)))
    library.refuses_graphs = True
    assert open_cudnn(device).engines(CALL, count=1) == []
    gc.collect()
    assert not library.live


def test_threads_take_turns_with_a_handle(device: CudaDevice, library: StubCudnn) -> None:
    call = chosen(device, CALL)
    loaded = KernelLoader(device).load(call_to_bytes(call))
    benches = [(_operands(), CudaStream(device)) for _ in range(4)]

    def run(number: int) -> None:
        operands, stream = benches[number]
        words = np.array(operands.words, np.int64)
        for _ in range(50):
            CudaRunList([CudaLaunch(loaded, len(words), 0)], words, [1]).launch_all(stream)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    for operands, stream in benches:
        stream.synchronize()
        np.testing.assert_allclose(operands.parts[-1], _wanted(operands), rtol=1e-5)
        stream.close()
    assert library.done == 200


def test_a_record_gives_the_call_back(device: CudaDevice, library: StubCudnn) -> None:
    del library
    for call in (chosen(device, CALL), replace(CALL, engine=3, knobs=((12, -1), (2, 8)))):
        assert read_record(call_to_bytes(call), 0) == call


@pytest.mark.parametrize(
    "change",
    [
        {"images": (2, 4, 1)}, {"images": (2, 4, 0, 5)}, {"images": (2, 5, 1, 5)}, {"images": 1},
        {"filters": (3, 4, 1)}, {"filters": (3, 4, 2, 1)}, {"filters": (3, 4, 1, 1 << 31)},
        {"filters": (3, 2, 1, 1)}, {"filters": (1 << 31, 4, 1, 1)}, {"filters": (3, 0, 1, 1)},
        {"strides": (1,)}, {"strides": (0, 1)}, {"dilations": (1, 1.0)}, {"pads": (0, 0)},
        {"pads": (0, 0, 0, -1)}, {"factors": "int8"}, {"result": "float128"}, {"adds": 1},
        {"input_precision": "fast"}, {"version": "9"}, {"workspace_bytes": -1}, {"relu": 0},
        {"workspace_bytes": 1 << 50}, {"engine": -1}, {"engine": 1 << 31}, {"engine": True},
        {"knobs": ((1,),)}, {"knobs": ((1, 1 << 40),)}, {"knobs": ((-1, 1),)},
        {"knobs": ((1, 1),) * 65}, {"knobs": 1}, {"knobs": (("a", 1),)}, {"more": 1},
        {"version": 0}, {"version": -5}, {"version": 1 << 31}, {"version": 10**4000},
        {"version": True},
    ],
)  # fmt: skip
def test_a_malformed_call_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EngineFormatError, match="a library call is malformed"):
        ConvolutionCall.from_fields(CALL.to_fields() | change)


def test_what_the_library_refuses_is_told_with_its_status(
    device: CudaDevice, library: StubCudnn
) -> None:
    words = _operands().words
    words[0] += 4  # no round address
    rows = rows_of(device, chosen(device, CALL), words)
    with CudaStream(device) as stream, pytest.raises(CudnnError, match=r"BAD_PARAM \(2000\)"):
        rows.launch_all(stream)
    assert len(open_cudnn(device).engines(CALL, count=2)) == 2
    library.proposals |= {3: (), 1: (), 2: ()}
    assert open_cudnn(device).engines(CALL, count=2) == []


def test_an_engine_that_this_gpu_cannot_run_is_refused_when_it_is_loaded(
    device: CudaDevice, library: StubCudnn
) -> None:
    call = chosen(device, CALL, 1)
    others: list[dict[str, Any]] = [
        {"engine": 99},
        {"knobs": ((2, 99),)},
        {"knobs": ()},
        {"workspace_bytes": 16},
    ]
    for other in (*others, {"workspace_bytes": 16}):
        with pytest.raises(EngineMismatchError, match="build the engine again here"):
            KernelLoader(device).load(call_to_bytes(replace(call, **other)))
    library.proposals[3] += (StubEngine(99),)
    assert KernelLoader(device).load(call_to_bytes(replace(call, engine=99, knobs=())))


def test_another_version_is_refused_with_the_remedy(device: CudaDevice, library: StubCudnn) -> None:
    call = chosen(device, CALL)
    library.version = 92800
    with pytest.raises(EngineMismatchError, match=r"nvidia-cudnn-cu13==9\.19\.0\.\*"):
        KernelLoader(device).load(call_to_bytes(call))


def test_without_the_library_or_with_an_old_one_the_error_says_what_to_do(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = StubCudnn(StubDriver(), version=90100)
    old.install(monkeypatch)
    for wanted in (None, 90100):
        with pytest.raises(DeviceError, match=r"cuDNN 9\.1\.0 is too old: 9\.2\.0 or newer"):
            open_cudnn(device, wanted)
    hide_cudnn(monkeypatch)
    with pytest.raises(
        MissingExtraError,
        match="nvidia-cudnn-cu13 is not installed; it contains cuDNN and is in smelt's extra",
    ):
        open_cudnn(device)


def test_without_cublaslt_which_it_cannot_do_without_it_is_not_opened(
    device: CudaDevice, library: StubCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cudnn, "load_cublaslt", load_cublaslt)
    hide_cublaslt(monkeypatch)
    with pytest.raises(MissingExtraError, match="nvidia-cublas is not installed"):
        open_cudnn(device)
    assert not library.live


def test_one_for_an_older_cuda_than_the_libraries_beside_it_is_told_with_both_remedies(
    device: CudaDevice, library: StubCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_thirteen(path: str, *_: object) -> SimpleNamespace | None:
        is_thirteen = path.endswith("libcublasLt.so.13")
        return SimpleNamespace(cublasLtGetVersion=lambda: 130102) if is_thirteen else None

    monkeypatch.setattr(_cudnn, "load_cublaslt", load_cublaslt)
    monkeypatch.setattr(_cublaslt, "open_library", open_thirteen)
    library.cuda = 12090
    with pytest.raises(DeviceError, match=r"for CUDA 12, whose cuBLASLt is not installed") as it:
        open_cudnn(device)
    assert "uninstall nvidia-cudnn-cu12, then pip install --force-reinstall nvidia-cudnn-cu13" in (
        str(it.value)
    )
    assert "or run pip install nvidia-cublas-cu12" in str(it.value)
    library.cuda = 13000
    assert open_cudnn(device).version == library.version


def test_it_is_opened_only_beside_the_cublaslt_that_it_was_made_for(
    device: CudaDevice, library: StubCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:

    def open_twelve(path: str, *_: object) -> SimpleNamespace | None:
        is_twelve = path.endswith("libcublasLt.so.12")
        return SimpleNamespace(cublasLtGetVersion=lambda: 120805) if is_twelve else None

    monkeypatch.setattr(_cudnn, "load_cublaslt", load_cublaslt)
    monkeypatch.setattr(_cublaslt, "open_library", open_twelve)
    with pytest.raises(MissingExtraError, match="not installed; it contains cuBLASLt 13"):
        open_cudnn(device)
    assert not library.live
    library.cuda = 12090
    assert open_cudnn(device).version == library.version
    library.cuda = 14000
    with pytest.raises(DeviceError, match=r"supports CUDA 13\.0, which is too old for cuBLASLt 14"):
        open_cudnn(device)
