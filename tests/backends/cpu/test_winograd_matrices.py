"""Schemes filter as the definition does, with fewer multiplications."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.backends.cpu.families._winograd_matrices import winograd_scheme

_SHAPES = ((3, 1, 2), (3, 1, 4), (3, 2, 2), (3, 2, 4), (5, 1, 2), (5, 2, 2), (7, 2, 2), (2, 1, 3))


@pytest.mark.parametrize(("window", "stride", "size"), _SHAPES)
def test_a_scheme_gives_the_results_of_the_filter(window: int, stride: int, size: int) -> None:
    scheme = winograd_scheme(window, stride, size)
    rng = np.random.default_rng(window + stride)
    elements, taps = rng.standard_normal(scheme.span), rng.standard_normal(window)
    met = np.array(scheme.weights) @ taps * (np.array(scheme.input) @ elements)
    windows = np.lib.stride_tricks.sliding_window_view(elements, window)[::stride]
    np.testing.assert_allclose(np.array(scheme.output) @ met, windows @ taps, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("window", "stride", "size"), _SHAPES)
def test_a_scheme_multiplies_less_often_than_the_definition(
    window: int, stride: int, size: int
) -> None:
    scheme = winograd_scheme(window, stride, size)
    assert scheme.side < window * size
    assert scheme.span == (size - 1) * stride + window
    assert scheme.step == size * stride
