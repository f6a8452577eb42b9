"""The scalar models of the computing engines on examples worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tests.nvdla.scalar.arithmetic import Converter, Cube, HalfCube, Precision
from tests.nvdla.scalar.cdp import (
    FloatNormalization,
    Normalization,
    normalize_halves,
    normalize_integers,
)
from tests.nvdla.scalar.convolution import (
    Convolution,
    Padding,
    convolve_batches,
    convolve_direct,
    convolve_direct_half,
    convolve_image,
    convolve_winograd,
    extend_winograd_data,
    round_accumulators,
    round_to_single,
)
from tests.nvdla.scalar.image import (
    PIXEL_FORMATS,
    ImageSurface,
    PixelConverter,
    convert_integer_pixels,
    convert_pixels_to_half,
    pad_image,
    read_image,
    write_image,
)
from tests.nvdla.scalar.lut import (
    CDP_WIDTHS,
    SDP_WIDTHS,
    FloatLut,
    FloatTable,
    Function,
    Lut,
    LutStatistics,
    Priorities,
    Slope,
    Table,
    TableSettings,
    look_up,
    look_up_float,
)
from tests.nvdla.scalar.pdp import (
    Method,
    Pooling,
    Split,
    pool_halves,
    pool_in_strips,
    pool_integers,
)
from tests.nvdla.scalar.sdp import (
    Adder,
    Algorithm,
    ElementStage,
    FloatAdder,
    FloatMultiplier,
    FloatPointProcessor,
    FloatStage,
    Multiplier,
    PointProcessor,
    PointStage,
    process_half_points,
    process_points,
)
from tests.nvdla.scalar.weights import extend_winograd_weights, transform_winograd_weights

FORMATS = {pixel_format.name: pixel_format for pixel_format in PIXEL_FORMATS}


def line_of(*values: int) -> Cube:
    return np.array(values, np.int64).reshape(1, 1, -1)


def channels_of(*values: int) -> Cube:
    return np.array(values, np.int64).reshape(-1, 1, 1)


def half_line(*values: float) -> HalfCube:
    return np.array(values, np.float16).reshape(1, 1, -1)


# ---- image


def test_formats_have_the_numbers_sizes_and_offsets_of_the_manual() -> None:
    assert (FORMATS["T_A8B8G8R8"].number, FORMATS["T_Y16___V16U16_N444"].number) == (12, 35)
    assert FORMATS["T_A2B10G10R10"].planes[0].pixel_bytes == 4
    assert [plane.pixel_bytes for plane in FORMATS["T_Y12___U12V12_N444"].planes] == [2, 4]
    assert FORMATS["T_Y8___U8V8_N444"].channel_count == 3
    offsets = [FORMATS[name].largest_x_offset for name in ("T_R8", "T_R10", "T_X16B16G16R16")]
    assert offsets == [31, 15, 3]
    assert FORMATS["T_R16_F"].input_precision is Precision.FP16
    assert FORMATS["T_A16Y16U16V16_F"].input_precision is Precision.FP16


@pytest.mark.parametrize(
    ("name", "pixel", "expected"),
    [
        ("T_A8B8G8R8", [1, 2, 3, 4], [1, 2, 3, 4]),
        ("T_A8R8G8B8", [1, 2, 3, 4], [3, 2, 1, 4]),
        ("T_R8G8B8X8", [1, 2, 3, 4], [4, 3, 2, 1]),
        ("T_V8U8Y8A8", [1, 2, 3, 4], [2, 3, 4, 1]),
        # 0x40100401 + ...: R = 1, G = 2, B = 3, A = 1
        (
            "T_A2B10G10R10",
            list((1 | 2 << 10 | 3 << 20 | 1 << 30).to_bytes(4, "little")),
            [1, 2, 3, 1],
        ),
        ("T_A16B16G16R16", [1, 0, 2, 0, 3, 0, 4, 1], [1, 2, 3, 260]),
        ("T_R12", [0x34, 0x02], [0x234]),
    ],
)
def test_components_come_in_the_order_red_green_blue_alpha(
    name: str, pixel: list[int], expected: list[int]
) -> None:
    memory = bytes(32) + bytes(pixel)
    surface = ImageSurface(FORMATS[name], (32,), (64,))
    assert read_image(memory, surface, 1, 1)[:, 0, 0].tolist() == expected


def test_semi_planar_images_have_their_colours_in_the_second_plane() -> None:
    memory = bytearray(256)
    surface = ImageSurface(FORMATS["T_Y8___U8V8_N444"], (0, 128), (32, 64), x_offset=1)
    pixels = np.arange(1, 13, dtype=np.int64).reshape(3, 2, 2)
    write_image(memory, surface, pixels)
    assert memory[1:3] == bytes([1, 2])
    assert memory[130:134] == bytes([9, 5, 10, 6])  # V below U
    assert (read_image(memory, surface, 2, 2) == pixels).all()


def test_the_sign_override_acts_through_the_converter_only() -> None:
    pixels = np.array([0x87], np.int64).reshape(1, 1, 1)
    red = FORMATS["T_R8"]
    for is_signed, expected in ((False, 0x87 - 127), (True, -121 - 7)):
        offset = 127 if not is_signed else 7
        converter = PixelConverter(is_enabled=True, is_signed=is_signed, offset=offset)
        answer = convert_integer_pixels(pixels, red, converter, Precision.INT8)
        assert answer.item() == expected
    disabled = PixelConverter(is_signed=False, offset=9)
    assert convert_integer_pixels(pixels, red, disabled, Precision.INT8).item() == -121


def test_means_stand_in_for_the_offset() -> None:
    pixels = channels_of(10, 20, 30, 40)
    converter = PixelConverter(is_enabled=True, means=(1, 2, 3, 4), offset=99, scale=3, truncate=1)
    answer = convert_integer_pixels(pixels, FORMATS["T_A8B8G8R8"], converter, Precision.INT8)
    assert answer[:, 0, 0].tolist() == [14, 27, 41, 54]  # 13.5, 27, 40.5 and 54


def test_pixels_become_halves() -> None:
    pixels = channels_of(0, 255, 0, 0)
    converter = PixelConverter(is_enabled=True, offset=128, scale=2)
    answer = convert_pixels_to_half(pixels, FORMATS["T_A8B8G8R8"], converter)
    assert answer[:, 0, 0].tolist() == [-256, 254, -256, -256]
    floating = channels_of(0x3E00)  # 1.5
    subtract = PixelConverter(is_enabled=True, means=(0x3C00, 0, 0, 0))
    assert convert_pixels_to_half(floating, FORMATS["T_R16_F"], subtract).item() == 1.5


def test_sides_and_edges_are_padded_with_values_of_their_own() -> None:
    padded = pad_image(line_of(7, 8), (1, 0, 1, 0), side_value=5, edge_value=9)
    assert padded[0].tolist() == [[9, 9, 9], [5, 7, 8]]


def test_an_image_convolves_like_a_feature() -> None:
    padded = np.arange(12, dtype=np.int64).reshape(2, 2, 3)
    weights = np.ones((1, 2, 2, 2), np.int64)
    sums = convolve_image(Convolution(), padded, weights).sums
    assert sums.tolist() == [[[(0 + 1 + 3 + 4) * 2 + 24, (1 + 2 + 4 + 5) * 2 + 24]]]


# ---- convolution


def test_a_direct_convolution_strides_dilates_and_pads() -> None:
    data = line_of(1, 2, 3, 4, 5)
    weights = np.array([1, 10], np.int64).reshape(1, 1, 1, 2)
    settings = Convolution(stride_x=2, dilation_x=3, padding=Padding(left=2, right=1, value=0xFFFE))
    # Padded: -2 -2 1 2 3 4 5 -2; windows (0, 3), (2, 5), (4, 7).
    assert convolve_direct(settings, data, weights).sums.tolist() == [[[18, 41, -17]]]


def test_int8_padding_is_the_low_byte_and_int16_padding_is_both() -> None:
    weights = np.ones((1, 1, 1, 1), np.int64)
    pad = Padding(left=1, value=0x01FF)
    for precision, expected in ((Precision.INT8, -1), (Precision.INT16, 511)):
        settings = Convolution(precision=precision, padding=pad)
        assert convolve_direct(settings, line_of(0), weights).sums[0, 0, 0] == expected


def test_every_batch_meets_the_same_kernels() -> None:
    weights = np.full((1, 1, 1, 1), 3, np.int64)
    one, other = convolve_batches(Convolution(), [line_of(1), line_of(-2)], weights)
    assert (one.sums.item(), other.sums.item()) == (3, -6)


def test_the_accumulator_saturates_on_its_way() -> None:
    data = channels_of(100, 100, -100)
    weights = np.full((1, 3, 1, 1), 1, np.int64)
    settings = Convolution(channels_per_block=1, accumulator_bits=8)
    assert convolve_direct(settings, data, weights).sums.item() == 27  # 100, 127, 27


def test_the_accumulator_rounds_saturates_and_counts() -> None:
    rounded = round_accumulators(line_of(6, -6, 1 << 40), clip_truncate=2)
    assert rounded.sums.tolist() == [[[2, -2, 2**31 - 1]]]
    assert rounded.saturation_count == 1


def test_winograd_equals_direct_convolution_where_nothing_is_rounded() -> None:
    generator = np.random.default_rng(3)
    data = generator.integers(-8, 8, (4, 10, 10))
    weights = 4 * generator.integers(-2, 3, (2, 4, 3, 3))
    exact = np.array(transform_winograd_weights(weights)).astype(np.int64)
    settings = Convolution(precision=Precision.INT16)
    winograd = convolve_winograd(settings, data, exact)
    assert (winograd.sums == convolve_direct(settings, data, weights).sums).all()


def test_winograd_folds_strides_into_channels() -> None:
    generator = np.random.default_rng(4)
    data = generator.integers(-8, 8, (4, 19, 19))
    weights = 4 * generator.integers(-2, 3, (1, 4, 5, 5))
    extended = extend_winograd_weights(weights, 2, 2, channels_per_atom=4)
    exact = np.array(transform_winograd_weights(extended)).astype(np.int64)
    pad = Padding(left=1, right=0, top=1, bottom=0, value=3)
    settings = Convolution(precision=Precision.INT16, stride_x=2, stride_y=2, padding=pad)
    assert extend_winograd_data(settings, data).shape == (16, 10, 10)
    direct = convolve_direct(settings, data, weights)
    assert (convolve_winograd(settings, data, exact).sums == direct.sums).all()


def test_the_transformed_data_are_truncated_and_saturated() -> None:
    data = np.zeros((4, 10, 10), np.int64)
    data[0, 1, 1] = data[0, 1, 2] = data[0, 2, 1] = data[0, 2, 2] = 100
    weights = np.zeros((1, 4, 4, 4), np.int64)
    weights[0, 0, 1, 1] = 1  # picks (C^T d C) at (1, 1): the sum of the four, 400
    for truncate, expected in ((0, 127), (2, 100)):
        settings = Convolution(pra_truncate=truncate)
        assert convolve_winograd(settings, data, weights).sums[0, 0, 0] == expected


def test_half_convolutions_are_exact_sums_with_a_bound() -> None:
    data = np.array([1.0, 2.0, np.inf], np.float16).reshape(3, 1, 1)
    weights = np.array([0.5, -3.0, 1.0], np.float16).reshape(1, 3, 1, 1)
    result = convolve_direct_half(Convolution(), data, weights)[0, 0, 0]
    assert result.value == Fraction(1, 2) - 6 + 65536
    assert result.tolerance == Fraction(2) ** (16 - 20) * 3 * 2
    assert round_to_single(result.value) == Fraction(65530.5)
    nan = np.full((1, 1, 1), np.nan, np.float16)
    one = np.ones((1, 1, 1, 1), np.float16)
    assert convolve_direct_half(Convolution(), nan, one)[0, 0, 0].value is None
    assert convolve_direct_half(Convolution(), nan, one, nan_is_zero=True)[0, 0, 0].value == 0


# ---- tables

LINEAR = TableSettings(
    entries=tuple(10 * i for i in range(65)),
    start=0,
    end=256,
    select=2,
    underflow=Slope(scale=3, shift=1),
    overflow=Slope(scale=-1, shift=-2),
)
EXPONENT = TableSettings(
    entries=tuple(range(0, 650, 10)),
    start=100,
    end=2**31 - 1,
    function=Function.EXPONENT,
    index_offset=3,
    underflow=Slope(scale=1, shift=0),
)
WIDE = TableSettings(entries=tuple(range(257)), start=-512, end=512, select=2)


def answer_of(lut: Lut, value: int) -> int:
    return look_up(lut, value, SDP_WIDTHS, LutStatistics())


def test_a_linear_table_interpolates_and_goes_on_by_its_slopes() -> None:
    lut = Lut(LINEAR, replace(WIDE, start=10**6, end=10**6 + 1024))
    # 6 is halfway between entries 1 and 2; 7 is 3/4: 17.5 rounds away to 18.
    assert [answer_of(lut, v) for v in (4, 6, 7)] == [10, 15, 18]
    assert answer_of(lut, -3) == -5  # both below: 0 + -9 / 2 = -4.5 -> -5
    below = replace(WIDE, start=-2000, end=-2000 + 1024)
    high = Lut(LINEAR, below)
    assert answer_of(high, 258) == 640 + 2 * -1 * 4  # both above, LE first


def test_an_exponential_table_steps_by_powers_of_two() -> None:
    lut = Lut(EXPONENT, replace(WIDE, start=10**6, end=10**6 + 1024))
    assert answer_of(lut, 108) == 0  # 100 + 2 ** 3 is entry 0
    assert answer_of(lut, 112) == 5  # halfway to 116
    assert answer_of(lut, 116) == 10
    assert answer_of(lut, 104) == -4  # below the first entry, which belongs to 108


@pytest.mark.parametrize(
    ("value", "priorities", "expected", "counter"),
    [
        (8, Priorities(hybrid=Table.LE), 20, "hybrids"),
        (8, Priorities(hybrid=Table.LO), 130, "hybrids"),
        (-8, Priorities(), 126, "lo_hits"),
        (-600, Priorities(underflow=Table.LE), -900, "underflows"),
        (-600, Priorities(underflow=Table.LO), 0, "underflows"),
        (600, Priorities(overflow=Table.LE), 640 - 344 * 4, "overflows"),
        (600, Priorities(overflow=Table.LO), 256, "overflows"),
    ],
)
def test_priorities_choose_a_table(
    value: int, priorities: Priorities, expected: int, counter: str
) -> None:
    counts = LutStatistics()
    lut = Lut(LINEAR, WIDE, priorities)
    assert look_up(lut, value, SDP_WIDTHS, counts) == expected
    assert getattr(counts, counter) == 1


def test_the_cross_channel_table_saturates_to_sixteen_bits() -> None:
    table = replace(LINEAR, underflow=Slope(scale=32767))
    lut = Lut(table, replace(WIDE, start=10**6, end=10**6 + 1024))
    assert look_up(lut, -100, CDP_WIDTHS, LutStatistics()) == -32768
    assert look_up(lut, -100, SDP_WIDTHS, LutStatistics()) == -3276700


def test_float_tables_interpolate_exactly() -> None:
    le = FloatTable(
        entries=tuple(Fraction(i) for i in range(65)),
        start=Fraction(0),
        end=Fraction(0),
        function=Function.EXPONENT,
        index_offset=-2,
        underflow_slope=Fraction(2),
    )
    lo = FloatTable(tuple(map(Fraction, range(257))), Fraction(1000), Fraction(1256))
    lut = FloatLut(le, lo)
    assert look_up_float(lut, Fraction(3)) == Fraction(7, 2)  # 2 ** 1 is entry 3, halfway to 4
    assert look_up_float(lut, Fraction(1, 8)) == Fraction(-1, 4)
    assert look_up_float(lut, None) is None


# ---- single points


def test_a_point_stage_adds_multiplies_truncates_and_rectifies() -> None:
    stage = PointStage(
        adder=Adder(Algorithm.SUM, line_of(1, -9, 1), shift=2),
        multiplier=Multiplier(line_of(3, 3, 3)),
        truncate=1,
        has_relu=True,
    )
    result = process_points(PointProcessor(x1=stage), line_of(3, 10, 80))
    # (3 + 4) * 3 / 2 = 10.5 -> 11; (10 - 36) * 3 < 0 -> 0; 84 * 3 / 2 = 126
    assert result.integers.tolist() == [[[11, 0, 126]]]


def test_the_truncation_acts_without_a_multiplier() -> None:
    stage = PointStage(truncate=2)
    assert process_points(PointProcessor(x2=stage), line_of(6)).integers.item() == 2


def test_prelu_scales_negative_numbers_only() -> None:
    stage = PointStage(multiplier=Multiplier(line_of(3, 3), is_prelu=True), truncate=2)
    assert process_points(PointProcessor(x1=stage), line_of(9, -9)).integers.tolist() == [[[9, -7]]]


def test_the_element_stage_multiplies_first_and_converts_operands() -> None:
    stage = ElementStage(
        adder=Adder(Algorithm.MAX, line_of(4, 50)),
        adder_converter=Converter(offset=2, scale=10),
        multiplier=Multiplier(line_of(2, -2)),
        truncate=1,
    )
    # 10 * 2 / 2 = 10 against (4 - 2) * 10 = 20; 10 * -2 / 2 = -10 against 480 -> int8 127
    result = process_points(PointProcessor(y=stage), line_of(10, 10))
    assert result.integers.tolist() == [[[20, 127]]]
    assert result.saturation_count == 1


def test_a_comparison_gives_zero_where_equal_and_skips_the_converter() -> None:
    stage = ElementStage(adder=Adder(Algorithm.EQUAL, line_of(5, 6)))
    settings = PointProcessor(y=stage, output_converter=Converter(offset=9, scale=7))
    result = process_points(settings, line_of(5, 5))
    assert result.integers.tolist() == [[[0, 1]]]
    assert result.unequal


def test_the_output_converter_serves_every_precision() -> None:
    converter = Converter(offset=1, scale=3, shift=1)
    for precision, expected in ((Precision.INT8, 127), (Precision.INT16, 1499)):
        settings = PointProcessor(output_precision=precision, output_converter=converter)
        assert process_points(settings, line_of(1000)).integers.item() == expected  # 1498.5
    settings = PointProcessor(output_precision=Precision.FP16, output_converter=converter)
    assert process_points(settings, line_of(2001)).halves.item() == 3000.0


def test_half_points_use_singles_inside_and_round_once() -> None:
    stage = FloatStage(
        adder=FloatAdder(Algorithm.SUM, half_line(1.0, -3.0, 2.0**-11)),
        multiplier=FloatMultiplier(half_line(0.5, 2.0, 1.0)),
        has_relu=True,
    )
    settings = FloatPointProcessor(x1=stage)
    assert process_half_points(settings, half_line(2.0, 1.0, 1.0)).tolist() == [[[1.5, 0.0, 1.0]]]


def test_half_points_prelu_saturate_and_pass_nan() -> None:
    stage = FloatStage(multiplier=FloatMultiplier(half_line(0.25, 0.25, 0.25, 9.0), is_prelu=True))
    data = half_line(4.0, -4.0, float("nan"), -60000.0)
    answer = process_half_points(FloatPointProcessor(y=stage), data)[0, 0]
    assert answer[:2].tolist() == [4.0, -1.0]
    assert np.isnan(answer[2])
    assert answer[3] == -65504
    flushed = process_half_points(FloatPointProcessor(y=stage, nan_is_zero=True), data)
    assert flushed[0, 0, 2] == 0


# ---- pooling


def pooling(method: Method, precision: Precision = Precision.INT8) -> Pooling:
    return Pooling(method, precision, 3, 2, 2, 1, reciprocals=(0x5555, 0x8000))


def test_maximum_and_minimum_ignore_padding() -> None:
    data = np.array([[[-5, -6, -7], [-8, -9, -4]]], np.int64)
    settings = replace(pooling(Method.MAX), pad_left=1, pad_right=1, padding_values=(99,) * 7)
    assert pool_integers(settings, data).tolist() == [[[-5, -4]]]
    assert pool_integers(replace(settings, method=Method.MIN), data).tolist() == [[[-9, -9]]]


def test_averages_count_padding_and_round_twice() -> None:
    data = np.array([[[10, 20, 30], [40, 50, 60]]], np.int64)
    values = tuple(7 * n for n in range(1, 8))
    settings = replace(pooling(Method.AVERAGE), pad_left=1, pad_top=1, padding_values=values)
    # Above: 3 * 7 + (7 + 10 + 20) = 58, a third 19.33 -> 19, a half 9.5 -> 10.
    # Inside: 7 + 30 + 7 + 90 = 134, a third 44.67 -> 45, a half 22.5 -> 23.
    assert pool_integers(settings, data)[0, :, 0].tolist() == [10, 23]


def test_strips_equal_the_whole() -> None:
    generator = np.random.default_rng(5)
    data = generator.integers(-99, 99, (2, 4, 12))
    settings = replace(pooling(Method.AVERAGE), pad_left=1, padding_values=(1, 2, 3, 4, 5, 6, 7))
    # 6 windows: two of 1..4 (first 4 columns and a padding one), two more, the last two.
    split = Split(4, 2, 4, 2, 4, 2, 3)
    whole = pool_integers(settings, data)
    assert (pool_in_strips(settings, split, data) == whole).all()


def test_half_pooling_takes_extremes_and_averages() -> None:
    data = np.array([[[1.0, 2.5, -4.0], [0.5, 8.0, 1.0]]], np.float16)
    settings = pooling(Method.MAX, Precision.FP16)
    assert pool_halves(settings, data).item() == 8.0
    average = pool_halves(replace(settings, method=Method.AVERAGE), data).item()
    assert average == float(np.float16(9.0 * float(np.float16(1 / 3)) / 2))
    data[0, 0, 0] = np.nan
    assert np.isnan(pool_halves(settings, data).item())


# ---- normalisation


def test_normalisation_multiplies_by_the_table_at_the_sum_of_squares() -> None:
    far = replace(WIDE, start=10**6, end=10**6 + 1024)
    settings = Normalization(Precision.INT8, Lut(LINEAR, far), local_size=3)
    # Squares 1, 4, 9: windows 5, 14, 13; the table is 2.5 x, rounded: 13, 35, 33.
    result = normalize_integers(settings, channels_of(1, 2, 3))
    assert result.cube[:, 0, 0].tolist() == [13, 70, 99]
    assert result.lut.le_hits == 3


def test_normalisation_converts_skips_and_saturates() -> None:
    far = replace(WIDE, start=10**6, end=10**6 + 1024)
    settings = Normalization(
        Precision.INT8,
        Lut(LINEAR, far),
        input_converter=Converter(offset=-2, scale=4),
        output_converter=Converter(offset=30, scale=2, shift=2),
        skips_square_sum=True,
        skips_multiplier=True,
    )
    # 2 -> 16 -> 40 -> (40 - 30) / 2 = 5; 100 -> 408 -> 255, nine bits -> 637.5 -> 638 -> 304 -> 127
    result = normalize_integers(settings, channels_of(2, 100))
    assert result.cube[:, 0, 0].tolist() == [5, 127]
    assert result.saturation_count == 1


def test_half_normalisation_is_exact_until_the_end() -> None:
    le = FloatTable(tuple(Fraction(i, 64) for i in range(65)), Fraction(0), Fraction(64))
    lo = FloatTable((Fraction(0),) * 257, Fraction(10**6), Fraction(10**6 + 256))
    settings = FloatNormalization(FloatLut(le, lo), local_size=3)
    data = np.array([1.0, 2.0, 0.5], np.float16).reshape(3, 1, 1)
    answer = normalize_halves(settings, data)[:, 0, 0]
    expected = [5 / 64, 2 * 5.25 / 64, 0.5 * 4.25 / 64]
    assert answer.tolist() == [float(np.float16(value)) for value in expected]
