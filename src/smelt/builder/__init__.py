"""The builder: turns a network and options into an engine, and loads and retunes engines.

Names are imported lazily, so that loading a trusted engine does not import a compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smelt.builder._build import build, specialise
    from smelt.builder._load_engine import load
    from smelt.builder._optimization_profiles import ShapeSpec, optimization_profiles_of
    from smelt.builder._options import EFFORTS, BuildOptions, ProgressCallback, TuningEffort
    from smelt.builder._retune import retune
    from smelt.builder._toolchain import devices_to_run

__all__ = [
    "EFFORTS",
    "BuildOptions",
    "ProgressCallback",
    "ShapeSpec",
    "TuningEffort",
    "optimization_profiles_of",
    "build",
    "devices_to_run",
    "load",
    "retune",
    "specialise",
]

_FILE_EXPORTS: Final = {
    "_build": ("build", "specialise"),
    "_load_engine": ("load",),
    "_options": ("EFFORTS", "BuildOptions", "ProgressCallback", "TuningEffort"),
    "_retune": ("retune",),
    "_optimization_profiles": ("ShapeSpec", "optimization_profiles_of"),
    "_toolchain": ("devices_to_run",),
}
"""The names that each file of the package defines."""


def __getattr__(name: str) -> object:
    """Import a name of the package on first use."""
    file_name = next((file for file, names in _FILE_EXPORTS.items() if name in names), None)
    if file_name is None:
        raise AttributeError(f"module 'smelt.builder' has no attribute {name!r}")
    exported: object = getattr(import_module(f"smelt.builder.{file_name}"), name)
    globals()[name] = exported
    return exported
