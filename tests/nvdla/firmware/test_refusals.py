"""Descriptors that hardware would choke on are refused, and the operation is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.firmware import EngineScheduler
from smelt.nvdla.hardware import NV_FULL, NV_LARGE, NV_SMALL
from smelt.nvdla.loadable import (
    BdmaOperation,
    CdpSurface,
    Converter,
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
    PDP,
    SDP,
    TaskBuilder,
    cube,
)

if TYPE_CHECKING:
    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.loadable import Operation, Surface

from tests.nvdla.firmware._single import FLY, bdma_surface, conv_surface, execute, single


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
        ({"conv_mode": 2}, "the convolution mode is 2"),
        ({"weight_format": 2}, "format is 2"),
        ({"data_format": 37}, "data format is 37"),
        ({"pixel_mapping": 1}, "pixel mapping"),
        ({"in_precision": 3}, "precision is 3"),
        ({"mean_format": 2}, "mean's format"),
        ({"kernel_width_csc": 0}, "-1 does not fit into CSC.D_WEIGHT_SIZE_EXT_0.WEIGHT_WIDTH_EXT"),
        ({"conv_stride_x": 9}, "8 does not fit into CSC.D_CONV_STRIDE_EXT.CONV_X_STRIDE_EXT"),
        ({"data_bank": 9, "weight_bank": 9}, "buffer has only 16"),
        ({"batch": 0}, "-1 does not fit into CACC.D_BATCH_NUMBER"),
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
        ({"weight_data": replace(cube(), size=100)}, "0x64 does not fit into CSC.D_WEIGHT_BYTES"),
        (
            {"weight_data": replace(cube(), address=-1, size=128)},
            "the address index of the weights is -1",
        ),
        ({"src_data": replace(cube(), address=-1)}, "the source has no address"),
        ({"src_data": replace(cube(), line_stride=40)}, "line stride of 40"),
        ({"src_data": replace(cube(), type=MemoryType.SRAM)}, "declared to be in SRAM"),
        ({"src_data": replace(cube(), type=7)}, "unknown memory type 7"),
        ({"src_data": replace(cube(), width=0)}, "must be 1 to 8192"),
        ({"src_data": cube(memory_type=FLY)}, "must be 0 (DRAM) or 1 (SRAM)"),
        ({"dst_data": replace(cube(memory_type=FLY), line_stride=64)}, "must be 32 bytes"),
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
        (conv, replace(CONV, batch=2), surface, NV_SMALL, "no multi-batch mode"),
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
        ({"split_num": 65}, "1 to 64"),
        ({"split_num": 0}, "splits is 0"),
        ({"pool_mode": 3}, "mode is 3"),
        ({"pool_width": 8}, "the kernel is 9 x "),
        ({"pad_left": 8}, "8 does not fit into"),
        ({"precision": Precision.FP16, "padding_value": (1,) * 7}, "in fp16 they must be 0"),
        ({"padding_value": (1 << 20,) * 7}, "does not fit into PDP.D_POOLING_PADDING_VALUE_1_CFG"),
    ],
)
def test_a_pooling_beyond_the_limits_is_refused(values: dict[str, Any], message: str) -> None:
    surface = PdpSurface(src_data=cube(), dst_data=cube())
    assert message in str(refuse(single(OperationType.PDP, replace(PDP, **values), surface)))


def test_a_pooling_that_streams_out_or_is_split_while_fed_on_the_fly_is_refused() -> None:
    surface = PdpSurface(src_data=cube(), dst_data=cube(memory_type=FLY))
    assert "no engine reads pooled data" in str(refuse(single(OperationType.PDP, PDP, surface)))
    fed = PdpSurface(src_data=cube(memory_type=FLY), dst_data=cube())
    split = single(OperationType.PDP, replace(PDP, split_num=2), fed)
    assert "must be 1 for data on the fly" in str(refuse(split))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"line_size": 33}, "positive multiple of 32"),
        ({"line_size": 0}, "positive multiple of 32"),
        ({"line_repeat": 8193}, "line_repeat of 8193"),
        ({"surface_repeat": 0}, "surface_repeat of 0"),
        ({"source_line": 32}, "less than the 64 bytes of a line"),
        ({"destination_surface": 64}, "less than the surface's 3 lines of 64"),
        ({"source_address": 99}, "transfer 0's source is 99; it must be 0 to 7"),
        ({"source_line": 97, "source_surface": 320}, "0x61 does not fit into BDMA.CFG_SRC_LINE"),
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
    assert "21 transfers; at most 20" in str(refuse(task))


def test_a_normalisation_must_keep_its_cube_its_type_and_its_window() -> None:
    usual = CdpSurface(src_data=cube(), dst_data=cube())
    wide = CdpSurface(src_data=cube(), dst_data=replace(cube(), width=2))
    fed = CdpSurface(src_data=cube(memory_type=FLY), dst_data=cube())
    for operation, surface, message in (
        (CDP, wide, "they must be equal"),
        (CDP, fed, "not on the fly"),
        (
            replace(CDP, out_precision=1),
            usual,
            "input precision is INT8 and the output precision is INT16",
        ),
        (replace(CDP, local_size=4), usual, "summed channels is 4"),
    ):
        assert message in str(refuse(single(OperationType.CDP, operation, surface)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_num": 0}, "batch number is 0"),
        ({"src_precision": 5}, "precision is 5"),
        ({"x1_op": SdpStage(enable=1, type=4)}, "X1 stage's type is 4"),
        ({"x2_op": SdpStage(enable=1, mode=3)}, "X2 stage's mode is 3"),
        ({"x1_op": SdpStage(enable=1, alu_type=3)}, "X1 stage's ALU algorithm is 3"),
        ({"y_op": SdpStage(enable=1, act=4)}, "Y stage's activation is 4"),
        ({"x1_op": SdpStage(enable=1, type=2, mode=1, precision=4)}, "X1 stage's precision is 4"),
        ({"x1_op": SdpStage(enable=1, alu_operand=1 << 16)}, "65536 does not fit into"),
        ({"lut_index": 4}, "lookup table 4 does not exist"),
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
    assert "strides are 0 and 0" in str(refuse(contract))
    unknown = single(OperationType.RUBIK, RubikOperation(mode=3), surface)
    assert "mode is 3" in str(refuse(unknown))


def test_a_fixed_address_for_a_dynamic_region_is_refused() -> None:
    task = single(OperationType.PDP, PDP, PdpSurface(src_data=cube(), dst_data=cube()))
    memory = FakeMemory()
    network = replace(task.network(), dynamic_roi=1, input_layer=0, surface_index=DATA)
    addresses = task.write(memory, network=network)
    task.write_rois(memory, [Roi()])
    scheduler = EngineScheduler(FakeHardware(NV_FULL, lambda _: 0), memory, NV_FULL)
    with pytest.raises(NvdlaError, match="has a fixed address"):
        scheduler.execute_task(addresses)


@pytest.mark.parametrize(
    ("made", "taken", "message"),
    [
        ({}, {"src_precision": 1, "dst_precision": 1}, "the precision is INT16"),
        ({}, {"batch_num": 2}, "the batch number is 2, but that of operation 0"),
        ({}, {"conv_mode": 1}, "the convolution mode is 1"),
        ({"dst_data": replace(cube(memory_type=FLY), width=2)}, {}, "the source is 1 x 1 x 8"),
        ({"dst_data": cube()}, {}, "operation 0, the fused parent, writes to memory"),
    ],
)
def test_two_ends_of_a_stream_that_differ_are_refused(
    made: dict[str, Any], taken: dict[str, Any], message: str
) -> None:
    task = single(OperationType.CONV, CONV, conv_surface(**made))
    surface = SdpSurface(src_data=cube(memory_type=FLY), dst_data=cube())
    task.contents[1] = replace(SDP, **taken), surface
    with pytest.raises(NvdlaError, match=r"operation 1 \(SDP\): ") as caught:
        execute(task)
    assert message in str(caught.value)
    assert caught.value.status is NvError.BAD_PARAMETER


def test_an_operation_that_does_not_take_what_streams_to_it_is_refused() -> None:
    task = single(OperationType.CONV, CONV, conv_surface())
    task.contents[1] = SDP, SdpSurface(src_data=cube(), dst_data=cube())
    with pytest.raises(NvdlaError, match="the source is in memory, but operation 0"):
        execute(task)
