"""Descriptors of the engine scheduler: network, operations, surfaces, tables and statistics.

Source: nvdla/sw, firmware interface 0.10 to 0.12 (dla_interface.h).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from smelt.nvdla._descriptor_codec import Descriptor, at

OPERATION_STRIDE_BYTES: Final = 116
"""Distance between operations of any type in ``op_list``."""
SURFACE_STRIDE_BYTES: Final = 644
"""Distance between the surfaces of operations of any type in ``surf_list``."""
STATISTICS_STRIDE_BYTES: Final = 44
"""Distance between the statistics of operations of any type in ``stat_list``."""
MAX_BDMA_TRANSFERS: Final = 20
"""Maximum number of transfers in a bridge DMA operation."""


class OperationType(IntEnum):
    """Hardware engine that runs an operation."""

    BDMA = 0
    CONV = 1
    SDP = 2
    PDP = 3
    CDP = 4
    RUBIK = 5


class MemoryType(IntEnum):
    """Memory that holds a cube."""

    DRAM = 0
    SRAM = 1
    ON_THE_FLY = 2
    """An engine passes the cube directly to another one; the cube has no address."""


class OperationEvent(IntEnum):
    """Event of an operation that resolves a dependency of another operation."""

    NONE = 0
    COMPLETED = 1
    PROGRAMMED = 2
    ENABLED = 3
    CDMA_WEIGHTS_DONE = 4
    CDMA_DATA_DONE = 5


class NetworkDescriptor(Descriptor):
    """Network descriptor, at the first address of a task.

    Fields whose names end in ``_index`` are indices into the task's address list; -1 means absent.
    """

    operation_desc_index: int = at(0, "i16", default=-1)
    surface_desc_index: int = at(2, "i16", default=-1)
    dependency_graph_index: int = at(4, "i16", default=-1)
    lut_data_index: int = at(6, "i16", default=-1)
    roi_array_index: int = at(8, "i16", default=-1)
    surface_index: int = at(10, "i16", default=-1)
    stat_list_index: int = at(12, "i16", default=-1)
    reserved1: int = at(14, "i16")
    op_head: tuple[int, ...] = at(16, "i16", 6, default=-1)
    """Index of the first operation of each type, or -1."""
    num_rois: int = at(28, "u16")
    num_operations: int = at(30, "u16")
    num_luts: int = at(32, "u16")
    num_addresses: int = at(34, "u16")
    input_layer: int = at(36, "i16")
    dynamic_roi: int = at(38, "u8")
    reserved0: int = at(39, "u8")


class Consumer(Descriptor):
    """Edge of the dependency graph: the index of the waiting operation, and the event."""

    index: int = at(0, "i16", default=-1)
    event: int = at(2, "u8", default=1)
    reserved: int = at(3, "u8")


class CommonOperation(Descriptor):
    """Node of the dependency graph: an operation's type, dependency count and edges."""

    index: int = at(0, "i16")
    roi_index: int = at(2, "i8")
    op_type: int = at(3, "u8")
    dependency_count: int = at(4, "u8")
    reserved0: tuple[int, ...] = at(5, "u8", 3)
    consumers: tuple[Consumer, ...] = at(8, Consumer, 6)
    fused_parent: Consumer = at(32, Consumer)


class RoiArray(Descriptor):
    """Header of the list of regions of interest."""

    array_length: int = at(0, "u32")
    array_reserved: int = at(4, "u32")


class Roi(Descriptor):
    """Region of interest."""

    left: int = at(0, "u32")
    top: int = at(4, "u32")
    right: int = at(8, "u32")
    bottom: int = at(12, "u32")


class Converter(Descriptor):
    """Converter: y = saturate(round((x - offset) * scale >> truncate))."""

    scale: int = at(0, "i16")
    truncate: int = at(2, "u8")
    enable: int = at(3, "u8")
    offset: int = at(4, "i32")


class DataCube(Descriptor):
    """Tensor of an operation: location, extents, and strides in bytes."""

    type: int = at(0, "u16")
    """Memory type, a `MemoryType`."""
    address: int = at(2, "i16", default=-1)
    """Index into the task's address list, or -1."""
    offset: int = at(4, "u32", since_0_12=True)
    """Offset in bytes from the address."""
    size: int = at(8, "u32")
    width: int = at(12, "u16")
    height: int = at(14, "u16")
    channel: int = at(16, "u16")
    reserved0: int = at(18, "u16")
    line_stride: int = at(20, "u32")
    surf_stride: int = at(24, "u32")
    plane_stride: int = at(28, "u32")


class BdmaTransfer(Descriptor):
    """One copy of lines and surfaces; sizes and strides are in bytes."""

    source_address: int = at(0, "i16", default=-1)
    destination_address: int = at(2, "i16", default=-1)
    line_size: int = at(4, "u32")
    line_repeat: int = at(8, "u32")
    source_line: int = at(12, "u32")
    destination_line: int = at(16, "u32")
    surface_repeat: int = at(20, "u32")
    source_surface: int = at(24, "u32")
    destination_surface: int = at(28, "u32")


class BdmaSurface(Descriptor):
    """Transfers of a bridge DMA operation."""

    source_type: int = at(0, "u8")
    """Memory type of the sources, a `MemoryType`."""
    destination_type: int = at(1, "u8")
    """Memory type of the destinations, a `MemoryType`."""
    num_transfers: int = at(2, "u16")
    transfers: tuple[BdmaTransfer, ...] = at(4, BdmaTransfer, MAX_BDMA_TRANSFERS)


class BdmaOperation(Descriptor):
    """Bridge DMA operation."""

    num_transfers: int = at(0, "u16")
    reserved0: int = at(2, "u16")


class ConvSurface(Descriptor):
    """Tensors of a convolution."""

    weight_data: DataCube = at(0, DataCube)
    wmb_data: DataCube = at(32, DataCube)
    wgs_data: DataCube = at(64, DataCube)
    src_data: DataCube = at(96, DataCube)
    dst_data: DataCube = at(128, DataCube)
    offset_u: int = at(160, "i64")
    in_line_uv_stride: int = at(168, "u32")


class ConvOperation(Descriptor):
    """Convolution: mode, buffer banks, kernel, padding and converters."""

    conv_mode: int = at(0, "u8")
    data_reuse: int = at(1, "u8")
    weight_reuse: int = at(2, "u8")
    skip_data_rls: int = at(3, "u8")
    skip_weight_rls: int = at(4, "u8")
    reserved0: int = at(5, "u8")
    entry_per_slice: int = at(6, "u16")
    data_format: int = at(8, "u8")
    pixel_mapping: int = at(9, "u8")
    fetch_grain: int = at(10, "u16")
    reserved_b: tuple[int, ...] = at(12, "u8", 8)
    batch: int = at(20, "u8")
    weight_format: int = at(21, "u8")
    data_bank: int = at(22, "u8")
    weight_bank: int = at(23, "u8")
    batch_stride: int = at(24, "u32")
    post_extension: int = at(28, "u8")
    pixel_override: int = at(29, "u8")
    release: int = at(30, "u16")
    input_width_csc: int = at(32, "u16")
    input_height_csc: int = at(34, "u16")
    input_channel_csc: int = at(36, "u16")
    kernel_width_csc: int = at(38, "u16")
    kernel_height_csc: int = at(40, "u16")
    kernel_channel_csc: int = at(42, "u16")
    input_width_cmac: int = at(44, "u16")
    input_height_cmac: int = at(46, "u16")
    bytes_per_kernel: int = at(48, "u32")
    mean_ry: int = at(52, "i16")
    mean_gu: int = at(54, "i16")
    mean_bv: int = at(56, "i16")
    mean_ax: int = at(58, "i16")
    mean_format: int = at(60, "u8")
    conv_stride_x: int = at(61, "u8")
    conv_stride_y: int = at(62, "u8")
    pad_x_left: int = at(63, "u8")
    pad_x_right: int = at(64, "u8")
    pad_y_top: int = at(65, "u8")
    pad_y_bottom: int = at(66, "u8")
    dilation_x: int = at(67, "u8")
    dilation_y: int = at(68, "u8")
    reserved2: tuple[int, ...] = at(69, "u8", 2)
    pra_truncate: int = at(71, "u8")
    in_precision: int = at(72, "u8")
    out_precision: int = at(73, "u8")
    pad_val: int = at(74, "i16")
    in_cvt: Converter = at(76, Converter)
    out_cvt: Converter = at(84, Converter)


class LutParameters(Descriptor):
    """Two lookup tables, their ranges, and the slopes below and above the ranges."""

    linear_exp_table: tuple[int, ...] = at(0, "i16", 65)
    linear_only_table: tuple[int, ...] = at(130, "i16", 257)
    linear_exp_offset: int = at(644, "i8")
    """Offset of the exponent, or number of fraction bits of a linear table."""
    reserved0: int = at(645, "u8")
    linear_only_offset: int = at(646, "i8")
    reserved1: int = at(647, "u8")
    linear_exp_start: int = at(648, "u64")
    linear_exp_end: int = at(656, "u64")
    linear_only_start: int = at(664, "u64")
    linear_only_end: int = at(672, "u64")
    linear_exp_underflow_scale: int = at(680, "i16")
    """Scale of an integer slope, or bits of an fp16 slope."""
    linear_exp_underflow_shift: int = at(682, "i8")
    reserved2: int = at(683, "u8")
    linear_exp_overflow_scale: int = at(684, "i16")
    linear_exp_overflow_shift: int = at(686, "i8")
    reserved3: int = at(687, "u8")
    linear_only_underflow_scale: int = at(688, "i16")
    linear_only_underflow_shift: int = at(690, "i8")
    reserved4: int = at(691, "u8")
    linear_only_overflow_scale: int = at(692, "i16")
    linear_only_overflow_shift: int = at(694, "i8")
    reserved5: int = at(695, "u8")
    hybrid_priority: int = at(696, "u8")
    underflow_priority: int = at(697, "u8")
    overflow_priority: int = at(698, "u8")
    method: int = at(699, "u8")


class SdpSurface(Descriptor):
    """Tensors of an SDP operation."""

    src_data: DataCube = at(0, DataCube)
    x1_data: DataCube = at(32, DataCube)
    x2_data: DataCube = at(64, DataCube)
    y_data: DataCube = at(96, DataCube)
    dst_data: DataCube = at(128, DataCube)


class SdpStage(Descriptor):
    """One of the stages X1, X2 and Y of an SDP operation."""

    enable: int = at(0, "u8")
    alu_type: int = at(1, "u8")
    type: int = at(2, "u8")
    mode: int = at(3, "u8")
    act: int = at(4, "u8")
    shift_value: int = at(5, "u8")
    truncate: int = at(6, "u8")
    precision: int = at(7, "u8")
    alu_operand: int = at(8, "i32")
    mul_operand: int = at(12, "i32")
    alu_cvt: Converter = at(16, Converter)
    mul_cvt: Converter = at(24, Converter)


class SdpOperation(Descriptor):
    """SDP operation: bias, scale, elementwise operations, activation and conversion."""

    src_precision: int = at(0, "u8")
    dst_precision: int = at(1, "u8")
    lut_index: int = at(2, "i16", default=-1)
    out_cvt: Converter = at(4, Converter)
    conv_mode: int = at(12, "u8")
    batch_num: int = at(13, "u8")
    reserved0: int = at(14, "u16")
    batch_stride: int = at(16, "u32")
    x1_op: SdpStage = at(20, SdpStage)
    x2_op: SdpStage = at(52, SdpStage)
    y_op: SdpStage = at(84, SdpStage)


class _SourceAndTarget(Descriptor):
    """The tensor that an operation reads, and the one that it writes."""

    src_data: DataCube = at(0, DataCube)
    dst_data: DataCube = at(32, DataCube)


class PdpSurface(_SourceAndTarget):
    """Tensors of a pooling operation."""


class PdpOperation(Descriptor):
    """Pooling operation."""

    partial_in_width_first: int = at(0, "u16")
    partial_in_width_mid: int = at(2, "u16")
    partial_in_width_last: int = at(4, "u16")
    partial_width_first: int = at(6, "u16")
    partial_width_mid: int = at(8, "u16")
    partial_width_last: int = at(10, "u16")
    split_num: int = at(12, "u8")
    pool_mode: int = at(13, "u8")
    pool_width: int = at(14, "u8")
    pool_height: int = at(15, "u8")
    stride_x: int = at(16, "u8")
    stride_y: int = at(17, "u8")
    pad_left: int = at(18, "u8")
    pad_right: int = at(19, "u8")
    pad_top: int = at(20, "u8")
    pad_bottom: int = at(21, "u8")
    precision: int = at(22, "u8")
    reserved0: int = at(23, "u8")
    padding_value: tuple[int, ...] = at(24, "i32", 7)


class CdpSurface(_SourceAndTarget):
    """Tensors of a normalisation across channels."""


class CdpOperation(Descriptor):
    """Local response normalisation across channels."""

    in_precision: int = at(0, "u8")
    out_precision: int = at(1, "u8")
    lut_index: int = at(2, "i16", default=-1)
    in_cvt: Converter = at(4, Converter)
    out_cvt: Converter = at(12, Converter)
    local_size: int = at(20, "u8")
    bypass_sqsum: int = at(21, "u8")
    bypass_out_mul: int = at(22, "u8")
    reserved0: int = at(23, "u8")


class RubikSurface(_SourceAndTarget):
    """Tensors of a reshape."""


class RubikOperation(Descriptor):
    """Reshape: contract, split or merge."""

    mode: int = at(0, "u8")
    precision: int = at(1, "u8")
    stride_x: int = at(2, "u8")
    stride_y: int = at(3, "u8")


Operation = (
    BdmaOperation | ConvOperation | SdpOperation | PdpOperation | CdpOperation | RubikOperation
)
Surface = BdmaSurface | ConvSurface | SdpSurface | PdpSurface | CdpSurface | RubikSurface


class BdmaStatistics(Descriptor):
    """Counters of a bridge DMA operation; the runtime is in microseconds."""

    read_stall: int = at(0, "u32", source_register="BDMA.STATUS_GRP{group}_READ_STALL")
    write_stall: int = at(4, "u32", source_register="BDMA.STATUS_GRP{group}_WRITE_STALL")
    runtime: int = at(8, "u32")


class ConvStatistics(Descriptor):
    """Counters of a convolution; the runtime is in microseconds."""

    data_read_stall: int = at(0, "u32", source_register="CDMA.D_PERF_DAT_READ_STALL")
    weight_read_stall: int = at(4, "u32", source_register="CDMA.D_PERF_WT_READ_STALL")
    data_read_latency: int = at(8, "u32", source_register="CDMA.D_PERF_DAT_READ_LATENCY")
    weight_read_latency: int = at(12, "u32", source_register="CDMA.D_PERF_WT_READ_LATENCY")
    saturation_count: int = at(16, "u32", source_register="CACC.D_OUT_SATURATION")
    nan_data_num: int = at(20, "u32", source_register="CDMA.D_NAN_INPUT_DATA_NUM")
    nan_weight_num: int = at(24, "u32", source_register="CDMA.D_NAN_INPUT_WEIGHT_NUM")
    inf_data_num: int = at(28, "u32", source_register="CDMA.D_INF_INPUT_DATA_NUM")
    inf_weight_num: int = at(32, "u32", source_register="CDMA.D_INF_INPUT_WEIGHT_NUM")
    runtime: int = at(36, "u32")


class SdpStatistics(Descriptor):
    """Counters of an SDP operation; the runtime is in microseconds."""

    nan_input_num: int = at(0, "u32", source_register="SDP.D_STATUS_NAN_INPUT_NUM")
    inf_input_num: int = at(4, "u32", source_register="SDP.D_STATUS_INF_INPUT_NUM")
    nan_output_num: int = at(8, "u32", source_register="SDP.D_STATUS_NAN_OUTPUT_NUM")
    wdma_write_stall: int = at(12, "u32", source_register="SDP.D_PERF_WDMA_WRITE_STALL")
    lut_underflow: int = at(16, "u32", source_register="SDP.D_PERF_LUT_UFLOW")
    lut_overflow: int = at(20, "u32", source_register="SDP.D_PERF_LUT_OFLOW")
    lut_hybrid: int = at(24, "u32", source_register="SDP.D_PERF_LUT_HYBRID")
    lut_le_hit: int = at(28, "u32", source_register="SDP.D_PERF_LUT_LE_HIT")
    lut_lo_hit: int = at(32, "u32", source_register="SDP.D_PERF_LUT_LO_HIT")
    saturation_count: int = at(36, "u32", source_register="SDP.D_PERF_OUT_SATURATION")
    runtime: int = at(40, "u32")


class PdpStatistics(Descriptor):
    """Counters of a pooling operation; the runtime is in microseconds."""

    inf_input_num: int = at(0, "u32", source_register="PDP.D_INF_INPUT_NUM")
    nan_input_num: int = at(4, "u32", source_register="PDP.D_NAN_INPUT_NUM")
    nan_output_num: int = at(8, "u32", source_register="PDP.D_NAN_OUTPUT_NUM")
    write_stall: int = at(12, "u32", source_register="PDP.D_PERF_WRITE_STALL")
    runtime: int = at(16, "u32")


class CdpStatistics(Descriptor):
    """Counters of a normalisation; the runtime is in microseconds."""

    nan_input_num: int = at(0, "u32", source_register="CDP.D_NAN_INPUT_NUM")
    inf_input_num: int = at(4, "u32", source_register="CDP.D_INF_INPUT_NUM")
    nan_output_num: int = at(8, "u32", source_register="CDP.D_NAN_OUTPUT_NUM")
    write_stall: int = at(12, "u32", source_register="CDP.D_PERF_WRITE_STALL")
    lut_uflow: int = at(16, "u32", source_register="CDP.D_PERF_LUT_UFLOW")
    lut_oflow: int = at(20, "u32", source_register="CDP.D_PERF_LUT_OFLOW")
    lut_hybrid: int = at(24, "u32", source_register="CDP.D_PERF_LUT_HYBRID")
    lut_le_hit: int = at(28, "u32", source_register="CDP.D_PERF_LUT_LE_HIT")
    lut_lo_hit: int = at(32, "u32", source_register="CDP.D_PERF_LUT_LO_HIT")
    saturation_count: int = at(36, "u32", source_register="CDP.D_OUT_SATURATION")
    runtime: int = at(40, "u32")


class RubikStatistics(Descriptor):
    """Counters of a reshape; the runtime is in microseconds."""

    read_stall: int = at(0, "u32", source_register="RBK.D_PERF_READ_STALL")
    write_stall: int = at(4, "u32", source_register="RBK.D_PERF_WRITE_STALL")
    runtime: int = at(8, "u32")


class DescriptorClasses(NamedTuple):
    """The structures that describe an operation of one type."""

    operation: type[Operation]
    surface: type[Surface]
    statistics: type[Descriptor]


DESCRIPTOR_CLASSES: Final = {
    OperationType.BDMA: DescriptorClasses(BdmaOperation, BdmaSurface, BdmaStatistics),
    OperationType.CONV: DescriptorClasses(ConvOperation, ConvSurface, ConvStatistics),
    OperationType.SDP: DescriptorClasses(SdpOperation, SdpSurface, SdpStatistics),
    OperationType.PDP: DescriptorClasses(PdpOperation, PdpSurface, PdpStatistics),
    OperationType.CDP: DescriptorClasses(CdpOperation, CdpSurface, CdpStatistics),
    OperationType.RUBIK: DescriptorClasses(RubikOperation, RubikSurface, RubikStatistics),
}


class TaskStatus(Descriptor):
    """Status that the scheduler reports for a completed task."""

    timestamp: int = at(0, "u64")
    status_engine: int = at(8, "u32")
    subframe: int = at(12, "u16")
    status_task: int = at(14, "u16")
