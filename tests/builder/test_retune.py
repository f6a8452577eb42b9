"""Engines that are built again where they run, from the network that they keep."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.backends.cpu import processor_text
from smelt.builder import _cpu_toolchain, _cuda_toolchain
from smelt.builder._options import PRECISIONS
from smelt.engine import Weight, detect_host, read_engine, serialize_engine
from smelt.errors import BindingError, BuildError, EngineFormatError, EngineMismatchError
from smelt.interp import interpret
from smelt.ir import Constant, _untrusted_recipes
from smelt.ops import recipe_to_json
from smelt.tuner import TimingCache
from smelt.types import DType, override
from tests.support.cuda_engines import use_stub
from tests.support.cuda_stub_candidates import Candidates, ClockedStub, StubBackend, tactic_of
from tests.support.small_networks import answers, pictures, small_network, weights
from tests.support.toolchains import open_toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from smelt import Engine, NetworkDefinition
    from smelt.backends import Tactic
    from smelt.backends.cuda import CudaTarget
    from smelt.devices.cuda import CudaDevice
    from smelt.engine import EngineFile, EngineHeader
    from smelt.ir import Node

_ELSEWHERE = "cpu:x86-64-v2"
_FACTOR = weights(16, 8)
_ROWS = weights(4, 16, seed=1)
_OPEN_SHAPES: dict[str, Any] = {
    "one": (2, 16),
    "each": [(1, 16), (4, 16)],
    "range": ((1, 16), (2, 16), (4, 16)),
}


def _built(network: NetworkDefinition | None = None, **options: Any) -> Engine:
    """An engine for processors of another kind, which keeps its network."""
    chosen: dict[str, Any] = {"device": _ELSEWHERE, "tune": "none", "retunable": True, **options}
    if network is None:
        chosen.setdefault("shapes", {"x": _OPEN_SHAPES["range"]})
    return smelt.build(network or _product(), **chosen)


def _file(engine: Engine) -> EngineFile:
    return read_engine(engine.serialize())


def _without_clock(header: EngineHeader) -> EngineHeader:
    """A header without the time that each pass took."""
    return replace(header, report="")


def _product(factor: Any = _FACTOR) -> NetworkDefinition:
    """A product whose rows are open."""
    net = smelt.NetworkDefinition("rows", batch="explicit")
    x = net.add_input("x", "float32", ("n", 16))
    y: Any = net.add(ops.MatMul(), x, factor, name="product")
    net.mark_output(net.add_activation(y, "relu", name="relu"))
    return net


def _halves() -> NetworkDefinition:
    """Two convolutions whose weights are cast."""
    net = smelt.NetworkDefinition("halves")
    x = net.add_input("data", "float32", (4, 8, 8))
    half = weights(4, 4, 1, 1).astype(np.float16)
    x = net.add_convolution(x, 4, 1, half, name="one")
    net.mark_output(net.add_convolution(x, 4, 1, half, name="two"))
    return net


def _require_right(engine: Engine, factor: Any = _FACTOR) -> None:
    with engine, engine.create_context() as context:
        (made,) = context.run({"x": _ROWS}).values()
    np.testing.assert_allclose(made, np.maximum(_ROWS @ factor, 0), atol=1e-5)


def _require_same(made: Engine, wanted: Engine) -> None:
    one, other = _file(made), _file(wanted)
    assert _without_clock(one.header) == _without_clock(other.header)
    for part in ("weights", "network_arrays", "code", "runtime_code"):
        assert bytes(getattr(one, part)) == bytes(getattr(other, part))


@pytest.mark.parametrize("kind", _OPEN_SHAPES)
def test_it_has_the_shapes_that_were_asked_for(kind: str) -> None:
    asked = _OPEN_SHAPES[kind]
    engine = _built(shapes={"x": type(asked)(map(np.array, asked))})  # of numpy's integers
    assert _file(engine).header.network == _file(_built(shapes={"x": asked})).header.network
    _require_same(smelt.retune(engine, _ELSEWHERE, tune="none", retunable=True), engine)


def test_without_a_clock_it_is_what_a_build_from_the_model_is() -> None:
    options = {"precision": "float16", "max_batch_size": 3, "max_workspace_bytes": 1 << 20}
    options["max_rounding_error"] = 1
    network = _halves()
    engine, wanted = _built(network, **options), _built(network, device="cpu", **options)
    for device, like in ((_ELSEWHERE, engine), (None, wanted)):
        _require_same(smelt.retune(engine, device, tune="none", retunable=True), like)


def test_on_the_machine_where_it_runs_candidates_are_timed(tmp_path: Path) -> None:
    network, timings = _halves(), tmp_path / "timings.json"
    tuned = smelt.retune(_built(network).serialize(), tune=0.2, timing_cache=timings)
    assert TimingCache(timings).entries
    tools = open_toolchain("cpu")
    made_for = replace(tools.fingerprint, tuned_on=tools.timing_key)
    assert tuned.header.fingerprint == made_for
    assert not tuned.header.network
    with tuned, tuned.create_context() as context:
        given = {"data": weights(1, 4, 8, 8)}
        (made,) = context.run(given).values()
    (wanted,) = interpret(network.graph, given).values()
    np.testing.assert_allclose(made, wanted, atol=1e-5)


@pytest.mark.parametrize("processor", ["Make: Model 7", ""])
def test_an_engine_names_the_machine_whose_clock_chose_and_not_its_target(
    processor: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = replace(detect_host(), processor=processor)
    monkeypatch.setattr(_cpu_toolchain, "detect_host", lambda: host)
    tuned = _built(device=_ELSEWHERE, tune=0.2, timing_cache=tmp_path / "timings.json")
    detail = processor or processor_text(host.architecture, host.features)
    assert tuned.header.fingerprint.tuned_on.startswith(f"{detail}, ")
    assert tuned.header.fingerprint.tuned_on.endswith((" thread", " threads"))


def test_weights_are_what_they_were_refitted_to() -> None:
    factor = weights(16, 8, seed=2)
    with _built() as engine:
        (name,) = {
            source.name for source in engine.header.network_arrays if source.shape == factor.shape
        }
        engine.refit({name: factor})
        _require_right(smelt.retune(engine, tune="none"), factor)
        with pytest.raises(BindingError, match=r"float64\[16, 8\] does not fit"):
            engine.refit({name: factor.astype(np.float64)})


def test_an_engine_in_memory_is_retuned_without_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _built() as engine:
        monkeypatch.setattr(engine, "serialize", None)
        _require_right(smelt.retune(engine, tune="none"))


def test_small_weights_that_were_alike_are_refitted_apart() -> None:
    net = smelt.NetworkDefinition("alike", batch="explicit")
    x: Any = net.add_input("x", "float32", (4, 16))
    for name in ("one", "two"):
        y: Any = net.add(ops.Add(), x, np.full(16, 0.5, np.float32), name=name)
        x = net.add_activation(y, "sigmoid", name=f"{name} sigmoid")
    net.mark_output(x)
    with smelt.build(net, tune="none", retunable=True) as engine:
        one, two = (source.name for source in engine.header.network_arrays)
        bias = weights(16)
        engine.refit({two: bias, one: -bias})
        wanted = _ROWS
        for moved in (-bias, bias):
            wanted = 1 / (1 + np.exp(-(wanted + moved)))
        for made in (engine, smelt.retune(engine, tune="none")):
            with made.create_context() as context:
                (given,) = context.run({"x": _ROWS}).values()
            np.testing.assert_allclose(given, wanted, atol=1e-5)


def test_what_weights_are_derived_from_is_kept_as_it_was() -> None:
    engine = _built(_halves())
    halves = [s.dtype for s in engine.header.network_arrays if len(s.shape) == 4]
    assert halves == [DType.FLOAT16] * 2
    _require_same(smelt.retune(engine, _ELSEWHERE, tune="none", retunable=True), engine)


def test_an_engine_that_keeps_no_network_says_how_to_build_one() -> None:
    engine = _built(retunable=False)
    assert not _file(engine).network_arrays.size
    with pytest.raises(BuildError, match=r"does not contain its network.*retunable=True"):
        smelt.retune(engine)


def test_a_refused_engine_that_keeps_its_network_says_so() -> None:
    file = _file(_built())
    header = replace(
        file.header, fingerprint=replace(file.header.fingerprint, architecture="riscv64")
    )
    data = serialize_engine(
        header, file.weights, file.code, file.runtime_code, None, file.network_arrays
    )
    with pytest.raises(EngineMismatchError, match="smelt retune"):
        smelt.Engine.load(data, trust="always")
    assert smelt.retune(data, tune="none").device == "cpu"


def test_a_strangers_engine_is_retuned_and_none_of_its_code_runs() -> None:
    file = _file(_built())
    hostile = bytes(len(file.code))
    data = serialize_engine(file.header, file.weights, hostile, hostile, None, file.network_arrays)
    _require_right(smelt.retune(data, tune="none"))
    _require_right(smelt.retune(smelt.load(data), tune="none"))


_DAMAGE: dict[str, Callable[[Any], object]] = {
    "no JSON": lambda _: "[",
    "no object": lambda _: "3",
    "an unknown option": lambda d: d["options"].update(root=1),
    "a wrong option": lambda d: d["options"].update(max_batch_size="1"),
    "a huge option": lambda d: d["options"].update(max_batch_size=1 << 80),
    "no precision": lambda d: d["options"].update(precision="float8"),
    "wrong shapes": lambda d: d["options"].update(shapes={"x": ["range", [[1.5]]]}),
    "shapes of a new kind": lambda d: d["options"].update(shapes={"x": ["any", []]}),
    "no source": lambda d: d["constants"].__setitem__(0, ["recipe", [["source", "-1"]]]),
    "no such source": lambda d: d["constants"].__setitem__(0, ["recipe", [["source", "99"]]]),
    "no constant": lambda d: d["graph"]["nodes"][0]["inputs"].__setitem__(1, ["constant", 99, 1]),
    "no such op": lambda d: d["graph"]["nodes"][0]["op"].__setitem__(1, "format_disk"),
    "a circle": lambda d: d["graph"]["nodes"][0]["inputs"].__setitem__(0, ["node", 0, 0]),
}


@pytest.mark.parametrize("kind", _DAMAGE)
def test_a_damaged_network_is_refused(kind: str) -> None:
    file = _file(_built())
    document = json.loads(file.header.network)
    text = _DAMAGE[kind](document)
    header = replace(file.header, network=str(text or json.dumps(document)))
    data = serialize_engine(
        header, file.weights, file.code, file.runtime_code, None, file.network_arrays
    )
    with pytest.raises(EngineFormatError, match=r"its embedded network is not valid"):
        smelt.retune(data)


def test_network_arrays_outside_of_the_file_are_refused() -> None:
    file = _file(_built())
    for network_arrays in (file.network_arrays[:64], b""):
        data = serialize_engine(
            file.header, file.weights, file.code, file.runtime_code, None, network_arrays
        )
        for read in (smelt.retune, smelt.load):
            with pytest.raises(EngineFormatError, match="lies outside its section"):
                read(data)


_FLOATS = Weight("w", DType.FLOAT32, (16, 8), 0)


@pytest.mark.parametrize(
    ("network_arrays", "detail"),
    [
        ((replace(_FLOATS, shape=(0, 1 << 62, 1 << 62)),), "is not valid.*too big"),
        ((replace(_FLOATS, shape=(1,) * 99),), "MAX_RANK"),
        ((_FLOATS, replace(_FLOATS, offset=8, shape=(126,))), "is not valid.*overlap"),
    ],
)
def test_arrays_that_cannot_be_a_networks_are_refused(
    network_arrays: tuple[Weight, ...], detail: str
) -> None:
    file = _file(_built())
    header = replace(file.header, network_arrays=network_arrays)
    data = serialize_engine(
        header, file.weights, file.code, file.runtime_code, None, file.network_arrays
    )
    with pytest.raises(EngineFormatError, match=detail):
        smelt.retune(data)


def test_a_network_that_makes_much_of_little_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_untrusted_recipes, "_FREE_BYTES", 1 << 20)
    file = _file(_built())
    document = json.loads(file.header.network)
    one, count = Constant("one", np.ones(1, np.float32)), Constant("n", np.array([1 << 17]))
    half = recipe_to_json(Constant.derive("half", ops.Expand(), one, count), lambda _: None)

    def altered(halves: int) -> bytes:
        constants = [*document["constants"], *[half] * halves]
        network = json.dumps({**document, "constants": constants})
        header = replace(file.header, network=network)
        return serialize_engine(
            header, file.weights, file.code, file.runtime_code, None, file.network_arrays
        )

    _require_right(smelt.retune(altered(2), tune="none"))
    with pytest.raises(EngineFormatError, match="more are allowed"):
        smelt.retune(altered(3))


# ---- on a GPU


class _SlowOrFast(Candidates):
    """An addition that is estimated to be slow where it is fast."""

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        del node, target
        yield tactic_of("slow", DType.FLOAT32, hint=1e-6)
        yield tactic_of("fast", DType.FLOAT32, hint=2e-6)


@dataclass(frozen=True, slots=True)
class _Always:
    """A class of which there is one object."""

    made: StubBackend

    def __call__(self, _cache: object, **_options: object) -> StubBackend:
        return self.made


def test_the_gpus_clock_decides_what_an_estimate_did_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    stub = ClockedStub()
    use_stub(stub, monkeypatch)
    backend = StubBackend(stub, DType.FLOAT32)
    backend.families = (_SlowOrFast(),)
    monkeypatch.setattr(_cuda_toolchain, "require_triton", str)
    monkeypatch.setattr(_cuda_toolchain, "generator_version", str)
    monkeypatch.setattr(_cuda_toolchain, "CudaBackend", _Always(backend))
    net = smelt.NetworkDefinition("sum", batch="explicit")
    x = net.add_input("x", "float32", (3, 4))
    y: Any = net.add(ops.Add(), x, np.arange(4, dtype=np.float32), name="add")
    net.mark_output(y)
    with caplog.at_level("WARNING"):
        engine = smelt.build(net, "cuda:sm_90", retunable=True)
    assert "no tactic is timed: cuda:sm_90 is not a device of this machine" in caplog.text
    assert [layer.tactic for layer in engine.layers] == ["candidates(kind=slow)"]
    given = np.ones((3, 4), np.float32)
    with (
        smelt.retune(engine, timing_cache=tmp_path / "timings.json") as tuned,
        tuned.create_context() as context,
    ):
        assert [layer.tactic for layer in tuned.layers] == ["candidates(kind=fast)"]
        assert engine.header.fingerprint.tuned_on == ""
        assert tuned.header.fingerprint.tuned_on == "Stub 0, driver for CUDA 13.0"
        (made,) = context.run({"x": given}).values()
    np.testing.assert_array_equal(made, given + np.arange(4))


def test_an_engine_built_without_a_gpu_is_tuned_on_one(gpu: CudaDevice, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="not installed: smelt-engine[cuda-build]")
    target, network = gpu.properties.architecture, small_network()
    options: dict[str, Any] = {"precision": "float16", "max_batch_size": 3, "tune": "none"}
    smelt.build(network, f"cuda:{target}", retunable=True, **options).save(tmp_path / "m.engine")
    with smelt.retune(
        tmp_path / "m.engine", f"cuda:{gpu.index}", timing_cache=tmp_path / "timings.json"
    ) as tuned:
        assert TimingCache(tmp_path / "timings.json").entries
        size = f"multiprocessors={gpu.properties.multiprocessors}"
        print_ = tuned.header.fingerprint
        assert (print_.architecture, print_.features) == (target, (size,))
        with tuned.create_context() as context:
            (made,) = context.run({"data": pictures(3)}).values()
    np.testing.assert_allclose(made, answers(network, pictures(3)), atol=3e-3)


# ---- what a build does not do


@pytest.mark.parametrize(
    ("device", "precision", "tune", "words"),
    [
        ("cpu:x86-64-v2", "bfloat16", "none", ["precision='bfloat16' has no effect"]),
        ("cpu", "tf32", "none", ["precision='tf32' has no effect"]),
        ("cpu:x86-64-v3", "half2", "none", ["precision='half2' means float16 here"]),
        ("cpu:x86-64-v2", "half2", "none", ["precision='half2' has no effect"]),
        ("cpu:aarch64", "float16", "fast", ["no tactic is timed: aarch64"]),
        ("cpu", "float32", 0.01, []),
    ],
)
def test_a_build_says_what_it_was_asked_and_cannot_do(
    device: str, precision: str, tune: Any, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    net = smelt.NetworkDefinition("tiny")
    x = net.add_input("x", "float32", (4,))
    net.mark_output(net.add_activation(x, "relu", name="relu"))
    with caplog.at_level("WARNING"):
        smelt.build(net, device, precision, tune=tune)
    detail = [record.getMessage() for record in caplog.records]
    assert len(detail) == len(words)
    assert all(part in text for part, text in zip(words, detail, strict=True))


def test_what_is_not_timed_says_how_it_would_be(caplog: pytest.LogCaptureFixture) -> None:
    engine = _built(device="cpu:aarch64", tune="fast")
    assert "smelt.retune (`smelt retune`) times the tactics" in caplog.text
    caplog.clear()
    smelt.retune(engine, "cpu:aarch64")
    assert "On the machine with that device, retune without `--device`" in caplog.text


def test_gpus_that_lack_a_precision_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda_toolchain, "require_triton", str)
    monkeypatch.setattr(_cuda_toolchain, "generator_version", str)
    for device, lacking in (
        ("cuda:sm_75", {"bfloat16", "tf32"}),
        ("cuda:sm_75,sm_90", {"bfloat16", "tf32"}),
        ("cuda:sm_80", set[str]()),
    ):
        found = {p: open_toolchain(device, p).targets_without_precision(p) for p in PRECISIONS}
        assert {p for p in found if found[p]} == lacking
        assert set(found.values()) <= {(), ("cuda:sm_75",)}  # never one that can
