"""The pipeline on trained networks: fewer nodes, the same answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.importers.onnx import import_onnx
from smelt.interp import interpret
from smelt.ir import clone, collect_constants, print_graph
from smelt.ops import ALL_OPS
from smelt.passes import DEFAULT_PIPELINE, run_passes
from smelt.types import evaluate_dim, symbols_of
from tests.support.graph_text import parse_graph

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.ir import Array, Graph

OPS = {op.__name__: op for op in ALL_OPS}


def _inputs(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for value in graph.inputs:
        shape = value.tensor.shape
        bound = {name: 1 if i == 0 else 64 for i, d in enumerate(shape) for name in symbols_of(d)}
        extents = [evaluate_dim(d, bound) for d in shape]
        arrays[value.name] = rng.normal(size=extents).astype(value.tensor.dtype.numpy)
    return arrays


@pytest.mark.parametrize(
    ("model", "most_nodes", "tolerance"),
    [
        ("mnist_cntk_onnx/mnist.onnx", 6, 1e-4),
        ("mtcnn_onnx/rnet.onnx", 12, 1e-4),
        ("ppocrv4_cls/ch_ppocr_mobile_v2.0_cls_infer.onnx", 76, 1e-4),
        ("ultraface/version-RFB-320.onnx", 77, 1e-4),
        # Computed in float32, compared with half precision.
        ("squeezenet1.1_fp16_onnx/SqueezeNet_fp16.onnx", 43, 1e-2),
    ],
)
@pytest.mark.requirement("G-1", "G-24")
def test_a_trained_network_gets_smaller_and_answers_the_same(
    model: str, most_nodes: int, tolerance: float, shared: Path
) -> None:
    graph = import_onnx(shared / "models" / model)
    made = clone(graph)
    run_passes(made, DEFAULT_PIPELINE)
    assert len(made.nodes) <= most_nodes
    inputs = _inputs(graph)
    expected, found = interpret(graph, inputs), interpret(made, inputs)
    assert list(found) == list(expected)
    for name, array in expected.items():
        error = np.abs(found[name].astype(np.float64) - array.astype(np.float64)).max()
        assert error <= tolerance * np.abs(array.astype(np.float64)).max()
    text = print_graph(made)
    assert print_graph(parse_graph(text, OPS, collect_constants(made))) == text
