"""Ranges on the time line of a system profiler."""

from __future__ import annotations

import importlib
from typing import Any


def load_nvtx() -> Any:
    """The package by which the time line of a system profiler shows runs; None where it is not."""
    try:
        return importlib.import_module("nvtx")
    except ImportError:
        return None
