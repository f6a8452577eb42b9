"""What inference assumes of extents that symbols leave open is a guard, and each one is needed."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import ShapeError
from smelt.interp import interpret
from smelt.ir import Operand
from smelt.types import (
    DType,
    SymbolicDim,
    TensorType,
    _shape_guard,
    assume_at_least,
    collect_guards,
    evaluate_dim,
    symbols_of,
)
from tests.support import guards_of_moves, guards_of_products

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from smelt.ir import Array, Case, Node
    from smelt.types import Guard, ValueType
    from tests.support.guard_cases import GuardCase

CASES = (*guards_of_products.CASES, *guards_of_moves.CASES)
_ROOT = Path(smelt.__file__).parent
_ASSUMING = {
    "assume_at_least",
    "assume_divides",
    "assume_equal",
    "broadcast_shapes",
    "check_integer_product",
    "check_scale",
    "require_broadcast",
    "require_indices_within",
    "require_shape",
    "window_extent",
}
_BY_LABEL = [pytest.param(case, id=case.label) for case in CASES]


def _node(case: GuardCase) -> Node:
    (node,) = (node for node in case.graph().nodes if node.name == "node")
    return node


@pytest.mark.parametrize("case", _BY_LABEL)
def test_an_assumption_is_a_guard_that_good_values_keep_and_bad_ones_break(case: GuardCase) -> None:
    guards = _node(case).guards
    assert all(guard.holds(case.good) for guard in guards)
    assert not all(guard.holds(case.bad) for guard in guards)


@pytest.mark.parametrize("case", _BY_LABEL)
def test_where_its_guards_hold_an_op_has_the_inferred_shape(case: GuardCase) -> None:
    made = interpret(case.graph(), case.feeds(case.good))
    node = _node(case)
    plain = node.op.reference(*case.arrays(case.good))
    for value, array in zip(node.outputs, plain, strict=False):
        assert made[value.name].shape == array.shape
        _assert_shape(value.type, array, case.good)


@pytest.mark.parametrize("case", _BY_LABEL)
def test_a_broken_guard_is_an_error_that_names_op_axes_and_both_extents(case: GuardCase) -> None:
    with pytest.raises(ShapeError) as caught:
        interpret(case.graph(), case.feeds(case.bad))
    assert str(caught.value) == f"{case.op.name} 'node': {case.message}"


# ---- every place that assumes something is needed


@dataclass(frozen=True)
class Place:
    """A call that may record guards."""

    file: Path
    first: int
    last: int

    def is_in(self, stack: Sequence[tuple[str, int]]) -> bool:
        """Whether a stack goes through the call."""
        return any(
            file == str(self.file) and self.first <= line <= self.last for file, line in stack
        )


def _places() -> Iterator[Place]:
    for file in sorted(_ROOT.rglob("*.py")):
        if file != _ROOT / "types" / "_shape_guard.py":
            yield from _calls(ast.parse(file.read_text()), file)


def _calls(node: ast.AST, file: Path) -> Iterator[Place]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name == "count_flop":
            continue  # what is counted was inferred before
        match child:
            case ast.Call(func=ast.Name(id=name)) if name in _ASSUMING:
                yield Place(file, child.lineno, child.end_lineno or child.lineno)
            case _:
                pass
        yield from _calls(child, file)


def _stack() -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found


@cache
def _stacks(case: GuardCase) -> list[list[tuple[str, int]]]:
    """From where the guards of a case are recorded."""
    found: list[list[tuple[str, int]]] = []

    def record(_: Guard) -> None:
        found.append(_stack())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shape_guard, "_record", record)
        case.graph()
    return found


def _refuses(case: GuardCase, without: Place) -> bool:
    """Whether the bad values are refused for the case's reason when a place records nothing."""
    record = _shape_guard._record  # pyright: ignore[reportPrivateUsage]

    def record_others(guard: Guard) -> None:
        if not without.is_in(_stack()):
            record(guard)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shape_guard, "_record", record_others)
        graph = case.graph()
    try:
        interpret(graph, case.feeds(case.bad))
    except Exception as error:  # noqa: BLE001  (any other end is the one that the guard prevents)
        return str(error).endswith(case.message)
    return False


@pytest.mark.parametrize(
    "place", [pytest.param(p, id=f"{p.file.relative_to(_ROOT)}:{p.first}") for p in _places()]
)
def test_without_any_one_guard_a_case_is_not_refused_as_it_should_be(place: Place) -> None:
    through = [case for case in CASES if any(place.is_in(stack) for stack in _stacks(case))]
    assert through, "no case of tests/support/guards_of_*.py goes through this call"
    assert not all(_refuses(case, place) for case in through)


# ---- guards tell where references work


def _operands(case: Case, name: str) -> tuple[list[Operand | None], dict[str, int]]:
    """Operands whose extents are all symbols, named by place or by value, and their values."""
    operands: list[Operand | None] = []
    values: dict[str, int] = {}
    for index, array in enumerate(case.inputs):
        if array is None or index in case.constants:
            operands.append(None if array is None else Operand.constant(array))
            continue
        names = [name.format(index=index, axis=a, extent=e) for a, e in enumerate(array.shape)]
        values.update(zip(names, array.shape, strict=True))
        shape = tuple(SymbolicDim.symbol(symbol) for symbol in names)
        operands.append(Operand(TensorType(DType.from_numpy(array.dtype), shape)))
    return operands, values


def _infer(case: Case, operands: list[Operand | None]) -> tuple[tuple[ValueType, ...], list[Guard]]:
    with collect_guards() as guards:
        types = case.op.infer(operands)
        for kind in types:
            assert isinstance(kind, TensorType)
            assert all(assume_at_least(extent, 0, "an extent") for extent in kind.shape)
    return types, guards


def _assert_shape(kind: ValueType, array: Array, values: dict[str, int]) -> None:
    assert isinstance(kind, TensorType)
    assert kind.rank == array.ndim
    for dim, extent in zip(kind.shape, array.shape, strict=True):
        counted = symbols_of(dim) - values.keys()
        assert counted or evaluate_dim(dim, values) == extent


def _resized(array: Array, shape: tuple[int, ...]) -> Array:
    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def _check_case(case: Case, name: str) -> None:
    operands, base = _operands(case, name)
    try:
        types, guards = _infer(case, operands)
    except ShapeError:
        return  # an op may need an extent; it must not guess one
    changed = [{**base, symbol: n} for symbol, e in base.items() for n in (0, 1, e + 1) if n != e]
    for values in (base, *changed):
        if not all(guard.holds(values) for guard in guards):
            continue
        arrays = [
            array
            if array is None or operand is None or operand.value is not None
            else _resized(array, tuple(evaluate_dim(d, values) for d in operand.tensor.shape))
            for array, operand in zip(case.inputs, operands, strict=True)
        ]
        try:
            with np.errstate(all="ignore"):
                results = case.op.reference(*arrays)
        except Exception as error:
            if "is out of range for an axis" in str(error):
                continue  # an index is data
            raise
        for kind, array in zip(types, results, strict=True):
            _assert_shape(kind, array, values)


@pytest.mark.parametrize("cls", [pytest.param(c, id=c.name) for c in ops.ALL_OPS])
def test_where_its_guards_hold_a_reference_works_and_makes_what_is_inferred(
    cls: type[ops.Op],
) -> None:
    for case in cls.cases():
        if case.op.regions or case.name.startswith("lengths"):  # lengths are data
            continue
        _check_case(case, "x{index}_{axis}")
        _check_case(case, "s{extent}")
