"""Build an engine from a trained Caffe network and let it read pictures of digits.

usage: python classify.py [--onnx] [PICTURE ...]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

import smelt

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent
SHADES = " .:-=+*#%@"


class LayerTimes:
    """A profiler: the context tells it of each layer after every run."""

    def __init__(self) -> None:
        self.milliseconds: defaultdict[str, list[float]] = defaultdict(list)

    def report_layer_time(self, name: str, milliseconds: float) -> None:
        """Note one layer's time in one run."""
        self.milliseconds[name].append(milliseconds)

    def print_table(self) -> None:
        """Print the median time of each layer, as the engine runs them."""
        medians = {name: float(np.median(times)) for name, times in self.milliseconds.items()}
        width = max(map(len, medians), default=0)
        total = sum(medians.values())
        for name, median in medians.items():
            bar = "#" * round(40 * median / total) if total else ""
            print(f"  {name:{width}}  {median * 1000:8.1f} us  {bar}")
        print(f"  {'together':{width}}  {total * 1000:8.1f} us")


def read_picture(path: Path) -> NDArray[np.float32]:
    """Pixels of a picture as the network was trained on: 28 by 28, white on black, 0 to 1."""
    with Image.open(path) as picture:
        small = picture.convert("L").resize((28, 28))
    return np.asarray(small, np.float32)[None, None] / np.float32(256)


def show(image: NDArray[np.float32]) -> str:
    """The picture in characters, two rows of pixels to a line."""
    rows = image[0, 0].reshape(14, 2, 28).max(1)
    return "\n".join("  " + "".join(SHADES[int(v * len(SHADES))] for v in row) for row in rows)


def build(*, from_onnx: bool) -> smelt.Engine:
    """An engine for this machine from either form of the network."""
    if from_onnx:
        network = smelt.network_from_onnx(FOLDER / "mnist.onnx")
    else:
        # The second result maps the names of Caffe's blobs to tensors; here nothing needs it.
        network, _ = smelt.network_from_caffe(
            FOLDER / "mnist.prototxt", FOLDER / "mnist.caffemodel"
        )
    start = time.perf_counter()
    engine = smelt.build(network, device="cpu", max_batch_size=1)
    print(f"built an engine for this machine in {time.perf_counter() - start:.2f} s")
    return engine


def main() -> None:
    """Classify the pictures given, by default those beside this file."""
    parser = argparse.ArgumentParser(description="read pictures of digits")
    parser.add_argument(
        "--onnx", action="store_true", help="build from mnist.onnx, the same network"
    )
    parser.add_argument("pictures", nargs="*", type=Path, help="default: those in digits/")
    options = parser.parse_args()
    pictures = options.pictures or sorted((FOLDER / "digits").glob("*.png"))
    try:
        images = [read_picture(path) for path in pictures]
    except OSError as error:  # pillow says which file, or what is wrong with it
        parser.error(f"a picture cannot be read: {error}")
    profiler = LayerTimes()
    with build(from_onnx=options.onnx).create_context() as context:
        context.run({"data": images[0]})  # the first run also warms the caches up
        context.profiler = profiler
        answers = [context.run({"data": image})["prob"][0] for image in images]
    print(f"\n{pictures[0].name}:\n{show(images[0])}\n")
    for path, odds in zip(pictures, answers, strict=True):
        digit = int(odds.argmax())
        print(f"  {path.name:12} is a {digit}  ({odds[digit]:.1%})")
    print(f"\nmedian time of each layer over {len(images)} pictures:")
    profiler.print_table()


if __name__ == "__main__":
    main()
