"""Register blocks: single registers, two ping-pong groups, pointers, status and lookup tables."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from smelt.nvdla.hardware._arithmetic import sign_extend
from smelt.nvdla.hardware._group_registers import GroupRegisters
from smelt.nvdla.hardware._lut import LE_ENTRIES, LO_ENTRIES

if TYPE_CHECKING:
    from smelt.nvdla.hardware._configuration import Configuration
    from smelt.nvdla.registers import Register, RegisterMap

_INTERRUPTS = {
    "SDP": ("SDP",),
    "CDP": ("CDP",),
    "PDP": ("PDP",),
    "BDMA": ("BDMA",),
    "RBK": ("RUBIK",),
    "CDMA": ("CDMA_DAT", "CDMA_WT"),
    "CACC": ("CACC",),
}
"""Interrupt sources that a block raises when an operation completes."""
_IDLE, _RUNNING, _PENDING = 0, 1, 2
"""Values of a group's status field."""


class Block:
    """Registers of one block, with its ping-pong groups if it has any."""

    def __init__(self, name: str, register_map: RegisterMap, glb: GlobalBlock) -> None:
        self.name = name
        self._map = register_map
        self.glb = glb
        registers = [item for item in register_map.registers.values() if item.block == name]
        self.single = {item.name: item.reset for item in registers if not item.is_grouped}
        grouped = {item.name: item.reset for item in registers if item.is_grouped}
        self.groups = (dict(grouped), dict(grouped))
        self.producer = 0
        self.consumer = 0
        self.is_hung = False
        self.start()
        self.clear_tables()
        if "S_CBUF_FLUSH_STATUS" in self.single:
            self.single["S_CBUF_FLUSH_STATUS"] = 1

    def start(self) -> None:
        """Initialise the additional state of a subclass."""

    def clear_tables(self) -> None:
        """Set all entries of the lookup tables to 0."""
        self.tables: tuple[list[int], list[int]] = ([0] * LE_ENTRIES, [0] * LO_ENTRIES)

    @property
    def is_ready(self) -> bool:
        """Whether the consumer group is enabled."""
        return not self.is_hung and bool(self.groups[self.consumer].get("D_OP_ENABLE", 0))

    def view(self) -> GroupRegisters:
        """Return the registers of the consumer group."""
        return GroupRegisters(self.name, self._map, self.single, self.groups[self.consumer])

    def hang(self) -> None:
        """Stay busy until the next reset, as hardware that waits for missing data does."""
        self.is_hung = True

    def report_stalls(self, cycles: int) -> None:
        """Set the consumer group's stall counters, if its DMA counters are enabled."""
        group = self.groups[self.consumer]
        if group.get("D_PERF_ENABLE", 0) & 1:
            for name in group:
                if name.endswith("_STALL"):
                    group[name] = min(cycles, 0xFFFFFFFF)

    def complete(self) -> None:
        """Complete the operation: free its group, change to the other one, raise the interrupts."""
        self.groups[self.consumer]["D_OP_ENABLE"] = 0
        for source in _INTERRUPTS.get(self.name, ()):
            self.glb.raise_done(source, self.consumer)
        self.consumer ^= 1

    def read(self, register: Register) -> int:
        """Return a register; grouped registers are those of the producer group."""
        if register.is_grouped:
            return self.groups[self.producer][register.name]
        if register.name == "S_POINTER":
            return self.producer | self.consumer << 16
        if register.name == "S_STATUS":
            return self._status(0) | self._status(1) << 16
        if register.name == "S_LUT_ACCESS_DATA":
            return self._access_lut(None)
        return self.single[register.name]

    def write(self, register: Register, value: int) -> bool:
        """Set a register; return True if this enabled an operation.

        An enabled group ignores writes until its operation has completed.
        """
        if register.name == "S_POINTER":
            self.producer = value & 1
        elif register.name == "S_LUT_ACCESS_DATA":
            self._access_lut(value)
        elif not register.is_grouped:
            self.single[register.name] = _merged(self.single[register.name], value, register)
        else:
            group = self.groups[self.producer]
            if not group["D_OP_ENABLE"]:
                group[register.name] = _merged(group[register.name], value, register)
                return register.name == "D_OP_ENABLE" and bool(group[register.name])
        return False

    def _status(self, group: int) -> int:
        if not self.groups[group].get("D_OP_ENABLE", 0):
            return _IDLE
        return _RUNNING if group == self.consumer else _PENDING

    def _access_lut(self, value: int | None) -> int:
        """Read or write the table entry that the access register selects; increment its index."""
        register = self._map.registers[f"{self.name}.S_LUT_ACCESS_CFG"]
        word = self.single["S_LUT_ACCESS_CFG"]
        access = register.decode(word)
        table = self.tables[access["LUT_TABLE_ID"]]
        index = access["LUT_ADDR"]
        if access["LUT_ACCESS_TYPE"] != (value is not None) or index >= len(table):
            return 0
        if value is not None:
            table[index] = sign_extend(value, 16)
        self.single["S_LUT_ACCESS_CFG"] = register.insert(word, "LUT_ADDR", index + 1)
        return table[index] & 0xFFFF


def _merged(old: int, value: int, register: Register) -> int:
    return (old & ~register.write_mask) | (value & register.write_mask)


class GlobalBlock(Block):
    """Block GLB: interrupt status, mask and set.

    The interrupts of one operation arrive one after another, as in hardware. The next one arrives
    when the line is not asserted and software waits for an interrupt or has read a status of 0.
    """

    def __init__(self, register_map: RegisterMap) -> None:
        super().__init__("GLB", register_map, self)
        self._fields = register_map.register("GLB.S_INTR_STATUS").fields
        self._pending: deque[int] = deque()

    @property
    def is_raised(self) -> bool:
        """Whether the interrupt line is asserted: a status bit is set and not masked."""
        return bool(self.single["S_INTR_STATUS"] & ~self.single["S_INTR_MASK"])

    def raise_done(self, source: str, group: int) -> None:
        """Queue the interrupt of an engine's group."""
        self._pending.append(self._fields[f"{source}_DONE_STATUS{group}"].mask)

    def deliver(self) -> bool:
        """Deliver queued interrupts until the line is asserted; return whether it is asserted."""
        while self._pending and not self.is_raised:
            self.single["S_INTR_STATUS"] |= self._pending.popleft()
        return self.is_raised

    def read(self, register: Register) -> int:
        """Return a register."""
        if register.name == "S_INTR_STATUS" and not self.single["S_INTR_STATUS"]:
            self.deliver()
            return 0
        return super().read(register)

    def write(self, register: Register, value: int) -> bool:
        """Set a register; ones clear the bits of S_INTR_STATUS, S_INTR_SET sets them."""
        if register.name == "S_INTR_SET":
            self.single["S_INTR_STATUS"] |= value & register.write_mask
        elif register.name == "S_INTR_STATUS":
            self.single["S_INTR_STATUS"] &= ~(value & register.write_mask)
        else:
            super().write(register, value)
        return False


class RomBlock(Block):
    """Block CFGROM: description of the hardware; the map's reset values are those of nv_small."""

    def describe(self, configuration: Configuration) -> None:
        """Set the sizes of a configuration."""
        sizes = {
            "ATOMIC_C": configuration.atomic_c,
            "ATOMIC_K": configuration.atomic_k,
            "ATOMIC_M": configuration.atom_bytes,
            "CBUF_BANK_NUM": configuration.buffer_banks,
            "CBUF_BANK_WIDTH": configuration.buffer_width_bytes,
            "CBUF_BANK_DEPTH": configuration.buffer_depth,
        }
        for name in self.single:
            for suffix, value in sizes.items():
                if name.endswith(f"_BASE_{suffix}"):
                    self.single[name] = value

    def write(self, register: Register, value: int) -> bool:
        """Ignore the write: the block is read-only."""
        del register, value
        return False


def absent_blocks(configuration: Configuration) -> set[str]:
    """Return the names of the blocks that a configuration lacks."""
    optional = {
        ("BDMA",): configuration.has_bdma,
        ("RBK",): configuration.has_rubik,
        ("PDP", "PDP_RDMA"): configuration.has_pdp,
        ("CDP", "CDP_RDMA"): configuration.has_cdp,
    }
    return {name for names, is_present in optional.items() if not is_present for name in names}
