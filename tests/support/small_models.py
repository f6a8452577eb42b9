"""Small ONNX models, made here: a network with everything that the optimiser looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx import helper as untyped_helper

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

helper: Any = untyped_helper
CLASSES = 10


class _Maker:
    """Collects nodes and weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int) -> str:
        array = self.rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]) or 1)
        return self.constant(name, array.astype(np.float32))

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def conv(self, name: str, x: str, channels: int, filters: int, size: int) -> str:
        weights = self.weight(f"{name}.weight", filters, channels, size, size)
        bias = self.weight(f"{name}.bias", filters)
        return self.node("Conv", [x, weights, bias], name, pads=[size // 2] * 4)


def inception_model(batch: int | str = 1, size: int = 16) -> onnx.ModelProto:
    """A stem, three branches that are concatenated, a classifier, and a dead layer.

    Nodes: conv1, relu1; left, left_relu; the 1x1 siblings middle and right, each with a relu and a
    3x3 behind it (wide, deep); concat; pool, flat, scores, prob; and dead, which nobody reads.
    """
    make = _Maker()
    stem = make.node("Relu", [make.conv("conv1", "image", 3, 8, 3)], "relu1")
    left = make.node("Relu", [make.conv("left", stem, 8, 8, 1)], "left_relu")
    middle = make.node("Relu", [make.conv("middle", stem, 8, 8, 1)], "middle_relu")
    right = make.node("Relu", [make.conv("right", stem, 8, 8, 1)], "right_relu")
    wide = make.node("Relu", [make.conv("wide", middle, 8, 8, 3)], "wide_relu")
    deep = make.node("Relu", [make.conv("deep", right, 8, 8, 3)], "deep_relu")
    make.node("Sigmoid", [stem], "dead")
    joined = make.node("Concat", [left, wide, deep], "concat", axis=1)
    pooled = make.node("GlobalAveragePool", [joined], "pool")
    flat = make.node("Flatten", [pooled], "flat")
    weights, bias = make.weight("scores.weight", CLASSES, 24), make.weight("scores.bias", CLASSES)
    scores = make.node("Gemm", [flat, weights, bias], "scores", transB=1)
    make.node("Softmax", [scores], "prob", axis=-1)
    return _model(make, "inception", [batch, 3, size, size], [batch, CLASSES])


def two_inputs_model() -> onnx.ModelProto:
    """Y = relu(a @ w + b): two inputs of one open extent, no picture."""
    make = _Maker()
    product = make.node("MatMul", ["a", make.weight("w", 6, 4)], "product")
    total = make.node("Add", [product, "b"], "total")
    make.node("Relu", [total], "y")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", extent])
        for name, extent in (("a", 6), ("b", 4))
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    graph = helper.make_graph(make.nodes, "affine", inputs, [output], make.weights)
    return _finished(graph)


def boxes_model() -> onnx.ModelProto:
    """NonMaxSuppression, which runs its reference."""
    make = _Maker()
    limits = [
        make.constant("most", np.array([3], np.int64)),
        make.constant("overlap", np.array([0.5], np.float32)),
        make.constant("least", np.array([0.0], np.float32)),
    ]
    make.node("NonMaxSuppression", ["boxes", "scores", *limits], "selected")
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 8, 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, 8]),
    ]
    output = helper.make_tensor_value_info("selected", TensorProto.INT64, ["count", 3])
    return _finished(helper.make_graph(make.nodes, "boxes", inputs, [output], make.weights))


def _model(
    make: _Maker, name: str, shape: list[int | str], result: list[int | str]
) -> onnx.ModelProto:
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)
    output = helper.make_tensor_value_info("prob", TensorProto.FLOAT, result)
    return _finished(helper.make_graph(make.nodes, name, [image], [output], make.weights))


def _finished(graph: onnx.GraphProto) -> onnx.ModelProto:
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    return model


def check_model(model: onnx.ModelProto, *, full: bool = False) -> None:
    """Let ONNX's own checker look at a model; in full, at its shapes too."""
    untyped: Any = onnx
    untyped.checker.check_model(model, full_check=full)


def save_model(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model to a file."""
    path.write_bytes(model.SerializeToString())
    return path
