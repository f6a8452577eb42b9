"""Base class of objects with the documented method ``destroy``; they are context managers too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Destroyable(ABC):
    """Object that ``destroy`` or the end of a ``with`` block releases, once."""

    @abstractmethod
    def destroy(self) -> None:
        """Release the object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.destroy()
