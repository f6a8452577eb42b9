"""The walks through the rooms are straight: none is entered again from one that it has called.

Callbacks are the exception: an application's, a report of progress, and the tuner's question for
the tactics of a fused pair, which the options of the build limit. Modules that are imported on
first use are another.
"""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

import smelt
from smelt.backends.cuda import CudaBackend, target_named
from smelt.ir import Graph
from smelt.ops import Conv, CumSum, Relu
from smelt.passes import assign_precision
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_ROOT: Final = Path(smelt.__file__).parent
_EVERYWHERE: Final = {"types", "ir", "ops", "errors.py", "signal_errors.py", "logger.py"}
"""Rooms at the floor, whose data every room uses."""
_CALLBACKS: Final = {"<module>", "<lambda>", "_tactics", "_find_candidates"}


@cache
def _room(file: str) -> str | None:
    path = Path(file)
    if not path.is_relative_to(_ROOT):
        return None
    room = path.relative_to(_ROOT).parts[0]
    return None if room in _EVERYWHERE or room == "__init__.py" else room


def _returns(walk: Callable[[], object]) -> set[str]:
    """The ways from a room back into it during a walk, in the calling thread."""
    found: set[str] = set()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or _room(frame.f_code.co_filename) is None:
            return
        way: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            room = _room(at.f_code.co_filename)
            if room is not None and at.f_code.co_name in _CALLBACKS:
                return
            if room is not None and way[-1:] != [room]:
                way.append(room)
            at = at.f_back
        if len(set(way)) < len(way):
            found.add(" < ".join(way))

    sys.setprofile(look)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return found


def _graph() -> Graph:
    graph = Graph("walked")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 16, 6, 6)))
    w = graph.add_constant(np.ones((16, 16, 3, 3), np.float32), "w")
    y = graph.add(Conv((3, 3), pads=(1, 1, 1, 1)), x, w, name="conv").output
    axis = graph.add_constant(np.array(1), "axis")
    y = graph.add(CumSum(), graph.add(Relu(), y, name="relu").output, axis, name="sums").output
    graph.outputs.append(y)
    return graph


@pytest.fixture(scope="module")
def engine() -> Any:
    with smelt.build(_graph(), tune="none") as built:
        yield built


def test_candidates_of_a_convolution_in_float16() -> None:
    graph, backend = _graph(), CudaBackend(jobs=1)
    target = target_named("sm_90")

    def walk() -> None:
        assign_precision(graph.nodes, DType.FLOAT16, supports_mixed_precision=True)
        assert backend.candidates(graph.nodes[0], target)[0]

    assert _returns(walk) == set()


def test_a_run(engine: Any) -> None:
    x = np.ones((1, 16, 6, 6), np.float32)
    assert _returns(lambda: engine.run({"x": x})) == set()


def test_a_weight(engine: Any) -> None:
    weights = np.full((16, 16, 3, 3), 2, np.float32)
    assert _returns(lambda: engine.refit({"w": weights})) == set()
    assert _returns(lambda: smelt.load(engine.serialize()).close()) == set()


def test_a_region_on_a_second_device() -> None:
    def walk() -> None:
        with smelt.build(_graph(), ["cuda:sm_90", "cpu"], tune="none") as built:
            assert "partition" in {layer.kind for layer in built.layers}

    assert _returns(walk) == set()


def test_a_return_is_found() -> None:
    functions: dict[str, Any] = {}
    for name, body, room in (
        ("a", "return f()", "runtime"),
        ("b", "return f()", "engine"),
        ("c", "return 0", "runtime"),
    ):
        source = f"def {name}(f=None):\n    {body}\n"
        exec(compile(source, str(_ROOT / room / "_planted.py"), "exec"), functions)  # noqa: S102
    walk = partial(functions["a"], partial(functions["b"], functions["c"]))
    assert _returns(walk) == {"runtime < engine < runtime"}
