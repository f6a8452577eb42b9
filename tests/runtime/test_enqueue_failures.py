"""A run that fails on a stream of the processor is heard of once, and stops nothing."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.runtime import Stream
from tests.support.engines import COLUMNS, affine, affine_engine, batch_of


def test_whatever_a_queued_run_fails_with_is_raised_once_and_stops_nothing() -> None:
    class Failing:
        def report_layer_time(self, name: str, milliseconds: float, /) -> None:
            raise ValueError(f"{name} {milliseconds}")

    x, y = batch_of(1), np.zeros((1, COLUMNS), np.float32)
    engine = affine_engine()
    with engine.create_context() as failing, engine.create_context() as context, Stream() as stream:
        failing.profiler = Failing()
        failing.enqueue(1, [x, x.copy()], stream)
        context.enqueue(1, [x, y], stream)
        with pytest.raises(ValueError, match="scale1"):
            stream.synchronize()
        np.testing.assert_array_equal(y, affine(x))
        failing.enqueue(1, [x, x.copy()], stream)
        for _ in range(2):
            with pytest.raises(ValueError, match="scale1"):
                failing.run({"x": x})
        failing.profiler = None
        failing.run({"x": x})
        stream.synchronize()
