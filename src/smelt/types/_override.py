"""``override`` for the run half, which has no package but numpy and cryptography.

Python has it from 3.12 on; before, only typing_extensions does, which type checkers bring along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method):
        """Mark a method that replaces a base class's; only type checkers look."""
        return method


__all__ = ["override"]
