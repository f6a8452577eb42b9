"""Limits on the memory and duration of a task, in place of an IOMMU and a watchdog.

The silicon has neither: addresses are physical, and a task can access all memory of its device. The
driver of the machine model sets limits for each task. A trace has no limits, because it is the only
software on its machine.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from smelt.nvdla._status import NvdlaError, NvError

if TYPE_CHECKING:
    from smelt.nvdla._protocols import MemorySpace

_MAX_SHOWN = 4
"""Maximum number of spans that a message lists."""


class AddressSpan(NamedTuple):
    """Bytes of a memory space from ``start`` up to, but not including, ``end``."""

    space: MemorySpace
    start: int
    end: int

    def holds(self, location: tuple[MemorySpace, int]) -> bool:
        """Return whether the byte at an address is in the span."""
        space, address = location
        return space is self.space and self.start <= address < self.end

    def __str__(self) -> str:
        return f"{self.space.name} {self.start:#x} to {self.end:#x}"


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Limits of one task."""

    mapped: tuple[AddressSpan, ...]
    """Memory that the task may access."""
    read_only: tuple[AddressSpan, ...] = ()
    """Part of that memory that engines must not write: the task's own descriptors."""
    deadline_s: float = math.inf
    """Time by which the task must have ended, by `time.monotonic`."""

    def check(self, access: AddressSpan, what: str) -> None:
        """Check that the task may access a span; ``what`` names the access in messages.

        Raises:
            NvdlaError: INVALID_ADDRESS if it may not; the message lists the memory that it may
                access.
        """
        if any(_contains(span, access) for span in self.mapped):
            return
        near = sorted(
            (span for span in self.mapped if span.space is access.space),
            key=lambda span: abs(span.start - access.start),
        )
        shown = ", ".join(str(span) for span in near[:_MAX_SHOWN]) or f"no {access.space.name}"
        rest = f" and {len(near) - _MAX_SHOWN} more" if len(near) > _MAX_SHOWN else ""
        raise NvdlaError(
            NvError.INVALID_ADDRESS,
            f"{what} accesses {access}, which is outside the memory of this task: {shown}{rest}",
        )

    def check_write(self, access: AddressSpan, what: str) -> None:
        """Check that an engine may write a span; ``what`` names the access in messages.

        Raises:
            NvdlaError: INVALID_ADDRESS if the span is not the task's memory or overlaps its
                descriptors.
        """
        self.check(access, what)
        for span in self.read_only:
            if span.space is access.space and span.start < access.end and access.start < span.end:
                raise NvdlaError(
                    NvError.INVALID_ADDRESS,
                    f"{what} writes {access}, which overlaps the task's descriptors at {span}",
                )

    def check_time(self) -> None:
        """Check the deadline; raise NvdlaError(TIMEOUT) if it has passed."""
        if time.monotonic() > self.deadline_s:
            raise NvdlaError(
                NvError.TIMEOUT, "the task timed out while an engine was still running"
            )


def _contains(span: AddressSpan, access: AddressSpan) -> bool:
    return span.space is access.space and span.start <= access.start and access.end <= span.end
