"""A refit takes what a build would have taken in the place of the old arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import BindingError, ShapeError
from smelt.ir import Constant, Graph, RecipeBudget
from smelt.types import DType, Limit, TensorType

_FLOATS = {"float16": np.float16, "float64": np.float64}


def _product(op: ops.Op, shape: tuple[int, ...], weights: tuple[int, ...]) -> smelt.Engine:
    graph = Graph("product")
    x = graph.add_input("x", TensorType(DType.FLOAT32, shape))
    w = graph.add_constant(np.ones(weights, np.float32), "w")
    graph.outputs.append(graph.add(op, x, w, name="y").output)
    return smelt.build(graph, tune="none")


@pytest.mark.parametrize(
    ("op", "shape", "weights", "wrong"),
    [
        (ops.MatMul(), (2, 3), (3, 4), [(4, 3), (6, 2), (1, 12), (12,)]),
        (ops.Conv((3, 3)), (1, 3, 8, 8), (4, 3, 3, 3), [(3, 4, 3, 3), (108,), (4, 9, 3, 1)]),
        (ops.Mul(), (2, 3), (2, 3), [(3, 2), (6,), (1, 2, 3)]),
    ],
    ids=lambda value: value.name if isinstance(value, ops.Op) else "",
)
def test_new_weights_have_the_shape_and_dtype_of_the_old(
    op: ops.Op, shape: tuple[int, ...], weights: tuple[int, ...], wrong: list[tuple[int, ...]]
) -> None:
    x = np.ones(shape, np.float32)
    with _product(op, shape, weights) as engine:
        wanted = engine.run({"x": x})["y"]
        for other in wrong:
            with pytest.raises(BindingError, match="give an array of the old shape and dtype"):
                engine.refit({"w": np.zeros(other, np.float32)})
        for dtype in _FLOATS.values():
            with pytest.raises(BindingError, match="give an array of the old shape and dtype"):
                engine.refit({"w": np.zeros(weights, dtype)})
        np.testing.assert_array_equal(engine.run({"x": x})["y"], wanted)
        engine.refit({"w": np.full(weights, 2, np.float32)})
        np.testing.assert_array_equal(engine.run({"x": x})["y"], 2 * wanted)


@pytest.mark.parametrize(
    "op",
    [
        ops.Sigmoid(), ops.Tanh(), ops.Softplus(), ops.Log(), ops.Floor(), ops.Erf(),
        ops.LeakyRelu(), ops.Softmax(), ops.LpNormalization(), ops.Gemm(trans_b=True),
    ],
    ids=lambda op: op.name,
)  # fmt: skip
def test_a_weight_that_passes_a_function_is_refitted(op: ops.Op) -> None:
    graph = Graph("function")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 3)))
    w = graph.add_constant(np.ones((3, 3), np.float32), "w")
    inputs = (w, w) if isinstance(op, ops.Gemm) else (w,)
    made = graph.add(op, *inputs, name="made").output
    graph.outputs.append(graph.add(ops.MatMul(), x, made, name="y").output)
    new = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    (expected,) = op.reference(*[new for _ in inputs])
    with smelt.build(graph, tune="none") as engine:
        loaded = smelt.load(engine.serialize(sign=False))
        loaded.refit({"w": new})
        (row,) = loaded.run({"x": np.ones((1, 3), np.float32)})["y"]
    np.testing.assert_allclose(row, np.asarray(expected).sum(0), rtol=1e-5)


def test_the_header_has_no_elements_of_a_weight_that_cannot_be_refitted() -> None:
    """They were in it as text, and 48 MB of them exceeded its limit."""
    graph = Graph("sums")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 200)))
    w, axis = np.ones((200, 200), np.float32), np.array(0, np.int64)
    constants = [graph.add_constant(array, name) for array, name in ((w, "w"), (axis, "axis"))]
    made = graph.add(ops.CumSum(), *constants, name="made").output
    graph.outputs.append(graph.add(ops.MatMul(), x, made, name="y").output)
    with smelt.build(graph, tune="none") as engine:
        assert all(weight.recipe is None for weight in engine.header.weights)
        loaded = smelt.load(engine.serialize(sign=False))
        with pytest.raises(BindingError, match="no refittable weight w"):
            loaded.refit({"w": w})
        assert loaded.run({"x": np.ones((1, 200), np.float32)})["y"][0, 0] == 20100


def _quantized(**scales: float) -> Graph:
    """A product of bytes; what its weights stand for was computed when it was made."""
    given = {"sx": 0.05, "sw": 0.01, "sy": 0.1} | scales
    graph = Graph("quantized")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4, 8)))
    zero = graph.add_constant(np.array(0, np.int8), "zero")
    sx, sy = (graph.add_constant(np.array(given[n], np.float32), n) for n in ("sx", "sy"))
    scale = Constant("sw", np.array(given["sw"], np.float32))
    numbers = np.random.default_rng(0).integers(-127, 127, (8, 8)).astype(np.int8)
    real = Constant.derive("real", ops.DequantizeLinear(), Constant("w", numbers), scale)
    value = graph.add(ops.QuantizeLinear(), x, sx, zero, name="qx").output
    value = graph.add(ops.DequantizeLinear(), value, sx, zero, name="dx").output
    value = graph.add(ops.MatMul(), value, graph.add_constant(real), name="product").output
    value = graph.add(ops.QuantizeLinear(), value, sy, zero, name="qy").output
    graph.outputs.append(graph.add(ops.DequantizeLinear(), value, sy, zero, name="y").output)
    return graph


@pytest.mark.parametrize("name", ["sx", "sw", "sy"])
def test_new_scales_are_refused_where_a_build_refuses_them(name: str) -> None:
    with smelt.build(_quantized(), tune="none") as engine:
        old = {"sx": 0.05, "sw": 0.01, "sy": 0.1}
        for bad in (math.nan, math.inf, 0.0, -1.0):
            with pytest.raises((ShapeError, smelt.SmeltError), match="positive and finite"):
                smelt.build(_quantized(**{name: bad}), tune="none")
            arrays = {n: np.array(v, np.float32) for n, v in (old | {name: bad}).items()}
            with pytest.raises(BindingError, match="scales must be positive and finite"):
                engine.refit(arrays)
            loaded = smelt.load(engine.serialize(sign=False))
            with pytest.raises(BindingError, match="scales must be positive and finite"):
                loaded.refit(arrays)


def test_all_recipes_of_a_refit_share_one_limit_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with _product(ops.Conv((3, 3)), (1, 3, 8, 8), (4, 3, 3, 3)) as engine:
        work: list[int] = []
        spend = RecipeBudget.spend

        def spend_and_record(budget: RecipeBudget, spent: int, elements: int) -> None:
            work.append(spent)
            spend(budget, spent, elements)

        monkeypatch.setattr(RecipeBudget, "spend", spend_and_record)
        engine.refit({"w": np.ones((4, 3, 3, 3), np.float32)})
        monkeypatch.setattr(Limit.MAX_FOLDED_WORK, "most", sum(work) - 1)
        with pytest.raises(BindingError, match="MAX_FOLDED_WORK"):
            engine.refit({"w": np.ones((4, 3, 3, 3), np.float32)})


def _root(bound: float) -> Graph:
    graph = Graph("root")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4,)))
    bounds = [
        graph.add_constant(np.array(v, np.float32), n) for n, v in (("low", bound), ("p", 0.5))
    ]
    w = graph.add_constant(np.full(4, 3, np.float32), "w")
    value = graph.add(ops.Max(), x, bounds[0], name="max").output
    value = graph.add(ops.Pow(), value, bounds[1], name="power").output
    graph.outputs.append(graph.add(ops.Mul(), value, w, name="y").output)
    return graph


def test_numbers_by_which_a_pass_has_decided_are_not_refitted() -> None:
    """Of what is at least 1, the power of a half is the root; of -0 and of -inf it is another."""
    x = np.array([-np.inf, -0.0, 4, 9], np.float32)
    with smelt.build(_root(1.0), tune="none") as engine:
        for name, number in (("low", -np.inf), ("p", 2.0)):
            with pytest.raises(BindingError, match=f"no refittable weight {name}"):
                engine.refit({name: np.array(number, np.float32)})
        engine.refit({"w": np.full(4, 2, np.float32)})
        assert engine.run({"x": x})["y"].tolist() == [2, 2, 4, 6]
    with smelt.build(_root(-np.inf), tune="none") as engine:  # no pass takes it for a root
        engine.refit({"low": np.array(1, np.float32)})
        assert engine.run({"x": x})["y"].tolist() == [3, 3, 6, 9]


def test_a_number_of_a_recognised_activation_is_not_refitted_elsewhere() -> None:
    graph = Graph("gelu")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (4,)))
    numbers = {"half": 0.5, "root": math.sqrt(2), "one": 1.0}
    half, root, one = (graph.add_constant(np.array(v, np.float32), n) for n, v in numbers.items())
    value = graph.add(ops.Div(), x, root, name="divided").output
    value = graph.add(ops.Erf(), value, name="erf").output
    value = graph.add(ops.Add(), value, one, name="sum").output
    value = graph.add(ops.Mul(), x, value, name="product").output
    value = graph.add(ops.Mul(), value, half, name="gelu").output
    graph.outputs.append(graph.add(ops.Add(), value, half, name="y").output)
    with (
        smelt.build(graph, tune="none") as engine,
        pytest.raises(BindingError, match="no refittable weight half"),
    ):
        engine.refit({"half": np.array(1, np.float32)})
