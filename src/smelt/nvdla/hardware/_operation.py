"""State of one operation while an engine runs it, and helpers that bound its memory and time.

Limits on the memory and duration of a task, in place of an IOMMU and a watchdog.

The silicon has neither: addresses are physical, and a task can access all memory of its device. The
driver of the machine model sets limits for each task. A trace has no limits, because it is the only
software on its machine.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from smelt.nvdla._status import NvdlaError, NvError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from smelt.nvdla._protocols import MemorySpace
    from smelt.nvdla.hardware._configuration import Configuration, Precision
    from smelt.nvdla.hardware._memory import Dma
    from smelt.nvdla.hardware._state import GroupRegisters


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
class TaskAccessLimits:
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


_MACS_AT_ONCE = 1 << 31
"""Multiplications between two checks of the deadline: about a tenth of a second."""

_ELEMENTS_AT_ONCE = 1 << 20
"""Elements between two checks of the deadline: at most a second; also bounds array sizes."""


@dataclass(slots=True)
class Counters:
    """Numbers of saturations, NaNs, infinities and table lookups of one operation."""

    saturated: int = 0
    nan_inputs: int = 0
    inf_inputs: int = 0
    nan_outputs: int = 0
    lut_underflow: int = 0
    lut_overflow: int = 0
    lut_hybrid: int = 0
    lut_le_hit: int = 0
    lut_lo_hit: int = 0


@dataclass(slots=True)
class ConvolutionBuffer:
    """Data and weights of the previous convolution, for a convolution that reuses them."""

    data: list[np.ndarray] | None = None
    weights: np.ndarray | None = None


@dataclass(slots=True)
class Operation:
    """One operation of one chain of engines while it runs."""

    configuration: Configuration
    registers: dict[str, GroupRegisters]
    dma: Dma
    exact_fp16: bool
    luts: dict[str, tuple[list[int], list[int]]]
    """LE and LO tables of SDP and CDP, by block."""
    buffer: ConvolutionBuffer = field(default_factory=ConvolutionBuffer)
    counters: Counters = field(default_factory=Counters)
    mac_cycles: int = 0
    """Cycles that the arithmetic alone takes."""

    def check_time(self) -> None:
        """Check the task's deadline; raise NvdlaError(TIMEOUT) if it has passed."""
        self.dma.check_time()

    def require_precision(self, precision: Precision, what: str) -> None:
        """Check that the configuration supports a precision; ``what`` names its user in messages.

        Raises:
            NvdlaError: NOT_SUPPORTED if it does not.
        """
        if precision not in self.configuration.precisions:
            names = ", ".join(item.name.lower() for item in sorted(self.configuration.precisions))
            raise NvdlaError(
                NvError.NOT_SUPPORTED,
                f"{what} is programmed for {precision.name.lower()};"
                f" {self.configuration.name} has {names}",
            )


def add_products(
    operation: Operation, total: np.ndarray, inputs: np.ndarray, weights: np.ndarray
) -> None:
    """Add a matrix product to ``total`` in parts, checking the deadline before each part."""
    step = max(1, _MACS_AT_ONCE // max(1, weights.size))
    for start in range(0, len(inputs), step):
        operation.check_time()
        total[start : start + step] += inputs[start : start + step] @ weights


def split_plane(
    operation: Operation, lines: int, columns: int, elements: int
) -> Iterator[tuple[slice, slice]]:
    """Yield tiles of a plane that bound memory, checking the deadline before each tile.

    ``elements`` is the number of elements that are computed for each position of the plane.

    Raises:
        NvdlaError: TIMEOUT if the task's deadline has passed.
    """
    across = min(columns, max(1, _ELEMENTS_AT_ONCE // elements))
    down = max(1, _ELEMENTS_AT_ONCE // (elements * across))
    for top in range(0, lines, down):
        for left in range(0, columns, across):
            operation.check_time()
            yield slice(top, min(top + down, lines)), slice(left, min(left + across, columns))


def ceil_div(value: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-value // divisor)
