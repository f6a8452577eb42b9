"""Whatever the network and whichever tactics run it, an engine computes what the references do."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import smelt
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.tuner import CostModelTimer
from smelt.types import DType, TensorType
from tests.property.graphs import graphs, random_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)


@settings(max_examples=40, suppress_health_check=_SLOW)
@given(graphs(max_steps=8))
def test_an_engine_of_the_best_guesses_computes_what_the_references_do(graph: Graph) -> None:
    _check(graph)


@settings(max_examples=60, suppress_health_check=_SLOW)
@given(graphs(max_steps=8), st.integers(0, 1 << 16))
def test_an_engine_of_any_tactics_in_any_formats_computes_what_the_references_do(
    graph: Graph, seed: int
) -> None:
    source = random.Random(seed)  # noqa: S311  (nothing secret)

    def seconds(_: CostModelTimer, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        del node
        return [source.uniform(1e-3, 1e-2) + (10 if t.is_host_step else 0) for t in tactics]

    with mock.patch.object(CostModelTimer, "seconds", seconds):
        _check(graph)


def _check(graph: Graph) -> None:
    assume(not any(value in graph.inputs for value in graph.outputs))
    given_arrays = random_inputs(graph)
    expected = interpret(graph, given_arrays)
    with smelt.build(graph, tune="none") as engine:
        runs: list[dict[str, Any]] = []
        for threads in (1, 3):
            with engine.create_context(threads=threads) as context:
                runs.append(context.run(given_arrays))
    for name, wanted in expected.items():
        one, three = (run[name] for run in runs)
        assert one.shape == wanted.shape
        assert one.dtype == wanted.dtype
        np.testing.assert_array_equal(one, three)
        _compare(one, wanted)


def _compare(mine: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(wanted))
    scale = max(float(np.abs(wanted[finite]).max(initial=0)), 1e-3)
    np.testing.assert_allclose(mine[finite], wanted[finite], rtol=0, atol=2e-4 * scale)


def test_what_goes_in_cannot_be_what_comes_out() -> None:
    graph = Graph("through")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (3,)))
    graph.outputs.append(x)
    with pytest.raises(smelt.BuildError, match="'x' of network 'through' would be two bindings"):
        smelt.build(graph, tune="none")
