"""Contexts: by name, by index, on streams, with any array, and refusing what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.engines import MAX_BATCH, affine, affine_engine, batch_of


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 3, MAX_BATCH])
def test_a_run_gives_the_same_bits_for_any_number_of_threads(threads: int, rows: int) -> None:
    x = batch_of(rows)
    with affine_engine().create_context(threads=threads) as context:
        for _ in range(20):
            np.testing.assert_array_equal(context.run({"x": x})["y"], affine(x))
