"""The example 01_mnist: its two forms agree, it reads digits, and its script runs."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from smelt.importers.caffe import import_caffe
from smelt.importers.onnx import import_onnx
from smelt.interp import interpret
from tests.support.examples import run_example

if TYPE_CHECKING:
    from smelt.ir import Array

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "01_mnist"


def _pictures() -> tuple[Array, list[int]]:
    paths = sorted((FOLDER / "digits").glob("*.png"))
    arrays = [np.asarray(Image.open(path), np.float32) for path in paths]
    return np.stack(arrays)[:, None] / np.float32(256), [int(path.name[0]) for path in paths]


def _odds_from_caffe(images: Array) -> Array:
    graph, _ = import_caffe(FOLDER / "mnist.prototxt", FOLDER / "mnist.caffemodel")
    parts = [
        interpret(graph, {"data": images[i : i + 500]})["prob"] for i in range(0, len(images), 500)
    ]
    return np.concatenate(parts)


def test_both_forms_of_the_network_read_every_picture_alike() -> None:
    images, digits = _pictures()
    assert digits == list(range(10))
    from_caffe = _odds_from_caffe(images)
    from_onnx = interpret(import_onnx(FOLDER / "mnist.onnx"), {"data": images})["prob"]
    assert from_caffe.argmax(1).tolist() == digits
    assert np.abs(from_caffe - from_onnx).max() < 1e-5


def test_weights_are_small_enough_to_be_committed() -> None:
    assert all(
        (FOLDER / name).stat().st_size < 500_000 for name in ("mnist.caffemodel", "mnist.onnx")
    )


@pytest.mark.slow
def test_network_reads_more_than_97_percent_of_mnists_test_digits(shared: Path) -> None:
    folder = shared / "data" / "mnist"
    images = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    odds = _odds_from_caffe(pixels.astype(np.float32) / np.float32(256))
    assert (odds.argmax(1) == np.frombuffer(labels, np.uint8, offset=8)).mean() > 0.97


@pytest.mark.slow
@pytest.mark.requirement("G-73")
@pytest.mark.parametrize("options", [(), ("--onnx",)])
def test_script_names_every_digit_and_its_layers_times(options: tuple[str, ...]) -> None:
    run = subprocess.run(
        [sys.executable, str(FOLDER / "classify.py"), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for digit in range(10):
        assert f"{digit}_0.png      is a {digit} " in run.stdout
    assert "conv1" in run.stdout
    assert "together" in run.stdout


def test_a_picture_that_is_missing_is_told_in_a_line() -> None:
    run = subprocess.run(
        [sys.executable, str(FOLDER / "classify.py"), "nofile.png"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 2
    assert "nofile.png" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


@pytest.mark.requirement("G-73", "G-54")
def test_sample_through_the_facade_names_every_digit(tmp_path: Path) -> None:
    shown = run_example("01_mnist", "sample_mnist.py", home=tmp_path)
    assert len(shown.splitlines()) == 10
    for digit in range(10):
        assert f"{digit}_0.png is a {digit} " in shown
