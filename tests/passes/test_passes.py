"""What the passes together promise, whatever each of them does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import smelt
import smelt.passes
from smelt import ops
from smelt.errors import DeviceError, GraphError, InternalError
from smelt.interp import interpret
from smelt.ir import Constant, Graph, Node, clone, print_graph
from smelt.passes import (
    ALL_PASSES,
    DEFAULT_PIPELINE,
    FoldConstants,
    MergeSiblings,
    Note,
    Pass,
    PassRecord,
    PassResult,
    RemoveUnused,
    pipeline,
    run_passes,
)
from smelt.types import DType, SymbolicDim, TensorType, override

RNG = np.random.default_rng(0)


class Builder:
    """A network of named layers on images of eight channels."""

    def __init__(self, batch: int | SymbolicDim = 1) -> None:
        self.graph = Graph("net")
        self.x = self.graph.add_input("data", TensorType(DType.FLOAT32, (batch, 8, 4, 4)))

    def constant(self, name: str, *shape: int, low: float = -1.0) -> Constant:
        return Constant(name, RNG.uniform(low, 1, shape).astype(np.float32))

    def conv(self, name: str, source: Node | None = None, filters: int = 8) -> Node:
        x = self.x if source is None else source.output
        weight, bias = (
            self.constant(f"{name}.w", filters, 8, 1, 1),
            self.constant(f"{name}.b", filters),
        )
        values = [self.graph.add_constant(weight), self.graph.add_constant(bias)]
        return self.graph.add(ops.Conv((1, 1)), x, *values, name=name)

    def add(self, op: ops.Op, *sources: Node, name: str) -> Node:
        return self.graph.add(op, *(s.output for s in sources), name=name)

    def normalize(self, source: Node, name: str) -> Node:
        parameters = [self.constant(f"{name}.{p}", 8, low=0.5) for p in ("s", "b", "m", "v")]
        values = [self.graph.add_constant(c) for c in parameters]
        return self.graph.add(ops.BatchNormalization(), source.output, *values, name=name)

    def optimised(self, *outputs: Node) -> Graph:
        """The network after the whole pipeline; it computes what it did."""
        self.graph.outputs = [node.output for node in outputs]
        made = clone(self.graph)
        run_passes(made, DEFAULT_PIPELINE)
        x = RNG.normal(size=(1, 8, 4, 4)).astype(np.float32)
        before, after = interpret(self.graph, {"data": x}), interpret(made, {"data": x})
        assert list(before) == list(after)
        for name, array in before.items():
            np.testing.assert_allclose(after[name], array, rtol=1e-4, atol=1e-5)
        return made


def layers(graph: Graph) -> list[tuple[str, ...]]:
    return [node.layers for node in graph.nodes]


@pytest.mark.requirement("G-24")
def test_layers_whose_outputs_are_unused_are_eliminated() -> None:
    b = Builder()
    used, unused = b.conv("used"), b.conv("unused")
    b.add(ops.Tanh(), unused, name="unused_too")
    assert layers(b.optimised(used)) == [("used",)]


@pytest.mark.requirement("G-24", "G-59")
def test_convolution_bias_and_relu_become_one_layer_that_has_both_names() -> None:
    b = Builder()
    made = b.optimised(b.add(ops.Relu(), b.conv("conv1"), name="relu1"))
    (node,) = made.nodes
    assert node.layers == ("conv1", "relu1")
    assert isinstance(node.op, ops.Fused)
    assert isinstance(node.op.root, ops.Conv)
    assert len(node.inputs) == 3  # the bias is an input of the convolution


@pytest.mark.requirement("G-24", "G-59")
def test_convolutions_of_one_source_with_the_same_parameters_become_one_wider() -> None:
    b = Builder()
    heads = [b.add(ops.Relu(), b.conv(name), name=f"{name}_relu") for name in ("a", "b")]
    pools = [b.add(ops.GlobalAveragePool(), h, name=f"{h.name}_pool") for h in heads]
    made = b.optimised(*pools)
    wide, split, *_ = made.nodes
    assert wide.layers == ("a", "a_relu", "b", "b_relu")
    assert wide.output.tensor.shape == (1, 16, 4, 4)
    assert isinstance(split.op, ops.Split)
    assert len(made.nodes) == 4


def test_siblings_that_end_differently_stay_apart() -> None:
    b = Builder()
    heads = [b.add(ops.Relu(), b.conv("a"), name="relu"), b.add(ops.Tanh(), b.conv("b"), name="t")]
    pools = [b.add(ops.GlobalAveragePool(), h, name=f"{h.name}_pool") for h in heads]
    assert len(b.optimised(*pools).nodes) == 4


@pytest.mark.requirement("G-24")
def test_a_concatenation_whose_inputs_can_be_written_in_place_is_reported() -> None:
    b = Builder()
    join = b.add(ops.Concat(1), b.conv("a"), b.add(ops.Relu(), b.conv("b"), name="r"), name="join")
    b.optimised(join)
    report = run_passes(clone(b.graph), DEFAULT_PIPELINE)
    notes = [note for note in report.notes if "join" in note.before]
    assert [note.detail for note in notes] == ["its inputs are written directly into its result"]


@pytest.mark.requirement("G-27")
def test_a_layer_marked_as_output_is_not_fused_and_the_report_says_why() -> None:
    b = Builder()
    conv = b.conv("conv1")
    made = b.optimised(conv, b.add(ops.Relu(), conv, name="relu1"))
    assert layers(made) == [("conv1",), ("relu1",)]
    report = run_passes(clone(b.graph), DEFAULT_PIPELINE)
    (note,) = [n for n in report.notes if not n.applied]
    assert note.before == ("conv1",)
    assert "'conv1' is an output of the network" in note.detail


@pytest.mark.requirement("G-27")
def test_every_layer_may_be_an_output() -> None:
    b = Builder()
    first, second = b.conv("a"), b.conv("b")
    rest = [b.add(ops.Add(), first, second, name="sum"), b.add(ops.Mul(), first, first, name="sq")]
    made = b.optimised(first, second, *rest)
    assert [v.name for v in made.outputs] == ["a", "b", "sum", "sq"]


@pytest.mark.requirement("G-1", "G-7")
def test_batch_normalisation_goes_into_the_weights_and_they_can_be_refitted() -> None:
    b = Builder()
    conv = b.conv("conv1")
    made = b.optimised(b.add(ops.Relu(), b.normalize(conv, "bn1"), name="relu1"))
    (node,) = made.nodes
    assert node.layers == ("conv1", "bn1", "relu1")
    weight = node.inputs[1]
    assert weight is not None
    assert weight.constant is not None
    sources = {c.name for c in weight.constant.sources()}
    assert {"conv1.w", "bn1.s", "bn1.v"} <= sources
    assert "bn1.m" not in sources


@pytest.mark.requirement("G-7")
def test_batch_normalisation_that_nothing_can_take_in_is_a_product_and_a_sum() -> None:
    b = Builder()
    relu = b.add(ops.Relu(), b.conv("conv1"), name="relu1")
    made = b.optimised(relu, b.normalize(relu, "bn1"))
    assert layers(made) == [("conv1", "relu1"), ("bn1",)]
    last = made.nodes[-1].op
    assert isinstance(last, ops.Fused)
    assert (type(last.root), [type(s.op) for s in last.stages]) == (ops.Mul, [ops.Add])


def test_a_residual_joins_the_convolution_that_ends_its_block() -> None:
    b = Builder()
    first = b.add(ops.Relu(), b.conv("a"), name="ra")
    second = b.conv("b", first)
    joined = b.add(ops.Relu(), b.add(ops.Add(), second, first, name="sum"), name="rb")
    assert layers(b.optimised(joined)) == [("a", "ra"), ("b", "sum", "rb")]


def test_the_batch_may_be_a_symbol() -> None:
    b = Builder(SymbolicDim.symbol("n"))
    relu = b.add(ops.Relu(), b.normalize(b.conv("a"), "bn"), name="r")
    shape = b.add(ops.Shape(), relu, name="shape")
    b.graph.outputs = [b.graph.add(ops.Reshape(), relu.output, shape.output, name="y").output]
    made = clone(b.graph)
    run_passes(made, DEFAULT_PIPELINE)
    assert layers(made) == [("a", "bn", "r")]
    assert [str(v.type) for v in made.outputs] == ["float32[n, 8, 4, 4]"]


def test_prior_boxes_of_known_shapes_are_computed_at_build_time() -> None:
    graph = Graph()
    case = next(c for c in ops.PriorBox.cases())
    kinds = [TensorType(DType.FLOAT32, a.shape) for a in case.inputs if a is not None]
    inputs = [graph.add_input(f"x{i}", kind) for i, kind in enumerate(kinds)]
    boxes = graph.add(case.op, *inputs, name="boxes")
    graph.outputs = [graph.add(ops.Neg(), boxes.output, name="y").output]
    arrays = {f"x{i}": a for i, a in enumerate(case.inputs) if a is not None}
    expected = interpret(graph, arrays)
    run_passes(graph, [FoldConstants()])
    assert [n.name for n in graph.nodes] == ["y"]
    np.testing.assert_array_equal(interpret(graph, arrays)["y"], expected["y"])


def test_passes_reach_into_regions() -> None:
    case = next(ops.If.cases())
    graph = Graph()
    condition = graph.add_input("c", TensorType(DType.BOOL, ()))
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 3)))
    graph.outputs = [graph.add(case.op, condition, x, name="choose").output]
    region = case.op.regions[0]
    region.add(ops.Tanh(), region.inputs[0], name="dead")
    report = run_passes(graph, [RemoveUnused()])
    assert [n.name for n in region.nodes] == ["then_result"]
    assert (report.records[0].nodes_before, report.records[0].nodes_after) == (4, 3)


@dataclass(frozen=True)
class Break(Pass):
    """Leave the graph with a value that nothing makes."""

    name: ClassVar[str] = "break"

    @override
    def apply(self, graph: Graph) -> PassResult:
        graph.nodes.pop(0)
        return PassResult(modified=False)


@dataclass(frozen=True)
class Stop(Pass):
    """Refuse every graph."""

    name: ClassVar[str] = "stop"

    @override
    def requires(self, graph: Graph) -> None:
        raise GraphError(f"no {graph.name} is good enough")

    @override
    def apply(self, graph: Graph) -> PassResult:
        return PassResult(modified=bool(graph.nodes))


def test_a_pass_that_breaks_the_graph_is_named_with_those_before_it() -> None:
    b = Builder()
    b.graph.outputs = [b.add(ops.Relu(), b.conv("a"), name="r").output]
    with pytest.raises(InternalError, match=r"after pass break, after remove-unused"):
        run_passes(b.graph, [RemoveUnused(), Break()])


def test_what_a_pass_requires_is_the_users_affair() -> None:
    with pytest.raises(GraphError, match="no net is good enough"):
        run_passes(Builder().graph, [Stop()])


def test_the_report_is_json_and_text_and_tells_a_listener_as_it_goes() -> None:
    b = Builder()
    b.graph.outputs = [b.add(ops.Relu(), b.conv("a"), name="r").output]
    heard: list[PassRecord] = []
    report = run_passes(b.graph, DEFAULT_PIPELINE, heard.append)
    assert heard == report.records
    data = json.loads(json.dumps(report.to_json()))
    assert [p["name"] for p in data["passes"]] == [p.name for p in DEFAULT_PIPELINE]
    fused = next(p for p in data["passes"] if p["name"] == "fuse-epilogues")
    assert (fused["nodes_before"], fused["nodes_after"]) == (2, 1)
    assert fused["notes"][0]["after"] == ["a", "r"]
    assert "a + r -> a + r: Conv | Relu" in str(report)


def test_half_precision_stays_where_it_is_wanted() -> None:
    names = [one.name for one in pipeline("float16")]
    assert "promote-half" not in names
    assert "promote-half" in [one.name for one in pipeline("float32")]


def test_a_backend_says_what_it_has_no_code_to_fuse_and_what_it_wants_whole() -> None:
    b = Builder()
    relu = b.add(ops.Relu(), b.conv("a"), name="r")
    b.graph.outputs = [b.add(ops.LogSoftmax(), relu, name="s").output]
    run_passes(b.graph, pipeline(non_fusable_ops={"relu"}, non_decomposed_ops={"log_softmax"}))
    assert layers(b.graph) == [("a",), ("r",), ("s",)]


@pytest.mark.parametrize("composite_ops", [(), ("gather",)])
def test_what_follows_picked_lines_is_computed_with_them_where_there_is_code(
    composite_ops: tuple[str, ...],
) -> None:
    graph = Graph("rows")
    places = graph.add_input("places", TensorType(DType.INT64, (1, 3)))
    for name, kind in (("floats", np.float32), ("counts", np.int32), ("doubles", np.float64)):
        table = graph.add_constant(np.ones((5, 4), kind), f"{name}.table")
        picked = graph.add(ops.Gather(), table, places, name=name)
        added = graph.add_constant(np.ones((3, 4), kind), f"{name}.added")
        graph.outputs += graph.add(ops.Add(), picked.output, added, name=f"{name}.sum").outputs
    run_passes(graph, pipeline(supported_composite_ops=composite_ops))
    floats = [("floats", "floats.sum")] if composite_ops else [("floats",), ("floats.sum",)]
    others = [("counts",), ("counts.sum",), ("doubles",), ("doubles.sum",)]
    assert layers(graph) == [*floats, *others]


def test_ops_of_several_are_made_for_a_backend_that_has_code_for_them() -> None:
    made = {
        "fused_pair": "fuse-conv-depthwise",
        "attention": "fuse-attention",
        "conv_sum": "fuse-conv-sums",
        "int8_products": "absorb-quantization",
    }
    for wanted in (
        (),
        ("fused_pair",),
        ("attention",),
        ("attention", "conv_sum"),
        ("int8_products",),
    ):
        names = {one.name for one in pipeline(supported_composite_ops=wanted)}
        assert names & set(made.values()) == {made[op] for op in wanted}
    assert [one.name for one in pipeline()] == [
        one.name for one in pipeline(supported_composite_ops=("fused_pair", "int8_products"))
    ]


def test_options_of_a_pass_are_its_fields() -> None:
    b = Builder()
    heads = [b.conv(name, filters=64) for name in ("a", "b")]
    pools = [b.add(ops.GlobalAveragePool(), h, name=f"{h.name}_pool") for h in heads]
    b.graph.outputs = [p.output for p in pools]
    text = print_graph(b.graph)
    report = run_passes(b.graph, [MergeSiblings(max_channels=32)])
    assert print_graph(b.graph) == text
    assert all("occupy the whole device" in note.detail for note in report.notes)
    assert report.records[0].options["max_channels"] == 32


def test_every_pass_has_a_file_of_its_name_and_is_in_the_table() -> None:
    folder = Path(smelt.passes.__file__).parent
    # Precision is assigned by the tactic selection, again after each change of the float32 layers.
    files = {p.stem for p in folder.glob("[a-z]*.py")} - {"pipeline", "assign_precision"}
    assert files == {kind.name.replace("-", "_") for kind in ALL_PASSES}
    assert {type(one) for one in DEFAULT_PIPELINE} == set(ALL_PASSES)


def test_notes_read_well() -> None:
    assert str(Note(("a", "b"), ("c",), "why")) == "a + b -> c: why"
    assert str(Note(("a",))) == "a -> (nothing)"
    assert str(Note.refusal(("a",), "why not")) == "a: kept: why not"


def test_a_note_on_very_many_layers_names_a_few() -> None:
    note = Note(tuple(f"layer{i}" for i in range(10_000)), ("one",))
    assert len(note.before) < 50
    assert note.before[-1] == "9968 more"


@pytest.mark.parametrize("target", [DType.FLOAT32, DType.INT64])
def test_a_networks_own_cast_to_float16_still_rounds(target: DType) -> None:
    """Float16 is computed in float32; the network relies on the rounding that it asks for."""
    graph = Graph("rounding")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (6,)))
    half = graph.add(ops.Cast(DType.FLOAT16), x, name="half")
    half = graph.add(ops.Relu(), half.output, name="relu")
    graph.outputs.extend(graph.add(ops.Cast(target), half.output, name="y").outputs)
    array = np.array([2047, 2049, 2051, 4099, 33333, 65503], np.float32)
    with smelt.build(graph, tune="none") as engine:
        (result,) = engine.run({"x": array}).values()
    np.testing.assert_array_equal(result, array.astype(np.float16).astype(target.numpy))


def test_casts_that_stay_are_not_promoted_again() -> None:
    graph = Graph("rounding")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (6,)))
    half = graph.add(ops.Cast(DType.FLOAT16), x, name="half").output
    half = graph.add(ops.Relu(), half, name="relu").output
    graph.outputs.append(graph.add(ops.Cast(DType.FLOAT32), half, name="y").output)
    assert smelt.passes.PromoteHalf().apply(graph).modified
    text = print_graph(graph)
    assert not smelt.passes.PromoteHalf().apply(graph).modified
    assert print_graph(graph) == text


@dataclass(frozen=True)
class Exhaust(Pass):
    """Compute a value that does not fit into memory."""

    name: ClassVar[str] = "exhaust"
    discovers_values: ClassVar[bool] = True

    @override
    def apply(self, graph: Graph) -> PassResult:
        raise DeviceError(f"{graph.name} needs more memory")


def test_values_that_do_not_fit_into_memory_are_no_fault_of_the_pass() -> None:
    with pytest.raises(DeviceError, match="net needs more memory"):
        run_passes(Builder().graph, [Exhaust()])
