"""Register programs of the convolution pipeline, whose sums go through a plain single-point stage.

Source: NVDLA documentation, Programming Guide, "Convolution pipeline programming", and the register
manual. The documentation's bank and entry sizes are those of nv_full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.nvdla.scalar.arithmetic import Converter, Precision
from tests.nvdla.scalar.point_programs import (
    program_output_converter,
    program_stage,
    program_target,
)
from tests.nvdla.scalar.programs import GROUP_SIZES, MASK, WEIGHTS
from tests.nvdla.scalar.weights import SURFACE_ALIGNMENT, compress_weights, pack_weights

if TYPE_CHECKING:
    from tests.nvdla.scalar.convolution import Convolution
    from tests.nvdla.scalar.image import ImageSurface, PixelConverter
    from tests.nvdla.scalar.programs import Bench
    from tests.nvdla.scalar.surfaces import FeatureSurface

BLOCKS: Final = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
ENABLE_ORDER: Final = ("SDP", "CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA")


@dataclass(frozen=True, slots=True)
class Sizes:
    """A convolution's sizes: the input, what the sequencer sees of input and kernel, the output.

    Each is channels, lines, columns; the kernels' number is the output's channels.
    """

    data: tuple[int, int, int]
    extended_data: tuple[int, int, int]
    kernel: tuple[int, int, int]
    output: tuple[int, int, int]


def program_sizes(
    bench: Bench, settings: Convolution, sizes: Sizes, *, is_winograd: bool = False
) -> None:
    """Program mode, precision, sizes, strides and padding of every stage."""
    precision = int(settings.precision)
    for block in BLOCKS:
        bench.write_words(block, S_POINTER=0)
    for block in ("CDMA", "CSC"):
        bench.write_fields(
            f"{block}.D_MISC_CFG",
            CONV_MODE=int(is_winograd),
            IN_PRECISION=precision,
            PROC_PRECISION=precision,
        )
        bench.write_fields(f"{block}.D_BANK", DATA_BANK=7, WEIGHT_BANK=6)
        bench.write_fields(
            f"{block}.D_DATAIN_SIZE_EXT_0",
            DATAIN_WIDTH_EXT=sizes.extended_data[2] - 1,
            DATAIN_HEIGHT_EXT=sizes.extended_data[1] - 1,
        )
    for block in ("CMAC_A", "CMAC_B", "CACC"):
        bench.write_fields(
            f"{block}.D_MISC_CFG", CONV_MODE=int(is_winograd), PROC_PRECISION=precision
        )
    _program_dma_sizes(bench, settings, sizes)
    _program_sequencer_sizes(bench, settings, sizes, is_winograd=is_winograd)
    output = sizes.output
    for block in ("CSC", "CACC"):
        bench.write_fields(
            f"{block}.D_DATAOUT_SIZE_0", DATAOUT_WIDTH=output[2] - 1, DATAOUT_HEIGHT=output[1] - 1
        )
        bench.write_fields(f"{block}.D_DATAOUT_SIZE_1", DATAOUT_CHANNEL=output[0] - 1)
    is_point = int(output[1] == output[2] == 1)
    bench.write_fields("CACC.D_DATAOUT_MAP", LINE_PACKED=is_point, SURF_PACKED=is_point)
    bench.write_fields("CACC.D_CLIP_CFG", CLIP_TRUNCATE=settings.clip_truncate)


def _program_dma_sizes(bench: Bench, settings: Convolution, sizes: Sizes) -> None:
    pad = settings.padding
    bench.write_fields(
        "CDMA.D_DATAIN_SIZE_0", DATAIN_WIDTH=sizes.data[2] - 1, DATAIN_HEIGHT=sizes.data[1] - 1
    )
    bench.write_fields("CDMA.D_DATAIN_SIZE_1", DATAIN_CHANNEL=sizes.data[0] - 1)
    bench.write_fields(
        "CDMA.D_CONV_STRIDE",
        CONV_X_STRIDE=settings.stride_x - 1,
        CONV_Y_STRIDE=settings.stride_y - 1,
    )
    bench.write_fields(
        "CDMA.D_ZERO_PADDING",
        PAD_LEFT=pad.left,
        PAD_RIGHT=pad.right,
        PAD_TOP=pad.top,
        PAD_BOTTOM=pad.bottom,
    )
    bench.write_words("CDMA", D_ZERO_PADDING_VALUE=pad.value, D_FETCH_GRAIN=0, D_CVT_CFG=0)
    line_bytes = sizes.extended_data[0] * sizes.extended_data[2] * settings.precision.byte_count
    if sizes.extended_data == sizes.data:
        entries = _feature_entries(bench, sizes.data, settings.precision)
    else:
        entries = -(-line_bytes // bench.entry_bytes)
    _program_entries(bench, entries)


def _program_entries(bench: Bench, entries: int) -> None:
    """Say how many entries of the convolution buffer a line takes."""
    bench.write_words("CDMA", D_ENTRY_PER_SLICE=entries - 1)
    bench.write_words("CSC", D_ENTRY_PER_SLICE=entries - 1)


def _feature_entries(bench: Bench, data: tuple[int, int, int], precision: Precision) -> int:
    """Return the buffer's entries for a line: atoms of a pixel fill entries of their own.

    What is left over of a pixel's atoms shares entries with its neighbours: one atom with three
    others, two atoms with one; three take an entry.
    """
    channels, _, columns = data
    atoms = -(-channels * precision.byte_count // bench.atom_bytes)
    whole, rest = divmod(atoms, bench.entry_bytes // bench.atom_bytes)
    pixels_per_entry = {0: 0, 1: bench.entry_bytes // bench.atom_bytes, 2: 2, 3: 1}[rest]
    shared = -(-columns // pixels_per_entry) if rest else 0
    return whole * columns + shared


def _program_sequencer_sizes(
    bench: Bench, settings: Convolution, sizes: Sizes, *, is_winograd: bool
) -> None:
    kernel = sizes.kernel
    stride_x, stride_y = (1, 1) if is_winograd else (settings.stride_x, settings.stride_y)
    bench.write_fields("CSC.D_DATAIN_SIZE_EXT_1", DATAIN_CHANNEL_EXT=sizes.extended_data[0] - 1)
    bench.write_fields(
        "CSC.D_WEIGHT_SIZE_EXT_0",
        WEIGHT_WIDTH_EXT=kernel[2] - 1,
        WEIGHT_HEIGHT_EXT=kernel[1] - 1,
    )
    bench.write_fields(
        "CSC.D_WEIGHT_SIZE_EXT_1",
        WEIGHT_CHANNEL_EXT=kernel[0] - 1,
        WEIGHT_KERNEL=sizes.output[0] - 1,
    )
    bench.write_fields(
        "CSC.D_CONV_STRIDE_EXT", CONV_X_STRIDE_EXT=stride_x - 1, CONV_Y_STRIDE_EXT=stride_y - 1
    )
    bench.write_fields(
        "CSC.D_DILATION_EXT",
        X_DILATION_EXT=settings.dilation_x - 1,
        Y_DILATION_EXT=settings.dilation_y - 1,
    )
    pad = settings.padding
    bench.write_fields("CSC.D_ZERO_PADDING", PAD_LEFT=pad.left, PAD_TOP=pad.top)
    bench.write_words(
        "CSC",
        D_DATAIN_FORMAT=0,
        D_POST_Y_EXTENSION=0,
        D_ATOMICS=sizes.output[1] * sizes.output[2] - 1,
        D_RELEASE=sizes.extended_data[1] - 1,
        D_ZERO_PADDING_VALUE=pad.value,
        D_PRA_CFG=settings.pra_truncate,
    )


def program_weights(
    bench: Bench, sizes: Sizes, groups: list[list[int]], precision: Precision, *, compressed: bool
) -> None:
    """Store the weights, compressed or not, and say where they lie."""
    plain = pack_weights(groups, precision)
    kernel_elements = sizes.kernel[0] * sizes.kernel[1] * sizes.kernel[2]
    mask_bytes = 0
    if compressed:
        stored = compress_weights(groups, precision)
        bench.store(WEIGHTS, stored.weights)
        bench.store(MASK, stored.mask)
        bench.store(GROUP_SIZES, stored.group_sizes)
        mask_bytes = len(stored.mask)
    else:
        bench.store(WEIGHTS, plain)
    assert len(plain) % SURFACE_ALIGNMENT == 0
    bench.write_words(
        "CDMA",
        D_WEIGHT_FORMAT=int(compressed),
        D_WEIGHT_SIZE_0=kernel_elements * precision.byte_count - 1,
        D_WEIGHT_SIZE_1=sizes.output[0] - 1,
        D_WEIGHT_RAM_TYPE=1,
        D_WEIGHT_ADDR_HIGH=0,
        D_WEIGHT_ADDR_LOW=WEIGHTS,
        D_WEIGHT_BYTES=len(plain),
        D_WGS_ADDR_HIGH=0,
        D_WGS_ADDR_LOW=GROUP_SIZES,
        D_WMB_ADDR_HIGH=0,
        D_WMB_ADDR_LOW=MASK,
        D_WMB_BYTES=mask_bytes,
    )
    bench.write_words(
        "CSC",
        D_WEIGHT_FORMAT=int(compressed),
        D_WEIGHT_BYTES=len(plain),
        D_WMB_BYTES=mask_bytes,
    )


def program_feature_input(
    bench: Bench, source: FeatureSurface, batch_count: int = 1, batch_stride: int = 0
) -> None:
    """Say where the input cubes lie."""
    bench.write_fields("CDMA.D_DATAIN_FORMAT", DATAIN_FORMAT=0)
    bench.write_words(
        "CDMA",
        D_DAIN_RAM_TYPE=1,
        D_DAIN_ADDR_HIGH_0=0,
        D_DAIN_ADDR_LOW_0=source.address,
        D_LINE_STRIDE=source.line_stride,
        D_SURF_STRIDE=source.surface_stride,
        D_DAIN_MAP=0,
        D_BATCH_STRIDE=batch_stride,
    )
    for block in ("CDMA", "CSC", "CACC"):
        bench.write_words(block, D_BATCH_NUMBER=batch_count - 1)


def program_image_input(
    bench: Bench,
    surface: ImageSurface,
    converter: PixelConverter,
    settings: Convolution,
    padding_values: tuple[int, int],
    line_count: int,
) -> None:
    """Say where the pixels lie and how they become numbers."""
    pixel_format = surface.pixel_format
    bench.write_fields(
        "CDMA.D_DATAIN_FORMAT",
        DATAIN_FORMAT=1,
        PIXEL_FORMAT=pixel_format.number,
        PIXEL_MAPPING=0,
        PIXEL_SIGN_OVERRIDE=int(converter.is_signed),
    )
    bench.registers.update_fields("CDMA.D_MISC_CFG", IN_PRECISION=int(pixel_format.input_precision))
    bench.registers.update_fields("CSC.D_MISC_CFG", IN_PRECISION=int(settings.precision))
    bench.write_words(
        "CDMA",
        D_DAIN_RAM_TYPE=1,
        D_DAIN_ADDR_HIGH_0=0,
        D_DAIN_ADDR_LOW_0=surface.addresses[0],
        D_DAIN_ADDR_HIGH_1=0,
        D_DAIN_ADDR_LOW_1=surface.addresses[-1],
        D_LINE_STRIDE=surface.line_strides[0],
        D_LINE_UV_STRIDE=surface.line_strides[-1],
        D_SURF_STRIDE=0,
        D_DAIN_MAP=0,
        D_BATCH_NUMBER=0,
        D_ZERO_PADDING_VALUE=padding_values[0] & 0xFFFF,
    )
    bench.write_fields("CDMA.D_PIXEL_OFFSET", PIXEL_X_OFFSET=surface.x_offset, PIXEL_Y_OFFSET=0)
    bench.write_words("CSC", D_BATCH_NUMBER=0, D_DATAIN_FORMAT=1)
    bench.write_words(
        "CSC",
        D_POST_Y_EXTENSION=line_count.bit_length() - 1,
        D_ZERO_PADDING_VALUE=padding_values[1] & 0xFFFF,
    )
    _program_pixel_converter(bench, converter)


def program_image_entries(bench: Bench, sizes: Sizes, settings: Convolution) -> None:
    """Pixels of a line, with their padding, follow each other in the buffer."""
    channels, _, columns = sizes.data
    pixels = columns + settings.padding.left + settings.padding.right
    line_bytes = channels * pixels * settings.precision.byte_count
    _program_entries(bench, -(-line_bytes // bench.entry_bytes))


def _program_pixel_converter(bench: Bench, converter: PixelConverter) -> None:
    bench.write_words("CACC", D_BATCH_NUMBER=0)
    means = converter.means or (0, 0, 0, 0)
    bench.write_words("CDMA", D_MEAN_FORMAT=int(converter.means is not None))
    bench.write_fields("CDMA.D_MEAN_GLOBAL_0", MEAN_RY=means[0], MEAN_GU=means[1])
    bench.write_fields("CDMA.D_MEAN_GLOBAL_1", MEAN_BV=means[2], MEAN_AX=means[3])
    bench.write_fields(
        "CDMA.D_CVT_CFG", CVT_EN=int(converter.is_enabled), CVT_TRUNCATE=converter.truncate
    )
    bench.write_fields("CDMA.D_CVT_OFFSET", CVT_OFFSET=converter.offset)
    bench.write_fields("CDMA.D_CVT_SCALE", CVT_SCALE=converter.scale)


def program_plain_output(
    bench: Bench,
    settings: Convolution,
    sizes: Sizes,
    target: FeatureSurface,
    output_shift: int,
    *,
    is_winograd: bool = False,
    batch_count: int = 1,
    batch_stride: int = 0,
) -> None:
    """Send the sums to memory through a single-point processor whose stages are bypassed."""
    precision = settings.precision
    program_target(bench, sizes.output, target, precision, precision)
    bench.write_words("SDP_RDMA", S_POINTER=0)
    bench.write_fields(
        "SDP.D_FEATURE_MODE_CFG",
        FLYING_MODE=1,
        OUTPUT_DST=0,
        WINOGRAD=int(is_winograd),
        BATCH_NUMBER=batch_count - 1,
    )
    bench.write_words("SDP", D_DST_BATCH_STRIDE=batch_stride)
    program_output_converter(bench, Converter(0, 1, output_shift))
    for stage in ("BS", "BN", "EW"):
        program_stage(bench, stage, None)
