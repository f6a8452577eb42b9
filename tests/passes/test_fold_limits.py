"""What is computed of constants at build time has limits, for small models can ask for much."""

from __future__ import annotations

import numpy as np
import pytest

from smelt import ops
from smelt.errors import GraphError, ShapeError
from smelt.ir import (
    Array,
    Constant,
    Graph,
    Op,
    Operand,
    Recipe,
    RecipeBudget,
    Value,
    _untrusted_recipes,
    compute_untrusted,
)
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
        (ops.LRN(1_000_000), ((1, 1, 1),)),
        (ops.LSTM(1), ((1 << 18, 1, 1), (1, 4, 1), (1, 4, 1))),
        (ops.ConvTranspose((1024, 1024)), ((1, 1, 1, 1), (1, 1, 1024, 1024))),
        (ops.Erf(), ((1 << 25,),)),
        (ops.Gelu(), ((1 << 25,),)),
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


def _ones(*shape: int) -> Constant:
    return Constant("ones", np.broadcast_to(np.float32(1), shape))


def _number(value: float, kind: type[np.generic] = np.float32) -> Constant:
    return Constant("number", np.array(value, kind))


def _numbers(*values: float) -> Constant:
    return Constant("numbers", np.array(values, np.float32))


BOXES = 30_000
LARGE = 1 << 22
LONG: dict[str, tuple[Op, tuple[Constant | None, ...]]] = {
    "suppression of many boxes": (
        ops.NonMaxSuppression(),
        (_ones(1, BOXES, 4), _ones(1, 1, BOXES), _number(1 << 30, np.int64), _number(1)),
    ),
    "suppression in many images": (
        ops.NonMaxSuppression(),
        (_ones(1 << 20, 0, 4), _ones(1 << 20, 1, 0), _number(1, np.int64)),
    ),
    "suppression of many classes": (
        ops.DetectionOutput(1000),
        (_ones(300, 4), _ones(300, 1000), _ones(1, 2, 4)),
    ),
    "weights of a resized axis": (
        ops.Resize(mode="linear"),
        (_ones(1, 1, 1 << 14), None, _numbers(1, 1, 1.5)),
    ),
    "taps of a stretched kernel": (
        ops.Resize(mode="linear", antialias=1),
        (_ones(1, 1, 1 << 20), None, _numbers(1, 1, 1e-6)),
    ),
    "a sorted axis": (ops.TopK(), (_ones(1 << 28), _number(1, np.int64))),
    "a padded image": (ops.MaxPool((2,), strides=(LARGE,), pads=(LARGE, 0)), (_ones(1, 300, 1),)),
    "positions of windows without images": (ops.AveragePool((512,)), (_ones(0, 1, 1 << 20),)),
    "scores of heads without elements": (
        ops.Attention(1.0),
        (_ones(1, 1, 40_000, 0), _ones(1, 1, 40_000, 0), _ones(1, 1, 40_000, 0)),
    ),
    "neighbours beyond the channels": (ops.LRN(64), (_ones(1 << 24, 1, 1, 1),)),
    "a depth without indices": (
        ops.OneHot(),
        (_ones(0), _number(1 << 29, np.int64), _numbers(0, 1)),
    ),
    "gates of inputs without elements": (
        ops.LSTM(1),
        (_ones(64, 1 << 21, 0), _ones(1, 4, 0), _ones(1, 4, 1)),
    ),
    "remainders of far exponents": (ops.Mod(fmod=1), (_ones(1 << 24), _ones(1))),
    "products of integers": (
        ops.MatMul(),
        tuple(Constant("w", np.broadcast_to(np.int64(1), s)) for s in ((1024, 1024), (1024, 1024))),
    ),
}
"""Files of some kilobytes took from ten seconds to minutes, or gigabytes, to be retuned."""


@pytest.mark.parametrize("name", LONG)
def test_what_takes_long_or_much_memory_counts_as_much_work(name: str) -> None:
    op, inputs = LONG[name]
    operands = [None if c is None else Operand.constant(c.array) for c in inputs]
    work = op.count_work(operands, op.infer(operands))
    assert isinstance(work, int)
    assert work > Limit.MAX_FOLDED_WORK.most


@pytest.mark.parametrize("op", [ops.TopK(), ops.Resize(), ops.LSTM(1), ops.Mod(fmod=1)])
def test_a_recipe_of_an_op_whose_cost_has_no_simple_bound_is_refused(op: Op) -> None:
    made = Constant("made", recipe=Recipe(op, (_ones(1), _number(1, np.int64))))
    with pytest.raises(GraphError, match=f"{op.name} cannot be a step of a recipe"):
        compute_untrusted(made)


def test_a_constant_that_such_an_op_computes_keeps_no_recipe_and_fixes_its_sources() -> None:
    source = Constant("source", np.array([3, 1, 2], np.float32))
    best = Constant.derive("best", ops.TopK(), source, _number(2, np.int64))
    assert best.recipe is None
    assert best.array.tolist() == [3, 2]
    assert best.is_fixed
    assert source.is_fixed


def test_results_that_nothing_reads_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    reference = ops.TopK.reference

    def counted(op: ops.TopK, *inputs: Array | None) -> tuple[Array, ...]:
        calls.append(op)
        return reference(op, *inputs)

    monkeypatch.setattr(ops.TopK, "reference", counted)
    graph = _graph()
    data, k = _constant(graph, np.arange(9, dtype=np.float32), "w"), _constant(graph, 1, "k")
    best, _ = graph.add(ops.TopK(), data, k, name="best").outputs
    graph.outputs = [graph.add(ops.Add(), graph.inputs[0], best, name="y").output]
    run_passes(graph, [FoldConstants()])
    assert [node.name for node in graph.nodes] == ["y"]
    assert len(calls) == 1


def test_remainders_of_integers_are_no_long_work() -> None:
    """They take some nanoseconds each, unlike those of floats whose exponents are far apart."""
    for dtype, is_long in ((DType.INT64, False), (DType.FLOAT32, True)):
        operands = [Operand(TensorType(dtype, (1 << 24,)))] * 2
        work = ops.Mod(fmod=1).count_work(operands, [operands[0].type])
        assert isinstance(work, int)
        assert (work > Limit.MAX_FOLDED_WORK.most) == is_long


def test_the_work_of_integer_products_is_counted_alike() -> None:
    """A Gemm of integers counted as one of floats, which is some ten times as fast."""
    floats, integers = (
        [Operand(TensorType(dtype, (8, 8)))] * 2 for dtype in (DType.FLOAT32, DType.INT64)
    )
    for op in (ops.MatMul(), ops.Gemm()):
        assert op.count_work(integers, op.infer(integers)) == 8 * op.count_flop(floats)


def test_a_recipe_of_ops_that_compute_others_is_refused() -> None:
    """The intermediate of a pair may be larger than any limit on results."""
    expand_and_sum = ops.FusedPair(ops.Expand(), 2, ops.ReduceSum(keepdims=0))
    inputs = (_ones(1), Constant("shape", _integers(1 << 31)))
    with pytest.raises(GraphError, match="fused_pair cannot be a step of a recipe"):
        compute_untrusted(Constant("made", recipe=Recipe(expand_and_sum, inputs)))


def test_recipes_may_pass_over_an_array_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_untrusted_recipes, "_FREE_ELEMENTS", 0)
    budget, ones = RecipeBudget(), np.ones(1000, np.float32)
    for _ in range(32):  # a negation reads and writes
        compute_untrusted(Constant.derive("made", ops.Neg(), Constant("c", ones)), budget=budget)
    with pytest.raises(GraphError, match="the steps read and write 66,000 elements"):
        compute_untrusted(Constant.derive("made", ops.Neg(), Constant("c", ones)), budget=budget)


def test_a_recipe_that_runs_a_loop_is_refused() -> None:
    loop = next(iter(ops.Loop.cases()))
    inputs = [None if a is None else Constant(f"c{i}", a) for i, a in enumerate(loop.inputs)]
    with pytest.raises(GraphError, match="loop cannot be a step of a recipe"):
        compute_untrusted(Constant("made", recipe=Recipe(loop.op, tuple(inputs))))


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
