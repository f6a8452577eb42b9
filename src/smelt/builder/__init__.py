"""Network and options to engine: the one room that sees everything below it.

Names are loaded when they are asked for: whoever loads an engine that he trusts needs no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smelt.builder._build import build
    from smelt.builder._load import load
    from smelt.builder._optimization_profiles import (
        ShapeSpec,
        SymbolRange,
        optimization_profiles_of,
    )
    from smelt.builder._options import EFFORTS, BuildOptions, Progress, TuningEffort
    from smelt.builder._retune import retune
    from smelt.builder._toolchain import device_to_run

__all__ = [
    "EFFORTS",
    "SymbolRange",
    "BuildOptions",
    "Progress",
    "ShapeSpec",
    "TuningEffort",
    "optimization_profiles_of",
    "build",
    "device_to_run",
    "load",
    "retune",
]

_HOMES: Final = {
    "_build": ("build",),
    "_load": ("load",),
    "_options": ("EFFORTS", "BuildOptions", "Progress", "TuningEffort"),
    "_retune": ("retune",),
    "_optimization_profiles": ("SymbolRange", "ShapeSpec", "optimization_profiles_of"),
    "_toolchain": ("device_to_run",),
}
"""The file of each name."""


def __getattr__(name: str) -> object:
    """Load what is asked for."""
    home = next((file for file, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'smelt.builder' has no attribute {name!r}")
    found: object = getattr(import_module(f"smelt.builder.{home}"), name)
    globals()[name] = found
    return found
