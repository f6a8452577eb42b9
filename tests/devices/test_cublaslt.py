"""cuBLASLt as data and through its C interface, here a stub that computes with numpy."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.devices.cuda import (
    CublasError,
    CudaKernel,
    CudaLaunch,
    CudaRunList,
    CudaStream,
    KernelLoader,
    MatmulCall,
    RunListGraph,
    call_to_bytes,
    cuda_device,
    open_cublaslt,
    read_record,
)
from smelt.errors import DeviceError, EngineFormatError, EngineMismatchError, MissingExtraError
from smelt.types import DType
from tests.support.cublaslt_stub import VERSION, StubCublasLt, hide_cublaslt
from tests.support.cuda_driver_stub import StubDriver, code_for
from tests.support.cuda_engines import use_stub
from tests.support.vendor_library_operands import CallOperands, rows_of

if TYPE_CHECKING:
    from smelt.devices.cuda import CudaDevice

Array = np.ndarray[Any, Any]
CALL = MatmulCall(
    version=VERSION,
    matrices=1,
    rows=3,
    columns=4,
    depth=5,
    transposed=(False, True),
    factors=DType.FLOAT32,
    result=DType.FLOAT32,
    input_precision="ieee",
    alpha=0.5,
    adds=True,
    bias=True,
    activation="relu",
)


@pytest.fixture
def library(driver: StubDriver, monkeypatch: pytest.MonkeyPatch) -> StubCublasLt:
    made = StubCublasLt(driver)
    made.install(monkeypatch)
    return made


def _operands() -> CallOperands:
    """x, w, c, b and out of `CALL`."""
    return CallOperands((3, 5), (4, 5), (3, 4), (4,), (3, 4))


def _wanted(operands: CallOperands, call: MatmulCall) -> Array:
    x, w, c, b, _ = operands.parts
    total: Array = call.alpha * (x @ w.T) + c * call.adds + b * call.bias
    return np.maximum(total, 0) if call.activation == "relu" else total


def chosen(device: CudaDevice, call: MatmulCall, number: int = 0) -> MatmulCall:
    """The call with one of the algorithms that the library proposes."""
    proposed = open_cublaslt(device).algorithms(call, count=4, max_workspace_bytes=1 << 20)
    algorithm, room = proposed[number]
    return replace(call, algorithm=algorithm, workspace_bytes=room)


def test_a_call_multiplies_adds_and_activates_when_the_stream_comes_to_it(
    device: CudaDevice, library: StubCublasLt
) -> None:
    operands, call = _operands(), chosen(device, CALL)
    rows = rows_of(device, call, operands.words)
    with CudaStream(device) as stream:
        rows.launch_all(stream)
        assert not library.done
        stream.synchronize()
    np.testing.assert_allclose(operands.parts[-1], _wanted(operands, call), rtol=1e-6)
    (seen,) = library.calls
    assert (seen.compute, seen.epilogue, seen.transposed) == (68, 6, (1, 0))
    assert (seen.alpha, seen.beta, seen.algorithm) == (0.5, 1.0, 0)


def test_a_graph_holds_a_call_and_its_workspace(device: CudaDevice, library: StubCublasLt) -> None:
    operands, call = _operands(), chosen(device, CALL, 1)
    assert call.workspace_bytes == 4096
    rows = rows_of(device, call, [*operands.words, operands.workspace])
    with CudaStream(device) as stream:
        graph = RunListGraph(rows, stream)
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
        graph.close()
    assert (len(library.calls), library.done) == (1, 3)
    assert (operands.room == 0xEE).sum() == 4096
    np.testing.assert_allclose(operands.parts[-1], _wanted(operands, call), rtol=1e-6)


def test_no_kernel_starts_before_the_call_before_it_has_ended(
    device: CudaDevice, library: StubCublasLt
) -> None:
    operands, call = _operands(), chosen(device, CALL)
    loader = KernelLoader(device)
    code = CudaKernel("k", code_for("sm_90", "k"), 32, 0, supports_pdl=True).to_bytes()
    kernel, called = loader.load(code), loader.load(call_to_bytes(call))
    rows = [CudaLaunch(kernel, 1, 0), CudaLaunch(called, 5, 1), CudaLaunch(kernel, 1, 1)]
    rows += [CudaLaunch(kernel, 1, 3), CudaLaunch(kernel, 1, 4)]
    words = np.array([1, *operands.words, 1, 1, 1], np.int64)
    with CudaStream(device) as stream:
        CudaRunList(rows, words, [1] * 5).launch_all(stream)
        stream.synchronize()
    assert [launch.numAttrs for launch in library.driver.launches] == [1, 1, 0, 1]


def test_everything_is_given_back(device: CudaDevice, library: StubCublasLt) -> None:
    test_a_call_multiplies_adds_and_activates_when_the_stream_comes_to_it(device, library)
    gc.collect()
    assert not library.live


def test_a_record_gives_the_call_back(device: CudaDevice, library: StubCublasLt) -> None:
    del library
    call = chosen(device, CALL)
    first = CudaKernel("entry", b"\x7fELF", 128, 0).to_bytes()
    code = first + call_to_bytes(call)
    assert read_record(code, len(first)) == read_record(code, 0, 1) == call
    with pytest.raises(EngineFormatError, match="library call"):
        CudaKernel.from_bytes(code, len(first))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 0}, {"depth": -1}, {"columns": 1 << 31}, {"matrices": 1.0}, {"factors": "int8"},
        {"factors": "float128"}, {"input_precision": "fast"}, {"activation": "tanh"}, {"alpha": 1},
        {"version": "13"}, {"workspace_bytes": -1}, {"workspace_bytes": 1 << 50},
        {"algorithm": "xy"}, {"algorithm": "00" * 65}, {"transposed": [True]}, {"transposed": 1},
        {"bias": 1}, {"more": 1}, {"version": True},
        {"version": 0}, {"version": -5}, {"version": 1 << 31}, {"version": 10**4000},
        {"alpha": math.inf}, {"alpha": -math.inf}, {"alpha": math.nan}, {"alpha": 1e300},
        {"activation": []},
    ],
)  # fmt: skip
def test_a_malformed_call_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EngineFormatError, match="a library call is malformed"):
        MatmulCall.from_fields(CALL.to_fields() | change)


def test_another_librarys_record_is_refused() -> None:
    record = call_to_bytes(CALL).replace(b'"cublaslt"', b'"cusparse"')
    with pytest.raises(EngineFormatError, match="unknown library 'cusparse'"):
        read_record(record, 0)


def test_a_call_of_too_few_operands_is_refused(device: CudaDevice, library: StubCublasLt) -> None:
    del library
    rows = rows_of(device, chosen(device, CALL), [256] * 4)
    with (
        CudaStream(device) as stream,
        pytest.raises(EngineFormatError, match="4 operands; 5 are required"),
    ):
        rows.launch_all(stream)


def test_what_the_library_refuses_is_told_with_its_status(
    device: CudaDevice, library: StubCublasLt
) -> None:
    operands = _operands()
    words = operands.words
    words[0] += 4  # no round address
    rows = rows_of(device, chosen(device, CALL), words)
    with CudaStream(device) as stream, pytest.raises(CublasError, match=r"INVALID_VALUE \(7\)"):
        rows.launch_all(stream)
    library.refuses_heuristics = True
    assert open_cublaslt(device).algorithms(CALL, count=4, max_workspace_bytes=0) == []


def test_an_algorithm_that_this_gpu_cannot_run_is_refused_when_it_is_loaded(
    device: CudaDevice, library: StubCublasLt
) -> None:
    call = chosen(device, CALL, 1)
    for wrong in (replace(call, workspace_bytes=16), replace(call, algorithm="00")):
        with pytest.raises(EngineMismatchError, match="build the engine again here"):
            KernelLoader(device).load(call_to_bytes(wrong))
    library.checks_fail = True
    with pytest.raises(EngineMismatchError, match="build the engine again here"):
        KernelLoader(device).load(call_to_bytes(call))


def test_an_algorithm_has_the_room_that_it_says_it_needs_when_it_is_checked(
    device: CudaDevice, library: StubCublasLt
) -> None:
    opened = open_cublaslt(device)
    library.hidden_bytes = 1024
    rooms = {
        most: opened.algorithms(CALL, count=4, max_workspace_bytes=most) for most in (4096, 8192)
    }
    assert [[room for _, room in found] for found in rooms.values()] == [[0], [0, 5120]]
    assert KernelLoader(device).load(call_to_bytes(chosen(device, CALL, 1)))


def test_another_version_is_refused_with_the_remedy(
    device: CudaDevice, library: StubCublasLt
) -> None:
    call = chosen(device, CALL)
    library.version = 130200
    with pytest.raises(
        EngineMismatchError, match=r"requires cuBLASLt 13\.1\.2, but version 13\.2\.0"
    ):
        KernelLoader(device).load(call_to_bytes(call))


def test_without_the_library_the_error_names_the_extra(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_cublaslt(monkeypatch)
    with pytest.raises(
        MissingExtraError,
        match="it contains cuBLASLt and is in smelt's extra 'cuda-libraries'",
    ):
        open_cublaslt(device)


@pytest.mark.parametrize("is_there", [True, False])
def test_with_a_driver_that_is_too_old_for_the_library_the_error_says_so(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = StubDriver(version=12080)
    use_stub(driver, monkeypatch)
    if is_there:
        StubCublasLt(driver, version=120805).install(monkeypatch)
        assert open_cublaslt(cuda_device(0)).version == 120805
    else:
        hide_cublaslt(monkeypatch)
    what = (
        "too old for (cuBLASLt 13|the libraries of smelt's extra 'cuda-libraries'); update the "
        "driver"
    )
    with pytest.raises(DeviceError, match=rf"supports CUDA 12\.8, which is {what}"):
        open_cublaslt(cuda_device(0), VERSION if is_there else None)
