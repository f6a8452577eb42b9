"""The products of real networks as single nodes: what `gpu_kernels.py` measures.

Every distinct convolution and matrix product of a network, with its epilogue, as the passes leave
them, and how often the network has it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.ir import Graph
from smelt.ops import Add, Clip, Conv, ConvSum, Fused, Gelu, Gemm, Relu, Stage
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.ir import Node, Value


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """A convolution of square images, or with ``size`` 0 a product of matrices."""

    rows: int
    """Images, or rows of the first factor."""
    size: int
    channels: int
    filters: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    then: str = "relu"
    """Activation: "", "relu", "clip" (0 to 6) or "gelu"."""
    adds: bool = False
    """Whether a tensor of the result's shape is added before the activation."""
    shortcut: int = 0
    """Channels of a second image, whose projection is added."""
    shortcut_stride: int = 1

    @property
    def label(self) -> str:
        """The product in one word."""
        if not self.size:
            kind = f"gemm {self.rows}x{self.channels}-{self.filters}"
        else:
            kind = f"conv{self.kernel}s{self.stride} {self.size}px {self.channels}-{self.filters}"
        groups = " depthwise" if self.groups > 1 else ""
        if self.shortcut:
            groups = f" sum {self.shortcut}s{self.shortcut_stride}"
        return f"{kind}{groups}{' +x' if self.adds else ''}{' ' + self.then if self.then else ''}"

    @property
    def places(self) -> int:
        """Rows of the result."""
        before = self.kernel // 2
        if not self.size:
            return self.rows
        return self.rows * ((self.size + 2 * before - self.kernel) // self.stride + 1) ** 2

    @property
    def flop(self) -> float:
        """Multiplications and additions."""
        depth = self.channels // self.groups * self.kernel**2 + self.shortcut
        return 2.0 * self.places * self.filters * depth

    def moved_bytes(self, element: int) -> float:
        """What must be read and written at least, once each."""
        read = self.rows * (self.size or 1) ** 2 * self.channels
        if self.kernel < self.stride:
            read //= self.stride**2
        weights = self.filters * self.channels // self.groups * self.kernel**2
        read += self.places * self.shortcut
        weights += self.filters * self.shortcut
        return element * (read + weights + self.places * self.filters * (2 if self.adds else 1))

    def node(self, dtype: DType) -> Node:
        """The product as the one node of a graph, on random weights."""
        graph = Graph("product")
        root, inputs = self._root(graph, dtype)
        own = len(inputs)
        stages: list[Stage] = []
        if self.adds:
            inputs.append(graph.add_input("r", root.infer([v.operand for v in inputs])[0]))
            stages.append(Stage(Add(), (-1, own)))
        if self.then == "clip":
            inputs += [graph.add_constant(np.array(v, dtype.numpy), f"c{v}") for v in (0, 6)]
            stages.append(Stage(Clip(), (-1 - len(stages), len(inputs) - 2, len(inputs) - 1)))
        elif self.then:
            stages.append(Stage({"relu": Relu(), "gelu": Gelu()}[self.then], (-1 - len(stages),)))
        node = graph.add(Fused(root, own, tuple(stages)) if stages else root, *inputs, name="node")
        graph.outputs += node.outputs
        return node

    def _root(self, graph: Graph, dtype: DType) -> tuple[Any, list[Value]]:
        """What is summed, and its operands."""
        random = np.random.default_rng(0)

        def constant(name: str, *shape: int) -> Value:
            scale = prod(shape[1:]) ** -0.5 if len(shape) > 1 else 1.0
            array = random.standard_normal(shape, np.float32) * np.float32(scale)
            return graph.add_constant(array.astype(dtype.numpy), name)

        def image(name: str, *shape: int) -> Value:
            return graph.add_input(name, TensorType(dtype, shape))

        bias = constant("b", self.filters)
        if not self.size:
            x = image("x", self.rows, self.channels)
            return Gemm(trans_b=True), [x, constant("w", self.filters, self.channels), bias]
        window = (self.kernel, self.kernel)
        pads = (self.kernel // 2,) * 4
        root = Conv(window, strides=(self.stride,) * 2, pads=pads, group=self.groups)
        x = image("x", self.rows, self.channels, self.size, self.size)
        weights = constant("w", self.filters, self.channels // self.groups, *window)
        if not self.shortcut:
            return root, [x, weights, bias]
        extent = self.size * self.shortcut_stride
        second = image("y", self.rows, self.shortcut, extent, extent)
        taken = constant("v", self.filters, self.shortcut, 1, 1)
        projection = Conv((1, 1), strides=(self.shortcut_stride,) * 2)
        return ConvSum(root, projection), [x, weights, second, taken, bias]


def _resnet50(batch: int) -> Iterator[GemmProblem]:
    yield GemmProblem(batch, 224, 3, 64, 7, 2)
    size, channels = 56, 64
    for planes, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = first if block == 0 else 1
            yield GemmProblem(batch, size, channels, planes)
            yield GemmProblem(batch, size, planes, planes, 3, stride)
            size //= stride
            if block == 0:
                yield GemmProblem(
                    batch, size, planes, 4 * planes, shortcut=channels, shortcut_stride=stride
                )
            else:
                yield GemmProblem(batch, size, planes, 4 * planes, adds=True)
            channels = 4 * planes
    yield GemmProblem(batch, 0, 2048, 1000, then="")


def _mobilenetv2(batch: int) -> Iterator[GemmProblem]:
    yield GemmProblem(batch, 224, 3, 32, 3, 2, then="clip")
    size, channels = 112, 32
    plan = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
            (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    for factor, filters, blocks, first in plan:
        for block in range(blocks):
            stride, wide = first if block == 0 else 1, channels * factor
            if factor > 1:
                yield GemmProblem(batch, size, channels, wide, then="clip")
            yield GemmProblem(batch, size, wide, wide, 3, stride, wide, then="clip")
            size //= stride
            yield GemmProblem(batch, size, wide, filters, then="", adds=block > 0)
            channels = filters
    yield GemmProblem(batch, 7, 320, 1280, then="clip")
    yield GemmProblem(batch, 0, 1280, 1000, then="")


def _googlenet(batch: int) -> Iterator[GemmProblem]:
    yield GemmProblem(batch, 224, 3, 64, 7, 2)
    yield GemmProblem(batch, 56, 64, 64)
    yield GemmProblem(batch, 56, 64, 192, 3)
    modules = (
        (28, 192, 64, 96, 128, 16, 32, 32), (28, 256, 128, 128, 192, 32, 96, 64),
        (14, 480, 192, 96, 208, 16, 48, 64), (14, 512, 160, 112, 224, 24, 64, 64),
        (14, 512, 128, 128, 256, 24, 64, 64), (14, 512, 112, 144, 288, 32, 64, 64),
        (14, 528, 256, 160, 320, 32, 128, 128), (7, 832, 256, 160, 320, 32, 128, 128),
        (7, 832, 384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    for size, channels, one, before3, three, before5, five, pooled in modules:
        yield GemmProblem(batch, size, channels, one + before3 + before5)
        yield GemmProblem(batch, size, before3, three, 3)
        yield GemmProblem(batch, size, before5, five, 5)
        yield GemmProblem(batch, size, channels, pooled)
    yield GemmProblem(batch, 0, 1024, 1000, then="")


def _minilm(batch: int) -> Iterator[GemmProblem]:
    rows = 128 * batch
    for _ in range(6):
        yield GemmProblem(rows, 0, 384, 1152, then="")
        yield GemmProblem(rows, 0, 384, 384, then="", adds=True)
        yield GemmProblem(rows, 0, 384, 1536, then="gelu")
        yield GemmProblem(rows, 0, 1536, 384, then="", adds=True)


NETWORKS: dict[str, Callable[[int], Iterator[GemmProblem]]] = {
    "resnet50": _resnet50,
    "mobilenetv2": _mobilenetv2,
    "googlenet": _googlenet,
    "minilm": _minilm,
}


def gemm_problems_of(network: str, batch: int) -> dict[GemmProblem, int]:
    """The distinct products of a network, and how often it has each."""
    return dict(Counter(NETWORKS[network](batch)))
