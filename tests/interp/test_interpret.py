"""A graph run on references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from typing_extensions import override

from smelt.errors import BindingError, GraphError, ShapeError
from smelt.interp import interpret
from smelt.ir import Case, Graph, Op, Operand
from smelt.ops import Add, Conv, MaxPool, Mul, NonMaxSuppression, Relu
from smelt.types import DType, SymbolicDim, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Node
    from smelt.types import ValueType

N = SymbolicDim.symbol("n")


def _floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def _small_network() -> Graph:
    graph = Graph("small")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (N, 3, 8, 8)))
    weights = graph.add_constant(_floats(5, 3, 3, 3, seed=1), "weights")
    conv = graph.add(Conv((3, 3), pads=(1, 1, 1, 1)), x, weights, name="conv")
    relu = graph.add(Relu(), conv.output, name="relu")
    pool = graph.add(MaxPool((2, 2), (2, 2)), relu.output, name="pool")
    graph.outputs = [pool.output]
    return graph


class Recorder:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, list[tuple[int, ...]]]] = []

    def will_run(self, node: Node, inputs: Sequence[Array | None], /) -> None:
        self.heard.append(("will", node.name, [a.shape for a in inputs if a is not None]))

    def did_run(self, node: Node, outputs: Sequence[Array], /) -> None:
        self.heard.append(("did", node.name, [a.shape for a in outputs]))


def test_a_network_gives_what_its_references_give_in_turn() -> None:
    graph, x = _small_network(), _floats(2, 3, 8, 8)
    weights = graph.nodes[0].inputs[1]
    assert weights is not None
    assert weights.constant is not None
    (expected,) = graph.nodes[0].op.reference(x, weights.constant.array)
    (expected,) = MaxPool((2, 2), (2, 2)).reference(np.maximum(expected, 0))
    results = interpret(graph, {"x": x})
    assert list(results) == ["pool"]
    np.testing.assert_array_equal(results["pool"], expected)


def test_any_batch_binds_the_symbol_of_the_input() -> None:
    for batch in (0, 1, 3):
        assert interpret(_small_network(), {"x": _floats(batch, 3, 8, 8)})["pool"].shape[0] == batch


def test_values_inside_the_network_can_be_returned_and_what_they_do_not_need_is_not_run() -> None:
    recorder = Recorder()
    results = interpret(
        _small_network(), {"x": _floats(1, 3, 8, 8)}, outputs=["conv", "x"], listeners=[recorder]
    )
    assert set(results) == {"conv", "x"}
    assert [name for what, name, _ in recorder.heard if what == "did"] == ["conv"]


def test_listeners_hear_of_every_node_before_and_after_it_runs() -> None:
    recorder = Recorder()
    interpret(_small_network(), {"x": _floats(1, 3, 8, 8)}, listeners=[recorder])
    assert recorder.heard[:2] == [
        ("will", "conv", [(1, 3, 8, 8), (5, 3, 3, 3)]),
        ("did", "conv", [(1, 5, 8, 8)]),
    ]
    assert [name for _, name, _ in recorder.heard] == [
        name for name in ("conv", "relu", "pool") for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "the array of input 'x' .* is missing"),
        ({"x": _floats(1, 3, 8, 8), "z": _floats(1)}, "there is no input 'z'"),
        ({"x": _floats(1, 3, 8, 9)}, "axis 3 must be 8, not 9"),
        ({"x": _floats(3, 8, 8)}, r"float32\[3, 8, 8\]"),
        ({"x": _floats(1, 3, 8, 8).astype(np.float64)}, "its array is float64"),
    ],
)
def test_an_array_that_does_not_fit_its_input_is_refused(
    inputs: dict[str, Array], message: str
) -> None:
    with pytest.raises(BindingError, match=message):
        interpret(_small_network(), inputs)


def test_inputs_that_share_a_symbol_must_agree_on_it() -> None:
    graph = Graph()
    a = graph.add_input("a", TensorType(DType.FLOAT32, (N, 2)))
    b = graph.add_input("b", TensorType(DType.FLOAT32, (N, 2)))
    graph.outputs = [graph.add(Add(), a, b, name="sum").output]
    with pytest.raises(BindingError, match=r"input 'b'.*axis 0 must be 3 \(n\), not 4"):
        interpret(graph, {"a": _floats(3, 2), "b": _floats(4, 2)})


def test_a_name_that_no_value_has_is_refused() -> None:
    with pytest.raises(GraphError, match="no value 'nothing'"):
        interpret(_small_network(), {"x": _floats(1, 3, 8, 8)}, outputs=["nothing"])


def test_a_size_that_the_run_determines_binds_its_symbol() -> None:
    graph = _detector(maximum=9)
    rows = interpret(graph, _boxes(4))["nms"]
    assert rows.shape == (3, 3)


def test_a_size_above_its_declared_maximum_is_an_error_that_names_both() -> None:
    with pytest.raises(
        ShapeError, match=r"'nms'.*selected_count is 3 in this run, above its declared maximum 2"
    ):
        interpret(_detector(maximum=2), _boxes(4))


def _detector(maximum: int) -> Graph:
    graph = Graph()
    boxes = graph.add_input("boxes", TensorType(DType.FLOAT32, (1, 4, 4)))
    scores = graph.add_input("scores", TensorType(DType.FLOAT32, (1, 1, 4)))
    most = graph.add_constant(np.array([3], np.int64), "most")
    graph.outputs = [graph.add(NonMaxSuppression(), boxes, scores, most, name="nms").output]
    graph.symbol_bounds["selected_count"] = maximum
    return graph


def _boxes(count: int) -> dict[str, Array]:
    corner = np.arange(count, dtype=np.float32)[:, None]
    boxes = np.concatenate((corner, corner, corner + 1, corner + 1), axis=1)[None]
    return {"boxes": boxes, "scores": np.linspace(1, 0, count, dtype=np.float32)[None, None]}


@dataclass(frozen=True)
class _Broken(Op):
    """Infers one thing and makes another."""

    name: ClassVar[str] = "broken"
    fails: bool = False

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        return (TensorType(DType.FLOAT32, (3,)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        if self.fails:
            raise ValueError("cannot")
        return (np.zeros(4, np.float32),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("one", cls(), (np.zeros(3, np.float32),))


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (True, "broken 'bad': the reference method of broken failed on float32.3.: cannot"),
        (False, "must be 3, not 4"),
    ],
)
def test_a_failing_node_is_named(fails: bool, message: str) -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (3,)))
    graph.outputs = [graph.add(_Broken(fails), x, name="bad").output]
    with pytest.raises(GraphError, match=message) as caught:
        interpret(graph, {"x": _floats(3)})
    assert caught.value.node == "broken 'bad'"


def test_what_is_not_finite_is_computed_without_a_warning() -> None:
    x = _floats(1, 3, 8, 8)
    x[0, 0, 0, :2] = np.nan, np.inf
    assert np.isnan(interpret(_small_network(), {"x": x})["pool"]).any()


def test_a_nested_list_is_an_array_too() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.INT64, (2,)))
    graph.outputs = [graph.add(Relu(), x, name="relu").output]
    np.testing.assert_array_equal(interpret(graph, {"x": [-3, 4]})["relu"], [0, 4])


def test_a_value_that_two_nodes_read_lives_until_the_second() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (N,)))
    relu = graph.add(Relu(), x, name="relu")
    twice = graph.add(Add(), relu.output, relu.output, name="twice")
    graph.outputs = [graph.add(Mul(), twice.output, relu.output, name="product").output]
    array = _floats(5)
    expected = 2 * np.maximum(array, 0) ** 2
    np.testing.assert_allclose(interpret(graph, {"x": array})["product"], expected, rtol=1e-6)
