"""ConvNeXt-T (Liu et al., "A ConvNet for the 2020s", 2022) with seeded random weights.

Before training, its layer scales are a millionth: what a block adds to its input is next to
nothing, and so are the factors that a kernel is given. Such a network answers with its stem and its
three reductions alone; that its blocks are right as well is seen with scales as training leaves
them.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CONVNEXTS: Final = {"convnext_untrained": (1e-6, 1e-6), "convnext": (0.0, 0.3)}
"""The least and the largest layer scale of each."""
DEPTHS: Final = (3, 3, 9, 3)
WIDTHS: Final = (96, 192, 384, 768)
EXTENT: Final = 224
_CLASSES: Final = 1000
_OPSET: Final = 20
_NHWC: Final = (0, 2, 3, 1)
_NCHW: Final = (0, 3, 1, 2)


def build_convnext(
    name: str,
    file: Path,
    depths: tuple[int, ...] = DEPTHS,
    widths: tuple[int, ...] = WIDTHS,
    extent: int = EXTENT,
) -> None:
    """Write a network with a free batch.

    Args:
        name: which of `CONVNEXTS`.
        file: where it is written.
        depths: blocks of each stage.
        widths: channels of each stage.
        extent: of the picture's sides.
    """
    writer = _Writer(CONVNEXTS[name])
    value = writer.convolve("x", 3, widths[0], 4, strides=[4, 4])
    value = writer.over_channels(value, widths[0])
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if stage:
            value = writer.over_channels(value, widths[stage - 1])
            value = writer.convolve(value, widths[stage - 1], width, 2, strides=[2, 2])
        for _ in range(depth):
            value = writer.block(value, width)
    value = writer.add("Flatten", writer.add("GlobalAveragePool", value), axis=1)
    value = writer.normalize(value, widths[-1])
    value = writer.multiply(value, widths[-1], _CLASSES)
    writer.add("Identity", value, output="y")
    writer.save(name, file, extent)


class _Writer:
    """Nodes and weights of a network, in the order in which they are added."""

    def __init__(self, scales: tuple[float, float]) -> None:
        onnx: Any = importlib.import_module("onnx")
        self._onnx = onnx
        self._scales = scales
        self._random = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def add(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node; return its output."""
        number = len(self._nodes)
        output = output or f"{op.lower()}_{number}"
        name = f"{op.lower()}_{number}"
        self._nodes.append(
            self._onnx.helper.make_node(op, list(inputs), [output], name=name, **attributes)
        )
        return output

    def block(self, x: str, width: int) -> str:
        """7x7 for each channel, a normalisation, two products with Gelu between, a scale."""
        y = self.convolve(x, 1, width, 7, pads=[3] * 4, group=width)
        y = self.normalize(self.add("Transpose", y, perm=_NHWC), width)
        y = self.add("Gelu", self.multiply(y, width, 4 * width))
        scale = self._constant(self._random.uniform(*self._scales, width))
        y = self.add("Mul", self.multiply(y, 4 * width, width), scale)
        return self.add("Add", x, self.add("Transpose", y, perm=_NCHW))

    def convolve(self, x: str, inputs: int, outputs: int, kernel: int, **attributes: Any) -> str:
        """A convolution with bias."""
        taps = inputs * kernel * kernel
        filters = self._drawn(1 / math.sqrt(taps), outputs, inputs, kernel, kernel)
        size = [kernel, kernel]
        bias = self._drawn(0.02, outputs)
        return self.add("Conv", x, filters, bias, kernel_shape=size, **attributes)

    def multiply(self, x: str, inputs: int, outputs: int) -> str:
        """A product of the last axis, and a bias."""
        product = self.add("MatMul", x, self._drawn(1 / math.sqrt(inputs), inputs, outputs))
        return self.add("Add", product, self._drawn(0.02, outputs))

    def normalize(self, x: str, width: int) -> str:
        """A normalisation over the last axis."""
        scale = self._constant(self._random.uniform(0.8, 1.2, width))
        bias = self._drawn(0.02, width)
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-6)

    def over_channels(self, x: str, width: int) -> str:
        """The same over the second of four axes."""
        y = self.normalize(self.add("Transpose", x, perm=_NHWC), width)
        return self.add("Transpose", y, perm=_NCHW)

    def save(self, name: str, file: Path, extent: int) -> None:
        """Write what was added."""
        helper, floats = self._onnx.helper, self._onnx.TensorProto.FLOAT
        x = helper.make_tensor_value_info("x", floats, ["n", 3, extent, extent])
        y = helper.make_tensor_value_info("y", floats, ["n", _CLASSES])
        graph = helper.make_graph(self._nodes, name, [x], [y], self._weights)
        opset = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=9)
        self._onnx.checker.check_model(model)
        self._onnx.save(model, str(file))

    def _drawn(self, spread: float, *shape: int) -> str:
        return self._constant(self._random.normal(0.0, spread, shape))

    def _constant(self, array: NDArray[np.float64]) -> str:
        name = f"weights_{len(self._weights)}"
        tensor = self._onnx.numpy_helper.from_array(array.astype(np.float32), name)
        self._weights.append(tensor)
        return name
