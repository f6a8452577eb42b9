"""Engines against oracles, right ones and wrong ones."""

from __future__ import annotations

import dataclasses
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx
import pytest

from smelt.builder import build
from smelt.compare import _compare as room
from smelt.compare import compare, load_inputs
from smelt.compare._layers import with_outputs
from smelt.compare._quantization_steps import quantized_steps
from smelt.errors import BindingError, MissingExtraError, SmeltError
from smelt.importers import network_from_onnx
from smelt.interp import interpret
from smelt.ir import Graph, clone
from smelt.ops import (
    Add,
    ArgMax,
    Conv,
    DequantizeLinear,
    LeakyRelu,
    Log,
    MatMul,
    Mul,
    NonZero,
    QuantizeLinear,
    Relu,
    Softmax,
)
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.small_models import (
    boxes_model,
    check_model,
    inception_model,
    save_model,
    two_inputs_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from smelt.ir import Node

    Culprit = Callable[[Graph, Node], bool]


def _plant(monkeypatch: pytest.MonkeyPatch, is_wrong: Culprit) -> None:
    """Let builds run a leaky Relu for each Relu that is wrong, as a broken kernel would."""

    def build_wrongly(network: Any, **options: Any) -> Any:
        graph = clone(getattr(network, "graph", network))
        for node in graph.nodes:
            if isinstance(node.op, Relu) and is_wrong(graph, node):
                node.op = LeakyRelu(alpha=0.5)
        return build(graph, **options)

    monkeypatch.setattr(room, "build", build_wrongly)


def _is_deep_relu(_graph: Graph, node: Node) -> bool:
    return node.output.name == "deep_relu"


def _is_fused_deep_relu(graph: Graph, node: Node) -> bool:
    """The Relu is wrong only where it is fused with its convolution."""
    read = node.inputs[0]
    assert read is not None
    alone = read.producer is None or graph.is_output(read)
    return (
        not alone
        and isinstance(read.producer.op if read.producer else None, Conv)
        and (node.output.name == "deep_relu")
    )


def test_a_right_engine_passes_against_the_references() -> None:
    found = compare(inception_model(), tune="none")
    assert found.passed
    (error,) = found.outputs
    assert (error.name, error.shape, error.tolerance) == ("prob", (1, 10), 1e-4)
    assert 0 <= error.relative_error < 1e-5


def test_a_right_engine_passes_against_onnxruntime_in_every_layer(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = save_model(inception_model(), tmp_path / "m.onnx")
    found = compare(path, "onnxruntime", layers=True, tune="none")
    assert found.passed
    assert found.first_difference is None
    assert len(found.layers) == 17  # all but the one that nobody reads
    assert all(error.passed for _, error in found.layers)


def test_a_network_that_is_no_onnx_file_is_exported_for_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    network = network_from_onnx(inception_model())
    assert compare(network, "onnxruntime", tune="none").passed


def test_open_extents_are_bound_by_shapes_or_by_the_given_inputs() -> None:
    model = two_inputs_model()
    shapes = {"a": (3, 6), "b": (3, 4)}
    assert compare(model, shapes=shapes, tune="none").outputs[0].shape == (3, 4)
    a, b = np.ones((5, 6), np.float32), np.ones((5, 4), np.float32)
    found = compare(model, inputs={"a": a, "b": b}, tune="none", layers=True)
    assert found.outputs[0].shape == (5, 4)
    assert found.passed


@pytest.mark.parametrize("extent", [1, 17])
def test_the_references_know_the_extents_that_the_build_knows(extent: int) -> None:
    """They once refused to broadcast an operand of one element, whose extent has a symbol."""
    graph = Graph("sum")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (SymbolicDim.symbol("n"), 17)))
    b = graph.add_input("b", TensorType(DType.FLOAT32, (SymbolicDim.symbol("m"),)))
    total = graph.add(Add(), x, b, name="total").output
    graph.outputs = [graph.add(Relu(), total, name="y").output]
    shapes = {"x": (3, 17), "b": (extent,)}
    assert compare(graph, shapes=shapes, layers=True, tune="none").passed
    inputs = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    assert compare(graph, inputs=inputs, tune="none").passed


def test_several_plans_are_all_compared() -> None:
    shapes = {"image": [(1, 3, 16, 16), (2, 3, 16, 16)]}
    assert compare(inception_model("n"), shapes=shapes, tune="none").passed


def test_results_whose_size_depends_on_data_are_compared() -> None:
    rng = np.random.default_rng(0)
    corners = np.sort(rng.random((1, 8, 2, 2)), axis=2).reshape(1, 8, 4).astype(np.float32)
    scores = rng.random((1, 1, 8)).astype(np.float32)
    found = compare(boxes_model(), inputs={"boxes": corners, "scores": scores}, tune="none")
    assert found.passed
    assert found.outputs[0].dtype == "int64"


def test_a_wrong_kernel_fails_and_its_layer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, _is_deep_relu)
    found = compare(inception_model(), layers=True, tune="none")
    assert not found.passed
    first = found.first_difference
    assert first is not None
    assert (first.layer, first.op, first.tensor) == ("deep_relu", "relu", "deep_relu")
    assert not first.fused_only
    wrong = [layer for layer, error in found.layers if not error.passed]
    assert "deep_relu" in wrong
    assert "wide_relu" not in wrong


def test_a_kernel_that_is_wrong_only_when_fused_is_found_by_bisection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _plant(monkeypatch, _is_fused_deep_relu)
    found = compare(inception_model(), layers=True, tune="none")
    assert all(error.passed for _, error in found.layers)
    assert not found.passed
    first = found.first_difference
    assert first is not None
    assert (first.tensor, first.fused_only) == ("deep_relu", True)


def test_the_smallest_failing_part_is_saved_with_inputs_on_which_it_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _plant(monkeypatch, _is_deep_relu)
    path = tmp_path / "part.onnx"
    reduction = compare(inception_model(), reduce_to=path, tune="none").reduction
    assert reduction is not None
    assert reduction.nodes == ("relu 'deep_relu'",)
    model = onnx.load_model_from_string(path.read_bytes())
    check_model(model, full=True)
    assert [node.op_type for node in model.graph.node] == ["Relu"]
    assert reduction.inputs_path is not None
    again = compare(path, inputs=load_inputs(reduction.inputs_path), tune="none")
    assert not again.passed
    monkeypatch.undo()
    assert compare(path, inputs=load_inputs(reduction.inputs_path), tune="none").passed


@pytest.mark.parametrize(
    ("name", "shape", "detail"),
    [
        ("nosuch", (1 << 24,), "there is no input 'nosuch'"),
        ("x", (1 << 24,), "input 'x' is float32"),
        ("x", (1 << 12, 1 << 12), "input 'x' is float32"),
    ],
)
def test_arrays_that_are_for_no_input_are_refused_before_they_are_read(
    tmp_path: Path, name: str, shape: tuple[int, ...], detail: str
) -> None:
    graph = Graph("g")
    graph.add_input("x", TensorType(DType.FLOAT32, (2, 3)))
    np.savez_compressed(tmp_path / "a.npz", **{name: np.zeros(shape, np.uint8)})  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        with pytest.raises(BindingError, match=detail):
            load_inputs(str(tmp_path / "a.npz"), graph)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_part_that_fails_only_as_a_whole_is_kept_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _plant(monkeypatch, _is_fused_deep_relu)
    path = tmp_path / "part.onnx"
    reduction = compare(inception_model(), reduce_to=path, tune="none").reduction
    assert reduction is not None
    assert reduction.nodes == ("conv 'deep'", "relu 'deep_relu'")
    graph = network_from_onnx(path).graph
    inputs = load_inputs(str(path.with_suffix(".npz")))
    assert interpret(graph, inputs)["deep_relu"].shape == (1, 8, 16, 16)


def test_nothing_is_reduced_where_nothing_fails(tmp_path: Path) -> None:
    found = compare(inception_model(), reduce_to=tmp_path / "part.onnx", tune="none")
    assert found.reduction is None
    assert list(tmp_path.iterdir()) == []


class _RacingContext:
    """A context whose results change from run to run, by next to nothing."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reasons: object) -> None:
        self.context.close()

    def run(self, inputs: Any) -> dict[str, Any]:
        self.runs += 1
        results: dict[str, Any] = self.context.run(inputs)
        results["prob"][0, 0] += np.float32(1e-6) * self.runs
        return results


class _RacingEngine:
    """An engine with such contexts."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reasons: object) -> None:
        self.engine.close()

    def create_context(self, **options: Any) -> _RacingContext:
        return _RacingContext(self.engine.create_context(**options))


def test_results_that_move_between_runs_fail_however_small_the_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build_racing(network: Any, **options: Any) -> _RacingEngine:
        return _RacingEngine(build(network, **options))

    monkeypatch.setattr(room, "build", build_racing)
    found = compare(inception_model(), tune="none")
    assert found.outputs[0].is_nondeterministic
    assert found.outputs[0].relative_error < 1e-4
    assert not found.passed


def test_what_is_half_between_layers_is_not_rounded_by_the_references() -> None:
    graph, random = Graph("half"), np.random.default_rng(0)
    value = graph.add_input("x", TensorType(DType.FLOAT16, (4, 64)))
    for number in range(8):
        weights = (random.standard_normal((64, 64)) / 8).astype(np.float16)
        factor = graph.add_constant(weights, f"w{number}")
        value = graph.add(MatMul(), value, factor, name=f"product{number}").output
    graph.outputs = [value]
    found = compare(graph, tune="none", layers=True)
    assert found.passed
    assert found.outputs[0].dtype == "float16"
    assert found.outputs[0].relative_error <= 5e-4  # a rounding of the last result


# ---- quantised networks


def _quantized(first: int = 0, second: int = 0) -> Graph:
    """Bytes, eight times as much, bytes again; either so many steps off."""
    graph = Graph("bytes")
    value = graph.add_input("x", TensorType(DType.FLOAT32, (4, 9)))
    for number, shift in enumerate((first, second)):
        scale = graph.add_constant(np.array(0.03125, np.float32), f"scale{number}")
        zeros = [np.array(zero, np.uint8) for zero in (128, 128 + shift)]
        zero, moved = (graph.add_constant(z, f"zero{number}{k}") for k, z in enumerate(zeros))
        integers = graph.add(QuantizeLinear(), value, scale, moved, name=f"q{number}").output
        value = graph.add(DequantizeLinear(), integers, scale, zero, name=f"d{number}").output
        graph.outputs = [value]
        eight = graph.add_constant(np.array(8, np.float32), f"eight{number}")
        value = graph.add(Mul(), value, eight, name=f"m{number}").output
    graph.remove_unused()
    return graph


def _build_instead(monkeypatch: pytest.MonkeyPatch, wrong: Graph) -> None:
    """Let builds make an engine of another network, which has the same names."""

    def build_wrongly(network: Any, **options: Any) -> Any:
        names = [value.name for value in getattr(network, "graph", network).outputs]
        return build(with_outputs(wrong, names), **options)

    monkeypatch.setattr(room, "build", build_wrongly)


@pytest.mark.parametrize(("shift", "passes"), [(0, True), (2, True), (3, False)])
def test_what_follows_from_bytes_may_be_steps_apart_and_they_are_counted(
    monkeypatch: pytest.MonkeyPatch, *, shift: int, passes: bool
) -> None:
    _build_instead(monkeypatch, _quantized(0, shift))
    found = compare(_quantized(), tune="none", layers=True)
    (error,) = found.outputs
    assert (error.steps, error.allowed_steps) == (shift, 2)
    assert found.passed == passes
    first = found.first_difference
    assert (first.tensor if first else "") == ("" if passes else "q1")
    assert compare(_quantized(), tune="none", quantization_steps=0).passed == (shift == 0)


def test_a_layer_is_not_blamed_for_the_steps_of_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _build_instead(monkeypatch, _quantized(1))
    found = compare(_quantized(), tune="none", layers=True)
    assert [error.steps for error in found.outputs] == [8]
    assert {name: error.steps for name, error in found.layers} == {
        "q0": 1, "d0": None, "m0": None, "q1": 0, "d1": None
    }  # fmt: skip
    assert found.first_difference is None
    assert not found.passed


def test_steps_are_counted_in_bytes_and_in_what_is_made_of_them_alone() -> None:
    graph = _quantized()
    (value,) = graph.outputs
    for op in (Softmax(), ArgMax()):
        graph.add(op, value, name=op.name)
    graph.add(Mul(), value, value, name="square")
    sizes = {name: step.size for name, step in quantized_steps(graph).items()}
    assert sizes.pop("square") is None
    assert sizes == {"q0": 1, "d0": 1 / 32, "m0": 1 / 32, "q1": 1, "d1": 1 / 32, "softmax": 1 / 32}
    assert quantized_steps(graph)["square"].size_for(0.5) == 0.5 / 255


# ---- outputs that say little


def test_an_output_that_is_saturated_names_the_tensor_that_tells_more() -> None:
    graph = Graph("odds")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 5)))
    graph.outputs = [graph.add(Softmax(), x, name="prob").output]
    scores = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    (mild,) = compare(graph, inputs={"x": scores}, tune="none").outputs
    (wild,) = compare(graph, inputs={"x": 1000 * scores}, tune="none").outputs
    assert mild.caution == ""
    assert wild.caution.startswith("every element is 0 or 1")
    assert "compare 'x', the input of softmax" in wild.caution
    (even,) = compare(graph, inputs={"x": 0 * scores}, tune="none").outputs
    assert even.caution == "every element is 0.2"


@pytest.mark.parametrize(
    ("given", "caution"), [([0, 1, 2], ""), ([0, -1, 0], "no element is a finite number")]
)
def test_an_output_that_is_infinite_here_and_there_is_not_all_the_same(
    given: list[float], caution: str
) -> None:
    graph = Graph("logarithms")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (3,)))
    graph.outputs = [graph.add(Log(), x, name="log").output]
    (error,) = compare(graph, inputs={"x": np.array(given, np.float32)}, tune="none").outputs
    assert error.caution == caution


def test_an_unknown_oracle_or_input_is_refused_by_name() -> None:
    words = "'caffe'; give reference, onnxruntime, openvino, or the file of an engine"
    with pytest.raises(SmeltError, match=words):
        compare(inception_model(), "caffe")
    with pytest.raises(BindingError, match="'picture'; the inputs are image"):
        compare(inception_model(), inputs={"picture": np.zeros(3)})


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_missing_engine_is_named_with_its_extra_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    words = rf"^{name} is not installed; .* 'bench': .*'smelt-engine\[bench\]'.*$"
    with pytest.raises(MissingExtraError, match=words):
        compare(inception_model(), name)


def test_comparing_leaves_the_network_as_it_was() -> None:
    network = network_from_onnx(inception_model())
    before = [(node.name, node.op) for node in network.graph.nodes]
    compare(network, layers=True, tune="none")
    assert [(node.name, node.op) for node in network.graph.nodes] == before
    assert [tensor.name for tensor in network.outputs] == ["prob"]


def test_a_comparison_is_a_value() -> None:
    found = compare(inception_model(), tune="none")
    assert dataclasses.asdict(found)["outputs"][0]["name"] == "prob"


@pytest.mark.parametrize(
    ("precision", "bound"), [("float16", 3e-3), ("half2", 3e-3), ("tf32", 1e-2), ("bfloat16", 2e-2)]
)
def test_an_engine_of_narrow_numbers_is_held_to_the_bound_of_its_precision(
    precision: str, bound: float
) -> None:
    found = compare(inception_model(), precision=precision)
    assert found.passed
    assert {error.tolerance for error in found.outputs} == {bound}


def test_layers_are_compared_where_a_bound_depends_on_a_fixed_symbol() -> None:
    graph = Graph("found")
    n = SymbolicDim.symbol("n")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (n,)))
    graph.symbol_bounds["count"] = n
    graph.outputs = [graph.add(NonZero("count"), x, name="found").output]
    inputs = {"x": np.array([1, 0, 2], np.float32)}
    assert compare(graph, inputs=inputs, shapes={"x": (3,)}, layers=True, tune="none").passed
