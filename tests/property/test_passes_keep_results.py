"""Whatever the network, no pass changes what it computes or what it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings

from smelt.interp import interpret
from smelt.ir import clone, collect_constants, print_graph, verify
from smelt.ops import ALL_OPS
from smelt.passes import ALL_PASSES, DEFAULT_PIPELINE, run_passes
from smelt.types import DType
from tests.property.graphs import graphs, random_inputs
from tests.support.graph_text import parse_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Graph
    from smelt.passes import Pass

OPS = {op.__name__: op for op in ALL_OPS}


def check(graph: Graph, passes: Sequence[Pass], tolerance: float = 1e-4) -> None:
    """The passes keep the outputs' names, types and elements."""
    rewritten = clone(graph)
    run_passes(rewritten, passes)
    before, after = ([(v.name, v.type) for v in g.outputs] for g in (graph, rewritten))
    assert after == before
    inputs = random_inputs(graph)
    expected, found = interpret(graph, inputs), interpret(rewritten, inputs)
    for name, array in expected.items():
        scale = max(float(np.abs(array).max(initial=0)), 1e-3)
        np.testing.assert_allclose(
            found[name].astype(np.float64), array.astype(np.float64), rtol=0, atol=tolerance * scale
        )


@pytest.mark.parametrize("kind", ALL_PASSES, ids=lambda kind: kind.name)
@pytest.mark.slow
def test_each_pass_alone_keeps_every_result(kind: type[Pass]) -> None:
    @settings(max_examples=40)
    @given(graphs(max_steps=8))
    def returns_intermediate(graph: Graph) -> None:
        check(graph, [kind()])

    returns_intermediate()


@settings(max_examples=100)
@given(graphs())
@pytest.mark.requirement("G-24")
def test_the_whole_pipeline_keeps_every_result(graph: Graph) -> None:
    check(graph, DEFAULT_PIPELINE)


@settings(max_examples=30)
@given(graphs(DType.FLOAT16, max_steps=6))
def test_half_precision_is_computed_in_float32_and_given_back_as_it_was_declared(
    graph: Graph,
) -> None:
    check(graph, DEFAULT_PIPELINE, tolerance=3e-2)


@settings(max_examples=30)
@given(graphs())
def test_a_second_run_of_the_pipeline_finds_nothing_to_do(graph: Graph) -> None:
    rewritten = clone(graph)
    run_passes(rewritten, DEFAULT_PIPELINE)
    text = print_graph(rewritten)
    run_passes(rewritten, DEFAULT_PIPELINE)
    assert print_graph(rewritten) == text


@settings(max_examples=50)
@given(graphs())
def test_the_text_of_a_graph_gives_the_graph_back(graph: Graph) -> None:
    for one in (graph, clone(graph)):
        text = print_graph(one)
        again = parse_graph(text, OPS, collect_constants(one))
        verify(again)
        assert print_graph(again) == text
        run_passes(one, DEFAULT_PIPELINE)
    text = print_graph(graph)
    assert print_graph(parse_graph(text, OPS, collect_constants(graph))) == text
