"""Chains of blocks that run an operation together, and when they can start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from smelt.nvdla.hardware._bdma import BdmaBlock, Transfer, run_bdma
from smelt.nvdla.hardware._blocks import Block, GlobalBlock, RomBlock, absent_blocks
from smelt.nvdla.hardware._cdp import run_cdp
from smelt.nvdla.hardware._convolution import run_convolution
from smelt.nvdla.hardware._pdp import plan_pdp, run_pdp
from smelt.nvdla.hardware._rubik import run_rubik
from smelt.nvdla.hardware._sdp import check_sdp, run_sdp
from smelt.nvdla.hardware._sdp_registers import read_x_stage, read_y_stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.nvdla.hardware._configuration import Configuration
    from smelt.nvdla.hardware._group_registers import GroupRegisters
    from smelt.nvdla.hardware._running_operation import Operation
    from smelt.nvdla.registers import RegisterMap

CONVOLUTION = ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")
"""Blocks of the convolution core."""
CHAINS = ("SDP", "PDP", "CDP", "RBK", "BDMA")
"""Engines from which chains are found; an SDP chain may include the convolution and PDP."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks that run one operation together; data passes on the fly from the first to the last."""

    engines: tuple[str, ...]
    blocks: tuple[str, ...]


def find_chain(start: str, blocks: dict[str, Block]) -> Chain | None:
    """Return the chain of an engine if all its blocks are ready, otherwise None."""
    if start not in blocks or not blocks[start].is_ready:
        return None
    chain = _CHAIN_OF[start](blocks)
    if chain is None or not all(name in blocks and blocks[name].is_ready for name in chain.blocks):
        return None
    return chain


def _sdp_chain(blocks: dict[str, Block]) -> Chain | None:
    """Return SDP's chain, with the convolution or PDP if they are on the fly."""
    registers = blocks["SDP"].view()
    flying = bool(registers.get("FLYING_MODE"))
    engines = ["CONV", "SDP"] if flying else ["SDP"]
    names = [*CONVOLUTION, "SDP"] if flying else ["SDP"]
    if not flying or _needs_rdma(registers):
        names.append("SDP_RDMA")
    if registers.get("OUTPUT_DST"):
        if "PDP" not in blocks or not _is_flying_pdp(blocks["PDP"]):
            return None
        engines.append("PDP")
        names.append("PDP")
    return Chain(tuple(engines), tuple(names))


def _needs_rdma(registers: GroupRegisters) -> bool:
    """Return whether a stage of SDP reads an operand from memory."""
    x_stages = (read_x_stage(registers, name) for name in ("BS", "BN"))
    return any(stage.reads_memory for stage in (*x_stages, read_y_stage(registers)))


def _is_flying_pdp(block: Block) -> bool:
    return block.is_ready and not block.view().get("FLYING_MODE")


def _pdp_chain(blocks: dict[str, Block]) -> Chain | None:
    if _is_flying_pdp(blocks["PDP"]):
        return None
    return Chain(("PDP",), ("PDP", "PDP_RDMA"))


_CHAIN_OF: dict[str, Callable[[dict[str, Block]], Chain | None]] = {
    "SDP": _sdp_chain,
    "PDP": _pdp_chain,
    "CDP": lambda _: Chain(("CDP",), ("CDP", "CDP_RDMA")),
    "RBK": lambda _: Chain(("RUBIK",), ("RBK",)),
    "BDMA": lambda _: Chain(("BDMA",), ("BDMA",)),
}


@np.errstate(all="ignore")  # the hardware computes with infinities and NaNs too
def run_chain(chain: Chain, operation: Operation, transfers: list[Transfer]) -> None:
    """Run an operation through all engines of its chain, in order.

    All destinations are checked first. The chain takes as long as its slowest engine.

    Raises:
        NvdlaError: If an engine cannot run the operation. Part of the output may be written then.
    """
    if "SDP" in chain.engines:
        check_sdp(operation)
    if "PDP" in chain.engines:
        plan_pdp(operation)
    flying = None
    cycles = 0
    for engine in chain.engines:
        if engine == "CONV":
            flying = run_convolution(operation)
        elif engine == "SDP":
            flying = run_sdp(operation, flying)
        elif engine == "PDP":
            run_pdp(operation, flying)
        elif engine == "CDP":
            run_cdp(operation)
        elif engine == "RUBIK":
            run_rubik(operation)
        else:
            run_bdma(operation, transfers)
        cycles = max(cycles, operation.mac_cycles)
    operation.mac_cycles = cycles


def make_blocks(
    register_map: RegisterMap, configuration: Configuration, glb: GlobalBlock
) -> dict[str, Block]:
    """Return the blocks of a configuration by name."""
    absent = {*absent_blocks(configuration), "GLB"}
    kinds: dict[str, type[Block]] = {"BDMA": BdmaBlock, "CFGROM": RomBlock}
    blocks = {
        name: kinds.get(name, Block)(name, register_map, glb)
        for name in register_map.blocks
        if name not in absent
    }
    for block in blocks.values():
        if isinstance(block, RomBlock):
            block.describe(configuration)
    return {"GLB": glb, **blocks}
