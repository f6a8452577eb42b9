"""Which steps may run at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smelt.backends._concurrent_steps import are_disjoint, group_concurrent_steps
from smelt.engine import HostCall, KernelSpec, Launch, View
from smelt.types import DType, SymbolicDim

_KERNEL = KernelSpec("any", ())


def _view(buffer: int, offset: int = 0, count: int = 4) -> View:
    return View(buffer, 4 * offset, DType.FLOAT32, (count,), (1,))


def _launch(reads: list[View], writes: list[View]) -> Launch:
    views = (*reads, *writes)
    return Launch(_KERNEL, views, tuple(range(len(reads), len(views))))


def _groups(*steps: Launch | HostCall, small: bool = True) -> list[list[int]]:
    return group_concurrent_steps(steps, lambda _launch: small)


def test_branches_run_beside_each_other_and_a_chain_does_not() -> None:
    first = _launch([_view(0)], [_view(1)])
    left = _launch([_view(1)], [_view(2)])
    left_again = _launch([_view(2)], [_view(3)])
    right = _launch([_view(1)], [_view(4)])
    join = _launch([_view(3), _view(4)], [_view(5)])
    assert _groups(first, left, left_again, right, join) == [[0], [1, 3], [2], [4]]
    assert _groups(first, left, left_again, right, join, small=False) == [[0], [1], [2], [3], [4]]


def test_parts_of_one_tensor_are_written_side_by_side() -> None:
    left = _launch([_view(0)], [_view(1, 0)])
    right = _launch([_view(0)], [_view(1, 4)])
    overlapping = _launch([_view(0)], [_view(1, 3)])
    reader = _launch([_view(1, 0, 8)], [_view(2)])
    assert _groups(left, right, reader) == [[0, 1], [2]]
    assert _groups(left, overlapping, reader) == [[0], [1], [2]]


def test_what_is_still_read_is_not_overwritten() -> None:
    reader = _launch([_view(0)], [_view(1)])
    writer = _launch([_view(2)], [_view(0)])
    assert _groups(reader, writer) == [[0], [1]]


def test_nothing_moves_across_a_step_that_python_does() -> None:
    one, other = _launch([_view(0)], [_view(1)]), _launch([_view(0)], [_view(2)])
    host = HostCall("op", (_view(0),), (_view(3),))
    assert _groups(one, host, other) == [[0], [1], [2]]


@pytest.mark.parametrize("seed", range(4))
def test_windows_that_are_called_apart_share_no_element(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = (3, 4, 6)
    strides = (24, 6, 1)
    apart = 0
    for _ in range(400):
        windows: list[View] = []
        cells: list[set[int]] = []
        for _ in range(2):
            start = [int(random.integers(0, extent)) for extent in shape]
            size = [int(random.integers(1, e - s + 1)) for e, s in zip(shape, start, strict=True)]
            offset = sum(a * b for a, b in zip(start, strides, strict=True))
            windows.append(View(0, 4 * offset, DType.FLOAT32, tuple(size), strides))
            corners = itertools.product(*map(range, size))
            cells.append(
                {offset + sum(a * b for a, b in zip(c, strides, strict=True)) for c in corners}
            )
        if are_disjoint(*windows):
            apart += 1
            assert not cells[0] & cells[1]
    assert apart > 20


def test_windows_of_open_batches_are_apart_along_their_channels() -> None:
    batch = SymbolicDim.symbol("batch")
    one = View(0, 0, DType.FLOAT16, (batch, 8, 5, 5), (600, 1, 120, 24))
    beside = View(0, 16, DType.FLOAT16, (batch, 16, 5, 5), (600, 1, 120, 24))
    assert are_disjoint(one, beside)
    assert are_disjoint(beside, one)
    too_wide = View(0, 16, DType.FLOAT16, (batch, 17, 5, 5), (600, 1, 120, 24))
    assert not are_disjoint(one, too_wide)
    assert not are_disjoint(one, one)
    moved = View(0, SymbolicDim.symbol("offset"), DType.FLOAT16, (batch, 8, 5, 5), one.strides)
    assert not are_disjoint(one, moved)
