"""Builds in which libraries compete, engines that need them, and engines that need nothing."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click.testing
import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.builder import TuningEffort, _cuda_toolchain
from smelt.builder._toolchain import TunedGraph, toolchain_of
from smelt.cli._build import build as build_command
from smelt.devices.cuda import LIBRARIES, CublasLt, CudaMemory, cuda_device
from smelt.engine import KernelSpec, Launch, read_engine, serialize_engine
from smelt.errors import (
    BuildError,
    EngineFormatError,
    EngineMismatchError,
    MissingExtraError,
    UnsupportedError,
)
from smelt.inspect import report_of, report_to_text
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.tuner import Candidates, TacticChoice, choose
from smelt.types import DType, TensorType
from tests.support.cublaslt_stub import VERSION, StubCublasLt, hide_cublaslt
from tests.support.cuda_driver_stub import StubDriver
from tests.support.cuda_engines import use_stub
from tests.support.cudnn_stub import VERSION as CUDNN_VERSION
from tests.support.cudnn_stub import StubCudnn, hide_cudnn
from tests.support.pair_kinds import fits
from tests.support.toolchains import open_toolchain
from tests.support.vendor_library_on_gpu import prefer_families

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.devices.cuda import CudaDevice, LoadedLibrary
    from smelt.runtime import Engine

Array = np.ndarray[Any, Any]
LIBRARY = CublasLt.provider
FEATURE = f"{LIBRARY}={VERSION}"


def _floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def network() -> smelt.NetworkDefinition:
    """Two products, with a bias, a ReLU and a residual."""
    net = smelt.NetworkDefinition("products")
    x = net.add_input("x", "float32", (16,))
    y = net.add_fully_connected(x, 16, _floats(16, 16), _floats(16), name="first")
    y = net.add_activation(y, "relu", name="relu")
    z = net.add_fully_connected(y, 16, _floats(16, 16), _floats(16), name="second")
    net.mark_output(net.add_elementwise(y, z, "sum", name="residual"))
    return net


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    pytest.importorskip("triton", reason="not installed: smelt-engine[cuda-build]")
    made = StubDriver(lazy=True)
    use_stub(made, monkeypatch)
    hide_cudnn(monkeypatch)
    return made


@pytest.fixture
def library(driver: StubDriver, monkeypatch: pytest.MonkeyPatch) -> StubCublasLt:
    made = StubCublasLt(driver)
    made.install(monkeypatch)
    return made


@pytest.fixture
def engine(library: StubCublasLt, monkeypatch: pytest.MonkeyPatch) -> Engine:
    del library
    prefer_families(monkeypatch, LIBRARY)
    return smelt.build(network(), "cuda", tune="none", libraries=True)


def _unsigned(engine: Engine, **changes: Any) -> bytes:
    file = read_engine(engine.serialize())
    return serialize_engine(
        replace(file.header, **changes), file.weights, bytes(len(file.code)), b"", None
    )


def test_an_engine_of_library_calls_computes_what_its_network_does(
    engine: Engine, library: StubCublasLt
) -> None:
    with engine.create_context() as context:
        for seed in range(3):
            x = np.random.default_rng(seed).standard_normal((1, 16)).astype(np.float32)
            (wanted,) = interpret(network().graph, {"x": x}).values()
            np.testing.assert_allclose(context.run({"x": x})["residual"], wanted, atol=1e-5)
    # Recorded once: where the application's arrays are stays the same.
    assert (len(library.calls), library.done) == (2, 6)
    assert [(call.epilogue, call.beta) for call in library.calls] == [(6, 0.0), (4, 1.0)]
    assert all(call.workspace_bytes == 4096 for call in library.calls)


def test_calls_follow_the_applications_arrays(engine: Engine, library: StubCublasLt) -> None:
    memory, live = CudaMemory(cuda_device(0)), library.driver.live
    rooms = [[memory.allocate(64, "test") for _ in range(2)] for _ in range(2)]
    with engine.create_context() as context, smelt.Stream("cuda") as stream:
        for number in (0, 1, 0, 1):
            x = _floats(1, 16) + number
            source, target = (room.address for room in rooms[number])
            live[source][1][:] = x.reshape(-1).view(np.uint8)
            context.enqueue(1, [source, target], stream)
            stream.synchronize()
            (wanted,) = interpret(network().graph, {"x": x}).values()
            found = live[target][1].view(np.float32)
            np.testing.assert_allclose(found, wanted.reshape(-1), atol=1e-5)
    assert len(library.calls) == 4  # recorded once for each pair of places


def test_it_says_which_library_it_needs(engine: Engine) -> None:
    assert FEATURE in engine.header.fingerprint.features
    assert "needs cuBLASLt 13.1.2" in report_to_text(report_of(engine))
    report = report_of(read_engine(engine.serialize()), sources=True)
    for kernel in report.kernels:
        problems = [code.problem for code in kernel.codes]
        assert problems == [
            "the kernel is a call to cuBLASLt 13.1.2, so its resources are not shown"
        ]
        assert not kernel.sources
    moved = [launch.moved_bytes for layer in report.plans[0].layers for launch in layer.launches]
    assert moved == [4 * (16 + 256 + 16 + 16)] * 2  # the residual is the first factor


def test_without_a_clock_the_library_does_not_win_and_nothing_is_needed(
    library: StubCublasLt,
) -> None:
    del library
    tools = open_toolchain("cuda", libraries=True)
    graph = Graph("one")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 16)))
    w = graph.add_constant(_floats(16, 8), "w")
    node = graph.add(ops.MatMul(), x, w, name="product")
    tactics, refusals = tools.backend.candidates(node, tools.target)
    assert LIBRARY in {tactic.family for tactic in tactics}
    known = {node: Candidates(tuple(tactics), tuple(refusals))}
    tuning: Any = SimpleNamespace(effort=None)
    choice = choose(graph, known, tools.timer(tuning), {})
    assert LIBRARY not in {tactic.family for tactic in choice.tactics.values()}
    assert tools.requirements([KernelSpec("gemm", ())]) == ()


def test_it_is_loaded_where_that_version_is_and_refused_elsewhere(
    engine: Engine, library: StubCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = engine.serialize()
    with smelt.load(data).create_context() as context:
        assert context.run({"x": _floats(1, 16)})["residual"].shape == (1, 16)
    library.checks_fail = True
    with pytest.raises(EngineMismatchError, match="build the engine again here"):
        smelt.load(data)
    library.version = 130200
    with pytest.raises(EngineMismatchError, match=r"nvidia-cublas==13\.1\.2"):
        smelt.load(data)
    hide_cublaslt(monkeypatch)
    with pytest.raises(MissingExtraError, match="cuda-libraries"):
        smelt.load(data)


def test_what_nobody_vouches_for_is_asked_of_the_library_again(
    engine: Engine, library: StubCublasLt
) -> None:
    file = read_engine(engine.serialize())
    made = read_engine(smelt.load(_unsigned(engine)).serialize())
    assert (made.header, made.code) == (file.header, file.code)
    library.workspaces = (0,)  # it proposes no more what the engine calls
    with pytest.raises(EngineFormatError, match="is not a tactic for"):
        smelt.load(_unsigned(engine))


def test_an_altered_call_is_refused(engine: Engine) -> None:
    (plan,) = engine.header.plans
    step = plan.steps[0]
    assert isinstance(step, Launch)
    fields = dict(step.kernel.parameters) | {"rows": 64}
    kernel = replace(step.kernel, parameters=tuple(sorted(fields.items())))
    altered = replace(plan, steps=(replace(step, kernel=kernel), *plan.steps[1:]))
    symbols = (*engine.header.symbols, (kernel.symbol, 0))
    with pytest.raises(EngineFormatError, match="the file was changed"):
        smelt.load(_unsigned(engine, plans=(altered,), symbols=symbols))


@pytest.mark.parametrize(
    "feature", ["cublaslt=", "cublaslt=13.1", "cublaslt=-1", "cublaslt=9e9", "cudnn=x"]
)
def test_a_version_that_no_build_writes_is_refused(library: StubCublasLt, feature: str) -> None:
    del library
    print_ = open_toolchain("cuda").fingerprint
    with pytest.raises(EngineFormatError, match="which is not a version number"):
        toolchain_of(replace(print_, features=(*print_.features, feature)))


def test_a_library_that_is_named_often_is_not_opened_often(library: StubCublasLt) -> None:
    print_ = open_toolchain("cuda").fingerprint
    with pytest.raises(EngineFormatError, match="requires cuBLASLt twice"):
        toolchain_of(replace(print_, features=(*print_.features, *[FEATURE] * 500)))
    assert not library.live


def test_the_library_is_asked_on_the_gpu_that_the_engine_is_loaded_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    family = LIBRARIES[LIBRARY]

    def opened(device: CudaDevice, version: int | None) -> LoadedLibrary:
        asked.append(device.index)
        return family.open(device, version)

    monkeypatch.setattr(
        _cuda_toolchain, "LIBRARIES", {**LIBRARIES, LIBRARY: replace(family, open=opened)}
    )
    for device in (None, "cuda", "cuda:1", "cuda:sm_90"):
        toolchain_of(engine.header.fingerprint, device)
    assert asked == [0, 0, 1, 0]


def test_without_the_library_only_who_asks_for_it_hears_of_it(
    driver: StubDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del driver
    hide_cublaslt(monkeypatch)
    assert open_toolchain("cuda").device == "cuda:0"
    with pytest.raises(MissingExtraError, match="cuda-libraries"):
        open_toolchain("cuda", libraries=True)
    assert open_toolchain(["cuda", "cpu"], libraries=True).fingerprint.device == "cpu"
    assert "device cuda is skipped: nvidia-cublas is not installed" in caplog.text
    assert LIBRARY not in {f.name for f in open_toolchain("cuda").backend.families}


def test_one_library_competes_without_the_other_and_that_is_told(
    library: StubCublasLt, driver: StubDriver, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    del library
    detail = "a library is not used: nvidia-cudnn-cu13 is not installed"
    assert open_toolchain("cuda", libraries=True).libraries == (FEATURE,)
    assert detail in caplog.text
    caplog.clear()
    StubCudnn(driver).install(monkeypatch)
    both = (FEATURE, f"cudnn={CUDNN_VERSION}")
    assert open_toolchain("cuda", libraries=True).libraries == both
    assert detail not in caplog.text


@pytest.mark.parametrize("detail", ["cudnnCreate: cuDNN reports", "cuDNN 9.1.0 is too old: 9.2.0"])
def test_one_library_competes_without_another_that_refuses_or_is_too_old(
    detail: str, library: StubCublasLt, driver: StubDriver, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    del library
    cudnn = StubCudnn(driver, version=90100 if "old" in detail else CUDNN_VERSION)
    cudnn.install(monkeypatch)

    def refuse(_place: int) -> int:
        return 1001

    monkeypatch.setattr(cudnn, "cudnnCreate", refuse)
    assert open_toolchain("cuda", libraries=True).libraries == (FEATURE,)
    assert f"a library is not used: {detail}" in caplog.text
    hide_cublaslt(monkeypatch)
    with pytest.raises(MissingExtraError, match="nvidia-cublas is not installed"):
        open_toolchain("cuda", libraries=True)


def test_an_engine_of_both_libraries_needs_both(
    library: StubCublasLt, driver: StubDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    del library
    cudnn = StubCudnn(driver)
    cudnn.install(monkeypatch)
    prefer_families(monkeypatch, "cudnn", LIBRARY)
    net = smelt.NetworkDefinition("both")
    x = net.add_input("x", "float32", (4, 1, 1))
    y = net.add_convolution(x, 8, 1, _floats(8, 4, 1, 1), _floats(8), name="convolution")
    net.mark_output(net.add_fully_connected(y, 4, _floats(4, 8), _floats(4), name="product"))
    engine = smelt.build(net, "cuda", tune="none", libraries=True)
    report = report_of(engine, sources=True)
    assert "needs cuBLASLt 13.1.2, cuDNN 9.19.0" in report_to_text(report)
    problems = {code.problem for kernel in report.kernels for code in kernel.codes}
    assert "the kernel is a call to cuDNN 9.19.0, so its resources are not shown" in problems
    again = toolchain_of(engine.header.fingerprint)
    (plan,) = engine.header.plans
    kernels = [step.kernel for step in plan.steps if isinstance(step, Launch)]
    assert again.requirements(kernels) == again.libraries == (FEATURE, f"cudnn={CUDNN_VERSION}")
    cudnn.version = 92800
    with pytest.raises(
        EngineMismatchError, match=r"requires cuDNN 9\.19\.0, but version 9\.28\.0 is installed"
    ):
        toolchain_of(engine.header.fingerprint)


def test_where_no_library_can_compete_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    detail = "libraries=True (`--libraries`) has no effect"
    smelt.build(network(), "null", tune="none")
    assert detail not in caplog.text
    smelt.build(network(), "null", tune="none", libraries=True)
    assert detail in caplog.text


def test_times_of_whole_plans_are_kept_apart_from_those_without_the_library(
    library: StubCublasLt, monkeypatch: pytest.MonkeyPatch
) -> None:
    del library
    places: list[str] = []

    class Trial:
        def __init__(self, *_: Any, where: str, **_options: Any) -> None:
            places.append(where)

        def run(self) -> None: ...

    monkeypatch.setattr(_cuda_toolchain, "InNetworkTuner", Trial)
    fields = dict.fromkeys(("timings", "fits_workspace", "deadline", "progress"))
    tuning: Any = SimpleNamespace(
        graph=Graph("none"), effort=TuningEffort(), sizes={}, fits=fits, **fields
    )
    for asked in (False, True):
        open_toolchain("cuda", libraries=asked).tune_in_network(
            TunedGraph(tuning, TacticChoice()), 0.0
        )
    assert places[1] == f"{places[0]}, {FEATURE}"


# ---- self_contained


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_self_contained_engine_has_no_step_in_python(precision: str) -> None:
    pytest.importorskip("triton", reason="not installed: smelt-engine[cuda-build]")
    net = smelt.NetworkDefinition("sorted")
    x = net.add_input("x", "float32", (16,))
    running: Any = net.add(ops.CumSum(), x, np.array(1))
    net.mark_output(running)
    with pytest.raises(
        UnsupportedError,
        match="self_contained=True does not allow reference steps, which run in Python",
    ):
        smelt.build(net, "cuda:sm_90", precision, tune="none", self_contained=True)
    plain = smelt.build(network(), "cpu", tune="none", self_contained=True)
    assert all(isinstance(step, Launch) for step in plain.header.plans[0].steps)


def test_libraries_and_self_contained_exclude_each_other() -> None:
    with pytest.raises(BuildError, match="give only one of them"):
        smelt.build(network(), "cpu", libraries=True, self_contained=True)


def test_both_can_be_asked_for_on_the_command_line(
    library: StubCublasLt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del library
    asked: list[dict[str, Any]] = []

    def build(_network: Any, **options: Any) -> Engine:
        asked.append(options)
        raise BuildError("enough")

    monkeypatch.setattr("smelt.builder.build", build)

    def open_network(*_: Any) -> smelt.NetworkDefinition:
        return network()

    monkeypatch.setattr("smelt.cli._model_options.open_network", open_network)
    target = str(tmp_path / "m.engine")
    for flags in ([], ["--libraries"], ["--self-contained"]):
        runner = click.testing.CliRunner()
        runner.invoke(build_command, ["model.onnx", "-o", target, "--quiet", *flags])
    wanted = [(False, False), (True, False), (False, True)]
    assert [(o["libraries"], o["self_contained"]) for o in asked] == wanted
