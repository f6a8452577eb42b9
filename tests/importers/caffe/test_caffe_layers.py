"""Each layer type, alone, against OpenCV, or its formula where OpenCV reads it differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.errors import IndexRangeError
from tests.importers.caffe.builders import (
    Weights,
    caffemodel,
    evaluate,
    evaluate_with_opencv,
    f32,
    input_text,
    layer_text,
    random_array,
    relative_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.ir import Array


def _conv(text: str, shape: Sequence[int], *weights: Array, kind: str = "Convolution") -> object:
    words = f"convolution_param {{ {text} }}"
    return pytest.param(kind, words, shape, list(weights), id=f"{kind}: {text}")


def _plain(kind: str, text: str, shape: Sequence[int], *weights: Array) -> object:
    return pytest.param(kind, text, shape, list(weights), id=f"{kind}: {text}"[:80])


R = random_array
AGAINST_OPENCV = [
    _conv("num_output: 5 kernel_size: 3", (2, 3, 9, 8), R(5, 3, 3, 3), R(5)),
    _conv("num_output: 5 kernel_size: 3 bias_term: false", (1, 3, 9, 8), R(5, 3, 3, 3)),
    _conv(
        "num_output: 4 kernel_h: 3 kernel_w: 2 pad_h: 1 pad_w: 0 stride_h: 2 stride_w: 1",
        (1, 3, 9, 8),
        R(4, 3, 3, 2),
        R(4),
    ),
    _conv(
        "num_output: 6 kernel_size: 3 group: 3 pad: 2 dilation: 2 stride: 2",
        (2, 6, 11, 9),
        R(6, 2, 3, 3),
        R(6),
    ),
    _conv("num_output: 4 kernel_size: 3 group: 4", (1, 4, 7, 7), R(4, 1, 3, 3), R(4)),
    _conv(
        "num_output: 5 kernel_size: 4 stride: 2 pad: 1",
        (1, 3, 6, 5),
        R(3, 5, 4, 4),
        R(5),
        kind="Deconvolution",
    ),
    _conv(
        "num_output: 4 kernel_size: 4 stride: 2 pad: 1 group: 4 bias_term: false",
        (1, 4, 6, 5),
        R(4, 1, 4, 4),
        kind="Deconvolution",
    ),
    _conv(
        "num_output: 6 kernel_size: 3 group: 2",
        (1, 4, 5, 5),
        R(4, 3, 3, 3),
        R(6),
        kind="Deconvolution",
    ),
    _plain("InnerProduct", "inner_product_param { num_output: 7 }", (2, 3, 4, 5), R(7, 60), R(7)),
    _plain(
        "InnerProduct",
        "inner_product_param { num_output: 7 bias_term: false }",
        (2, 60),
        R(7, 60),
    ),
    _plain("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", (1, 3, 7, 8)),
    _plain("Pooling", "pooling_param { kernel_size: 3 stride: 2 }", (1, 3, 8, 8)),
    _plain("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 1 }", (1, 3, 8, 7)),
    _plain("Pooling", "pooling_param { kernel_size: 2 stride: 2 pad: 1 }", (1, 3, 8, 7)),
    _plain(
        "Pooling",
        "pooling_param { kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 2 pad_h: 1 pad_w: 0 }",
        (1, 3, 8, 7),
    ),
    _plain("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }", (1, 3, 8, 8)),
    _plain("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", (1, 3, 8, 7)),
    _plain("Pooling", "pooling_param { pool: AVE global_pooling: true }", (2, 3, 5, 7)),
    _plain("Pooling", "pooling_param { pool: MAX global_pooling: true }", (2, 3, 5, 7)),
    _plain("Pooling", "pooling_param { kernel_size: 3 stride: 2 ceil_mode: false }", (1, 3, 8, 8)),
    _plain("ReLU", "", (2, 3, 4, 5)),
    _plain("ReLU", "relu_param { negative_slope: 0.1 }", (2, 3, 4, 5)),
    _plain("PReLU", "", (2, 3, 4, 5), R(3)),
    _plain("PReLU", "prelu_param { channel_shared: true }", (2, 3, 4, 5), R(1)),
    _plain("Sigmoid", "", (2, 3, 4, 5)),
    _plain("TanH", "", (2, 3, 4, 5)),
    _plain("ELU", "", (2, 3, 4, 5)),
    _plain("ELU", "elu_param { alpha: 0.3 }", (2, 3, 4, 5)),
    _plain("AbsVal", "", (2, 3, 4, 5)),
    _plain("BNLL", "", (2, 3, 4, 5)),
    _plain("Power", "", (2, 3, 4, 5)),
    _plain("Power", "power_param { power: 2 scale: 0.5 shift: 3 }", (2, 3, 4, 5)),
    _plain("Power", "power_param { scale: -2 }", (2, 3, 4, 5)),
    _plain("Power", "power_param { power: 0.5 shift: 3 }", (2, 3, 4, 5)),
    _plain("Exp", "exp_param { base: 2 scale: 0.5 shift: 1 }", (2, 3, 4, 5)),
    _plain("Power", "power_param { power: 2 scale: 0.5 }", (2, 3, 4, 5)),
    _plain("Power", "power_param { scale: 0.5 shift: 3 }", (2, 3, 4, 5)),
    _plain("Exp", "exp_param { base: 3 }", (2, 3, 4, 5)),
    _plain("Exp", "", (2, 3, 4, 5)),
    _plain("BatchNorm", "", (2, 3, 4, 5), R(3), R(3, low=0.5, high=2), f32([4.0])),
    _plain(
        "BatchNorm",
        "batch_norm_param { eps: 0.01 use_global_stats: true }",
        (2, 3, 4, 5),
        R(3),
        R(3, low=0.5, high=2),
        f32([1.0]),
    ),
    _plain("Scale", "", (2, 3, 4, 5), R(3)),
    _plain("Scale", "scale_param { bias_term: true }", (2, 3, 4, 5), R(3), R(3, seed=1)),
    _plain("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 }", (2, 7, 4, 5)),
    _plain(
        "LRN",
        "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 alpha: 0.5 beta: 0.75 }",
        (2, 3, 6, 5),
    ),
    _plain("Softmax", "", (2, 3, 4, 5)),
    _plain("Softmax", "softmax_param { axis: 2 }", (2, 3, 4, 5)),
    _plain("Softmax", "softmax_param { axis: -1 }", (2, 3, 4, 5)),
    _plain("Flatten", "", (2, 3, 4, 5)),
    _plain("Flatten", "flatten_param { axis: 2 }", (2, 3, 4, 5)),
    _plain("Flatten", "flatten_param { axis: 1 end_axis: 2 }", (2, 3, 4, 5)),
    _plain("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 5 } }", (2, 3, 4, 5)),
    _plain("Reshape", "reshape_param { shape { dim: 6 dim: -1 } axis: 1 }", (2, 3, 4, 5)),
    _plain("Reshape", "reshape_param { shape { dim: 12 } axis: 1 num_axes: 2 }", (2, 3, 4, 5)),
    _plain("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", (2, 3, 4, 5)),
    _plain(
        "Normalize",
        "norm_param { across_spatial: false channel_shared: false }",
        (2, 3, 4, 5),
        R(3),
    ),
    _plain("Normalize", "norm_param { channel_shared: true }", (2, 3, 4, 5), R(1)),
    _plain("ShuffleChannel", "shuffle_channel_param { group: 2 }", (2, 6, 4, 5)),
    _plain("ReLU6", "", (2, 3, 4, 5)),
    _plain("Dropout", "", (2, 3, 4, 5)),
]


@pytest.mark.requirement("G-15", "G-16")
@pytest.mark.parametrize(("kind", "parameters", "shape", "weights"), AGAINST_OPENCV)
def test_layer_computes_what_opencv_computes(
    kind: str, parameters: str, shape: tuple[int, ...], weights: list[Array]
) -> None:
    text = input_text(shape) + layer_text(kind, parameters)
    inputs = {"data": random_array(*shape, low=-2, high=2, seed=9)}
    model = caffemodel({"out": weights} if weights else {"unused": [random_array(1)]})
    (wanted,) = evaluate_with_opencv(text, model, inputs, ["out"])
    out = evaluate(text, {"out": weights} if weights else {}, inputs)["out"]
    assert out.size == wanted.size
    assert relative_error(out, wanted) < 1e-5


TWO = {"data": (2, 3, 4, 5), "other": (2, 3, 4, 5)}
WITH_SEVERAL_BOTTOMS = [
    ("Eltwise", "", TWO),
    ("Eltwise", "eltwise_param { operation: PROD }", TWO),
    ("Eltwise", "eltwise_param { operation: MAX }", TWO),
    ("Eltwise", "eltwise_param { coeff: 2 coeff: -0.5 }", TWO),
    ("Eltwise", "", {**TWO, "third": (2, 3, 4, 5)}),
    ("Eltwise", "eltwise_param { operation: MAX }", {**TWO, "third": (2, 3, 4, 5)}),
    ("Eltwise", "eltwise_param { operation: PROD }", {**TWO, "third": (2, 3, 4, 5)}),
    ("Eltwise", "eltwise_param { coeff: 1 coeff: -1 coeff: 3 }", {**TWO, "third": (2, 3, 4, 5)}),
    ("Concat", "", {"data": (2, 3, 4, 5), "other": (2, 1, 4, 5)}),
    ("Concat", "concat_param { axis: -1 }", {"data": (2, 3, 4, 5), "other": (2, 3, 4, 2)}),
    ("Crop", "crop_param { offset: 1 }", {"data": (2, 3, 6, 7), "other": (2, 3, 4, 5)}),
    (
        "Crop",
        "crop_param { axis: 1 offset: 1 offset: 2 offset: 0 }",
        {"data": (2, 3, 6, 7), "other": (2, 2, 4, 5)},
    ),
]


@pytest.mark.requirement("G-13", "G-16")
@pytest.mark.parametrize(("kind", "parameters", "shapes"), WITH_SEVERAL_BOTTOMS)
def test_layer_of_several_bottoms_computes_what_opencv_computes(
    kind: str, parameters: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    text = "".join(input_text(shape, name) for name, shape in shapes.items())
    text += layer_text(kind, parameters, bottoms=list(shapes))
    inputs = {
        name: random_array(*shape, seed=number)
        for number, (name, shape) in enumerate(shapes.items())
    }
    (wanted,) = evaluate_with_opencv(text, caffemodel({"x": [random_array(1)]}), inputs, ["out"])
    out = evaluate(text, {}, inputs)["out"]
    assert out.shape == wanted.shape
    assert relative_error(out, wanted) < 1e-5


X = random_array(2, 3, 4, 5, seed=3, low=-2, high=2)
MEANS = X.mean((2, 3), keepdims=True)
BY_FORMULA: list[tuple[str, str, list[Array], Callable[[], Array]]] = [
    ("Log", "log_param { base: 10 scale: 2 shift: 5 }", [], lambda: np.log10(5 + 2 * X)),
    ("Log", "log_param { shift: 5 }", [], lambda: np.log(5 + X)),
    ("Threshold", "threshold_param { threshold: 0.5 }", [], lambda: (X > 0.5).astype(np.float32)),
    ("Bias", "", [R(3)], lambda: X + R(3)[:, None, None]),
    ("Bias", "bias_param { num_axes: -1 }", [R(3, 4, 5)], lambda: X + R(3, 4, 5)),
    ("Scale", "scale_param { axis: 2 num_axes: 2 }", [R(4, 5)], lambda: X * R(4, 5)),
    ("Scale", "scale_param { num_axes: 0 }", [f32(3).reshape(())], lambda: X * 3),
    (
        "Scale",
        "scale_param { axis: -1 bias_term: true }",
        [R(5), R(5, seed=4)],
        lambda: X * R(5) + R(5, seed=4),
    ),
    (
        "LRN",
        "lrn_param { local_size: 5 alpha: 0.5 beta: 2 k: 3 }",
        [],
        lambda: X / (3 + f32(0.1) * (X * X).sum(1, keepdims=True)) ** 2,
    ),
    ("Reduction", "reduction_param { operation: MEAN axis: 2 }", [], lambda: X.mean((2, 3))),
    ("Reduction", "reduction_param { axis: 1 }", [], lambda: X.sum((1, 2, 3))),
    ("MVN", "mvn_param { normalize_variance: false }", [], lambda: X - MEANS),
    (
        "MVN",
        "",
        [],
        lambda: (X - MEANS) / (np.sqrt(((X - MEANS) ** 2).mean((2, 3), keepdims=True)) + 1e-9),
    ),
    ("Tile", "tile_param { axis: 2 tiles: 3 }", [], lambda: np.tile(X, (1, 1, 3, 1))),
    (
        "Reduction",
        "reduction_param { operation: ASUM axis: 1 coeff: 0.5 }",
        [],
        lambda: np.abs(X).sum((1, 2, 3)) / 2,
    ),
    (
        "Reduction",
        "reduction_param { operation: SUMSQ axis: -1 }",
        [],
        lambda: (X * X).sum(-1),
    ),
    (
        "ArgMax",
        "argmax_param { axis: 1 }",
        [],
        lambda: X.argmax(1, keepdims=True).astype(np.float32),
    ),
    ("ArgMax", "argmax_param { axis: 1 out_max_val: true }", [], lambda: X.max(1, keepdims=True)),
    (
        "ArgMax",
        "",
        [],
        lambda: X.reshape(2, -1).argmax(1).astype(np.float32).reshape(2, 1, 1, 1),
    ),
    (
        "ArgMax",
        "argmax_param { out_max_val: true }",
        [],
        lambda: np.stack(
            [X.reshape(2, -1).argmax(1).astype(np.float32), X.reshape(2, -1).max(1)], 1
        ).reshape(2, 2, 1, 1),
    ),
    (
        "InnerProduct",
        "inner_product_param { num_output: 6 transpose: true }",
        [R(60, 6), R(6)],
        lambda: X.reshape(2, 60) @ R(60, 6) + R(6),
    ),
    (
        "InnerProduct",
        "inner_product_param { num_output: 6 axis: 2 }",
        [R(6, 20), R(6)],
        lambda: X.reshape(2, 3, 20) @ R(6, 20).T + R(6),
    ),
    (
        "InnerProduct",
        "inner_product_param { num_output: 6 axis: -1 transpose: true bias_term: false }",
        [R(5, 6)],
        lambda: X @ R(5, 6),
    ),
    (
        "BatchNorm",
        "",
        [R(3), R(3, low=1, high=2), f32([0.0])],
        lambda: X / np.sqrt(f32(1e-5)),
    ),
    ("Upsample", "upsample_param { scale: 2 }", [], lambda: X.repeat(2, 2).repeat(2, 3)),
]


@pytest.mark.requirement("G-15", "G-16")
@pytest.mark.parametrize(("kind", "parameters", "weights", "wanted"), BY_FORMULA)
def test_layer_computes_its_formula(
    kind: str, parameters: str, weights: list[Array], wanted: Callable[[], Array]
) -> None:
    text = input_text(X.shape) + layer_text(kind, parameters)
    out = evaluate(text, {"out": weights} if weights else {}, {"data": X})["out"]
    assert out.shape == wanted().shape
    assert relative_error(out, wanted()) < 1e-5


def test_scale_and_bias_take_a_second_bottom() -> None:
    y = random_array(2, 3, seed=8)
    for kind, wanted in (("Scale", X * y[:, :, None, None]), ("Bias", X + y[:, :, None, None])):
        text = input_text(X.shape) + input_text(y.shape, "y")
        parameters = f"{kind.lower()}_param {{ axis: 0 }}"
        text += layer_text(kind, parameters, bottoms=("data", "y"))
        out = evaluate(text, {}, {"data": X, "y": y})["out"]
        assert relative_error(out, wanted) < 1e-6


@pytest.mark.parametrize(
    ("parameters", "cuts"),
    [("", [2, 4]), ("slice_param { axis: 1 slice_point: 1 slice_point: 2 }", [1, 2])],
)
def test_slice_cuts_at_its_points_or_into_equal_parts(parameters: str, cuts: list[int]) -> None:
    x = random_array(2, 6, 4)
    text = input_text(x.shape) + layer_text("Slice", parameters, tops=("a", "b", "c"))
    out = evaluate(text, {}, {"data": x})
    for name, wanted in zip("abc", np.split(x, cuts, 1), strict=True):
        assert np.array_equal(out[name], wanted)


def test_concat_dim_is_an_older_name_of_the_axis() -> None:
    text = input_text((1, 2, 3)) + input_text((1, 2, 1), "other")
    text += layer_text("Concat", "concat_param { concat_dim: 2 }", bottoms=("data", "other"))
    x, y = random_array(1, 2, 3), random_array(1, 2, 1)
    out = evaluate(text, {}, {"data": x, "other": y})["out"]
    assert np.array_equal(out, np.concatenate([x, y], 2))


def test_split_gives_every_top_the_bottom() -> None:
    text = input_text(X.shape) + layer_text("Split", tops=("a", "b"))
    out = evaluate(text, {}, {"data": X})
    assert list(out) == ["a", "b"]
    assert all(np.array_equal(value, X) for value in out.values())


def test_embed_looks_rows_up() -> None:
    index = f32([[0, 3], [2, 1]])
    text = input_text((2, 2)) + layer_text("Embed", "embed_param { num_output: 3 input_dim: 4 }")
    out = evaluate(text, {"out": [R(4, 3), R(3)]}, {"data": index})["out"]
    assert np.array_equal(out, R(4, 3)[index.astype(int)] + R(3))


@pytest.mark.parametrize("index", [-5, -4, -1, 4])
def test_an_index_of_embed_counts_from_the_start_alone(index: int) -> None:
    text = input_text((1, 1)) + layer_text("Embed", "embed_param { num_output: 3 input_dim: 4 }")
    with pytest.raises(IndexRangeError):
        evaluate(text, {"out": [R(4, 3), R(3)]}, {"data": f32([[index]])})


def test_interp_resizes_to_corners() -> None:
    text = input_text((1, 1, 2, 2)) + layer_text("Interp", "interp_param { height: 3 width: 3 }")
    x = f32([[[[0, 2], [4, 6]]]])
    out = evaluate(text, {}, {"data": x})["out"]
    assert out.ravel().tolist() == [0, 1, 2, 2, 3, 4, 4, 5, 6]


@pytest.mark.requirement("G-3", "G-68")
def test_convolution_correlates_with_weights_in_output_input_height_width_order() -> None:
    # One filter that picks the element right of, and one that picks that below, of channel 1.
    weights = np.zeros((2, 2, 3, 3), np.float32)
    weights[0, 1, 1, 2] = weights[1, 1, 2, 1] = 1
    x = random_array(1, 2, 5, 5)
    text = input_text(x.shape) + layer_text(
        "Convolution", "convolution_param { num_output: 2 kernel_size: 3 bias_term: false }"
    )
    out = evaluate(text, {"out": [weights]}, {"data": x})["out"]
    assert np.array_equal(out[0, 0], x[0, 1, 1:4, 2:5])
    assert np.array_equal(out[0, 1], x[0, 1, 2:5, 1:4])


@pytest.mark.requirement("G-69")
def test_inner_product_weights_are_rows_of_outputs() -> None:
    weights = f32([[1, 10, 100], [2, 20, 200]])
    text = input_text((1, 3)) + layer_text(
        "InnerProduct", "inner_product_param { num_output: 2 bias_term: false }"
    )
    out = evaluate(text, {"out": [weights]}, {"data": f32([[1, 2, 3]])})["out"]
    assert out.tolist() == [[321, 642]]


@pytest.mark.requirement("G-70")
def test_deconvolution_weights_are_in_input_output_height_width_order() -> None:
    weights = random_array(2, 3, 2, 2)
    x = random_array(1, 2, 1, 1)
    text = input_text(x.shape) + layer_text(
        "Deconvolution", "convolution_param { num_output: 3 kernel_size: 2 bias_term: false }"
    )
    out = evaluate(text, {"out": [weights]}, {"data": x})["out"]
    assert relative_error(out[0], np.einsum("c,ckrs->krs", x[0, :, 0, 0], weights)) < 1e-6


def test_shared_layer_of_two_bottoms_uses_its_weights_twice() -> None:
    weights: Weights = {"out": [random_array(2, 3, 1, 1)]}
    text = input_text((1, 3, 2, 2)) + input_text((1, 3, 4, 4), "other")
    text += layer_text(
        "Convolution",
        "convolution_param { num_output: 2 kernel_size: 1 bias_term: false }",
        bottoms=("data", "other"),
        tops=("a", "b"),
    )
    x, y = random_array(1, 3, 2, 2), random_array(1, 3, 4, 4)
    out = evaluate(text, weights, {"data": x, "other": y})
    matrix = weights["out"][0][:, :, 0, 0]
    assert relative_error(out["a"], np.einsum("kc,nchw->nkhw", matrix, x)) < 1e-6
    assert relative_error(out["b"], np.einsum("kc,nchw->nkhw", matrix, y)) < 1e-6
