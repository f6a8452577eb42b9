"""The machine's convolutions against scalar models written from the documentation alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.nvdla.hardware import (
    NV_FULL,
    NV_MEDIUM_512,
    NV_SMALL,
    NV_SMALL_256,
    Configuration,
    Machine,
)
from tests.nvdla.scalar.arithmetic import Converter, Cube, HalfCube, Precision, sign_extend
from tests.nvdla.scalar.configurations import (
    ONLY_INT8,
    DirectCase,
    HalfDirectCase,
    HalfImageCase,
    ImageCase,
    WinogradCase,
    direct_cases,
    half_direct_cases,
    half_image_cases,
    image_cases,
    winograd_cases,
)
from tests.nvdla.scalar.convolution import (
    Convolution,
    FloatSum,
    Padding,
    convolve_batches,
    convolve_direct_half,
    convolve_image,
    convolve_winograd,
    extend_winograd_data,
)
from tests.nvdla.scalar.convolution_programs import (
    ENABLE_ORDER,
    Sizes,
    program_feature_input,
    program_image_entries,
    program_image_input,
    program_plain_output,
    program_sizes,
    program_weights,
)
from tests.nvdla.scalar.image import (
    PIXEL_FORMATS,
    ImageSurface,
    PixelConverter,
    convert_integer_pixels,
    convert_pixels_to_half,
    pad_image,
    write_image,
)
from tests.nvdla.scalar.programs import MEMORY_BYTES, SOURCE, TARGET, Bench
from tests.nvdla.scalar.surfaces import FeatureSurface, bits_from_halves, halves_from_bits
from tests.nvdla.scalar.weights import WeightLayout, order_direct, order_image, order_winograd

SMALL: Final = st.sampled_from((NV_SMALL, NV_SMALL_256, NV_MEDIUM_512))


def bench_of(
    configuration: Configuration = NV_FULL, *, exact_fp16: bool = False
) -> tuple[Machine, Bench]:
    machine = Machine(configuration, MEMORY_BYTES, MEMORY_BYTES, exact_fp16=exact_fp16)
    return machine, Bench(machine, configuration.atom_bytes, configuration.buffer_width_bytes)


def layout_of(precision: Precision, configuration: Configuration = NV_FULL) -> WeightLayout:
    """Return how weights are grouped: a 16-bit multiplier makes two of 8 bits."""
    kernels = configuration.atomic_k if precision is Precision.INT8 else configuration.atomic_k // 2
    return WeightLayout(precision, kernels, configuration.atomic_c)


def stored_sums(sums: Cube, case_shift: int, precision: Precision) -> Cube:
    convert = Converter(0, 1, case_shift)
    stored = np.zeros_like(sums)
    for index in np.ndindex(sums.shape):
        stored[index] = convert.apply(int(sums[index]), precision.width_bits)
    return stored


def compare(machine: Machine, actual: Cube, expected: Cube) -> None:
    assert not machine.faults, machine.faults
    np.testing.assert_array_equal(actual, expected)


@settings(max_examples=15)
@given(direct_cases())
def test_direct_convolutions(case: DirectCase) -> None:
    check_direct(case, NV_FULL)


@settings(max_examples=15)
@given(direct_cases(ONLY_INT8, is_plain=True), SMALL)
def test_direct_convolutions_in_smaller_atoms(
    case: DirectCase, configuration: Configuration
) -> None:
    check_direct(case, configuration)


def check_direct(case: DirectCase, configuration: Configuration) -> None:
    machine, bench = bench_of(configuration)
    run = case.settings
    results = convolve_batches(run, case.batches, case.weights)
    shape = case.batches[0].shape
    kernels, channels, lines, columns = case.weights.shape
    sizes = Sizes(shape, shape, (channels, lines, columns), results[0].sums.shape)
    source = bench.surface(SOURCE, shape, run.precision)
    target = bench.surface(TARGET, sizes.output, run.precision, slack_atoms=2)
    count = len(case.batches)
    if count > 1:
        target = align_strides(target, sizes.output)
    strides = [
        -(-end.surface_stride * -(-size[0] // end.channels_per_atom) // 64) * 64
        for end, size in ((source, shape), (target, sizes.output))
    ]
    for number, data in enumerate(case.batches):
        bench.store_cube(replace(source, address=SOURCE + number * strides[0]), data)
    program_sizes(bench, run, sizes)
    groups = order_direct(case.weights, layout_of(run.precision, configuration))
    program_weights(bench, sizes, groups, run.precision, compressed=case.is_compressed)
    program_feature_input(bench, source, count, strides[0])
    program_plain_output(
        bench, run, sizes, target, case.output_shift, batch_count=count, batch_stride=strides[1]
    )
    bench.run(*ENABLE_ORDER)
    saturated = bench.registers.read_field("CACC.D_OUT_SATURATION", "SAT_COUNT")
    for number, result in enumerate(results):
        place = replace(target, address=TARGET + number * strides[1])
        expected = stored_sums(result.sums, case.output_shift, run.precision)
        compare(machine, bench.load_cube(place, expected.shape), expected)
    assert saturated == sum(result.saturation_count for result in results)
    assert kernels == sizes.output[0]


def align_strides(target: FeatureSurface, shape: tuple[int, int, int]) -> FeatureSurface:
    """Let strides be whole units of 64 bytes, which NVIDIA's model needs for several batches."""
    line_stride = -(-target.line_stride // 64) * 64
    return replace(target, line_stride=line_stride, surface_stride=shape[1] * line_stride + 64)


@settings(max_examples=25)
@given(image_cases())
def test_image_convolutions(case: ImageCase) -> None:
    actual = run_image(case)
    expected, other = (expect_image(case, is_high=is_high) for is_high in (False, True))
    if case.pixel_format.component_bits(0) in {10, 12} and (actual == other).all():
        expected = other  # at which end of 16 bits these stand is written nowhere
    np.testing.assert_array_equal(actual, expected)


def test_padding_at_the_sides_is_the_value_of_the_dma_unconverted() -> None:
    """A known difference from the programming guide, which converts it: see ``pad_image``."""
    case = ImageCase(
        settings=Convolution(padding=Padding(left=1, value=3)),
        pixel_format=PIXEL_FORMATS[0],
        converter=PixelConverter(is_enabled=True, offset=1, scale=5),
        x_offset=0,
        pixels=np.full((1, 1, 2), 2, np.int64),
        weights=np.ones((1, 1, 1, 2), np.int64),
        line_count=1,
        edge_value=7,
        output_shift=0,
    )
    assert run_image(case).tolist() == [[[3 + (2 - 1) * 5, 5 + 5]]]


@settings(max_examples=20)
@given(half_image_cases())
def test_image_convolutions_in_halves(case: HalfImageCase) -> None:
    bits = ImageCase(
        settings=case.settings,
        pixel_format=case.pixel_format,
        converter=case.converter,
        x_offset=0,
        pixels=case.pixels,
        weights=bits_from_halves(case.weights),
        line_count=1,
        edge_value=0,
        output_shift=0,
    )
    converted = convert_pixels_to_half(case.pixels, case.pixel_format, case.converter)
    sums = convolve_direct_half(case.settings, converted, case.weights)
    assert_close(halves_from_bits(run_image(bits)), sums)


def test_halves_keep_their_mean() -> None:
    """A known difference from one line of the documentation: see ``convert_pixels_to_half``."""
    case = ImageCase(
        settings=Convolution(precision=Precision.FP16),
        pixel_format=PIXEL_FORMATS[5],
        converter=PixelConverter(is_enabled=True, means=(0x3C00, 0, 0, 0)),
        x_offset=0,
        pixels=np.full((1, 1, 1), 0x4400, np.int64),
        weights=np.full((1, 1, 1, 1), 0x3C00, np.int64),
        line_count=1,
        edge_value=0,
        output_shift=0,
    )
    assert halves_from_bits(run_image(case)).item() == 4.0


def run_image(case: ImageCase) -> Cube:
    machine, bench = bench_of()
    run = case.settings
    shape, kernel = case.pixels.shape, case.weights.shape
    output = (kernel[0], *run.output_shape(shape, kernel))
    sizes = Sizes(shape, shape, (shape[0] * kernel[3], kernel[2], 1), output)
    surface = image_surface(case)
    memory = bytearray(0x8000)
    write_image(memory, surface, case.pixels)
    bench.store(SOURCE, bytes(memory))
    program_sizes(bench, run, sizes)
    groups = order_image(case.weights, layout_of(run.precision), case.line_count)
    program_weights(bench, sizes, groups, run.precision, compressed=False)
    values = (run.padding.value, case.edge_value)
    program_image_entries(bench, sizes, run)
    program_image_input(bench, surface, case.converter, run, values, case.line_count)
    target = bench.surface(TARGET, output, run.precision)
    program_plain_output(bench, run, sizes, target, case.output_shift)
    bench.run(*ENABLE_ORDER)
    assert not machine.faults, machine.faults
    return bench.load_cube(target, output)


def expect_image(case: ImageCase, *, is_high: bool) -> Cube:
    run, pad = case.settings, case.settings.padding
    converted = convert_integer_pixels(
        case.pixels, case.pixel_format, case.converter, run.precision, is_high=is_high
    )
    sides = sign_extend(pad.value, run.precision.width_bits)
    edge = sign_extend(case.edge_value, run.precision.width_bits)
    padded = pad_image(converted, (pad.left, pad.right, pad.top, pad.bottom), sides, edge)
    sums = convolve_image(run, padded, case.weights).sums
    return stored_sums(sums, case.output_shift, run.precision)


def image_surface(case: ImageCase) -> ImageSurface:
    """Lay out the planes, each line on a multiple of 32 bytes."""
    width = case.pixels.shape[2] + case.x_offset
    strides = tuple(
        -(-width * plane.pixel_bytes // 32) * 32 + 32 for plane in case.pixel_format.planes
    )
    addresses = (SOURCE, SOURCE + 0x4000)[: len(strides)]
    return ImageSurface(case.pixel_format, addresses, strides, case.x_offset)


@settings(max_examples=8)
@given(winograd_cases())
def test_winograd_convolutions(case: WinogradCase) -> None:
    machine, bench = bench_of()
    run = case.settings
    extended = extend_winograd_data(run, case.data).shape
    sums = convolve_winograd(run, case.data, case.weights).sums
    sums = sums[:, : extended[1] - 4, : extended[2] - 4]
    expected = stored_sums(sums, case.output_shift, run.precision)
    sizes = Sizes(case.data.shape, extended, (extended[0], 4, 4), expected.shape)
    source = bench.surface(SOURCE, case.data.shape, run.precision)
    bench.store_cube(source, case.data)
    program_sizes(bench, run, sizes, is_winograd=True)
    groups = order_winograd(case.weights, layout_of(run.precision))
    program_weights(bench, sizes, groups, run.precision, compressed=case.is_compressed)
    program_feature_input(bench, source)
    target = bench.surface(TARGET, expected.shape, run.precision)
    program_plain_output(bench, run, sizes, target, case.output_shift, is_winograd=True)
    bench.run(*ENABLE_ORDER)
    compare(machine, bench.load_cube(target, expected.shape), expected)


@settings(max_examples=15)
@given(half_direct_cases(), st.booleans())
def test_direct_convolutions_of_halves(case: HalfDirectCase, exact: bool) -> None:
    machine, bench = bench_of(exact_fp16=exact)
    run = case.settings
    sums = convolve_direct_half(run, case.data, case.weights)
    lines, columns = run.output_shape(case.data.shape, case.weights.shape)
    kernels, channels, r, s = case.weights.shape
    shape = case.data.shape
    sizes = Sizes(shape, shape, (channels, r, s), (kernels, lines, columns))
    source = bench.surface(SOURCE, shape, Precision.FP16)
    bench.store_halves(source, case.data)
    program_sizes(bench, run, sizes)
    bits = bits_from_halves(case.weights)
    groups = order_direct(bits, layout_of(Precision.FP16))
    program_weights(bench, sizes, groups, Precision.FP16, compressed=False)
    program_feature_input(bench, source)
    target = bench.surface(TARGET, sizes.output, Precision.FP16)
    program_plain_output(bench, run, sizes, target, 0)
    bench.run(*ENABLE_ORDER)
    actual = halves_from_bits(bench.load_cube(target, sizes.output))
    assert not machine.faults, machine.faults
    assert_close(actual, sums)


def assert_close(actual: HalfCube, sums: dict[tuple[int, int, int], FloatSum]) -> None:
    for index, expected in sums.items():
        value = float(actual[index])
        if expected.value is None:
            assert np.isnan(value), index
            continue
        rounding = 2.0 ** (np.floor(np.log2(max(abs(value), 2.0**-14))) - 10)
        limited = max(-65504.0, min(65504.0, float(expected.value)))
        assert abs(value - limited) <= float(expected.tolerance) + rounding, index
