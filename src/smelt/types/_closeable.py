"""Base class of objects that own resources and are released by ``close`` or a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn, Self, SupportsIndex


class Closeable(ABC):
    """Object with a ``close`` method, which a ``with`` block calls at its end."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the object."""

    def __enter__(self) -> Self:
        """Return the object itself; leaving the block closes it."""
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse copying and pickling: two owners of the same memory would both free it."""
        raise TypeError(
            f"an object of type {type(self).__name__} owns memory, threads or a connection of this "
            "process and cannot be copied or pickled; create another one"
        )
