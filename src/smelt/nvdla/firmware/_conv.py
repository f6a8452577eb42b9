"""Programming of the convolution core: five blocks, from the last of the pipeline to the first."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.nvdla._errors import NvError
from smelt.nvdla.firmware._unit_driver import UnitDriver
from smelt.nvdla.loadable import MemoryType, OperationType
from smelt.types import counted, override

if TYPE_CHECKING:
    from smelt.nvdla.firmware._context import OperationContext
    from smelt.nvdla.loadable import ConvOperation, ConvSurface


class ConvMode(IntEnum):
    """Algorithm of a convolution."""

    DIRECT = 0
    WINOGRAD = 1


class WeightFormat(IntEnum):
    """Storage format of weights."""

    PLAIN = 0
    COMPRESSED = 1


_FEATURE_FORMAT: Final = 36
"""Data format of feature data; lower numbers are pixel formats."""
_PIXEL_BYTES: Final = (
    (1, 2, 2, 2, 2, 2)  # one plane of 8, 10, 12, 16 bits
    + (8,) * 6  # four 16-bit components
    + (4,) * 16  # four components in 32 bits
    + (1, 1, 2, 2, 2, 2, 2, 2)  # a luminance plane and a chrominance plane
)
"""Bytes of a pixel in its first plane, by data format."""
_HALF_WORD: Final = 0xFFFF
"""Mask of a 16-bit field."""


class ConvDriver(UnitDriver):
    """The convolution core."""

    op_type: ClassVar[OperationType] = OperationType.CONV
    blocks: ClassVar[tuple[str, ...]] = ("CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA")

    counter_switches: ClassVar[str] = "CDMA.D_PERF_ENABLE"

    @override
    def program(
        self, context: OperationContext, operation: ConvOperation, surface: ConvSurface
    ) -> None:
        _check(context, operation, surface)
        context.wait_for(
            "CDMA.S_CBUF_FLUSH_STATUS",
            "FLUSH_DONE",
            "the hardware does not finish flushing the convolution buffer",
        )
        _program_cacc(context, operation, surface)
        _program_input(context, operation, surface)
        _program_csc(context, operation, surface)
        _program_cdma_input(context, operation, surface)
        _program_cdma_weights(context, operation, surface)
        _program_cdma_conversion(context, operation)


def _check(context: OperationContext, operation: ConvOperation, surface: ConvSurface) -> None:
    """Refuse an operation that the convolution core cannot run."""
    configuration = context.configuration
    context.check_enum(operation.conv_mode, len(ConvMode), "the convolution mode")
    context.check_enum(operation.weight_format, len(WeightFormat), "the weights' format")
    context.check_enum(operation.data_format, _FEATURE_FORMAT + 1, "the data format")
    context.check_enum(operation.pixel_mapping, 1, "the pixel mapping")
    context.check_precision(operation.in_precision, "the input's precision")
    context.check_precision(operation.out_precision, "the processing precision")
    if operation.conv_mode == ConvMode.WINOGRAD:
        context.require_support(configuration.has_winograd, "Winograd mode")
    if operation.batch > 1:
        context.require_support(configuration.has_batch, "multi-batch mode")
    if operation.weight_format == WeightFormat.COMPRESSED and not configuration.has_compression:
        context.refuse(
            f"{configuration.name} does not support compressed weights", NvError.NOT_SUPPORTED
        )
    context.require(
        operation.out_cvt.scale == 1 and operation.out_cvt.offset == 0,
        f"the output converter has scale {operation.out_cvt.scale} and offset "
        f"{operation.out_cvt.offset}; they must be 1 and 0, because the hardware can only shift",
    )
    context.check_cube(surface.src_data, "the source")
    context.check_cube(surface.dst_data, "the destination")
    if operation.data_format == _FEATURE_FORMAT:
        context.check_stored(surface.src_data, "the source")
    target = surface.dst_data
    context.require(
        (target.width, target.height) != (1, 1) or target.line_stride == configuration.atom_bytes,
        f"the destination is 1 x 1 and has a line stride of {target.line_stride} bytes; the stride "
        f"must be {configuration.atom_bytes} bytes, the size of an atom",
    )
    context.require(
        operation.data_bank + operation.weight_bank <= configuration.buffer_banks,
        f"the operation uses {counted(operation.data_bank, 'bank')} for data and "
        f"{operation.weight_bank} for weights; the convolution buffer has only "
        f"{configuration.buffer_banks}",
    )


def _program_cacc(
    context: OperationContext, operation: ConvOperation, surface: ConvSurface
) -> None:
    """Program the accumulator, and the mode of the multipliers."""
    target = surface.dst_data
    address = 0
    if target.type != MemoryType.ON_THE_FLY:
        address = context.resolve_cube(target, "the destination")
    for block in ("CACC", "CMAC_A", "CMAC_B"):
        context.write(block, CONV_MODE=operation.conv_mode, PROC_PRECISION=operation.out_precision)
    context.write_extents("CACC", target, "DATAOUT_")
    context.write_word("CACC.D_DATAOUT_ADDR", address & 0xFFFFFFFF)
    context.write("CACC", BATCHES=operation.batch - 1)
    for name, stride in (("LINE", target.line_stride), ("SURF", target.surf_stride)):
        # The output goes to SDP on the fly, so nothing uses the bits that do not fit.
        register = f"CACC.D_{name}_STRIDE"
        mask = context.registers.map.register(register).write_mask
        context.write_word(register, stride & mask)
    is_packed = int((target.width, target.height) == (1, 1))
    context.write(
        "CACC",
        LINE_PACKED=is_packed,
        SURF_PACKED=is_packed,
        CLIP_TRUNCATE=operation.out_cvt.truncate,
    )


def _program_input(
    context: OperationContext, operation: ConvOperation, surface: ConvSurface
) -> None:
    """Program what the convolution DMA and the sequencer must know of the input and the weights."""
    # CDMA converts the data before the sequencer reads them.
    precisions = {"CSC": operation.out_precision, "CDMA": operation.in_precision}
    for block, precision in precisions.items():
        context.write(
            block,
            CONV_MODE=operation.conv_mode,
            IN_PRECISION=precision,
            PROC_PRECISION=operation.out_precision,
            DATA_REUSE=operation.data_reuse,
            WEIGHT_REUSE=operation.weight_reuse,
            SKIP_DATA_RLS=operation.skip_data_rls,
            SKIP_WEIGHT_RLS=operation.skip_weight_rls,
            DATAIN_WIDTH_EXT=operation.input_width_csc - 1,
            DATAIN_HEIGHT_EXT=operation.input_height_csc - 1,
            BATCHES=operation.batch - 1,
            ENTRIES=operation.entry_per_slice - 1,
            WEIGHT_FORMAT=operation.weight_format,
            DATA_BANK=operation.data_bank - 1,
            WEIGHT_BANK=operation.weight_bank - 1,
        )
        context.write_word(f"{block}.D_WEIGHT_BYTES", surface.weight_data.size)
        context.write_signed(block, PAD_VALUE=operation.pad_val)


def _program_csc(context: OperationContext, operation: ConvOperation, surface: ConvSurface) -> None:
    """Program the input, weights, output and window of the sequencer."""
    target = surface.dst_data
    is_direct = operation.conv_mode == ConvMode.DIRECT  # in Winograd mode CDMA strides and pads
    context.write(
        "CSC",
        DATAIN_FORMAT=int(operation.data_format != _FEATURE_FORMAT),
        DATAIN_CHANNEL_EXT=operation.input_channel_csc - 1,
        Y_EXTENSION=operation.post_extension,
        WEIGHT_WIDTH_EXT=operation.kernel_width_csc - 1,
        WEIGHT_HEIGHT_EXT=operation.kernel_height_csc - 1,
        WEIGHT_CHANNEL_EXT=operation.kernel_channel_csc - 1,
        WEIGHT_KERNEL=target.channel - 1,
        DATAOUT_WIDTH=operation.input_width_cmac - 1,
        DATAOUT_HEIGHT=operation.input_height_cmac - 1,
        DATAOUT_CHANNEL=target.channel - 1,
        ATOMICS=target.width * target.height - 1,
        RLS_SLICES=operation.release - 1,
        CONV_X_STRIDE_EXT=operation.conv_stride_x - 1 if is_direct else 0,
        CONV_Y_STRIDE_EXT=operation.conv_stride_y - 1 if is_direct else 0,
        X_DILATION_EXT=operation.dilation_x - 1,
        Y_DILATION_EXT=operation.dilation_y - 1,
        PAD_LEFT=operation.pad_x_left if is_direct else 0,
        PAD_TOP=operation.pad_y_top if is_direct else 0,
        PRA_TRUNCATE=operation.pra_truncate,
    )
    is_compressed = operation.weight_format == WeightFormat.COMPRESSED
    context.write_word("CSC.D_WMB_BYTES", surface.wmb_data.size if is_compressed else 0)


def _program_cdma_input(
    context: OperationContext, operation: ConvOperation, surface: ConvSurface
) -> None:
    """Program the source of the convolution DMA, and its data format."""
    source = surface.src_data
    atom = context.configuration.atom_bytes
    is_pixel = operation.data_format != _FEATURE_FORMAT
    bytes_per_pixel = _PIXEL_BYTES[operation.data_format] if is_pixel else 2
    context.write(
        "CDMA",
        DATAIN_FORMAT=int(is_pixel),
        PIXEL_FORMAT=operation.data_format if is_pixel else 0,
        PIXEL_MAPPING=operation.pixel_mapping,
        PIXEL_SIGN_OVERRIDE=operation.pixel_override,
        GRAINS=operation.fetch_grain - 1,
        DATAIN_RAM_TYPE=context.ram_type(source.type, "the source"),
        LINE_PACKED=int(source.line_stride == source.width * atom),
        SURF_PACKED=int(source.surf_stride == source.width * source.height * atom),
    )
    context.write_word("CDMA.D_BATCH_STRIDE", operation.batch_stride)
    context.write_extents("CDMA", source, "DATAIN_")
    address = context.resolve_input(source, "the source", bytes_per_pixel)
    context.write_address("CDMA.D_DAIN_ADDR_LOW_0", "CDMA.D_DAIN_ADDR_HIGH_0", address)
    second = address + surface.offset_u
    context.require(
        0 <= second < 1 << 64,
        f"the address of the second plane, {address:#x} plus the offset {surface.offset_u}, does "
        "not fit into 64 bits",
    )
    context.write_address("CDMA.D_DAIN_ADDR_LOW_1", "CDMA.D_DAIN_ADDR_HIGH_1", second)
    context.write_word("CDMA.D_LINE_STRIDE", source.line_stride)
    context.write_word("CDMA.D_SURF_STRIDE", source.surf_stride)
    context.write_word("CDMA.D_LINE_UV_STRIDE", surface.in_line_uv_stride)


def _program_cdma_weights(
    context: OperationContext, operation: ConvOperation, surface: ConvSurface
) -> None:
    """Program the weights of the convolution DMA."""
    weights = surface.weight_data
    context.write(
        "CDMA",
        BYTE_PER_KERNEL=operation.bytes_per_kernel - 1,
        WEIGHT_KERNEL=surface.dst_data.channel - 1,
        WEIGHT_RAM_TYPE=context.ram_type(weights.type, "the weights"),
    )
    address = 0  # not used if the weights are in the buffer already
    if weights.address != -1 or not operation.weight_reuse:
        address = context.resolve_cube(weights, "the weights")
    context.write_address("CDMA.D_WEIGHT_ADDR_LOW", "CDMA.D_WEIGHT_ADDR_HIGH", address)
    if operation.weight_format != WeightFormat.COMPRESSED:
        return
    for name, cube in (("WGS", surface.wgs_data), ("WMB", surface.wmb_data)):
        part = context.resolve_cube(cube, f"the compressed weights' {name}")
        context.write_address(f"CDMA.D_{name}_ADDR_LOW", f"CDMA.D_{name}_ADDR_HIGH", part)
    context.write_word("CDMA.D_WMB_BYTES", surface.wmb_data.size)


def _program_cdma_conversion(context: OperationContext, operation: ConvOperation) -> None:
    """Program the mean, converter, strides, padding and banks of the convolution DMA."""
    has_mean = context.check_enum(operation.mean_format, 2, "the mean's format")
    if has_mean:
        context.write(
            "CDMA",
            MEAN_RY=operation.mean_ry & _HALF_WORD,
            MEAN_GU=operation.mean_gu & _HALF_WORD,
            MEAN_BV=operation.mean_bv & _HALF_WORD,
            MEAN_AX=operation.mean_ax & _HALF_WORD,
        )
    converter = operation.in_cvt
    context.write(
        "CDMA",
        MEAN_FORMAT=has_mean,
        CVT_EN=int(converter.enable != 0),
        CVT_TRUNCATE=converter.truncate if converter.enable else 0,
        CONV_X_STRIDE=operation.conv_stride_x - 1,
        CONV_Y_STRIDE=operation.conv_stride_y - 1,
        PAD_LEFT=operation.pad_x_left,
        PAD_RIGHT=operation.pad_x_right,
        PAD_TOP=operation.pad_y_top,
        PAD_BOTTOM=operation.pad_y_bottom,
    )
    if converter.enable:
        context.write_signed("CDMA", CVT_OFFSET=converter.offset, CVT_SCALE=converter.scale)
