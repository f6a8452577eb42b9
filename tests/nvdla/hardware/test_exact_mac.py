"""The exact fp16 multipliers and accumulator: properties, and sums of known words."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.nvdla.hardware._exact_convolution import (
    add,
    find_nan,
    make_accumulator,
    multiply_lanes,
    to_fp32,
)


def _words(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).view(np.uint16).astype(np.int64)


def test_products_of_lanes_with_one_exponent_are_exact() -> None:
    generator = np.random.default_rng(1)
    data, weights = generator.uniform(1, 2, (2, 500, 64)) * generator.choice([-1, 1], (2, 500, 64))
    products, exponent = multiply_lanes(_words(data), _words(weights))
    found = products.sum(axis=-1) * 2.0 ** (exponent - 50)
    expected = (data.astype(np.float16).astype(float) * weights.astype(np.float16)).sum(axis=-1)
    assert np.array_equal(found, expected)


def test_products_of_any_lanes_lose_less_than_two_units_each() -> None:
    generator = np.random.default_rng(2)
    data, weights = (
        (
            generator.standard_normal((500, 64)) * 2.0 ** generator.integers(-12, 9, (500, 64))
        ).astype(np.float16)
        for _ in range(2)
    )
    products, exponent = multiply_lanes(_words(data), _words(weights))
    unit = 2.0 ** (exponent[:, None] - 50)
    exact = data.astype(float) * weights.astype(float)
    assert (np.abs(products * unit - exact) <= 2 * unit).all()


def test_zero_lanes_neither_count_nor_raise_the_exponent() -> None:
    data, weights = np.zeros(64), np.full(64, 60000.0)
    products, exponent = multiply_lanes(_words(data), _words(weights))
    assert not products.any()
    assert exponent == 0


@pytest.mark.parametrize("count", [1, 7, 40])
def test_sums_round_once_an_addition(count: int) -> None:
    generator = np.random.default_rng(count)
    total = make_accumulator((1000,))
    exact = np.zeros(1000)
    for _ in range(count):
        mantissa = generator.integers(-(2**30), 2**30, 1000)
        exponent = generator.integers(8, 14, 1000) * 4
        add(total, mantissa, exponent)
        exact += mantissa * 2.0 ** (exponent - 50)
    found = to_fp32(total).astype(float)
    largest = 2.0**30 * 2.0 ** (52 - 50) * count
    assert np.abs(found - exact).max() <= largest * 2.0**-23


def test_what_is_taken_away_again_leaves_zero() -> None:
    total = make_accumulator((3,))
    mantissa = np.array([12345, -(2**37), 1])
    exponent = np.full(3, 40)
    add(total, mantissa, exponent)
    add(total, -np.maximum(mantissa, -(2**37) + 1), exponent)
    assert to_fp32(total)[0] == 0
    assert to_fp32(total)[2] == 0


def test_a_nan_in_a_weight_goes_before_one_in_the_data_and_stays() -> None:
    data, weights = _words(np.ones(64)), _words(np.ones(64))
    data[3], weights[9] = 0x7E01, 0xFE02
    is_nan, mantissa = find_nan(data, weights)
    assert is_nan
    total = make_accumulator((1,))
    add(total, np.array([mantissa]), np.array([63]))
    add(total, np.array([5]), np.array([20]))
    assert to_fp32(total).view(np.uint32)[0] == 0xFF800000 | 0x202


def test_single_values_pass_unchanged() -> None:
    values = np.array([1, -1, 0.5, 1.5, -2, 65504, -3.25, 2.0**-10], np.float32)
    total = make_accumulator(values.shape)
    mantissa = (values.astype(float) * 2.0**20).astype(np.int64)
    add(total, mantissa, np.full(values.shape, 30))
    assert np.array_equal(to_fp32(total), values)
