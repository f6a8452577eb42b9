"""Inputs in shapes that no case has: refused by inference, or computed as inference says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.errors import IndexRangeError, ShapeError, SmeltError
from smelt.interp import interpret
from smelt.ops import ALL_OPS, Case, Op, ScatterElements, ScatterND
from smelt.types import Limit
from tests.support.trials import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array

_every_op = pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)


def _reshaped(array: Array) -> Iterator[tuple[str, Array]]:
    """An array with one axis more or fewer, or with another number of elements."""
    yield "an axis before", array[np.newaxis]
    yield "an axis behind", array[..., np.newaxis]
    if array.ndim:
        yield "flat", array.reshape(-1)
        yield "doubled", np.concatenate([array, array])
        yield "doubled behind", np.concatenate([array, array], -1)
        yield "nothing", array[:0]
        yield "a scalar", array.reshape(-1)[:1].reshape(()) if array.size else array
        yield "the first", array[:1]
    else:
        yield "two", np.stack([array, array])


def _odd_cases(case: Case) -> Iterator[tuple[str, Case]]:
    for index, array in enumerate(case.inputs):
        if array is None:
            continue
        for how, changed in _reshaped(array):
            inputs = tuple(changed if n == index else a for n, a in enumerate(case.inputs))
            yield f"{case.name}, input {index}: {how}", replace(case, inputs=inputs)


@_every_op
def test_odd_shapes_are_refused_by_inference_or_right(op: type[Op]) -> None:
    wrong: list[str] = []
    for case in op.cases():
        for name, odd in _odd_cases(case):
            try:
                graph = graph_of(odd)
            except ShapeError:
                continue
            inputs = {f"x{n}": array for n, array in enumerate(odd.inputs) if array is not None}
            inputs = {value.name: inputs[value.name] for value in graph.inputs}
            try:
                interpret(graph, inputs)  # checks what it gets against what was inferred
            except (IndexRangeError, ShapeError):
                continue
            except SmeltError as error:
                wrong.append(f"{name}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_scatters_of_the_most_axes_stay_in_their_data(reduction: str) -> None:
    shape = (2, 3, *[1] * (Limit.MAX_RANK.most - 2))
    data, updates = np.zeros(shape), np.ones((4, *shape[1:]))
    (made,) = ScatterND(reduction).reference(data, np.array([[1], [1], [0], [1]]), updates)
    total = {"none": [1, 1], "add": [1, 3], "max": [1, 1]}[reduction]
    np.testing.assert_array_equal(made.reshape(2, 3), np.repeat([total], 3, 0).T)
    indices = np.full((1, *shape[1:]), 1)
    (made,) = ScatterElements(0, reduction).reference(data, indices, np.ones(indices.shape))
    np.testing.assert_array_equal(made.reshape(2, 3), [[0, 0, 0], [1, 1, 1]])
    everything = np.zeros((2, 0), np.int64)
    (made,) = ScatterND(reduction).reference(data, everything, np.ones((2, *shape)))
    assert (made == (2 if reduction == "add" else 1)).all()
