"""Who owns which bytes: the map of intervals agrees with an array of bytes, and stays small."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.engine._lifetime_verifier import IntervalMap


@pytest.mark.parametrize("seed", range(20))
def test_the_map_agrees_with_one_owner_for_each_byte(seed: int) -> None:
    rng = np.random.default_rng(seed)
    owners, bytes_ = IntervalMap(), np.full(64, -1)
    for _ in range(200):
        low, high = sorted(int(n) for n in rng.choice(65, 2, replace=False))
        owner = int(rng.integers(0, 4))
        if rng.random() < 0.5:
            owners.give(low, high, owner)
            bytes_[low:high] = owner
        assert owners.owners(low, high) == set(bytes_[low:high].tolist())
        assert owners.owners(0, 64) == set(bytes_.tolist())


def test_small_writes_of_one_owner_are_one_piece() -> None:
    owners = IntervalMap()
    for start in range(0, 4096, 4):
        owners.give(start, start + 4, 7)
    assert owners.num_intervals() == 2  # the owner's, and nobody's behind it
