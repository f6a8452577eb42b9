"""Engines for GPUs, made where there is none."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import platform
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.backends.cuda import CompilerPool, CudaBackend, target_named
from smelt.builder import _cuda_toolchain, devices_to_run
from smelt.builder._cuda_toolchain import CudaToolchain
from smelt.builder._toolchain import TunedGraph, toolchain_of
from smelt.devices.cuda import CudaKernel, _driver, cuda_device
from smelt.engine import Launch, read_engine, serialize_engine
from smelt.errors import (
    BuildError,
    DeviceError,
    EngineFormatError,
    EngineMismatchError,
    MissingExtraError,
    UnsupportedError,
)
from smelt.gie import create_infer_builder
from smelt.inspect import report_of, report_to_text
from smelt.ir import Node
from smelt.tuner import TacticChoice
from smelt.types import DType
from tests.support.cuda_conv_chains import row_of
from tests.support.cuda_driver_stub import StubDriver
from tests.support.gie import RecordingLogger
from tests.support.gie import small_network as gie_network
from tests.support.pair_kinds import PairKinds
from tests.support.small_networks import network_of_differences, small_network
from tests.support.toolchains import open_toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from smelt.backends import Tactic
    from smelt.backends.cuda import CudaTarget
    from smelt.engine import KernelSpec, Step
    from smelt.runtime import Engine

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="not installed: the extra cuda-build"
)


@pytest.fixture(scope="module", autouse=True)
def _shared_compilers(compilers: CompilerPool) -> Iterator[None]:
    """Every build takes the same processes to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _cuda_toolchain, "CudaBackend", functools.partial(CudaBackend, pool=compilers)
        )
        yield


@pytest.fixture(scope="module")
def engine() -> Engine:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    return smelt.build(small_network(), device="cuda:sm_90", tune="none", max_batch_size=3)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[StubDriver | None], None]:
    """Give the process a driver, or none at all."""

    def install(stub: StubDriver | None) -> None:
        monkeypatch.setattr(_driver, "_drivers", {})
        monkeypatch.setattr(_driver, "_has_driver", lambda: True)
        find = importlib.import_module

        def import_module(name: str, package: str | None = None) -> ModuleType:
            if name != "cuda.bindings.driver":
                return find(name, package)
            if stub is None:
                raise ModuleNotFoundError(name)
            return stub  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

        monkeypatch.setattr(importlib, "import_module", import_module)

    return install


@needs_triton
@pytest.mark.parametrize(
    ("number", "reasons", "is_told"),
    [(0, ["conv: wide", "sliding: too new"], True), (0, ["conv: wide"], False),
     (None, ["sliding: too new"], False)],
)  # fmt: skip
def test_a_compiler_without_the_fastest_kernels_is_told_where_they_could_win(
    number: int | None, reasons: list[str], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda_toolchain, "gluon_unavailable_reason", lambda: "too new")
    hint = CudaToolchain(target_named("sm_90"), number).hint(reasons)
    assert ("too new; run: pip install 'triton<3.8'" in hint) is is_told
    monkeypatch.setattr(_cuda_toolchain, "gluon_unavailable_reason", lambda: None)
    assert not CudaToolchain(target_named("sm_90"), number).hint(reasons)


def _steps(engine: Engine) -> list[Step]:
    return [step for plan in engine.header.plans for step in plan.steps]


def test_an_engine_for_gpus_holds_a_cubin_for_every_launch(engine: Engine) -> None:
    assert (engine.device, engine.header.fingerprint.architecture) == ("cuda", "sm_90")
    file = read_engine(engine.serialize())
    symbols = dict(file.header.symbols)
    for step in _steps(engine):
        assert isinstance(step, Launch)
        kernel = CudaKernel.from_bytes(file.code, symbols[step.kernel.symbol])
        assert kernel.cubin.startswith(b"\x7fELF")


def test_branches_of_a_network_run_at_once(engine: Engine) -> None:
    kinds = {info.name: number for number, info in enumerate(engine.layers)}
    beside = {step.layer for step in _steps(engine) if isinstance(step, Launch) and not step.waits}
    assert beside & {kinds["left"], kinds["right"]}


def test_it_is_saved_loaded_and_inspected_without_a_gpu(engine: Engine, tmp_path: Path) -> None:
    engine.save(tmp_path / "small.engine")
    loaded = smelt.load(tmp_path / "small.engine", device="cuda")
    assert loaded.header == engine.header
    assert loaded.serialize() == engine.serialize()
    text = report_to_text(report_of(read_engine(tmp_path / "small.engine")), ["layers"], width=120)
    assert "sm_90" in text
    assert "conv1" in text


def test_it_is_for_no_other_device(engine: Engine) -> None:
    with pytest.raises(EngineMismatchError, match="built for 'cuda', not for 'cpu'"):
        smelt.load(engine.serialize(), device="cpu")


def test_a_build_tells_how_many_kernels_are_compiled() -> None:
    detail: list[tuple[int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "link":
            detail.append((done, total))

    engine = smelt.build(
        small_network(), "cuda:sm_90", max_batch_size=3, tune="none", progress=progress
    )
    count = len(engine.header.symbols)
    assert detail == [(done, count) for done in range(count + 1)]


def test_a_context_needs_a_gpu(engine: Engine, driver: Callable[[StubDriver | None], None]) -> None:
    driver(None)
    with pytest.raises(MissingExtraError, match=r"run pip install \'smelt-engine\[cuda\]\', or"):
        engine.create_context()
    driver(StubDriver(devices=0))
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        engine.create_context()


def test_what_nobody_vouches_for_is_generated_anew(engine: Engine) -> None:
    file = read_engine(engine.serialize())
    hostile = bytes(len(file.code))
    unsigned = serialize_engine(file.header, file.weights, hostile, b"", None)
    made = read_engine(smelt.load(unsigned).serialize())
    assert made.header == file.header
    assert made.code == file.code


@needs_triton
@pytest.mark.parametrize(("precision", "count"), [("float16", 2), ("bfloat16", 3)])
def test_layers_without_which_answers_would_be_wrong_stay_in_float32(
    precision: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = smelt.build(
        network_of_differences(), device="cuda:sm_90", precision=precision, tune="none"
    )
    assert f"{count} of 6 layers of differences stay in float32: " in caplog.text
    text = report_to_text(report_of(made), ["passes"], width=120)
    assert "differences: stays in float32" in text
    assert "head: stays" not in text
    file = read_engine(made.serialize())
    unsigned = serialize_engine(file.header, file.weights, bytes(len(file.code)), b"", None)
    assert read_engine(smelt.load(unsigned).serialize()).code == file.code


@needs_triton
def test_layers_are_rounded_where_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    asked: dict[str, Any] = {"precision": "float16", "max_rounding_error": 1}
    made = smelt.build(network_of_differences(), device="cuda:sm_90", tune="none", **asked)
    assert "in float32" not in caplog.text
    assert "keep-float32" not in made.header.report


def test_a_rounding_error_that_changes_nothing_is_said_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    smelt.build(small_network(), device="null", max_rounding_error=1e-3)
    assert "max_rounding_error= (`--max-rounding-error`) has no effect" in caplog.text


@needs_triton
def test_who_asks_for_a_rounding_error_hears_why_nothing_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = small_network()
    best: Any = net.add(ops.ArgMax(axis=1), net.outputs[0], name="best")
    number: Any = net.add(ops.Cast(DType.FLOAT32), best, name="number")
    net.mark_output(number)
    detail = "has no effect: the rounding error of small cannot be measured: best makes, or"
    for error, is_told in ((None, False), (0.01, True)):
        asked: dict[str, Any] = {"precision": "float16", "max_rounding_error": error}
        smelt.build(net, device="cuda:sm_90", tune="none", **asked)
        assert (detail in caplog.text) is is_told


@pytest.mark.parametrize("error", [0, -1, 2, float("nan"), "0.1"])
def test_a_rounding_error_that_cannot_be_meant_is_refused(error: Any) -> None:
    with pytest.raises(BuildError, match=r"max_rounding_error is .*above 0.* at most 1"):
        smelt.build(small_network(), max_rounding_error=error)


def test_an_altered_plan_is_not_generated(engine: Engine) -> None:
    file = read_engine(engine.serialize())
    (plan,) = file.header.plans
    last = plan.steps[-1]
    assert isinstance(last, Launch)
    altered = replace(plan, steps=(*plan.steps[:-1], replace(last, chunks=7)))
    header = replace(file.header, plans=(altered,))
    with pytest.raises(EngineFormatError, match="the file was changed"):
        smelt.load(serialize_engine(header, file.weights, file.code, b"", None))


@needs_triton
def test_a_fat_engine_has_code_for_each_architecture() -> None:
    net = smelt.NetworkDefinition("tiny")
    x = net.add_input("x", "float32", (64,))
    net.mark_output(net.add_activation(x, "relu", name="relu"))
    engine = smelt.build(net, device="cuda:sm_90,sm_80", tune="none")
    assert engine.header.fingerprint.architecture == "sm_80,sm_90"
    file = read_engine(engine.serialize())
    for _, offset in file.header.symbols:
        one, other = (CudaKernel.from_bytes(file.code, offset, place) for place in (0, 1))
        assert one.cubin != other.cubin
    assert read_engine(smelt.load(engine.serialize()).serialize()).code == file.code


@needs_triton
def test_a_build_for_gpus_loads_no_llvm() -> None:
    program = (
        "import sys, smelt\n"
        "from tests.support.small_networks import network_of_differences, small_network\n"
        "smelt.build(small_network(), device='cuda:sm_90', tune='none', max_batch_size=3)\n"
        "print(sorted({'llvmlite', 'torch', 'cuda', 'onnx'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@needs_triton
def test_tf32_must_be_asked_for() -> None:
    exact = open_toolchain("cuda:sm_90")
    asked = open_toolchain("cuda:sm_90", "tf32")
    assert set(asked.fingerprint.features) - set(exact.fingerprint.features) == {"tf32"}
    assert toolchain_of(asked.fingerprint).target == asked.target


@needs_triton
@pytest.mark.requirement("G-42", "G-61", "G-64")
def test_half2_keeps_images_in_pairs_between_layers_and_bindings_as_they_are() -> None:
    net = smelt.NetworkDefinition("half2")
    x = net.add_input("data", "float32", (3, 8, 8))
    weights = np.ones((4, 3, 3, 3), np.float32)
    y = net.add_convolution(x, 4, (3, 3), weights, padding=(1, 1), name="conv")
    y = net.add_activation(y, "relu", name="relu")
    net.mark_output(net.add_pooling(y, "max", (2, 2), stride=(2, 2), name="pool"))
    engine = smelt.build(net, "cuda:sm_90", "half2", max_batch_size=5, tune="none")
    assert {b.dtype for b in engine.header.bindings} == {DType.FLOAT32}
    (plan,) = engine.header.plans
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    kinds = [step.kernel.family for step in launches]
    assert kinds == ["half2_packing", "half2", "half2", "half2_packing"]
    views = [view for step in launches for view in step.operands]
    assert DType.FLOAT16 in {view.dtype for view in views if view.shape[-1] == 2}
    alone = smelt.build(net, "cuda:sm_90", "half2", max_batch_size=1, tune="none")
    names = [s.kernel.family for s in alone.header.plans[0].steps if isinstance(s, Launch)]
    assert "half2" not in names


@needs_triton
@pytest.mark.parametrize("size", ["multiprocessors=", "multiprocessors=1e3", "multiprocessors=-1"])
def test_a_fingerprint_that_no_build_writes_is_refused(size: str) -> None:
    fingerprint = open_toolchain("cuda:sm_90").fingerprint
    for features in ((size,), (), fingerprint.features * 2):
        with pytest.raises(EngineFormatError, match="the number of multiprocessors"):
            toolchain_of(replace(fingerprint, features=features))
    many = ",".join(f"sm_{number}" for number in range(80, 99))
    with pytest.raises(UnsupportedError, match="give at most 16"):
        toolchain_of(replace(fingerprint, architecture=many))


@needs_triton
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_narrow_engines_hold_narrow_weights(precision: str) -> None:
    engine = smelt.build(small_network(), device="cuda:sm_90", tune="none", precision=precision)
    large = {w.dtype for w in engine.header.weights if len(w.shape) > 1}
    assert large == {DType(precision)}
    assert {b.dtype for b in engine.bindings} == {DType.FLOAT32}


@needs_triton
@pytest.mark.requirement("G-42", "G-64")
def test_half2_mode_stores_halves_behind_float32_bindings() -> None:
    engines: list[Engine] = []
    for is_half in (False, True):
        builder = create_infer_builder(RecordingLogger())
        builder.device = "cuda:sm_90"
        builder.min_find_iterations = builder.average_find_iterations = 1
        builder.set_half2_mode(is_half)
        network = gie_network()
        engines.append(builder.build_cuda_engine(network).engine)
        builder.destroy()
    kinds = [
        {view.dtype for s in _steps(e) if isinstance(s, Launch) for view in s.operands}
        for e in engines
    ]
    assert DType.FLOAT16 not in kinds[0]
    assert DType.FLOAT16 in kinds[1]
    assert {b.dtype for e in engines for b in e.bindings} == {DType.FLOAT32}


# ---- which device


def test_the_gpu_that_is_there_decides_the_architecture(
    driver: Callable[[StubDriver | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(StubDriver())
    monkeypatch.setattr(_cuda_toolchain, "require_triton", str)
    monkeypatch.setattr(_cuda_toolchain, "generator_version", str)
    for device in ("cuda", "cuda:1"):
        assert open_toolchain(device).fingerprint.architecture == "sm_90"
    assert open_toolchain("cuda").device == "cuda:0"
    cuda_device(1).select()
    assert open_toolchain("cuda").device == "cuda:1"
    with pytest.raises(DeviceError, match="this process sees cuda:0 to cuda:1"):
        open_toolchain("cuda:2")


def test_without_a_gpu_the_next_device_of_a_list_is_taken(
    driver: Callable[[StubDriver | None], None],
) -> None:
    for absent in (None, StubDriver(devices=0), StubDriver(version=11080)):
        driver(absent)
        assert open_toolchain(["cuda", "cpu"]).fingerprint.device == "cpu"
        with pytest.raises(UnsupportedError, match="cuda:1: "):
            open_toolchain(["cuda", "cuda:1"])


def test_without_a_gpu_the_error_says_how_to_build_for_one(
    driver: Callable[[StubDriver | None], None],
) -> None:
    driver(StubDriver(devices=0))
    with pytest.raises(DeviceError, match="device='cuda:sm_90'"):
        smelt.build(small_network(), device="cuda")
    engine = smelt.build(small_network(), device="cuda:sm_90", tune="none", retunable=True)
    with pytest.raises(DeviceError, match="needs the machine with the GPU") as caught:
        smelt.retune(engine)
    assert "cuda:sm_90" not in str(caught.value)


def test_whoever_will_run_what_he_builds_is_refused_before(
    driver: Callable[[StubDriver | None], None],
) -> None:
    driver(StubDriver(devices=0))
    with pytest.raises(
        DeviceError, match=r"'cuda:sm_90' do not run on this machine: .*no NVIDIA GPU"
    ):
        devices_to_run("cuda:sm_90")
    assert devices_to_run(["cuda:sm_90", "cpu:aarch64", "cpu"]) == ["cpu"]
    driver(StubDriver())
    assert devices_to_run(["cuda:sm_80,sm_90", "cuda", "cpu"]) == [
        "cuda:sm_80,sm_90",
        "cpu",
    ]
    with pytest.raises(DeviceError, match=r"built for sm_120, but .* needs code for sm_90"):
        devices_to_run("cuda:sm_120")


def test_an_absent_package_is_named_with_its_extra(
    driver: Callable[[StubDriver | None], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver(None)
    with monkeypatch.context() as patch:
        patch.setattr(_cuda_toolchain, "require_triton", str)
        with pytest.raises(
            MissingExtraError, match=r"^cuda-b.*'smelt-engine\[cuda-build\]', or .*$"
        ):
            open_toolchain("cuda")
    monkeypatch.setitem(sys.modules, "triton", None)
    for device in ("cuda", "cuda:sm_90"):
        with pytest.raises(
            MissingExtraError, match=r"^triton .*; for Hopper GPUs, add 'triton<3\.8' to it$"
        ):
            open_toolchain(device)
    with caplog.at_level("WARNING"):
        assert open_toolchain(["cuda:sm_90", "cpu"]).fingerprint.device == "cpu"
    assert "device cuda:sm_90 is skipped: triton is not installed" in caplog.text


@pytest.mark.parametrize(
    ("system", "machine"), [("linux", "aarch64"), ("win32", "AMD64"), ("darwin", "arm64")]
)
def test_where_the_extra_does_not_bring_the_compiler_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(MissingExtraError, match=f"Linux on x86-64 only.*on {machine}") as caught:
        open_toolchain("cuda:sm_90")
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize("device", ["cuda:sm_60", "cuda:sm_99", "cuda:sm_90,sm_1"])
def test_an_architecture_that_does_not_exist_is_refused(device: str) -> None:
    with pytest.raises(UnsupportedError, match=r"there is no GPU target .*sm_75, .*sm_121"):
        open_toolchain(device)


@needs_triton
@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({"apart": 2.0, "a": 1.9, "b": 1.9, "ab": 1.8}, "ab"),
        ({"apart": 2.0, "a": 1.9, "b": 2.1}, "a"),
        ({"apart": 2.0, "a": 1.9999, "b": 2.0}, "apart"),
        ({"apart": 2.0, "a": 1.9, "b": 1.9, "ab": 2.1}, "apart"),
        ({"apart": 2.0, "a": math.inf, "b": 2.0}, "apart"),
    ],
    ids=["both", "one", "next to nothing", "only one at a time", "none"],
)
def test_whole_plans_decide_which_nodes_are_chained(
    seconds: dict[str, float],
    best: str,
    driver: Callable[[StubDriver | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver(StubDriver(lazy=True))

    class Trial:
        def __init__(self, graph: object, *_: object, **_options: object) -> None:
            self.graphs: list[Any] = [graph]

        def run(self) -> None: ...

        def plan_seconds(self, assignments: Sequence[object]) -> list[float]:
            apart, *others = [seconds[graph.name] for graph in self.graphs]
            detail = [apart, *(one for own in others for one in (math.inf, own))]
            del self.graphs[1:]
            assert len(detail) == len(assignments)
            return detail

    monkeypatch.setattr(_cuda_toolchain, "InNetworkTuner", Trial)
    op = ops.FusedPair(ops.Relu(), 1, ops.Relu())
    fused_pair = Node("fused_pair", op, [])
    found = PairKinds(fused_pair).best(open_toolchain("cuda"))
    assert found.tuning.graph.name == best
    # Those that start early were the faster ones.
    assert found.choice.tactics[fused_pair].uses_pdl is (best != "apart")


@needs_triton
def test_without_a_clock_the_times_of_nodes_decide() -> None:
    kinds = PairKinds()
    assert kinds.best(open_toolchain("cuda:sm_90")).tuning.graph.name == "ab"
    assert kinds.asked[0] < 1


@needs_triton
@pytest.mark.parametrize("device", ["cuda:sm_80", "cuda:sm_100", "cuda:sm_90,sm_100"])
def test_nothing_is_chained_by_estimates_that_are_of_other_gpus(device: str) -> None:
    assert PairKinds().best(open_toolchain(device)).tuning.graph.name == "apart"


@needs_triton
@pytest.mark.parametrize(
    ("forwards", "by_turns", "turns"),
    [(2.0, 1.9, True), (2.0, 1.9999, False), (2.0, 2.1, False), (2.0, math.inf, False)],
    ids=["faster", "next to nothing", "slower", "wrong"],
)
def test_large_launches_take_turns_where_the_whole_plan_is_faster_so(
    forwards: float,
    by_turns: float,
    turns: bool,
    driver: Callable[[StubDriver | None], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver(StubDriver(lazy=True))

    class Trial:
        graphs = ()

        def __init__(self, *_: object, **_options: object) -> None: ...

        def run(self) -> None: ...

        def plan_seconds(self, assignments: Sequence[Mapping[Node, Tactic]]) -> list[float]:
            assert [
                sum(t.reversed_tile_order for t in assignment.values())
                for assignment in assignments
            ] == [0, 1]
            return [forwards, by_turns]

    monkeypatch.setattr(_cuda_toolchain, "InNetworkTuner", Trial)
    graph, tactics = row_of("cc", batch=128)
    tuning: Any = PairKinds().draft().tuning
    tuning.graph = graph
    best = open_toolchain("cuda").tune_in_network(
        TunedGraph(tuning, TacticChoice(tactics=tactics)), 0.0
    )
    assert any(tactic.reversed_tile_order for tactic in best.choice.tactics.values()) is turns


@needs_triton
def test_an_engine_whose_launches_take_turns_is_generated_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def turn(tools: CudaToolchain, draft: TunedGraph) -> TunedGraph:
        graph, tactics = draft.tuning.graph, draft.choice.tactics
        order = CudaBackend(jobs=1).alternate_tile_order
        tactics = order(graph.nodes, tactics, draft.tuning.sizes, tools.target)
        return TunedGraph(draft.tuning, TacticChoice(tactics=tactics, times=draft.choice.times))

    monkeypatch.setattr(CudaToolchain, "_with_estimated_pairs", turn)
    graph, _ = row_of("cc", batch=128)
    engine = smelt.build(graph, device="cuda:sm_90", tune="none")
    tactics = [layer.tactic for layer in engine.layers if layer.kind == "conv"]
    assert [tactic.endswith(" reversed") for tactic in tactics] == [False, True]
    file = read_engine(engine.serialize())
    unsigned = serialize_engine(file.header, file.weights, bytes(len(file.code)), b"", None)
    assert read_engine(smelt.load(unsigned).serialize()).code == file.code


def _expanding(filters: int = 96) -> smelt.NetworkDefinition:
    """Two convolutions that are better in one launch."""
    net = smelt.NetworkDefinition("chained")
    random = np.random.default_rng(0)
    x = net.add_input("x", "float32", (64, 14, 14))
    for name, before, after in (("project", 64, 16), ("expand", 16, filters)):
        weights = random.standard_normal((after, before, 1, 1)).astype(np.float32)
        x = net.add_convolution(x, after, 1, weights, name=name)
    net.mark_output(x)
    return net


@needs_triton
def test_nodes_stay_apart_where_the_compiler_refuses_their_chain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    generate = CudaBackend.generate

    def spoilt(backend: CudaBackend, kernel: KernelSpec, target: CudaTarget) -> str:
        if kernel.family == "fused_pair":
            return "def kernel(p0):\n    nonsense(p0)\n"
        return generate(backend, kernel, target)

    monkeypatch.setattr(CudaBackend, "generate", spoilt)
    net = _expanding(filters=80)  # of a kernel that no cache has
    engine = smelt.build(net, device="cuda:sm_90", precision="float16", tune="none")
    assert {"project", "expand"} <= {layer.name for layer in engine.layers}
    assert "no pairs of layers are fused: kernel fused_pair_" in caplog.text


@needs_triton
def test_an_engine_with_a_chain_names_both_layers_and_is_generated_anew() -> None:
    net = _expanding()
    engine = smelt.build(net, device="cuda:sm_90", precision="float16", tune="none")
    assert "project + expand" in [layer.name for layer in engine.layers]
    detail = report_to_text(report_of(engine), ["passes"], width=120)
    assert "µs in one launch" in detail
    file = read_engine(engine.serialize())
    unsigned = serialize_engine(file.header, file.weights, bytes(len(file.code)), b"", None)
    assert read_engine(smelt.load(unsigned).serialize()).code == file.code
