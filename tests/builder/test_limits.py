"""Whatever is built can be saved and loaded; the rest is refused with the limit's name."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import EngineFormatError
from smelt.ir import Graph
from smelt.types import DType, Limit, SymbolicDim, TensorType
from tests.support.small_networks import small_network

N, M, K = map(SymbolicDim.symbol, ("first", "middle", "kept"))
SHAPES = {"x": ((0, 1, 3), (2, 2, 3), (4, 5, 3)), "y": ((0, 1, 3), (1, 2, 3), (6, 5, 3))}
"""The largest extents are small: a limit may be below those."""


def _network() -> Graph:
    """Something of everything that an engine holds: symbols, quotients, a branch, weights."""
    graph = Graph("everything")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (N, M, 3)))
    y = graph.add_input("y", TensorType(DType.FLOAT32, (K, M, 3)))
    flag = graph.add_input("flag", TensorType(DType.BOOL, ()))
    both = graph.add(ops.Concat(0), x, y, name="both").output
    weight = graph.add_constant(np.ones((3, 3), np.float32), "weight")
    product = graph.add(ops.MatMul(), both, weight, name="product").output
    chosen = graph.add(_if(product.tensor), flag, product, name="chosen").output
    pool = ops.MaxPool((2,), strides=(2,))
    graph.outputs = [graph.add(pool, chosen, name="halved").output]
    return graph


def _if(kind: TensorType) -> ops.If:
    branches: list[Graph] = []
    for op in (ops.Neg(), ops.Abs()):
        branch = Graph(op.name)
        inside = branch.add_input("inside", kind)
        branch.outputs = [branch.add(op, inside, name=op.name).output]
        branches.append(branch)
    return ops.If(branches[0], branches[1])


LOWERED = [
    Limit.MAX_ENGINE_BYTES,
    Limit.MAX_HEADER_BYTES,
    Limit.MAX_JSON_PARTS,
    Limit.MAX_RANK,
    Limit.MAX_TENSOR_BYTES,
    Limit.MAX_CONSTANT_BYTES,
    Limit.MAX_PARAMETER_DEPTH,
    Limit.MAX_OPERANDS,
    Limit.MAX_DIM_ATOMS,
    Limit.MAX_DIM_CHARACTERS,
    Limit.MAX_DIM_DEPTH,
    Limit.MAX_FORMULA_CHARACTERS,
    Limit.MAX_RECIPE_PARTS,
    Limit.MAX_REGION_DEPTH,
]


@pytest.mark.parametrize("limit", LOWERED, ids=lambda limit: limit.name)
@pytest.mark.slow
def test_a_build_within_or_beyond_any_limit_is_loaded_or_refused_by_the_limits_name(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[smelt.SmeltError] = []
    files: list[bytes] = []
    for power in count():
        monkeypatch.setattr(limit, "most", (1 << power) - 1)
        try:
            engine = smelt.build(_network(), tune="none", shapes=SHAPES)
            files = [engine.serialize(sign=sign) for sign in (True, False)]
        except smelt.SmeltError as error:
            refusals.append(error)
        else:
            break
    for file in files:
        smelt.load(file)
    assert refusals
    assert all(limit.name in str(error) for error in refusals)
    assert not any(isinstance(error, EngineFormatError) for error in refusals)


def test_whatever_formulas_a_build_accepts_are_accepted_by_whoever_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program and the kept network have formulas that plans have not: regions' and bounds."""
    refusals: list[str] = []

    def built(most: int) -> smelt.Engine | None:
        monkeypatch.setattr(Limit.MAX_FORMULA_CHARACTERS, "most", most)
        network = _network_of_long_regions()
        try:
            return smelt.build(network, tune="none", shapes=SHAPES, retunable=True)
        except smelt.SmeltError as error:
            refusals.append(str(error))
            return None

    low, high = 0, 1 << 14
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if built(middle) else (middle, high)
    engine = built(high)
    assert engine is not None
    assert refusals
    assert all("MAX_FORMULA_CHARACTERS" in refusal for refusal in refusals)
    for sign in (True, False):
        file = engine.serialize(sign=sign)
        smelt.load(file).run(_inputs())
        smelt.retune(file, tune="none")


def test_formulas_of_a_plans_ops_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that Python does are read when a plan is first run, after the header was."""
    engine = smelt.build(_network_of_long_regions(), tune="none", shapes=SHAPES)
    engine.run(_inputs())
    monkeypatch.setattr(Limit.MAX_FORMULA_CHARACTERS, "most", 30)
    with pytest.raises(EngineFormatError, match="MAX_FORMULA_CHARACTERS is 30"):
        smelt.Engine(engine.file).run(_inputs())


def _inputs() -> dict[str, np.ndarray]:
    x, y = np.ones((2, 2, 3), np.float32), np.ones((1, 2, 3), np.float32)
    return {"x": x, "y": y, "flag": np.ones((), np.bool_)}


def _network_of_long_regions() -> Graph:
    """Branches that declare more formulas than all plans have."""
    graph = _network()
    for node in graph.nodes:
        if isinstance(node.op, ops.If):
            for region in (node.op.then_branch, node.op.else_branch):
                region.symbol_bounds |= {f"s{k}": M * 1234567 + N * 7654321 + k for k in range(60)}
    return graph


def test_tiles_of_the_most_axes_are_built_and_run() -> None:
    network = smelt.NetworkDefinition("deep")
    x = network.add_input("x", "float32", (1,) * 30 + (2, 3), batch="explicit")
    tiled = network.add(ops.Tile(), x, np.array([2, 2, *[1] * 30]))
    assert isinstance(tiled, smelt.Tensor)
    network.mark_output(tiled)
    array = np.arange(6, dtype=np.float32).reshape((1,) * 30 + (2, 3))
    (result,) = smelt.build(network, tune="none").run({"x": array}).values()
    np.testing.assert_array_equal(result, np.tile(array, [2, 2, *[1] * 30]))


def test_a_tensor_of_the_most_axes_is_built_loaded_and_run() -> None:
    network = smelt.NetworkDefinition("deep")
    x = network.add_input("x", "float32", (1,) * 31 + (2,), batch="explicit")
    network.mark_output(network.add_activation(x))
    array = np.array([-1, 2], np.float32).reshape((1,) * 31 + (2,))
    engine = smelt.build(network, tune="none")
    for sign in (True, False):
        (result,) = smelt.load(engine.serialize(sign=sign)).run({"x": array}).values()
        np.testing.assert_array_equal(result, np.maximum(array, 0))


def test_a_long_formula_is_saved_and_loaded() -> None:
    graph = Graph("halves")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (N,)))
    one, two = (graph.add_constant(np.array([k]), str(k)) for k in (1, 2))
    extent = graph.add(ops.Shape(), x, name="extent").output
    for level in range(7):
        more = graph.add(ops.Add(), extent, one, name=f"more{level}").output
        half = graph.add(ops.Div(), more, two, name=f"half{level}").output
        extent = graph.add(ops.Add(), half, extent, name=f"extent{level}").output
    ones = graph.add_constant(np.ones(1, np.float32), "ones")
    graph.outputs = [graph.add(ops.Expand(), ones, extent, name="y").output]
    engine = smelt.build(graph, tune="none", shapes={"x": ((0,), (3,), (5,))})
    assert len(str(engine.outputs[0].shape[0])) > 2000
    for sign in (True, False):
        loaded = smelt.load(engine.serialize(sign=sign))
        assert loaded.run({"x": np.zeros(5, np.float32)})["y"].shape == (93,)


def test_an_engine_with_any_option_is_retuned() -> None:
    engine = smelt.build(small_network(), tune="none", max_workspace_bytes=1 << 41, retunable=True)
    smelt.retune(engine.serialize(), tune="none")
