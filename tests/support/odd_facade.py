"""Doors of the façade."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import smelt
from smelt import gie
from tests.support.odd_arguments import WEIGHTS, Door, method_door, network, value_door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Call = tuple["Callable[..., Any]", dict[str, Any]]


class Quiet:
    """A logger that says nothing."""

    def log(self, severity: smelt.Severity, message: str, /) -> None:
        """Take one message."""


def _net() -> tuple[gie.InferNetwork, smelt.Tensor]:
    net = gie.InferNetwork()
    return net, net.add_input("data", gie.DataType.FLOAT, (2, 6, 6))


def _empty() -> gie.InferNetwork:
    return _net()[0]


def _builder() -> gie.InferBuilder:
    made = gie.create_infer_builder(Quiet())
    made.device = "null"
    return made


def _engine(made: gie.InferBuilder | None = None) -> gie.CudaEngine:
    net, x = _net()
    net.mark_output(_tensor(net.add_activation(x, gie.ActivationType.RELU)))
    return (made or _builder()).build_cuda_engine(net)


def _tensor(layer: gie.InferLayer) -> smelt.Tensor:
    made = layer.get_output(0)
    assert made is not None
    return made


_FILTERS: Final[dict[str, Any]] = {
    "nb_output_maps": 4,
    "kernel_size": (3, 3),
    "weights": WEIGHTS,
}
_LAYERS: Final[dict[str, dict[str, Any]]] = {
    "add_convolution": _FILTERS,
    "add_deconvolution": {**_FILTERS, "weights": WEIGHTS.reshape(2, 4, 3, 3)},
    "add_fully_connected": {"nb_outputs": 1, "weights": np.ones(72, np.float32)},
    "add_activation": {"kind": gie.ActivationType.RELU},
    "add_pooling": {"kind": gie.PoolingType.MAX, "window_size": (3, 3)},
    "add_lrn": {"window": 3, "alpha": 1.0, "beta": 0.5, "k": 1.0},
    "add_scale": {"mode": gie.ScaleMode.UNIFORM},
    "add_soft_max": {},
}
_ON_LAYER: Final[dict[str, Any]] = {
    "set_stride": (2, 2),
    "set_padding": (1, 1),
    "set_nb_groups": 1,
    "set_name": "other",
    "get_input": 0,
    "get_output": 0,
}
_OPTIONS: Final[dict[str, Any]] = {
    "max_batch_size": 1,
    "max_workspace_size": 1,
    "half2_mode": False,
    "debug_sync": False,
    "min_find_iterations": 1,
    "average_find_iterations": 1,
}


def facade_doors() -> Iterator[Door]:
    """The doors of networks, layers, builders, engines and contexts."""
    for name in _LAYERS:
        yield Door(f"InferNetwork.{name}", partial(_on_network, name))
    for name in ("mark_output", "add_concatenation", "add_element_wise"):
        yield Door(f"InferNetwork.{name}", partial(_joined, name))
    yield method_door(_empty, "add_input", name="more", kind=gie.DataType.FLOAT, dims=(2, 6, 6))
    for name in ("get_input", "get_output", "get_layer"):
        yield method_door(_empty, name, index=0)
    yield method_door(_empty, "check", max_batch_size=1)
    yield method_door(_empty, "fill", definition=network()[0])
    for kind in ("convolution", "deconvolution", "pooling"):
        name = f"set_{kind}_output_dimensions_formula"
        yield Door(f"InferNetwork.{name}", partial(_with_formula, kind))
        yield value_door(f"{kind} by formula", partial(_answered, kind), (8, 8))
    for name, value in _ON_LAYER.items():
        yield value_door(f"InferLayer.{name}", partial(_on_layer, name), value)
    for name, value in _OPTIONS.items():
        yield value_door(f"InferBuilder.set_{name}", partial(_built_with, name), value)
    yield method_door(_builder, "build_cuda_engine", network=_empty())
    yield Door("create_infer_builder", lambda: (gie.create_infer_builder, {"logger": Quiet()}))
    yield Door("create_infer_runtime", lambda: (gie.create_infer_runtime, {"logger": Quiet()}))
    yield from _engine_doors()
    yield method_door(gie.create_caffe_parser, "parse", deploy="a", model="b", network=_empty())
    yield method_door(gie.create_caffe_parser, "parse_binary_proto", path="a")
    yield method_door(gie.create_caffe_parser, "set_protobuf_buffer_size", size_bytes=1)


def _on_network(name: str) -> _Call:
    net, x = _net()
    sound: dict[str, Any] = {"x": x, **_LAYERS[name]}
    return getattr(net, name), sound


def _joined(name: str) -> _Call:
    net, x = _net()
    y = _tensor(net.add_soft_max(x))
    sound: dict[str, dict[str, Any]] = {
        "mark_output": {"tensor": y},
        "add_concatenation": {"inputs": [x, y]},
        "add_element_wise": {"first": x, "second": y, "operation": gie.ElementWiseOperation.SUM},
    }
    return getattr(net, name), sound[name]


def _with_formula(kind: str) -> _Call:
    """A network's setter, where there is a layer that its formula is asked about."""
    net, x = _net()
    sound = {"x": x, **_LAYERS[f"add_{kind}"]}
    getattr(net, f"add_{kind}")(**sound)
    return getattr(net, f"set_{kind}_output_dimensions_formula"), {"formula": None}


def _answered(kind: str, answer: Any) -> None:
    def formula(*_: Any) -> Any:
        return answer

    setter, _ = _with_formula(kind)
    setter(formula)


def _on_layer(name: str, value: Any) -> object:
    net, x = _net()
    layer = net.add_convolution(x, 4, (3, 3), WEIGHTS, padding=(1, 1))
    return getattr(layer, name)(value)


def _built_with(option: str, value: Any) -> object:
    made = _builder()
    getattr(made, f"set_{option}")(value)
    return _engine(made)


def _engine_doors() -> Iterator[Door]:
    for name in ("get_binding_name", "binding_is_input", "get_binding_dimensions"):
        yield method_door(_engine, name, index=0)
    yield method_door(_engine, "get_binding_index", name="data")
    yield method_door(_engine, "serialize")
    arrays = [np.zeros((1, 2, 6, 6), np.float32) for _ in range(2)]

    def execute() -> _Call:
        made = _engine()
        return made.execute, {"context": made.create_execution_context(), "bindings": arrays}

    yield Door("CudaEngine.execute", execute)

    def context() -> gie.InferContext:
        return _engine().create_execution_context()

    yield method_door(context, "execute", batch_size=1, bindings=arrays)
    yield method_door(context, "set_profiler", profiler=None)

    def enqueue(**given: Any) -> None:
        with smelt.Stream() as stream:
            made: Any = context()
            made.enqueue(**{"stream": stream, **given})

    sound = {"batch_size": 1, "bindings": arrays}
    like = gie.InferContext.enqueue
    yield Door("InferContext.enqueue", lambda: (enqueue, sound), like, skipped=1)

    def runtime() -> gie.InferRuntime:
        return gie.create_infer_runtime(Quiet())

    yield method_door(runtime, "deserialize_cuda_engine", source=_engine().serialize())
