"""Bit-exact fp16 convolutions: order of additions, carry-save multipliers, FP48 accumulator.

Each output is summed over blocks of 64 channels in the outer loop, then over the kernel's rows and
columns. In Winograd mode a cell multiplies 4 channels of a 4 x 4 tile.

A MAC cell multiplies 64 lanes. Mantissas are multiplied by radix-4 Booth recoding. Each product
stays in the form of two carry-save words, which are shifted to the cell's largest exponent before
they are added; this loses the same low bits as the hardware. The accumulator has an 8-bit exponent
and a 40-bit mantissa in two's complement, and rounds after every addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.nvdla.hardware._convolution import ConvolutionShape
    from smelt.nvdla.hardware._memory import Array
    from smelt.nvdla.hardware._running_operation import Operation


# Radix-4 Booth recoding: digit's magnitude and sign by three adjacent bits of the multiplier.
_MAGNITUDE = np.array([0, 1, 1, 2, 2, 1, 1, 0], np.uint32)
_IS_NEGATIVE = np.array([0, 0, 0, 0, 1, 1, 1, 0], np.uint32)
_SIGN_COMPENSATION = np.array(
    [
        0xAAAB0000,
        0xFAAAB000,
        0xFFAAAB00,
        0xFFFAAAB0,
        0xFFFFAAAB,
        0xFFFFFAAB,
        0xFFFFFFAB,
        0xFFFFFFFB,
    ],
    np.uint32,
)
"""Constants that cancel the sign bits of the partial products, by shift in steps of 4 bits."""
_NAN_EXPONENT = 63
"""Exponent with which a MAC cell marks a NaN."""
_ACCUMULATOR_NAN = 255
"""Exponent of a NaN in an accumulator."""
_MANTISSA_BITS = 40
"""Bits of an accumulator's mantissa, with its sign."""
_MANTISSA_MASK = (1 << _MANTISSA_BITS) - 1
"""All bits of an accumulator's mantissa."""


@dataclass(slots=True)
class Accumulator:
    """FP48 values: exponent (bias 63) and 40-bit mantissa in two's complement."""

    exponent: Array
    mantissa: Array


def make_accumulator(shape: tuple[int, ...]) -> Accumulator:
    """Return accumulators of a shape, set to 0."""
    return Accumulator(np.zeros(shape, np.int64), np.zeros(shape, np.int64))


def multiply_lanes(data: Array, weights: Array) -> tuple[Array, Array]:
    """Return the aligned products [..., lanes] of fp16 words, and the exponent of each cell."""
    data, weights = np.broadcast_arrays(data, weights)
    used = ((data & 0x7FFF) != 0) & ((weights & 0x7FFF) != 0)
    data_exponent, weight_exponent = data >> 10 & 31, weights >> 10 & 31
    high = np.where(used, (data_exponent >> 2) + (weight_exponent >> 2), 0)
    largest = high.max(axis=-1)
    steps = largest[..., None] - high
    data_mantissa = _shifted_mantissa(data, data_exponent)
    weight_mantissa = _shifted_mantissa(weights, weight_exponent)
    is_negative = ((data ^ weights) >> 15 & 1).astype(np.uint32)
    first, second = _carry_save_product(data_mantissa, weight_mantissa, is_negative)
    shift = (np.minimum(steps, 7) * 4).astype(np.uint32)
    compensation = _SIGN_COMPENSATION[np.minimum(steps, 7)]
    total = (first >> shift) + (second >> shift) + compensation
    products = np.where(used & (steps < 8), total.view(np.int32).astype(np.int64), 0)
    return products, largest * 4


def _shifted_mantissa(words: Array, exponent: Array) -> np.ndarray:
    """Return mantissas with the leading one, shifted by the low two bits of the exponent."""
    hidden = (exponent != 0).astype(np.int64) << 10
    shift = np.where(exponent == 0, 1, exponent & 3)
    return np.asarray((((words & 0x3FF) | hidden) << shift).astype(np.uint32))


def _carry_save_product(
    data: np.ndarray, weights: np.ndarray, is_negative: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the two words whose sum, with the sign compensation, is the product."""
    recode = is_negative * np.uint32(7)
    rest = weights << np.uint32(1)
    partial: list[np.ndarray] = []
    inverted: list[np.ndarray] = []
    for _ in range(8):
        code = (rest & np.uint32(7)) ^ recode
        rest = rest >> np.uint32(2)
        value = data * _MAGNITUDE[code]
        negative = _IS_NEGATIVE[code]
        partial.append(
            np.where(negative == 1, ~value & np.uint32(0xFFFF), value | np.uint32(0x10000))
        )
        inverted.append(negative)
    words = [partial[0]]
    for index in range(1, 8):
        words.append(partial[index] << np.uint32(2 * index))
        if index != 4:
            words[-1] = words[-1] | inverted[index - 1] << np.uint32(2 * index - 2)
        else:
            words.insert(-1, inverted[3] << np.uint32(6))
    words.append(inverted[7] << np.uint32(14))
    halves = [*_reduce(words[:5]), *_reduce(words[5:])]
    first, second = _reduce(halves)
    return first, second


def _reduce(words: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Add words in carry-save form until two are left."""
    words = list(words)
    while len(words) > 2:
        first, second, third = words[:3]
        total = first ^ second ^ third
        carry = ((first & second) | (second & third) | (first & third)) << np.uint32(1)
        words = [total, carry, *words[3:]]
    return words


def find_nan(data: Array, weights: Array) -> tuple[Array, Array]:
    """Return where a cell reads a NaN, and the mantissa of its first NaN, weights before data."""
    data, weights = np.broadcast_arrays(data, weights)
    both = np.concatenate([weights, data], axis=-1)
    is_nan = (both & 0x7FFF) > 0x7C00
    first = np.take_along_axis(both, is_nan.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    mantissa = -((first >> 15 & 1) << 37) + ((first & 0x3FF) << 27)
    has_nan: Array = np.asarray(is_nan.any(axis=-1))
    return has_nan, mantissa


def add(accumulator: Accumulator, mantissa: Array, exponent: Array) -> None:
    """Add one MAC result (38-bit mantissa, 6-bit exponent) to every accumulator."""
    normalise = 36 - (_bit_length(mantissa) - 1)
    incoming = mantissa << (normalise + 2)
    incoming_exponent = (exponent - normalise + 49) & 255
    held_exponent = np.where(accumulator.mantissa == 0, 0, accumulator.exponent)
    difference = incoming_exponent - held_exponent
    held, held_out = _align(accumulator.mantissa, difference)
    incoming, incoming_out = _align(incoming, -difference)
    lost = held_out | incoming_out
    largest = np.maximum(incoming_exponent, held_exponent)
    new_exponent, new_mantissa = _round(*_normalise(held + incoming, lost, largest))
    is_nan = (exponent == _NAN_EXPONENT) & (mantissa != 0)
    was_nan = accumulator.exponent == _ACCUMULATOR_NAN
    unchanged = (mantissa == 0) | was_nan
    new_mantissa = np.where(is_nan, (mantissa >> 27) << 29, new_mantissa)
    new_exponent = np.where(is_nan, _ACCUMULATOR_NAN, new_exponent)
    accumulator.mantissa = np.where(unchanged, accumulator.mantissa, new_mantissa)
    accumulator.exponent = np.where(unchanged, accumulator.exponent, new_exponent)


def _bit_length(values: Array) -> Array:
    """Return the bit length of two's complement values without the sign; 0 for 0 and -1."""
    magnitude = np.where(values < 0, ~values, values)
    return np.asarray(np.frexp(magnitude.astype(np.float64))[1].astype(np.int64))


def _align(mantissa: Array, distance: Array) -> tuple[Array, Array]:
    """Shift right by a positive distance; also return the lost bits, at the top of 40 bits."""
    shift = np.clip(distance, 0, _MANTISSA_BITS)
    lost = (mantissa & ((np.int64(1) << shift) - 1)) << (_MANTISSA_BITS - shift)
    is_out = distance > _MANTISSA_BITS
    return np.where(is_out, 0, mantissa >> shift), np.where(is_out, 0, lost)


def _normalise(total: Array, lost: Array, exponent: Array) -> tuple[Array, Array, Array, Array]:
    """Return mantissa, guard bit, bits below the guard bit, and exponent of a 41-bit sum."""
    limit = np.int64(1) << (_MANTISSA_BITS - 1)
    overflows = (total >= limit) | (total < -limit)
    left = np.where(overflows, 0, 39 - _bit_length(total))
    joined = (total << left) | (lost >> (_MANTISSA_BITS - left))
    mantissa = np.where(overflows, total >> 1, joined)
    rest = (lost << left) & _MANTISSA_MASK
    guard = np.where(overflows, total & 1, rest >> (_MANTISSA_BITS - 1))
    below: Array = np.where(overflows, lost, rest & (_MANTISSA_MASK >> 1))
    return mantissa, guard, below, exponent + np.where(overflows, 1, -left)


def _round(mantissa: Array, guard: Array, below: Array, exponent: Array) -> tuple[Array, Array]:
    """Round up if the guard bit is set, but a negative value only if bits follow the guard bit."""
    up = (guard != 0) & ((mantissa >= 0) | (below != 0))
    rounded: Array = mantissa + up
    carries: Array = rounded == np.int64(1) << (_MANTISSA_BITS - 1)
    rounded = np.where(carries, rounded >> 1, rounded)
    exponent = (exponent + carries) & 255
    return np.where(rounded == 0, 0, exponent), rounded


def to_fp32(accumulator: Accumulator) -> np.ndarray:
    """Return the accumulators as float32, rounded to nearest with ties away from zero."""
    mantissa, exponent = accumulator.mantissa, accumulator.exponent
    magnitude = np.abs(mantissa)
    rounded = (magnitude >> 15) + (magnitude >> 14 & 1)
    carries = rounded >> 24
    rounded = np.where(carries != 0, rounded >> 1, rounded)
    bits = ((exponent + 64 + carries) & 255) << 23 | (rounded & 0x7FFFFF)
    bits = np.where(mantissa == 0, 0, bits)
    bits = np.where(exponent == _ACCUMULATOR_NAN, 0x7F800000 | (mantissa >> 29 & 0x3FF), bits)
    signed = bits | (mantissa < 0).astype(np.int64) << 31
    return np.asarray(signed.astype(np.uint32).view(np.float32))


_LANES_AT_ONCE = 1 << 18
"""Number of lanes that are computed together, which bounds the size of temporary arrays."""


def correlate_exact(
    operation: Operation, padded: np.ndarray, weights: np.ndarray, shape: ConvolutionShape
) -> np.ndarray:
    """Return the float32 sums [height, width, kernels] of a padded fp16 input."""
    data = np.ascontiguousarray(padded.astype(np.float16)).view(np.uint16).astype(np.int64)
    words = np.ascontiguousarray(weights).view(np.uint16).astype(np.int64)
    pixels = shape.output_height * shape.output_width
    total = make_accumulator((pixels, shape.kernels))
    block = operation.configuration.atomic_c
    for first in range(0, shape.channels, block):
        lanes = slice(first, min(first + block, shape.channels))
        for tap, window in shape.taps():
            inputs = data[(*window, lanes)].reshape(pixels, -1)
            _accumulate(operation, total, inputs, words[(*tap, lanes)].T)
    return to_fp32(total).reshape(shape.output_height, shape.output_width, shape.kernels)


def _accumulate(operation: Operation, total: Accumulator, inputs: Array, words: Array) -> None:
    """Add one MAC cell's result to each [pixel, kernel], for some pixels at a time."""
    step = max(1, _LANES_AT_ONCE // words.size)
    for start in range(0, len(inputs), step):
        operation.check_time()
        part = slice(start, start + step)
        data = inputs[part, None]
        products, exponent = multiply_lanes(data, words[None])
        mantissa = products.sum(axis=-1)
        mantissa, exponent = _with_nans(data, words[None], mantissa, exponent)
        partial = Accumulator(total.exponent[part], total.mantissa[part])
        add(partial, mantissa, exponent)
        total.exponent[part], total.mantissa[part] = partial.exponent, partial.mantissa


def _with_nans(data: Array, words: Array, mantissa: Array, exponent: Array) -> tuple[Array, Array]:
    """Return mantissa and exponent with the NaNs of cells that read one."""
    if not (((data & 0x7FFF) > 0x7C00).any() or ((words & 0x7FFF) > 0x7C00).any()):
        return mantissa, exponent
    is_nan, nan_mantissa = find_nan(data, words)
    return np.where(is_nan, nan_mantissa, mantissa), np.where(is_nan, _NAN_EXPONENT, exponent)


def convolve_winograd_exact(
    operation: Operation, tiles: np.ndarray, weights: np.ndarray, kernels: int
) -> np.ndarray:
    """Return float32 [2, 2, tiles, kernels] of transformed fp16 tiles [4, 4, tiles, channels]."""
    data = np.ascontiguousarray(tiles.astype(np.float16)).view(np.uint16).astype(np.int64)
    words = np.ascontiguousarray(weights).view(np.uint16).astype(np.int64)
    count, channels = data.shape[2:]
    totals = [make_accumulator((count, kernels)) for _ in range(4)]
    for first in range(0, channels, 4):
        operation.check_time()
        lanes = slice(first, first + 4)
        inputs = data[..., lanes].transpose(2, 0, 1, 3).reshape(count, 1, 64)
        weight_lanes = words[:, :, lanes].transpose(3, 0, 1, 2).reshape(1, kernels, 64)
        products, exponent = multiply_lanes(inputs, weight_lanes)
        grid = products.reshape(count, kernels, 4, 4, 4).sum(axis=-1)
        for index, row in enumerate(halve(grid.transpose(2, 3, 0, 1))):
            for column, mantissa in enumerate(halve(row)):
                add(
                    totals[2 * index + column],
                    *_with_nans(inputs, weight_lanes, mantissa, exponent),
                )
    return np.stack([to_fp32(total) for total in totals]).reshape(2, 2, count, kernels)


def halve(grid: Array) -> tuple[Array, Array]:
    """Return two sums of four rows, as the output transform of Winograd adds them."""
    return grid[0] + grid[1] + grid[2], grid[1] - grid[2] - grid[3]
