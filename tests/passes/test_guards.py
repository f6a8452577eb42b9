"""Passes replace nodes, but not what their answers rest on."""

from __future__ import annotations

import numpy as np

from smelt import ops
from smelt.ir import Graph
from smelt.passes import FoldConstants, InlineBranches, RemoveUnused, run_passes
from smelt.types import DType, SymbolicDim, TensorType

F = DType.FLOAT32
N = SymbolicDim.symbol("n")


def test_the_guard_of_a_node_that_is_folded_away_stays() -> None:
    graph = Graph("folded")
    x = graph.add_input("x", TensorType(F, (N, 4)))
    y = graph.add_input("y", TensorType(F, (1,)))
    square = graph.add_constant(np.ones((4, 4), np.float32), "square")
    joined = graph.add(ops.Concat(1), x, square, name="joined").output
    shape = graph.add(ops.Shape(), joined, name="shape").output
    graph.outputs = [graph.add(ops.Expand(), y, shape, name="made").output]
    report = run_passes(graph, [FoldConstants(), RemoveUnused()])
    assert [node.op.name for node in graph.nodes] == ["expand"]
    assert [str(guard.violation({"n": 5})) for guard in report.guards] == [
        "concat 'joined': axis 0 of inputs 0 and 1: 5 (n) must equal 4"
    ]


def test_the_guards_of_a_branch_that_is_inlined_are_the_graphs() -> None:
    branches: list[Graph] = []
    for name in ("then", "else"):
        branch = Graph(name)
        x = branch.add_input("x", TensorType(F, (N,)))
        four = branch.add_constant(np.ones(4, np.float32), "four")
        branch.outputs = [branch.add(ops.Add(), x, four, name=name).output]
        branches.append(branch)
    graph = Graph("inlined")
    x = graph.add_input("x", TensorType(F, (N,)))
    yes = graph.add_constant(np.asarray(1, np.bool_), "yes")
    graph.outputs = [graph.add(ops.If(branches[0], branches[1]), yes, x, name="if").output]
    assert not run_passes(graph, []).guards
    report = run_passes(graph, [InlineBranches()])
    assert [str(guard.violation({"n": 1})) for guard in report.guards] == [
        "add 'if/then': axis -1 of the broadcast shapes [n] and [4]: 1 (n) must equal 4"
    ]


def test_a_condition_is_kept_once() -> None:
    graph = Graph("twice")
    x = graph.add_input("x", TensorType(F, (N,)))
    four = graph.add_constant(np.ones(4, np.float32), "four")
    first = graph.add(ops.Add(), x, four, name="first").output
    second = graph.add(ops.Mul(), four, x, name="second").output
    graph.outputs = [first, second]
    assert [guard.node for guard in run_passes(graph, []).guards] == ["add 'first'"]
