"""Hardware that computes nothing, finishes in any order, and notices every broken rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.nvdla import MemorySpace, NvdlaError, NvError
from smelt.nvdla.registers import load_register_map

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from smelt.nvdla.hardware import Configuration
    from smelt.nvdla.registers import Register

ENGINES = {
    "CONV": ("CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA"),
    "SDP": ("SDP",),
    "PDP": ("PDP",),
    "CDP": ("CDP",),
    "RUBIK": ("RBK",),
}
READERS = {"SDP": "SDP_RDMA", "PDP": "PDP_RDMA", "CDP": "CDP_RDMA"}
IDENTITIES = {
    "CONV": "CDMA.D_WEIGHT_ADDR_LOW",
    "SDP": "SDP.D_CVT_OFFSET",
    "PDP": "PDP.D_DST_BASE_ADDR_LOW",
    "CDP": "CDP.D_DST_BASE_ADDR_LOW",
    "RUBIK": "RBK.D_DAOUT_ADDR_LOW",
}
"""Registers in which each operation of a test's task holds a number of its own."""
DONE = {"CONV": ("CDMA_WT", "CDMA_DAT", "CACC")}
SHARED_TABLES = ("SDP", "CDP")


class FakeMemory:
    """One DRAM from address 0 on."""

    def __init__(self, size_bytes: int = 1 << 20) -> None:
        self.data = bytearray(size_bytes)

    def read(self, space: MemorySpace, address: int, size_bytes: int, /) -> bytes:
        self._check(space, address, size_bytes)
        return bytes(self.data[address : address + size_bytes])

    def write(self, space: MemorySpace, address: int, data: Buffer, /) -> None:
        content = bytes(data)
        self._check(space, address, len(content))
        self.data[address : address + len(content)] = content

    def _check(self, space: MemorySpace, address: int, size_bytes: int) -> None:
        if space is not MemorySpace.DRAM or not 0 <= address <= len(self.data) - size_bytes:
            raise NvdlaError(NvError.INVALID_ADDRESS, f"{space.name} {address:#x} is outside")


class FakeHardware:
    """Registers with ping-pong groups; `choose(n)` says which of n possible things happens next."""

    def __init__(self, configuration: Configuration, choose: Callable[[int], int]) -> None:
        self.map = load_register_map(configuration.register_map)
        self.choose = choose
        self.words: dict[tuple[str, int], int] = {}
        self.producer: dict[str, int] = {}
        self.consumer: dict[str, int] = {}
        self.enabled: set[tuple[str, int]] = set()
        self.status = 0
        self.queued: list[tuple[str, ...]] = []
        self.streams = {"CONV": False, "SDP": False}
        self.bdma_queue: list[int] = []
        self.bdma_groups: dict[int, list[int]] = {}
        self.bdma_order: list[int] = []
        self.log: list[tuple[str, str, int]] = []
        """What happened: enabled or completed, which engine, the operation's number."""
        self.is_stuck = False

    # --- the bus

    def read(self, address: int, /) -> int:
        register = self.map.by_address[address]
        block = register.block
        if register.full_name == "GLB.S_INTR_STATUS":
            return self.status
        if register.full_name == "BDMA.STATUS":
            return register.encode(
                FREE_SLOT=20,
                GRP0_BUSY=int(0 in self.bdma_groups),
                GRP1_BUSY=int(1 in self.bdma_groups),
            )
        if register.name == "S_POINTER":
            return self.producer.get(block, 0) | self.consumer.get(block, 0) << 16
        if register.name == "S_STATUS":
            return sum(self._state(block, group) << 16 * group for group in (0, 1))
        if register.name == "S_CBUF_FLUSH_STATUS":
            return 1
        return self.words.get(self._key(register), register.reset)

    def write(self, address: int, value: int, /) -> None:
        register = self.map.by_address[address]
        block = register.block
        assert value & ~0xFFFFFFFF == 0
        if register.full_name == "GLB.S_INTR_STATUS":
            self.status &= ~value
        elif register.name == "S_POINTER":
            self.producer[block] = value & 1
        elif block == "BDMA":
            self._write_bdma(register, value)
        else:
            self._write_block(register, value)

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        if self.is_stuck:
            return False
        self._run_all()
        if not self.queued:
            return bool(self.status)
        for _ in range(1 + self.choose(len(self.queued))):
            oldest = list({item[0]: item for item in reversed(self.queued)}.values())
            item = oldest[self.choose(len(oldest))]  # an engine reports in its own order
            self.queued.remove(item)
            self._raise(item)
        return True

    # --- blocks

    def _key(self, register: Register) -> tuple[str, int]:
        grouped = register.name.startswith("D_")
        return register.full_name, self.producer.get(register.block, 0) if grouped else 0

    def _state(self, block: str, group: int) -> int:
        if (block, group) not in self.enabled:
            return 0
        return 1 if self.consumer.get(block, 0) == group else 2

    def _write_block(self, register: Register, value: int) -> None:
        block, group = register.block, self.producer.get(register.block, 0)
        if register.name.startswith("D_"):
            assert (block, group) not in self.enabled, f"{register.full_name} of a busy group"
        elif "LUT" in register.name:
            assert not any((block, item) in self.enabled for item in (0, 1)), "the table is locked"
        self.words[self._key(register)] = value
        if register.name == "D_OP_ENABLE":
            self.enabled.add((block, group))
            for engine, blocks in ENGINES.items():
                if block == blocks[-1]:
                    self.log.append(("enabled", engine, self._identity(engine, group)))

    def _identity(self, engine: str, group: int) -> int:
        return self.words[IDENTITIES[engine], group]

    def _write_bdma(self, register: Register, value: int) -> None:
        self.words[register.full_name, 0] = value
        if register.name == "CFG_OP":
            self.bdma_queue.append(self.words["BDMA.CFG_DST_SURF", 0])
        elif register.name.startswith("CFG_LAUNCH"):
            group = int(register.name[-1])
            assert group not in self.bdma_groups
            self.bdma_groups[group], self.bdma_queue = self.bdma_queue, []
            self.bdma_order.append(group)
            self.log.append(("enabled", "BDMA", self.bdma_groups[group][0]))

    # --- engines

    def _is_running(self, engine: str) -> bool:
        groups = {(block, self.consumer.get(block, 0)) for block in ENGINES[engine]}
        return groups <= self.enabled

    def _field(self, engine: str, name: str, field: str) -> int:
        register = self.map.register(name)
        group = self.consumer.get(ENGINES[engine][0], 0)
        return register.field(field).extract(self.words.get((name, group), 0))

    def _run_all(self) -> None:
        """Run every engine that has all it needs, in a random order, until none has."""
        while chains := self._find_chains():
            for engine in chains[self.choose(len(chains))]:
                self._finish(engine)
        for group in self.bdma_order:
            numbers = self.bdma_groups.pop(group)
            self.queued.append(("BDMA", str(group), str(numbers[0])))
        self.bdma_order.clear()

    def _find_chains(self) -> list[tuple[str, ...]]:
        running = {engine for engine in ENGINES if self._is_running(engine)}
        chains: list[tuple[str, ...]] = [
            (engine,) for engine in ("CDP", "RUBIK") if engine in running
        ]
        is_sdp_fed = "SDP" in running and self._field(
            "SDP", "SDP.D_FEATURE_MODE_CFG", "FLYING_MODE"
        )
        is_pdp_fed = "PDP" in running and not self._field(
            "PDP", "PDP.D_OPERATION_MODE_CFG", "FLYING_MODE"
        )
        if "PDP" in running and not is_pdp_fed:
            chains.append(("PDP",))
        if "SDP" in running:
            feeds_pdp = self._field("SDP", "SDP.D_FEATURE_MODE_CFG", "OUTPUT_DST")
            chain: tuple[str, ...] = ("SDP", "PDP") if feeds_pdp else ("SDP",)
            chain = ("CONV", *chain) if is_sdp_fed else chain
            if (not feeds_pdp or is_pdp_fed) and set(chain) <= running:
                chains.append(chain)
        return chains

    def _finish(self, engine: str) -> None:
        group = self.consumer.get(ENGINES[engine][0], 0)
        number = self._identity(engine, group)
        for block in ENGINES[engine]:
            self.enabled.discard((block, group))
            self.consumer[block] = 1 - group
        reader = READERS.get(engine)
        if reader is not None:
            at = self.consumer.get(reader, 0)
            if (reader, at) in self.enabled:
                self.enabled.discard((reader, at))
                self.consumer[reader] = 1 - at
        self.queued.append((engine, str(group), str(number)))

    def _raise(self, item: tuple[str, ...]) -> None:
        engine, group, number = item
        register = self.map.register("GLB.S_INTR_STATUS")
        for source in DONE.get(engine, (engine,)):
            self.status |= register.field(f"{source}_DONE_STATUS{group}").mask
        self.log.append(("completed", engine, int(number)))
