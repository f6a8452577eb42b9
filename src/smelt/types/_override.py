"""``override`` for packages that run engines and depend on numpy and cryptography only.

Python has ``typing.override`` since 3.12. Before, only typing_extensions has it, which type
checkers provide but a machine that runs engines may not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method):
        """Mark a method that overrides one of a base class, for type checkers."""
        return method


__all__ = ["override"]
