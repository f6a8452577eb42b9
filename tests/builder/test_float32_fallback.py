"""Which layers stay in float32 where 16 bits are asked for, found on references."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.builder._float32_fallback import find_float32_layers, is_small
from smelt.errors import BuildError
from smelt.types import DType, override
from tests.support.small_networks import network_of_differences, small_network, weights

if TYPE_CHECKING:
    from smelt.builder._float32_fallback import Float32Layers
    from smelt.ir import Array, Graph

_MOST = 3e-3


def _find(graph: Graph, most: float = _MOST) -> Float32Layers | None:
    """What is found where every product rounds both its factors."""
    products = (ops.Conv, ops.Gemm, ops.MatMul)
    rounded = {n.name: (True, True) for n in graph.nodes if isinstance(n.op, products)}
    return find_float32_layers(graph, rounded, DType.FLOAT16, {"batch": 1}, most)


def _graph(net: smelt.NetworkDefinition) -> Graph:
    return net.graph


def test_layers_whose_errors_grow_are_kept_and_others_are_not() -> None:
    kept = _find(_graph(network_of_differences()))
    assert kept is not None
    assert {"sums", "differences"} <= kept.names
    assert kept.names.isdisjoint({"body1", "body2", "head"})
    assert kept.error_if_all_rounded > _MOST >= 2 * kept.error_with_float32_layers


def test_the_same_layers_are_found_every_time() -> None:
    first, second = (_find(_graph(network_of_differences())) for _ in range(2))
    assert first == second


def test_they_are_found_where_there_may_be_no_images_at_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    shapes = {"data": tuple((count, 4, 6, 6) for count in (0, 2, 4))}
    smelt.build(network_of_differences(), "cuda:sm_90", "float16", shapes=shapes, tune="none")
    assert "2 of 6 layers of differences stay in float32: " in caplog.text


def test_what_comes_before_them_and_errs_little_is_not_kept() -> None:
    net = network_of_differences()
    early = smelt.NetworkDefinition("early")
    y = early.add_input("data", "float32", (4, 6, 6))
    for number in range(4):
        filters = weights(4, 4, 3, 3, seed=number)
        y = early.add_convolution(y, 4, 3, filters, padding=1, name=f"early{number}")
    early.mark_output(y)
    joined = _joined(_graph(early), _graph(net))
    kept = _find(joined)
    assert kept is not None
    assert {"sums", "differences"} <= kept.names
    assert kept.names.isdisjoint({"early0", "early1", "head"})


def _joined(first: Graph, second: Graph) -> Graph:
    """Two graphs of one input, the nodes of the first before those of the second."""
    (x,) = first.inputs
    known = {second.inputs[0]: x}
    for node in second.nodes:
        inputs = [
            first.add_constant(v.constant.array, v.name)
            if v is not None and v.constant is not None
            else (None if v is None else known[v])
            for v in node.inputs
        ]
        made = first.add(node.op, *inputs, name=node.name)
        known.update(zip(node.outputs, made.outputs, strict=True))
    first.outputs += [known[v] for v in second.outputs]
    return first


def test_a_network_within_its_tolerance_keeps_nothing() -> None:
    assert _find(_graph(small_network())) is None
    assert _find(_graph(network_of_differences()), 0.5) is None


def test_a_number_that_float16_cannot_hold_is_an_error_like_others() -> None:
    net = smelt.NetworkDefinition("huge")
    x = net.add_input("x", "float32", (4, 4, 4))
    y = net.add_convolution(x, 4, 1, 1e6 * weights(4, 4, 1, 1), name="huge")
    net.mark_output(net.add_convolution(y, 4, 1, weights(4, 4, 1, 1), name="after"))
    kept = _find(_graph(net))
    assert kept is not None
    assert kept.error_if_all_rounded == np.inf
    assert kept.error_with_float32_layers <= _MOST


def test_where_rounding_decides_something_nothing_is_said() -> None:
    net = network_of_differences()
    (answer,) = net.outputs
    best: Any = net.add(ops.ArgMax(axis=1), answer, name="best")
    number: Any = net.add(ops.Cast(DType.FLOAT32), best, name="number")
    net.mark_output(number)
    with pytest.raises(BuildError, match=r"differences cannot be measured: best makes, or"):
        _find(_graph(net))


@dataclass(frozen=True)
class _Elsewhere(ops.Relu):
    """What cannot be computed in numpy."""

    name: ClassVar[str] = "elsewhere"

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        del inputs
        raise RuntimeError


def test_an_op_whose_reference_fails_in_its_own_way_is_no_bug_of_a_build() -> None:
    net = smelt.NetworkDefinition("elsewhere")
    x = net.add_input("x", "float32", (4, 4, 4))
    y = net.add_convolution(x, 4, 1, weights(4, 4, 1, 1), name="conv")
    elsewhere: Any = net.add(_Elsewhere(), y)
    net.mark_output(elsewhere)
    with pytest.raises(
        BuildError, match=r"elsewhere cannot be measured: .* failed on .*: RuntimeError"
    ):
        _find(_graph(net))


def test_what_rounds_nothing_is_not_run() -> None:
    net = smelt.NetworkDefinition("rounds nothing")
    x: Any = net.add_input("x", "float32", (4, 4, 4))
    elsewhere: Any = net.add(_Elsewhere(), x)
    net.mark_output(elsewhere)
    assert _find(_graph(net)) is None


def test_what_references_refuse_is_not_known() -> None:
    net = smelt.NetworkDefinition("looks up", batch="explicit")
    row = net.add_input("row", "int64", (1,))
    table: Any = np.ones((1, 4), np.float32)
    found: Any = net.add(ops.Gather(), table, row, name="table")
    product: Any = net.add(ops.MatMul(), found, np.ones((4, 4), np.float32))
    net.mark_output(product)
    with pytest.raises(BuildError, match="looks up cannot be measured: "):
        _find(_graph(net))


@pytest.mark.parametrize(("side", "small"), [(6, True), (6000, False)])
def test_only_what_runs_in_no_time_is_looked_at_unasked(side: int, *, small: bool) -> None:
    net = smelt.NetworkDefinition("sides")
    x = net.add_input("x", "float32", (3, side, side))
    net.mark_output(net.add_convolution(x, 8, 3, weights(8, 3, 3, 3), name="conv"))
    assert is_small(_graph(net), {"batch": 1}) is small


@pytest.mark.parametrize(("side", "small"), [(256, True), (1024, False)])
def test_nor_is_what_takes_much_memory_and_multiplies_nothing(side: int, *, small: bool) -> None:
    net = smelt.NetworkDefinition("sides")
    x = net.add_input("x", "float32", (64, side, side))
    net.mark_output(net.add_activation(x, "tanh", name="tanh"))
    assert is_small(_graph(net), {"batch": 1}) is small
