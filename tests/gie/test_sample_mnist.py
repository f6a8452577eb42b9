"""The guide's first sample from beginning to end: Caffe model to engine, stream, answers."""

from __future__ import annotations

import gzip
import io
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

import smelt
from smelt import gie
from tests.support.gie import MNIST, RecordingLogger, found, parse_mnist

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.ir import Array


def _pictures() -> Array:
    paths = sorted((MNIST / "digits").glob("*.png"))
    arrays = [np.asarray(Image.open(path), np.float32) for path in paths]
    return np.stack(arrays)[:, None] / np.float32(256)


def _caffe_to_model(logger: gie.Logger, batch: int, stream: io.BytesIO) -> None:
    """The build phase, as the sample has it."""
    builder = gie.create_infer_builder(logger)
    network = builder.create_network()
    parser = gie.create_caffe_parser()
    blobs = parser.parse(
        MNIST / "mnist.prototxt", MNIST / "mnist.caffemodel", network, gie.DataType.FLOAT
    )
    for name in ("prob",):
        network.mark_output(found(blobs, name))
    builder.set_max_batch_size(batch)
    builder.set_max_workspace_size(1 << 20)
    engine = builder.build_cuda_engine(network)
    parser.destroy()
    engine.serialize(stream)
    engine.destroy()
    builder.destroy()
    gie.shutdown_protobuf_library()


def _infer(context: gie.InferContext, images: Array) -> tuple[Array, list[str]]:
    """The execution phase: copy in, enqueue, copy out, wait; and the order in which it was done."""
    engine, done = context.engine, list[str]()
    buffers: list[Array] = [np.zeros(0)] * 2
    source, target = engine.get_binding_index("data"), engine.get_binding_index("prob")
    buffers[source] = np.zeros_like(images)
    buffers[target] = np.zeros((len(images), 10), np.float32)
    odds, consumed, gate = np.zeros((len(images), 10), np.float32), smelt.Event(), threading.Event()

    def copy_in() -> None:
        gate.wait(10)
        buffers[source][:] = images
        done.append("in")

    def copy_out() -> None:
        time.sleep(0.02)
        odds[:] = buffers[target]
        done.append("out")

    with smelt.Stream() as stream:
        stream.submit(copy_in)
        assert context.enqueue(len(images), buffers, stream, consumed) is True
        stream.submit(copy_out)
        assert not stream.query()
        assert not consumed.query()
        gate.set()
        consumed.synchronize()
        buffers[source][:] = 0  # the inputs are no longer needed
        stream.synchronize()
        return odds.copy(), done.copy()


@pytest.mark.requirement("G-54", "G-73", "G-43")
def test_mnist_sample_reads_every_digit_through_a_serialised_engine_and_a_stream() -> None:
    logger = RecordingLogger(quiet=True)
    stream = io.BytesIO()
    _caffe_to_model(logger, 10, stream)
    stream.seek(0)
    runtime = gie.create_infer_runtime(logger)
    engine = runtime.deserialize_cuda_engine(stream)
    runtime.destroy()
    context = engine.create_execution_context()
    odds, done = _infer(context, _pictures())
    assert done == ["in", "out"]
    assert odds.argmax(1).tolist() == list(range(10))
    assert np.allclose(odds.sum(1), 1, atol=1e-5)
    assert not logger.messages
    context.destroy()
    engine.destroy()


@pytest.mark.requirement("G-43", "G-44")
def test_engine_that_was_deserialised_gives_the_bits_of_the_one_that_was_built() -> None:
    builder = gie.create_infer_builder(RecordingLogger())
    network = builder.create_network()
    network.mark_output(found(parse_mnist(network), "prob"))
    builder.set_max_batch_size(10)
    built = builder.build_cuda_engine(network)
    runtime = gie.create_infer_runtime(builder.logger)
    read = runtime.deserialize_cuda_engine(built.serialize())
    images = _pictures()
    results = [_infer(engine.create_execution_context(), images)[0] for engine in (built, read)]
    assert np.array_equal(results[0], results[1])
    assert (read.nb_bindings, read.nb_layers) == (built.nb_bindings, built.nb_layers)
    assert (read.max_batch_size, read.workspace_size) == (
        built.max_batch_size,
        built.workspace_size,
    )
    for index in range(built.nb_bindings):
        assert read.get_binding_name(index) == built.get_binding_name(index)
        assert read.get_binding_dimensions(index) == built.get_binding_dimensions(index)
        assert read.binding_is_input(index) == built.binding_is_input(index)


@pytest.mark.requirement("G-73")
def test_trained_lenet_answers_as_is_known_through_the_facade(shared: Path) -> None:
    folder, model = shared / "data" / "mnist", shared / "models" / "lenet_bvlc"
    images = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)[:1000]
    digits = np.frombuffer(labels, np.uint8, offset=8)[:1000]
    builder = gie.create_infer_builder(RecordingLogger())
    network = builder.create_network()
    deploy, weights = model / "lenet.prototxt", model / "lenet_iter_10000.caffemodel"
    blobs = gie.create_caffe_parser().parse(deploy, weights, network)
    network.mark_output(found(blobs, "prob"))
    builder.set_max_batch_size(100)
    context = builder.build_cuda_engine(network).create_execution_context()
    batches = (pixels.astype(np.float32) / np.float32(256)).reshape(10, 100, 1, 28, 28)
    odds = np.concatenate([_infer(context, batch)[0] for batch in batches])
    assert (odds.argmax(1) == digits).mean() > 0.98
