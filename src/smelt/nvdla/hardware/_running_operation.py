"""State of one operation while engines run it, and the limits on its task's memory and time.

The limits take the place of an IOMMU and a watchdog. The silicon has neither: addresses are
physical, and a task can access all memory of its device. The driver of the machine model sets
limits for each task. A trace has no limits, because it is the only software on its machine.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from smelt.nvdla._errors import NvError
from smelt.nvdla.hardware._arithmetic import saturate, shift_right_rounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.nvdla._protocols import MemorySpace, Precision
    from smelt.nvdla.hardware._configuration import Configuration
    from smelt.nvdla.hardware._group_registers import GroupRegisters
    from smelt.nvdla.hardware._memory import Dma


_MAX_SHOWN = 4
"""Maximum number of spans that a message lists."""


class AddressSpan(NamedTuple):
    """Bytes of a memory space from ``start`` up to, but not including, ``end``."""

    space: MemorySpace
    start: int
    end: int

    def contains(self, other: AddressSpan) -> bool:
        """Return whether another span lies in this one."""
        return other.space is self.space and self.start <= other.start and other.end <= self.end

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
        if any(span.contains(access) for span in self.mapped):
            return
        near = sorted(
            (span for span in self.mapped if span.space is access.space),
            key=lambda span: abs(span.start - access.start),
        )
        shown = (
            ", ".join(str(span) for span in near[:_MAX_SHOWN])
            or f"the task has no {access.space.name}"
        )
        rest = f" and {len(near) - _MAX_SHOWN} more" if len(near) > _MAX_SHOWN else ""
        raise NvError.INVALID_ADDRESS.error(
            f"{what} accesses {access}, which is outside the memory of this task: {shown}{rest}"
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
                raise NvError.INVALID_ADDRESS.error(
                    f"{what} writes {access}, which overlaps the task's descriptors at {span}"
                )

    def check_time(self) -> None:
        """Check the deadline; raise NvdlaError(TIMEOUT) if it has passed."""
        if time.monotonic() > self.deadline_s:
            raise NvError.TIMEOUT.error("the task timed out while an engine was still running")


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
    lut: Counter[str] = field(default_factory=Counter[str])
    """Numbers of table lookups, by the ends of the names of their registers."""

    def convert(self, values: np.ndarray, converter: tuple[int, int, int], bits: int) -> np.ndarray:
        """Run an output converter (offset, scale, shift) on integers, and count saturation.

        The hardware counts a lane as saturated if clamping changed it by more than rounding can.
        """
        offset, scale, shift = converter
        product = (values - offset) * scale
        output = saturate(shift_right_rounded(product, shift), bits)
        self.saturated += int((np.abs((product >> min(shift, 62)) - output) > 1).sum())
        return output

    def lut_registers(self) -> dict[str, int]:
        """Return the values of the registers of the table lookups, by name."""
        names = ("UFLOW", "OFLOW", "HYBRID", "LE_HIT", "LO_HIT")
        return {f"D_PERF_LUT_{name}": self.lut[name] for name in names}


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

    def require_support(self, is_supported: bool, what: str) -> None:  # noqa: FBT001  (like assert)
        """Check that the configuration has something; raise NvdlaError(NOT_SUPPORTED) if not."""
        if not is_supported:
            raise NvError.NOT_SUPPORTED.error(f"{self.configuration.name} has no {what}")

    def precision(self, block: str, field: str, what: str) -> Precision:
        """Return a precision field; ``what`` names the user of the precision in messages.

        Raises:
            NvdlaError: BAD_VALUE if the field has the reserved value 3; NOT_SUPPORTED if the
                configuration lacks the precision.
        """
        precision = self.registers[block].precision(field)
        if precision not in self.configuration.precisions:
            names = ", ".join(item.name.lower() for item in sorted(self.configuration.precisions))
            raise NvError.NOT_SUPPORTED.error(
                f"{what} is programmed for {precision.name.lower()};"
                f" {self.configuration.name} supports {names}"
            )
        return precision


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
