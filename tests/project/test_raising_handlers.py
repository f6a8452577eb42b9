"""The error of a signal handler leaves calls that read and write files, build, refit and report.

`tests/runtime/test_interrupts.py` has the calls that run an engine.
"""

from __future__ import annotations

import contextvars
import logging
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import InternalError, SmeltError
from smelt.inspect import report_of
from smelt.ir import Graph
from smelt.logger import Severity, forward_to
from smelt.nvdla.hardware import NV_FULL, Machine, TaskAccessLimits
from smelt.signal_errors import convert_own, make_directory, pass_on_handler_error, path_mode
from smelt.types import DType, TensorType
from tests.support.raising_handlers import RaisingHandler, points_of
from tests.support.small_models import boxes_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POINTS, POINTS_OF_BUILD = 250, 25
SIZE = 4


class LateError(FileNotFoundError, TimeoutError):
    """What a handler raises, of two classes that blocks for files expect."""


class OtherError(IndexError, RuntimeError, ValueError, TypeError):
    """What a handler raises, of the classes that Python raises for bad values."""


def _build(scale: float = 1) -> smelt.Engine:
    graph = Graph("product")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, SIZE)))
    w = graph.add_constant(np.full((SIZE, SIZE), scale, np.float32), "w")
    graph.outputs.append(graph.add(ops.MatMul(), x, w, name="y").output)
    return smelt.build(graph, tune="none")


@pytest.fixture(scope="module")
def engine() -> smelt.Engine:
    return _build()


def _load_and_serialize(data: bytes) -> bytes:
    return smelt.load(data).serialize()  # a second call of one engine returns the same bytes


def _save_to_file(engine: smelt.Engine, path: Path) -> None:
    with path.open("wb") as file:
        engine.save(file)


def _calls(engine: smelt.Engine, folder: Path) -> dict[str, Callable[[], object]]:
    path = folder / "a.engine"
    engine.save(path)
    weights = {"w": np.full((SIZE, SIZE), 2, np.float32)}
    return {
        "save to a file": partial(_save_to_file, engine, folder / "b.engine"),
        "serialize": partial(_load_and_serialize, engine.serialize()),
        "load": partial(smelt.load, path),
        "load mapped": partial(smelt.load, path, mapped=True),
        "refit": partial(engine.refit, weights),
        "inspect": partial(report_of, engine),
        "build": _build,
    }


NAMES = ("save to a file", "serialize", "load", "load mapped", "refit", "inspect", "build")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_the_error_of_a_handler_leaves_each_call(
    engine: smelt.Engine, tmp_path: Path, name: str
) -> None:
    call, handler = _calls(engine, tmp_path)[name], RaisingHandler(LateError)
    call()
    with handler.installed():
        for point in points_of(call, POINTS_OF_BUILD if name == "build" else POINTS):
            arrived = handler.is_passed_on(call, point)
            assert arrived is not False, f"{handler.arrived!r} has replaced it at point {point}"


def _variables() -> dict[str, object]:
    """Return the context variables of the thread, which `with` blocks may set."""
    return {variable.name: value for variable, value in contextvars.copy_context().items()}


@pytest.mark.parametrize("name", ["load", "refit", "inspect", "import", "build"])
@pytest.mark.slow
def test_no_handler_leaves_a_limit_behind_for_later_calls(
    engine: smelt.Engine, tmp_path: Path, name: str
) -> None:
    """A formula limit stayed, and every later load of the thread counted against it."""
    model = boxes_model().SerializeToString()
    calls = _calls(engine, tmp_path)
    calls["import"] = partial(smelt.network_from_onnx, model)
    call, handler, before = calls[name], RaisingHandler(LateError), _variables()
    call()
    with handler.installed():
        for point in points_of(call, POINTS_OF_BUILD if name == "build" else POINTS):
            handler.is_passed_on(call, point)
            assert _variables() == before, f"point {point}"


def _run_task(machine: Machine) -> None:
    with machine.limited(TaskAccessLimits(())):
        pass


def test_a_machine_is_free_after_a_task_that_a_handler_has_ended() -> None:
    machine, handler = Machine(NV_FULL, 1 << 12), RaisingHandler(LateError)
    with handler.installed():
        for point in points_of(partial(_run_task, machine), POINTS):
            handler.is_passed_on(partial(_run_task, machine), point)
            handler.forget()
            _run_task(machine)


class _Counter:
    """A logger that counts its messages."""

    count = 0

    def log(self, severity: Severity, message: str, /) -> None:
        self.count += 1


def _forward(target: _Counter) -> None:
    with forward_to(target):
        pass


def test_messages_are_not_forwarded_after_a_block_that_a_handler_has_ended() -> None:
    target, handler, log = _Counter(), RaisingHandler(LateError), logging.getLogger("smelt")
    forward = partial(_forward, target)
    forward()  # removes what tests before may have left
    before = list(log.handlers), log.level
    with handler.installed():
        for point in points_of(forward, POINTS):
            handler.is_passed_on(forward, point)
            handler.forget()
            log.error("after the block")
            assert target.count == 0, f"point {point}"
            forward()  # removes what is left of the block before
            assert (log.handlers, log.level) == before, f"point {point}"


def test_a_save_that_a_handler_ends_leaves_the_old_file_or_the_new(
    engine: smelt.Engine, tmp_path: Path
) -> None:
    path, handler = tmp_path / "a.engine", RaisingHandler(LateError)
    engine.save(path)
    new, old = path.read_bytes(), b"an older file"
    seen = set[bytes]()
    with handler.installed():
        for point in points_of(partial(engine.save, path), POINTS):
            path.write_bytes(old)
            arrived = handler.is_passed_on(partial(engine.save, path), point)
            assert arrived is not False, f"{handler.arrived!r} has replaced it at point {point}"
            seen.add(path.read_bytes())
    assert seen == {old, new}
    engine.save(path)
    assert os.listdir(tmp_path) == [path.name]


def test_no_error_of_a_handler_makes_a_bug_of_smelt() -> None:
    handler = RaisingHandler(OtherError)
    with handler.installed():
        for point in points_of(_build, POINTS_OF_BUILD):
            handler.is_passed_on(_build, point)
            assert not isinstance(handler.arrived, InternalError), f"at point {point}"


def _converted(handler: RaisingHandler) -> None:
    try:
        handler(signal.SIGINT, None)
    except OtherError as error:
        raise SmeltError("a wrong value") from error


def test_an_error_of_a_handler_that_was_taken_for_another_is_found_as_its_cause() -> None:
    handler = RaisingHandler(OtherError)
    with pytest.raises(SmeltError) as converted:
        _converted(handler)
    pass_on_handler_error(converted.value)  # of no handler: it is not installed
    with handler.installed():
        with pytest.raises(OtherError) as passed_on:
            pass_on_handler_error(converted.value)
        assert passed_on.value in handler.raised


def _raise_in_conversion(handler: RaisingHandler) -> None:
    with convert_own(SmeltError, OtherError):
        handler(signal.SIGINT, None)


def test_a_block_that_converts_errors_passes_on_those_of_a_handler() -> None:
    handler = RaisingHandler(OtherError)
    with pytest.raises(SmeltError) as converted:
        _raise_in_conversion(handler)  # of no handler: it is not installed
    assert isinstance(converted.value.__cause__, OtherError)
    with handler.installed(), pytest.raises(OtherError):
        _raise_in_conversion(handler)


def test_an_error_that_causes_itself_is_of_no_handler() -> None:
    error = SmeltError("wrong")
    error.__cause__ = error
    pass_on_handler_error(error)


def test_a_directory_is_created_with_its_parents_unless_it_exists(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_directory(folder, 0o700)
    make_directory(folder, 0o700)
    assert path_mode(folder) == folder.stat().st_mode
    (folder / "file").touch()
    assert not path_mode(folder / "absent")
    with pytest.raises(FileExistsError):
        make_directory(folder / "file")
    with pytest.raises(OSError, match="file"):
        make_directory(folder / "file" / "c")
