"""Whole plans on common memory: every node is stamped, whatever the graph is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.backends.cpu import CpuBackend, compile_runtime, host_target
from smelt.devices.cpu import native_runtime
from smelt.ir import Graph
from smelt.passes import pipeline, run_passes
from smelt.runtime import split_plan
from smelt.runtime._segments import NativeSegment
from smelt.tuner import CpuPlanFixture, InNetworkTrial, _in_network_trial
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.small_networks import small_network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node
    from smelt.runtime._segments import Segment


def rehearsal(graph: Graph, **batch: int) -> InNetworkTrial:
    image = compile_runtime(host_target())

    def open_fixture(assignments: Sequence[dict[Node, Tactic]]) -> CpuPlanFixture:
        return CpuPlanFixture(
            graph,
            assignments,
            CpuBackend(jobs=1),
            host_target(),
            native_runtime(image.code, dict(image.symbols)),
            symbols=tuple((name, 1, size) for name, size in batch.items()),
            sizes=batch,
            threads=2,
        )

    return InNetworkTrial(graph, open_fixture, sizes=batch)


def first_tactics(graph: Graph) -> dict[Node, Tactic]:
    backend = CpuBackend(jobs=1)
    return {n: backend.candidates(n, host_target())[0][0] for n in graph.nodes}


def optimised(net: smelt.NetworkDefinition) -> Graph:
    graph = net.graph
    run_passes(graph, pipeline())
    return graph


def test_every_node_of_every_plan_is_stamped_in_each_run() -> None:
    graph = optimised(small_network())
    assignments = [first_tactics(graph)] * 2
    made = rehearsal(graph, batch=2).milliseconds(assignments, runs=3, max_seconds=10.0)
    assert len(made) == 2
    for times in made:
        assert len(times) >= 3
        assert times.shape[1] == len(graph.nodes) + 1
        assert (np.diff(times, axis=1) >= 0).all()
        assert (times[:, -1] > 0).all()


def test_when_time_is_up_there_is_still_one_run() -> None:
    graph = optimised(small_network())
    (times,) = rehearsal(graph, batch=1).milliseconds(
        [first_tactics(graph)],
        runs=50,
        max_seconds=0.0,
    )
    assert len(times) == 1


def test_plans_before_one_that_cannot_be_prepared_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = optimised(small_network())
    made: list[Segment] = []
    closed: list[Segment] = []

    def split_first_plan_only(*arguments: Any, **options: Any) -> list[Segment]:
        if made:
            raise MemoryError
        made.extend(split_plan(*arguments, **options))
        return made

    close = NativeSegment.close

    def note_and_close(segment: NativeSegment) -> None:
        closed.append(segment)
        close(segment)

    monkeypatch.setattr(_in_network_trial, "split_plan", split_first_plan_only)
    monkeypatch.setattr(NativeSegment, "close", note_and_close)
    with pytest.raises(MemoryError):
        rehearsal(graph, batch=1).milliseconds([first_tactics(graph)] * 2, runs=1, max_seconds=1.0)
    assert made
    assert closed == made


def test_indices_among_the_weights_are_what_they_are() -> None:
    """A gather by indices that somebody made up would read anywhere."""
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (40_000, 4)))
    indices = graph.add_constant(np.arange(39_999, -1, -1), "indices")
    y = graph.add(ops.Gather(axis=0), x, indices, name="gather").output
    graph.outputs = [graph.add(ops.Relu(), y, name="relu").output]
    (times,) = rehearsal(graph).milliseconds([first_tactics(graph)], runs=2, max_seconds=10.0)
    assert (times[:, -1] > 0).all()


def test_what_python_does_is_left_out() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(DType.FLOAT32, (SymbolicDim.symbol("n"), 8)))
    relu = graph.add(ops.Relu(), x, name="relu")
    slow = graph.add(ops.Erf(), relu.output, name="slow")
    graph.outputs = [graph.add(ops.Relu(), slow.output, name="last").output]
    tactics = first_tactics(graph)
    reference = CpuBackend(jobs=1).candidates(slow, host_target())[0][-1]
    assert reference.is_host_step
    tactics[slow] = reference
    (times,) = rehearsal(graph, n=3).milliseconds([tactics], runs=2, max_seconds=10.0)
    ends = times[0]
    assert ends[0] == pytest.approx(ends[1])
    assert ends[2] > ends[1]
