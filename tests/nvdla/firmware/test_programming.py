"""What descriptors become in registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smelt.nvdla import MemorySpace
from smelt.nvdla.firmware import EngineScheduler
from smelt.nvdla.hardware import NV_FULL
from smelt.nvdla.loadable import (
    BdmaOperation,
    CdpSurface,
    Converter,
    LutParameters,
    OperationType,
    PdpSurface,
    Precision,
    Roi,
    RubikOperation,
    RubikSurface,
    SdpStage,
    SdpSurface,
)
from tests.nvdla.firmware._hardware import FakeHardware, FakeMemory
from tests.nvdla.firmware._single import FLY, Words, bdma_surface, conv_surface, execute, single
from tests.nvdla.firmware._tasks import (
    CDP,
    CONV,
    DATA,
    LUTS,
    PDP,
    PLACES,
    SDP,
    TaskBuilder,
    cube,
    number_of,
)


def test_a_convolution_becomes_five_blocks_registers() -> None:
    operation = replace(
        CONV,
        kernel_width_csc=3,
        kernel_height_csc=2,
        conv_stride_x=2,
        dilation_y=3,
        data_bank=4,
        weight_bank=5,
        weight_reuse=1,
        out_cvt=Converter(scale=1, truncate=7),
    )
    target = replace(cube(memory_type=FLY), width=5, height=6, channel=40)
    words = execute(single(OperationType.CONV, operation, conv_surface(dst_data=target)))
    assert words.fields("CACC.D_DATAOUT_SIZE_0") == {"DATAOUT_WIDTH": 4, "DATAOUT_HEIGHT": 5}
    assert words["CACC.D_CLIP_CFG"] == 7
    assert words.fields("CSC.D_WEIGHT_SIZE_EXT_0") == {
        "WEIGHT_WIDTH_EXT": 2,
        "WEIGHT_HEIGHT_EXT": 1,
    }
    assert words.fields("CSC.D_WEIGHT_SIZE_EXT_1")["WEIGHT_KERNEL"] == 39
    assert words["CSC.D_ATOMICS"] == 29
    assert words.fields("CSC.D_CONV_STRIDE_EXT") == {"CONV_X_STRIDE_EXT": 1, "CONV_Y_STRIDE_EXT": 0}
    assert words.fields("CSC.D_DILATION_EXT") == {"X_DILATION_EXT": 0, "Y_DILATION_EXT": 2}
    assert words.fields("CDMA.D_BANK") == {"DATA_BANK": 3, "WEIGHT_BANK": 4}
    assert words.fields("CDMA.D_MISC_CFG")["WEIGHT_REUSE"] == 1
    assert words["CDMA.D_WEIGHT_ADDR_LOW"] == PLACES[DATA] + 256
    assert words["CDMA.D_DAIN_RAM_TYPE"] == MemorySpace.DRAM


def test_a_convolution_pads_and_converts_its_input() -> None:
    operation = replace(
        CONV,
        pad_x_left=1,
        pad_y_top=2,
        pad_x_right=3,
        pad_y_bottom=4,
        pad_val=-3,
        in_cvt=Converter(enable=1, scale=-2, truncate=3, offset=-5),
        mean_format=1,
        mean_ry=-1,
        mean_ax=9,
    )
    words = execute(single(OperationType.CONV, operation, conv_surface()))
    assert words["CSC.D_ZERO_PADDING_VALUE"] == words["CDMA.D_ZERO_PADDING_VALUE"] == 0xFFFD
    assert words.fields("CDMA.D_ZERO_PADDING") == {
        "PAD_LEFT": 1,
        "PAD_RIGHT": 3,
        "PAD_TOP": 2,
        "PAD_BOTTOM": 4,
    }
    assert words.fields("CDMA.D_CVT_CFG") == {"CVT_EN": 1, "CVT_TRUNCATE": 3}
    assert words["CDMA.D_CVT_OFFSET"] == 0xFFFB
    assert words["CDMA.D_CVT_SCALE"] == 0xFFFE
    assert words.fields("CDMA.D_MEAN_GLOBAL_0")["MEAN_RY"] == 0xFFFF
    assert words.fields("CDMA.D_MEAN_GLOBAL_1")["MEAN_AX"] == 9


def test_winograd_neither_strides_nor_pads_in_the_sequencer() -> None:
    operation = replace(CONV, conv_mode=1, conv_stride_x=2, conv_stride_y=2, pad_x_left=1)
    words = execute(single(OperationType.CONV, operation, conv_surface()))
    assert words["CSC.D_CONV_STRIDE_EXT"] == words["CSC.D_ZERO_PADDING"] == 0
    assert words.fields("CDMA.D_CONV_STRIDE")["CONV_X_STRIDE"] == 1
    assert words.fields("CMAC_A.D_MISC_CFG")["CONV_MODE"] == 1


def test_weights_that_are_still_in_the_buffer_need_no_address() -> None:
    nowhere = replace(cube(), address=-1, size=128)
    operation = replace(CONV, weight_reuse=1)
    task = single(OperationType.CONV, operation, conv_surface(weight_data=nowhere))
    assert execute(task)["CDMA.D_WEIGHT_ADDR_LOW"] == 0


def test_compressed_weights_have_three_addresses() -> None:
    operation = replace(CONV, weight_format=1)
    surface = conv_surface(wmb_data=replace(cube(512), size=256), wgs_data=cube(1024))
    words = execute(single(OperationType.CONV, operation, surface))
    assert words["CDMA.D_WMB_ADDR_LOW"] == PLACES[DATA] + 512
    assert words["CDMA.D_WGS_ADDR_LOW"] == PLACES[DATA] + 1024
    assert words["CDMA.D_WMB_BYTES"] == words["CSC.D_WMB_BYTES"] == 256


def test_an_image_has_its_pixel_format_and_a_second_plane() -> None:
    operation = replace(CONV, data_format=28, pixel_override=1)
    words = execute(single(OperationType.CONV, operation, conv_surface(offset_u=640)))
    fields = words.fields("CDMA.D_DATAIN_FORMAT")
    assert fields["DATAIN_FORMAT"] == 1
    assert fields["PIXEL_FORMAT"] == 28
    assert words["CSC.D_DATAIN_FORMAT"] == 1
    assert words["CDMA.D_DAIN_ADDR_LOW_1"] == PLACES[DATA] + 640


def test_sdp_stages_become_bypasses_operands_and_readers() -> None:
    operation = replace(
        SDP,
        x1_op=SdpStage(enable=1, type=2, mode=1, alu_type=2, shift_value=4, precision=1),
        x2_op=SdpStage(enable=1, type=3, mode=0, alu_operand=-7, mul_operand=9, truncate=5, act=3),
        y_op=SdpStage(enable=1, type=1, mode=2, mul_cvt=Converter(scale=3, enable=1), truncate=6),
        out_cvt=Converter(scale=-4, truncate=8, offset=-9),
    )
    surface = SdpSurface(
        src_data=cube(), x1_data=cube(64), y_data=cube(96), dst_data=cube(number_of(0, 0) & 0xFFF)
    )
    words = execute(single(OperationType.SDP, operation, surface))
    assert words.fields("SDP.D_DP_BS_CFG") == {
        "BS_BYPASS": 0,
        "BS_ALU_BYPASS": 0,
        "BS_ALU_ALGO": 2,
        "BS_MUL_BYPASS": 1,
        "BS_MUL_PRELU": 0,
        "BS_RELU_BYPASS": 1,
    }
    assert words.fields("SDP.D_DP_BS_ALU_CFG") == {"BS_ALU_SRC": 1, "BS_ALU_SHIFT_VALUE": 4}
    assert words["SDP.D_DP_BN_ALU_SRC_VALUE"] == 0xFFF9
    assert words["SDP.D_DP_BN_MUL_SRC_VALUE"] == 9
    assert words.fields("SDP.D_DP_BN_CFG")["BN_MUL_PRELU"] == 1
    assert words.fields("SDP.D_DP_BN_MUL_CFG") == {"BN_MUL_SRC": 0, "BN_MUL_SHIFT_VALUE": 5}
    assert words.fields("SDP.D_DP_EW_MUL_CFG") == {"EW_MUL_SRC": 1, "EW_MUL_CVT_BYPASS": 0}
    assert words["SDP.D_DP_EW_MUL_CVT_SCALE_VALUE"] == 3
    assert words["SDP.D_DP_EW_TRUNCATE_VALUE"] == 6
    assert words["SDP.D_CVT_SCALE"] == 0xFFFC
    assert words["SDP.D_CVT_OFFSET"] == 0xFFFFFFF7


def test_sdp_readers_fetch_each_stages_operands() -> None:
    operation = replace(
        SDP,
        x1_op=SdpStage(enable=1, type=2, mode=1, alu_type=2, precision=1),
        x2_op=SdpStage(enable=1, type=3, mode=0),
        y_op=SdpStage(enable=1, type=3, mode=2),
    )
    surface = SdpSurface(src_data=cube(), x1_data=cube(64), y_data=cube(96), dst_data=cube())
    words = execute(single(OperationType.SDP, operation, surface))
    reader = words.fields("SDP_RDMA.D_BRDMA_CFG")
    assert reader == {
        "BRDMA_DISABLE": 0,
        "BRDMA_DATA_USE": 1,
        "BRDMA_DATA_SIZE": 1,
        "BRDMA_DATA_MODE": 0,
        "BRDMA_RAM_TYPE": 1,
    }
    assert words.fields("SDP_RDMA.D_NRDMA_CFG")["NRDMA_DISABLE"] == 1
    assert words.fields("SDP_RDMA.D_ERDMA_CFG")["ERDMA_DATA_MODE"] == 1
    assert words.fields("SDP_RDMA.D_ERDMA_CFG")["ERDMA_DATA_USE"] == 2
    assert words["SDP_RDMA.D_EW_BASE_ADDR_LOW"] == PLACES[DATA] + 96


@pytest.mark.parametrize(
    ("source", "target", "process"),
    [
        (Precision.INT8, Precision.INT16, Precision.INT8),
        (Precision.INT16, Precision.INT8, Precision.INT8),
        (Precision.INT16, Precision.INT16, Precision.INT16),
        (Precision.FP16, Precision.INT8, Precision.FP16),
    ],
)
def test_sdp_processes_in_a_precision_of_its_own(source: int, target: int, process: int) -> None:
    operation = replace(SDP, src_precision=source, dst_precision=target)
    surface = SdpSurface(src_data=cube(), dst_data=cube())
    words = execute(single(OperationType.SDP, operation, surface))
    assert words.fields("SDP.D_DATA_FORMAT") == {"PROC_PRECISION": process, "OUT_PRECISION": target}


def test_the_y_stage_adds_registers_and_batches_have_a_stride() -> None:
    add = SdpStage(enable=1, type=2, alu_type=3, alu_operand=-70000)
    operation = replace(SDP, y_op=add, batch_num=2, batch_stride=64)
    surface = SdpSurface(src_data=cube(), dst_data=cube())
    words = execute(single(OperationType.SDP, operation, surface))
    assert words["SDP.D_DP_EW_ALU_SRC_VALUE"] == -70000 & 0xFFFFFFFF
    assert words.fields("SDP.D_DP_EW_CFG")["EW_ALU_ALGO"] == 3
    assert words["SDP.D_DST_BATCH_STRIDE"] == 64
    assert words.fields("SDP.D_FEATURE_MODE_CFG")["BATCH_NUMBER"] == 1


def test_a_float_tables_slopes_have_no_shift() -> None:
    lut = LutParameters(linear_exp_overflow_scale=-2, linear_exp_overflow_shift=3)
    operation = replace(SDP, src_precision=2, dst_precision=2, lut_index=0)
    task = single(OperationType.SDP, operation, SdpSurface(src_data=cube(), dst_data=cube()))
    memory, hardware = FakeMemory(), FakeHardware(NV_FULL, lambda _: 0)
    addresses = task.write(memory)
    memory.write(MemorySpace.DRAM, PLACES[LUTS], lut.to_bytes())
    EngineScheduler(hardware, memory, NV_FULL).execute_task(addresses, timeout_s=5)
    words = Words(hardware)
    assert words.fields("SDP.S_LUT_LE_SLOPE_SCALE")["LUT_LE_SLOPE_OFLOW_SCALE"] == 0xFFFE
    assert words["SDP.S_LUT_LE_SLOPE_SHIFT"] == 0


def test_planes_are_split_and_merged_by_their_stride() -> None:
    planar = replace(cube(), plane_stride=96)
    surface = RubikSurface(src_data=planar, dst_data=replace(planar, plane_stride=160))
    split = execute(single(OperationType.RUBIK, RubikOperation(mode=1), surface))
    assert split["RBK.D_DAOUT_PLANAR_STRIDE"] == 160
    assert split["RBK.D_DAIN_SURF_STRIDE"] == 32
    merge = execute(single(OperationType.RUBIK, RubikOperation(mode=2), surface))
    assert merge["RBK.D_DAIN_PLANAR_STRIDE"] == 96
    assert "RBK.D_DECONV_STRIDE" not in merge


def test_an_sdp_fed_on_the_fly_reads_only_for_its_operands() -> None:
    task = TaskBuilder()
    task.fuse(task.add(OperationType.CONV), task.add(OperationType.SDP))
    words = execute(task)
    assert "SDP_RDMA.D_OP_ENABLE" not in words
    stage = SdpStage(enable=1, type=2, mode=1, alu_type=2)
    task.contents[1] = (
        replace(SDP, x1_op=stage),
        SdpSurface(src_data=cube(memory_type=FLY), x1_data=cube(64), dst_data=cube()),
    )
    words = execute(task)
    assert words["SDP_RDMA.D_OP_ENABLE"] == 1
    assert words.fields("SDP_RDMA.D_FEATURE_MODE_CFG")["FLYING_MODE"] == 1


def test_pooling_has_reciprocals_of_its_kernel() -> None:
    operation = replace(
        PDP, pool_mode=0, pool_width=2, pool_height=7, pad_left=1, padding_value=(-5,) * 7
    )
    surface = PdpSurface(src_data=cube(), dst_data=cube())
    words = execute(single(OperationType.PDP, operation, surface))
    assert words["PDP.D_RECIP_KERNEL_WIDTH"] == 0x5555
    assert words["PDP.D_RECIP_KERNEL_HEIGHT"] == 0x2000
    assert words["PDP.D_POOLING_PADDING_VALUE_7_CFG"] == 0x7FFFB
    assert words.fields("PDP.D_OPERATION_MODE_CFG")["FLYING_MODE"] == 1
    half = replace(operation, precision=Precision.FP16, padding_value=(0,) * 7)
    words = execute(single(OperationType.PDP, half, surface))
    assert words["PDP.D_RECIP_KERNEL_WIDTH"] == 0x7555


def test_a_lookup_table_is_written_once_and_in_order() -> None:
    lut = LutParameters(
        linear_exp_table=tuple(range(-5, 60)),
        linear_only_table=tuple(range(257)),
        linear_exp_offset=-3,
        linear_only_offset=4,
        linear_exp_start=(1 << 64) - 2,
        linear_only_end=5 << 32 | 6,
        linear_only_overflow_scale=-7,
        linear_only_overflow_shift=-1,
        underflow_priority=1,
    )
    operation = replace(CDP, lut_index=0)
    task = single(OperationType.CDP, operation, CdpSurface(src_data=cube(), dst_data=cube()))

    class Recorder(FakeHardware):
        def write(self, address: int, value: int, /) -> None:
            if self.map.by_address[address].full_name == "CDP.S_LUT_ACCESS_DATA":
                entries.append(value)
            super().write(address, value)

    entries: list[int] = []
    memory = FakeMemory()
    hardware = Recorder(NV_FULL, lambda _: 0)
    addresses = task.write(memory)
    memory.write(MemorySpace.DRAM, PLACES[LUTS], lut.to_bytes())
    EngineScheduler(hardware, memory, NV_FULL).execute_task(addresses, timeout_s=5)
    words = Words(hardware)
    assert entries == [*(n & 0xFFFF for n in lut.linear_exp_table), *lut.linear_only_table]
    assert words.fields("CDP.S_LUT_INFO") == {
        "LUT_LE_INDEX_OFFSET": 0xFD,
        "LUT_LE_INDEX_SELECT": 0,
        "LUT_LO_INDEX_SELECT": 4,
    }
    assert words["CDP.S_LUT_LE_START_LOW"] == 0xFFFFFFFE
    assert words["CDP.S_LUT_LE_START_HIGH"] == 0x3F
    assert words["CDP.S_LUT_LO_END_HIGH"] == 5
    assert words.fields("CDP.S_LUT_LO_SLOPE_SCALE")["LUT_LO_SLOPE_OFLOW_SCALE"] == 0xFFF9
    assert words.fields("CDP.S_LUT_LO_SLOPE_SHIFT")["LUT_LO_SLOPE_OFLOW_SHIFT"] == 0x1F
    assert words.fields("CDP.S_LUT_CFG")["LUT_UFLOW_PRIORITY"] == 1


def test_a_contraction_steps_over_the_surfaces_of_a_position() -> None:
    operation = RubikOperation(precision=Precision.INT16, stride_x=3, stride_y=2)
    source = replace(cube(), surf_stride=640)
    target = replace(cube(64), channel=40, line_stride=96)
    words = execute(
        single(OperationType.RUBIK, operation, RubikSurface(src_data=source, dst_data=target))
    )
    assert words["RBK.D_CONTRACT_STRIDE_0"] == 3 * 640
    assert words["RBK.D_CONTRACT_STRIDE_1"] == 2 * 96
    assert words.fields("RBK.D_DECONV_STRIDE") == {"DECONV_X_STRIDE": 2, "DECONV_Y_STRIDE": 1}


def test_a_bridge_transfer_counts_in_units_of_32_bytes() -> None:
    words = execute(single(OperationType.BDMA, BdmaOperation(num_transfers=1), bdma_surface()))
    assert words["BDMA.CFG_LINE"] == 1
    assert words["BDMA.CFG_LINE_REPEAT"] == 2
    assert words["BDMA.CFG_SRC_LINE"] == 96
    assert words.fields("BDMA.CFG_CMD") == {"SRC_RAM_TYPE": 1, "DST_RAM_TYPE": 1}


def test_a_dynamic_region_moves_the_input() -> None:
    task = single(
        OperationType.PDP, PDP, PdpSurface(src_data=replace(cube(), address=-1), dst_data=cube())
    )
    memory = FakeMemory()
    network = replace(task.network(), dynamic_roi=1, input_layer=0, surface_index=DATA)
    addresses = task.write(memory, network=network)
    task.write_rois(memory, [Roi(left=64, top=3)])
    hardware = FakeHardware(NV_FULL, lambda _: 0)
    EngineScheduler(hardware, memory, NV_FULL).execute_task(addresses, timeout_s=5)
    assert hardware.words["PDP_RDMA.D_SRC_BASE_ADDR_LOW", 0] == PLACES[DATA] + 3 * 32 + 64
