"""Which shapes of an application's arrays `execute` takes for a binding."""

from __future__ import annotations

import numpy as np
import pytest

import smelt
from smelt import ops
from smelt.errors import BindingError
from smelt.ir import Graph
from smelt.types import DType, SymbolicDim, TensorType


@pytest.fixture(scope="module")
def engine() -> smelt.Engine:
    graph = Graph("double")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, 3, 1, 1)))
    graph.outputs.append(graph.add(ops.Add(), x, x, name="y").output)
    return smelt.build(graph, tune="none")


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 3), (1, 2, 3, 1), (6,), (9,)])
def test_axes_of_one_element_do_not_count_and_flat_arrays_may_be_longer(
    engine: smelt.Engine, shape: tuple[int, ...]
) -> None:
    x, y = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    with engine.create_context(threads=1) as context:
        context.execute(1, [x, y])
    assert (y.ravel()[:6] == 2).all()


@pytest.mark.parametrize("shape", [(3, 2), (3, 2, 1, 1), (1, 9, 1), (5,), (2, 4)])
def test_arrays_of_other_axes_are_refused(engine: smelt.Engine, shape: tuple[int, ...]) -> None:
    right, wrong = np.ones((2, 3, 1, 1), np.float32), np.ones(shape, np.float32)
    with engine.create_context(threads=1) as context:
        for arrays in ([wrong, right], [right, wrong]):
            with pytest.raises(BindingError, match="expected"):
                context.execute(1, arrays)


def test_a_flat_array_does_not_choose_among_plans() -> None:
    graph = Graph("double")
    dims = tuple(SymbolicDim.symbol(name) for name in "ab")
    x = graph.add_input("x", TensorType(DType.FLOAT32, dims))
    graph.outputs.append(graph.add(ops.Softmax(), x, name="y").output)
    engine = smelt.build(graph, tune="none", shapes={"x": [(2, 6), (3, 4)]})
    flat = np.ones(12, np.float32)
    with engine.create_context(threads=1) as context:
        with pytest.raises(
            BindingError, match=r"the extent a, from 2 to 3, does not follow from .* a flat array"
        ):
            context.execute(1, [flat, flat.copy()])
        made = flat.copy()
        context.execute(1, [flat.reshape(3, 4), made])
    np.testing.assert_allclose(made, 0.25)
