"""The convolution pipeline against loops over scalars."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from smelt.nvdla import NvdlaError
from smelt.nvdla.hardware import NV_FULL, NV_SMALL, Configuration, Precision
from tests.nvdla.hardware._programs import DTYPES, MASKS, SOURCE, TARGET, WEIGHTS, Bench

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _convolve(
    cube: NDArray[np.generic],
    kernels: NDArray[np.generic],
    stride: tuple[int, int],
    pad: tuple[int, int],
    fill: int,
    output: tuple[int, int],
) -> NDArray[np.int64]:
    """Add one product after another; kernels are [kernel, row, column, channel]."""
    height, width, channels = cube.shape
    sums = np.zeros((*output, len(kernels)), np.int64)
    for y, x, k in itertools.product(*map(range, sums.shape)):
        for r, s in itertools.product(*map(range, kernels.shape[1:3])):
            row, column = y * stride[0] + r - pad[0], x * stride[1] + s - pad[1]
            inside = 0 <= row < height and 0 <= column < width
            for c in range(channels):
                value = int(cube[row, column, c]) if inside else fill
                sums[y, x, k] += value * int(kernels[k, r, s, c])
    return sums


def _store(kernels: NDArray[np.generic], group: int, block: int) -> NDArray[np.generic]:
    """Lay kernels out as the convolution buffer wants them, one element after another."""
    count, height, width, channels = kernels.shape
    order: list[object] = []
    for first in range(0, count, group):
        for low in range(0, channels, block):
            for r, s in itertools.product(range(height), range(width)):
                for k in range(first, min(first + group, count)):
                    order.extend(kernels[k, r, s, low : low + block])
    return np.array(order, kernels.dtype)


def _shifted(
    sums: NDArray[np.int64], shift: int, precision: Precision = Precision.INT8
) -> NDArray[np.int64]:
    """Divide, halves away from zero, and clamp."""
    half = 1 << (shift - 1)
    rounded = np.where(sums < 0, -((half - sums) >> shift), (sums + half) >> shift)
    limit = 1 << (8 * precision.size_bytes - 1)
    return np.clip(rounded, -limit, limit - 1)


def _random(seed: int, precision: Precision, *shapes: tuple[int, ...]) -> list[NDArray[np.generic]]:
    generator = np.random.default_rng(seed)
    limit = 127 if precision is Precision.INT8 else 3000
    return [generator.integers(-limit, limit, shape).astype(DTYPES[precision]) for shape in shapes]


@pytest.mark.parametrize(
    ("configuration", "precision"),
    [(NV_FULL, Precision.INT8), (NV_FULL, Precision.INT16), (NV_SMALL, Precision.INT8)],
)
@pytest.mark.parametrize(("stride", "pad"), [((1, 1), (1, 2)), ((2, 3), (0, 1))])
def test_direct_convolution_equals_the_sum_of_products(
    configuration: Configuration,
    precision: Precision,
    stride: tuple[int, int],
    pad: tuple[int, int],
) -> None:
    bench = Bench(configuration)
    cube, kernels = _random(1, precision, (5, 6, 11), (18, 3, 2, 11))
    output = (5 + 2 * pad[0] - 3) // stride[0] + 1, (6 + 2 * pad[1] - 2) // stride[1] + 1
    bench.put(SOURCE, bench.pack(cube))
    group = configuration.kernel_group(precision)
    bench.put(WEIGHTS, _store(kernels, group, configuration.atomic_c))
    bench.program_convolution(
        size=(5, 6, 11),
        kernels=18,
        kernel=(3, 2),
        output=output,
        precision=precision,
        stride=stride,
        pad=pad,
    )
    bench.set("CSC", D_ZERO_PADDING_VALUE=0x17F)  # at int8 only the low byte counts
    bench.set("CACC", D_CLIP_CFG=6)
    bench.program_sdp(size=(*output, 18), precision=precision, flying=True)
    assert bench.convolve()
    fill = 0x7F if precision is Precision.INT8 else 0x17F
    sums = _convolve(cube, kernels, stride, pad, fill, output)
    found = bench.unpack(TARGET, (*output, 18), DTYPES[precision])
    assert np.array_equal(found, _shifted(sums, 6, precision))


def test_compressed_kernels_give_what_uncompressed_ones_give() -> None:
    cube, kernels = _random(2, Precision.INT8, (3, 3, 70), (37, 2, 2, 70))
    kernels = np.where(np.random.default_rng(3).random(kernels.shape) < 0.6, 0, kernels)
    stored = _store(kernels.astype(np.int8), 32, 64)
    results: list[NDArray[np.generic]] = []
    for is_compressed in (False, True):
        bench = Bench()
        bench.put(SOURCE, bench.pack(cube))
        bench.put(WEIGHTS, stored[stored != 0] if is_compressed else stored)
        bench.put(MASKS, np.packbits(stored != 0, bitorder="little"))
        bench.program_convolution(size=(3, 3, 70), kernels=37, kernel=(2, 2), output=(2, 2))
        bench.set("CDMA", D_WEIGHT_FORMAT=int(is_compressed), D_WMB_ADDR_LOW=MASKS)
        bench.set("CACC", D_CLIP_CFG=7)
        bench.program_sdp(size=(2, 2, 37), flying=True)
        bench.convolve()
        results.append(bench.unpack(TARGET, (2, 2, 37), np.int8))
    assert np.array_equal(results[0], results[1])
    assert results[0].any()


def test_compression_is_refused_where_there_is_none() -> None:
    bench = Bench(NV_SMALL)
    bench.program_convolution(size=(3, 3, 8), kernels=8, kernel=(1, 1), output=(3, 3))
    bench.set("CDMA", D_WEIGHT_FORMAT=1)
    bench.program_sdp(size=(3, 3, 8), flying=True)
    with pytest.raises(NvdlaError, match="does not support compressed weights"):
        bench.convolve()


def _transformed(kernels: NDArray[np.int64], group: int) -> NDArray[np.float64]:
    """Turn 3 x 3 kernels into 4 x 4 and lay them out in cubes of 4 channels."""
    matrix = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    turned = np.einsum("ab,kbcn,dc->kadn", matrix, kernels, matrix)
    cubes = [
        turned[first : first + group, :, :, low : low + 4].reshape(-1)
        for first in range(0, len(turned), group)
        for low in range(0, turned.shape[3], 4)
    ]
    return np.concatenate(cubes)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT16, Precision.FP16])
def test_winograd_equals_direct_convolution_where_nothing_is_rounded(
    precision: Precision, step: int
) -> None:
    generator = np.random.default_rng(5)
    lanes = NV_FULL.atom_elements(precision)
    size = (8 * step, 8 * step, lanes)  # whole tiles; the last two rows are seen by none
    cube = generator.integers(-7, 8, size).astype(DTYPES[precision])
    kernels = 4 * generator.integers(-3, 4, (19, 3 * step, 3 * step, lanes))
    # A step is unrolled into channels: kernels of 3 x 3 over step * step times as many.
    unrolled = kernels.reshape(19, 3, step, 3, step, lanes).transpose(0, 1, 3, 2, 4, 5)
    stored = _transformed(unrolled.reshape(19, 3, 3, -1), NV_FULL.kernel_group(precision))
    channels = lanes * step * step
    bench = Bench()
    bench.put(SOURCE, bench.pack(cube))
    bench.put(WEIGHTS, stored.astype(DTYPES[precision]))
    bench.program_convolution(
        size=size,
        kernels=19,
        kernel=(4, 4),
        output=(4, 4),
        precision=precision,
        stride=(step, step),
        winograd=True,
    )
    bench.set(
        "CSC",
        D_DATAIN_SIZE_EXT_1=channels - 1,
        D_WEIGHT_SIZE_EXT_1=(channels - 1) | 18 << 16,
    )
    bench.set("CACC", D_CLIP_CFG=0)
    bench.program_sdp(size=(4, 4, 19), precision=precision, flying=True)
    bench.set("SDP", D_CVT_SHIFT=5)
    bench.convolve()
    sums = _convolve(cube, kernels, (step, step), (0, 0), 0, (4, 4))
    found = bench.unpack(TARGET, (4, 4, 19), DTYPES[precision])
    if precision is Precision.FP16:
        assert np.array_equal(found, sums.astype(np.float16))
        return
    assert np.array_equal(found, _shifted(sums, 5, precision))


def _program_image(
    bench: Bench,
    pixels: NDArray[np.uint8],
    kernels: NDArray[np.int8],
    modes: tuple[int, int],
    means: tuple[int, ...],
) -> None:
    """Program 5 kernels of 3 x 2 pixels in steps of 2 over 7 x 9 pixels, padded by 1."""
    number, extension = modes
    lines = 1 << extension
    bench.put(SOURCE, np.pad(pixels.reshape(7, 36), ((0, 0), (0, 28))))
    stored = [
        kernels[k, low : low + lines].reshape(-1) for low in range(0, 3, lines) for k in range(5)
    ]
    bench.put(WEIGHTS, np.concatenate(stored))
    bench.program_convolution(
        size=(7, 9, 4), kernels=5, kernel=(3, 1), output=(3, 5), stride=(2, 2), pad=(1, 0)
    )
    words = [mean & 0xFFFF for mean in means]
    bench.set(
        "CDMA",
        D_DATAIN_FORMAT=1 | number << 8,
        D_LINE_STRIDE=64,
        D_ZERO_PADDING=1 | 1 << 8 | 1 << 16,
        D_ZERO_PADDING_VALUE=9,
        D_MEAN_FORMAT=1,
        D_MEAN_GLOBAL_0=words[0] | words[1] << 16,
        D_MEAN_GLOBAL_1=words[2] | words[3] << 16,
        D_CVT_CFG=1 | 2 << 4,
        D_CVT_SCALE=3,
    )
    bench.set(
        "CSC",
        D_DATAIN_FORMAT=1,
        D_WEIGHT_SIZE_EXT_1=(2 * 4 - 1) | 4 << 16,
        D_POST_Y_EXTENSION=extension,
        D_ZERO_PADDING_VALUE=9,
    )


@pytest.mark.parametrize(
    ("number", "order"),
    [(12, (0, 1, 2, 3)), (13, (2, 1, 0, 3)), (14, (1, 2, 3, 0)), (15, (3, 2, 1, 0))],
)
@pytest.mark.parametrize("extension", [0, 1, 2])
def test_pixels_become_channels_less_their_mean_scaled(
    number: int, order: tuple[int, ...], extension: int
) -> None:
    bench = Bench()
    generator = np.random.default_rng(number)
    pixels = generator.integers(0, 256, (7, 9, 4)).astype(np.uint8)
    kernels = generator.integers(-127, 128, (5, 3, 2, 4)).astype(np.int8)
    means = (3, -4, 50, 100)
    _program_image(bench, pixels, kernels, (number, extension), means)
    bench.set("CACC", D_CLIP_CFG=7)
    bench.program_sdp(size=(3, 5, 5), flying=True)
    assert bench.convolve()
    scaled = (pixels[..., list(order)].astype(np.int64) - np.array(means)) * 3
    cube = np.clip(np.sign(scaled) * ((np.abs(scaled) + 2) >> 2), -128, 127)
    sums = _convolve(cube, kernels, (2, 2), (1, 1), 9, (3, 5))
    assert np.array_equal(bench.unpack(TARGET, (3, 5, 5), np.int8), _shifted(sums, 7))


def test_a_batch_shares_its_kernels() -> None:
    bench = Bench()
    first, second, kernels = _random(7, Precision.INT8, (3, 3, 8), (3, 3, 8), (6, 1, 1, 8))
    bench.put(SOURCE, bench.pack(first))
    bench.put(SOURCE + 0x1000, bench.pack(second))
    bench.put(WEIGHTS, _store(kernels, 32, 64))
    bench.program_convolution(size=(3, 3, 8), kernels=6, kernel=(1, 1), output=(3, 3))
    bench.set("CDMA", D_BATCH_NUMBER=1, D_BATCH_STRIDE=0x1000)
    bench.set("CACC", D_CLIP_CFG=8)
    bench.program_sdp(size=(3, 3, 6), flying=True)
    bench.set("SDP", D_FEATURE_MODE_CFG=1 | 1 << 8, D_DST_BATCH_STRIDE=0x2000)
    bench.convolve()
    for index, cube in enumerate((first, second)):
        sums = _convolve(cube, kernels, (1, 1), (0, 0), 0, (3, 3))
        found = bench.unpack(TARGET + index * 0x2000, (3, 3, 6), np.int8)
        assert np.array_equal(found, _shifted(sums, 8))


@pytest.mark.parametrize("exact", [False, True])
def test_fp16_sums_are_within_the_hardware_s_own_error(exact: bool) -> None:
    bench = Bench(exact_fp16=exact)
    generator = np.random.default_rng(9)
    cube = generator.standard_normal((4, 4, 70)).astype(np.float16)
    kernels = generator.standard_normal((5, 2, 2, 70)).astype(np.float16)
    bench.put(SOURCE, bench.pack(cube))
    bench.put(WEIGHTS, _store(kernels, 16, 64))
    bench.program_convolution(
        size=(4, 4, 70), kernels=5, kernel=(2, 2), output=(3, 3), precision=Precision.FP16
    )
    bench.program_sdp(size=(3, 3, 5), precision=Precision.FP16, flying=True)
    bench.convolve()
    windows = np.lib.stride_tricks.sliding_window_view(cube.astype(np.float64), (2, 2), (0, 1))
    expected = np.einsum("yxcrs,krsc->yxk", windows, kernels.astype(np.float64))
    found = bench.unpack(TARGET, (3, 3, 5), np.float16).astype(np.float64)
    assert np.abs(found - expected).max() <= np.spacing(np.float16(np.abs(expected).max()))


def _convolve_halves(
    words: NDArray[np.uint16], kernels: NDArray[np.uint16], *, exact: bool, winograd: bool
) -> NDArray[np.generic]:
    """Convolve fp16 words of [8, 8, 32] with 5 kernels, on the fly through SDP."""
    bench = Bench(exact_fp16=exact)
    bench.put(SOURCE, bench.pack(words))
    bench.put(WEIGHTS, kernels)
    kernel, output = ((4, 4), (4, 4)) if winograd else ((2, 2), (7, 7))
    bench.program_convolution(
        size=(8, 8, 32),
        kernels=5,
        kernel=kernel,
        output=output,
        precision=Precision.FP16,
        winograd=winograd,
    )
    bench.program_sdp(size=(*output, 5), precision=Precision.FP16, flying=True)
    assert bench.convolve()
    return bench.unpack(TARGET, (*output, 5), np.float16)


@pytest.mark.parametrize("winograd", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_fp16_sums_are_nan_in_double_precision_where_the_hardware_s_are(
    seed: int, winograd: bool
) -> None:
    generator = np.random.default_rng(seed)
    data = generator.standard_normal((8, 8, 32)).astype(np.float16).view(np.uint16)
    count = 5 * 32 * (16 if winograd else 4)
    kernels = generator.standard_normal(count).astype(np.float16).view(np.uint16)
    quiet, signalling, negative, infinity = 0x7E00, 0x7D00, 0xFE01, 0xFC00
    for _ in range(seed % 3):
        data[tuple(generator.integers(0, data.shape))] = generator.choice([quiet, signalling])
        data[tuple(generator.integers(0, data.shape))] = infinity
    for _ in range(seed // 3):
        kernels[generator.integers(0, count)] = negative
        kernels[generator.integers(0, count)] = infinity
    fast, exact = (
        _convolve_halves(data, kernels, exact=exact, winograd=winograd) for exact in (False, True)
    )
    assert np.array_equal(np.isnan(fast), np.isnan(exact))
    if not winograd:  # whose last rows no tile reads
        assert np.isnan(exact).any() == (seed > 0)
    assert not np.isinf(fast).any()


@pytest.mark.parametrize("exact", [False, True])
def test_a_quiet_nan_passes_the_convolution_as_it_is(exact: bool) -> None:
    data = np.zeros((8, 8, 32), np.uint16)
    data[0, 0, 3] = 0x7E00
    found = _convolve_halves(data, np.zeros(5 * 32 * 4, np.uint16), exact=exact, winograd=False)
    words = np.ascontiguousarray(found).view(np.uint16)
    assert (words[0, 0] == 0x7E00).all()
    assert not words[1:].any()


def test_kernels_with_more_channels_than_the_input_are_refused() -> None:
    bench = Bench()
    bench.program_convolution(size=(3, 3, 8), kernels=6, kernel=(1, 1), output=(3, 3))
    bench.set("CSC", D_WEIGHT_SIZE_EXT_1=15 | 5 << 16)
    bench.program_sdp(size=(3, 3, 6), flying=True)
    with pytest.raises(NvdlaError, match="have 16 channels, but CDMA reads 8"):
        bench.convolve()


def test_an_absurd_number_of_products_is_refused() -> None:
    bench = Bench()
    bench.program_convolution(size=(3, 3, 8192), kernels=8192, kernel=(32, 32), output=(8, 8))
    bench.program_sdp(size=(8, 8, 8192), flying=True)
    with pytest.raises(NvdlaError, match="multiplications; the limit MAX_MACS is"):
        bench.convolve()


def test_an_output_larger_than_memory_is_refused_before_it_is_computed() -> None:
    bench = Bench()
    bench.program_convolution(size=(3, 3, 8), kernels=64, kernel=(1, 1), output=(8192, 8192))
    bench.program_sdp(size=(8192, 8192, 64), flying=True)
    with pytest.raises(NvdlaError, match="larger than the memory"):
        bench.convolve()


def test_pixels_and_winograd_exclude_each_other() -> None:
    bench = Bench()
    bench.program_convolution(
        size=(8, 8, 32), kernels=8, kernel=(4, 4), output=(4, 4), winograd=True
    )
    bench.set("CDMA", D_DATAIN_FORMAT=1)
    bench.program_sdp(size=(4, 4, 8), flying=True)
    with pytest.raises(NvdlaError, match="they must be equal"):
        bench.convolve()
    bench.machine.reset()
    bench.program_convolution(
        size=(8, 8, 32), kernels=8, kernel=(4, 4), output=(4, 4), winograd=True
    )
    bench.set("CDMA", D_DATAIN_FORMAT=1)
    bench.set("CSC", D_DATAIN_FORMAT=1)
    bench.program_sdp(size=(4, 4, 8), flying=True)
    with pytest.raises(NvdlaError, match="not pixels"):
        bench.convolve()
