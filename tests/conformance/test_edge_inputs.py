"""Generated: what no trained network has, but any model may: no elements, infinite attributes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import smelt
from smelt.backends.cuda._elementwise import EXPRESSIONS
from smelt.errors import ShapeError, SmeltError
from smelt.ir import evaluate
from smelt.ops import ALL_OPS, Operand, Resize
from smelt.types import DType
from tests.support.trials import bound_symbols, difference, graph_of, sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ops import Array, Case, Op

_EMPTIED = 3
"""Cases of each op that are tried without elements."""
_STRANGE = (math.nan, math.inf, -math.inf, 1e300)
_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)


def _is_legal(case: Case) -> bool:
    try:
        case.op.infer([None if a is None else Operand.constant(a) for a in case.inputs])
    except ShapeError:
        return False
    return True


def _without_elements(op: type[Op]) -> Iterator[Case]:
    """Cases in which an extent is zero: of one input, or of all that have the same."""
    for case in op.cases():
        if case.op.regions:
            continue
        axes = ((x, k) for x in case.inputs if x is not None for k in range(x.ndim))
        for number, (x, axis) in enumerate(axes):
            extent = x.shape[axis]
            none = np.ascontiguousarray(x.take(np.arange(0), axis))
            alone = tuple(none if a is x else a for a in case.inputs)
            alike = tuple(_cut(a, extent) for a in case.inputs)
            for name, inputs in (("alone", alone), ("alike", alike)):
                made = replace(case, name=f"{case.name}, {number} {name}", inputs=inputs)
                if _is_legal(made):
                    yield made


def _cut(array: Array | None, extent: int) -> Array | None:
    if array is None or array.ndim < 2:
        return array
    return array[tuple(slice(0, 0 if n == extent else n) for n in array.shape)]


def _check(case: Case) -> None:
    """An engine gives what the reference gives, or both refuse."""
    graph = graph_of(case)
    arrays = {v.name: case.inputs[int(v.name[1:])] for v in graph.inputs}
    names = [value.name for value in graph.outputs]
    try:
        wanted = evaluate(case.op, case.inputs)
    except SmeltError:
        with (
            pytest.raises(SmeltError),
            smelt.build(graph, tune="none") as engine,
            engine.create_context() as context,
        ):
            context.run(arrays)
        return
    graph.symbol_bounds |= {name: high for name, _, high in bound_symbols(graph, wanted)}
    with smelt.build(graph, tune="none") as engine, engine.create_context() as context:
        made = context.run(arrays)
    for name, array in zip(names, wanted, strict=True):
        assert difference(made[name], array, case.tolerance) is None, (case.name, name)


@_every_op
def test_without_elements_engines_give_what_references_give(op: type[Op]) -> None:
    for case in sample(_without_elements(op), _EMPTIED):
        _check(case)


def _with_strange_attributes(op: type[Op]) -> Iterator[Case]:
    case = next(op.cases())
    for field in dataclasses.fields(case.op):
        if type(getattr(case.op, field.name)) is float:
            for value in _STRANGE:
                name = f"{case.name}, {field.name} {value}"
                yield replace(case, name=name, op=replace(case.op, **{field.name: value}))


@pytest.mark.parametrize(
    "op",
    [op for op in ALL_OPS if op.name in EXPRESSIONS and any(_with_strange_attributes(op))],
    ids=lambda op: op.name,
)
def test_attributes_that_are_no_numbers_or_infinite_are_what_the_reference_takes(
    op: type[Op],
) -> None:
    for case in _with_strange_attributes(op):
        _check(case)


@_every_op
def test_no_warning_of_numpy_leaves_a_build_whatever_an_attribute_is(op: type[Op]) -> None:
    cases = [c for c in op.cases() if isinstance(c.op, Resize) and c.op.mode == "cubic"]
    for case in cases[:2] or [next(op.cases())]:
        fields = [f for f in dataclasses.fields(case.op) if type(getattr(case.op, f.name)) is float]
        for field, value in itertools.product(fields, (*_STRANGE, 3e38)):
            changed = replace(case, op=replace(case.op, **{field.name: value}))
            with contextlib.suppress(SmeltError):
                smelt.build(graph_of(changed), tune="none").close()


@_every_op
def test_an_engine_in_bfloat16_gives_what_the_reference_gives(op: type[Op]) -> None:
    for case in sample(op.cases(), 1):
        inputs = tuple(
            a.astype(DType.BFLOAT16.numpy) if a is not None and a.dtype == np.float32 else a
            for a in case.inputs
        )
        made = replace(case, inputs=inputs, tolerance=2e-2)
        if not case.op.regions and _is_legal(made):
            _check(made)
