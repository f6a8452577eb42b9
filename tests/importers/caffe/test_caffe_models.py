"""Trained networks: as OpenCV computes them, and as accurate as measured elsewhere."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.errors import ModelFormatError
from smelt.importers.caffe import import_caffe
from smelt.interp import interpret
from tests.importers.caffe.builders import relative_error

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.ir import Array

SQUEEZENET = ("squeezenet_v1.0/SqueezeNet_deploy.prototxt", "SqueezeNet_v1.0_decoded.caffemodel")
MODELS = [
    ("lenet_bvlc/lenet.prototxt", "lenet_iter_10000.caffemodel"),
    ("cifar10_quick/cifar10_quick.prototxt", "cifar10_quick_iter_5000.caffemodel"),
    SQUEEZENET,
    ("mtcnn_caffe/det1.prototxt", "det1.caffemodel"),
    ("mtcnn_caffe/det2.prototxt", "det2.caffemodel"),
    ("mtcnn_caffe/det3.prototxt", "det3.caffemodel"),
    ("ultraface/RFB-320.prototxt", "RFB-320.caffemodel"),
]


@pytest.mark.requirement("G-14", "G-15")
@pytest.mark.parametrize(("prototxt", "caffemodel"), MODELS)
def test_trained_network_computes_what_opencv_computes(
    shared: Path, prototxt: str, caffemodel: str
) -> None:
    cv2: Any = pytest.importorskip("cv2")
    text = shared / "models" / prototxt
    model = text.parent / caffemodel
    graph, _ = import_caffe(text, model)
    (data,) = graph.inputs
    shape = [extent for extent in data.tensor.shape[1:] if isinstance(extent, int)]
    x = np.random.default_rng(1).normal(size=(1, *shape)).astype(np.float32)
    outputs = interpret(graph, {data.name: x})
    net = cv2.dnn.readNetFromCaffe(str(text), str(model))
    net.setInput(x)
    wanted = net.forward(list(outputs))
    for name, reference in zip(outputs, wanted, strict=True):
        assert relative_error(outputs[name], reference) < 1e-4, name


def _digits(shared: Path) -> tuple[Array, Array]:
    folder = shared / "data" / "mnist"
    images = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return pixels.astype(np.float32) / 256, np.frombuffer(labels, np.uint8, offset=8)


@pytest.mark.slow
@pytest.mark.requirement("G-14")
def test_lenet_reads_digits_as_well_as_it_was_measured(shared: Path) -> None:
    folder = shared / "models" / "lenet_bvlc"
    graph, _ = import_caffe(folder / "lenet.prototxt", folder / "lenet_iter_10000.caffemodel")
    images, labels = _digits(shared)
    right = sum(
        int(
            (
                interpret(graph, {"data": images[i : i + 500]})["prob"].argmax(1)
                == labels[i : i + 500]
            ).sum()
        )
        for i in range(0, len(labels), 500)
    )
    assert right == 9914


@pytest.mark.requirement("G-19")
def test_half_precision_weights_hardly_move_a_networks_answers(shared: Path) -> None:
    folder = shared / "models" / "lenet_bvlc"
    files = (folder / "lenet.prototxt", folder / "lenet_iter_10000.caffemodel")
    images = _digits(shared)[0][:64]
    full, half = (
        interpret(import_caffe(*files, dtype=dtype)[0], {"data": images})["prob"]
        for dtype in ("float32", "float16")
    )
    assert relative_error(half, full) < 3e-3
    assert not np.array_equal(half, full)


def test_training_prototxt_without_a_shape_says_what_to_put_in(shared: Path) -> None:
    folder = shared / "models" / "cifar10_quick"
    with pytest.raises(ModelFormatError, match=r"'cifar'.*Input layer"):
        import_caffe(
            folder / "cifar10_quick_train_test.prototxt",
            folder / "cifar10_quick_iter_5000.caffemodel",
        )
