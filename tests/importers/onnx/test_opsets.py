"""Every version of an op comes to what ONNX Runtime computes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.errors import ShapeError
from tests.importers.onnx.one_node import compare, node_model

if TYPE_CHECKING:
    from smelt.ir import Array

Row = tuple[str, tuple[int, ...], list["Array | None"], dict[str, Any]]


def _rand(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


def _ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


X4, X3, X2 = _rand(2, 4, 7, 6), _rand(2, 3, 4), _rand(3, 5)
FROM_7, FROM_13 = (7, 9, 11, 13, 18, 21), (13, 18, 21)
W, B = _rand(6, 4, 3, 3), _rand(6)

ROWS: list[Row] = [
    ("Add", FROM_7, [X4, _rand(4, 1, 1)], {}),
    ("Softmax", (7, 9, 11, 13, 21), [X3], {"axis": 1}),
    ("Softmax", (7, 11, 13), [X3], {}),
    ("LogSoftmax", (7, 11, 13), [X4], {"axis": 2}),
    ("LogSoftmax", (7, 11, 13), [_rand(2, 3, 0)], {"axis": 1}),
    ("Hardmax", (7, 11, 13), [X3], {"axis": 1}),
    ("Flatten", FROM_7, [X4], {"axis": 2}),
    ("Transpose", FROM_7, [X3], {}),
    ("BatchNormalization", (7, 9, 14, 15), [X4, *[abs(_rand(4))] * 4], {"epsilon": 1e-3}),
    ("InstanceNormalization", (7, 22), [X4, _rand(4), _rand(4)], {}),
    ("LRN", (7, 13), [X4], {"size": 3, "alpha": 1e-2, "beta": 0.6, "bias": 1.5}),
    ("Dropout", (7, 10), [X3], {"ratio": 0.4}),
    ("Dropout", (12, 13, 22), [X3], {}),
    ("Clip", (7, 10), [X3], {"min": -0.5, "max": 0.25}),
    ("Clip", (11, 12, 13), [X3, np.array(-0.5, np.float32), None], {}),
    ("Slice", (7, 9), [X4], {"starts": [1, -3], "ends": [3, 99], "axes": [1, 3]}),
    ("Slice", (7,), [X2], {"starts": [1], "ends": [3]}),
    ("Slice", (10, 11, 13), [X2, _ints(4), _ints(-9), _ints(1), _ints(-2)], {}),
    ("Pad", (7, 10), [X2], {"pads": [1, 0, 2, 1], "value": 3.5}),
    ("Pad", (7,), [X2], {"pads": [1, 1, 0, 1], "mode": "reflect"}),
    ("Pad", (11, 13, 18), [X2, _ints(0, 1, 2, 0), np.array(1, np.float32)], {}),
    ("Pad", (18, 19), [X2, _ints(1, 2), None, _ints(1)], {"mode": "edge"}),
    ("Pad", (19, 21), [X2, _ints(0, 2, 0, 1)], {"mode": "wrap"}),
    ("Squeeze", (7, 11), [_rand(1, 3, 1, 2)], {"axes": [0]}),
    ("Squeeze", (7, 13, 21), [_rand(1, 3, 1, 2)], {}),
    ("Squeeze", FROM_13, [_rand(1, 3, 1, 2), _ints(-2)], {}),
    ("Unsqueeze", (7, 11), [X2], {"axes": [0, 3]}),
    ("Unsqueeze", FROM_13, [X2, _ints(0, -1)], {}),
    ("Reshape", (7, 13, 14, 21), [X4, _ints(0, -1, 3)], {}),
    ("ReduceSum", (7, 11), [X4], {"axes": [1, -1], "keepdims": 0}),
    ("ReduceSum", FROM_13, [X4, _ints(1, -1)], {"keepdims": 0}),
    ("ReduceMean", (7, 11, 13), [X4], {"axes": [2, 3]}),
    ("ReduceMean", (18,), [X4, _ints(2, 3)], {}),
    ("ReduceMax", (11, 13, 18), [X4], {}),
    ("ReduceL2", (11, 13), [X4], {"axes": [1]}),
    ("TopK", (7, 9), [X2], {"k": 2, "axis": 1}),
    ("TopK", (10,), [X2, _ints(3)], {"axis": 0}),
    ("TopK", (11, 21), [X2, _ints(3)], {"largest": 0}),
    ("Upsample", (7, 8), [X4], {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}),
    ("Upsample", (9,), [X4, np.array([1, 1, 2, 2], "f4")], {"mode": "linear"}),
    ("Resize", (10,), [X4, np.array([1, 1, 2, 1.5], "f4")], {"mode": "linear"}),
    ("Resize", (10,), [X4, np.array([1, 1, 2, 0.5], "f4")], {}),
    ("Resize", (10,), [X4, np.array([1, 1, 0.6, 0.75], "f4")], {}),
    ("Resize", (10,), [X4, np.array([1, 0.3, 2.3, 0.7], "f4")], {}),
    ("Resize", (13, 18, 19), [X4, None, np.array([1, 1, 2, 1.5], "f4")], {"mode": "linear"}),
    ("Resize", (11, 13), [X4, _rand(0), _rand(0), _ints(2, 4, 9, 5)], {"mode": "nearest"}),
    ("Resize", (18, 19), [X4, None, None, _ints(9, 5)], {"mode": "cubic", "axes": [2, 3]}),
    ("Gemm", (7, 9, 11, 13), [X2, _rand(5, 4), _rand(4)], {"alpha": 0.5, "beta": 2.0}),
    ("Gemm", (11, 13), [X2, _rand(4, 5)], {"transB": 1}),
    ("Cast", (7, 9, 13, 19, 21), [X3 * 9], {"to": 6}),
    ("Gather", (7, 11, 13), [X2, np.array([[0, 2], [1, 0]])], {"axis": 1}),
    ("ArgMax", (7, 11, 13), [X3], {"axis": 2, "keepdims": 0}),
    ("Expand", (8, 13), [_rand(3, 1), _ints(2, 1, 6)], {}),
    ("Tile", (7, 13), [X2, _ints(2, 3)], {}),
    ("Where", (9, 16), [X2 > 0, X2, -X2], {}),
    ("PRelu", (7, 9, 16), [X4, _rand(4, 1, 1)], {}),
    ("Max", (8, 12, 13), [X2, _rand(5), _rand(3, 1)], {}),
    ("Mean", (8, 13), [X2, _rand(5)], {}),
    ("Pow", (7, 12, 13, 15), [abs(X2), np.array(3, np.float32)], {}),
    ("Gelu", (20,), [X2], {"approximate": "tanh"}),
    ("HardSwish", (14,), [X3], {}),
    ("Celu", (12,), [X3], {"alpha": 0.7}),
    ("LayerNormalization", (17,), [X3, _rand(4), _rand(4)], {}),
    ("ConstantOfShape", (9, 20), [_ints(2, 3)], {}),
    ("Shape", (15, 21), [X4], {"start": 1, "end": -1}),
    ("DepthToSpace", (7, 11, 13), [X4], {"blocksize": 2}),
    ("SpaceToDepth", (7, 13), [_rand(1, 2, 4, 6)], {"blocksize": 2}),
    ("Conv", (7, 11, 22), [X4, W, B], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ("Conv", (7, 11), [X4, W], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Conv", (11,), [X4, W], {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    ("Conv", (11,), [X4, W], {"auto_pad": "VALID", "dilations": [2, 1]}),
    ("Conv", (11,), [X4, _rand(8, 2, 3, 3)], {"group": 2}),
    ("ConvTranspose", (7, 11, 22), [X4, _rand(4, 3, 3, 2)], {"strides": [2, 3]}),
    (
        "ConvTranspose",
        (11,),
        [X4, _rand(4, 3, 3, 3)],
        {"strides": [2, 2], "output_shape": [14, 13]},
    ),
    (
        "ConvTranspose",
        (11,),
        [X4, _rand(4, 3, 3, 3)],
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    ("ConvTranspose", (11,), [X4, W[:4]], {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ("MaxPool", (7, 8, 10, 11, 12), [X4], {"kernel_shape": [3, 2], "strides": [2, 2]}),
    (
        "MaxPool",
        (10, 12),
        [X4],
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 0, 1, 0]},
    ),
    (
        "MaxPool",
        (7, 12),
        [X4],
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ),
    (
        "AveragePool",
        (7, 10, 11, 19),
        [X4],
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    (
        "AveragePool",
        (7, 11, 19),
        [X4],
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    ("AveragePool", (19,), [X4], {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("GlobalAveragePool", (7, 21), [X4], {}),
    (
        "QuantizeLinear",
        (10, 13, 19),
        [X4, np.array(0.1, np.float32), np.array(100, np.uint8)],
        {},
    ),
    (
        "DequantizeLinear",
        (13, 19),
        [(X4 * 20).astype(np.int8), abs(_rand(4)), np.array([1, -2, 0, 3], np.int8)],
        {"axis": 1},
    ),
    (
        "MatMulInteger",
        (10,),
        [(X2 * 9).astype(np.int8), (_rand(5, 4) * 9).astype(np.int8), np.array(3, np.int8)],
        {},
    ),
]


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "attributes"),
    [
        pytest.param(op, opset, inputs, attributes, id=f"{op}-{opset}-{row}")
        for row, (op, opsets, inputs, attributes) in enumerate(ROWS)
        for opset in opsets
    ],
)
def test_a_node_of_any_opset_agrees_with_onnxruntime(
    op: str, opset: int, inputs: list[Array | None], attributes: dict[str, Any]
) -> None:
    weights = range(1, len(inputs)) if op != "ConstantOfShape" else [0]
    outputs = 2 if op == "TopK" else 1
    model = node_model(op, opset, inputs, outputs=outputs, weights=weights, **attributes)
    feed = {} if op == "ConstantOfShape" else {"x0": inputs[0]}
    compare(model, {name: array for name, array in feed.items() if array is not None})


@pytest.mark.parametrize("opset", [7, 11, 13])
def test_before_opset_18_a_split_without_lengths_is_even(opset: int) -> None:
    model = node_model("Split", opset, [_rand(7, 2)], outputs=2)
    with pytest.raises(ShapeError, match="is 7; it must be a multiple of the number of parts, 2"):
        smelt.network_from_onnx(model)


def test_split_agrees_with_onnxruntime_in_every_opset() -> None:
    x = _rand(2, 7, 3)
    for opset in (7, 11):
        compare(node_model("Split", opset, [x], outputs=2, axis=1, split=[3, 4]), {"x0": x})
    for opset in (7, 13):
        y = _rand(6, 2)
        compare(node_model("Split", opset, [y], outputs=3), {"x0": y})
    lengths = _ints(3, 4)
    for opset in (13, 18):
        model = node_model("Split", opset, [x, lengths], outputs=2, weights=[1], axis=1)
        compare(model, {"x0": x})
    compare(node_model("Split", 18, [x], outputs=3, axis=1, num_outputs=3), {"x0": x})


@pytest.mark.parametrize("opset", [7, 14, 22])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_nodes_agree_with_onnxruntime(op: str, gates: int, opset: int) -> None:
    x, w, r = _rand(5, 2, 3), _rand(2, gates * 4, 3), _rand(2, gates * 4, 4)
    bias = _rand(2, gates * 8)
    attributes: dict[str, Any] = {"hidden_size": 4, "direction": "bidirectional"}
    if op == "GRU":
        attributes["linear_before_reset"] = 1
    outputs = 3 if op == "LSTM" else 2
    model = node_model(op, opset, [x, w, r, bias], outputs=outputs, weights=[1, 2, 3], **attributes)
    compare(model, {"x0": x})


def test_quantized_nodes_agree_with_onnxruntime() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 255, (1, 3, 6, 6), np.uint8)
    w = rng.integers(-99, 99, (4, 3, 3, 3), np.int8)
    scales = [np.array(s, np.float32) for s in (0.05, 0.02, 1.5)]
    zeros = [np.array(128, np.uint8), np.array(0, np.int8), np.array(120, np.uint8)]
    bias = rng.integers(-999, 999, 4, np.int32)
    inputs = [x, scales[0], zeros[0], w, scales[1], zeros[1], scales[2], zeros[2], bias]
    compare(node_model("QLinearConv", 10, inputs, weights=range(1, 9)), {"x0": x})
    a = rng.integers(0, 255, (5, 6), np.uint8)
    b = rng.integers(0, 255, (6, 3), np.uint8)
    inputs = [a, scales[0], zeros[0], b, scales[1], zeros[0], scales[2], zeros[2]]
    compare(node_model("QLinearMatMul", 10, inputs, weights=range(1, 8)), {"x0": a})
    model = node_model("ConvInteger", 10, [x, w, zeros[0]], weights=[1, 2])
    compare(model, {"x0": x})
    y = _rand(3, 4)
    compare(node_model("DynamicQuantizeLinear", 11, [y], outputs=3), {"x0": y})


def test_the_threshold_of_a_recurrent_node_clips_gates_as_onnxruntime_does() -> None:
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        x, w, r = 100 * _rand(5, 2, 3), _rand(1, gates * 4, 3), _rand(1, gates * 4, 4)
        model = node_model(op, 14, [x, w, r], weights=(1, 2), hidden_size=4, clip=0.3)
        compare(model, {"x0": x})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_ceil_mode_holds_where_padding_is_valid(op: str) -> None:
    x = _rand(1, 2, 16)
    model = node_model(op, 19, [x], auto_pad="VALID", kernel_shape=[2], strides=[3], ceil_mode=1)
    compare(model, {"x0": x})


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_a_transposed_kernel_shorter_than_its_stride_leaves_a_shorter_output(mode: str) -> None:
    x, w = _rand(1, 1, 3, 3), _rand(1, 1, 2, 2)
    compare(
        node_model("ConvTranspose", 11, [x, w], auto_pad=mode, strides=[4, 4]), {"x0": x, "x1": w}
    )
