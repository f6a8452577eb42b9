"""Models of one node, and what ONNX Runtime makes of a model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from smelt.importers.onnx import import_onnx
from smelt.interp import interpret
from smelt.ir import verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from smelt.ir import Array


def node_model(
    op: str,
    opset: int,
    inputs: Sequence[Array | None],
    *,
    outputs: int = 1,
    weights: Sequence[int] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; ``weights`` are the positions of inputs that are initialisers."""
    names = ["" if array is None else f"x{index}" for index, array in enumerate(inputs)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, name="the node", **attributes)
    given = [(n, a, i) for i, (n, a) in enumerate(zip(names, inputs, strict=True)) if a is not None]
    graph = helper.make_graph(
        [node],
        "one node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array, index in given
            if index not in weights
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(array, name) for name, array, i in given if i in weights],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 21 else 10
    )


def run_onnxruntime(model: onnx.ModelProto | str, feed: Mapping[str, Array]) -> list[Array]:
    """The outputs that ONNX Runtime computes, with its rewriting switched off."""
    runtime: Any = import_module("onnxruntime")  # it ships no complete types
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    source = model if isinstance(model, str) else model.SerializeToString()
    session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feed)))


def compare(
    model: onnx.ModelProto | str, feed: Mapping[str, Array], tolerance: float = 1e-4
) -> None:
    """Assert that smelt's import, run on the references, agrees with ONNX Runtime."""
    graph = import_onnx(model)
    verify(graph)
    ours = list(interpret(graph, dict(feed)).values())
    theirs = run_onnxruntime(model, feed)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        if mine.dtype.kind == "f":
            scale = float(np.abs(other.astype(np.float64)).max(initial=1e-6))
            error = np.abs(mine.astype(np.float64) - other.astype(np.float64)).max(initial=0)
            assert error <= tolerance * scale
        else:
            assert np.array_equal(mine, other)


def float_info(name: str, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    """A declaration of a float32 tensor."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
