"""What a task may touch and until when, as an IOMMU and a watchdog would hold it to.

The silicon has neither: there an address is physical, and a task reaches all memory of its device.
The model's driver sets limits for each task; a trace, which is its machine's only software, has
none.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from smelt.nvdla._status import NvdlaError, NvError

if TYPE_CHECKING:
    from smelt.nvdla._protocols import MemorySpace

_SHOWN = 4
"""How many spans a message lists."""


class AddressSpan(NamedTuple):
    """Bytes of a memory space, from ``start`` up to but not including ``end``."""

    space: MemorySpace
    start: int
    end: int

    def holds(self, place: tuple[MemorySpace, int]) -> bool:
        """Whether a byte is one of them."""
        space, address = place
        return space is self.space and self.start <= address < self.end

    def __str__(self) -> str:
        return f"{self.space.name} {self.start:#x} to {self.end:#x}"


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Of one task."""

    mapped: tuple[AddressSpan, ...]
    """What it may reach."""
    read_only: tuple[AddressSpan, ...] = ()
    """Of that, what engines may not write: its own descriptors."""
    deadline_s: float = math.inf
    """When it must have ended, by `time.monotonic`."""

    def check(self, wanted: AddressSpan, what: str) -> None:
        """Check that the task may reach some bytes.

        Raises:
            NvdlaError: it may not (INVALID_ADDRESS); the message says what it may.
        """
        if any(_contains(span, wanted) for span in self.mapped):
            return
        near = sorted(
            (span for span in self.mapped if span.space is wanted.space),
            key=lambda span: abs(span.start - wanted.start),
        )
        shown = ", ".join(str(span) for span in near[:_SHOWN]) or f"no {wanted.space.name}"
        rest = f" and {len(near) - _SHOWN} more" if len(near) > _SHOWN else ""
        raise NvdlaError(
            NvError.INVALID_ADDRESS,
            f"{what} is at {wanted}, which is outside the memory of this task: {shown}{rest}",
        )

    def check_write(self, wanted: AddressSpan, what: str) -> None:
        """Check that an engine may write some bytes.

        Raises:
            NvdlaError: they are not the task's, or hold its descriptors (INVALID_ADDRESS).
        """
        self.check(wanted, what)
        for span in self.read_only:
            if span.space is wanted.space and span.start < wanted.end and wanted.start < span.end:
                raise NvdlaError(
                    NvError.INVALID_ADDRESS,
                    f"{what} writes {wanted}, which overlaps the task's descriptors at {span}",
                )

    def check_time(self) -> None:
        """Check that the task's time is not up. Raises NvdlaError(TIMEOUT): it is."""
        if time.monotonic() > self.deadline_s:
            raise NvdlaError(
                NvError.TIMEOUT, "the task timed out while an engine was still running"
            )


def _contains(span: AddressSpan, wanted: AddressSpan) -> bool:
    return span.space is wanted.space and span.start <= wanted.start and wanted.end <= span.end
