"""Copies between any windows, and zeros around them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.backends.cpu import CpuBackend
from smelt.engine import View
from smelt.types import DType, SymbolicDim
from tests.support.cpu_kernels import GuardedBuffer, run_launches
from tests.support.random_operands import TARGETS, every_target, few_examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends.cpu import CpuTarget

Array = np.ndarray[Any, Any]


def place(
    array: Array, order: Sequence[int], gaps: Sequence[int], buffer: int, *, at_end: bool = True
) -> tuple[GuardedBuffer, View]:
    """The array in memory order ``order``, each axis ``gaps`` longer than it looks."""
    outer = [array.shape[a] + gaps[a] for a in order]
    memory = np.zeros(outer, array.dtype)
    memory[tuple(slice(0, array.shape[a]) for a in order)] = array.transpose(order)
    strides = [0] * array.ndim
    for position, axis in enumerate(order):
        strides[axis] = int(np.prod(outer[position + 1 :], dtype=np.int64))
    dtype = DType.from_numpy(array.dtype)
    held = GuardedBuffer.holding(memory, at_end=at_end, align=1)
    return held, View(buffer, 0, dtype, array.shape, tuple(strides))


def copied(
    source: tuple[GuardedBuffer, View],
    destination: tuple[GuardedBuffer, View],
    target: CpuTarget,
    *,
    workers: int = 1,
    values: dict[str, int] | None = None,
) -> Array:
    """What a copy leaves in the destination; everything beside it must stay as it was."""
    backend = CpuBackend()
    before = destination[0].bytes.copy()
    run_launches(
        lambda spec: backend.generate(spec, target),
        list(backend.reformat(source[1], destination[1])),  # type: ignore[arg-type]
        [source[0], destination[0]],
        workers=workers,
        target=target,
        values=values,
    )
    window = destination[0].view(destination[1], values)
    made = window.copy()
    window[...] = np.zeros_like(made)
    assert np.array_equal(destination[0].bytes, before)
    return made


@given(st.data())
@few_examples
def test_a_copy_between_any_two_windows_moves_every_element_and_no_other(
    data: st.DataObject,
) -> None:
    draw = data.draw
    rank = draw(st.integers(0, 4))
    shape = tuple(draw(st.sampled_from([0, 1, 2, 3, 4, 7, 16, 17, 35])) for _ in range(rank))
    dtype = draw(st.sampled_from(["uint8", "float16", "float32", "float64"]))
    array = np.random.default_rng(0).integers(1, 99, shape).astype(dtype)
    orders = st.permutations(range(rank))
    gaps = st.tuples(*[st.sampled_from([0, 0, 1, 3])] * rank)
    ends = draw(st.booleans())
    source = place(array, draw(orders), draw(gaps), 0, at_end=ends)
    destination = place(np.zeros_like(array), draw(orders), draw(gaps), 1, at_end=ends)
    target, workers = draw(st.sampled_from(TARGETS)), draw(st.sampled_from([1, 3]))
    assert np.array_equal(copied(source, destination, target, workers=workers), array)


@every_target
@pytest.mark.parametrize(
    "shape", [(70, 130), (130, 70), (64, 64), (5, 200), (4, 37), (3, 300), (2, 70)]
)
def test_turned_tiles_cover_every_remainder(shape: tuple[int, int], target: CpuTarget) -> None:
    for dtype in ("int8", "float32", "int64"):
        array = np.random.default_rng(1).integers(1, 99, shape).astype(dtype)
        source = place(array, (0, 1), (0, 0), 0)
        destination = place(np.zeros_like(array), (1, 0), (0, 0), 1)
        assert np.array_equal(copied(source, destination, target), array)


@every_target
def test_every_order_of_axes_can_become_every_other(target: CpuTarget) -> None:
    array = np.arange(2 * 5 * 18, dtype=np.float32).reshape(2, 5, 18)
    for order in permutations(range(3)):
        source = place(array, (0, 1, 2), (0, 0, 0), 0)
        destination = place(np.zeros_like(array), order, (0, 0, 0), 1)
        assert np.array_equal(copied(source, destination, target), array)


@every_target
@pytest.mark.parametrize("extents", [(1, 1), (3, 70), (33, 20), (20, 0)])
def test_extents_and_strides_of_a_copy_may_be_symbols(
    extents: tuple[int, int], target: CpuTarget
) -> None:
    rows, columns = (SymbolicDim.symbol(name) for name in ("rows", "columns"))
    array = np.random.default_rng(2).standard_normal((2, *extents)).astype(np.float32)
    held, blank = GuardedBuffer.holding(array), GuardedBuffer.holding(np.zeros_like(array))
    shape = (2, rows, columns)
    source = View(0, 0, DType.FLOAT32, shape, (rows * columns, columns, 1))
    destination = View(1, 0, DType.FLOAT32, shape, (rows * columns, 1, rows))
    values = {"rows": extents[0], "columns": extents[1]}
    made = copied((held, source), (blank, destination), target, values=values)
    assert np.array_equal(made, array)


@every_target
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_clearing_a_halo_touches_the_halo_alone(order: tuple[int, ...], target: CpuTarget) -> None:
    halo = ((0, 0), (0, 0), (1, 2), (3, 0))
    whole = np.full((2, 5, 7, 9), 7, np.float32)
    buffer, view = place(whole, order, (0, 0, 0, 0), 0)
    start = sum(before * stride for (before, _), stride in zip(halo, view.strides, strict=True))
    inside = replace(view, offset=4 * start, shape=(2, 5, 4, 6), halo=halo)
    backend = CpuBackend()
    launches: list[Any] = list(backend.clear_halo(inside))
    run_launches(lambda spec: backend.generate(spec, target), launches, [buffer], target=target)
    wanted = np.zeros_like(whole)
    wanted[:, :, 1:5, 3:9] = 7
    assert np.array_equal(buffer.view(view), wanted)
