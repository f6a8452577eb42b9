"""A small network in the manner of GoogLeNet, as Caffe files with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.importers.caffe import new_message

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.ir import Array

INPUT = (3, 32, 32)
CLASSES = 10


class _Files:
    """Collects layers and their weights."""

    def __init__(self) -> None:
        dims = " ".join(f"dim: {extent}" for extent in (1, *INPUT))
        self.text = f'name: "inception" input: "data" input_shape {{ {dims} }}\n'
        self.net = new_message("NetParameter")
        self.random = np.random.default_rng(20261120)

    def layer(self, kind: str, name: str, bottoms: list[str], more: str = "", top: str = "") -> str:
        wires = " ".join(f'bottom: "{bottom}"' for bottom in bottoms)
        top = top or name
        self.text += f'layer {{ name: "{name}" type: "{kind}" {wires} top: "{top}" {more} }}\n'
        return top

    def weights(self, name: str, kind: str, *arrays: Array) -> None:
        layer = self.net.layer.add(name=name, type=kind)
        for array in arrays:
            blob = layer.blobs.add()
            blob.shape.dim.extend(array.shape)
            blob.data.extend(array.ravel().tolist())

    def conv(self, name: str, bottom: str, sizes: tuple[int, int, int], stride: int = 1) -> str:
        """Convolution (input channels, filters, extent) with its ReLU in place."""
        channels, count, extent = sizes
        scale = (2 / (channels * extent * extent)) ** 0.5
        shape = (count, channels, extent, extent)
        matrix = self.random.standard_normal(shape).astype(np.float32) * np.float32(scale)
        self.weights(name, "Convolution", matrix, np.full(count, 0.05, np.float32))
        self.layer(
            "Convolution",
            name,
            [bottom],
            f"convolution_param {{ num_output: {count} kernel_size: {extent} stride: {stride} "
            f"pad: {extent // 2} }}",
        )
        head, slash, tail = name.rpartition("/")
        return self.layer("ReLU", f"{head}{slash}relu_{tail}", [name], top=name)

    def module(self, name: str, bottom: str, channels: int) -> str:
        """An inception module: 1x1, 3x3, 5x5 and pooling, joined; 32 channels."""
        first = self.conv(f"{name}/1x1", bottom, (channels, 8, 1))
        reduced = self.conv(f"{name}/3x3_reduce", bottom, (channels, 8, 1))
        wide = self.conv(f"{name}/5x5_reduce", bottom, (channels, 8, 1))
        second = self.conv(f"{name}/3x3", reduced, (8, 12, 3))
        third = self.conv(f"{name}/5x5", wide, (8, 6, 5))
        pool = self.layer(
            "Pooling",
            f"{name}/pool",
            [bottom],
            "pooling_param { pool: MAX kernel_size: 3 stride: 1 pad: 1 }",
        )
        last = self.conv(f"{name}/pool_proj", pool, (channels, 6, 1))
        return self.layer("Concat", f"{name}/output", [first, second, third, last])


def write_inception(folder: Path) -> tuple[Path, Path]:
    """Write deploy.prototxt and net.caffemodel: two modules and a head that nothing uses."""
    files = _Files()
    x = files.conv("conv1", "data", (3, 16, 3), stride=2)
    x = files.layer("LRN", "norm1", [x], "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")
    x = files.module("a", x, 16)
    files.conv("aside", x, (32, 4, 1))
    x = files.layer("Pooling", "pool", [x], "pooling_param { pool: MAX kernel_size: 3 stride: 2 }")
    x = files.module("b", x, 32)
    x = files.layer("Pooling", "mean", [x], "pooling_param { pool: AVE global_pooling: true }")
    x = files.layer("Dropout", "drop", [x], top=x)
    scale = np.float32(CLASSES**-0.5)
    matrix = files.random.standard_normal((CLASSES, 32)).astype(np.float32) * scale
    files.weights("classifier", "InnerProduct", matrix, np.zeros(CLASSES, np.float32))
    x = files.layer(
        "InnerProduct", "classifier", [x], f"inner_product_param {{ num_output: {CLASSES} }}"
    )
    files.layer("Softmax", "prob", [x])
    deploy, model = folder / "deploy.prototxt", folder / "net.caffemodel"
    deploy.write_text(files.text, encoding="utf-8")
    model.write_bytes(files.net.SerializeToString())
    return deploy, model
