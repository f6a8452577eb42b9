"""Register maps: names, addresses, fields and reset values, and register access by name."""

from smelt.nvdla.registers._map import (
    REGISTER_MAPS,
    Register,
    RegisterFile,
    RegisterMap,
    load_register_map,
)

__all__ = [
    "REGISTER_MAPS",
    "Register",
    "RegisterFile",
    "RegisterMap",
    "load_register_map",
]
