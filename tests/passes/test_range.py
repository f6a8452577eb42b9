"""Constants are combined beforehand only where that is what the steps of a run would compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import BindingError
from smelt.interp import interpret
from smelt.ir import Graph, clone
from smelt.passes import DEFAULT_PIPELINE, run_passes
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from smelt.ir import Op, Value
    from smelt.passes import PassPipelineReport

Array = np.ndarray[Any, Any]
HUGE, TINY = 1e30, 1e-30


class Network:
    """A graph of one input and one output, which is built op by op."""

    def __init__(self, *shape: int, dtype: DType = DType.FLOAT32) -> None:
        self.graph = Graph("range")
        self._count = 0
        self.value: Value = self.graph.add_input("x", TensorType(dtype, shape))

    def constant(self, number: Any, dtype: Any = np.float32) -> Value:
        self._count += 1
        return self.graph.add_constant(np.asarray(number, dtype), f"c{self._count}")

    def add(self, op: Op, *others: Any) -> Network:
        """Put an op behind, whose other inputs are values or the elements of constants."""
        rest = [o if o is None or hasattr(o, "tensor") else self.constant(o) for o in others]
        name = f"{op.name}{len(self.graph.nodes)}"
        self.value = self.graph.add(op, self.value, *rest, name=name).output
        self.graph.outputs = [self.value]
        return self

    def optimised(self) -> tuple[Graph, PassPipelineReport]:
        graph = clone(self.graph)
        return graph, run_passes(graph, DEFAULT_PIPELINE)

    def check(self, x: Array) -> None:
        """The optimised graph and a built engine compute what each step computes."""
        (expected,) = interpret(self.graph, {"x": x}).values()
        assert np.isfinite(expected).all(), "the network itself leaves the range"
        (made,) = interpret(self.optimised()[0], {"x": x}).values()
        np.testing.assert_allclose(made, expected, rtol=1e-5)
        (ran,) = smelt.build(clone(self.graph), tune="none").run({"x": x}).values()
        np.testing.assert_allclose(ran, expected, rtol=1e-5)


def _chain(*steps: tuple[Op, float]) -> Network:
    network = Network(2, 3)
    for op, number in steps:
        network.add(op, number)
    return network


CHAINS = {
    "underflow": (_chain(*[(ops.Mul(), n) for n in (TINY, TINY, HUGE, HUGE)]), 1e35),
    "overflow": (_chain(*[(ops.Mul(), n) for n in (HUGE, HUGE, TINY, TINY)]), 1e-35),
    "sums": (_chain((ops.Add(), 3e38), (ops.Add(), 3e38)), -3e38),
    "scaled term": (_chain((ops.Add(), HUGE), (ops.Mul(), HUGE), (ops.Add(), 1.0)), -HUGE),
}


@pytest.mark.parametrize("name", CHAINS)
def test_factors_and_terms_that_leave_the_range_together_stay_apart(name: str) -> None:
    network, x = CHAINS[name]
    network.check(np.full((2, 3), x, np.float32))


def test_a_small_factor_beside_a_large_one_may_be_lost_but_not_one_of_a_vector() -> None:
    network = Network(2, 3)
    network.add(ops.Mul(), [1.0, TINY, 1.0]).add(ops.Mul(), [1.0, TINY, 1.0])
    network.add(ops.Mul(), [1.0, HUGE, 1.0]).add(ops.Mul(), [1.0, HUGE, 1.0])
    network.check(np.full((2, 3), 1e35, np.float32))


_MAGIC = 1.5 * 2**23
"""Added to a float32 and taken away again, it rounds to an integer."""
ROUNDING = {
    "sum": _chain((ops.Add(), _MAGIC), (ops.Add(), -_MAGIC)),
    "difference": _chain((ops.Sub(), _MAGIC), (ops.Add(), _MAGIC)),
    "scaled": _chain(
        (ops.Mul(), 2.0),
        (ops.Add(), _MAGIC),
        (ops.Add(), -_MAGIC),
        (ops.Mul(), 0.1),
        (ops.Add(), 0.3),
    ),
    "scaled term": _chain((ops.Add(), _MAGIC), (ops.Mul(), 0.5), (ops.Add(), -_MAGIC / 2)),
    "product": Network(2, 3)
    .add(ops.MatMul(), np.diag([0.7, 0.8, 0.9]))
    .add(ops.Add(), _MAGIC)
    .add(ops.Sub(), _MAGIC),
    "gemm": Network(2, 3)
    .add(ops.Gemm(), np.ones((3, 3)) * 0.3, [0.25, 0.5, 0.75])
    .add(ops.Add(), _MAGIC)
    .add(ops.Sub(), _MAGIC),
}


@pytest.mark.parametrize("name", ROUNDING)
def test_terms_that_round_what_they_are_added_to_stay(name: str) -> None:
    ROUNDING[name].check(np.array([[0.3, 1.7, 2.6], [-3.2, 100.4, 0.001]], np.float32))


def test_small_terms_that_cancel_are_combined() -> None:
    network = _chain((ops.Add(), 2.0), (ops.Mul(), 3.0), (ops.Add(), -6.0))
    assert len(network.optimised()[0].nodes) == 1


@pytest.mark.parametrize(
    ("first", "second", "x"),
    [
        (_chain((ops.Mul(), HUGE)), TINY, 1e10),
        (_chain((ops.Mul(), TINY)), HUGE, 1e-20),
        (_chain((ops.Mul(), 2.0)), 0.0, 3e38),
        (Network(2, 3).add(ops.Gemm(), np.diag([HUGE] * 3)), TINY, 1e10),
        (Network(2, 3).add(ops.Gemm(), np.diag([HUGE] * 3)), 0.0, 1e10),
    ],
)
def test_a_product_that_leaves_the_range_between_two_factors_does_so_in_an_engine(
    first: Network, second: float, x: float
) -> None:
    network = first.add(ops.Mul(), second).add(ops.Add(), 20.0)
    given = {"x": np.diag([x] * 3).astype(np.float32)[:2]}
    with np.errstate(all="ignore"):
        (expected,) = interpret(network.graph, given).values()
    (ran,) = smelt.build(clone(network.graph), tune="none").run(given).values()
    np.testing.assert_allclose(ran, expected, rtol=1e-5)


def _weights(*shape: int, factor: float = 1.0) -> Array:
    spread = np.random.default_rng(0).uniform(0.5, 1.5, shape)
    return (spread * factor).astype(np.float32)


PRODUCTS: dict[str, tuple[Op, tuple[int, ...], tuple[int, ...]]] = {
    "matmul": (ops.MatMul(), (2, 4), (4, 3)),
    "gemm": (ops.Gemm(trans_b=True), (2, 4), (3, 4)),
    "conv": (ops.Conv((1, 1)), (1, 4, 2, 3), (3, 4, 1, 1)),
    "deconv": (ops.ConvTranspose((1, 1)), (1, 4, 2, 3), (4, 3, 1, 1)),
}
FACTORS: dict[str, tuple[Op, float, float, float]] = {
    "large": (ops.Mul(), HUGE, HUGE, 1e-35),
    "small": (ops.Mul(), TINY, TINY, 1e37),
    "large divisor": (ops.Div(), TINY, HUGE, 1e37),
    "small divisor": (ops.Div(), HUGE, TINY, 1e-35),
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_factor_that_takes_weights_out_of_the_range_stays_behind_them(
    name: str, factor: str
) -> None:
    op, shape, weights = PRODUCTS[name]
    behind, first, second, x = FACTORS[factor]
    network = Network(*shape).add(op, _weights(*weights, factor=first)).add(behind, second)
    network.check(np.full(shape, x, np.float32))
    notes = [n for r in network.optimised()[1].records for n in r.notes]
    assert any("the weights cannot be combined: " in str(note) for note in notes)


@pytest.mark.parametrize("dead", [0.0, 1e-38])
def test_a_filter_that_is_almost_nothing_does_not_keep_a_factor_out(dead: float) -> None:
    weights = _weights(3, 4, 1, 1)
    weights[1] *= 1e-9
    network = Network(1, 4, 2, 3).add(ops.Conv((1, 1)), weights)
    network.add(ops.Mul(), np.full((1, 1, 1), max(dead, 1e-20)))
    assert len(network.optimised()[0].nodes) == 1


def test_a_bias_that_leaves_the_range_stays_behind_its_product() -> None:
    bias = np.full(3, 3e38, np.float32)
    network = Network(2, 4).add(ops.Gemm(), np.full((4, 3), -3e38), bias).add(ops.Add(), bias)
    network.check(np.full((2, 4), 0.25, np.float32))


def test_alpha_goes_behind_a_product_whose_weights_it_takes_out_of_the_range() -> None:
    bias = [1.0, 2.0, 3.0, 4.0]
    network = Network(4, 4).add(ops.Gemm(alpha=1e20, beta=2.0), _weights(4, 4, factor=HUGE), bias)
    network.check(np.full((4, 4), 1e-35, np.float32))


def _quantised(network: Network, scale: float, *, dtype: Any = np.int8) -> Network:
    return network.add(ops.QuantizeLinear(), scale, network.constant(0, dtype))


def test_scales_that_are_far_apart_are_not_divided_beforehand() -> None:
    network = Network(4, dtype=DType.INT8).add(ops.DequantizeLinear(), HUGE)
    _quantised(network, TINY).check(np.array([-5, 0, 1, 9], np.int8))


@pytest.mark.parametrize("between", [ops.Mul(), ops.Add(), ops.Sub()])
def test_a_constant_that_its_scale_takes_out_of_the_range_is_not_divided(between: Op) -> None:
    network = Network(4).add(ops.Mul(), HUGE).add(between, -HUGE)
    _quantised(network, TINY).check(np.array([-5, 0, 1, 9], np.float32) * np.float32(TINY))


def test_scales_without_a_product_are_not_combined() -> None:
    network = Network(2, 4, dtype=DType.INT8).add(ops.DequantizeLinear(), TINY)
    stored = network.constant(np.full((4, 3), 100), np.int8)
    scale = network.constant(1e-20)
    weights = network.graph.add(ops.DequantizeLinear(), stored, scale, name="weights").output
    network.add(ops.MatMul(), weights).add(ops.Mul(), 1e20).add(ops.Mul(), HUGE)
    report = network.optimised()[1]
    assert any("scales cannot be folded" in str(n) for r in report.records for n in r.notes)


def _products_of_bytes(depth: int, bias: int | None = None) -> Network:
    """Sums of so many products of the largest bytes, with scales that keep them small."""
    network = Network(1, depth, dtype=DType.UINT8).add(ops.DequantizeLinear(), 2.0**-10)
    stored = network.constant(np.full((depth, 1), -128), np.int8)
    scale = network.constant([2.0**-10])
    graph = network.graph
    weights = graph.add(ops.DequantizeLinear(1), stored, scale, name="weights").output
    if bias is None:
        return network.add(ops.MatMul(), weights)
    own = network.constant([bias], np.int32)
    scale = network.constant([2.0**-20])
    made = graph.add(ops.DequantizeLinear(0), own, scale, name="bias").output
    return network.add(ops.Gemm(), weights, made)


@pytest.mark.parametrize(
    ("depth", "bias"),
    [(65_000, None), (70_000, None), (100, 1 << 30), (100, -(1 << 31)), (40_000, -(1 << 30))],
)
def test_sums_of_bytes_do_not_wrap_around(depth: int, bias: int | None) -> None:
    _products_of_bytes(depth, bias).check(np.full((1, depth), 255, np.uint8))


def test_products_with_a_bias_of_ordinary_size_are_sums_of_integers() -> None:
    graph = _products_of_bytes(30_000, -(1 << 29)).optimised()[0]
    (node,) = graph.nodes
    assert isinstance(node.op, ops.Fused)
    assert isinstance(node.op.root, ops.MatMulInteger)
    assert node.op.root_inputs == 5


@pytest.mark.parametrize(
    ("p", "x"), [(2, 1e-25), (1, 1e-40), (1, 1e-3), (2, 1e-3), (1, 0.0), (2, 0.0)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_norm_of_small_numbers_is_their_norm_or_nothing(p: int, x: float, dtype: Any) -> None:
    network = Network(2, 4, dtype=DType.from_numpy(dtype)).add(ops.LpNormalization(p=p))
    feeds = {"x": np.full((2, 4), x, dtype)}
    (expected,) = interpret(network.graph, feeds).values()
    (made,) = smelt.build(network.graph, tune="none").run(feeds).values()
    np.testing.assert_allclose(made, expected, rtol=2e-3)
    assert expected.max() <= 1


# ---- new weights


def _two_factors(first: float, second: float) -> Graph:
    network = Network(2)
    graph = network.graph
    for name, number in (("a", first), ("b", second)):
        factor = graph.add_constant(np.asarray(number, np.float32), name)
        network.value = graph.add(ops.Mul(), network.value, factor, name=f"by {name}").output
    graph.outputs = [network.value]
    return graph


@pytest.mark.parametrize(("a", "b"), [(HUGE, HUGE), (TINY, TINY), (HUGE, TINY)])
def test_new_weights_that_cannot_be_combined_as_the_old_ones_are_refused(
    a: float, b: float
) -> None:
    engine = smelt.build(_two_factors(2, 3), tune="none")
    with pytest.raises(BindingError, match=r"the new [ab] .*, [ab] .* cannot be folded.*build"):
        engine.refit({"a": np.asarray(a, np.float32), "b": np.asarray(b, np.float32)})
    x = np.ones(2, np.float32)
    (ran,) = engine.run({"x": x}).values()
    np.testing.assert_array_equal(ran, 6 * x)
    engine.refit({"a": np.asarray(5, np.float32), "b": np.asarray(7, np.float32)})
    (ran,) = engine.run({"x": x}).values()
    np.testing.assert_array_equal(ran, 35 * x)


def test_new_terms_that_round_are_refused_where_the_old_ones_were_combined() -> None:
    network = _chain((ops.Add(), 2.0), (ops.Add(), 3.0))
    engine = smelt.build(network.graph, tune="none")
    with pytest.raises(BindingError, match="two terms nearly cancel"):
        engine.refit({"c1": np.array(_MAGIC, np.float32), "c2": np.array(-_MAGIC, np.float32)})


def test_a_new_bias_that_sums_of_bytes_have_no_room_for_is_refused() -> None:
    network = _products_of_bytes(100, 1 << 20)
    engine = smelt.build(network.graph, tune="none")
    given = {v.name: v.constant.array for v in network.graph.values() if v.constant is not None}
    (bias,) = (name for name, array in given.items() if array.dtype == np.int32)
    given[bias] = np.array([(1 << 31) - 1], np.int32)
    with pytest.raises(BindingError, match=r"an element exceeds 1073741823"):
        engine.refit(given)


def test_new_weights_of_a_product_of_integers_are_packed_as_the_old_ones() -> None:
    network = Network(1, 2, dtype=DType.UINT8)
    stored = network.graph.add_constant(np.array([[1], [2]], np.int8), "w")
    network.add(ops.MatMulInteger(), stored)
    engine = smelt.build(network.graph, tune="none")
    engine.refit({"w": np.array([[3], [4]], np.int8)})
    (ran,) = engine.run({"x": np.array([[5, 6]], np.uint8)}).values()
    assert ran.tolist() == [[39]]
