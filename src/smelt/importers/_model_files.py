"""Reading the file of a model."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from smelt.errors import ModelFormatError
from smelt.signal_errors import convert_own
from smelt.types import read_file

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.types import Limit


def read_model_file(path: Path, limit: Limit, problem: str, advice_if_large: str) -> bytes:
    """Return the content of a file.

    Raises:
        ModelFormatError: the file cannot be read, or is larger than ``limit``; the message starts
            with ``problem``.
    """

    def refuse(error: Exception) -> ModelFormatError:
        reason = getattr(error, "strerror", None) or str(error)
        is_large = isinstance(error, OSError) and error.errno == errno.EFBIG
        advice = advice_if_large if is_large else "check the path"
        return ModelFormatError(f"{problem}: {reason}; {advice}")

    with convert_own(refuse, OSError, ValueError):
        return read_file(path, limit)
