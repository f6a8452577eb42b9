"""smelt's version, as engines record it."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
"""The same as the package's (a test compares them), whose metadata takes longer to read."""
