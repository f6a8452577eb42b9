"""Networks defined layer by layer."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import GraphError, ShapeError, SmeltError
from smelt.interp import interpret
from smelt.ir import verify
from smelt.network import NetworkDefinition, Tensor
from tests.support.small_models import boxes_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.ir import Array


def _rand(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _network(*shape: int) -> tuple[NetworkDefinition, Tensor]:
    network = NetworkDefinition("net")
    return network, network.add_input("data", "float32", shape or (4, 9, 8))


def _run(network: NetworkDefinition, result: Tensor, x: Array) -> Array:
    network.mark_output(result)
    verify(network.graph)
    return interpret(network.graph, {"data": x})[result.name]


def _correlate(x: Array, weights: Array, stride: int, pad: int) -> Array:
    """The sum of products of every window with every filter, the filter not flipped."""
    padded = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    high, wide = weights.shape[2:]
    rows = range(0, padded.shape[2] - high + 1, stride)
    columns = range(0, padded.shape[3] - wide + 1, stride)
    windows = [[padded[:, :, i : i + high, j : j + wide] for j in columns] for i in rows]
    made = [[np.einsum("nchw,kchw->nk", w, weights) for w in row] for row in windows]
    return np.array(made).transpose(2, 3, 0, 1)


@pytest.mark.requirement("G-2", "G-3", "G-68")
@pytest.mark.parametrize("bias", [None, _rand(6)])
def test_a_convolution_correlates_with_weights_of_k_c_r_s(bias: Array | None) -> None:
    network, x = _network()
    weights, data = _rand(6, 4, 3, 2), _rand(2, 4, 9, 8)
    y = network.add_convolution(x, 6, (3, 2), weights.ravel(), bias, stride=(2, 2), padding=(1, 1))
    expected = _correlate(data, weights, 2, 1)
    if bias is not None:
        expected = expected + bias[:, None, None]
    assert y.shape == expected.shape[1:]
    np.testing.assert_allclose(_run(network, y, data), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.requirement("G-4")
def test_activations_are_relu_sigmoid_tanh_and_more() -> None:
    data = _rand(2, 4, 9, 8)
    expected = {"relu": np.maximum(data, 0), "sigmoid": 1 / (1 + np.exp(-data))}
    expected |= {"tanh": np.tanh(data), "leaky_relu": np.where(data < 0, 0.1 * data, data)}
    for kind, wanted in expected.items():
        network, x = _network()
        alpha = 0.1 if kind == "leaky_relu" else None
        y = network.add_activation(x, kind, alpha=alpha)
        np.testing.assert_allclose(_run(network, y, data), wanted, rtol=1e-5, atol=1e-6)
    network, x = _network()
    with pytest.raises(GraphError, match="activation is 'swirl'; it must be one of relu"):
        network.add_activation(x, "swirl")


@pytest.mark.requirement("G-5", "GX-4", "GX-5")
def test_a_mean_is_over_the_unpadded_input_and_extents_round_down() -> None:
    network, x = _network(1, 4, 4)
    data = np.ones((1, 1, 4, 4), np.float32)
    largest = network.add_pooling(x, "max", 3, stride=2)
    mean = network.add_pooling(x, "average", (3, 3), stride=(2, 2), padding=(1, 1))
    assert largest.shape == (1, 1, 1)
    assert mean.shape == (1, 2, 2)
    assert np.array_equal(_run(network, mean, data), np.ones((1, 1, 2, 2), np.float32))


@pytest.mark.requirement("G-6", "GX-5")
@pytest.mark.parametrize(
    ("mode", "shape"), [("uniform", ()), ("channel", (4, 1, 1)), ("elementwise", (4, 9, 8))]
)
def test_a_scale_multiplies_then_adds_then_raises(mode: str, shape: tuple[int, ...]) -> None:
    data = abs(_rand(2, 4, 9, 8))
    shift, scale, power = (abs(_rand(*shape)) + n for n in (0.5, 1.0, 0.0))
    network, x = _network()
    y = network.add_scale(x, mode, np.ravel(shift), np.ravel(scale), np.ravel(power))
    expected = (data * scale + shift) ** power
    np.testing.assert_allclose(_run(network, y, data), expected, rtol=1e-4)
    assert [layer.kind for layer in network.layers] == ["scale"]


@pytest.mark.requirement("GX-5")
def test_a_scale_without_numbers_changes_nothing() -> None:
    network, x = _network()
    data = _rand(1, 4, 9, 8)
    assert np.array_equal(_run(network, network.add_scale(x), data), data)
    with pytest.raises(ShapeError, match=r"has 3 numbers.*\[4, 1, 1\]"):
        network.add_scale(x, "channel", shift=np.ones(3, np.float32))


@pytest.mark.requirement("G-7")
def test_batch_normalisation_can_be_said_as_a_scale() -> None:
    mean, variance, gain, offset = (abs(_rand(4)) + n for n in (0, 0.5, 0, 0))
    data = _rand(2, 4, 9, 8)
    network, x = _network()
    scale = gain / np.sqrt(variance + 1e-5)
    y = network.add_scale(x, "channel", offset - mean * scale, scale)
    op = ops.BatchNormalization(epsilon=1e-5)
    (expected,) = op.reference(data, gain, offset, mean, variance)
    np.testing.assert_allclose(_run(network, y, data), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.requirement("G-8")
def test_two_tensors_are_added_multiplied_or_compared() -> None:
    data = _rand(2, 4, 9, 8)
    for operation, wanted in (
        ("sum", data + np.tanh(data)),
        ("prod", data * np.tanh(data)),
        ("max", np.maximum(data, np.tanh(data))),
    ):
        network, x = _network()
        y = network.add_elementwise(x, network.add_activation(x, "tanh"), operation)
        np.testing.assert_allclose(_run(network, y, data), wanted, rtol=1e-5, atol=1e-6)
    network, x = _network()
    small = network.add_pooling(x, "max", 2)
    with pytest.raises(ShapeError, match="must have equal shapes"):
        network.add_elementwise(x, small)


@pytest.mark.requirement("G-9", "GX-5")
def test_local_response_is_normalised_across_channels() -> None:
    network, x = _network()
    data = _rand(1, 4, 9, 8)
    y = network.add_lrn(x, 3, 0.2, 0.75, 1.5)
    padded = np.pad(data**2, [(0, 0), (1, 1), (0, 0), (0, 0)])
    around = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    expected = data / (1.5 + 0.2 / 3 * around) ** 0.75
    np.testing.assert_allclose(_run(network, y, data), expected, rtol=1e-5)
    for window, alpha, beta, k in (
        (4, 1, 1, 1),
        (17, 1, 1, 1),
        (3, 1e21, 1, 1),
        (3, 1, 0, 1),
        (3, 1, 1, 0),
    ):
        with pytest.raises(GraphError, match=r"it must be a number from|odd number from 1 to 15"):
            network.add_lrn(x, window, alpha, beta, k)


@pytest.mark.requirement("G-10", "G-69", "GX-5")
@pytest.mark.parametrize("bias", [None, _rand(5)])
def test_a_fully_connected_layer_multiplies_by_rows_of_weights(bias: Array | None) -> None:
    network, x = _network(2, 3, 4)
    weights, data = _rand(5, 24), _rand(3, 2, 3, 4)
    y = network.add_fully_connected(x, 5, weights.ravel(), bias)
    expected = data.reshape(3, 24) @ weights.T + (0 if bias is None else bias)
    assert y.shape == (5, 1, 1)
    np.testing.assert_allclose(_run(network, y, data)[..., 0, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.requirement("G-11")
def test_a_softmax_is_across_channels() -> None:
    network, x = _network()
    data = _rand(2, 4, 9, 8)
    result = _run(network, network.add_softmax(x), data)
    np.testing.assert_allclose(result.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(result, np.exp(data) / np.exp(data).sum(1, keepdims=True), rtol=1e-4)


@pytest.mark.requirement("G-12", "G-70", "GX-4")
@pytest.mark.parametrize("bias", [None, _rand(3)])
def test_a_deconvolution_is_the_transpose_of_a_convolution(bias: Array | None) -> None:
    network, x = _network(2, 4, 5)
    weights, data = _rand(2, 3, 3, 3), _rand(1, 2, 4, 5)
    y = network.add_deconvolution(x, 3, 3, weights.ravel(), bias, stride=2, padding=1)
    assert y.shape == (3, 7, 9)
    result = _run(network, y, data)
    if bias is not None:
        result = result - bias[:, None, None]
    # <conv(u), v> = <u, deconv(v)>, whatever u is; C x K of one is K x C of the other.
    u = _rand(1, 3, 7, 9)
    np.testing.assert_allclose(
        (u * result).sum(), (_correlate(u, weights, 2, 1) * data).sum(), rtol=1e-3
    )


@pytest.mark.requirement("G-13")
def test_tensors_are_concatenated_along_channels() -> None:
    network, x = _network()
    y = network.add_concatenation([x, network.add_activation(x), x])
    data = _rand(2, 4, 9, 8)
    assert y.shape == (12, 9, 8)
    expected = np.concatenate([data, np.maximum(data, 0), data], axis=1)
    assert np.array_equal(_run(network, y, data), expected)


@pytest.mark.requirement("G-28", "G-29", "G-33")
def test_a_network_is_a_sequence_of_named_layers_over_named_tensors() -> None:
    network, x = _network()
    conv = network.add_convolution(x, 2, 3, _rand(2, 4, 3, 3), name="conv1")
    relu = network.add_activation(conv, name="relu1")
    flat = network.add_fully_connected(relu, 3, _rand(3, 2 * 7 * 6))
    assert [(layer.name, layer.kind) for layer in network.layers] == [
        ("conv1", "convolution"),
        ("relu1", "activation"),
        ("fully_connected1", "fully_connected"),
    ]
    assert [layer.inputs for layer in network.layers] == [(x,), (conv,), (relu,)]
    assert [layer.outputs for layer in network.layers] == [(conv,), (relu,), (flat,)]
    assert [layer.op.name for layer in network.layers] == ["conv", "relu", "gemm"]
    assert [tensor.name for tensor in (x, conv, relu)] == ["data", "conv1", "relu1"]


@pytest.mark.requirement("G-27")
def test_any_number_of_tensors_may_be_outputs() -> None:
    network, x = _network()
    tensors = [network.add_activation(x, name=f"a{n}") for n in range(40)]
    for tensor in (*tensors, tensors[0]):
        network.mark_output(tensor)
    assert network.outputs == tensors
    results = interpret(network.graph, {"data": _rand(1, 4, 9, 8)})
    assert list(results) == [f"a{n}" for n in range(40)]


@pytest.mark.requirement("G-30", "G-31", "G-32")
def test_shapes_leave_out_the_implicit_batch_and_are_inferred() -> None:
    network, x = _network(3, 32, 32)
    y = network.add_convolution(x, 8, 3, _rand(8, 3, 3, 3).astype(np.float16), stride=2)
    assert (x.shape, x.dtype) == ((3, 32, 32), "float32")
    assert y.shape == (8, 15, 15)
    assert [str(extent) for extent in y.value.tensor.shape] == ["batch", "8", "15", "15"]
    half = network.add_input("half", "float16", (3, 4, 4))
    assert half.dtype == "float16"
    assert network.inputs == [x, half]


@pytest.mark.requirement("G-41", "GX-8")
def test_weights_are_held_by_reference_and_live_as_long_as_the_network() -> None:
    network, x = _network()
    weights = _rand(2, 4, 3, 3)
    before = sys.getrefcount(weights)
    y = network.add_convolution(x, 2, 3, weights, name="conv1")
    assert sys.getrefcount(weights) > before
    (constant,) = network.graph.constants()
    assert constant.name == "conv1.weight"
    assert np.shares_memory(constant.array, weights)
    weights[:] = 0
    del weights
    assert not _run(network, y, _rand(1, 4, 9, 8)).any()


@pytest.mark.requirement("GX-6")
def test_an_inputs_new_shape_is_followed_and_a_wrong_one_changes_nothing() -> None:
    network, x = _network(4, 9, 8)
    y = network.add_convolution(x, 2, 3, _rand(2, 4, 3, 3), name="conv1")
    z = network.add_pooling(y, "max", 2, stride=2)
    x.shape = (4, 21, 20)
    assert (y.shape, z.shape) == ((2, 19, 18), (2, 9, 9))
    with pytest.raises(ShapeError, match=r"conv1.*added at .*test_definition\.py:\d+"):
        x.shape = (3, 21, 20)
    assert (x.shape, z.shape) == ((4, 21, 20), (2, 9, 9))
    with pytest.raises(GraphError, match="is inferred from its layer"):
        y.shape = (2, 2, 2)
    with pytest.raises(ShapeError, match="fewer than"):
        x.shape = (4, 1 << 14, 1 << 14)


@pytest.mark.requirement("GX-6")
def test_tensors_may_be_named_by_layer_and_index() -> None:
    network = NetworkDefinition("net", tensor_name_format="{layer} [{index}]")
    x = network.add_input("data", "float32", (1, 2, 2))
    y = network.add_activation(x, name="relu")
    assert y.name == "relu [0]"
    y.name = "result"
    assert network.find("result") is y
    assert network.find("relu [0]") is None
    with pytest.raises(GraphError, match="'data' is already used"):
        y.name = "data"


@pytest.mark.requirement("GX-4")
def test_a_layers_parameters_may_be_changed_afterwards() -> None:
    network, x = _network()
    y = network.add_convolution(x, 2, 3, _rand(2, 4, 3, 3))
    (layer,) = network.layers
    layer.update(strides=(2, 2), pads=(1, 1, 1, 1))
    assert y.shape == (2, 5, 4)
    with pytest.raises(ShapeError):
        layer.update(group=3)
    assert y.shape == (2, 5, 4)


MISTAKES: list[tuple[Callable[[NetworkDefinition, Tensor], object], str]] = [
    (lambda n, x: n.add_convolution(x, 2, 3, _rand(7)), r"\.weight has 7 numbers"),
    (lambda n, x: n.add_convolution(x, 2, 3, _rand(2, 4, 3, 3), _rand(3)), "bias has 3"),
    (
        lambda n, x: n.add_convolution(x, 2, 3, _rand(72), groups=3),
        "channel count .*multiple of the number of groups, 3",
    ),
    (lambda n, x: n.add_convolution(x, 2, (3,), _rand(72)), "kernel .* a list of 2 integers"),
    (lambda n, x: n.add_convolution(x, 2, 30, _rand(2, 4, 30, 30)), "does not fit"),
    (lambda n, x: n.add_convolution(x, 1, 1, np.array(["a"] * 4)), "must be a real type"),
    (lambda n, x: n.add_pooling(x, "median", 2), "pooling is 'median'; it must be one of"),
    (lambda n, x: n.add_scale(x, "pixel"), "uniform, channel, elementwise"),
    (lambda n, x: n.add_input("data", "float32", (1,)), "'data' is already used"),
    (lambda n, _: n.add_input("b", "float8", (1,)), "is not an element type"),
    (lambda n, _: n.add_input("b", "float32", (0, 2)), "is 0; it must be an integer of at least 1"),
    (lambda n, _: n.add_input("b", "float32", ("a-b",)), "must be an identifier"),
    (lambda n, _: n.add_input("b", "float32", ("lambda",)), "must be an identifier"),
    (lambda n, _: n.add_input("b", "float32", ("\u00e9",)), "must be an identifier"),
    (lambda n, _: n.add_input("b", "float32", ("n" * 70_000,)), "MAX_DIM_CHARACTERS is 65,536"),
    (lambda n, _: n.add_input("b", "float32", (1,) * 32), "33 axes; the limit MAX_RANK is 32"),
    (lambda n, x: n.add(ops.Unsqueeze(), x, np.arange(32)), "MAX_RANK is 32"),
    (lambda n, _: n.add_input("b", "float32", (1 << 40,) * 31), r"has 10\*\*373 elements"),
    (lambda n, x: n.add(ops.NonZero("how many"), x), "must be an identifier, not 'how many'"),
    (lambda n, _: n.add_input("b", "float32", ("batch",)), "implicit batch"),
    (lambda n, x: n.mark_output(x), "cannot be an output"),
    (lambda n, _: n.mark_output(cast("Any", "data")), "not str"),
    (lambda n, _: n.add_activation(_network()[1]), "another network"),
    (lambda n, x: n.add(ops.Concat(axis=7), x, x), "axis 7"),
]


@pytest.mark.parametrize(("act", "words"), MISTAKES)
def test_an_error_names_the_callers_line_and_leaves_nothing_behind(
    act: Callable[[NetworkDefinition, Tensor], object], words: str
) -> None:
    network, x = _network()
    with pytest.raises(GraphError, match=words) as caught:
        act(network, x)
    assert re.search(r"test_definition\.py:\d+\]$", str(caught.value))
    assert network.layers == []
    assert network.inputs == [x]
    assert network.add_activation(x).name == "activation1"


def test_a_convolution_of_a_symbolic_number_of_channels_is_refused() -> None:
    network = NetworkDefinition(batch="explicit")
    x = network.add_input("x", "float32", (1, "c", 8, 8))
    with pytest.raises(ShapeError, match="the channel count of x is c; it must be static"):
        network.add_convolution(x, 2, 3, _rand(72))


def test_a_name_is_free_again_after_a_layer_failed() -> None:
    network, x = _network()
    with pytest.raises(ShapeError):
        network.add_convolution(x, 2, 30, _rand(2, 4, 30, 30), name="conv")
    assert network.add_convolution(x, 2, 3, _rand(2, 4, 3, 3), name="conv").name == "conv"
    with pytest.raises(GraphError, match="'conv' is empty or already used"):
        network.add_activation(x, name="conv")


def test_any_op_may_be_added_with_tensors_and_arrays() -> None:
    network = NetworkDefinition("net", batch="explicit")
    x = network.add_input("data", "float32", ("N", 6))
    parts = network.add(ops.Split(axis=1, num_outputs=2), x, name="parts")
    assert isinstance(parts, tuple)
    total = network.add(ops.Add(), parts[0], np.array([1, 2, 3], np.float32))
    assert isinstance(total, Tensor)
    assert [str(extent) for extent in total.shape] == ["N", "3"]
    data = _rand(4, 6)
    expected = data[:, :3] + np.array([1, 2, 3], np.float32)
    np.testing.assert_allclose(_run(network, total, data), expected, rtol=1e-6)


def test_every_public_name_is_there() -> None:
    for name in ("NetworkDefinition", "Tensor", "network_from_onnx", "network_from_caffe"):
        assert name in smelt.__all__
        assert name in dir(smelt)
    assert smelt.NetworkDefinition is NetworkDefinition
    assert smelt.ShapeError is ShapeError
    assert re.fullmatch(r"\d+\.\d+\.\d+", smelt.__version__)
    with pytest.raises(AttributeError, match="no attribute 'network_from_tea_leaves'"):
        getattr(smelt, "network_from_" + "tea_leaves")


def test_the_first_input_may_say_that_shapes_have_a_batch() -> None:
    network = NetworkDefinition("n")
    x = network.add_input("x", "float32", (2, 3), batch="explicit")
    assert (x.shape, network.batch) == ((2, 3), "explicit")
    with pytest.raises(GraphError, match="batch is 'implicit'; it must be 'explicit'"):
        network.add_input("y", "float32", (3,), batch="implicit")


def test_the_network_of_a_tensor_is_not_replaced() -> None:
    network = NetworkDefinition("own")
    x: Any = network.add_input("x", "float32", (2,))
    with pytest.raises(AttributeError, match="no setter"):
        x.network = NetworkDefinition("other")
    assert x.network is network


def test_the_shape_of_an_input_stays_where_it_bounds_a_count_of_the_run() -> None:
    net = smelt.network_from_onnx(boxes_model())
    net.inputs[0].shape = (1, 8, 4)
    with pytest.raises(GraphError, match="'boxes' cannot be changed, because the bounds of ext"):
        net.inputs[0].shape = (1, 9, 4)
    assert net.inputs[0].shape == (1, 8, 4)


@pytest.mark.parametrize("dtype", [np.longdouble, np.complex64])
def test_weights_have_a_type_that_a_network_can_hold(dtype: Any) -> None:
    net = NetworkDefinition()
    x = net.add_input("x", "float32", (1, 4, 4))
    with pytest.raises(GraphError, match="has element type"):
        net.add_convolution(x, 1, 1, np.ones((1, 1, 1, 1), dtype))
    with pytest.raises(GraphError, match="has element type"):
        net.add(ops.Add(), x, np.ones(4, dtype))


def test_a_time_is_no_number() -> None:
    net = NetworkDefinition()
    x = net.add_input("x", "float32", (1, 4, 4))
    alpha: Any = np.timedelta64(5, "s")
    with pytest.raises(SmeltError, match="must be a"):
        net.add_activation(x, "leaky_relu", alpha=alpha)
