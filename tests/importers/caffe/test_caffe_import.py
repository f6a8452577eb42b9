"""What importing a whole network does: names, in-place blobs, phases, formats, precisions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt import ops
from smelt.errors import GraphError, UnsupportedError
from smelt.importers.caffe import import_caffe, new_message, read_mean
from smelt.interp import interpret
from smelt.types import SymbolicDim
from tests.importers.caffe.builders import (
    caffemodel,
    evaluate,
    evaluate_with_opencv,
    f32,
    input_text,
    layer_text,
    random_array,
)

if TYPE_CHECKING:
    from pathlib import Path

CONV = "convolution_param { num_output: 2 kernel_size: 3 }"
WEIGHTS = {"conv": [random_array(2, 3, 3, 3), random_array(2)]}
CHAIN = (
    input_text((8, 3, 6, 6))
    + layer_text("Convolution", CONV, name="conv", tops=("c",))
    + layer_text("ReLU", name="relu", bottoms=("c",), tops=("c",))
    + layer_text("Dropout", name="drop", bottoms=("c",), tops=("c",))
    + layer_text("TanH", name="tanh", bottoms=("c",), tops=("t",))
)


@pytest.mark.requirement("G-14", "G-20")
def test_layers_and_blobs_keep_the_names_of_the_prototxt() -> None:
    graph, blobs = import_caffe(CHAIN, caffemodel(WEIGHTS))
    assert [node.name for node in graph.nodes] == ["conv", "relu", "tanh"]
    assert [node.layers for node in graph.nodes] == [("conv",), ("relu",), ("tanh",)]
    assert list(blobs) == ["data", "c", "t"]
    assert {name: value.name for name, value in blobs.items()} == {n: n for n in blobs}
    assert sorted(c.name for c in graph.constants()) == ["conv.bias", "conv.weight"]


@pytest.mark.requirement("G-18", "G-21")
def test_blob_written_in_place_means_its_last_write() -> None:
    graph, blobs = import_caffe(CHAIN, caffemodel(WEIGHTS))
    conv, relu, _ = graph.nodes
    assert blobs["c"] is relu.output
    assert conv.output is not relu.output
    assert conv.output.name == "c@conv"
    assert relu.output.name == "c"


def test_input_written_in_place_keeps_its_name_and_the_result_gets_another() -> None:
    text = input_text((1, 4)) + layer_text("ReLU", name="relu", tops=("data",))
    graph, blobs = import_caffe(text)
    assert graph.inputs[0].name == "data"
    assert blobs["data"].name == "data@relu"
    assert graph.outputs == [blobs["data"]]


@pytest.mark.requirement("G-22")
def test_outputs_are_what_is_asked_for_else_what_nothing_reads() -> None:
    model = caffemodel(WEIGHTS)
    two = CHAIN + layer_text("AbsVal", name="abs", bottoms=("data",), tops=("a",))
    assert [v.name for v in import_caffe(two, model)[0].outputs] == ["t", "a"]
    assert import_caffe(two, model, outputs=[])[0].outputs == []
    assert [v.name for v in import_caffe(two, model, outputs=["c", "t"])[0].outputs] == ["c", "t"]
    with pytest.raises(GraphError, match=r"no blob 'x'.*t, a"):
        import_caffe(two, model, outputs=["x"])


def test_first_extent_of_inputs_is_the_batch_whatever_is_declared() -> None:
    graph, blobs = import_caffe(CHAIN, caffemodel(WEIGHTS))
    batch = SymbolicDim.symbol("batch")
    assert graph.inputs[0].tensor.shape == (batch, 3, 6, 6)
    assert blobs["t"].tensor.shape == (batch, 2, 4, 4)
    x = random_array(3, 3, 6, 6)
    out = interpret(graph, {"data": x})["t"]
    assert out.shape == (3, 2, 4, 4)


def test_input_of_another_first_extent_keeps_it() -> None:
    text = input_text((1, 3)) + input_text((300, 5), "rois")
    text += layer_text("ReLU", name="a", tops=("a",))
    text += layer_text("ReLU", name="b", bottoms=("rois",), tops=("b",))
    graph, _ = import_caffe(text)
    assert graph.inputs[0].tensor.shape == (SymbolicDim.symbol("batch"), 3)
    assert graph.inputs[1].tensor.shape == (300, 5)


def test_reshape_to_the_declared_batch_follows_the_batch() -> None:
    reshape = "reshape_param { shape { dim: 8 dim: 3 dim: -1 } }"
    text = input_text((8, 6, 2)) + layer_text("Reshape", reshape)
    assert evaluate(text, {}, {"data": random_array(5, 6, 2)})["out"].shape == (5, 3, 4)


def data_layer(kind: str, field: str, parameters: str) -> str:
    return f'layer {{ name: "d" type: "{kind}" top: "data" top: "l" {field} {{ {parameters} }} }}'


@pytest.mark.parametrize(
    "declaration",
    [
        'input: "data" input_dim: 2 input_dim: 3 input_dim: 4 input_dim: 5',
        'input: "data" input_shape { dim: 2 dim: 3 dim: 4 dim: 5 }',
        input_text((2, 3, 4, 5)),
        data_layer(
            "MemoryData", "memory_data_param", "batch_size: 2 channels: 3 height: 4 width: 5"
        ),
        data_layer("DummyData", "dummy_data_param", "num: 2 channels: 3 height: 4 width: 5"),
        data_layer("DummyData", "dummy_data_param", "shape { dim: 2 dim: 3 dim: 4 dim: 5 }"),
    ],
)
def test_every_way_to_declare_an_input_is_read(declaration: str) -> None:
    graph, _ = import_caffe(declaration + "\n" + layer_text("ReLU"))
    assert [str(v.type) for v in graph.inputs] == ["float32[batch, 3, 4, 5]"]


TRAIN_VAL = """
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN }
        transform_param { crop_size: 9 } data_param { batch_size: 64 } }
layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TEST }
        transform_param { crop_size: 6 } data_param { batch_size: 50 } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "c"
        convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "noise" type: "Dropout" bottom: "c" top: "c" exclude { phase: TEST } }
layer { name: "aux" type: "Power" bottom: "c" top: "unread" include { stage: "deploy" } }
layer { name: "accuracy" type: "Accuracy" bottom: "c" bottom: "label" top: "accuracy" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "c" bottom: "label" top: "loss" }
"""


def test_training_network_is_read_as_it_is_tested() -> None:
    graph, blobs = import_caffe(TRAIN_VAL, caffemodel(WEIGHTS))
    assert [str(v.type) for v in graph.inputs] == ["float32[batch, 3, 6, 6]"]
    assert [node.name for node in graph.nodes] == ["conv"]
    assert list(blobs) == ["data", "c"]
    assert [v.name for v in graph.outputs] == ["c"]


def test_what_silence_reads_is_no_output() -> None:
    text = input_text((1, 4)) + layer_text("Slice", name="cut", tops=("a", "b"))
    text += 'layer { name: "quiet" type: "Silence" bottom: "b" }'
    graph, _ = import_caffe(text)
    assert [v.name for v in graph.outputs] == ["a"]


V1 = """
name: "old" input: "data" input_dim: 1 input_dim: 3 input_dim: 6 input_dim: 6
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1
         convolution_param { num_output: 2 kernel_size: 3 } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
layers { name: "ip" type: INNER_PRODUCT bottom: "conv" top: "ip"
         inner_product_param { num_output: 4 } }
layers { name: "prob" type: SOFTMAX bottom: "ip" top: "prob" }
"""


@pytest.mark.requirement("G-17")
def test_v1_format_with_its_four_legacy_extents_is_read() -> None:
    net = new_message("NetParameter")
    weights = {
        "conv": (random_array(2, 3, 3, 3), random_array(1, 1, 1, 2)),
        "ip": (random_array(1, 1, 4, 32), random_array(1, 1, 1, 4)),
    }
    for name, arrays in weights.items():
        layer = net.layers.add(name=name, type=4)
        for array in arrays:
            n, c, h, w = array.shape
            layer.blobs.add(num=n, channels=c, height=h, width=w, data=array.ravel().tolist())
    graph, _ = import_caffe(V1, net.SerializeToString())
    new = (
        input_text((1, 3, 6, 6))
        + layer_text("Convolution", CONV, name="conv", tops=("conv",))
        + layer_text("ReLU", name="relu", bottoms=("conv",), tops=("conv",))
        + layer_text(
            "InnerProduct",
            "inner_product_param { num_output: 4 }",
            name="ip",
            bottoms=("conv",),
            tops=("ip",),
        )
        + layer_text("Softmax", name="prob", bottoms=("ip",), tops=("prob",))
    )
    x = random_array(2, 3, 6, 6)
    wanted = evaluate(
        new,
        {
            n: [a.reshape(-1) if a.shape[:2] == (1, 1) and a.shape[2] == 1 else a for a in v]
            for n, v in weights.items()
        },
        {"data": x},
    )
    assert np.array_equal(interpret(graph, {"data": x})["prob"], wanted["prob"])


@pytest.mark.requirement("G-19")
def test_float16_weights_are_stored_so_and_computed_with_as_float32() -> None:
    graph, _ = import_caffe(CHAIN, caffemodel(WEIGHTS), dtype="float16")
    sources = {s.name: s for c in graph.constants() for s in c.sources()}
    assert sources["conv.weight"].array.dtype == np.float16
    assert all(str(v.type).startswith("float32") for v in graph.values())
    x = random_array(1, 3, 6, 6)
    out = interpret(graph, {"data": x})["t"]
    halves = {"conv": [a.astype(np.float16).astype(np.float32) for a in WEIGHTS["conv"]]}
    assert np.array_equal(out, evaluate(CHAIN, halves, {"data": x})["t"])
    with pytest.raises(UnsupportedError, match="int8"):
        import_caffe(CHAIN, caffemodel(WEIGHTS), dtype="int8")


def test_weights_become_constants_in_caffes_shapes_that_derive_from_their_source() -> None:
    text = input_text((1, 3, 4, 4)) + layer_text("Scale", "scale_param { bias_term: true }")
    graph, _ = import_caffe(text, caffemodel({"out": [random_array(3), random_array(3)]}))
    sources = {s.name: s.array.shape for c in graph.constants() for s in c.sources()}
    assert sources["out.weight"] == sources["out.bias"] == (3,)


def test_doubles_and_unpacked_floats_and_halves_are_read_as_weights() -> None:
    wanted = WEIGHTS["conv"]
    doubles = new_message("NetParameter")
    layer = doubles.layer.add(name="conv", type="Convolution")
    halves = new_message("NetParameter")
    half = halves.layer.add(name="conv", type="Convolution")
    for array in wanted:
        layer.blobs.add(double_data=array.ravel().tolist()).shape.dim.extend(array.shape)
        half.blobs.add(
            raw_data_type=2, raw_data=array.astype(np.float16).tobytes()
        ).shape.dim.extend(array.shape)
    text = input_text((1, 3, 6, 6)) + layer_text("Convolution", CONV, name="conv")
    for data, expected in (
        (doubles.SerializeToString(), wanted),
        (halves.SerializeToString(), [a.astype(np.float16).astype(np.float32) for a in wanted]),
        (_unpacked(wanted), wanted),
    ):
        graph, _ = import_caffe(text, data)
        stored = {c.name: c.array for c in graph.constants()}
        assert np.array_equal(stored["conv.weight"], expected[0])
        assert np.array_equal(stored["conv.bias"], expected[1])


def _unpacked(arrays: list[np.ndarray]) -> bytes:
    """The caffemodel as writers of the first years wrote it: each float with a tag of its own."""

    def field(number: int, data: bytes) -> bytes:
        length = len(data)
        size = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
        tag = (
            bytes([number << 3 | 2])
            if number < 16
            else bytes([number << 3 & 0x7F | 2 | 0x80, number >> 4])
        )
        return tag + size + data

    blobs = b""
    for array in arrays:
        dims = b"".join(bytes([8, extent]) for extent in array.shape)
        data = b"".join(b"\x2d" + value.tobytes() for value in array.ravel())
        blobs += field(7, field(7, dims) + data)
    return field(100, field(1, b"conv") + blobs)


@pytest.mark.requirement("GX-9")
def test_mean_image_is_read_from_a_path_and_from_bytes(tmp_path: Path) -> None:
    mean = random_array(1, 3, 4, 5, low=0, high=255)
    message = new_message("BlobProto")
    message.num, message.channels, message.height, message.width = mean.shape
    message.data.extend(mean.ravel().tolist())
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(message.SerializeToString())
    for source in (path, str(path), path.read_bytes()):
        read = read_mean(source)
        assert read.dtype == np.float32
        assert np.array_equal(read, mean)


def test_pooling_counts_windows_upwards_and_its_average_counts_padding() -> None:
    text = input_text((1, 1, 4, 4)) + layer_text(
        "Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }"
    )
    out = evaluate(text, {}, {"data": np.ones((1, 1, 4, 4), np.float32)})["out"]
    # Of the first window's nine elements four are inside; the last window ends at the padding.
    wanted = f32([[4, 6, 4], [6, 9, 6], [4, 6, 4]]) / 9
    wanted[:, 2] = f32([2 / 6, 3 / 6, 1 / 6 * 2])[[0, 1, 0]]
    wanted[2, :] = wanted[:, 2]
    wanted[2, 2] = 1 / 4
    assert np.allclose(out[0, 0], wanted)


def test_weightless_network_needs_no_caffemodel() -> None:
    out = evaluate(input_text((1, 2)) + layer_text("AbsVal"), {}, {"data": f32([[-1, 2]])})
    assert out["out"].tolist() == [[1, 2]]


def test_weights_that_are_not_finite_are_kept_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bias = f32([np.nan, np.inf])
    text = input_text((1, 3, 6, 6)) + layer_text("Convolution", CONV, name="conv")
    with caplog.at_level(logging.WARNING):
        graph, _ = import_caffe(text, caffemodel({"conv": [WEIGHTS["conv"][0], bias]}))
    assert "conv.bias has values that are not finite" in caplog.text
    assert np.isnan({c.name: c.array for c in graph.constants()}["conv.bias"][0])


def test_unknown_field_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    text = input_text((1, 2)) + layer_text("ReLU", "fork_param { x: 1 }")
    with caplog.at_level(logging.WARNING):
        graph, _ = import_caffe(text)
    assert "fork_param" in caplog.text
    assert isinstance(graph.nodes[0].op, ops.Relu)


def _head(name: str, count: int) -> str:
    """A convolution whose channels are put last and made one axis, as detectors do."""
    parameters = f"convolution_param {{ num_output: {count} kernel_size: 9 stride: 8 }}"
    order = "permute_param { order: 0 order: 2 order: 3 order: 1 }"
    moved, flat = f"{name}_moved", f"{name}_flat"
    return (
        layer_text("Convolution", parameters, name=name, tops=(name,))
        + layer_text("Permute", order, name=moved, bottoms=(name,), tops=(moved,))
        + layer_text("Flatten", name=flat, bottoms=(moved,), tops=(flat,))
    )


PRIORS = """prior_box_param { min_size: 8 max_size: 12 clip: true
    variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }"""
DETECTIONS = """detection_output_param { num_classes: 2 share_location: true background_label_id: 0
    code_type: CENTER_SIZE confidence_threshold: 0.1 keep_top_k: 5
    nms_param { nms_threshold: 0.45 top_k: 10 } }"""


def test_detector_has_rows_that_a_run_counts() -> None:
    text = input_text((1, 3, 32, 32)) + _head("loc", 8) + _head("conf", 4)
    text += layer_text("PriorBox", PRIORS, name="p", bottoms=("loc", "data"), tops=("p",))
    bottoms = ("loc_flat", "conf_flat", "p")
    text += layer_text(
        "DetectionOutput", DETECTIONS, name="found", bottoms=bottoms, tops=("found",)
    )
    weights = {
        "loc": [random_array(8, 3, 9, 9) / 20, random_array(8)],
        "conf": [random_array(4, 3, 9, 9) / 20, random_array(4)],
    }
    graph, _ = import_caffe(text, caffemodel(weights))
    assert graph.symbol_bounds == {"count_of_found": 5 * SymbolicDim.symbol("batch")}
    x = random_array(1, 3, 32, 32)
    out = interpret(graph, {"data": x})["found"]
    (wanted,) = evaluate_with_opencv(text, caffemodel(weights), {"data": x}, ["found"])
    assert 1 <= out.shape[2] <= 5
    assert np.allclose(out, wanted[:, :, : out.shape[2]], atol=1e-5)
