"""The machine, through its registers, against scalar models written from documentation alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from smelt.nvdla.hardware import NV_FULL, NV_MEDIUM_512, NV_SMALL, NV_SMALL_256, Machine
from tests.nvdla.scalar import bdma
from tests.nvdla.scalar.arithmetic import UNCHANGED, Converter, Cube, HalfCube, Precision
from tests.nvdla.scalar.cdp import find_levels, normalize_halves, normalize_integers
from tests.nvdla.scalar.configurations import (
    ONLY_INT8,
    ContractionCase,
    FloatNormalizationCase,
    HalfPoolingCase,
    NormalizationCase,
    PlaneCase,
    PoolingCase,
    TransferCase,
    contraction_cases,
    float_normalization_cases,
    half_pooling_cases,
    normalization_cases,
    plane_cases,
    pooling_cases,
    transfer_cases,
)
from tests.nvdla.scalar.floats import halves_are_close
from tests.nvdla.scalar.lut import Function, Lut, Priorities, Slope, TableSettings
from tests.nvdla.scalar.pdp import Method, find_peaks, pool_halves, pool_integers
from tests.nvdla.scalar.point_programs import program_half_point_case, program_point_case
from tests.nvdla.scalar.points import (
    HalfPointCase,
    OperandPlan,
    PointCase,
    half_point_cases,
    half_table_cases,
    point_cases,
)
from tests.nvdla.scalar.programs import (
    MEMORY_BYTES,
    SOURCE,
    TARGET,
    Bench,
    program_float_lut,
    program_lut,
    program_normalization,
    program_normalization_mode,
    program_pooling,
    program_reshape,
    program_transfer,
)
from tests.nvdla.scalar.rubik import Contraction, contract
from tests.nvdla.scalar.sdp import (
    Algorithm,
    ElementStage,
    FloatPointProcessor,
    FloatStage,
    PointProcessor,
    process_half_points,
    process_points,
)
from tests.nvdla.scalar.surfaces import (
    FeatureSurface,
    PlanarSurface,
    halves_from_bits,
    read_feature,
    write_feature,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware import Configuration


SMALL: Final = st.sampled_from((NV_SMALL, NV_SMALL_256, NV_MEDIUM_512))


def bench_of(configuration: Configuration = NV_FULL) -> tuple[Machine, Bench]:
    machine = Machine(configuration, MEMORY_BYTES, MEMORY_BYTES)
    return machine, Bench(machine, configuration.atom_bytes)


def assert_equal(machine: Machine, actual: Cube, expected: Cube) -> None:
    assert not machine.faults, machine.faults
    np.testing.assert_array_equal(actual, expected)


@given(pooling_cases())
def test_pooling_of_whole_numbers(case: PoolingCase) -> None:
    check_pooling(case, NV_FULL)


@given(pooling_cases(ONLY_INT8), SMALL)
def test_pooling_in_smaller_atoms(case: PoolingCase, configuration: Configuration) -> None:
    check_pooling(replace(case, source_space=1, target_space=1), configuration)


def check_pooling(case: PoolingCase, configuration: Configuration) -> None:
    machine, bench = bench_of(configuration)
    expected = pool_integers(case.settings, case.data)
    source = bench.surface(SOURCE, case.data.shape, case.settings.precision)
    target = bench.surface(TARGET, expected.shape, case.settings.precision, slack_atoms=2)
    bench.store_cube(source, case.data, case.source_space)
    spaces = (case.source_space, case.target_space)
    program_pooling(bench, case.settings, case.data.shape, case.split, (source, target), spaces)
    bench.run("PDP", "PDP_RDMA")
    assert_equal(machine, bench.load_cube(target, expected.shape, case.target_space), expected)


@given(half_pooling_cases())
def test_pooling_of_halves(case: HalfPoolingCase) -> None:
    machine, bench = bench_of()
    expected = pool_halves(case.settings, case.data)
    source = bench.surface(SOURCE, case.data.shape, Precision.FP16)
    target = bench.surface(TARGET, expected.shape, Precision.FP16)
    bench.store_halves(source, case.data)
    program_pooling(bench, case.settings, case.data.shape, None, (source, target))
    bench.run("PDP", "PDP_RDMA")
    actual = bench.load_halves(target, expected.shape)
    assert not machine.faults, machine.faults
    if case.settings.method is Method.AVERAGE:
        bounds = np.maximum(1e-4, 1e-3 * find_peaks(case.settings, case.data))
        assert (abs(actual - expected.astype(np.float64)) <= bounds).all(), (actual, expected)
    else:
        assert halves_are_close(actual, expected), (actual, expected)


@given(normalization_cases())
def test_normalisation_of_whole_numbers(case: NormalizationCase) -> None:
    check_normalization(case, NV_FULL)


@given(normalization_cases(ONLY_INT8), SMALL)
def test_normalisation_in_smaller_atoms(
    case: NormalizationCase, configuration: Configuration
) -> None:
    check_normalization(replace(case, source_space=1, target_space=1), configuration)


def check_normalization(case: NormalizationCase, configuration: Configuration) -> None:
    machine, bench = bench_of(configuration)
    run = case.settings
    expected = normalize_integers(run, case.data).cube
    source = bench.surface(SOURCE, case.data.shape, run.precision)
    target = bench.surface(TARGET, case.data.shape, run.precision, slack_atoms=2)
    bench.store_cube(source, case.data, case.source_space)
    spaces = (case.source_space, case.target_space)
    program_lut(bench, "CDP", run.lut)
    program_normalization(bench, run.precision, case.data.shape, (source, target), spaces)
    program_normalization_mode(
        bench,
        run.local_size,
        skips_square_sum=run.skips_square_sum,
        skips_multiplier=run.skips_multiplier,
        converters=(run.input_converter, run.output_converter),
    )
    bench.run("CDP", "CDP_RDMA")
    assert_equal(machine, bench.load_cube(target, expected.shape, case.target_space), expected)


@given(float_normalization_cases())
def test_normalisation_of_halves(case: FloatNormalizationCase) -> None:
    machine, bench = bench_of()
    run = case.settings
    expected = normalize_halves(run, case.data)
    source = bench.surface(SOURCE, case.data.shape, Precision.FP16)
    target = bench.surface(TARGET, case.data.shape, Precision.FP16)
    bench.store_halves(source, case.data)
    program_float_lut(bench, "CDP", run.lut)
    program_normalization(bench, Precision.FP16, case.data.shape, (source, target))
    program_normalization_mode(
        bench,
        run.local_size,
        skips_square_sum=run.skips_square_sum,
        skips_multiplier=run.skips_multiplier,
        converters=(UNCHANGED, UNCHANGED),
    )
    bench.run("CDP", "CDP_RDMA")
    actual = bench.load_halves(target, expected.shape)
    assert not machine.faults, machine.faults
    exact = expected.astype(np.float64)
    bounds = np.maximum(1e-4, 1e-3 * np.maximum(abs(exact), find_levels(run, case.data)))
    assert (abs(actual - exact) <= bounds).all(), (actual, expected)


@given(contraction_cases())
def test_contraction(case: ContractionCase) -> None:
    machine, bench = bench_of()
    channels, height, width = case.cube.shape
    out = (channels // (case.stride_x * case.stride_y), height * case.stride_y)
    shape = (*out, width * case.stride_x)
    source = bench.surface(SOURCE, case.cube.shape, case.precision)
    target = bench.surface(TARGET, shape, case.precision)
    run = Contraction(width, height, channels, case.stride_x, case.stride_y, source, target)
    memory = bytearray(MEMORY_BYTES)
    write_feature(memory, source, case.cube)
    contract(run, memory)
    expected = read_feature(memory, target, shape)
    bench.store_cube(source, case.cube, case.source_space)
    spaces = (case.source_space, case.target_space)
    program_reshape(bench, 0, case.precision, case.cube.shape, spaces)
    bench.write_words(
        "RBK",
        D_DAIN_ADDR_LOW=source.address,
        D_DAIN_LINE_STRIDE=source.line_stride,
        D_DAIN_SURF_STRIDE=source.surface_stride,
        D_DATAOUT_SIZE_1=shape[0] - 1,
        D_DAOUT_ADDR_LOW=target.address,
        D_DAOUT_LINE_STRIDE=target.line_stride,
        D_DAOUT_SURF_STRIDE=target.surface_stride,
        D_CONTRACT_STRIDE_0=shape[0] * case.precision.byte_count // 32 * source.surface_stride,
        D_CONTRACT_STRIDE_1=case.stride_y * target.line_stride,
    )
    bench.write_fields(
        "RBK.D_DECONV_STRIDE",
        DECONV_X_STRIDE=case.stride_x - 1,
        DECONV_Y_STRIDE=case.stride_y - 1,
    )
    bench.run("RBK")
    assert_equal(machine, bench.load_cube(target, shape, case.target_space), expected)


@given(plane_cases())
def test_split_and_merge(case: PlaneCase) -> None:
    machine, bench = bench_of()
    channels, height, width = case.cube.shape
    line = -(-width * case.precision.byte_count // 64) * 64 + 64
    places = (SOURCE, TARGET) if case.is_split else (TARGET, SOURCE)
    feature = bench.surface(places[0], case.cube.shape, case.precision)
    planes = PlanarSurface(places[1], line, line * height + 64, case.precision)
    spaces = (case.source_space, case.target_space)
    program_reshape(bench, 1 if case.is_split else 2, case.precision, case.cube.shape, spaces)
    bench.write_words("RBK", D_DATAOUT_SIZE_1=channels - 1)
    ends: tuple[FeatureSurface | PlanarSurface, ...] = (feature, planes)
    if not case.is_split:
        ends = (planes, feature)
    bench.store_cube(ends[0], case.cube, case.source_space)
    for side, end in zip(("DAIN", "DAOUT"), ends, strict=True):
        bench.registers.write(f"RBK.D_{side}_ADDR_LOW", end.address)
        bench.registers.write(f"RBK.D_{side}_LINE_STRIDE", end.line_stride)
        if isinstance(end, PlanarSurface):
            bench.registers.write(f"RBK.D_{side}_PLANAR_STRIDE", end.planar_stride)
        else:
            bench.registers.write(f"RBK.D_{side}_SURF_STRIDE", end.surface_stride)
    bench.run("RBK")
    actual = bench.load_cube(ends[1], case.cube.shape, case.target_space)
    assert_equal(machine, actual, case.cube)


@given(transfer_cases())
def test_transfers_between_memories(case: TransferCase) -> None:
    machine, bench = bench_of()
    strides: list[int] = []
    for line_slack, surface_slack in (case.source_slack, case.target_slack):
        line = 32 * (case.line_atoms + line_slack)
        strides += [line, line * case.line_count + 32 * surface_slack]
    run = bdma.Transfer(
        source=SOURCE,
        target=TARGET,
        line_bytes=32 * case.line_atoms,
        line_count=case.line_count,
        source_line_stride=strides[0],
        target_line_stride=strides[2],
        surface_count=case.surface_count,
        source_surface_stride=strides[1],
        target_surface_stride=strides[3],
    )
    data = np.random.default_rng(case.seed).bytes(4096)
    expected = bytearray(MEMORY_BYTES)
    bdma.transfer(run, data + bytes(MEMORY_BYTES - len(data)), expected)
    bench.store(SOURCE, data, case.source_space)
    program_transfer(bench, run, case.source_space, case.target_space)
    machine.advance()
    assert not machine.faults, machine.faults
    size = 8192
    moved = bench.hardware.memory.read(bench.space(case.target_space), TARGET, size)
    assert moved == expected[TARGET : TARGET + size]


def check_points(case: PointCase, configuration: Configuration = NV_FULL) -> None:
    machine, bench = bench_of(configuration)
    run = case.settings
    result = process_points(run, case.data)
    source = bench.surface(SOURCE, case.data.shape, case.precision)
    target = bench.surface(TARGET, case.data.shape, run.output_precision, slack_atoms=2)
    bench.store_cube(source, case.data, case.source_space)
    program_point_case(bench, case, (source, target))
    bench.run("SDP", "SDP_RDMA")
    actual = bench.load_cube(target, case.data.shape, case.target_space)
    if run.output_precision is Precision.FP16:
        assert not machine.faults, machine.faults
        np.testing.assert_array_equal(halves_from_bits(actual), result.halves)
        return
    if run.y is not None and run.y.adder is not None and run.y.adder.algorithm is Algorithm.EQUAL:
        assert not machine.faults, machine.faults
        status = bench.registers.read_field("SDP.D_STATUS", "STATUS_UNEQUAL")
        assert status == int(result.unequal)
        return
    assert_equal(machine, actual, result.integers)


@given(point_cases(has_lut=False))
def test_single_points_of_whole_numbers(case: PointCase) -> None:
    check_points(case)


@given(point_cases(has_lut=True))
def test_single_points_through_tables(case: PointCase) -> None:
    check_points(case)


@given(point_cases(ONLY_INT8, has_lut=False), SMALL)
def test_single_points_in_smaller_atoms(case: PointCase, configuration: Configuration) -> None:
    check_points(replace(case, source_space=1, target_space=1), configuration)


@given(half_point_cases())
def test_single_points_of_halves(case: HalfPointCase) -> None:
    expected = process_half_points(case.settings, case.data)
    np.testing.assert_array_equal(run_half_points(case), expected)


@given(half_table_cases())
def test_single_halves_through_tables(case: HalfPointCase) -> None:
    expected = process_half_points(case.settings, case.data).astype(np.float64)
    actual = run_half_points(case)
    # The documentation promises equal bits but not in which order an interpolation rounds.
    bounds = np.maximum(1e-4, 1e-3 * np.maximum(abs(expected), abs(case.data)))
    assert (abs(actual - expected) <= bounds).all(), (actual, expected)


def run_half_points(case: HalfPointCase) -> HalfCube:
    machine, bench = bench_of()
    source = bench.surface(SOURCE, case.data.shape, Precision.FP16)
    target = bench.surface(TARGET, case.data.shape, Precision.FP16)
    bench.store_halves(source, case.data)
    program_half_point_case(bench, case, (source, target))
    bench.run("SDP", "SDP_RDMA")
    assert not machine.faults, machine.faults
    return bench.load_halves(target, case.data.shape)


NO_OPERANDS: Final = OperandPlan(
    adder_from_memory=False, multiplier_from_memory=False, is_per_kernel=False, component_bytes=2
)
NO_PLANS: Final[dict[str, OperandPlan]] = {"BS": NO_OPERANDS, "BN": NO_OPERANDS, "EW": NO_OPERANDS}


def test_what_is_not_a_number_passes_the_rectifier() -> None:
    data = np.array([[[np.nan, -1.0, 2.0]]], np.float16)
    run = FloatPointProcessor(x1=FloatStage(has_relu=True))
    case = HalfPointCase(run, data, NO_PLANS)
    np.testing.assert_array_equal(run_half_points(case), process_half_points(run, data))


def test_below_an_exponential_table_of_offset_zero_the_line_starts_at_its_start() -> None:
    """A known difference: by the documentation it starts one further, as for other offsets."""
    le = TableSettings(
        entries=(100,) * 65,
        start=50,
        end=2**31 - 1,
        select=0,
        function=Function.EXPONENT,
        underflow=Slope(scale=3, shift=0),
    )
    lo = TableSettings(entries=(0,) * 257, start=60, end=60 + 256, select=0)
    run = PointProcessor(
        y=ElementStage(lut=Lut(le, lo, Priorities())), output_precision=Precision.INT16
    )
    data = np.array([[[40, 50, 45]]], np.int64)
    machine, bench = bench_of()
    source = bench.surface(SOURCE, data.shape, Precision.INT16)
    target = bench.surface(TARGET, data.shape, Precision.INT16)
    bench.store_cube(source, data)
    program_point_case(
        bench, PointCase(run, Precision.INT16, data, NO_PLANS, 1, 1), (source, target)
    )
    bench.run("SDP", "SDP_RDMA")
    found = bench.load_cube(target, data.shape)
    documented = process_points(run, data).integers
    assert not machine.faults, machine.faults
    np.testing.assert_array_equal(found, [[[100 - 30, 100, 100 - 15]]])
    np.testing.assert_array_equal(documented, found - 3)


def test_no_infinity_leaves_the_point_processor() -> None:
    data = np.array([[[np.inf, -np.inf, 2.0]]], np.float16)
    case = HalfPointCase(FloatPointProcessor(), data, NO_PLANS)
    np.testing.assert_array_equal(
        run_half_points(case), np.array([[[65504, -65504, 2]]], np.float16)
    )


def test_whole_numbers_beyond_halves_become_the_largest_half() -> None:
    machine, bench = bench_of()
    data = np.array([[[32767, -32768, 5]]], np.int64)
    run = PointProcessor(output_precision=Precision.FP16, output_converter=Converter(0, 2, 0))
    case = PointCase(run, Precision.INT16, data, NO_PLANS, 1, 1)
    source = bench.surface(SOURCE, data.shape, Precision.INT16)
    target = bench.surface(TARGET, data.shape, Precision.FP16)
    bench.store_cube(source, data)
    program_point_case(bench, case, (source, target))
    bench.run("SDP", "SDP_RDMA")
    assert not machine.faults, machine.faults
    assert bench.load_halves(target, data.shape).tolist() == [[[65504, -65504, 10]]]
