"""What is computed of constants at build time has limits, for small models can ask for much."""

from __future__ import annotations

import numpy as np
import pytest

from smelt import ops
from smelt.errors import GraphError, ShapeError
from smelt.ir import Constant, Graph, Op, Value, compute_untrusted
from smelt.passes import FoldConstants, run_passes
from smelt.types import DType, Limit, TensorType

MIB = 1 << 18
"""Elements of a mebibyte of float32."""


def _graph() -> Graph:
    graph = Graph()
    graph.add_input("x", TensorType(DType.FLOAT32, (1,)))
    return graph


def _integers(*values: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def _constant(graph: Graph, array: object, name: str) -> Value:
    return graph.add_constant(np.asarray(array), name)


def _finish(graph: Graph, value: Value) -> Graph:
    total = graph.add(ops.ReduceSum(keepdims=0), value, name="total").output
    graph.outputs = [graph.add(ops.Add(), graph.inputs[0], total, name="y").output]
    return graph


def _names(graph: Graph) -> set[str]:
    return {node.name for node in graph.nodes}


def test_steps_between_constants_count_as_well_as_what_is_left() -> None:
    graph = _graph()
    value = _constant(graph, np.ones(1, np.float32), "one")
    shape = _constant(graph, _integers(MIB), "shape")
    value = graph.add(ops.Expand(), value, shape, name="expand").output
    for index in range(8):
        value = graph.add(ops.Neg(), value, name=f"neg{index}").output
    _finish(graph, value)
    for _ in range(2):  # again, for what is there then is no weight to grow from
        run_passes(graph, [FoldConstants(max_growth_bytes=5 << 20)])
        assert "neg7" in _names(graph)
        assert "neg2" not in _names(graph)


def test_weights_may_be_transformed_a_few_times() -> None:
    graph = _graph()
    value = _constant(graph, np.ones(MIB, np.float32), "weights")
    for index in range(8):
        value = graph.add(ops.Neg(), value, name=f"neg{index}").output
    run_passes(_finish(graph, value), [FoldConstants(max_growth_bytes=0)])
    assert _names(graph) == {"y"}


def test_regions_share_what_their_network_may_take() -> None:
    graph = _graph()
    flag = graph.add_input("flag", TensorType(DType.BOOL, ()))
    for index in range(6):
        branches: list[Graph] = []
        for name in ("then", "else"):
            branch = Graph(name)
            one = _constant(branch, np.ones(1, np.float32), "one")
            large = branch.add(
                ops.Expand(), one, _constant(branch, _integers(MIB), "shape"), name="large"
            )
            branch.outputs = [branch.add(ops.Neg(), large.output, name="turned").output]
            branches.append(branch)
        node = graph.add(ops.If(branches[0], branches[1]), flag, name=f"if{index}")
        graph.outputs.append(node.output)
    run_passes(graph, [FoldConstants(max_growth_bytes=5 << 20)])
    left = [node for outer in graph.nodes for region in outer.op.regions for node in region.nodes]
    assert sum(node.name == "large" for node in left) >= 6


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (ops.Einsum("a,b,c->"), ((2000,), (2000,), (2000,))),
        (ops.MatMul(), ((2000, 2000), (2000, 2000))),
        (ops.MaxPool((1000,), pads=(500, 500)), ((1, 1, 10_000_000),)),
        (ops.LRN(100_000), ((1, 100, 1000),)),
        (ops.AveragePool((1,), pads=(1 << 24, 1 << 24)), ((1, 4096, 1),)),
    ],
)
def test_long_work_on_constants_is_left_to_the_run(
    op: Op, shapes: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(op), "reference", lambda *_: pytest.fail("it was computed"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    graph = _graph()
    values = [
        _constant(graph, np.broadcast_to(np.float32(1), shape), f"c{i}")
        for i, shape in enumerate(shapes)
    ]
    _finish(graph, graph.add(op, *values, name="long").output)
    report = run_passes(graph, [FoldConstants(max_growth_bytes=1 << 40)])
    assert "long" in _names(graph)
    assert any("MAX_FOLDED_WORK" in note.detail for note in report.notes)


def test_a_recipe_that_runs_a_loop_is_refused() -> None:
    loop = next(iter(ops.Loop.cases()))
    inputs = [None if a is None else Constant(f"c{i}", a) for i, a in enumerate(loop.inputs)]
    with pytest.raises(GraphError, match="known only at run time"):
        compute_untrusted(Constant.derive("made", loop.op, *inputs))


def test_a_recipe_of_long_work_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limit.MAX_FOLDED_WORK, "most", 10_000)
    matrix = Constant("matrix", np.ones((10, 10), np.float32))
    compute_untrusted(Constant.derive("made", ops.MatMul(), matrix, matrix))
    made = matrix
    for index in range(6):
        made = Constant.derive(f"product{index}", ops.MatMul(), made, matrix)
    with pytest.raises(GraphError, match="MAX_FOLDED_WORK is 10,000"):
        compute_untrusted(made)


@pytest.mark.parametrize(
    "fields",
    [
        {"kernel_shape": (1 << 13, 1 << 13)},
        {"kernel_shape": (2, 2), "strides": (1 << 62, 1)},
        {"kernel_shape": (2, 2), "pads": (0, 1 << 40, 0, 0)},
        {"kernel_shape": (2, 2), "dilations": (1, 1 << 30)},
    ],
)
def test_windows_that_no_network_has_are_refused_by_name(fields: dict[str, object]) -> None:
    for op in (ops.MaxPool, ops.AveragePool, ops.Conv):
        with pytest.raises(ShapeError, match="MAX_WINDOW is 16,777,216"):
            op(**fields)  # type: ignore[arg-type]
