"""Whatever the network and whichever tactics run it, its plan for GPUs is sound."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import smelt
from smelt.backends.cuda import CudaBackend
from smelt.engine import read_engine, serialize_engine
from smelt.tuner import CostModelTimer
from tests.property.graphs import graphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.backends.cuda import CudaTarget
    from smelt.engine import KernelSpec
    from smelt.ir import Graph, Node

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)


def _records(self: CudaBackend, kernel: KernelSpec, target: CudaTarget) -> bytes:
    """Only write the kernel's text: compiling takes seconds."""
    compile(self.generate(kernel, target), kernel.symbol, "exec")
    return bytes(16)


@settings(max_examples=60, suppress_health_check=_SLOW)
@given(graphs(max_steps=10), st.integers(0, 1 << 16), st.sampled_from(["float32", "float16"]))
def test_plans_of_any_tactics_pass_the_verifier_and_are_made_again_alike(
    graph: Graph, seed: int, precision: str
) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    assume(not any(value in graph.inputs for value in graph.outputs))
    source = random.Random(seed)  # noqa: S311  (nothing secret)

    def seconds(_: CostModelTimer, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        del node
        return [source.uniform(1e-3, 1e-2) + (10 if t.is_host_step else 0) for t in tactics]

    with (
        mock.patch.object(CostModelTimer, "seconds", seconds),
        mock.patch.object(CudaBackend, "begin"),
        mock.patch.object(CudaBackend, "records", _records),
    ):
        engine = smelt.build(graph, device="cuda:sm_90", tune="none", precision=precision)
        file = read_engine(engine.serialize())
        unsigned = serialize_engine(file.header, file.weights, file.code, b"", None)
        assert smelt.load(unsigned).header == file.header
