"""Engines whose tensors are stored narrower than the model says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.backends.cpu import host_target
from smelt.engine import read_engine, serialize_engine
from smelt.interp import interpret
from smelt.types import DType
from tests.support.noise import noise

if TYPE_CHECKING:
    from smelt import Engine, Tensor

_TOLERANCE = {"bfloat16": 2e-2, "float16": 3e-3}

narrow = pytest.mark.parametrize(
    "precision",
    [p for p in _TOLERANCE if host_target().storage(DType(p)) is DType(p)],
)


_PICTURE = noise(2, 3, 21, 23)
_CLASSES = noise(10, 35 * 25, seed=1) / 9


def _network() -> smelt.NetworkDefinition:
    """A stem of three channels, a depthwise and a pointwise layer, an op without narrow kernels."""
    net = smelt.NetworkDefinition("narrow")
    x = net.add_input("x", "float32", (3, 21, 23))
    x = net.add_convolution(x, 18, (3, 3), noise(18, 3, 3, 3) / 5, stride=(2, 2), name="stem")
    x = net.add_activation(x, "relu", name="stem_relu")
    taps = noise(18, 1, 3, 3) / 3
    x = net.add_convolution(x, 18, (3, 3), taps, padding=(1, 1), groups=18, name="depthwise")
    x = cast("Tensor", net.add(ops.CumSum(), x, np.array(2), name="running"))
    x = net.add_convolution(x, 35, (1, 1), noise(35, 18, 1, 1) / 9, name="pointwise")
    x = net.add_pooling(x, "max", (2, 2), stride=(2, 2), name="pool")
    x = net.add_fully_connected(x, 10, _CLASSES, name="classes")
    net.mark_output(x)
    return net


def _run(engine: Engine, threads: int = 1) -> Any:
    with engine.create_context(threads=threads) as context:
        (made,) = context.run({"x": _PICTURE}).values()
    return made


def _difference(made: Any, wanted: Any) -> float:
    assert made.dtype == wanted.dtype
    return float(np.abs(made - wanted).max() / np.abs(wanted).max())


def _wanted(net: smelt.NetworkDefinition) -> Any:
    (wanted,) = interpret(net.graph, {"x": _PICTURE}).values()
    return wanted


@narrow
def test_results_are_near_those_of_float32_and_have_the_models_type(precision: str) -> None:
    net = _network()
    with smelt.build(net, precision=precision, max_batch_size=2, tune="none") as engine:
        made = _run(engine)
        assert np.array_equal(made, _run(engine, threads=3))
    difference = _difference(made, _wanted(net))
    assert 1e-5 < difference <= _TOLERANCE[precision]


@pytest.mark.skipif(
    host_target().storage(DType.FLOAT16) is DType.FLOAT32, reason="the processor has no float16"
)
def test_casts_between_floats_that_are_stored_alike_take_no_steps() -> None:
    net = smelt.NetworkDefinition("half")
    x = net.add_input("x", "float16", (3, 21, 23))
    x = cast("Tensor", net.add(ops.Cast(DType.FLOAT32), x, name="wide"))
    x = net.add_activation(x, "tanh", name="tanh")
    x = net.add_pooling(x, "max", (2, 2), stride=(2, 2), name="pool")
    net.mark_output(cast("Tensor", net.add(ops.Cast(DType.FLOAT16), x, name="narrow")))
    picture = _PICTURE.astype(np.float16)
    with smelt.build(net, precision="float16", max_batch_size=2, tune="none") as engine:
        assert not {"wide", "narrow"} & {layer.name for layer in engine.layers}
        with engine.create_context() as context:
            (made,) = context.run({"x": picture}).values()
    (wanted,) = interpret(net.graph, {"x": picture}).values()
    assert _difference(made.astype(np.float32), wanted.astype(np.float32)) <= _TOLERANCE["float16"]


@narrow
def test_new_weights_are_narrowed_as_the_old_ones_were(precision: str) -> None:
    with smelt.build(_network(), precision=precision, max_batch_size=2, tune="none") as engine:
        made = _run(engine)
        engine.refit({"classes.weight": 2 * _CLASSES})
        assert np.array_equal(_run(engine), 2 * made)


@narrow
def test_an_engine_that_nobody_signed_is_generated_anew(precision: str) -> None:
    with smelt.build(_network(), precision=precision, max_batch_size=2, tune="none") as engine:
        made, file = _run(engine), read_engine(engine.serialize())
    unsigned = serialize_engine(file.header, file.weights, file.code, file.runtime_code, None)
    with smelt.load(unsigned) as engine:
        assert np.array_equal(_run(engine), made)


def test_processors_that_cannot_convert_keep_float32() -> None:
    options: dict[str, Any] = {"device": "cpu:x86-64-v2", "max_batch_size": 2, "tune": "none"}
    with (
        smelt.build(_network(), precision="bfloat16", **options) as narrowed,
        smelt.build(_network(), **options) as wide,
    ):
        assert np.array_equal(_run(narrowed), _run(wide))
