"""Context in which an engine programs an operation: registers, addresses and checks.

Checks that fail raise an `NvdlaError` that names the operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from smelt.nvdla._errors import NvdlaError, NvError
from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla.loadable import MemoryType, OperationType, Precision
from smelt.types import counted

if TYPE_CHECKING:
    from smelt.nvdla.firmware._task import TaskDescriptors
    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.loadable import (
        CdpSurface,
        Converter,
        DataCube,
        LutParameters,
        PdpSurface,
        SdpSurface,
    )
    from smelt.nvdla.registers import RegisterFile

CUBE_LIMIT: Final = 1 << 13
"""Maximum width, height and channels of a cube: 13-bit fields hold them less one."""
_WORD: Final = 0xFFFFFFFF
"""All bits of a register's word."""
_POLLS: Final = 10_000
"""Number of reads of a status after which the hardware counts as stuck."""
_SPACES: Final = {MemoryType.DRAM: MemorySpace.DRAM, MemoryType.SRAM: MemorySpace.SRAM}


@dataclass(frozen=True, slots=True)
class OperationContext:
    """One operation that is being programmed, with the registers and task it belongs to."""

    registers: RegisterFile
    task: TaskDescriptors
    configuration: Configuration
    op_type: OperationType
    index: int
    roi: int
    is_rdma_needed: bool
    is_lut_loaded: bool = False
    """Whether the other group uses the same lookup table, which is then loaded already.

    The engine locks the table while it runs, so it must not be written again.
    """

    @property
    def name(self) -> str:
        """Name of the operation in messages."""
        region = f", ROI {self.roi}" if self.task.num_rois > 1 else ""
        return f"operation {self.index} ({self.op_type.name}{region})"

    def refuse(self, problem: str, status: NvError = NvError.BAD_PARAMETER) -> NoReturn:
        """Raise an NvdlaError that names the operation."""
        raise NvdlaError(status, f"{self.name}: {problem}")

    def require(self, condition: bool, problem: str) -> None:  # noqa: FBT001  (like assert)
        """Refuse the operation unless a condition is true."""
        if not condition:
            self.refuse(problem)

    def require_support(self, is_supported: bool, what: str) -> None:  # noqa: FBT001  (like assert)
        """Refuse the operation unless the hardware has what the operation needs."""
        if not is_supported:
            self.refuse(f"{self.configuration.name} has no {what}", NvError.NOT_SUPPORTED)

    def wait_for(self, name: str, field: str, problem: str) -> None:
        """Read a field until it is not 0; refuse the operation if it stays 0."""
        for _ in range(_POLLS):
            if self.registers.read_field(name, field):
                return
        self.refuse(problem, NvError.TIMEOUT)

    def write(self, block: str, **fields: int) -> None:
        """Set fields of a block and the other fields of their registers 0; refuse misfits.

        Each register is written once, in the order of the fields.
        """
        values: dict[str, dict[str, int]] = {}
        for name, value in fields.items():
            register = self.registers.map.by_field[block, name]
            values.setdefault(register.full_name, {})[name] = value
        try:
            for register_name, part in values.items():
                self.registers.write_fields(register_name, **part)
        except NvdlaError as error:
            raise error.within(self.name) from error

    def write_word(self, name: str, value: int) -> None:
        """Set a register's word; refuse bits that the register lacks, as in unaligned addresses."""
        register = self.registers.map.register(name)
        if value & ~register.write_mask:
            self.refuse(
                f"{value:#x} does not fit into {name}, whose writable bits are "
                f"{register.write_mask:#x}",
                NvError.BAD_VALUE,
            )
        self.registers.bus.write(register.address, value)

    def write_signed(self, block: str, **fields: int) -> None:
        """Set fields that are alone in their registers to signed or unsigned numbers that fit."""
        for name, value in fields.items():
            register = self.registers.map.by_field[block, name]
            width = register.fields[name].width
            if not -(1 << width - 1) <= value < 1 << width:
                self.refuse(
                    f"{value} does not fit into {register.full_name}, which has "
                    f"{counted(width, 'bit')}",
                    NvError.BAD_VALUE,
                )
            self.write(block, **{name: value & ((1 << width) - 1)})

    def write_converter(self, block: str, prefix: str, converter: Converter, shift: str) -> None:
        """Set a converter's fields, whose names start with ``prefix``; ``shift`` ends the last."""
        self.write_signed(
            block, **{f"{prefix}_OFFSET": converter.offset, f"{prefix}_SCALE": converter.scale}
        )
        self.write(block, **{f"{prefix}_{shift}": converter.truncate})

    def write_address(self, low: str, high: str, address: int) -> None:
        """Set a pair of registers to a 64-bit address."""
        self.write_word(low, address & _WORD)
        self.write_word(high, address >> 32)

    def write_extents(self, block: str, cube: DataCube, prefix: str = "") -> None:
        """Set the fields of width, height and channels, whose names start with ``prefix``."""
        extents = {"WIDTH": cube.width, "HEIGHT": cube.height, "CHANNEL": cube.channel}
        self.write(block, **{f"{prefix}{name}": extent - 1 for name, extent in extents.items()})

    def write_surface(self, name: str, cube: DataCube, address: int) -> None:
        """Set the registers of address and strides, whose names start with ``name``."""
        self.write_address(f"{name}_BASE_ADDR_LOW", f"{name}_BASE_ADDR_HIGH", address)
        self.write_word(f"{name}_LINE_STRIDE", cube.line_stride)
        self.write_word(f"{name}_SURFACE_STRIDE", cube.surf_stride)

    def write_source(self, block: str, cube: DataCube) -> None:
        """Set the registers that locate a source in memory."""
        self.write_surface(f"{block}.D_SRC", cube, self.resolve_input(cube, "the source"))
        self.write(block, SRC_RAM_TYPE=self.ram_type(cube.type, "the source"))

    def write_target(self, block: str, cube: DataCube) -> None:
        """Set the registers that locate a destination in memory."""
        self.write_surface(f"{block}.D_DST", cube, self.resolve_cube(cube, "the destination"))
        self.write(block, DST_RAM_TYPE=self.ram_type(cube.type, "the destination"))

    def check_enum(self, value: int, count: int, what: str) -> int:
        """Return the value of an enumeration of ``count`` members; refuse other values."""
        if not 0 <= value < count:
            valid = "0" if count == 1 else f"0 to {count - 1}"
            self.refuse(f"{what} is {value}, which is not defined; it must be {valid}")
        return value

    def check_precision(self, value: int, what: str) -> int:
        """Return a precision; refuse one that does not exist or that the hardware lacks."""
        self.check_enum(value, len(Precision), what)
        if value not in self.configuration.precisions:
            self.refuse(
                f"{what} is {Precision(value).name}, which {self.configuration.name} does not "
                "support",
                NvError.NOT_SUPPORTED,
            )
        return value

    def check_cube(self, cube: DataCube, what: str) -> None:
        """Refuse a cube with extents that registers cannot hold or of an unknown memory type."""
        extents = (cube.width, cube.height, cube.channel)
        if not all(1 <= extent <= CUBE_LIMIT for extent in extents):
            self.refuse(
                f"{what} is {cube.width} x {cube.height} x {cube.channel} (width, height, "
                f"channels); each must be 1 to {CUBE_LIMIT}"
            )
        if cube.type not in list(MemoryType):
            self.refuse(f"{what} has the unknown memory type {cube.type}")

    def check_stored(self, cube: DataCube, what: str) -> None:
        """Refuse a cube in memory whose strides are not multiples of the atom."""
        atom = self.configuration.atom_bytes
        for name, stride in (("line", cube.line_stride), ("surface", cube.surf_stride)):
            if stride % atom:
                self.refuse(
                    f"{what} has a {name} stride of {stride} bytes; it must be a multiple of "
                    f"{atom} bytes, the size of an atom"
                )

    def check_cubes(self, surface: PdpSurface | CdpSurface | SdpSurface) -> None:
        """Refuse a source or destination that the hardware cannot read or write."""
        for cube, what in ((surface.src_data, "the source"), (surface.dst_data, "the destination")):
            self.check_cube(cube, what)
            if cube.type != MemoryType.ON_THE_FLY:
                self.check_stored(cube, what)

    def ram_type(self, memory_type: int, what: str) -> int:
        """Return the RAM_TYPE field for a memory type; refuse one that the hardware lacks."""
        if memory_type not in (MemoryType.DRAM, MemoryType.SRAM):
            self.refuse(
                f"{what} has the memory type {memory_type}; the type must be 0 (DRAM) or 1 (SRAM)"
            )
        space = _SPACES[MemoryType(memory_type)]
        if space is MemorySpace.SRAM and not self.configuration.has_sram:
            self.refuse(
                f"{what} is in SRAM, which {self.configuration.name} does not have",
                NvError.NOT_SUPPORTED,
            )
        return int(space)

    def resolve(
        self, memory_type: int, index: int, offset: int, what: str, *, alignment: int = 0
    ) -> int:
        """Return the physical address of an entry of the task's address list, plus an offset.

        An entry that does not exist, lies in another memory type or is not aligned is refused. The
        default alignment is the atom.
        """
        try:
            space, base = self.task.address(index, what)
        except NvdlaError as error:
            raise error.within(self.name) from error
        if space != self.ram_type(memory_type, what):
            self.refuse(
                f"{what} is declared to be in {MemoryType(memory_type).name}, but entry {index} of "
                f"the task's address list is in {space.name}"
            )
        address = base + offset
        alignment = alignment or self.configuration.atom_bytes
        if address % alignment:
            self.refuse(
                f"{what} starts at {address:#x}, which is not a multiple of {alignment} bytes"
            )
        return address

    def read_lut(self, index: int) -> LutParameters:
        """Return a lookup table; refuse one that the network does not have."""
        if not 0 <= index < self.task.network.num_luts:
            self.refuse(
                f"lookup table {index} does not exist: the network has "
                f"{counted(self.task.network.num_luts, 'lookup table')}, numbered from 0"
            )
        return self.task.read_lut(index)

    def resolve_cube(self, cube: DataCube, what: str) -> int:
        """Return the physical address of a cube."""
        return self.resolve(cube.type, cube.address, cube.offset, what)

    def resolve_input(self, cube: DataCube, what: str, bytes_per_pixel: int = 1) -> int:
        """Return the physical address of an input, or of its dynamic region of interest."""
        network = self.task.network
        is_dynamic = network.dynamic_roi and network.input_layer == self.index
        if cube.address != -1:
            if is_dynamic:
                self.refuse(
                    f"{what} has a fixed address, but the network's dynamic regions of interest "
                    "determine the address of its input"
                )
            return self.resolve_cube(cube, what)
        if not is_dynamic:
            self.refuse(
                f"{what} has no address: its address index is -1, which is only for the input of a "
                "network with dynamic regions of interest"
            )
        roi = self.task.read_roi(self.roi)
        offset = roi.top * cube.line_stride + roi.left * bytes_per_pixel
        return self.resolve(cube.type, network.surface_index, offset, what)
