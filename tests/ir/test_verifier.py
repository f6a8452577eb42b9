"""Every rule of a well-formed graph has a graph that breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt import ops
from smelt.errors import GraphError, InternalError
from smelt.ir import Constant, Graph, Value, verify
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable

VECTOR = TensorType(DType.FLOAT32, (3,))


def chain() -> Graph:
    """Two activations in a row."""
    graph = Graph("chain")
    x = graph.add_input("x", VECTOR)
    relu = graph.add(ops.Relu(), x, name="relu")
    graph.outputs = [graph.add(ops.Tanh(), relu.output, name="tanh").output]
    return graph


def reverse_nodes(graph: Graph) -> None:
    graph.nodes.reverse()


def make_a_cycle(graph: Graph) -> None:
    graph.set_input(graph.nodes[0], 0, graph.nodes[1].output)


def repeat_a_node_name(graph: Graph) -> None:
    graph.nodes[1].name = "relu"


def repeat_a_value_name(graph: Graph) -> None:
    graph.nodes[1].output.name = "x"


def name_two_constants_alike(graph: Graph) -> None:
    for name in ("a", "b"):
        value = graph.add_constant(Constant("w", np.ones(3, np.float32)))
        graph.outputs.append(graph.add(ops.Neg(), value, name=name).output)


def forget_a_user(graph: Graph) -> None:
    graph.inputs[0].users.clear()


def read_a_stranger(graph: Graph) -> None:
    graph.set_input(graph.nodes[0], 0, Value("stranger", VECTOR))


def read_a_removed_node(graph: Graph) -> None:
    graph.nodes.pop(0)


def return_a_stranger(graph: Graph) -> None:
    graph.outputs = [Value("stranger", VECTOR)]


def declare_another_type(graph: Graph) -> None:
    graph.nodes[0].output.type = TensorType(DType.FLOAT32, (4,))


def take_a_result_as_input(graph: Graph) -> None:
    graph.inputs.append(graph.nodes[0].output)


def take_an_input_twice(graph: Graph) -> None:
    graph.inputs.append(graph.inputs[0])


def make_too_many_results(graph: Graph) -> None:
    graph.nodes[1].outputs.append(Value("more", VECTOR, producer=graph.nodes[1]))


def declare_a_negative_extent(graph: Graph) -> None:
    graph.inputs[0].type = TensorType(DType.FLOAT32, (-3,))


def list_a_node_twice(graph: Graph) -> None:
    graph.nodes.append(graph.nodes[0])


def bound_a_symbol_below_zero(graph: Graph) -> None:
    graph.symbol_bounds["n"] = -1


def count_two_things_by_one_symbol(graph: Graph) -> None:
    for name in ("first", "second"):
        graph.add(ops.NonZero(count_symbol="found"), graph.inputs[0], name=name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (count_two_things_by_one_symbol, "second.*first.* both determine the symbol 'found'"),
        (reverse_nodes, "before relu 'relu' computes it"),
        (make_a_cycle, "cycle"),
        (repeat_a_node_name, "2 nodes have the name 'relu'"),
        (repeat_a_value_name, "two values have the name 'x'"),
        (name_two_constants_alike, "two constants have the name 'w'"),
        (forget_a_user, "users recorded at 'x'"),
        (read_a_stranger, "'stranger', which is not an input"),
        (read_a_removed_node, "which is not in the graph"),
        (return_a_stranger, "output 'stranger' is not computed by a node"),
        (declare_another_type, r"declared as float32\[4\], but is inferred as float32\[3\]"),
        (take_a_result_as_input, "also a constant or the result"),
        (take_an_input_twice, "listed twice among the inputs"),
        (make_too_many_results, "has 2 results, but its op has 1"),
        (declare_a_negative_extent, "negative extent"),
        (list_a_node_twice, "2 nodes have the name"),
        (bound_a_symbol_below_zero, "has the bound -1"),
    ],
)
def test_a_damaged_graph_is_refused_with_the_damage_named(
    damage: Callable[[Graph], None], message: str
) -> None:
    graph = chain()
    verify(graph)
    damage(graph)
    with pytest.raises(GraphError, match=message):
        verify(graph)
    with pytest.raises(InternalError, match="after pass p"):
        verify(graph, during="pass p")


def test_two_values_may_hold_one_constant() -> None:
    graph = chain()
    shared = Constant("w", np.ones(3, np.float32))
    for name in ("a", "b"):
        graph.outputs.append(graph.add(ops.Neg(), graph.add_constant(shared), name=name).output)
    verify(graph)


def test_a_fault_inside_a_region_names_the_region_and_its_node() -> None:
    case = next(ops.If.cases())
    graph = Graph()
    inputs = [graph.add_input("c", TensorType(DType.BOOL, ()))]
    inputs.append(graph.add_input("x", TensorType(DType.FLOAT32, (2, 3))))
    node = graph.add(case.op, *inputs, name="choose")
    graph.outputs = [node.output]
    verify(graph)
    case.op.regions[1].nodes[0].output.name = "x"
    with pytest.raises(GraphError, match=r"choose.*in region 'else'.*two values"):
        verify(graph)


def test_what_is_printed_of_a_network_stays_short_however_large_it_is() -> None:
    graph = Graph("deep")
    value = graph.add_input("x", VECTOR)
    for number in range(200):
        value = graph.add(ops.Add(), value, value, name=f"add{number}").output
    graph.outputs = [value]
    assert repr(graph) == "<Graph 'deep': 1 inputs, 200 nodes, 1 outputs>"
    assert repr(value) == "<Value 'add199': float32[3]>"
    assert repr(graph.nodes[7]) == "<Node add 'add7'>"


def test_constant_may_have_the_name_of_a_result() -> None:
    graph = chain()
    value = graph.add_constant(Constant("c", np.ones(3, np.float32)))
    graph.outputs.append(graph.add(ops.Identity(), value, name="copy", output_names=("c",)).output)
    verify(graph)
    assert graph.values_by_name()["c"] is graph.outputs[-1]
    graph.outputs[0].name = "c"
    with pytest.raises(GraphError, match="two values have the name 'c'"):
        verify(graph)
