"""Register programs that run one case on hardware, by the documented names of registers.

Source: NVDLA documentation, Programming Guide, and the register manual. Registers hold sizes,
counts and strides of convolution less one. Everything lies in one memory at fixed places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from smelt.nvdla import DmaMemory, MemorySpace, RegisterBus
from smelt.nvdla.registers import RegisterFile, RegisterMap
from tests.nvdla.scalar.arithmetic import Converter, Cube, HalfCube, Precision
from tests.nvdla.scalar.floats import FP17
from tests.nvdla.scalar.pdp import Pooling, Split
from tests.nvdla.scalar.surfaces import (
    FeatureSurface,
    OperandSurface,
    PlanarSurface,
    bits_from_halves,
    halves_from_bits,
    read_feature,
    write_feature,
)

if TYPE_CHECKING:
    from tests.nvdla.scalar.bdma import Transfer
    from tests.nvdla.scalar.lut import FloatLut, FloatTable, Lut, TableSettings

SOURCE: Final = 0x0000
TARGET: Final = 0x40000
OPERANDS: Final = 0x80000
WEIGHTS: Final = 0xC0000
MASK: Final = 0xE0000
GROUP_SIZES: Final = 0xF0000
MEMORY_BYTES: Final = 0x100000
"""How much memory each space has; everything above lies inside it."""


class Hardware(RegisterBus, Protocol):
    """Hardware that runs what its registers say when ``advance`` is called."""

    @property
    def memory(self) -> DmaMemory:
        """Its memory."""
        ...

    @property
    def register_map(self) -> RegisterMap:
        """Its registers."""
        ...

    def advance(self) -> None:
        """Run whatever is ready."""
        ...


@dataclass(frozen=True, slots=True)
class Bench:
    """Hardware under test."""

    hardware: Hardware
    atom_bytes: int
    entry_bytes: int = 128
    """The width of the convolution buffer."""

    @property
    def registers(self) -> RegisterFile:
        """The registers by name."""
        return RegisterFile(self.hardware, self.hardware.register_map)

    def write_words(self, block: str, **words: int) -> None:
        """Write whole registers."""
        for name, word in words.items():
            self.registers.write(f"{block}.{name}", word & 0xFFFFFFFF)

    def write_fields(self, register: str, **fields: int) -> None:
        """Write one register by its fields; negative numbers are two's complement."""
        layout = self.hardware.register_map.register(register)
        sanitize_name = {
            name: value & _mask(layout.field(name).width) for name, value in fields.items()
        }
        self.registers.write_fields(register, **sanitize_name)

    def run(self, *blocks: str) -> None:
        """Enable the blocks in this order, and run."""
        for block in blocks:
            self.write_words(block, D_OP_ENABLE=1)
        self.hardware.advance()

    @staticmethod
    def space(number: int) -> MemorySpace:
        """Return the memory of a RAM_TYPE field."""
        return MemorySpace(number)

    def store(self, address: int, data: bytes, space: int = 1) -> None:
        """Write memory."""
        self.hardware.memory.write(MemorySpace(space), address, data)

    def surface(
        self, address: int, shape: tuple[int, ...], precision: Precision, slack_atoms: int = 1
    ) -> FeatureSurface:
        """Lay out a cube, with unused atoms behind each line and surface."""
        _, lines, columns = shape
        slack = 0 if lines == columns == 1 else slack_atoms * self.atom_bytes
        line_stride = columns * self.atom_bytes + slack
        return FeatureSurface(
            address, line_stride, lines * line_stride + slack, self.atom_bytes, precision
        )

    def store_cube(
        self, surface: FeatureSurface | PlanarSurface, cube: Cube, space: int = 1
    ) -> None:
        """Write a cube of raw elements."""
        memory = bytearray(MEMORY_BYTES - surface.address)
        moved = _moved(surface)
        write_feature(memory, moved, cube)
        end = len(memory.rstrip(b"\0"))
        self.store(surface.address, bytes(memory[: end + 64]), space)

    def load_cube(
        self, surface: FeatureSurface | PlanarSurface, shape: tuple[int, ...], space: int = 1
    ) -> Cube:
        """Read a cube of raw elements."""
        size = MEMORY_BYTES - surface.address
        memory = self.hardware.memory.read(MemorySpace(space), surface.address, size)
        channels, lines, columns = shape
        return read_feature(memory, _moved(surface), (channels, lines, columns))

    def store_halves(self, surface: FeatureSurface, cube: HalfCube) -> None:
        """Write a cube of halves."""
        self.store_cube(surface, bits_from_halves(cube))

    def load_halves(self, surface: FeatureSurface, shape: tuple[int, ...]) -> HalfCube:
        """Read a cube of halves."""
        return halves_from_bits(self.load_cube(surface, shape))


def _mask(width: int) -> int:
    return (1 << width) - 1


def _moved(surface: FeatureSurface | PlanarSurface) -> FeatureSurface | PlanarSurface:
    """Return the surface as it lies in a piece of memory that starts at its address."""
    if isinstance(surface, PlanarSurface):
        return PlanarSurface(0, surface.line_stride, surface.planar_stride, surface.precision)
    return FeatureSurface(
        0, surface.line_stride, surface.surface_stride, surface.atom_bytes, surface.precision
    )


def operand_surface(
    address: int,
    shape: tuple[int, ...],
    precision: Precision,
    *,
    parts: int,
    part_bytes: int,
    is_per_kernel: bool,
    atom_bytes: int,
) -> OperandSurface:
    """Lay out operands compactly."""
    elements = atom_bytes // precision.byte_count
    line = shape[2] * elements * parts * part_bytes
    return OperandSurface(
        address, line, line * shape[1], elements, parts, part_bytes, is_per_kernel
    )


# ---- planar and cross-channel processor


def program_pooling(
    bench: Bench,
    settings: Pooling,
    shape: tuple[int, ...],
    split: Split | None,
    surfaces: tuple[FeatureSurface, FeatureSurface],
    spaces: tuple[int, int] = (1, 1),
) -> None:
    """Program both halves of the planar processor."""
    (source, target), (channels, height, width) = surfaces, shape
    lines, columns = settings.output_shape(height, width)
    partial = _partial_widths(split, width, columns)
    for block in ("PDP_RDMA", "PDP"):
        bench.write_words(
            block,
            S_POINTER=0,
            D_DATA_CUBE_IN_WIDTH=width - 1,
            D_DATA_CUBE_IN_HEIGHT=height - 1,
            D_DATA_CUBE_IN_CHANNEL=channels - 1,
            D_SRC_BASE_ADDR_LOW=source.address,
            D_SRC_BASE_ADDR_HIGH=0,
            D_SRC_LINE_STRIDE=source.line_stride,
            D_SRC_SURFACE_STRIDE=source.surface_stride,
            D_DATA_FORMAT=int(settings.precision),
        )
        bench.write_fields(f"{block}.D_PARTIAL_WIDTH_IN", **partial[0])
    _program_pooling_source(bench, settings, split, spaces[0])
    bench.write_words(
        "PDP",
        D_DATA_CUBE_OUT_WIDTH=columns - 1,
        D_DATA_CUBE_OUT_HEIGHT=lines - 1,
        D_DATA_CUBE_OUT_CHANNEL=channels - 1,
        D_NAN_FLUSH_TO_ZERO=int(settings.nan_is_zero),
        D_DST_BASE_ADDR_LOW=target.address,
        D_DST_BASE_ADDR_HIGH=0,
        D_DST_LINE_STRIDE=target.line_stride,
        D_DST_SURFACE_STRIDE=target.surface_stride,
        D_DST_RAM_CFG=spaces[1],
    )
    bench.write_fields("PDP.D_PARTIAL_WIDTH_OUT", **partial[1])
    _program_pooling_kernel(bench, settings, split)


def _program_pooling_source(
    bench: Bench, settings: Pooling, split: Split | None, space: int
) -> None:
    bench.write_words("PDP_RDMA", D_FLYING_MODE=1, D_SRC_RAM_CFG=space)
    bench.write_words("PDP_RDMA", D_OPERATION_MODE_CFG=0 if split is None else split.count - 1)
    bench.write_fields(
        "PDP_RDMA.D_POOLING_KERNEL_CFG",
        KERNEL_WIDTH=settings.kernel_width - 1,
        KERNEL_STRIDE_WIDTH=settings.stride_x - 1,
    )
    bench.write_words("PDP_RDMA", D_POOLING_PADDING_CFG=settings.pad_left)


def _program_pooling_kernel(bench: Bench, settings: Pooling, split: Split | None) -> None:
    bench.write_fields(
        "PDP.D_OPERATION_MODE_CFG",
        POOLING_METHOD=int(settings.method),
        FLYING_MODE=1,
        SPLIT_NUM=0 if split is None else split.count - 1,
    )
    bench.write_fields(
        "PDP.D_POOLING_KERNEL_CFG",
        KERNEL_WIDTH=settings.kernel_width - 1,
        KERNEL_HEIGHT=settings.kernel_height - 1,
        KERNEL_STRIDE_WIDTH=settings.stride_x - 1,
        KERNEL_STRIDE_HEIGHT=settings.stride_y - 1,
    )
    bench.write_fields(
        "PDP.D_POOLING_PADDING_CFG",
        PAD_LEFT=settings.pad_left,
        PAD_TOP=settings.pad_top,
        PAD_RIGHT=settings.pad_right,
        PAD_BOTTOM=settings.pad_bottom,
    )
    reciprocals = settings.reciprocals
    if settings.precision is Precision.FP16:
        sizes = (settings.kernel_width, settings.kernel_height)
        reciprocals = (fp17_reciprocal(sizes[0]), fp17_reciprocal(sizes[1]))
    bench.write_words(
        "PDP", D_RECIP_KERNEL_WIDTH=reciprocals[0], D_RECIP_KERNEL_HEIGHT=reciprocals[1]
    )
    for count, value in enumerate(settings.padding_values, 1):
        name = f"PDP.D_POOLING_PADDING_VALUE_{count}_CFG"
        bench.write_fields(name, **{f"PAD_VALUE_{count}X": value})


def _partial_widths(
    split: Split | None, width: int, columns: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the fields of D_PARTIAL_WIDTH_IN and _OUT; two strips have no middle one."""
    if split is None:
        split = Split(width, columns, 1, 1, 1, 1, 1)
    has_middle = split.count > 2
    return (
        {
            "PARTIAL_WIDTH_IN_FIRST": split.first_in - 1,
            "PARTIAL_WIDTH_IN_MID": split.mid_in - 1 if has_middle else 0,
            "PARTIAL_WIDTH_IN_LAST": split.last_in - 1,
        },
        {
            "PARTIAL_WIDTH_OUT_FIRST": split.first_out - 1,
            "PARTIAL_WIDTH_OUT_MID": split.mid_out - 1 if has_middle else 0,
            "PARTIAL_WIDTH_OUT_LAST": split.last_out - 1,
        },
    )


def fp17_reciprocal(size: int) -> int:
    """Return the FP17 bits of 1 / size (D_RECIP_KERNEL_WIDTH in fp16)."""
    exponent = -(size - 1).bit_length()
    mantissa = int((2.0**-exponent / size - 1) * (1 << FP17.mantissa_bits) + 0.5)
    return (exponent + FP17.bias << FP17.mantissa_bits) + mantissa


def cube_words(shape: tuple[int, ...]) -> dict[str, int]:
    """What the size registers of a cube (channels, height, width) hold."""
    channels, height, width = shape
    return {
        "D_DATA_CUBE_WIDTH": width - 1,
        "D_DATA_CUBE_HEIGHT": height - 1,
        "D_DATA_CUBE_CHANNEL": channels - 1,
    }


def surface_words(side: str, surface: FeatureSurface, space: int) -> dict[str, int]:
    """What the place registers of a source (SRC) or destination (DST) hold."""
    return {
        f"D_{side}_BASE_ADDR_LOW": surface.address,
        f"D_{side}_BASE_ADDR_HIGH": 0,
        f"D_{side}_LINE_STRIDE": surface.line_stride,
        f"D_{side}_SURFACE_STRIDE": surface.surface_stride,
        f"D_{side}_DMA_CFG": space,
    }


def program_normalization(
    bench: Bench,
    precision: Precision,
    shape: tuple[int, ...],
    surfaces: tuple[FeatureSurface, FeatureSurface],
    spaces: tuple[int, int] = (1, 1),
) -> None:
    """Program sizes, places and precision of the cross-channel processor."""
    source, target = surfaces
    bench.write_words(
        "CDP_RDMA",
        S_POINTER=0,
        **cube_words(shape),
        **surface_words("SRC", source, spaces[0]),
        D_DATA_FORMAT=int(precision),
    )
    bench.write_words(
        "CDP",
        S_POINTER=0,
        **surface_words("DST", target, spaces[1]),
        D_DATA_FORMAT=int(precision),
    )


def program_normalization_mode(
    bench: Bench,
    local_size: int,
    *,
    skips_square_sum: bool,
    skips_multiplier: bool,
    converters: tuple[Converter, Converter],
    nan_is_zero: bool = False,
) -> None:
    """Program what the cross-channel processor computes."""
    before, after = converters
    bench.write_words("CDP", D_LRN_CFG=local_size // 2 - 1, D_NAN_FLUSH_TO_ZERO=int(nan_is_zero))
    bench.write_fields(
        "CDP.D_FUNC_BYPASS", SQSUM_BYPASS=int(skips_square_sum), MUL_BYPASS=int(skips_multiplier)
    )
    bench.write_fields("CDP.D_DATIN_OFFSET", DATIN_OFFSET=before.offset)
    bench.write_fields("CDP.D_DATIN_SCALE", DATIN_SCALE=before.scale)
    bench.write_fields("CDP.D_DATIN_SHIFTER", DATIN_SHIFTER=before.shift)
    bench.write_fields("CDP.D_DATOUT_OFFSET", DATOUT_OFFSET=after.offset)
    bench.write_fields("CDP.D_DATOUT_SCALE", DATOUT_SCALE=after.scale)
    bench.write_fields("CDP.D_DATOUT_SHIFTER", DATOUT_SHIFTER=after.shift)


# ---- tables


def program_lut(bench: Bench, block: str, lut: Lut) -> None:
    """Load both tables and their ranges into SDP or CDP."""
    _load_entries(bench, block, lut.le.entries, lut.lo.entries)
    _program_lut_mode(bench, block, lut)
    for name, table in (("LE", lut.le), ("LO", lut.lo)):
        _program_range(bench, block, name, table.start, table.end)
        slopes = (table.underflow.scale, table.overflow.scale)
        shifts = (table.underflow.shift, table.overflow.shift)
        _program_slopes(bench, block, name, slopes, shifts)


def program_float_lut(bench: Bench, block: str, lut: FloatLut) -> None:
    """Load both fp16 tables; starts and ends are singles."""
    entries = [_half_bits(np.array(table.entries, np.float64)) for table in (lut.le, lut.lo)]
    _load_entries(bench, block, entries[0], entries[1])
    _program_lut_mode(bench, block, lut)
    for name, table in (("LE", lut.le), ("LO", lut.lo)):
        start, end = (
            int(np.float32(float(value)).view(np.uint32)) for value in (table.start, table.end)
        )
        _program_range(bench, block, name, start, end)
        slopes = _half_bits(
            np.array([float(table.underflow_slope), float(table.overflow_slope)], np.float64)
        )
        _program_slopes(bench, block, name, (slopes[0], slopes[1]), (0, 0))


def _half_bits(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[int, ...]:
    return tuple(int(bits) for bits in bits_from_halves(values.astype(np.float16)))


def _load_entries(bench: Bench, block: str, le: tuple[int, ...], lo: tuple[int, ...]) -> None:
    """Write tables from their first entry; the address advances by itself."""
    for table, entries in ((0, le), (1, lo)):
        bench.write_fields(
            f"{block}.S_LUT_ACCESS_CFG", LUT_ADDR=0, LUT_TABLE_ID=table, LUT_ACCESS_TYPE=1
        )
        for entry in entries:
            bench.write_fields(f"{block}.S_LUT_ACCESS_DATA", LUT_DATA=entry)


def _program_lut_mode(bench: Bench, block: str, lut: Lut | FloatLut) -> None:
    le: TableSettings | FloatTable = lut.le
    bench.write_fields(
        f"{block}.S_LUT_CFG",
        LUT_LE_FUNCTION=int(le.function),
        LUT_UFLOW_PRIORITY=int(lut.priorities.underflow),
        LUT_OFLOW_PRIORITY=int(lut.priorities.overflow),
        LUT_HYBRID_PRIORITY=int(lut.priorities.hybrid),
    )
    bench.write_fields(
        f"{block}.S_LUT_INFO",
        LUT_LE_INDEX_OFFSET=le.index_offset,
        LUT_LE_INDEX_SELECT=le.select,
        LUT_LO_INDEX_SELECT=lut.lo.select,
    )


def _program_range(bench: Bench, block: str, name: str, start: int, end: int) -> None:
    for edge, value in (("START", start), ("END", end)):
        field = f"LUT_{name}_{edge}"
        if block == "SDP":
            bench.write_fields(f"SDP.S_{field}", **{field: value})
        else:
            bench.write_fields(f"CDP.S_{field}_LOW", **{f"{field}_LOW": value})
            bench.write_fields(f"CDP.S_{field}_HIGH", **{f"{field}_HIGH": value >> 32})


def _program_slopes(
    bench: Bench, block: str, name: str, scales: tuple[int, int], shifts: tuple[int, int]
) -> None:
    for word, values in (("SCALE", scales), ("SHIFT", shifts)):
        bench.write_fields(
            f"{block}.S_LUT_{name}_SLOPE_{word}",
            **{
                f"LUT_{name}_SLOPE_UFLOW_{word}": values[0],
                f"LUT_{name}_SLOPE_OFLOW_{word}": values[1],
            },
        )


# ---- reshaping and moving


def program_reshape(
    bench: Bench,
    mode: int,
    precision: Precision,
    shape: tuple[int, ...],
    spaces: tuple[int, int],
) -> None:
    """Program mode, precision and input size of the reshaping engine."""
    bench.write_words("RBK", S_POINTER=0, D_DAIN_RAM_TYPE=spaces[0], D_DAOUT_RAM_TYPE=spaces[1])
    bench.write_fields("RBK.D_MISC_CFG", RUBIK_MODE=mode, IN_PRECISION=int(precision))
    bench.write_fields("RBK.D_DATAIN_SIZE_0", DATAIN_WIDTH=shape[2] - 1, DATAIN_HEIGHT=shape[1] - 1)
    bench.write_fields("RBK.D_DATAIN_SIZE_1", DATAIN_CHANNEL=shape[0] - 1)


def program_transfer(
    bench: Bench, settings: Transfer, source_space: int, target_space: int
) -> None:
    """Program and launch one transfer; lengths count atoms of 32 bytes less one."""
    bench.write_words(
        "BDMA",
        CFG_SRC_ADDR_LOW=settings.source,
        CFG_SRC_ADDR_HIGH=0,
        CFG_DST_ADDR_LOW=settings.target,
        CFG_DST_ADDR_HIGH=0,
        CFG_LINE=settings.line_bytes // 32 - 1,
        CFG_LINE_REPEAT=settings.line_count - 1,
        CFG_SRC_LINE=settings.source_line_stride,
        CFG_DST_LINE=settings.target_line_stride,
        CFG_SURF_REPEAT=settings.surface_count - 1,
        CFG_SRC_SURF=settings.source_surface_stride,
        CFG_DST_SURF=settings.target_surface_stride,
    )
    bench.write_fields("BDMA.CFG_CMD", SRC_RAM_TYPE=source_space, DST_RAM_TYPE=target_space)
    bench.write_words("BDMA", CFG_OP=1)
    bench.write_words("BDMA", CFG_LAUNCH0=1)
