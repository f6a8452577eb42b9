"""Windows of one memory: what is proved to be apart shares no byte, however large it is."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from smelt.engine import View
from smelt.engine._concrete_verifier import ExactOverlapBudget, views_overlap
from smelt.types import DType

_F32 = DType.FLOAT32


def _unmasked() -> ExactOverlapBudget:
    """A budget that is used up: nothing can be compared byte by byte."""
    budget = ExactOverlapBudget()
    while budget.take(1 << 26):
        pass
    return budget


def _is_proved_apart(a: View, b: View) -> bool:
    return not views_overlap((a, False, 0), (b, True, 0), {}, _unmasked())


def _bytes(view: View) -> set[int]:
    extents: tuple[Any, ...] = view.shape
    strides: tuple[Any, ...] = view.strides
    offset: Any = view.offset
    size = view.dtype.size_bytes
    return {
        offset + size * sum(n * step for n, step in zip(at, strides, strict=True)) + byte
        for at in itertools.product(*map(range, extents))
        for byte in range(size)
    }


@st.composite
def windows(draw: st.DrawFn) -> View:
    """A part of a tensor [3, 6, 5], often a box of it, of two element types."""
    strides = draw(st.sampled_from([(30, 5, 1), (30, 5, 0), (30, 10, 2), (31, 5, 1), (90, 6, 1)]))
    extents = tuple(draw(st.integers(0, most)) for most in (3, 6, 5))
    kind = draw(st.sampled_from([_F32, _F32, DType.FLOAT16]))
    rank = draw(st.integers(0, 3))
    offset = draw(st.integers(0, 60)) * draw(st.sampled_from([2, 4, 4]))
    return View(0, offset, kind, extents[3 - rank :], strides[3 - rank :])


@given(windows(), windows())
def test_what_is_proved_to_be_apart_shares_no_byte(a: View, b: View) -> None:
    if _is_proved_apart(a, b):
        assert not _bytes(a) & _bytes(b)


@given(st.data())
def test_boxes_of_one_tensor_are_told_apart_without_a_look_at_their_bytes(
    data: st.DataObject,
) -> None:
    rows, columns, planes = 7, 9, 3
    strides = (rows * columns, columns, 1)
    views: list[View] = []
    boxes: list[set[tuple[int, ...]]] = []
    for _ in range(2):
        starts = [data.draw(st.integers(0, most - 1)) for most in (planes, rows, columns)]
        extents = tuple(
            data.draw(st.integers(1, most - start))
            for start, most in zip(starts, (planes, rows, columns), strict=True)
        )
        offset = 4 * sum(s * stride for s, stride in zip(starts, strides, strict=True))
        views.append(View(0, offset, _F32, extents, strides))
        sides = [range(s, s + e) for s, e in zip(starts, extents, strict=True)]
        boxes.append(set(itertools.product(*sides)))
    assert _is_proved_apart(*views) == (not boxes[0] & boxes[1])


def test_the_pads_of_a_large_picture_are_apart_from_it() -> None:
    height, width = 40_000, 50_000
    strides = (height * width, width, 1)
    column, pad = (View(0, 4 * at, _F32, (3, height, 1), strides) for at in (2, 1))
    assert _is_proved_apart(column, pad)
    whole = View(0, 8, _F32, (3, height, width - 2), strides)
    assert _is_proved_apart(whole, View(0, 0, _F32, (3, height, 2), strides))
    assert not _is_proved_apart(whole, View(0, 0, _F32, (3, height, 3), strides))
