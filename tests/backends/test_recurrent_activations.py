"""Kernels of LSTM and GRU do not depend on whether the default activations are named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from smelt import ops
from smelt.ir import Graph
from smelt.types import DType, TensorType
from tests.support.toolchains import open_toolchain


@pytest.mark.parametrize("device", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("cls", [ops.LSTM, ops.GRU])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_named_default_activations_have_the_kernels_of_unnamed_ones(
    device: str, cls: type[ops.LSTM | ops.GRU], direction: str
) -> None:
    tools = open_toolchain(device)
    plain = cls(4, direction)
    names = tuple(name.lower() for name in cls.default_activations) * plain.directions
    found: list[set[str]] = []
    for op in (plain, dataclasses.replace(plain, activations=names)):
        graph, directions = Graph("one"), op.directions
        x = graph.add_input("x", TensorType(DType.FLOAT32, (3, 2, 4)))
        rows = (directions, op.gates * op.hidden_size)
        weights = [
            graph.add_constant(np.ones((*rows, extent), np.float32))
            for extent in (4, op.hidden_size)
        ]
        node = graph.add(op, x, *weights, name="one")
        tactics, _ = tools.backend.candidates(node, tools.target)
        found.append({str(tactic) for tactic in tactics if not tactic.is_host_step})
    assert found[0] == found[1]
    assert found[0]
