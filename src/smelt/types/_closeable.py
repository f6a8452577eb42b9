"""What ends with ``close``, and so may be held by a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn, Self, SupportsIndex


class Closeable(ABC):
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

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: two that own the same memory would both end it."""
        raise TypeError(
            f"an object of type {type(self).__name__} owns memory, threads or a connection of this "
            "process and cannot be copied or pickled; create another one"
        )
