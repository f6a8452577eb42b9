"""Whether steps that may run at once stay out of each other's memory, in time n log n.

A hostile plan may say of every step that it need not wait. Comparing each window with each other
one would take hours where this takes a second.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


class Span(NamedTuple):
    """Bytes that a step may touch through a buffer."""

    memory_space_key: Hashable
    """The memory in which the bytes are counted."""
    low: int
    high: int
    """Behind the last byte; a span is empty where it is ``low``."""
    buffer: int
    step: int
    is_written: bool


def find_conflict(spans: Iterable[Span]) -> tuple[Span, Span] | None:
    """Return two spans of one group of steps that must not run at once; None if there are none.

    Two spans conflict that share a byte, belong to different steps and different buffers, and of
    which one at least is written.

    Args:
        spans: what all steps of a group touch, in any order.
    """
    places: defaultdict[Hashable, list[Span]] = defaultdict(list)
    for span in spans:
        if span.low < span.high:
            places[span.memory_space_key].append(span)
    for rows in places.values():
        rows.sort(key=_low)
        all_before, written_before = _FurthestSpans(), _FurthestSpans()
        for span in rows:
            other = (all_before if span.is_written else written_before).beyond(span)
            if other is not None:
                return other, span
            all_before.add(span)
            if span.is_written:
                written_before.add(span)
    return None


def _low(span: Span) -> int:
    return span.low


def _high(span: Span) -> int:
    return span.high


class _FurthestSpans:
    """Of the spans met so far, those few that reach furthest, whatever is left out.

    A question leaves out one buffer and one step. Five spans answer all questions: the furthest;
    without its buffer, the furthest and the furthest of another step; without its step, the
    furthest and the furthest of another buffer.
    """

    def __init__(self) -> None:
        self._furthest: list[Span] = []

    def beyond(self, span: Span) -> Span | None:
        """A span of another buffer and step that ends behind the start of this one."""
        for other in self._furthest:
            if other.high > span.low and other.buffer != span.buffer and other.step != span.step:
                return other
        return None

    def add(self, span: Span) -> None:
        """Note a span that starts behind all before it."""
        rows = sorted((*self._furthest, span), key=_high, reverse=True)
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
