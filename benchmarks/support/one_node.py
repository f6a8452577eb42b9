"""Models of one node: a kernel of each family on shapes of several networks."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_OPSET: Final = 20

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel."""

    family: str
    op: str
    inputs: tuple[Shape, ...]
    """Shapes of what a run is given."""
    weights: tuple[Shape, ...] = ()
    """Shapes of the constants that come after them; an empty shape is an absent one."""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    indices: int = 0
    """For one that looks up: how many there are to choose from."""
    outputs: int = 1

    @property
    def label(self) -> str:
        """Family and shapes in one word."""
        shapes = [shape for shape in (*self.inputs[:2], *self.weights[:1]) if shape]
        return f"{self.family} " + " ".join("x".join(map(str, shape)) for shape in shapes)

    def save(self, file: Path) -> None:
        """Write the model."""
        onnx: Any = importlib.import_module("onnx")
        helper = onnx.helper
        kind = onnx.TensorProto.INT64 if self.indices else onnx.TensorProto.FLOAT
        names = [f"x{n}" for n in range(len(self.inputs))]
        given = [
            helper.make_tensor_value_info(name, kind, list(shape))
            for name, shape in zip(names, self.inputs, strict=True)
        ]
        weights = [f"w{n}" if shape else "" for n, shape in enumerate(self.weights)]
        order = [*weights, *names] if self.indices else [*names, *weights]
        results = [f"y{n}" for n in range(self.outputs)]
        node = helper.make_node(self.op, order, results, **self.attributes)
        made = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in results
        ]
        constants = [onnx.numpy_helper.from_array(array, f"w{n}") for n, array in self._constants()]
        graph = helper.make_graph([node], self.family, given, made, constants)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        file.write_bytes(onnx.shape_inference.infer_shapes(model).SerializeToString())

    def _constants(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        random = np.random.default_rng(0)
        for number, shape in enumerate(self.weights):
            if self.op == "Resize" and shape:
                yield number, np.array([1, 1, 2, 2], np.float32)
            elif shape:
                yield number, random.standard_normal(shape, dtype=np.float32) * np.float32(0.1)


def _conv(family: str, channels: int, size: int, out: int, kernel: int, **options: int) -> Case:
    stride, groups = options.get("stride", 1), options.get("groups", 1)
    attributes = {
        "strides": [stride] * 2,
        "pads": [kernel // 2] * 4,
        "group": groups,
        "kernel_shape": [kernel] * 2,
    }
    weights = ((out, channels // groups, kernel, kernel), (out,))
    return Case(family, "Conv", ((1, channels, size, size),), weights, attributes)


def _depthwise(channels: int, size: int, kernel: int, stride: int = 1) -> Case:
    family = f"depthwise{kernel}x{kernel}"
    return _conv(family, channels, size, channels, kernel, stride=stride, groups=channels)


def _recurrent(op: str, gates: int, steps: int, size: int, hidden: int) -> Case:
    weights = ((1, gates * hidden, size), (1, gates * hidden, hidden), (1, 2 * gates * hidden))
    return Case(op.lower(), op, ((steps, 1, size),), weights, {"hidden_size": hidden}, outputs=2)


def _pool(family: str, op: str, channels: int, size: int, kernel: int, stride: int) -> Case:
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
    return Case(family, op, ((1, channels, size, size),), (), attributes)


CASES: Final = (
    *(
        Case("gemm", "MatMul", ((rows, inner),), ((inner, columns),))
        for rows, inner, columns in ((1, 2048, 1000), (128, 384, 1536), (128, 1536, 384))
    ),
    Case("batched matmul", "MatMul", ((12, 128, 32), (12, 32, 128))),
    Case("batched matmul", "MatMul", ((12, 128, 128), (12, 128, 32))),
    _conv("conv1x1", 16, 112, 96, 1),
    _conv("conv1x1", 64, 56, 256, 1),
    _conv("conv1x1", 512, 28, 128, 1),
    _conv("conv1x1", 256, 14, 1024, 1),
    _conv("conv1x1", 2048, 7, 512, 1),
    _conv("conv3x3", 64, 56, 64, 3),
    _conv("conv3x3", 128, 28, 128, 3),
    _conv("conv3x3", 256, 14, 256, 3),
    _conv("conv3x3", 512, 7, 512, 3),
    _conv("conv3x3 stride 2", 128, 56, 128, 3, stride=2),
    _conv("conv3x3 stride 2", 256, 28, 256, 3, stride=2),
    _conv("conv5x5", 32, 28, 96, 5),
    _conv("conv7x7 stem", 3, 224, 64, 7, stride=2),
    _conv("conv3x3 stem", 3, 224, 32, 3, stride=2),
    _depthwise(32, 112, 3),
    _depthwise(144, 56, 3, 2),
    _depthwise(384, 14, 3),
    _depthwise(960, 7, 3),
    _depthwise(120, 28, 5),
    Case(
        "deconvolution",
        "ConvTranspose",
        ((1, 64, 28, 28),),
        ((64, 32, 4, 4), (32,)),
        {"strides": [2, 2], "pads": [1] * 4},
    ),
    _pool("max pooling", "MaxPool", 64, 112, 3, 2),
    _pool("max pooling", "MaxPool", 192, 28, 3, 1),
    _pool("average pooling", "AveragePool", 256, 14, 3, 1),
    Case("global pooling", "GlobalAveragePool", ((1, 2048, 7, 7),)),
    Case("global pooling", "GlobalAveragePool", ((1, 512, 28, 28),)),
    Case("softmax", "Softmax", ((12, 128, 128),), (), {"axis": -1}),
    Case("softmax", "Softmax", ((1, 1000),), (), {"axis": -1}),
    Case("layer norm", "LayerNormalization", ((128, 384),), ((384,), (384,))),
    Case("layer norm", "LayerNormalization", ((512, 768),), ((768,), (768,))),
    Case("gelu", "Gelu", ((128, 1536),)),
    Case("tanh", "Tanh", ((1, 64, 56, 56),)),
    Case("add", "Add", ((1, 256, 56, 56), (1, 256, 56, 56))),
    Case("add broadcast", "Add", ((1, 256, 28, 28), (1, 256, 1, 1))),
    Case("mean", "ReduceMean", ((128, 768),), (), {"keepdims": 1}),
    Case("lrn", "LRN", ((1, 64, 56, 56),), (), {"size": 5}),
    Case(
        "resize",
        "Resize",
        ((1, 64, 28, 28),),
        ((), (4,)),
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    ),
    Case(
        "resize nearest",
        "Resize",
        ((1, 96, 11, 11),),
        ((), (4,)),
        {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        },
    ),
    Case("transpose", "Transpose", ((1, 128, 12, 32),), (), {"perm": [0, 2, 1, 3]}),
    Case("transpose", "Transpose", ((1, 64, 112, 112),), (), {"perm": [0, 2, 3, 1]}),
    Case("concat", "Concat", ((1, 128, 28, 28), (1, 192, 28, 28)), (), {"axis": 1}),
    Case("gather", "Gather", ((1, 128),), ((30522, 384),), indices=30522),
    _recurrent("LSTM", 4, 32, 128, 128),
    _recurrent("GRU", 3, 32, 64, 128),
)
