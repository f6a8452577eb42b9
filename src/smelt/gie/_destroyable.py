"""What has a life that ends: by ``destroy``, as documented, or with a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Destroyable(ABC):
    """Ends with ``destroy``, which is harmless again; ``with`` calls it."""

    @abstractmethod
    def destroy(self) -> None:
        """End its life."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()
