"""The same digits through smelt.gie: the flow of the GPU Inference Engine's first sample.

usage: python sample_mnist.py
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

import smelt
from smelt import gie

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent
INPUT_BLOB, OUTPUT_BLOB = "data", "prob"


class Logger:
    """Prints warnings and errors, and suppresses information."""

    def log(self, severity: gie.Severity, message: str) -> None:
        """Take one message."""
        if severity != gie.Severity.INFO:
            print(message, file=sys.stderr)


def caffe_to_model(logger: Logger, max_batch_size: int, model_stream: io.BytesIO) -> None:
    """The build phase: Caffe's files to a serialised engine."""
    builder = gie.create_infer_builder(logger)
    network = builder.create_network()
    parser = gie.create_caffe_parser()
    blob_name_to_tensor = parser.parse(
        FOLDER / "mnist.prototxt", FOLDER / "mnist.caffemodel", network, gie.DataType.FLOAT
    )
    for name in (OUTPUT_BLOB,):  # Caffe's files do not say which blobs are wanted
        if (tensor := blob_name_to_tensor.find(name)) is None:
            raise SystemExit(f"the network has no blob {name!r}")
        network.mark_output(tensor)
    builder.set_max_batch_size(max_batch_size)
    builder.set_max_workspace_size(1 << 20)
    engine = builder.build_cuda_engine(network)
    engine.serialize(model_stream)
    for thing in (parser, engine, builder):
        thing.destroy()


def do_inference(context: gie.InferContext, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """The execution phase: copy in, enqueue, copy out, wait."""
    engine, batch_size = context.engine, len(images)
    input_index = engine.get_binding_index(INPUT_BLOB)
    output_index = engine.get_binding_index(OUTPUT_BLOB)
    odds = np.zeros((batch_size, 10), np.float32)
    buffers = [np.zeros_like(images if i == input_index else odds) for i in range(2)]
    with smelt.Stream() as stream:
        stream.submit(lambda: np.copyto(buffers[input_index], images))
        context.enqueue(batch_size, buffers, stream)
        stream.submit(lambda: np.copyto(odds, buffers[output_index]))
        stream.synchronize()
    return odds


def main() -> None:
    """Build, serialise, deserialise, and read the pictures in digits/ at once."""
    paths = sorted((FOLDER / "digits").glob("*.png"))
    pixels = [np.asarray(Image.open(path), np.float32) for path in paths]
    images = np.stack(pixels)[:, None] / np.float32(256)
    logger, model_stream = Logger(), io.BytesIO()
    caffe_to_model(logger, len(images), model_stream)
    model_stream.seek(0)
    runtime = gie.create_infer_runtime(logger)
    engine = runtime.deserialize_cuda_engine(model_stream)
    context = engine.create_execution_context()
    for path, odds in zip(paths, do_inference(context, images), strict=True):
        print(f"{path.name} is a {int(odds.argmax())} ({odds.max():.1%})")
    for thing in (context, engine, runtime):
        thing.destroy()


if __name__ == "__main__":
    main()
