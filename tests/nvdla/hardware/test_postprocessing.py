"""SDP, PDP, CDP, RUBIK and BDMA where no vector of NVIDIA's goes, against loops over scalars."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smelt.nvdla import MemorySpace, NvdlaError
from smelt.nvdla.hardware import NV_FULL, NV_SMALL, Precision
from tests.nvdla.hardware._programs import DTYPES, OPERAND, SECOND, SOURCE, TARGET, Bench

_SIZE = (3, 5, 40)


def _random(seed: int, precision: Precision, size: tuple[int, ...] = _SIZE) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if precision is Precision.FP16:
        return generator.standard_normal(size).astype(np.float16)
    limit = 100 if precision is Precision.INT8 else 9000
    return generator.integers(-limit, limit, size).astype(DTYPES[precision])


def _pass_through_sdp(bench: Bench) -> None:
    bench.enable("SDP", "SDP_RDMA")
    assert bench.finish() == 1


def _operand(bench: Bench, alu: np.ndarray, mul: np.ndarray) -> np.ndarray:
    """Interleave two operands, atom by atom."""
    pair = np.stack([bench.pack(alu), bench.pack(mul)], axis=-1)
    return pair.reshape(*pair.shape[:3], -1)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT16])
def test_the_element_wise_stage_multiplies_then_adds_operands_from_memory(
    precision: Precision,
) -> None:
    bench = Bench()
    cube, alu, mul = (_random(seed, precision) for seed in (1, 2, 3))
    bench.put(SOURCE, bench.pack(cube))
    bench.put(OPERAND, _operand(bench, alu, mul))
    bench.program_sdp(size=_SIZE, precision=precision)
    line, surface = (2 * stride for stride in bench.strides(3, 5))
    bench.set(
        "SDP_RDMA",
        D_ERDMA_CFG=2 << 1 | int(precision is not Precision.INT8) << 3 | 1 << 4 | 1 << 5,
        D_EW_BASE_ADDR_LOW=OPERAND,
        D_EW_LINE_STRIDE=line,
        D_EW_SURFACE_STRIDE=surface,
    )
    bench.set(
        "SDP",
        D_DP_EW_CFG=2 << 2 | 1 << 6,
        D_DP_EW_ALU_CFG=1,
        D_DP_EW_ALU_CVT_OFFSET_VALUE=5,
        D_DP_EW_ALU_CVT_SCALE_VALUE=3,
        D_DP_EW_ALU_CVT_TRUNCATE_VALUE=1,
        D_DP_EW_MUL_CFG=0b11,
        D_DP_EW_TRUNCATE_VALUE=4,
    )
    _pass_through_sdp(bench)
    found = bench.unpack(TARGET, _SIZE, DTYPES[precision])
    limit = 1 << (8 * precision.size_bytes - 1)
    for y, x, c in itertools.product(*map(range, _SIZE)):
        product = int(cube[y, x, c]) * int(mul[y, x, c])
        scaled = (int(alu[y, x, c]) - 5) * 3
        total = _round(product, 4) + _round(scaled, 1)
        assert found[y, x, c] == max(-limit, min(limit - 1, total)), (y, x, c)


def _round(value: int, shift: int) -> int:
    magnitude = (abs(value) + (1 << shift >> 1)) >> shift
    return -magnitude if value < 0 else magnitude


def test_prelu_scales_only_what_is_negative() -> None:
    bench = Bench(NV_SMALL)
    cube = _random(4, Precision.INT8)
    slopes = _random(5, Precision.INT8, (1, 1, 40))
    bench.put(SOURCE, bench.pack(cube))
    bench.put(OPERAND, bench.pack(slopes))
    bench.program_sdp(size=_SIZE)
    bench.set("SDP_RDMA", D_BRDMA_CFG=0 << 1 | 1 << 5, D_BS_BASE_ADDR_LOW=OPERAND)
    bench.set("SDP", D_DP_BS_CFG=0b1100010, D_DP_BS_MUL_CFG=1 | 6 << 8)
    _pass_through_sdp(bench)
    found = bench.unpack(TARGET, _SIZE, np.int8)
    for y, x, c in itertools.product(*map(range, _SIZE)):
        value = int(cube[y, x, c])
        scaled = _round(value * int(slopes[0, 0, c]), 6)
        assert found[y, x, c] == (value if value >= 0 else max(-128, min(127, scaled)))


def test_comparison_reports_whether_anything_differs_and_writes_nothing() -> None:
    for value, differs in ((7, 0), (8, 1)):
        bench = Bench()
        cube = np.full(_SIZE, 7, np.int8)
        cube[2, 4, 39] = value
        bench.put(SOURCE, bench.pack(cube) if differs else np.full(2 * 3 * 5 * 32, 7, np.int8))
        bench.program_sdp(size=_SIZE)
        bench.set("SDP", D_DP_EW_CFG=3 << 2 | 1 << 4 | 1 << 6, D_DP_EW_ALU_SRC_VALUE=7)
        _pass_through_sdp(bench)
        bench.set("SDP", S_POINTER=0)
        assert bench.registers.read("SDP.D_STATUS") == differs
        assert not bench.get(TARGET, 64, np.int8).any()


def test_fp16_bias_scale_and_relu_round_once_at_the_end() -> None:
    bench = Bench()
    cube, bias, scale = (
        _random(seed, Precision.FP16, size)
        for seed, size in ((6, _SIZE), (7, (1, 1, 40)), (8, (1, 1, 40)))
    )
    bench.put(SOURCE, bench.pack(cube))
    bench.put(OPERAND, _operand(bench, bias, scale))
    bench.program_sdp(size=_SIZE, precision=Precision.FP16)
    bench.set("SDP_RDMA", D_BRDMA_CFG=2 << 1 | 1 << 3 | 1 << 5, D_BS_BASE_ADDR_LOW=OPERAND)
    bench.set("SDP", D_DP_BS_CFG=2 << 2, D_DP_BS_ALU_CFG=1, D_DP_BS_MUL_CFG=1)
    _pass_through_sdp(bench)
    total = (cube.astype(np.float32) + bias) * scale.astype(np.float32)
    expected = np.maximum(total, 0).astype(np.float16)
    assert np.array_equal(bench.unpack(TARGET, _SIZE, np.float16), expected)


def test_int8_widens_to_int16_over_two_surfaces() -> None:
    bench = Bench()
    cube = _random(9, Precision.INT8)
    bench.put(SOURCE, bench.pack(cube))
    bench.program_sdp(size=_SIZE, output=Precision.INT16)
    bench.set("SDP", D_CVT_SCALE=100)
    _pass_through_sdp(bench)
    found = bench.unpack(TARGET, _SIZE, np.int16)
    assert np.array_equal(found, cube.astype(np.int16) * 100)


def test_saturation_is_counted_where_it_is_asked_for() -> None:
    bench = Bench(NV_SMALL)
    cube = np.full(_SIZE, 100, np.int8)
    bench.put(SOURCE, bench.pack(cube))
    bench.program_sdp(size=_SIZE)
    bench.set("SDP", D_CVT_SCALE=4000, D_PERF_ENABLE=0b101)
    _pass_through_sdp(bench)
    assert bench.registers.read("SDP.D_PERF_OUT_SATURATION") == cube.size
    assert bench.machine.records[0].counters.saturated == cube.size
    stalls = bench.registers.read("SDP.D_PERF_WDMA_WRITE_STALL")
    assert stalls == bench.machine.records[0].stall_cycles


def _program_pooling(
    bench: Bench, precision: Precision, method: int, kernel: int, output: tuple[int, int]
) -> None:
    line, surface = bench.strides(7, 6)
    out_line, out_surface = bench.strides(*output)
    bench.set(
        "PDP",
        D_OPERATION_MODE_CFG=method | 1 << 4,
        D_DATA_FORMAT=int(precision),
        D_DATA_CUBE_IN_WIDTH=5,
        D_DATA_CUBE_IN_HEIGHT=6,
        D_DATA_CUBE_IN_CHANNEL=19,
        D_DATA_CUBE_OUT_WIDTH=output[1] - 1,
        D_DATA_CUBE_OUT_HEIGHT=output[0] - 1,
        D_POOLING_KERNEL_CFG=(kernel - 1) | (kernel - 1) << 8 | 1 << 16 | 1 << 20,
        D_POOLING_PADDING_CFG=1 | 1 << 4,
        D_DST_RAM_CFG=1,
        D_DST_BASE_ADDR_LOW=TARGET,
        D_DST_LINE_STRIDE=out_line,
        D_DST_SURFACE_STRIDE=out_surface,
    )
    bench.set(
        "PDP_RDMA",
        D_SRC_RAM_CFG=1,
        D_SRC_BASE_ADDR_LOW=SOURCE,
        D_SRC_LINE_STRIDE=line,
        D_SRC_SURFACE_STRIDE=surface,
    )


@pytest.mark.parametrize("method", [1, 2])
@pytest.mark.parametrize("precision", list(Precision))
def test_extreme_pooling_ignores_padding(precision: Precision, method: int) -> None:
    bench = Bench()
    cube = _random(10, precision, (7, 6, 20))
    bench.put(SOURCE, bench.pack(cube))
    _program_pooling(bench, precision, method, 3, (4, 3))
    bench.enable("PDP", "PDP_RDMA")
    assert bench.finish() == 1 << 4
    found = bench.unpack(TARGET, (4, 3, 20), DTYPES[precision])
    pick = np.max if method == 1 else np.min
    for y, x in itertools.product(range(4), range(3)):
        rows, columns = slice(max(0, 2 * y - 1), 2 * y + 2), slice(max(0, 2 * x - 1), 2 * x + 2)
        assert np.array_equal(found[y, x], pick(cube[rows, columns], axis=(0, 1)))


def test_fp16_averages_are_close_to_the_mean() -> None:
    bench = Bench()
    cube = _random(11, Precision.FP16, (7, 6, 20))
    bench.put(SOURCE, bench.pack(cube))
    _program_pooling(bench, Precision.FP16, 0, 2, (4, 3))
    bench.set("PDP", D_RECIP_KERNEL_WIDTH=0x7800, D_RECIP_KERNEL_HEIGHT=0x7800)
    bench.enable("PDP", "PDP_RDMA")
    bench.finish()
    padded = np.pad(cube.astype(float), ((1, 0), (1, 0), (0, 0)))
    windows = padded[:8, :6].reshape(4, 2, 3, 2, 20)
    found = bench.unpack(TARGET, (4, 3, 20), np.float16).astype(float)
    assert np.abs(found - windows.mean(axis=(1, 3))).max() < 3e-3


def test_a_window_without_input_is_refused() -> None:
    bench = Bench()
    _program_pooling(bench, Precision.INT8, 1, 1, (9, 9))
    bench.enable("PDP", "PDP_RDMA")
    with pytest.raises(NvdlaError, match="a window contains no input"):
        bench.finish()


def _fill_linear_table(bench: Bench, entries: np.ndarray) -> None:
    bench.registers.write_fields("CDP.S_LUT_ACCESS_CFG", LUT_TABLE_ID=1, LUT_ACCESS_TYPE=1)
    for word in entries.astype(np.float16).view(np.uint16):
        bench.registers.write("CDP.S_LUT_ACCESS_DATA", int(word))


def test_fp16_normalisation_multiplies_by_the_table_of_the_sum_of_squares() -> None:
    bench = Bench()
    cube = _random(12, Precision.FP16)
    bench.put(SOURCE, bench.pack(cube))
    line, surface = bench.strides(3, 5)
    steps = np.arange(257) / 8
    entries = (1 + steps) ** -0.75
    _fill_linear_table(bench, entries)
    bench.set(
        "CDP",
        S_LUT_CFG=0b1110001,
        S_LUT_INFO=0 << 8 | (0x100 - 3) << 16,
        S_LUT_LE_START_LOW=0x7F000000,
        S_LUT_LO_START_LOW=0x80000000,
        S_LUT_LO_END_LOW=0x42000000,
        D_DATA_FORMAT=2,
        D_LRN_CFG=1,
        D_DST_DMA_CFG=1,
        D_DST_BASE_ADDR_LOW=TARGET,
        D_DST_LINE_STRIDE=line,
        D_DST_SURFACE_STRIDE=surface,
    )
    bench.set(
        "CDP_RDMA",
        D_DATA_CUBE_WIDTH=4,
        D_DATA_CUBE_HEIGHT=2,
        D_DATA_CUBE_CHANNEL=39,
        D_SRC_DMA_CFG=1,
        D_SRC_BASE_ADDR_LOW=SOURCE,
        D_SRC_LINE_STRIDE=line,
        D_SRC_SURFACE_STRIDE=surface,
    )
    bench.enable("CDP", "CDP_RDMA")
    assert bench.finish() == 1 << 2
    squares = np.pad(cube.astype(float) ** 2, ((0, 0), (0, 0), (2, 2)))
    sums = sum(squares[..., offset : offset + 40] for offset in range(5))
    expected = cube * np.interp(sums, steps, entries)
    found = bench.unpack(TARGET, _SIZE, np.float16).astype(float)
    assert np.abs(found - expected).max() < 5e-3


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT16])
def test_split_writes_planes_and_merge_brings_them_back(precision: Precision) -> None:
    bench, cube, size = Bench(), _random(13, precision), precision.size_bytes
    bench.put(SOURCE, bench.pack(cube))
    line, surface = bench.strides(3, 5)
    common = {"D_DAIN_RAM_TYPE": 1, "D_DAOUT_RAM_TYPE": 1, "D_DATAIN_SIZE_0": 4 | 2 << 16}
    bench.set(
        "RBK",
        **common,
        D_MISC_CFG=1 | int(precision) << 8,
        D_DATAIN_SIZE_1=39,
        D_DATAOUT_SIZE_1=39,
        D_DAIN_ADDR_LOW=SOURCE,
        D_DAIN_LINE_STRIDE=line,
        D_DAIN_SURF_STRIDE=surface,
        D_DAOUT_ADDR_LOW=TARGET,
        D_DAOUT_LINE_STRIDE=32,
        D_DAOUT_PLANAR_STRIDE=96,
    )
    bench.enable("RBK")
    assert bench.finish() == 1 << 8
    planes = bench.get(TARGET, 40 * 96 // size, DTYPES[precision]).reshape(40, 3, -1)
    assert np.array_equal(planes[..., :5], cube.transpose(2, 0, 1))
    assert not planes[..., 5:].any()
    bench.set("RBK", S_POINTER=1)
    bench.set(
        "RBK",
        **common,
        D_MISC_CFG=2 | int(precision) << 8,
        D_DATAIN_SIZE_1=39,
        D_DAIN_ADDR_LOW=TARGET,
        D_DAIN_LINE_STRIDE=32,
        D_DAIN_PLANAR_STRIDE=96,
        D_DAOUT_ADDR_LOW=SECOND,
        D_DAOUT_LINE_STRIDE=line,
        D_DAOUT_SURF_STRIDE=surface,
    )
    bench.enable("RBK")
    assert bench.finish() == 1 << 9
    assert np.array_equal(bench.unpack(SECOND, _SIZE, DTYPES[precision]), cube)


def test_copies_are_queued_and_launched_between_memories() -> None:
    bench = Bench(NV_FULL)
    data = np.random.default_rng(14).integers(0, 256, 4 * 256, dtype=np.uint8)
    bench.put(SOURCE, data)
    bench.set(
        "BDMA",
        CFG_SRC_ADDR_LOW=SOURCE,
        CFG_DST_ADDR_LOW=0x400,
        CFG_LINE=1,
        CFG_LINE_REPEAT=2,
        CFG_SURF_REPEAT=1,
        CFG_SRC_LINE=128,
        CFG_SRC_SURF=512,
        CFG_DST_LINE=64,
        CFG_DST_SURF=256,
        CFG_CMD=1,
        CFG_OP=1,
    )
    assert bench.registers.read_field("BDMA.STATUS", "FREE_SLOT") == 19
    bench.set("BDMA", CFG_LAUNCH1=1)
    assert bench.finish() == 1 << 7
    assert bench.registers.read_field("BDMA.STATUS", "IDLE") == 1
    found = np.frombuffer(
        bench.machine.memory.read(MemorySpace.SRAM, 0x400, 512), np.uint8
    ).reshape(2, 256)[:, :192]
    expected = data.reshape(2, 4, 128)[:, :3, :64].reshape(2, 192)
    assert np.array_equal(found, expected)
