"""What the conformance suite sees of a kernel that touches what it must not, or too soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.engine import Buffer, KernelSpec, Launch, Plan, Space, View
from smelt.types import DType
from tests.support.launch_watch import LaunchWatch

if TYPE_CHECKING:
    from collections.abc import Callable

_IMAGE, _WEIGHTS, _RESULT = 1000, 2000, 3000


def _read(watch: LaunchWatch, place: int) -> None:
    watch.touch(np.array([place, place + 4], np.uint64), 4, is_written=False)


def _write(watch: LaunchWatch, place: int) -> None:
    watch.touch(np.array([place, place + 4], np.uint64), 4, is_written=True)


def _rightly(watch: LaunchWatch) -> None:
    _read(watch, _WEIGHTS)
    watch.wait()
    watch.let_next_start()
    _read(watch, _IMAGE)
    _write(watch, _RESULT)


def _read_too_soon(watch: LaunchWatch) -> None:
    _read(watch, _IMAGE)
    _rightly(watch)


def _write_too_soon(watch: LaunchWatch) -> None:
    _write(watch, _RESULT)
    _rightly(watch)


def _never_wait(watch: LaunchWatch) -> None:
    _read(watch, _WEIGHTS)


def _let_go_too_soon(watch: LaunchWatch) -> None:
    watch.let_next_start()
    _rightly(watch)


def _read_behind(watch: LaunchWatch) -> None:
    _rightly(watch)
    _read(watch, _IMAGE + 12)


def _write_weights(watch: LaunchWatch) -> None:
    _rightly(watch)
    _write(watch, _WEIGHTS)


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (_rightly, ""),
        (_read_too_soon, "an operand is read before the launches before have ended"),
        (_write_too_soon, "an operand is written before the launches before have ended"),
        (_never_wait, "a program ends without having waited"),
        (_let_go_too_soon, "the next launch may start before this one has waited"),
        (_read_behind, "bytes are read that are no operand's"),
        (_write_weights, "bytes are written that are no operand's"),
    ],
)
@pytest.mark.parametrize("position", [0, 1])
def test_what_a_program_does_amiss_is_noted(
    act: Callable[[LaunchWatch], None], fault: str, position: int
) -> None:
    spaces = (Space.ARENA, Space.WEIGHTS, Space.OUTPUT)
    buffers = tuple(Buffer(space, 0, 16) for space in spaces)
    views = tuple(View(k, 0, DType.FLOAT32, (4,), (1,)) for k in range(3))
    launch = Launch(KernelSpec("any", ()), views, (2,))
    plan = Plan((), buffers, (launch,), 16, 0)
    watch = LaunchWatch()
    watch.follow(launch, plan, [_IMAGE, _WEIGHTS, _RESULT], {})
    for program in range(2):
        watch.begin_program()
        (act if program == position else _rightly)(watch)
    watch.end_launch()
    assert watch.faults == ([fault] if fault else [])
