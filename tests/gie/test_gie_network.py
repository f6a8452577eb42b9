"""Network definitions in the documented vocabulary: layers, parameters, tensors, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt import gie
from smelt.errors import GraphError, ShapeError, SmeltError
from smelt.interp import interpret
from tests.support.gie import (
    RecordingLogger,
    build,
    found,
    numbers,
    output_of,
    parse_mnist,
    small_network,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.ir import Array
    from smelt.network import Tensor


def _network(*dims: int) -> tuple[gie.InferNetwork, Tensor]:
    network = gie.InferNetwork("net")
    return network, network.add_input("data", gie.DataType.FLOAT, dims or (4, 9, 8))


def _run(network: gie.InferNetwork, layer: gie.InferLayer, x: Array) -> Array:
    tensor = output_of(layer)
    network.mark_output(tensor)
    return interpret(network.graph, {"data": x})[tensor.name]


def _every_layer() -> gie.InferNetwork:
    """One of each kind, in the order of their numbers."""
    network, x = _network()
    conv = network.add_convolution(x, 4, (3, 3), numbers(4, 4, 3, 3), [])
    conv.set_padding((1, 1))
    flat = network.add_fully_connected(output_of(conv), 4, numbers(4, 4 * 9 * 8), numbers(4))
    act = network.add_activation(output_of(conv), gie.ActivationType.SIGMOID)
    network.add_pooling(output_of(act), gie.PoolingType.MAX, (2, 2))
    lrn = network.add_lrn(output_of(act), 5, 1e-4, 0.75, 1.0)
    network.add_scale(output_of(lrn), gie.ScaleMode.UNIFORM, [1.0], [2.0], [3.0])
    network.add_soft_max(output_of(flat))
    deconv = network.add_deconvolution(x, 4, (1, 1), numbers(4, 4, 1, 1))
    network.add_concatenation([output_of(deconv), x])
    network.add_element_wise(output_of(deconv), output_of(conv), gie.ElementWiseOperation.PROD)
    return network


@pytest.mark.requirement("GX-2", "GX-3")
def test_network_adds_and_names_every_documented_kind_of_layer() -> None:
    network = _every_layer()
    assert network.nb_layers == 10
    kinds = [found_layer(network, index).type for index in range(10)]
    assert kinds == list(gie.LayerType)
    assert [found_layer(network, index).nb_inputs for index in range(10)] == [1] * 8 + [2, 2]
    assert all(found_layer(network, index).nb_outputs == 1 for index in range(10))


def found_layer(network: gie.InferNetwork, index: int) -> gie.InferLayer:
    layer = network.get_layer(index)
    assert layer is not None
    return layer


@pytest.mark.requirement("GX-3")
def test_what_is_out_of_range_is_none() -> None:
    network = _every_layer()
    layer = found_layer(network, 0)
    network.mark_output(output_of(layer))
    assert (network.nb_inputs, network.nb_outputs) == (1, 1)
    assert network.get_input(0) is not None
    assert network.get_output(0) is output_of(layer)
    for index in (-1, 1, 99):
        assert network.get_input(index) is None
        assert network.get_output(index) is None
        assert layer.get_input(index) is None
        assert layer.get_output(index) is None
    for index in (-1, 10):
        assert network.get_layer(index) is None


@pytest.mark.requirement("GX-4")
def test_windows_begin_with_steps_of_one_and_no_padding_and_setters_recompute_what_follows() -> (
    None
):
    network, x = _network(3, 16, 16)
    conv = network.add_convolution(x, 6, (5, 5), numbers(6, 3, 5, 5))
    pool = network.add_pooling(output_of(conv), gie.PoolingType.MAX, (2, 2))
    after = network.add_activation(output_of(pool), gie.ActivationType.RELU)
    for layer, kernel in ((conv, (5, 5)), (pool, (2, 2))):
        assert (layer.kernel_size, layer.stride, layer.padding) == (kernel, (1, 1), (0, 0))
    assert conv.nb_groups == 1
    assert [output_of(layer).shape for layer in (conv, pool, after)] == [
        (6, 12, 12),
        (6, 11, 11),
        (6, 11, 11),
    ]
    conv.set_stride((2, 1))
    conv.set_padding((2, 1))
    pool.set_stride((2, 2))
    assert (conv.stride, conv.padding, pool.stride) == ((2, 1), (2, 1), (2, 2))
    assert output_of(conv).shape == (6, (16 + 4 - 5) // 2 + 1, 16 + 2 - 5 + 1)
    assert output_of(after).shape == (6, 4, 7)


@pytest.mark.requirement("GX-4")
def test_deconvolution_grows_as_documented() -> None:
    network, x = _network(2, 5, 6)
    layer = network.add_deconvolution(x, 3, (4, 3), numbers(2, 3, 4, 3), numbers(3))
    layer.set_stride((2, 3))
    layer.set_padding((1, 1))
    assert output_of(layer).shape == (3, 4 * 2 + 4 - 2, 5 * 3 + 3 - 2)


def test_setter_that_does_not_fit_changes_nothing() -> None:
    network, x = _network()
    conv = network.add_convolution(x, 2, (3, 3), numbers(2, 4, 3, 3))
    with pytest.raises(ShapeError):
        conv.set_stride((0, 1))
    assert conv.stride == (1, 1)
    act = network.add_activation(output_of(conv), gie.ActivationType.RELU)
    with pytest.raises(GraphError, match="has no window"):
        act.set_padding((1, 1))
    with pytest.raises(GraphError, match="have groups"):
        act.set_nb_groups(2)


@pytest.mark.requirement("GX-4")
@pytest.mark.parametrize("kind", ["convolution", "deconvolution"])
def test_groups_are_set_after_weights_that_are_for_groups(kind: str) -> None:
    network, x = _network()
    weights = numbers(*((6, 2) if kind == "convolution" else (4, 3)), 3, 3)
    layer = getattr(network, f"add_{kind}")(x, 6, (3, 3), weights)
    network.mark_output(output_of(layer))
    assert layer.nb_groups == 1
    with pytest.raises(ShapeError, match=r"call set_nb_groups\(2\)"):
        build(network)
    with pytest.raises(ShapeError, match="the weights are for 2 groups, not 3"):
        layer.set_nb_groups(3)
    layer.set_nb_groups(2)
    assert layer.nb_groups == 2
    data = numbers(1, 4, 9, 8)
    whole = interpret(network.graph, {"data": data})[output_of(layer).name]
    alone, y = _network()
    first, half = weights[: len(weights) // 2], data.copy()
    half[:, 2:] = 0
    made = getattr(alone, f"add_{kind}")
    padded = (
        np.concatenate([first, 0 * first], 1)
        if kind == "convolution"
        else np.concatenate([first, 0 * first])
    )
    part = _run(alone, made(y, 3, (3, 3), padded), half)
    assert np.allclose(whole[:, :3], part, atol=1e-5)
    build(network)


@pytest.mark.requirement("GX-5")
def test_absent_weights_of_a_scale_change_nothing_and_counts_follow_the_mode() -> None:
    data = np.abs(numbers(2, 4, 9, 8)) + 1
    for mode, count in zip(gie.ScaleMode, (1, 4, 4 * 9 * 8), strict=True):
        for absent in (None, np.zeros(0, np.float32)):
            network, x = _network()
            layer = network.add_scale(x, mode, absent, absent, absent)
            assert np.array_equal(_run(network, layer, data), data)
        network, x = _network()
        shift, scale, power = (np.abs(numbers(count, seed=n)) for n in range(3))
        layer = network.add_scale(x, mode, shift, scale, power)
        shape = {1: (), 4: (4, 1, 1)}.get(count, (4, 9, 8))
        wanted = (data * scale.reshape(shape) + shift.reshape(shape)) ** power.reshape(shape)
        assert np.allclose(_run(network, layer, data), wanted, rtol=1e-4)
        with pytest.raises(ShapeError, match="numbers"):
            network.add_scale(x, mode, numbers(count + 1))


@pytest.mark.requirement("GX-5")
@pytest.mark.parametrize(
    ("window", "alpha", "beta", "k"),
    [
        (4, 1e-4, 0.75, 1.0),
        (0, 1e-4, 0.75, 1.0),
        (17, 1e-4, 0.75, 1.0),
        (5, 1.1e20, 0.75, 1.0),
        (5, -1.1e20, 0.75, 1.0),
        (5, 1e-4, 0.009, 1.0),
        (5, 1e-4, 1.1e5, 1.0),
        (5, 1e-4, 0.75, 0.9e-5),
        (5, 1e-4, 0.75, 1.1e10),
    ],
)
def test_parameters_of_lrn_outside_their_ranges_are_refused(
    window: int, alpha: float, beta: float, k: float
) -> None:
    network, x = _network()
    with pytest.raises(ShapeError, match="LRN"):
        network.add_lrn(x, window, alpha, beta, k)
    assert network.nb_layers == 0
    for edge in ((1, -1e20, 0.01, 1e-5), (15, 1e20, 1e5, 1e10)):
        network.add_lrn(x, *edge)


@pytest.mark.requirement("GX-5")
def test_fully_connected_flattens_and_concatenation_and_elementwise_ask_for_equal_dims() -> None:
    network, x = _network()
    flat = network.add_fully_connected(x, 7, numbers(7, 4 * 9 * 8))
    assert output_of(flat).shape == (7, 1, 1)
    other = network.add_convolution(x, 3, (3, 3), numbers(3, 4, 3, 3))
    with pytest.raises(ShapeError):
        network.add_concatenation([x, output_of(other)])
    with pytest.raises(ShapeError, match="equal dims"):
        network.add_element_wise(x, output_of(other), gie.ElementWiseOperation.SUM)
    joined = network.add_concatenation([output_of(other), output_of(other)])
    assert output_of(joined).shape == (6, 7, 6)


@pytest.mark.requirement("GX-5")
def test_means_of_windows_leave_the_padding_out() -> None:
    network, x = _network(1, 2, 2)
    with pytest.raises(ShapeError, match="window of 3 does not fit"):
        network.add_pooling(x, gie.PoolingType.AVERAGE, (3, 3))
    pool = network.add_pooling(x, gie.PoolingType.AVERAGE, (3, 3), padding=(1, 1))
    data = np.array([[[[1, 2], [3, 6]]]], np.float32)
    assert np.array_equal(_run(network, pool, data), np.full((1, 1, 2, 2), 3, np.float32))


# ---- tensors


@pytest.mark.requirement("GX-6", "G-33")
def test_results_are_called_by_layer_and_index_until_they_get_a_name() -> None:
    network, x = _network()
    conv = network.add_convolution(x, 2, (3, 3), numbers(2, 4, 3, 3))
    assert output_of(conv).name == f"{conv.name} [0]"
    conv.set_name("conv1")
    assert (conv.name, output_of(conv).name) == ("conv1", "conv1 [0]")
    output_of(conv).name = "features"
    conv.name = "first"
    assert (conv.name, output_of(conv).name) == ("first", "features")
    relu = network.add_activation(output_of(conv), gie.ActivationType.RELU)
    for name in ("first", ""):
        with pytest.raises(GraphError, match="empty or already used"):
            relu.set_name(name)
    assert found_layer(network, 0).name == "first"
    flat = network.add_fully_connected(output_of(relu), 3, numbers(3, 2 * 7 * 6))
    flat.set_name("ip")
    assert [node.name for node in network.graph.nodes][-1] == "ip"
    assert all(node.name.startswith("ip") for node in network.graph.nodes[2:])
    assert output_of(flat).name == "ip [0]"


@pytest.mark.requirement("G-20", "G-21")
def test_names_of_a_parsed_network_are_the_prototxts_whatever_its_layers_are_called() -> None:
    network = gie.InferNetwork()
    blobs = parse_mnist(network)
    assert [found_layer(network, n).name for n in range(network.nb_layers)] == (
        ["conv1", "pool1", "conv2", "pool2", "ip1", "relu1", "ip2", "prob"]
    )
    layer = found_layer(network, 5)
    assert found(blobs, "ip1") is output_of(layer)  # in place: the last write
    found_layer(network, 0).set_name("renamed")
    assert found(blobs, "conv1").name == "conv1"


@pytest.mark.requirement("GX-6")
def test_only_inputs_take_new_dims_and_what_depends_on_them_follows() -> None:
    network = small_network()
    x, y = network.get_input(0), network.get_output(0)
    assert x is not None
    assert y is not None
    x.shape = (4, 20, 5)
    assert y.shape == (8, 20, 5)
    with pytest.raises(GraphError, match="only the shape of an input"):
        y.shape = (8, 10, 10)


@pytest.mark.requirement("GX-6")
def test_inputs_with_their_batch_stay_below_two_to_the_thirtieth() -> None:
    network = gie.InferNetwork()
    with pytest.raises(ShapeError, match=r"fewer than 2\^30"):
        network.add_input("data", gie.DataType.FLOAT, (1, 1 << 15, 1 << 15))
    x = network.add_input("data", gie.DataType.FLOAT, (1, 1 << 13, 1 << 13))
    network.mark_output(output_of(network.add_activation(x, gie.ActivationType.RELU)))
    with pytest.raises(ShapeError, match=r"1,073,741,824 elements \(batch 16 x dims \[1, 8192"):
        build(network, max_batch_size=16)
    network.check(15)


@pytest.mark.requirement("G-31")
@pytest.mark.parametrize("dims", [(), (4,), (9, 8), (1, 4, 9, 8)])
def test_inputs_have_three_dims(dims: tuple[int, ...]) -> None:
    network = gie.InferNetwork()
    with pytest.raises(ShapeError, match=r"shape \(C, H, W\) of the input is"):
        network.add_input("data", gie.DataType.FLOAT, dims)


@pytest.mark.requirement("G-22", "G-27")
def test_parser_marks_no_output_and_any_number_may_be_marked() -> None:
    network = gie.InferNetwork()
    blobs = parse_mnist(network)
    assert network.nb_outputs == 0
    with pytest.raises(Exception, match="mark one with mark_output"):
        build(network)
    names = ("prob", "conv1", "pool1", "conv2", "ip1")
    for name in names:
        network.mark_output(found(blobs, name))
    assert network.nb_outputs == 5
    engine = build(network)
    assert [engine.get_binding_name(n) for n in range(6)] == ["data", *names]


# ---- formulas


def _rounding_up(
    dims: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    name: str,
) -> tuple[int, int]:
    del name
    sizes = zip(dims, kernel, stride, padding, strict=True)
    high, wide = (-(-(d + 2 * p - k) // s) + 1 for d, k, s, p in sizes)
    return high, wide


def _doubling(dims: tuple[int, int], *_others: object) -> tuple[int, int]:
    return 2 * dims[0] + 1, 2 * dims[1] - 1


def _of_one(*_all: object) -> tuple[int, int]:
    return 1, 1


@pytest.mark.requirement("GX-3")
def test_formula_decides_how_large_poolings_are_before_and_after_they_are_made() -> None:
    network, x = _network(1, 6, 6)
    early = network.add_pooling(x, gie.PoolingType.MAX, (3, 3))
    early.set_stride((2, 2))
    assert output_of(early).shape == (1, 2, 2)
    network.set_pooling_output_dimensions_formula(_rounding_up)
    assert output_of(early).shape == (1, 3, 3)
    late = network.add_pooling(x, gie.PoolingType.MAX, (3, 3))
    late.set_stride((2, 2))
    assert output_of(late).shape == (1, 3, 3)
    data = numbers(1, 1, 6, 6)
    assert _run(network, late, data)[0, 0, 2, 2] == data[0, 0, 4:, 4:].max()
    network.set_pooling_output_dimensions_formula(None)
    assert output_of(late).shape == (1, 2, 2)


@pytest.mark.requirement("GX-3")
def test_formulas_hold_for_convolutions_and_deconvolutions_and_follow_the_input() -> None:
    network, x = _network(2, 6, 6)
    network.set_convolution_output_dimensions_formula(_rounding_up)
    network.set_deconvolution_output_dimensions_formula(_doubling)
    conv = network.add_convolution(x, 2, (3, 3), numbers(2, 2, 3, 3))
    conv.set_stride((2, 2))
    deconv = network.add_deconvolution(x, 2, (2, 2), numbers(2, 2, 2, 2))
    deconv.set_stride((2, 2))
    network.mark_output(output_of(conv))
    network.mark_output(output_of(deconv))
    assert (output_of(conv).shape, output_of(deconv).shape) == ((2, 3, 3), (2, 13, 11))
    x.shape = (2, 8, 7)
    engine = build(network)
    assert [engine.get_binding_dimensions(n) for n in (1, 2)] == [(2, 4, 3), (2, 17, 13)]


def test_formula_that_asks_for_the_impossible_is_refused() -> None:
    network, x = _network(2, 6, 6)
    network.set_convolution_output_dimensions_formula(_of_one)
    with pytest.raises(ShapeError, match=r"gives an output of \(1, 1\) for an input of \(6, 6\)"):
        network.add_convolution(x, 2, (3, 3), numbers(2, 2, 3, 3))


MISTAKES: list[Callable[[gie.InferNetwork, Tensor], object]] = [
    lambda n, x: n.add_convolution(x, 2, (3, 3), numbers(7)),
    lambda n, x: n.add_fully_connected(x, 2, numbers(7)),
    lambda n, x: n.add_pooling(x, gie.PoolingType.MAX, (20, 20)),
    lambda n, x: n.add_input(x.name, gie.DataType.FLOAT, (1, 1, 1)),
    lambda n, x: n.mark_output(x),
    lambda _, x: small_network().mark_output(x),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_with_the_callers_line(mistake: Any) -> None:
    network, x = _network()
    with pytest.raises(GraphError, match=r"test_gie_network\.py:\d+"):
        mistake(network, x)


def test_recording_logger_is_what_the_facade_asks_for() -> None:
    assert isinstance(RecordingLogger(), gie.Logger)


_WRONG: list[tuple[Callable[[Any, Any], object], str]] = [
    (
        lambda net, _: net.add_input("y", None, (1, 2, 3)),
        "None is not a member of DataType; the members are FLOAT",
    ),
    (
        lambda net, x: net.add_pooling(x, 99, (2, 2)),
        "99 is not a member of PoolingType; the members are MAX",
    ),
    (lambda net, x: net.add_element_wise(x, None, 0), "a tensor .* not NoneType"),
    (lambda net, _: net.add_concatenation(None), "is None; it must be a list"),
    (lambda net, _: net.add_convolution(None, 4, (3, 3), [1.0], None), "a tensor .* not NoneType"),
    (
        lambda *_: gie.create_infer_builder(RecordingLogger()).build_cuda_engine(None),  # type: ignore[arg-type]
        "network from",
    ),
    (lambda *_: gie.create_caffe_parser().parse("a", "b", None), "network from create_network"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "detail"), _WRONG)
def test_what_is_given_wrongly_is_told_in_words(
    call: Callable[[Any, Any], object], detail: str
) -> None:
    network = gie.create_infer_builder(RecordingLogger()).create_network()
    x = network.add_input("x", gie.DataType.FLOAT, (3, 8, 8))
    with pytest.raises(SmeltError, match=detail):
        call(network, x)


def test_open_extents_are_told_where_the_documented_dims_are_numbers() -> None:
    definition = smelt.NetworkDefinition("open", "explicit")
    x = definition.add_input("x", "float32", (1, 2, "h", 6))
    definition.mark_output(definition.add_pooling(x, "max", 2))
    network = gie.InferNetwork()
    network.fill(definition)
    with pytest.raises(ShapeError, match="has symbolic extents"):
        network.check(1)
