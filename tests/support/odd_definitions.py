"""Doors of the definition API, and attributes of ops."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import smelt
from smelt import ops
from smelt.ops import ALL_OPS
from tests.support.odd_arguments import WEIGHTS, Door, method_door, network, value_door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.ir import Case


class _On:
    """Methods of a network that take its input."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        net, x = network()
        sound: dict[str, Any] = {"x": x, **_LAYERS[self._name]}
        return getattr(net, self._name), sound


_FILTERS: Final[dict[str, Any]] = {"count": 4, "kernel": 3, "weights": WEIGHTS}
_LAYERS: Final[dict[str, dict[str, Any]]] = {
    "add_convolution": _FILTERS,
    "add_deconvolution": {**_FILTERS, "weights": WEIGHTS.reshape(2, 4, 3, 3)},
    "add_fully_connected": {"count": 1, "weights": np.ones(72, np.float32)},
    "add_activation": {"kind": "elu"},
    "add_pooling": {"kind": "max", "window": 2},
    "add_lrn": {"window": 3, "alpha": 1.0, "beta": 0.5, "k": 1.0},
    "add_scale": {},
    "add_softmax": {},
}


def definition_doors() -> Iterator[Door]:
    """The doors of a network and its tensors and layers."""

    def net() -> smelt.NetworkDefinition:
        return network()[0]

    for name in _LAYERS:
        yield Door(f"NetworkDefinition.{name}", _On(name))
    yield method_door(net, "add_input", name="more", dtype="float32", shape=(2, 6, 6))
    yield method_door(net, "add", op=ops.Relu())
    yield method_door(net, "find", name="data")
    yield method_door(net, "find_layer", name="conv")
    yield method_door(net, "rename_layer", old="conv", new="other")
    for name in ("mark_output", "add_concatenation", "add_elementwise"):
        yield Door(f"NetworkDefinition.{name}", partial(_joined, name))
    yield Door("NetworkDefinition", lambda: (_named, {}))
    yield value_door("Tensor.name", lambda value: setattr(network()[1], "name", value), "more")
    yield value_door("Tensor.shape", lambda value: setattr(network()[1], "shape", value), (2, 8, 8))
    for attribute in ("strides", "pads", "dilations", "group", "kernel_shape", "no_such"):
        yield value_door(f"Layer.update({attribute})", partial(_update, attribute), 1)


def _joined(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    net, x = network()
    y = net.add_activation(x)
    sound: dict[str, dict[str, Any]] = {
        "mark_output": {"tensor": y},
        "add_concatenation": {"tensors": [x, y]},
        "add_elementwise": {"a": x, "b": y},
    }
    return getattr(net, name), sound[name]


def _named(
    name: Any = "net", batch: Any = "implicit", tensor_name_format: Any = "{layer}"
) -> object:
    """A network that is used under its name."""
    net = smelt.NetworkDefinition(name, batch, tensor_name_format=tensor_name_format)
    x = net.add_input("data", "float32", (2, 6, 6))
    net.mark_output(net.add_activation(x))
    return smelt.build(net, device="null", tune="none").serialize()


def _update(attribute: str, value: Any) -> None:
    layer = network()[0].find_layer("conv")
    assert layer is not None
    layer.update(**{attribute: value})


def op_cases() -> list[tuple[str, Case, str]]:
    """Of every op and every attribute that has a case: the op's name, the case, the attribute."""
    found: list[tuple[str, Case, str]] = []
    for cls in ALL_OPS:
        case = next(iter(cls.cases()), None)
        if case is not None:
            found += [(cls.name, case, field.name) for field in dataclasses.fields(cls)]
    return found
