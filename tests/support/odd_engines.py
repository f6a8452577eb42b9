"""Doors of building, loading, running and comparing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import smelt
from smelt import ops
from smelt.builder import TuningEffort
from smelt.compare import compare
from smelt.inspect import report_of, report_to_text
from tests.support.odd_arguments import Door, engine, method_door, network, value_door

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_QUICK = {"device": "null", "tune": "none"}


def _image() -> np.ndarray[Any, Any]:
    return np.zeros((1, 2, 6, 6), np.float32)


def _weights() -> np.ndarray[Any, Any]:
    return np.ones((2, 2, 3, 3), np.float32)


def build_doors() -> Iterator[Door]:
    """The doors that engines come through, and what tells of them."""
    yield Door("build", lambda: (smelt.build, {"network": network()[0], **_QUICK}))
    yield Door("load", lambda: (smelt.load, {"source": engine().serialize()}))
    yield Door("Engine.load", lambda: (smelt.Engine.load, {"source": engine().serialize()}))
    yield Door("retune", lambda: (smelt.retune, {"source": _kept(), "tune": "none"}))
    yield Door("network_from_onnx", lambda: (smelt.network_from_onnx, {"model": b""}))
    yield Door("network_from_caffe", lambda: (smelt.network_from_caffe, {"prototxt": b""}))
    yield Door("register_op", lambda: (smelt.register_op, {"cls": ops.Relu}))
    yield Door("Stream", lambda: (smelt.Stream, {}))
    yield Door("Event", lambda: (smelt.Event, {}))
    yield Door("TuningEffort", lambda: (_built_with_effort, {}), TuningEffort)
    yield Door("report_of", lambda: (report_of, {"engine": engine()}))
    yield Door("report_to_text", lambda: (report_to_text, {"report": report_of(engine())}))
    sound = {**_QUICK, "inputs": {"data": _image()}}
    yield Door("compare", lambda: (compare, {"model": network()[0], **sound}))


def _kept() -> smelt.Engine:
    return smelt.build(network()[0], device="null", tune="none", retunable=True)


def _built_with_effort(**given: Any) -> object:
    return smelt.build(network()[0], device="null", tune=TuningEffort(**given))


def engine_doors() -> Iterator[Door]:
    """The doors of engines, contexts, streams and events."""
    image = {"data": _image()}
    yield method_door(engine, "run", inputs=image)
    yield method_door(engine, "binding_index", name="data")
    yield method_door(engine, "create_context")
    yield method_door(engine, "refit", weights={"conv.weight": _weights()})
    yield method_door(engine, "serialize")
    yield method_door(engine, "save", destination="made.engine")
    yield value_door("Engine.run(one)", lambda one: engine().run({"data": one}), _image())
    yield value_door(
        "Engine.refit(one)", lambda one: engine().refit({"conv.weight": one}), _weights()
    )

    def context() -> smelt.ExecutionContext:
        return engine().create_context()

    arrays = [_image(), _image()]
    for name, sound in (
        ("run", {"inputs": image}),
        ("execute", {"batch_size": 1, "bindings": arrays}),
    ):
        yield Door(f"ExecutionContext.{name}", _Bound(context, name, sound))
    like = smelt.ExecutionContext.enqueue
    bound = {"batch_size": 1, "bindings": arrays}
    yield Door("ExecutionContext.enqueue", lambda: (_enqueued, bound), like, skipped=1)
    yield value_door("profiler", lambda value: setattr(context(), "profiler", value), None)
    yield value_door("Stream.wait", lambda value: _streamed("wait", value), smelt.Event())
    yield method_door(smelt.Event, "record", stream=smelt.Stream())
    yield method_door(smelt.Event, "wait", stream=smelt.Stream())
    yield method_door(smelt.Event, "elapsed", end=smelt.Event())


class _Bound:
    """A method of an object that is made afresh, with sound arguments."""

    def __init__(self, owner: Callable[[], object], method: str, sound: dict[str, Any]) -> None:
        self._parts = owner, method, sound

    def __call__(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        owner, method, sound = self._parts
        return getattr(owner(), method), dict(sound)


def _enqueued(**given: Any) -> None:
    with smelt.Stream() as stream:
        context: Any = engine().create_context()
        context.enqueue(**{"stream": stream, **given})


def _streamed(name: str, value: Any) -> None:
    with smelt.Stream() as stream:
        getattr(stream, name)(value)
