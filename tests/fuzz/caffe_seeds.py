"""First inputs of the Caffe importer: a prototxt and a caffemodel, and mean images."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.importers.caffe import new_message
from tests.importers.caffe.builders import caffemodel, input_text, layer_text, random_array
from tests.importers.caffe.random_networks import random_network

if TYPE_CHECKING:
    from collections.abc import Iterator

Shape = tuple[int, ...]

MEAN: Final = b"\xff\xff\xff\xff"
"""Stands before a mean image, which has no prototxt."""


def caffe_input(prototxt: str, model: bytes) -> bytes:
    """Both files in one input."""
    text = prototxt.encode()
    return len(text).to_bytes(4, "little") + text + model


def caffe_seeds() -> Iterator[bytes]:
    """A network of the common layers, V1 and V0 networks, and networks of random layers."""
    yield caffe_input(*common_network())
    yield caffe_input(_v1_text(), _v1_model())
    yield caffe_input('layers { layer { name: "a" type: "conv" } }', b"\x12\x02\x0a\x00")
    yield caffe_input(_odd_text(), b"")
    text = _v1_text()
    for padding in range(4):  # by bytes, and by path where the length is even enough
        for model in (_v1_model(), text.encode(), b"", b"\x0a\x01x"):
            yield caffe_input(text + " " * padding, model)
        yield caffe_input("\x00" + text + " " * padding, b"")
    yield caffe_input(text, b"\x12\x02\x0a\x00")
    yield caffe_input(text, _raw_model())
    yield (6).to_bytes(4, "little") + b"\xff\xfe\x00abc"
    yield MEAN + b"\x08\x01"
    for kind, parameters, bottoms, weights, tops in _LAYERS:
        yield _layer(kind, parameters, bottoms, weights, tops)
    yield _detection()
    yield from (MEAN + data for data in mean_seeds())
    source = random.Random(11)  # noqa: S311  (no secret)
    for _ in range(120):
        yield caffe_input(*random_network(source))


def _layer(
    kind: str, parameters: str, bottoms: list[Shape], weights: list[Shape], tops: int
) -> bytes:
    names = [f"in{number}" for number in range(len(bottoms))]
    text = "".join(input_text(shape, name) for shape, name in zip(bottoms, names, strict=True))
    results = [f"out{number}" for number in range(tops)]
    text += layer_text(kind, parameters, name="here", bottoms=names, tops=results)
    arrays = [random_array(*shape) for shape in weights]
    return caffe_input(text, caffemodel({"here": arrays}) if arrays else b"")


_IMAGE: Final[Shape] = (2, 3, 4, 6)
_ONE: Final[list[Shape]] = [_IMAGE]
_TWO: Final[list[Shape]] = [_IMAGE, _IMAGE]
_NONE: Final[list[Shape]] = []
_LAYERS: Final[tuple[tuple[str, str, list[Shape], list[Shape], int], ...]] = (
    ("Slice", "", _ONE, _NONE, 3),
    ("Slice", "slice_param { axis: 2 slice_point: 1 slice_point: 2 }", _ONE, _NONE, 3),
    ("Slice", "slice_param { slice_dim: 3 slice_point: 5 }", _ONE, _NONE, 2),
    ("Slice", "slice_param { axis: 2 slice_point: 3 slice_point: 2 }", _ONE, _NONE, 3),
    ("Flatten", "flatten_param { axis: 1 end_axis: 2 }", _ONE, _NONE, 1),
    ("Flatten", "", [(2, 3)], _NONE, 1),
    ("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 6 } }", _ONE, _NONE, 1),
    ("Reshape", "reshape_param { shape { dim: 6 dim: 2 } axis: 1 num_axes: 2 }", _ONE, _NONE, 1),
    ("Reshape", "reshape_param { shape { dim: 0 dim: 0 dim: 24 } axis: -4 }", _ONE, _NONE, 1),
    ("Crop", "crop_param { offset: 1 }", [(1, 3, 6, 7), (1, 3, 4, 5)], _NONE, 1),
    ("Crop", "crop_param { axis: 1 offset: 1 offset: 2 offset: 0 }",
     [(1, 3, 6, 7), (1, 2, 4, 5)], _NONE, 1),
    ("Tile", "tile_param { axis: 2 tiles: 3 }", _ONE, _NONE, 1),
    ("ShuffleChannel", "shuffle_channel_param { group: 3 }", _ONE, _NONE, 1),
    ("ArgMax", "argmax_param { axis: 1 }", _ONE, _NONE, 1),
    ("ArgMax", "argmax_param { out_max_val: true }", _ONE, _NONE, 1),
    ("ArgMax", "argmax_param { axis: 1 out_max_val: true }", _ONE, _NONE, 1),
    ("Reduction", "reduction_param { operation: MEAN axis: 2 }", _ONE, _NONE, 1),
    ("Reduction", "reduction_param { operation: ASUM axis: 1 coeff: 0.5 }", _ONE, _NONE, 1),
    ("Reduction", "reduction_param { operation: SUMSQ axis: -1 }", _ONE, _NONE, 1),
    ("Embed", "embed_param { num_output: 3 input_dim: 4 }", [(2, 2)], [(4, 3), (3,)], 1),
    ("Interp", "interp_param { height: 3 width: 3 }", _ONE, _NONE, 1),
    ("Interp", "interp_param { zoom_factor: 2 shrink_factor: 2 }", _ONE, _NONE, 1),
    ("Upsample", "upsample_param { scale: 2 }", _ONE, _NONE, 1),
    ("Normalize", "norm_param { across_spatial: false }", _ONE, [(3,)], 1),
    ("Normalize", "norm_param { channel_shared: true across_spatial: true }", _ONE, [(1,)], 1),
    ("PReLU", "", _ONE, [(3,)], 1),
    ("PReLU", "prelu_param { channel_shared: true }", _ONE, [(1,)], 1),
    ("ReLU", "relu_param { negative_slope: 0.1 }", _ONE, _NONE, 1),
    ("ReLU6", "", _ONE, _NONE, 1),
    *((kind, "", _ONE, _NONE, 1) for kind in ("Sigmoid", "TanH", "AbsVal", "BNLL", "ELU", "Log")),
    ("Power", "power_param { power: 2 scale: 0.5 shift: 3 }", _ONE, _NONE, 1),
    ("Power", "power_param { power: 0 }", _ONE, _NONE, 1),
    ("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }", _ONE, _NONE, 1),
    ("Exp", "", _ONE, _NONE, 1),
    ("Log", "log_param { base: 10 scale: 2 shift: 5 }", _ONE, _NONE, 1),
    ("Log", "log_param { base: 0 }", _ONE, _NONE, 1),
    ("Threshold", "threshold_param { threshold: 0.5 }", _ONE, _NONE, 1),
    ("Bias", "bias_param { num_axes: -1 }", _ONE, [(3, 4, 6)], 1),
    ("Bias", "bias_param { axis: 1 }", [_IMAGE, (3,)], _NONE, 1),
    ("Scale", "scale_param { axis: 2 num_axes: 2 }", _ONE, [(4, 6)], 1),
    ("Scale", "scale_param { axis: 1 bias_term: true }", [_IMAGE, (3,)], [(3,)], 1),
    ("Scale", "scale_param { num_axes: 0 }", _ONE, [()], 1),
    ("MVN", "mvn_param { across_channels: true }", _ONE, _NONE, 1),
    ("MVN", "mvn_param { normalize_variance: false }", _ONE, _NONE, 1),
    ("LRN", "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 }", _ONE, _NONE, 1),
    ("BatchNorm", "batch_norm_param { eps: 0.01 }", _ONE, [(3,), (3,), (1,)], 1),
    ("BatchNorm", "", _ONE, [(3,), (3,), (2,)], 1),
    ("Eltwise", "eltwise_param { operation: PROD }", _TWO, _NONE, 1),
    ("Eltwise", "eltwise_param { operation: MAX }", [*_TWO, _IMAGE], _NONE, 1),
    ("Concat", "concat_param { axis: -1 }", _TWO, _NONE, 1),
    ("InnerProduct", "inner_product_param { num_output: 6 transpose: true }", _ONE,
     [(72, 6), (6,)], 1),
    ("InnerProduct", "inner_product_param { num_output: 6 axis: 2 }", _ONE, [(6, 24), (6,)], 1),
    ("Convolution", "convolution_param { num_output: 6 kernel_h: 1 kernel_w: 3 group: 3 }", _ONE,
     [(6, 1, 1, 3), (6,)], 1),
    ("Deconvolution", "convolution_param { num_output: 3 kernel_size: 2 bias_term: 0 }", _ONE,
     [(3, 3, 2, 2)], 1),
    ("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", _ONE, _NONE, 1),
    ("Pooling", "pooling_param { pool: AVE global_pooling: true }", _ONE, _NONE, 1),
    ("Pooling", "pooling_param { kernel_size: 3 stride: 2 round_mode: FLOOR }", _ONE, _NONE, 1),
    ("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", _ONE, _NONE, 1),
    ("SoftmaxWithLoss", "", [(2, 3), (2,)], _NONE, 1),
    ("DummyData", "dummy_data_param { shape { dim: 1 dim: 2 } }", _NONE, _NONE, 1),
    ("DummyData", "dummy_data_param { num: 1 channels: 2 height: 3 width: 4 }", _NONE, _NONE, 1),
    ("MemoryData", "memory_data_param { batch_size: 1 channels: 3 height: 4 width: 4 }", _NONE,
     _NONE, 2),
)  # fmt: skip
"""Layers: type, parameters, shapes of bottoms and of weights, number of tops."""


def _detection() -> bytes:
    """The end of a detector."""
    text = input_text((1, 3, 32, 32), "image") + input_text((1, 4, 4, 4), "map")
    text += input_text((1, 256), "places") + input_text((1, 192), "scores")
    text += layer_text(
        "PriorBox",
        "prior_box_param { min_size: 4 max_size: 8 aspect_ratio: 2 flip: true clip: false "
        "variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }",
        name="priors", bottoms=("map", "image"), tops=("priors",),
    )  # fmt: skip
    text += layer_text(
        "DetectionOutput",
        "detection_output_param { num_classes: 3 share_location: true background_label_id: 0 "
        "nms_param { nms_threshold: 0.45 top_k: 10 } code_type: CENTER_SIZE keep_top_k: 5 "
        "confidence_threshold: 0.1 }",
        name="found", bottoms=("places", "scores", "priors"), tops=("found",),
    )  # fmt: skip
    text += 'layer { name: "d" type: "Data" top: "x" top: "label" transform_param { crop_size: 4 }'
    text += ' data_param { batch_size: 2 } }' + layer_text(
        "Convolution", "convolution_param { num_output: 2 kernel_size: 1 }", name="c",
        bottoms=("x",), tops=("c",),
    )  # fmt: skip
    return caffe_input(text, caffemodel({"c": [random_array(2, 3, 1, 1), random_array(2)]}))


def common_network() -> tuple[str, bytes]:
    """A sound network of the common layers."""
    return _common_layers(), _common_weights()


def _common_layers() -> str:
    conv = "convolution_param { num_output: 4 kernel_size: 3 group: 1 pad: 1 }"
    pool = "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"
    rows = [
        layer_text("Convolution", conv, name="conv", tops=("c",)),
        layer_text("BatchNorm", name="bn", bottoms=("c",), tops=("c",)),
        layer_text("Scale", "scale_param { bias_term: true }", name="s", bottoms=("c",),
                   tops=("c",)),
        layer_text("ReLU", name="r", bottoms=("c",), tops=("c",)),
        layer_text("Pooling", pool, name="p", bottoms=("c",), tops=("p",)),
        layer_text("Dropout", name="d", bottoms=("p",), tops=("p",)),
        layer_text("Split", name="sp", bottoms=("p",), tops=("p1", "p2")),
        layer_text("Eltwise", "eltwise_param { coeff: 1 coeff: 2 }", name="e",
                   bottoms=("p1", "p2"), tops=("e",)),
        layer_text("InnerProduct", "inner_product_param { num_output: 2 }", name="ip",
                   bottoms=("e",), tops=("ip",)),
        layer_text("Softmax", name="prob", bottoms=("ip",), tops=("prob",)),
    ]  # fmt: skip
    return input_text((1, 3, 8, 8)) + "".join(rows)


def _common_weights() -> bytes:
    return caffemodel({
        "conv": [random_array(4, 3, 3, 3), random_array(4)],
        "bn": [random_array(4), random_array(4), np.ones(1, np.float32)],
        "s": [random_array(4), random_array(4)],
        "ip": [random_array(2, 64), random_array(2)],
    })  # fmt: skip


def _v1_text() -> str:
    return (
        'name: "old" input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8\n'
        'layers { name: "conv" type: CONVOLUTION bottom: "data" top: "c" '
        "convolution_param { num_output: 4 kernel_size: 3 pad: 1 } include { phase: TEST } }\n"
        'layers { name: "r" type: RELU bottom: "c" top: "c" exclude { phase: TRAIN stage: "x" } }\n'
        'layers { name: "acc" type: ACCURACY bottom: "c" top: "a" include { phase: TRAIN } }\n'
    )


def _v1_model() -> bytes:
    net: Any = new_message("NetParameter")
    layer = net.layers.add(name="conv", type=4)
    for array in (random_array(4, 3, 3, 3), random_array(1, 1, 1, 4)):
        blob = layer.blobs.add(num=array.shape[0], channels=array.shape[1])
        blob.height, blob.width = array.shape[2:]
        blob.data.extend(array.ravel().tolist())
    data: bytes = net.SerializeToString()
    return data


def _raw_model() -> bytes:
    """Elements of a kind that no float is."""
    net: Any = new_message("NetParameter")
    net.layers.add(name="conv", type=4).blobs.add(raw_data=b"1234", raw_data_type=3)
    data: bytes = net.SerializeToString()
    return data


def _odd_text() -> str:
    return (
        'input: "data" input_shape { dim: 2 dim: 3 dim: 4 dim: 5 } state { level: 1 stage: "a" }\n'
        "unknown_field { x: 1 }\n"
        'layer { name: "x" type: "ReLU" bottom: "data" top: "y" include { min_level: 1 max_level: 2'
        ' stage: "a" not_stage: "b" } }\n'
        + layer_text("Silence", name="quiet", bottoms=("y",), tops=())
        + layer_text("Data", "transform_param { crop_size: 4 }", name="d", bottoms=(), tops=("z",))
        + layer_text("ArgMax", name="m", bottoms=("data",), tops=("m",))
    )


def mean_seeds() -> Iterator[bytes]:
    """A mean image in every form in which blobs are written."""
    for fields in (
        {"data": [1.0, 2.0, 3.0]}, {"double_data": [1.0, 2.0, 3.0]},
        {"raw_data": b"\0" * 12, "raw_data_type": 1}, {"raw_data": b"\0" * 6, "raw_data_type": 2},
    ):  # fmt: skip
        for is_legacy in (True, False):
            blob: Any = new_message("BlobProto")
            for name, value in fields.items():
                if isinstance(value, list):
                    getattr(blob, name).extend(value)
                else:
                    setattr(blob, name, value)
            if is_legacy:
                blob.num, blob.channels, blob.height, blob.width = 1, 3, 1, 1
            else:
                blob.shape.dim.extend((3, 1))
            yield blob.SerializeToString()
    single = b"\x2d" + np.float32(1).tobytes()
    yield b"\x08\x01\x10\x03\x18\x01\x20\x01" + single * 3
    yield b"\x3a\x04\x08\x02\x08\x01" + (b"\x41" + np.float64(1).tobytes()) * 2
