"""Graphs as text, and back."""

from __future__ import annotations

import contextlib
import tracemalloc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt import ops
from smelt.errors import GraphError
from smelt.ir import (
    Case,
    Constant,
    Graph,
    Op,
    Operand,
    clone,
    collect_constants,
    print_graph,
    verify,
)
from smelt.types import DType, Layout, SymbolicDim, TensorType, ValueType, override
from tests.support.graph_text import parse_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import Dim

OPS = {op.__name__: op for op in ops.ALL_OPS}
N = SymbolicDim.symbol("n")


@dataclass(frozen=True)
class Curious(Op):
    """An op with an attribute of every kind."""

    name: ClassVar[str] = "curious"

    text: str = ""
    number: float = 0.0
    flag: bool = False
    nothing: int | None = None
    nested: tuple[object, ...] = ()
    layout: Layout = Layout.LINEAR
    extent: Dim = 1
    kind: TensorType | None = None
    elements: Array = field(default_factory=lambda: np.zeros(1))

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        return tuple(o.type for o in inputs if o is not None)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return tuple(a for a in inputs if a is not None)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield Case("none", cls(), ())


def through_text(graph: Graph, kinds: dict[str, type[Op]] | None = None) -> Graph:
    """The graph that the text of a graph describes; its own text is the same."""
    text = print_graph(graph)
    again = parse_graph(text, kinds or OPS, collect_constants(graph))
    verify(again)
    assert print_graph(again) == text
    assert print_graph(clone(again)) == text
    return again


@given(st.text(), st.floats(), st.integers(), st.lists(st.floats(width=32), max_size=40), st.text())
def test_attributes_names_and_elements_survive_whatever_they_are(
    text: str, number: float, integer: int, elements: list[float], name: str
) -> None:
    array = np.asarray(elements, np.float32)
    kind = TensorType(DType.INT8, (N * 2 + 1, 3))
    nested = (integer, (), (text, None, True), DType.FLOAT16, kind, N // 2)
    flag = integer > 0
    op = Curious(text, number, flag, integer, nested, Layout.CHANNELS_LAST, N + 1, kind, array)
    graph = Graph(text)
    x = graph.add_input("x" + name, TensorType(DType.FLOAT32, (N, 2)))
    weights = graph.add_constant(array, "w" + name)
    node = graph.add(op, x, None, weights, name="node" + name, layers=(text, name))
    graph.outputs = [node.output]
    made = through_text(graph, {**OPS, "Curious": Curious}).nodes[0]
    assert isinstance(made.op, Curious)
    assert made.layers == (text, name)
    assert made.op.nested == nested
    assert (made.op.text, made.op.extent, made.op.kind) == (text, N + 1, kind)
    np.testing.assert_array_equal(made.op.elements, array)
    assert made.inputs[2] is not None
    assert made.inputs[2].constant is not None
    np.testing.assert_array_equal(made.inputs[2].constant.array, array)


def test_the_recipe_of_a_constant_is_part_of_the_text() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2,)))
    weights = Constant("w", np.arange(40, dtype=np.float32).reshape(20, 2))
    halves = [
        Constant.derive("half", ops.Split(0, num_outputs=20), weights, None, output=i)
        for i in (3, 4)
    ]
    row = Constant.derive("row", ops.Reshape(), halves[1], Constant("shape", np.asarray([2])))
    graph.outputs = [graph.add(ops.Add(), x, graph.add_constant(row), name="y").output]
    again = through_text(graph)
    (constant,) = again.constants()
    assert {c.name for c in constant.sources()} == {"w", "shape"}
    np.testing.assert_array_equal(constant.array, [8, 9])


def test_a_region_stands_inside_its_node_and_a_copy_has_its_own() -> None:
    case = next(ops.If.cases())
    graph = Graph()
    condition = graph.add_input("c", TensorType(DType.BOOL, ()))
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 3)))
    graph.outputs = [graph.add(case.op, condition, x, name="choose").output]
    graph.symbol_bounds["rows of it"] = 4
    again = through_text(graph)
    assert again.symbol_bounds == graph.symbol_bounds
    copy = clone(graph)
    assert copy.nodes[0].op.regions[0] is not graph.nodes[0].op.regions[0]


def test_stages_are_a_chain_where_they_are_and_fields_where_they_are_not() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2,)))
    y = graph.add_input("y", TensorType(DType.FLOAT32, (2,)))
    fused_pair = ops.Fused(
        ops.Relu(),
        1,
        (ops.Stage(ops.Add(), (1, -1)), ops.Stage(ops.Neg(), (2,)), ops.Stage(ops.Mul(), (-2, -3))),
    )
    node = graph.add(fused_pair, x, y, x, name="fused_pair")
    # An input that no stage reads has no place in a chain.
    odd = graph.add(ops.Fused(ops.Relu(), 1, (ops.Stage(ops.Neg(), (-1,)),)), x, y, name="odd")
    graph.outputs = [node.output, odd.output]
    text = print_graph(graph)
    assert "Relu %x | Add %y, $ || Neg %x | Mul $1, $" in text
    assert "Fused(root=Relu, root_inputs=1, stages=[Stage(op=Neg, arguments=[-1])]) %x, %y" in text
    again = through_text(graph)
    assert [n.op for n in again.nodes] == [fused_pair, odd.op]


GOOD = """graph g {
  input %x: float32[n, 2]
  const %w: float32[2] [1.0, 2.0]
  %y: float32[n, 2] = Add %x, %w | Relu @a of a, b
  return %y
}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Add", "Bad", "line 4.*Bad is not an op"),
        ("%w |", "%v |", "%v is not defined above"),
        ("float32[n, 2] = ", "float32[n, 3] = ", "which differs from the declared types"),
        ("[1.0, 2.0]", "[1.0]", "the elements do not fit"),
        ("[1.0, 2.0]", "#0123456789ab", "not among the given constants"),
        ("input %x", "input %w", "defined twice"),
        ("float32[n, 2]\n", "float33[n, 2]\n", "float33 is not an element type"),
        ("float32[n, 2]\n", f"float32[n{', 1' * 32}]\n", "line 2.*MAX_RANK is 32"),
        ("Add %x", "Add(axis=<n n>) %x", "line 4.*not a dimension"),
        ("[n, 2]\n", "[n(), 2]\n", "not a dimension"),
        ("Add %x", "Add(axis=1) %x", "Add cannot have these attributes"),
        ("Add %x", "Cast(to=DType.FLOAT31) %x", "DType has no member FLOAT31"),
        ("| Relu", "| Softmax", "not elementwise"),
        ("return %y\n}", "return %y", "expected '}'"),
        ("}\n", "} more", "expected the end of the text"),
        ("[1.0, 2.0]", "[" * 100, "nested deeper than MAX_REGION_DEPTH"),
    ],
)
def test_a_wrong_text_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    parse_graph(GOOD, OPS)
    with pytest.raises(GraphError, match=message):
        parse_graph(GOOD.replace(old, new), OPS)


@given(st.data())
def test_no_text_does_worse_than_be_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD)))
    stop = data.draw(st.integers(start, min(start + 20, len(GOOD))))
    inserted = data.draw(st.text('%[](){}=,.|$_-#"\\0123456789eEnax \n', max_size=12))
    with contextlib.suppress(GraphError):
        verify(parse_graph(GOOD[:start] + inserted + GOOD[stop:], OPS))


def test_a_string_without_an_end_takes_no_memory_to_find_out() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(GraphError, match="expected a name"):
            parse_graph('graph "' + "a" * 1_000_000, {})
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
