"""Places that data name: indices as kernels read them, held inside and told of if they are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Emitter, Int, Reg


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Reads indices of one axis, or of several."""

    e: Emitter
    index_bytes: int
    errors: Reg
    """Address of the layer's error words."""

    def position(self, index: Reg, extent: Int) -> Reg:
        """The place that the index at an address names; negative indices count from the end.

        It is inside the axis whatever the index is, or 0 if nothing is inside.
        """
        e, value = self.e, self._load(index)
        wrapped = e.select(e.compare("slt", value, 0), e.i64(e.add(value, extent)), value)
        with e.when(e.compare("uge", wrapped, extent)):
            self._report(value, extent)
        return e.select(e.compare("ult", wrapped, extent), wrapped, e.constant(0, "i64"))

    def end(self, first: Int, last: Int, index: Reg, extent: Int) -> Int:
        """How far to go from ``first``: nowhere, and tell of the index, where the axis is empty."""
        e = self.e
        if isinstance(extent, int) and extent > 0:
            return last
        is_empty = e.compare("eq", extent, 0)
        with e.when(is_empty):
            self._report(self._load(index), extent)
        return e.select(is_empty, e.i64(first), e.i64(last))

    def _load(self, index: Reg) -> Reg:
        value = self.e.load(f"i{8 * self.index_bytes}", index)
        return value if value.type == "i64" else self.e.convert("sext", value, "i64")

    def _report(self, index: Reg, extent: Int) -> None:
        e = self.e
        e.store(index, self.errors)
        e.store(e.i64(e.sub(-1, extent)), e.at(self.errors, 8))
