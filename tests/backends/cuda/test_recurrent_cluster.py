"""Programs that share the units of a state run at the same time, and hold all of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.backends import Tactic, WeightStore, build_plan
from smelt.backends.cuda import CompilerPool, CudaBackend, CudaTarget
from smelt.devices.cuda import CudaKernel
from smelt.engine import Launch
from smelt.ir import Graph
from smelt.ops import GRU, LSTM
from smelt.types import DType, TensorType, evaluate_dim

if TYPE_CHECKING:
    from smelt.ir import Node

_HOPPER = CudaTarget(90)
_TIME_STEPS = 16


def _graph(op: LSTM | GRU, batch: int = 3) -> tuple[Graph, Node]:
    graph, width = Graph("one"), 5
    x = graph.add_input("x", TensorType(DType.FLOAT32, (_TIME_STEPS, batch, width)))
    rows, random = op.gates * op.hidden_size, np.random.default_rng(0)
    shapes = ((op.directions, rows, width), (op.directions, rows, op.hidden_size))
    weights = [
        graph.add_constant(random.standard_normal(shape).astype(np.float32), f"w{k}")
        for k, shape in enumerate(shapes)
    ]
    node = graph.add(op, x, *weights, name="node")
    graph.outputs += node.outputs
    return graph, node


def _teams(node: Node, target: CudaTarget = _HOPPER) -> list[Tactic]:
    return [t for t in CudaBackend().candidates(node, target)[0] if "cluster" in dict(t.parameters)]


@pytest.mark.parametrize(
    ("op", "target"),
    [
        (LSTM(512), _HOPPER),
        (LSTM(128), CudaTarget(80)),
        (LSTM(128), CudaTarget(80, newer_capabilities=(90,))),
    ],
    ids=["too many weights", "no clusters", "not everywhere"],
)
def test_they_are_not_offered_where_they_cannot_run(op: LSTM, target: CudaTarget) -> None:
    _, node = _graph(op)
    assert not _teams(node, target)


@pytest.mark.parametrize("op", [LSTM(128), GRU(100, "bidirectional")], ids=["lstm", "gru"])
def test_they_are_expected_to_be_the_fastest(op: LSTM | GRU) -> None:
    _, node = _graph(op)
    tactics, _ = CudaBackend().candidates(node, _HOPPER)
    assert min(tactics, key=lambda t: t.estimated_seconds) in _teams(node)


def test_a_launch_says_how_many_run_at_the_same_time(compilers: CompilerPool) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    op = LSTM(32, "bidirectional")
    graph, node = _graph(op)
    backend = CudaBackend(pool=compilers)
    tactic = next(t for t in _teams(node) if ("cluster", 4) in t.parameters)
    plan = build_plan(graph, {node: tactic}, backend, WeightStore()).plan
    first, second = (step for step in plan.steps if isinstance(step, Launch))
    assert evaluate_dim(second.chunks, {}) == op.directions * 3 * 4
    records = [
        CudaKernel.from_bytes(backend.records(k.kernel, _HOPPER), 0) for k in (first, second)
    ]
    assert [record.cluster for record in records] == [1, 4]


@pytest.mark.parametrize(
    ("op", "exchanges"),
    [(LSTM(32), 1), (GRU(32), 2), (GRU(32, linear_before_reset=1), 1)],
    ids=["lstm", "gru", "late reset"],
)
def test_the_warps_of_a_program_meet_before_it_writes_what_others_read(
    op: LSTM | GRU, exchanges: int
) -> None:
    graph, node = _graph(op)
    backend = CudaBackend()
    plan = build_plan(graph, {node: _teams(node)[0]}, backend, WeightStore()).plan
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    lines = [x.strip() for x in backend.generate(launches[-1].kernel, _HOPPER).splitlines()]
    stores = [k for k, line in enumerate(lines) if line.startswith("tl.store(words")]
    assert len(stores) == exchanges
    assert all(lines[k - 1].startswith("tl.debug_barrier()") for k in stores)
