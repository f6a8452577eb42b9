"""What ends with ``close``, and so may be held by a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class Closing(ABC):
    """Something with ``close``: ``with`` calls it at the end of the block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """End its use."""

    def __enter__(self) -> Self:
        """The thing itself; leaving closes it."""
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
