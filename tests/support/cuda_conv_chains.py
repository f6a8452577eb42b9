"""Rows of convolutions as networks for GPUs have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.ir import Graph
from smelt.ops import Conv, Relu
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from smelt.backends import Tactic
    from smelt.ir import Node

TARGET = CudaTarget(90)


def row_of(kinds: str, batch: int) -> tuple[Graph, dict[Node, Tactic]]:
    """Convolutions (c) and activations (r) behind one another, and the first tactic of each."""
    graph, backend = Graph("row"), CudaBackend(jobs=1)
    value = graph.add_input("x", TensorType(DType.FLOAT16, (batch, 64, 56, 56)))
    for number, kind in enumerate(kinds):
        inputs = [value]
        if kind == "c":
            inputs.append(graph.add_constant(np.zeros((64, 64, 1, 1), np.float16), f"w{number}"))
        op = Conv((1, 1)) if kind == "c" else Relu()
        value = graph.add(op, *inputs, name=f"{kind}{number}").output
    graph.outputs.append(value)
    candidates = {node: backend.candidates(node, TARGET)[0] for node in graph.nodes}
    least = {
        key: min(found, key=lambda t: t.estimated_seconds) for key, found in candidates.items()
    }
    return graph, least
