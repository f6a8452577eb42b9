"""NVTX ranges, which system profilers show on their time line."""

from __future__ import annotations

import importlib
from typing import Any


def load_nvtx() -> Any:
    """Return the ``nvtx`` package; None if it is not installed."""
    try:
        return importlib.import_module("nvtx")
    except ImportError:
        return None
