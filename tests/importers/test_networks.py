"""What the importers read, as networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.errors import ModelFormatError, UnsupportedError
from smelt.interp import interpret

if TYPE_CHECKING:
    from pathlib import Path

PROTOTXT = """
name: "small"
input: "data" input_shape { dim: 5 dim: 3 dim: 8 dim: 8 }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool"
        pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "relu" type: "ReLU" bottom: "pool" top: "pool" }
layer { name: "tanh" type: "TanH" bottom: "pool" top: "out" }
"""


@pytest.mark.requirement("G-21", "G-22")
def test_a_caffe_network_has_an_implicit_batch_and_its_blobs_by_name() -> None:
    network, blobs = smelt.network_from_caffe(PROTOTXT, outputs=[])
    assert (network.name, network.batch) == ("small", "implicit")
    assert network.outputs == []
    assert list(blobs) == ["data", "pool", "out"]
    assert blobs["data"] is network.inputs[0]
    assert blobs["data"].shape == (3, 8, 8)
    # In-place layers: the name stands for what the last of them wrote.
    (relu,) = (layer for layer in network.layers if layer.name == "relu")
    assert blobs["pool"] is relu.outputs[0]
    network.mark_output(blobs["pool"])
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    (result,) = interpret(network.graph, {"data": x}).values()
    assert np.array_equal(
        result, np.maximum(x.reshape(2, 3, 4, 2, 4, 2).max(axis=(3, 5)), np.float32(0))
    )


def test_without_a_word_what_nothing_consumes_is_an_output() -> None:
    network, blobs = smelt.network_from_caffe(PROTOTXT)
    assert network.outputs == [blobs["out"]]


def test_a_network_that_was_read_can_be_extended() -> None:
    network, blobs = smelt.network_from_caffe(PROTOTXT, outputs=[])
    y = network.add_softmax(blobs["out"], name="prob")
    network.mark_output(y)
    assert [layer.name for layer in network.layers] == ["pool", "relu", "tanh", "prob"]
    assert y.shape == (3, 4, 4)


def test_errors_of_the_importers_come_through(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError):
        smelt.network_from_caffe(tmp_path / "absent.prototxt")
    with pytest.raises(ModelFormatError):
        smelt.network_from_onnx(tmp_path / "absent.onnx")
    with pytest.raises(UnsupportedError):
        smelt.network_from_caffe(PROTOTXT.replace("TanH", "Unheard"))


def test_the_name_of_one_output_may_stand_alone() -> None:
    network, _ = smelt.network_from_caffe(PROTOTXT, outputs="out")
    assert [output.name for output in network.outputs] == ["out"]


def test_no_model_at_all_is_an_error_of_ours() -> None:
    nothing: Any = None
    with pytest.raises(ModelFormatError, match="not None"):
        smelt.network_from_onnx(nothing)
