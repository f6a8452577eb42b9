"""Registers as data: names, addresses, fields, reset values and typed access by name."""

from smelt.nvdla.registers._map import (
    REGISTER_MAPS,
    Field,
    Register,
    RegisterFile,
    RegisterMap,
    load_register_map,
)

__all__ = [
    "REGISTER_MAPS",
    "Field",
    "Register",
    "RegisterFile",
    "RegisterMap",
    "load_register_map",
]
