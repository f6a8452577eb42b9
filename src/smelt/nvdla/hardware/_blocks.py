"""Blocks on the register bus: single registers, two ping-pong groups, pointers, status, LUTs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from smelt.nvdla.hardware._arithmetic import sign_extend
from smelt.nvdla.hardware._lut import LE_ENTRIES, LO_ENTRIES
from smelt.nvdla.hardware._state import GroupRegisters

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
_IDLE, _RUNNING, _PENDING = 0, 1, 2


class GlobalBlock:
    """GLB: interrupt status, mask and set.

    Interrupts that one operation brings arrive one after another, as hardware's do: the next comes
    when the line is down and somebody waits for it, or has read that nothing is pending.
    """

    def __init__(self, register_map: RegisterMap) -> None:
        self._fields = register_map.register("GLB.S_INTR_STATUS").fields
        self._version = register_map.register("GLB.S_NVDLA_HW_VERSION").reset
        self.status = 0
        self.mask = 0
        self._coming: deque[int] = deque()

    @property
    def is_raised(self) -> bool:
        """Whether the interrupt line is up: some status bit is set and not masked."""
        return bool(self.status & ~self.mask)

    def raise_done(self, source: str, group: int) -> None:
        """Let the interrupt of an engine's group come."""
        self._coming.append(self._fields[f"{source}_DONE_STATUS{group}"].mask)

    def deliver(self) -> bool:
        """Let interrupts come until the line is up, and return whether it is."""
        while self._coming and not self.is_raised:
            self.status |= self._coming.popleft()
        return self.is_raised

    def read(self, register: Register) -> int:
        """Return a register."""
        if register.name == "S_INTR_STATUS" and not self.status:
            self.deliver()
            return 0
        values = {
            "S_NVDLA_HW_VERSION": self._version,
            "S_INTR_MASK": self.mask,
            "S_INTR_STATUS": self.status,
        }
        return values.get(register.name, 0)

    def write(self, register: Register, value: int) -> bool:
        """Set a register: status bits are cleared by writing ones, set through S_INTR_SET."""
        value &= register.write_mask
        if register.name == "S_INTR_MASK":
            self.mask = value
        elif register.name == "S_INTR_SET":
            self.status |= value
        elif register.name == "S_INTR_STATUS":
            self.status &= ~value
        return False


class Block:
    """One block's registers, and its operation groups if it has any."""

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
        self.tables: tuple[list[int], list[int]] = ([], [])
        self.clear_tables()
        if "S_CBUF_FLUSH_STATUS" in self.single:
            self.single["S_CBUF_FLUSH_STATUS"] = 1

    def start(self) -> None:
        """Begin: what a kind of block adds."""

    def clear_tables(self) -> None:
        """Set all entries of the look-up tables to zero."""
        self.tables = ([0] * LE_ENTRIES, [0] * LO_ENTRIES)

    @property
    def is_ready(self) -> bool:
        """Whether the group whose turn it is has been enabled."""
        return not self.is_hung and bool(self.groups[self.consumer].get("D_OP_ENABLE", 0))

    def view(self) -> GroupRegisters:
        """Return the registers of the group whose turn it is."""
        return GroupRegisters(self.name, self._map, self.single, self.groups[self.consumer])

    def hang(self) -> None:
        """Stay busy until the next reset, as hardware that waits for data that never comes."""
        self.is_hung = True

    def report_stalls(self, cycles: int) -> None:
        """Set the group's stall counters, if its operation counts DMA."""
        group = self.groups[self.consumer]
        if group.get("D_PERF_ENABLE", 0) & 1:
            for name in group:
                if name.endswith("_STALL"):
                    group[name] = min(cycles, 0xFFFFFFFF)

    def complete(self) -> None:
        """End the operation: free its group, turn to the other, raise the interrupts."""
        self.groups[self.consumer]["D_OP_ENABLE"] = 0
        for source in _INTERRUPTS.get(self.name, ()):
            self.glb.raise_done(source, self.consumer)
        self.consumer ^= 1

    def read(self, register: Register) -> int:
        """Return a register; grouped ones are the producer's."""
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
        """Set a register; True if an operation was enabled by it.

        A group that is enabled ignores writes until its operation is over.
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
        """Read or write the table entry that the access register points to, and step on."""
        register = self._map.registers[f"{self.name}.S_LUT_ACCESS_CFG"]
        word = self.single["S_LUT_ACCESS_CFG"]
        access = register.decode(word)
        table = self.tables[access["LUT_TABLE_ID"]]
        index = access["LUT_ADDR"]
        if access["LUT_ACCESS_TYPE"] != (value is not None) or index >= len(table):
            return 0
        if value is not None:
            table[index] = sign_extend(value, 16)
        step = register.fields["LUT_ADDR"]
        self.single["S_LUT_ACCESS_CFG"] = step.insert(word, index + 1)
        return table[index] & 0xFFFF


def _merged(old: int, value: int, register: Register) -> int:
    return (old & ~register.write_mask) | (value & register.write_mask)


class GlobalAdapter(Block):
    """GLB behind the interface of a block."""

    def read(self, register: Register) -> int:
        return self.glb.read(register)

    def write(self, register: Register, value: int) -> bool:
        return self.glb.write(register, value)


class RomBlock(Block):
    """CFGROM: what the hardware was made of. The map's reset values are nv_small's."""

    def describe(self, configuration: Configuration) -> None:
        """Say the sizes of a configuration."""
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
        """Ignore it: this is read-only memory."""
        del register, value
        return False


def absent_blocks(configuration: Configuration) -> set[str]:
    """Return the blocks that a configuration does not have."""
    absent: set[str] = set()
    if not configuration.has_bdma:
        absent.add("BDMA")
    if not configuration.has_rubik:
        absent.add("RBK")
    if not configuration.has_pdp:
        absent |= {"PDP", "PDP_RDMA"}
    if not configuration.has_cdp:
        absent |= {"CDP", "CDP_RDMA"}
    return absent
