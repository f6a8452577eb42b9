"""Check in O(n log n) that steps which may run concurrently do not access each other's memory.

A hostile plan may declare all steps concurrent. Comparing all pairs of views could then take hours.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


class Span(NamedTuple):
    """Range of bytes that a step may access through a buffer."""

    memory_space_key: Hashable
    """Identifies the memory that `low` and `high` refer to."""
    low: int
    high: int
    """End of the range (exclusive); equal to ``low`` for an empty span."""
    buffer: int
    step: int
    is_written: bool
    base: int = 0
    """Start of the buffer in its memory."""


def find_conflict(spans: Iterable[Span]) -> tuple[Span, Span] | None:
    """Return two conflicting spans of a group of concurrent steps; None if there are none.

    Two spans conflict if they share a byte, belong to different steps and different buffers, and at
    least one is written.

    Args:
        spans: the spans of all steps of the group, in any order.
    """
    spans_by_memory: defaultdict[Hashable, list[Span]] = defaultdict(list)
    for span in spans:
        if span.low < span.high:
            spans_by_memory[span.memory_space_key].append(span)
    for spans_of_memory in spans_by_memory.values():
        spans_of_memory.sort(key=lambda span: span.low)
        all_before, written_before = _FurthestSpans(), _FurthestSpans()
        for span in spans_of_memory:
            other = (all_before if span.is_written else written_before).beyond(span)
            if other is not None:
                return other, span
            all_before.add(span)
            if span.is_written:
                written_before.add(span)
    return None


class _FurthestSpans:
    """The spans seen so far with the largest ends, enough to answer every query of `beyond`.

    A query excludes one buffer and one step. Five spans answer all queries: the furthest span;
    excluding its buffer, the furthest and the furthest of another step; excluding its step, the
    furthest and the furthest of another buffer.
    """

    def __init__(self) -> None:
        self._furthest: list[Span] = []

    def beyond(self, span: Span) -> Span | None:
        """Return a span of another buffer and step that ends behind the start of ``span``."""
        for other in self._furthest:
            if other.high > span.low and other.buffer != span.buffer and other.step != span.step:
                return other
        return None

    def add(self, span: Span) -> None:
        """Add a span; spans are added in the order of their starts."""
        rows = sorted((*self._furthest, span), key=lambda row: row.high, reverse=True)
        first = rows[0]
        others = [row for row in rows if row.buffer != first.buffer]
        later = [row for row in rows if row.step != first.step]
        self._furthest = [
            first,
            *others[:1],
            *[row for row in others if row.step != others[0].step][:1],
            *later[:1],
            *[row for row in later if row.buffer != later[0].buffer][:1],
        ]
