"""Indices in tensors: kernels clamp them to the axis and report those that are out of range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Emitter, Int, Reg


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Reads indices along one or several axes and reports those that are out of range."""

    e: Emitter
    index_bytes: int
    errors: Reg
    """Address of the node's error words: the index, then -1 minus the extent."""

    def position(self, index: Reg, extent: Int) -> Reg:
        """Return the position that the index at an address selects.

        Negative indices count from the end. An index out of range is reported, and the position is
        0.
        """
        e, value = self.e, self._load(index)
        wrapped = e.select(e.compare("slt", value, 0), e.i64(e.add(value, extent)), value)
        with e.when(e.compare("uge", wrapped, extent)):
            self._report(value, extent)
        return e.select(e.compare("ult", wrapped, extent), wrapped, e.constant(0, "i64"))

    def end(self, first: Int, last: Int, index: Reg, extent: Int) -> Int:
        """Return the end of a loop over elements from ``first`` to ``last``.

        If the axis is empty, the loop must not run: the index is reported, and the end is
        ``first``.
        """
        e = self.e
        if isinstance(extent, int) and extent > 0:
            return last
        is_empty = e.compare("eq", extent, 0)
        with e.when(is_empty):
            self._report(self._load(index), extent)
        return e.select(is_empty, e.i64(first), e.i64(last))

    def _load(self, index: Reg) -> Reg:
        """Load an index as i64."""
        value = self.e.load(f"i{8 * self.index_bytes}", index)
        return value if value.type == "i64" else self.e.convert("sext", value, "i64")

    def _report(self, index: Reg, extent: Int) -> None:
        """Store an index and the extent of its axis in the error words."""
        e = self.e
        e.store(index, self.errors)
        e.store(e.i64(e.sub(-1, extent)), e.at(self.errors, 8))
