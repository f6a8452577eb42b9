"""What a caller gives wrongly is told in words, by an error of ours."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import smelt
from smelt.compare import compare
from smelt.errors import BuildError, SmeltError
from smelt.inspect import report_of, report_to_text
from smelt.types import Limit
from tests.support.small_networks import small_network

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from smelt.runtime import Engine

_SMELT: Any = smelt
"""Without types: a caller may give anything."""


def _build(**options: Any) -> Engine:
    return smelt.build(small_network(), **options)


def _network() -> Any:
    return smelt.NetworkDefinition("wrong")


def _compare(**options: Any) -> object:
    return compare(small_network(), tune="none", **options)


@pytest.mark.parametrize(
    ("call", "detail"),
    [
        (lambda: _build(precision=["float32"]), "precision .* choose one of: float32"),
        (lambda: _build(tune=-1), "tune is -1; it must be"),
        (lambda: _build(tune=float("nan")), "tune is nan; it must be"),
        (lambda: _build(shapes=3), "shapes is 3; it must be a dict whose keys are names"),
        (lambda: _build(timing_cache=3), "the path of a timing cache must be a str"),
        (lambda: _SMELT.network_from_onnx(3), "path, bytes or a ModelProto, not int"),
        (
            lambda: _SMELT.network_from_onnx("m.onnx", outputs=[3]),
            "the name of an output is 3; it must be a string",
        ),
        (lambda: _SMELT.network_from_caffe(None), "a path or bytes, not NoneType"),
        (lambda: _SMELT.Event().record("stream"), "Event of cpu cannot be combined with str"),
        (lambda: _SMELT.Stream().wait(None), "Stream of cpu cannot be combined with NoneType"),
        (lambda: _compare(inputs={"data": None}), "its array is object"),
        (lambda: _compare(inputs={"data": np.zeros(3)}), "its array is float64.3"),
        (lambda: report_of(None), "report_of expects an engine"),  # type: ignore[arg-type]
        (lambda: _network().add_input("x", None, (1,)), "None is not an element type"),
        (
            lambda: _network().add_input("x", "float32", 3),
            "shape is 3; it must be a list",
        ),
        (lambda: _network().add("relu"), "add expects an op .* not 'relu'"),
        (lambda: _network().add_concatenation(None), "is None; it must be a list"),
    ],
)
def test_a_wrong_argument_is_told_in_words(call: Callable[[], object], detail: str) -> None:
    with pytest.raises(SmeltError, match=detail):
        call()


_TO_AN_ENGINE: list[tuple[Callable[[Any], object], str]] = [
    (lambda e: e.refit(None), "is None; it must be a dict whose keys are names"),
    (lambda e: e.refit({3: 0}), "a key of the argument weights of refit is 3"),
    (lambda e: e.save("."), "it is a folder; name a file in it"),
    (lambda e: e.save(None), "a path or an open binary file, not NoneType"),
    (lambda e: e.create_context().execute(1, None), "is None; it must be a list"),
    (
        lambda e: setattr(e.create_context(), "profiler", 3),
        r"a profiler \(int\) must have a method report_layer_time",
    ),
    (lambda e: report_to_text(report_of(e), ["all"]), "no section 'all'; the sections are"),
]


@pytest.mark.parametrize(("call", "detail"), _TO_AN_ENGINE)
def test_what_an_engine_is_given_wrongly_is_told_in_words(
    call: Callable[[Any], object], detail: str
) -> None:
    with _build(device="null", tune="none") as engine, pytest.raises(SmeltError, match=detail):
        call(engine)


def test_a_file_that_is_no_timing_cache_is_not_lost(tmp_path: Path) -> None:
    path, line = tmp_path / "notes.txt", tmp_path / "pipe"
    path.write_text("notes")
    with pytest.raises(BuildError, match="would be overwritten; give another file"):
        _build(timing_cache=path)
    assert path.read_text() == "notes"
    os.truncate(path, Limit.MAX_TIMINGS_BYTES.most + 1)
    with pytest.raises(BuildError, match=r"MAX_TIMINGS_BYTES is .* would be overwritten"):
        _build(timing_cache=path)
    assert path.stat().st_size == Limit.MAX_TIMINGS_BYTES.most + 1
    with pytest.raises(BuildError, match="a folder; give a file in it"):
        _build(timing_cache=tmp_path)
    os.mkfifo(line)
    _build(timing_cache=line)  # as the null device
    assert line.is_fifo()
    path.write_text("")
    _build(timing_cache=path)
    assert json.loads(path.read_text())["seconds"]
