"""Every argument of every public function takes what nobody should give, or refuses it in words."""

from __future__ import annotations

import dataclasses
import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import smelt
from smelt import gie
from smelt.errors import SmeltError
from smelt.types import shown
from tests.support.odd_arguments import ODD, Door
from tests.support.odd_definitions import definition_doors, op_cases
from tests.support.odd_engines import build_doors, engine_doors
from tests.support.odd_facade import facade_doors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from smelt.ir import Case

DOORS = [*definition_doors(), *build_doors(), *engine_doors(), *facade_doors()]
_ON: dict[type, tuple[str, ...]] = {
    smelt.NetworkDefinition: (
        *("apply", "begin", "from_graph", "mark", "rename", "replace_op", "reshape_input"),
        *("roll_back", "shape_of", "tensor", "value_of", "weight"),
    ),
    smelt.Engine: ("create",),
    smelt.Event: (),
    gie.InferNetwork: ("apply_formula", "groups_of", "set_groups"),
    gie.InferLayer: (),
    gie.InferBuilder: (),
    gie.CudaEngine: (),
    gie.InferContext: ("set_debug_sync",),
    gie.CaffeParser: (),
}
"""Classes whose methods are doors, and methods that are for smelt's own rooms."""


def _answer(call: Callable[[], object]) -> str:
    """What an odd value leads to, if not to success or to a line of ours."""
    try:
        call()
    except SmeltError as error:
        lines = str(error).splitlines()
        return "" if lines and all(line.startswith("  ") for line in lines[1:]) else "more lines"
    except Exception as error:  # noqa: BLE001  (which one is what is asked)
        return f"{type(error).__name__}: {error}"
    return ""


def _told(value: object) -> str:
    return f"{type(value).__name__} {shown(value)}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_every_odd_argument_is_taken_or_refused_in_words(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(SmeltError):
        door.call()
    wrong: list[str] = []
    for argument in door.arguments():
        for value in ODD:
            answer = _answer(lambda: door.call(**{argument: value}))  # noqa: B023  (called at once)
            if answer:
                wrong.append(f"{argument}={_told(value)}: {answer}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("case", "attribute"), [pytest.param(c, a, id=f"{n}-{a}") for n, c, a in op_cases()]
)
def test_every_odd_attribute_of_an_op_is_taken_or_refused_in_words(
    case: Case, attribute: str
) -> None:
    def add(value: Any) -> None:
        op = dataclasses.replace(case.op, **{attribute: value})
        net = smelt.NetworkDefinition("odd", "explicit")
        inputs = [
            array
            if array is None or index in case.constants or 0 in array.shape
            else net.add_input(f"x{index}", array.dtype, array.shape)
            for index, array in enumerate(case.inputs)
        ]
        net.add(op, *inputs)

    add(getattr(case.op, attribute))
    answers = {_told(value): _answer(lambda: add(value)) for value in ODD}  # noqa: B023  (called at once)
    assert not {value: answer for value, answer in answers.items() if answer}


@pytest.mark.parametrize("owner", _ON, ids=lambda owner: owner.__name__)
def test_every_public_method_with_arguments_is_a_door(owner: type) -> None:
    known = {door.name for door in DOORS} | {f"{owner.__name__}.{name}" for name in _ON[owner]}
    methods = inspect.getmembers(owner, inspect.isroutine)
    asked = {
        f"{owner.__name__}.{name}"
        for name, method in methods
        if not name.startswith("_") and len(inspect.signature(method).parameters) > 1
    }
    assert asked <= known
