"""Which windows may not be touched at once: the sweep agrees with a comparison of all pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smelt.engine._concurrency_verifier import Span, find_conflict
from smelt.engine._lifetime_verifier import IntervalMap


def _conflict(a: Span, b: Span) -> bool:
    return (
        a.memory_space_key == b.memory_space_key
        and max(a.low, b.low) < min(a.high, b.high)
        and a.buffer != b.buffer
        and a.step != b.step
        and (a.is_written or b.is_written)
    )


def _any_conflict(spans: list[Span]) -> bool:
    return any(_conflict(a, b) for a, b in itertools.combinations(spans, 2))


@pytest.mark.parametrize("seed", range(8))
def test_the_sweep_agrees_with_a_comparison_of_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    answers: list[bool] = []
    for _ in range(1000):
        room, owners = int(rng.choice((8, 30, 200))), int(rng.choice((1, 2, 4)))
        spans: list[Span] = []
        for _ in range(rng.integers(1, 12)):
            memory_space_key, low, buffer, step = (
                int(rng.integers(n)) for n in (2, room, owners, 4)
            )
            high = low + int(rng.choice((0, 1, 2, room // 4)))
            is_written = bool(rng.random() < 0.3)
            spans.append(Span(memory_space_key, low, high, buffer, step, is_written=is_written))
        found = find_conflict(spans)
        answers.append(found is not None)
        assert answers[-1] == _any_conflict(spans)
        assert found is None or _conflict(*found)
    assert 0.1 < sum(answers) / len(answers) < 0.9


def test_empty_spans_conflict_with_nothing() -> None:
    assert (
        find_conflict([Span(0, 5, 5, 1, 1, is_written=True), Span(0, 0, 9, 2, 2, is_written=True)])
        is None
    )


class _Counted(int):
    """A number that counts how often it is compared."""

    count = 0

    def __lt__(self, other: int) -> bool:
        _Counted.count += 1
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        _Counted.count += 1
        return int(self) > int(other)


def _compared(steps: int) -> int:
    """Comparisons for a plan whose steps all read one window and write their own, none waiting."""
    _Counted.count = 0
    spans: list[Span] = []
    for step in range(steps):
        own = (1 << 40) + step
        read = Span("arena", _Counted(0), _Counted(1 << 40), 0, step, is_written=False)
        written = Span("arena", _Counted(own), _Counted(own + 1), 1, step, is_written=True)
        spans += [read, written]
    assert find_conflict(spans) is None
    return _Counted.count


def test_twice_the_steps_take_little_more_than_twice_the_comparisons() -> None:
    assert _compared(4000) < 2.5 * _compared(2000) < 6.25 * _compared(1000)


@pytest.mark.parametrize("seed", range(4))
def test_owners_of_pieces_are_those_of_their_bytes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    owners, bytes_ = IntervalMap(), np.full(600, -1)
    for step in range(300):
        low = int(rng.integers(0, 598))
        high = int(rng.integers(low + 1, min(low + 4, 600) + 1))
        owner = int(rng.integers(0, 3 if step < 200 else 30))
        owners.give(low, high, owner)
        bytes_[low:high] = owner
        first, last = sorted(rng.integers(0, 600, 2).tolist())
        assert owners.owners(first, last + 1) == set(bytes_[first : last + 1].tolist())
