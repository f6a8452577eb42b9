"""What descriptors become in registers, and which descriptors are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from smelt.nvdla import MemorySpace, NvdlaError, NvError
from smelt.nvdla.firmware import EngineScheduler
from smelt.nvdla.hardware import NV_FULL, NV_LARGE, NV_SMALL
from smelt.nvdla.loadable import (
    BdmaOperation,
    BdmaSurface,
    BdmaTransfer,
    CdpSurface,
    Converter,
    ConvSurface,
    LutParameters,
    MemoryType,
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

if TYPE_CHECKING:
    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.loadable import Operation, Surface

FLY = MemoryType.ON_THE_FLY


class Words:
    """The registers after a task, by name and field."""

    def __init__(self, hardware: FakeHardware) -> None:
        self._hardware = hardware

    def __getitem__(self, name: str) -> int:
        return self._hardware.words[name, 0]

    def __contains__(self, name: str) -> bool:
        return (name, 0) in self._hardware.words

    def fields(self, name: str) -> dict[str, int]:
        return self._hardware.map.register(name).decode(self[name])


def single(op_type: OperationType, operation: Operation, surface: Surface) -> TaskBuilder:
    """A task of one operation, and of an SDP that takes what a convolution makes."""
    task = TaskBuilder()
    task.add(op_type)
    task.contents[0] = operation, surface
    if op_type is OperationType.CONV:
        task.fuse(0, task.add(OperationType.SDP))
    return task


def execute(
    task: TaskBuilder, configuration: Configuration = NV_FULL, memory: FakeMemory | None = None
) -> Words:
    memory = memory or FakeMemory()
    hardware = FakeHardware(configuration, lambda _: 0)
    EngineScheduler(hardware, memory, configuration).execute_task(task.write(memory), timeout_s=5)
    return Words(hardware)


def conv_surface(**values: Any) -> ConvSurface:
    weights = replace(cube(256), size=128)
    usual = ConvSurface(src_data=cube(), dst_data=cube(memory_type=FLY), weight_data=weights)
    return replace(usual, **values)


# --- what is written


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


def bdma_surface(**values: int) -> BdmaSurface:
    transfer = BdmaTransfer(
        source_address=DATA,
        destination_address=DATA,
        line_size=64,
        line_repeat=3,
        source_line=96,
        destination_line=64,
        surface_repeat=1,
        source_surface=288,
        destination_surface=192,
    )
    transfer = replace(transfer, **values)
    return BdmaSurface(num_transfers=1, transfers=(transfer,) * 20)


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


# --- what is refused


def refuse(task: TaskBuilder, configuration: Configuration = NV_FULL) -> NvdlaError:
    with pytest.raises(NvdlaError) as caught:
        execute(task, configuration)
    assert "operation 0" in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"out_cvt": Converter(scale=2)}, "scale 2 and offset 0"),
        ({"out_cvt": Converter(scale=1, offset=3)}, "offset 3"),
        ({"conv_mode": 2}, "the mode is 2"),
        ({"weight_format": 2}, "format is 2"),
        ({"data_format": 37}, "data format is 37"),
        ({"pixel_mapping": 1}, "pixel mapping"),
        ({"in_precision": 3}, "precision is 3"),
        ({"mean_format": 2}, "mean's format"),
        ({"kernel_width_csc": 0}, "-1 does not fit CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_WIDTH_EXT"),
        ({"conv_stride_x": 9}, "8 does not fit CSC.D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT"),
        ({"data_bank": 9, "weight_bank": 9}, "more than the buffer's 16"),
        ({"batch": 0}, "-1 does not fit CACC.D_BATCH_NUMBER"),
    ],
)
def test_a_convolution_that_hardware_cannot_do_is_refused(
    values: dict[str, Any], message: str
) -> None:
    task = single(OperationType.CONV, replace(CONV, **values), conv_surface())
    assert message in str(refuse(task))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight_data": replace(cube(4), size=128)}, "starts at"),
        ({"weight_data": replace(cube(), size=100)}, "0x64 does not fit CSC.D_WEIGHT_BYTES"),
        ({"weight_data": replace(cube(), address=-1, size=128)}, "the weights is address -1"),
        ({"src_data": replace(cube(), address=-1)}, "the source has no address"),
        ({"src_data": replace(cube(), line_stride=40)}, "line stride of 40"),
        ({"src_data": replace(cube(), type=MemoryType.SRAM)}, "claims to lie in SRAM"),
        ({"src_data": replace(cube(), type=7)}, "memory of type 7"),
        ({"src_data": replace(cube(), width=0)}, "must be 1 to 8192"),
        ({"src_data": cube(memory_type=FLY)}, "the source must lie in DRAM or SRAM"),
        ({"dst_data": replace(cube(memory_type=FLY), line_stride=64)}, "must be the atom's 32"),
        ({"offset_u": -(1 << 40)}, "second plane"),
    ],
)
def test_a_convolution_whose_cubes_are_wrong_is_refused(
    values: dict[str, Any], message: str
) -> None:
    assert message in str(refuse(single(OperationType.CONV, CONV, conv_surface(**values))))


def test_what_a_configuration_lacks_is_not_supported() -> None:
    surface = conv_surface()
    conv, sdp, pdp = OperationType.CONV, OperationType.SDP, OperationType.PDP
    fp16 = Precision.FP16
    sdp_surface = SdpSurface(src_data=cube(), dst_data=cube())
    pdp_surface = PdpSurface(src_data=cube(), dst_data=cube())
    cdp_surface = CdpSurface(src_data=cube(), dst_data=cube())
    in_sram = PdpSurface(src_data=replace(cube(), type=MemoryType.SRAM), dst_data=cube())
    no_pdp, no_cdp = replace(NV_FULL, has_pdp=False), replace(NV_FULL, has_cdp=False)
    no_eltwise = replace(NV_FULL, has_sdp_eltwise=False)
    no_lut = replace(NV_FULL, has_sdp_lut=False)
    eltwise = replace(SDP, y_op=SdpStage(enable=1))
    with_lut = replace(SDP, y_op=SdpStage(enable=1, act=2))
    cases: list[tuple[OperationType, Operation, Surface, Configuration, str]] = [
        (conv, replace(CONV, conv_mode=1), surface, NV_SMALL, "no Winograd"),
        (conv, replace(CONV, weight_format=1), surface, NV_SMALL, "compressed"),
        (conv, replace(CONV, batch=2), surface, NV_SMALL, "one picture"),
        (conv, replace(CONV, in_precision=fp16), surface, NV_LARGE, "FP16"),
        (sdp, replace(SDP, dst_precision=fp16), sdp_surface, NV_LARGE, "FP16"),
        (sdp, eltwise, sdp_surface, no_eltwise, "no Y stage"),
        (sdp, with_lut, sdp_surface, no_lut, "no lookup table"),
        (pdp, PDP, pdp_surface, no_pdp, "no PDP"),
        (pdp, PDP, in_sram, NV_SMALL, "SRAM, which nv_small does not have"),
        (OperationType.CDP, CDP, cdp_surface, no_cdp, "no CDP"),
        (OperationType.BDMA, BdmaOperation(), bdma_surface(), NV_LARGE, "no bridge DMA"),
        (OperationType.RUBIK, RubikOperation(), RubikSurface(), NV_SMALL, "no reshape engine"),
    ]
    for op_type, operation, content, configuration, message in cases:
        error = refuse(single(op_type, operation, content), configuration)
        assert error.status is NvError.NOT_SUPPORTED
        assert message in str(error)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stride_x": 0}, "strides are 0 and 1"),
        ({"stride_y": 9}, "strides are 1 and 9"),
        ({"split_num": 65}, "at most 64"),
        ({"split_num": 0}, "split into 0"),
        ({"pool_mode": 3}, "the mode is 3"),
        ({"pool_width": 8}, "kernel width less one is 8"),
        ({"pad_left": 8}, "8 does not fit"),
        ({"precision": Precision.FP16, "padding_value": (1,) * 7}, "padding must be 0"),
        ({"padding_value": (1 << 20,) * 7}, "does not fit PDP.D_POOLING_PADDING_VALUE_1_CFG"),
    ],
)
def test_a_pooling_beyond_the_limits_is_refused(values: dict[str, Any], message: str) -> None:
    surface = PdpSurface(src_data=cube(), dst_data=cube())
    assert message in str(refuse(single(OperationType.PDP, replace(PDP, **values), surface)))


def test_a_pooling_that_streams_out_or_is_split_while_fed_on_the_fly_is_refused() -> None:
    surface = PdpSurface(src_data=cube(), dst_data=cube(memory_type=FLY))
    assert "nothing takes pooled data" in str(refuse(single(OperationType.PDP, PDP, surface)))
    fed = PdpSurface(src_data=cube(memory_type=FLY), dst_data=cube())
    split = single(OperationType.PDP, replace(PDP, split_num=2), fed)
    assert "at most 1 are possible when data come on the fly" in str(refuse(split))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"line_size": 33}, "no multiple of 32"),
        ({"line_size": 0}, "no multiple of 32"),
        ({"line_repeat": 8193}, "line_repeat of 8193"),
        ({"surface_repeat": 0}, "surface_repeat of 0"),
        ({"source_line": 32}, "less than the line's 64"),
        ({"destination_surface": 64}, "less than its 3 lines of 64"),
        ({"source_address": 99}, "transfer 0's source is address 99 of a list of 8"),
        ({"source_line": 97, "source_surface": 320}, "0x61 does not fit BDMA.CFG_SRC_LINE"),
    ],
)
def test_a_bridge_transfer_beyond_the_limits_is_refused(
    values: dict[str, int], message: str
) -> None:
    task = single(OperationType.BDMA, BdmaOperation(num_transfers=1), bdma_surface(**values))
    assert message in str(refuse(task))


def test_more_bridge_transfers_than_there_is_room_for_are_refused() -> None:
    surface = replace(bdma_surface(), num_transfers=21)
    task = single(OperationType.BDMA, BdmaOperation(num_transfers=21), surface)
    assert "21 transfers are more than 20" in str(refuse(task))


def test_a_normalisation_must_keep_its_cube_its_type_and_its_window() -> None:
    usual = CdpSurface(src_data=cube(), dst_data=cube())
    wide = CdpSurface(src_data=cube(), dst_data=replace(cube(), width=2))
    fed = CdpSurface(src_data=cube(memory_type=FLY), dst_data=cube())
    for operation, surface, message in (
        (CDP, wide, "they must be equal"),
        (CDP, fed, "not come on the fly"),
        (replace(CDP, out_precision=1), usual, "reads precision 0 and writes 1"),
        (replace(CDP, local_size=4), usual, "sums 4 channels"),
    ):
        assert message in str(refuse(single(OperationType.CDP, operation, surface)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_num": 0}, "batch number is 0"),
        ({"src_precision": 5}, "precision is 5"),
        ({"x1_op": SdpStage(enable=1, type=4)}, "X1's type is 4"),
        ({"x2_op": SdpStage(enable=1, mode=3)}, "X2's mode is 3"),
        ({"x1_op": SdpStage(enable=1, alu_type=3)}, "X1's algorithm is 3"),
        ({"y_op": SdpStage(enable=1, act=4)}, "Y's activation is 4"),
        ({"x1_op": SdpStage(enable=1, type=2, mode=1, precision=4)}, "X1's precision is 4"),
        ({"x1_op": SdpStage(enable=1, alu_operand=1 << 16)}, "65536 does not fit"),
        ({"lut_index": 4}, "lookup table 4 is outside the network's 4"),
    ],
)
def test_a_single_point_operation_beyond_the_limits_is_refused(
    values: dict[str, Any], message: str
) -> None:
    surface = SdpSurface(src_data=cube(), dst_data=cube())
    assert message in str(refuse(single(OperationType.SDP, replace(SDP, **values), surface)))


def test_a_merge_needs_planes_and_a_contraction_strides() -> None:
    surface = RubikSurface(src_data=cube(), dst_data=cube())
    merge = single(OperationType.RUBIK, RubikOperation(mode=2), surface)
    assert "plane stride of 0" in str(refuse(merge))
    contract = single(OperationType.RUBIK, RubikOperation(), surface)
    assert "strides 0 x 0" in str(refuse(contract))
    unknown = single(OperationType.RUBIK, RubikOperation(mode=3), surface)
    assert "the mode is 3" in str(refuse(unknown))


def test_a_fixed_address_for_a_dynamic_region_is_refused() -> None:
    task = single(OperationType.PDP, PDP, PdpSurface(src_data=cube(), dst_data=cube()))
    memory = FakeMemory()
    network = replace(task.network(), dynamic_roi=1, input_layer=0, surface_index=DATA)
    addresses = task.write(memory, network=network)
    task.write_rois(memory, [Roi()])
    scheduler = EngineScheduler(FakeHardware(NV_FULL, lambda _: 0), memory, NV_FULL)
    with pytest.raises(NvdlaError, match="has a fixed address"):
        scheduler.execute_task(addresses)
