"""Placement: each layer runs on the first device of a list that has a kernel for it."""

from __future__ import annotations

import gc
import json
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import smelt
from smelt import ops
from smelt.builder import _build, _placement
from smelt.builder._placement import NodeSupport, PlacedPartition, Placement, place
from smelt.devices import DEVICE_KINDS
from smelt.engine import (
    HostCall,
    Launch,
    Submit,
    _file,
    header_to_data,
    read_engine,
    serialize_engine,
)
from smelt.errors import (
    BindingError,
    BuildError,
    DeviceError,
    EngineFormatError,
    IndexRangeError,
    MissingExtraError,
    ShapeError,
    SmeltError,
)
from smelt.inspect import report_of, report_to_html, report_to_json, report_to_text
from smelt.interp import interpret
from smelt.ir import Constant, Graph
from smelt.runtime import Engine, _engine
from smelt.runtime._plan_executor import PlanExecutor
from smelt.types import DType, Limit, SymbolicDim, TensorType, count_json_parts
from tests.property.graphs import graphs, random_inputs
from tests.support import serial_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from smelt.engine import EngineHeader
    from smelt.ir import Node, Value

_SERIAL = serial_device.SERIAL.name


@pytest.fixture(autouse=True)
def _serial() -> Iterator[None]:
    """The kind of a second device that runs the kernels of the CPU."""
    with mock.patch.dict(DEVICE_KINDS, {_SERIAL: serial_device.SERIAL}):
        yield


@dataclass
class _Split:
    """Places chosen nodes, and keeps what each node read and which nodes form a partition."""

    chosen: Callable[[Node], bool]
    read: dict[Node, set[Value]] = field(default_factory=dict["Node", "set[Value]"])
    outputs: list[Value] = field(default_factory=list["Value"])
    parts: list[set[Node]] = field(default_factory=list["set[Node]"])

    def place(self, graph: Graph, devices: Sequence[Any], sizes: dict[str, int]) -> Placement:
        del devices, sizes
        placement = Placement()
        self.outputs += graph.outputs
        for node in graph.nodes:
            self.read[node] = {v for v in node.inputs if v is not None and v.constant is None}
            types = [v.type for v in (*node.inputs, *node.outputs) if v is not None]
            movable = all(isinstance(t, TensorType) for t in types)
            movable &= all(v is None or v.constant or v.dims is None for v in node.inputs)
            if movable and self.chosen(node):
                placement.devices[node] = 1
                placement.reasons[node.name] = ["chosen"]
        return placement

    def extract(self, *arguments: Any) -> list[PlacedPartition]:
        placed = _placement.extract_partitions(*arguments)
        self.parts += [set(part.nodes) for part in placed]
        return placed

    def transfers(self) -> list[tuple[int, int]]:
        """How many tensors enter and leave each partition."""
        counts: list[tuple[int, int]] = []
        for own in self.parts:
            made = {value for node in own for value in node.outputs}
            entering = {value for node in own for value in self.read[node]} - made
            others = [values for node, values in self.read.items() if node not in own]
            leaving = made & set(self.outputs).union(*others)
            counts.append((len(entering), len(leaving)))
        return counts

    def build(self, graph: Graph, devices: Sequence[str]) -> smelt.Engine:
        with mock.patch.multiple(_build, place=self.place, extract_partitions=self.extract):
            return smelt.build(graph, devices, tune="none")


def _placed(chosen: Callable[[Node], bool]) -> Any:
    """Place the chosen nodes on the second device."""
    return mock.patch.object(_build, "place", _Split(chosen).place)


@settings(max_examples=40, suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large))
@given(graphs(max_steps=8), st.integers(0, 1 << 16))
@pytest.mark.slow
def test_a_graph_that_is_split_at_random_computes_what_the_references_do(
    graph: Graph, seed: int
) -> None:
    assume(not any(value in graph.inputs for value in graph.outputs))
    source = random.Random(seed)  # noqa: S311  (nothing secret)
    arrays = random_inputs(graph)
    split = _Split(lambda _: source.random() < 0.4)
    engine = split.build(graph, ["cpu", _SERIAL])
    submits = [s for plan in engine.header.plans for s in plan.steps if isinstance(s, Submit)]
    assert [step.partition for step in submits] == list(range(len(engine.partitions)))
    # Each tensor that crosses the border of a partition is copied once, and no other one is.
    assert [(len(s.inputs), len(s.outputs)) for s in submits] == split.transfers()
    with engine, engine.create_context() as context:
        for _ in range(2):
            found = context.run(arrays)
            for name, wanted in interpret(graph, arrays).items():
                assert (found[name].shape, found[name].dtype) == (wanted.shape, wanted.dtype)
                finite = np.isfinite(wanted)
                np.testing.assert_array_equal(np.isnan(found[name]), np.isnan(wanted))
                scale = max(float(np.abs(wanted[finite]).max(initial=0)), 1e-3)
                np.testing.assert_allclose(found[name][finite], wanted[finite], 0, 2e-4 * scale)


def _ranked(batch: str | int = "n") -> Graph:
    """A network whose CumSum and TopK have kernels for CPUs only."""
    graph = Graph("ranked")
    extent = SymbolicDim.symbol(batch) if isinstance(batch, str) else batch
    x = graph.add_input("x", TensorType(DType.FLOAT32, (extent, 8, 16)))
    weight = graph.add_constant(np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8), "w")
    axis = graph.add_constant(np.array(1), "axis")
    count = graph.add_constant(np.array([3]), "count")
    relu = graph.add(ops.Relu(), x, name="relu").output
    total = graph.add(ops.CumSum(), relu, axis, name="total").output
    other = graph.add_constant(np.linspace(1, 2, 16, dtype=np.float32), "v")
    scaled = graph.add(ops.Mul(), total, other, name="scaled").output
    product = graph.add(ops.MatMul(), scaled, weight, name="product").output
    best = graph.add(ops.TopK(), product, count, name="best", output_names=["values", "places"])
    result = graph.add(ops.Neg(), best.outputs[0], name="result").output
    graph.outputs = [result, best.outputs[1]]
    return graph


def _shapes() -> dict[str, Any]:
    return {"x": ((1, 8, 16), (3, 8, 16), (5, 8, 16))}


def _images(count: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(count).standard_normal((count, 8, 16), np.float32)}


def _split_build(**options: Any) -> smelt.Engine:
    """The network with CumSum, the product and TopK on the second device."""
    moved = {"cum_sum", "mat_mul", "dense", "gemm", "top_k"}
    with _placed(lambda node: node.op.name in moved):
        return smelt.build(_ranked(), ["cpu", _SERIAL], tune="none", shapes=_shapes(), **options)


def _check(engine: smelt.Engine, graph: Graph | None = None) -> None:
    """Run for several batches in turn, and compare with the references."""
    with engine.create_context() as context:
        for count in (1, 5, 3, 5):
            wanted = interpret(graph or _ranked(), _images(count))
            found = context.run(_images(count))
            assert found.keys() == wanted.keys()
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, 1e-5, 1e-5)


def _steps(engine: smelt.Engine, kind: type[Any]) -> list[Any]:
    return [step for plan in engine.header.plans for step in plan.steps if isinstance(step, kind)]


def test_every_layer_runs_on_the_first_device_that_has_a_kernel() -> None:
    engine = smelt.build(_ranked(), ["cuda:sm_90", "cpu"], tune="none", shapes=_shapes())
    assert not _steps(engine, HostCall)
    assert _steps(engine, Launch)
    assert len(_steps(engine, Submit)) == len(engine.partitions) > 0
    for part in engine.partitions:
        assert part.device == "cpu"
        assert not _steps(part, HostCall)
    alone = smelt.build(_ranked(), "cuda:sm_90", tune="none", shapes=_shapes())
    assert _steps(alone, HostCall)
    assert not alone.partitions


def test_a_list_of_one_kind_is_the_first_that_can_be_built_for() -> None:
    engine = smelt.build(_ranked(2), ["cpu:x86-64-v2", "cpu"], tune="none")
    assert "avx2" not in engine.header.fingerprint.features
    assert not engine.partitions


def test_a_device_that_this_machine_lacks_drops_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with mock.patch.object(
        serial_device.SerialToolchain, "open", side_effect=DeviceError("absent")
    ):
        engine = smelt.build(_ranked(2), ["cpu", _SERIAL], tune="none")
    assert not engine.partitions
    assert "device serial is skipped: absent" in caplog.text


def test_a_node_between_partitions_joins_them_if_that_saves_time() -> None:
    def on_second(graph: Graph, names: set[str], seconds: float) -> list[str]:
        def first(node: Node) -> NodeSupport:
            return NodeSupport(node.op.name not in names, 0, [])

        def second(node: Node) -> NodeSupport:
            del node
            return NodeSupport(has_kernel=True, seconds=seconds, reasons=[])

        found = place(graph, [first, second], {"n": 3})
        return sorted(node.name for node in found.devices)

    graph = _ranked()
    assert on_second(graph, {"cum_sum", "top_k"}, 1e-6) == ["best", "product", "scaled", "total"]
    assert on_second(graph, {"cum_sum", "top_k"}, 1.0) == ["best", "total"]
    assert on_second(graph, {"top_k"}, 1e-6) == ["best"]


def test_engines_with_partitions_are_saved_loaded_and_regenerated(tmp_path: Path) -> None:
    path = tmp_path / "split.engine"
    with _split_build() as built:
        assert len(built.partitions) == 2
        _check(built)
        built.save(path)
        data = built.serialize(sign=False)
    with smelt.load(path) as signed:
        _check(signed)
        assert [part.device for part in signed.partitions] == [_SERIAL] * 2
    with smelt.load(data) as regenerated:
        _check(regenerated)
    with Engine.load(data, trust="always") as trusted:
        _check(trusted)


def test_a_refit_reaches_the_partitions_and_all_contexts() -> None:
    with _split_build() as engine, engine.create_context() as old:
        before = old.run(_images(2))
        new = {
            "w": np.linspace(1, -2, 16 * 8, dtype=np.float32).reshape(16, 8),
            "v": np.linspace(-1, 1, 16, dtype=np.float32),
        }
        engine.refit(new)
        changed = _ranked()
        for node in changed.nodes:
            for value in node.inputs:
                if value is not None and value.name in new:
                    value.constant = Constant(value.name, new[value.name])
        _check(engine, changed)
        with engine.create_context() as late:
            for context in (old, late):
                for name, wanted in interpret(changed, _images(2)).items():
                    np.testing.assert_allclose(context.run(_images(2))[name], wanted, 1e-5, 1e-5)
        assert not np.array_equal(before["result"], old.run(_images(2))["result"])
        with Engine.load(engine.serialize()) as again:
            _check(again, changed)
        with pytest.raises(BindingError, match="no refittable weight u; it has: v, w"):
            engine.refit({"u": new["v"]})


def test_a_refit_keeps_what_only_the_first_device_decides_by() -> None:
    """The partition's engine once was made before the plan that decides by the constant."""
    graph = Graph("shared")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (3, 4)))
    axis = graph.add_constant(Constant("axis", np.array([1])), "axis")
    total = graph.add(ops.CumSum(), x, graph.add_constant(np.array(1), "one"), name="total").output
    triangle = graph.add(ops.Trilu(), total, axis, name="triangle").output
    number = graph.add_input("number", TensorType(DType.INT64, (1,)))
    moved = graph.add(ops.Add(), number, axis, name="added").output
    graph.outputs = [triangle, moved]
    with _placed(lambda node: node.name == "added"):
        engine = smelt.build(graph, ["cpu", _SERIAL], tune="none")
    with engine, pytest.raises(BindingError, match="no refittable weight axis"):
        engine.refit({"axis": np.array([-1])})


def test_more_partitions_than_an_engine_may_have_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Limit.MAX_PARTITIONS, "most", 1)
    with pytest.raises(BuildError, match="the limit MAX_PARTITIONS is 1"):
        _split_build()


def test_headers_of_partitions_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a thousand partitions could have a header that takes seconds to parse."""
    file = _split_build().file
    (part, *_) = file.partitions
    count = 100
    data = serialize_engine(file.header, file.weights, b"", b"", None, b"", (part,) * count)
    assert len(read_engine(data).partitions) == count
    # That is more than the header of the engine alone has, and less than all partitions have.
    own = count_json_parts(json.dumps(header_to_data(file.header)).encode())
    monkeypatch.setattr(Limit.MAX_JSON_PARTS, "most", 2 * own)
    with pytest.raises(EngineFormatError, match="the headers of the partitions of the engine have"):
        read_engine(data)
    with pytest.raises(SmeltError, match="the headers of the partitions of the engine have"):
        serialize_engine(file.header, file.weights, b"", b"", None, b"", (part,) * count)


@pytest.mark.parametrize("size", [1, 10, 63])
def test_a_partition_that_is_smaller_than_a_prefix_is_refused(size: int) -> None:
    file = _split_build().file
    part = bytearray(
        serialize_engine(file.partitions[0].header, file.partitions[0].weights, b"", b"", None)
    )
    part[24:32] = size.to_bytes(8, "little")  # the declared size
    with (
        mock.patch.object(_file, "serialize_engine", return_value=bytes(part)),
        mock.patch.object(_file, "_check_partition_headers"),
    ):
        parts = _file.engine_parts(file.header, b"", b"", b"", None, b"", file.partitions[:1])
        data = b"".join(parts)
    with pytest.raises(EngineFormatError, match="partition 0 is not an engine"):
        read_engine(data)


def test_no_code_of_partitions_is_loaded_for_a_plan_that_is_refused() -> None:
    file = _split_build().file
    step = next(s for s in file.header.plans[0].steps if isinstance(s, Launch))
    plan = replace(file.header.plans[0], steps=(replace(step, layer=1 << 20),))
    header = replace(file.header, plans=(plan,))
    with (
        mock.patch.object(_engine, "load_code", side_effect=AssertionError),
        pytest.raises(EngineFormatError) as caught,
    ):
        Engine.create(header, file.weights, file.code, file.runtime_code, b"", file.partitions)
    assert "damaged" not in str(caught.value)  # it is no file


def test_a_node_that_reads_an_output_of_the_network_may_join_partitions() -> None:
    graph = Graph("read")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4,)))
    first = graph.add(ops.Relu(), x, name="first").output
    middle = graph.add(ops.Neg(), first, name="middle").output
    graph.outputs += [first, graph.add(ops.Abs(), middle, name="last").output]
    devices = {node: 1 for node in graph.nodes if node.name != "middle"}
    (node,) = (n for n in graph.nodes if n.name == "middle")
    module: Any = _placement
    assert module._surrounding_device(graph, [node], devices) == 1


def test_a_partition_is_retuned_with_the_rest() -> None:
    graph = _ranked(2)
    options: dict[str, Any] = {"tune": "none", "retunable": True}
    engine = smelt.build(graph, ["cuda:sm_90", "cpu"], **options)
    again = smelt.retune(engine, ["cuda:sm_80", "cpu"], tune="none")
    assert [part.device for part in again.partitions] == ["cpu"]
    assert again.header.fingerprint.architecture == "sm_80"


def test_a_profiler_gets_the_time_of_each_partition() -> None:
    times: dict[str, float] = {}

    class Profiler:
        def report_layer_time(self, name: str, milliseconds: float, /) -> None:
            times[name] = milliseconds

    with _split_build() as engine, engine.create_context() as context:
        context.profiler = Profiler()
        context.run(_images(5))
        parts = [layer.name for layer in engine.layers if layer.kind == "partition"]
    assert len(parts) == 2
    assert all(times[name] > 0 for name in parts)


def test_an_error_within_a_partition_is_that_of_the_run() -> None:
    graph = Graph("picked")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4, 3)))
    i = graph.add_input("i", TensorType(DType.INT64, (2,)))
    relu = graph.add(ops.Relu(), x, name="relu").output
    graph.outputs = [graph.add(ops.Gather(), relu, i, name="picked").output]
    with _placed(lambda node: node.op.name == "gather"):
        engine = smelt.build(graph, ["cpu", _SERIAL], tune="none")
    arrays = {"x": np.ones((4, 3), np.float32), "i": np.array([0, 9])}
    with engine, engine.create_context() as context:
        with pytest.raises(IndexRangeError, match="9"):
            context.run(arrays)
        arrays["i"] = np.array([0, 3])
        np.testing.assert_array_equal(context.run(arrays)["picked"], np.ones((2, 3)))


def test_contexts_and_runs_outlive_the_engine() -> None:
    """The code of a partition was unmapped when its engine was closed."""
    engine = _split_build()
    wanted = interpret(_ranked(), _images(3))
    for array in engine.run(_images(3), ["result"]).values():
        np.testing.assert_allclose(array, wanted["result"], 1e-5, 1e-5)
    context = engine.create_context()
    engine.close()
    gc.collect()
    for _ in range(2):
        found = context.run(_images(3))["result"]
        np.testing.assert_allclose(found, wanted["result"], 1e-5, 1e-5)
    context.close()


def test_a_refit_during_a_run_does_not_reach_its_partitions() -> None:
    graph = Graph("mirrored")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 4)))
    eye = np.eye(4, dtype=np.float32)
    first = graph.add(ops.MatMul(), x, graph.add_constant(eye, "v"), name="first").output
    last = graph.add(ops.MatMul(), first, graph.add_constant(eye, "w"), name="last").output
    graph.outputs = [last]
    with _placed(lambda node: node.name == "last"):
        engine = smelt.build(graph, ["cpu", _SERIAL], tune="none")
    ones = np.ones((2, 4), np.float32)
    with engine, engine.create_context() as context:
        submit, pending = PlanExecutor.submit, [{"v": -eye, "w": -eye}]

        def refit_first(executor: PlanExecutor, values: dict[str, int], arrays: list[Any]) -> None:
            if pending:
                engine.refit(pending.pop())
            submit(executor, values, arrays)

        with mock.patch.object(PlanExecutor, "submit", refit_first):
            for _ in range(3):
                np.testing.assert_array_equal(context.run({"x": ones})["last"], ones)
        assert not pending


def test_a_partition_of_a_size_that_a_run_determines_is_built() -> None:
    graph = Graph("found")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4, 8)))
    graph.symbol_bounds["found"] = 32
    found = graph.add(ops.NonZero("found"), x, name="found").output
    floats = graph.add(ops.Cast(DType.FLOAT32), found, name="floats").output
    count = graph.add_constant(np.array([3]), "count")
    graph.outputs = [graph.add(ops.TopK(), floats, count, name="best").outputs[0]]
    with _placed(lambda node: node.op.name == "top_k"):
        engine = smelt.build(graph, ["cpu", _SERIAL], tune="none")
    with engine:
        (best,) = engine.run({"x": np.ones((4, 8), np.float32)}).values()
        np.testing.assert_array_equal(best, [[3, 3, 3], [7, 7, 7]])
        few = np.zeros((4, 8), np.float32)
        few[0, :2] = 1
        with pytest.raises(ShapeError):
            engine.run({"x": few})


def test_what_computes_nothing_is_no_second_device(caplog: pytest.LogCaptureFixture) -> None:
    engine = smelt.build(_ranked(2), ["cuda:sm_90", "null"], tune="none")
    assert not engine.partitions
    assert "device null is skipped: it computes nothing" in caplog.text


def test_an_engine_whose_partition_needs_an_absent_device_is_built() -> None:
    with _placed(lambda node: node.op.name == "relu"):
        engine = smelt.build(_ranked(2), ["cpu", "cuda:sm_90"], tune="none")
    assert [part.device for part in engine.partitions] == ["cuda"]
    with pytest.raises((DeviceError, MissingExtraError)):
        engine.create_context()


def test_inspection_shows_the_device_of_every_layer_and_why() -> None:
    engine = smelt.build(_ranked(2), ["cuda:sm_90", "cpu"], tune="none")
    report = report_of(engine)
    (part,) = report.partitions
    assert part.device == "cpu"
    text = report_to_text(report, ["layers", "tactics"])
    assert "partition(device=cpu)" in text
    assert "cum_sum 'total': cuda has no kernel family for the op" in text
    assert "ranked partition 0: an engine for cpu" in text
    assert report_to_json(report)["partitions"][0]["device"] == "cpu"
    assert "ranked partition 0" in report_to_html(report)
    assert report.reference_steps == part.reference_steps == 0


# ---- hostile files


def _rebuilt(engine: smelt.Engine, change: Callable[[EngineHeader], EngineHeader]) -> bytes:
    """The engine with another header of its first partition."""
    file = engine.file
    first, *rest = file.partitions
    parts = [replace(first, header=change(first.header)), *rest]
    return serialize_engine(
        file.header, file.weights, file.code, file.runtime_code, None, file.network_arrays, parts
    )


def _of_plan(**changes: Any) -> Callable[[EngineHeader], EngineHeader]:
    def change(header: EngineHeader) -> EngineHeader:
        (plan,) = header.plans
        return replace(header, plans=(replace(plan, **changes),))

    return change


def _with_binding(**changes: Any) -> Callable[[EngineHeader], EngineHeader]:
    return lambda header: replace(
        header, bindings=(replace(header.bindings[0], **changes), *header.bindings[1:])
    )


_HEADER_CHANGES: list[tuple[Callable[[EngineHeader], EngineHeader], str]] = [
    (_with_binding(dtype=DType.INT32), "does not fit the binding"),
    (_with_binding(shape=(SymbolicDim.symbol("n"), 8, 17)), "does not fit the binding"),
    (_with_binding(is_input=False), "do not match the partition|not an input|the ranks of"),
    (_of_plan(symbols=(("n", 1, 4),)), "the symbol 'n' .*, does not cover its range"),
    (_of_plan(symbols=(("n", 1, 5), ("m", 1, 2))), "the symbol 'm' .*, does not cover its range"),
    (lambda h: replace(h, plans=h.plans * 2), "must have one plan"),
]


@pytest.mark.parametrize(("change", "reason"), _HEADER_CHANGES)
@pytest.mark.parametrize("trust", ["signed", "always"])
def test_a_partition_that_does_not_fit_its_step_is_refused(
    change: Callable[[EngineHeader], EngineHeader], reason: str, trust: Any
) -> None:
    data = _rebuilt(_split_build(), change)
    with pytest.raises(EngineFormatError, match=f"{reason}|that its program generates"):
        smelt.load(data, trust=trust)


def _with_steps(engine: smelt.Engine, change: Callable[[Submit], Submit], parts: int = 2) -> bytes:
    """The engine with other steps that submit its partitions."""
    file = engine.file
    (plan,) = file.header.plans
    steps = tuple(change(s) if isinstance(s, Submit) else s for s in plan.steps)
    header = replace(file.header, plans=(replace(plan, steps=steps),))
    parted = file.partitions[:parts]
    return serialize_engine(
        header, file.weights, file.code, file.runtime_code, None, file.network_arrays, parted
    )


_STEP_CHANGES: list[tuple[Callable[[Submit], Submit], str]] = [
    (lambda s: replace(s, partition=2), "partition 2, which does not exist"),
    (lambda s: replace(s, partition=-1), "partition -1, which does not exist"),
    (lambda s: replace(s, partition=1 - s.partition), "do not match|does not fit"),
    (lambda s: replace(s, inputs=s.inputs * 2), "do not match the partition's bindings in number"),
    (lambda s: replace(s, outputs=s.outputs[:-1]), "do not match|in use"),
    (lambda s: replace(s, outputs=s.inputs), "fit|writes to the input|shares|in use"),
    (
        lambda s: replace(s, inputs=(replace(s.inputs[0], strides=(1, 1, 1)),)),
        "does not fit the binding",
    ),
    (
        lambda s: replace(s, inputs=(replace(s.inputs[0], halo=((0, 0), (0, 1), (0, 0))),)),
        "does not fit the binding|bytes",
    ),
]


@pytest.mark.parametrize(("change", "reason"), _STEP_CHANGES)
def test_a_step_that_does_not_fit_its_partition_is_refused(
    change: Callable[[Submit], Submit], reason: str
) -> None:
    with pytest.raises(EngineFormatError, match=reason):
        Engine.load(_with_steps(_split_build(), change), trust="always")


def test_a_partition_is_in_the_file_and_has_none_itself() -> None:
    engine = _split_build()
    with pytest.raises(EngineFormatError, match="partition 1, which does not exist"):
        Engine.load(_with_steps(engine, lambda s: s, parts=1), trust="always")
    file = engine.file
    own = file.header, file.weights, file.code, file.runtime_code
    nested = serialize_engine(*own, None, file.network_arrays, file.partitions)
    start, end = _section(nested, "partitions")
    cut = nested[: start + 100] + bytes(end - start - 100) + nested[end:]
    with pytest.raises(EngineFormatError, match="checksum"):
        read_engine(cut)


def _section(data: bytes, name: str) -> tuple[int, int]:
    text = data[64:].split(b'"sections":', 1)[1]
    row = next(
        r for r in json.JSONDecoder().raw_decode(text.decode("latin-1"))[0] if r["name"] == name
    )
    return row["offset"], row["offset"] + row["size"]


def test_a_constant_output_of_a_16_bit_build_is_built() -> None:
    """The search for float32 layers once looked for its values among those of nodes."""
    graph = Graph("constant")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 4)))
    relu = graph.add(ops.Relu(), x, name="relu").output
    graph.outputs = [relu, graph.add_constant(np.ones(3, np.float32), "ones")]
    engine = smelt.build(graph, "cuda:sm_90", "float16", tune="none")
    assert [binding.name for binding in engine.outputs] == ["relu", "ones"]
