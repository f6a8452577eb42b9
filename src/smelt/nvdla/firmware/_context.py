"""What an engine's programming works with: registers, addresses, and a way to refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from smelt.nvdla._protocols import MemorySpace
from smelt.nvdla._status import NvdlaError, NvError
from smelt.nvdla.loadable import MemoryType, OperationType, Precision

if TYPE_CHECKING:
    from smelt.nvdla.firmware._task import TaskDescriptors
    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.loadable import DataCube, LutParameters
    from smelt.nvdla.registers import RegisterFile

CUBE_LIMIT: Final = 1 << 13
"""Extents that the registers can hold: width, height and channels are stored less one."""
_WORD: Final = 0xFFFFFFFF
_SPACES: Final = {MemoryType.DRAM: MemorySpace.DRAM, MemoryType.SRAM: MemorySpace.SRAM}


@dataclass(frozen=True, slots=True)
class OperationContext:
    """One operation on its way into the registers."""

    registers: RegisterFile
    task: TaskDescriptors
    configuration: Configuration
    op_type: OperationType
    index: int
    roi: int
    group: int
    is_rdma_needed: bool
    is_lut_loaded: bool = False
    """The other group uses the same lookup table: it is there, and may be locked."""

    @property
    def name(self) -> str:
        """How messages call the operation."""
        region = f", region {self.roi}" if self.task.num_rois > 1 else ""
        return f"operation {self.index} ({self.op_type.name}{region})"

    def refuse(self, problem: str, status: NvError = NvError.BAD_PARAMETER) -> NoReturn:
        """Raise an error that names the operation."""
        raise NvdlaError(status, f"{self.name}: {problem}")

    def require(self, holds: bool, problem: str) -> None:  # noqa: FBT001  (a statement, as in assert)
        """Refuse the operation unless something holds."""
        if not holds:
            self.refuse(problem)

    def write(self, name: str, **fields: int) -> None:
        """Set a register by its fields; refuse a value that a field cannot hold."""
        register = self.registers.map.register(name)
        word = 0
        for field_name, value in fields.items():
            field = register.field(field_name)
            if value < 0 or value >> field.width:
                self.refuse(
                    f"{value} does not fit {name}.{field_name}, which has {field.width} bits",
                    NvError.BAD_VALUE,
                )
            word |= value << field.shift
        self.registers.bus.write(register.address, word)

    def write_word(self, name: str, value: int) -> None:
        """Set a whole register; refuse bits that it does not hold, as of unaligned addresses."""
        register = self.registers.map.register(name)
        if value & ~register.write_mask:
            self.refuse(
                f"{value:#x} does not fit {name}, which holds the bits {register.write_mask:#x}",
                NvError.BAD_VALUE,
            )
        self.registers.bus.write(register.address, value)

    def write_signed(self, name: str, value: int) -> None:
        """Set a register's only field to a number that may be negative."""
        register = self.registers.map.register(name)
        (field,) = register.fields.values()
        if not -(1 << field.width - 1) <= value < 1 << field.width:
            self.refuse(
                f"{value} does not fit {name}, which has {field.width} bits", NvError.BAD_VALUE
            )
        word = value & ((1 << field.width) - 1)
        self.registers.bus.write(register.address, word << field.shift)

    def write_address(self, low: str, high: str, address: int) -> None:
        """Set a pair of registers to an address."""
        self.write_word(low, address & _WORD)
        self.write_word(high, address >> 32)

    def choose(self, value: int, count: int, what: str) -> int:
        """An enumerated value. Refuses one beyond the enumeration's count."""
        if not 0 <= value < count:
            self.refuse(f"{what} is {value}, which is not defined; it must be 0 to {count - 1}")
        return value

    def choose_precision(self, value: int, what: str) -> int:
        """A precision. Refuses one that does not exist, or that the hardware lacks."""
        self.choose(value, len(Precision), what)
        if value not in self.configuration.precisions:
            self.refuse(
                f"{what} is {Precision(value).name}, which {self.configuration.name} does not "
                "support",
                NvError.NOT_SUPPORTED,
            )
        return value

    def check_cube(self, cube: DataCube, what: str) -> None:
        """Refuse extents that registers cannot hold, and an unknown kind of memory."""
        extents = (cube.width, cube.height, cube.channel)
        if not all(1 <= extent <= CUBE_LIMIT for extent in extents):
            self.refuse(
                f"{what} is {cube.width} x {cube.height} x {cube.channel} (width, height, "
                f"channels); each must be 1 to {CUBE_LIMIT}"
            )
        if cube.type not in list(MemoryType):
            self.refuse(f"{what} is in memory of type {cube.type}, which does not exist")

    def check_stored(self, cube: DataCube, what: str) -> None:
        """Refuse a cube in memory whose strides are not whole atoms."""
        atom = self.configuration.atom_bytes
        for name, stride in (("line", cube.line_stride), ("surface", cube.surf_stride)):
            if stride % atom:
                self.refuse(
                    f"{what} has a {name} stride of {stride} bytes; it must be a multiple of the "
                    f"atom of {atom} bytes"
                )

    def ram_type(self, memory_type: int, what: str) -> int:
        """The memory interface, as RAM_TYPE fields number it."""
        if memory_type not in (MemoryType.DRAM, MemoryType.SRAM):
            self.refuse(f"{what} must lie in DRAM or SRAM, not in type {memory_type}")
        space = _SPACES[MemoryType(memory_type)]
        if space is MemorySpace.SRAM and not self.configuration.has_sram:
            self.refuse(
                f"{what} lies in SRAM, which {self.configuration.name} does not have",
                NvError.NOT_SUPPORTED,
            )
        return int(space)

    def resolve(
        self, memory_type: int, index: int, offset: int, what: str, *, alignment: int = 0
    ) -> int:
        """The address of something in memory. Refuses one that is unaligned, or elsewhere."""
        addresses = self.task.addresses
        if not 0 <= index < len(addresses):
            self.refuse(
                f"{what} is address {index} of a list of {len(addresses)}", NvError.INVALID_ADDRESS
            )
        space, base = addresses[index]
        if space != self.ram_type(memory_type, what):
            self.refuse(
                f"{what} is declared to be in {MemoryType(memory_type).name}, but address {index} "
                f"is in {space.name}"
            )
        address = base + offset
        alignment = alignment or self.configuration.atom_bytes
        if address % alignment:
            self.refuse(
                f"{what} starts at {address:#x}, which is not a multiple of {alignment} bytes"
            )
        return address

    def read_lut(self, index: int) -> LutParameters:
        """A lookup table. Refuses one that the network does not have."""
        if not 0 <= index < self.task.network.num_luts:
            self.refuse(
                f"lookup table {index} is outside the network's {self.task.network.num_luts}"
            )
        return self.task.read_lut(index)

    def resolve_cube(self, cube: DataCube, what: str) -> int:
        """The address of a cube in memory."""
        return self.resolve(cube.type, cube.address, cube.offset, what)

    def resolve_input(self, cube: DataCube, what: str, bytes_per_pixel: int = 1) -> int:
        """The address of an input, which a dynamic region of interest may move."""
        network = self.task.network
        is_dynamic = network.dynamic_roi and network.input_layer == self.index
        if cube.address != -1:
            if is_dynamic:
                self.refuse(
                    f"{what} has a fixed address, but dynamic regions of interest give the "
                    "address of their input"
                )
            return self.resolve_cube(cube, what)
        if not is_dynamic:
            self.refuse(f"{what} has no address")
        roi = self.task.read_roi(self.roi)
        offset = roi.top * cube.line_stride + roi.left * bytes_per_pixel
        return self.resolve(cube.type, network.surface_index, offset, what)
