"""Extents in kernel specs: known ones are embedded, symbolic ones become launch scalars."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.engine import Json
    from smelt.types import Dim


class LaunchScalars:
    """Collector of the run-time scalars of one launch, without duplicates."""

    def __init__(self) -> None:
        self._dims: list[Dim] = []

    def json(self, dim: Dim) -> Json:
        """Return a dim as a spec holds it: the int, or ``("arg", k)`` for scalar ``k``."""
        if isinstance(dim, int):
            return dim
        if dim not in self._dims:
            self._dims.append(dim)
        return ("arg", self._dims.index(dim))

    def all_json(self, dims: Iterable[Dim]) -> tuple[Json, ...]:
        """Return ``json`` of each dim."""
        return tuple(self.json(dim) for dim in dims)

    @property
    def values(self) -> tuple[Dim, ...]:
        """Scalars for ``Launch.scalars``."""
        return tuple(self._dims)
