"""Build and run inference engines from ONNX and Caffe networks, and run NVDLA loadables.

Public names are imported on first access, so a program that only runs engines does not load the
compiler.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smelt import errors, importers, ops
    from smelt.builder import build, load, retune
    from smelt.errors import (
        BindingError,
        BuildError,
        ContextError,
        DeviceError,
        EngineFormatError,
        EngineMismatchError,
        GraphError,
        IndexRangeError,
        InternalError,
        MissingExtraError,
        ModelFormatError,
        ShapeError,
        SmeltError,
        TrustError,
        UnboundSymbolError,
        UnsupportedError,
    )
    from smelt.importers import network_from_caffe, network_from_onnx
    from smelt.logger import Logger, LoggingLogger, Severity
    from smelt.network import Layer, NetworkDefinition, Tensor
    from smelt.ops import register_op
    from smelt.runtime import Engine, Event, ExecutionContext, Stream

    __version__: str

__all__ = [
    "BindingError",
    "BuildError",
    "ContextError",
    "DeviceError",
    "Engine",
    "EngineFormatError",
    "EngineMismatchError",
    "Event",
    "ExecutionContext",
    "GraphError",
    "IndexRangeError",
    "InternalError",
    "Layer",
    "Logger",
    "LoggingLogger",
    "MissingExtraError",
    "ModelFormatError",
    "NetworkDefinition",
    "Severity",
    "ShapeError",
    "SmeltError",
    "Stream",
    "Tensor",
    "TrustError",
    "UnboundSymbolError",
    "UnsupportedError",
    "__version__",
    "build",
    "errors",
    "importers",
    "load",
    "network_from_caffe",
    "network_from_onnx",
    "ops",
    "register_op",
    "retune",
]

_HOMES: Final = {
    "builder": ("build", "load", "retune"),
    "importers": ("network_from_caffe", "network_from_onnx"),
    "logger": ("Logger", "LoggingLogger", "Severity"),
    "network": ("Layer", "NetworkDefinition", "Tensor"),
    "ops": ("register_op",),
    "runtime": ("Engine", "Event", "ExecutionContext", "Stream"),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
}
"""Public names by the subpackage that defines them."""
_ROOMS: Final = frozenset(
    ("compare", "cudla", "errors", "gie", "importers", "inspect", "neural", "nvdla", "ops")
)
"""Subpackages that are public."""


def __getattr__(name: str) -> object:
    """Import a public name or subpackage on first access."""
    if name in _ROOMS and find_spec(f"smelt.{name}") is not None:
        return import_module(f"smelt.{name}")
    home = next((room for room, names in _HOMES.items() if name in names), None)
    if name == "__version__":
        value: object = import_module("smelt.engine").VERSION
    elif home is not None:
        value = getattr(import_module(f"smelt.{home}"), name)
    else:
        raise AttributeError(f"module 'smelt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, whether imported or not."""
    rooms = {name for name in _ROOMS if find_spec(f"smelt.{name}") is not None}
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *rooms})
