"""Registers as data: names, places, fields, and access by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from smelt.nvdla import NvdlaError, NvError
from smelt.nvdla.registers import REGISTER_MAPS, RegisterFile, load_register_map

if TYPE_CHECKING:
    from pathlib import Path


class _Words:
    """A bus that only remembers."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def read(self, address: int, /) -> int:
        return self.held.get(address, 0)

    def write(self, address: int, value: int, /) -> None:
        self.held[address] = value

    def wait_for_interrupt(self, timeout_s: float, /) -> bool:
        return timeout_s < 0


@pytest.mark.parametrize("name", REGISTER_MAPS)
def test_fields_of_a_register_do_not_overlap_and_fit_32_bits(name: str) -> None:
    for register in load_register_map(name).registers.values():
        used = 0
        for field in register.fields.values():
            assert not used & field.mask, register.full_name
            used |= field.mask
        assert used >> 32 == 0
        assert register.reset >> 32 == 0


@pytest.mark.parametrize("name", REGISTER_MAPS)
def test_every_address_holds_one_register(name: str) -> None:
    registers = load_register_map(name)
    assert len(registers.by_address) == len(registers.registers)
    assert all(address % 4 == 0 for address in registers.by_address)


def test_the_two_maps_put_their_blocks_where_the_documentation_does() -> None:
    assert load_register_map("nv_full").blocks["SDP"] == 0xB000
    assert load_register_map("v2").blocks["SDP"] == 0x9000
    assert "CFGROM" not in load_register_map("nv_full").blocks


def test_registers_that_exist_twice_are_told_from_single_ones() -> None:
    registers = load_register_map("v2")
    assert registers.register("SDP.D_CVT_SCALE").is_grouped
    assert not registers.register("SDP.S_POINTER").is_grouped


@pytest.mark.shared
@pytest.mark.parametrize(("name", "file"), [("v2", "small"), ("nv_full", "full")])
def test_offsets_and_fields_are_those_of_the_reference(name: str, file: str, shared: Path) -> None:
    reference = json.loads((shared / "nvdla" / f"registers_nv_{file}.json").read_text())
    registers = load_register_map(name)
    compared = 0
    for full_name, entry in reference.items():
        register = registers.by_address.get(entry["off"])
        if register is None:
            assert "GEC" in full_name
            continue
        compared += 1
        assert full_name.endswith(register.name)
        for field_name, (shift, mask) in entry["f"].items():
            field = register.field(field_name)
            assert (field.shift, field.mask >> field.shift) == (shift, mask)
    assert compared > 300


def test_fields_are_read_and_written_by_name() -> None:
    file = RegisterFile(_Words(), load_register_map("v2"))
    file.write_fields("SDP.D_DP_BS_CFG", BS_ALU_ALGO=2, BS_RELU_BYPASS=1)
    assert file.read("SDP.D_DP_BS_CFG") == 0x48
    file.update_fields("SDP.D_DP_BS_CFG", BS_ALU_ALGO=1)
    assert file.read_field("SDP.D_DP_BS_CFG", "BS_ALU_ALGO") == 1
    assert file.read_field("SDP.D_DP_BS_CFG", "BS_RELU_BYPASS") == 1
    register = file.map.register("SDP.D_DP_BS_CFG")
    assert register.decode(0x48)["BS_ALU_ALGO"] == 2


@pytest.mark.parametrize("name", REGISTER_MAPS)
def test_a_fields_name_says_in_which_register_of_its_block_it_is(name: str) -> None:
    registers = load_register_map(name).registers.values()
    owners = [(register.block, field) for register in registers for field in register.fields]
    assert {block for block, field in owners if owners.count((block, field)) > 1} == {"BDMA"}


def test_a_value_too_large_for_its_field_is_refused() -> None:
    register = load_register_map("v2").register("SDP.D_DP_BS_CFG")
    with pytest.raises(NvdlaError, match=r"4 does not fit into .* 2 bits") as caught:
        register.encode(BS_ALU_ALGO=4)
    assert caught.value.status is NvError.BAD_VALUE


def test_unknown_names_say_what_there_is() -> None:
    registers = load_register_map("v2")
    with pytest.raises(NvdlaError, match="has no register"):
        registers.register("SDP.NOWHERE")
    with pytest.raises(NvdlaError, match="its fields are CVT_SCALE"):
        registers.register("SDP.D_CVT_SCALE").field("SCALE")
    with pytest.raises(NvdlaError, match="register maps are nv_full, v2"):
        load_register_map("v3")
