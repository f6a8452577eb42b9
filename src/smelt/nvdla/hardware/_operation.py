"""What an engine needs to run one operation, and what is counted while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smelt.nvdla._status import NvdlaError, NvError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from smelt.nvdla.hardware._configuration import Configuration, Precision
    from smelt.nvdla.hardware._memory import Dma
    from smelt.nvdla.hardware._state import GroupRegisters


_MACS_AT_ONCE = 1 << 31
"""Multiplications between two looks at the clock: a tenth of a second or so."""

_ELEMENTS_AT_ONCE = 1 << 20
"""Elements between two looks at the clock: a second at most, and some of ten megabytes each."""


@dataclass(slots=True)
class Counters:
    """What one operation saturated and looked up."""

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
    """What the last convolution left in the buffer, for one that reuses it."""

    data: list[np.ndarray] | None = None
    weights: np.ndarray | None = None


@dataclass(slots=True)
class Operation:
    """One operation of one engine, while it runs."""

    configuration: Configuration
    registers: dict[str, GroupRegisters]
    dma: Dma
    exact_fp16: bool
    luts: dict[str, tuple[list[int], list[int]]]
    """For SDP and CDP: the LE and LO tables."""
    buffer: ConvolutionBuffer = field(default_factory=ConvolutionBuffer)
    counters: Counters = field(default_factory=Counters)
    mac_cycles: int = 0
    """Cycles that the arithmetic alone takes."""

    def check_time(self) -> None:
        """Let a long operation end at its task's timeout. Raises NvdlaError(TIMEOUT)."""
        self.dma.check_time()

    def require_precision(self, precision: Precision, what: str) -> None:
        """Check that the configuration has a precision.

        Raises:
            NvdlaError: it does not (NOT_SUPPORTED).
        """
        if precision not in self.configuration.precisions:
            names = ", ".join(item.name.lower() for item in sorted(self.configuration.precisions))
            raise NvdlaError(
                NvError.NOT_SUPPORTED,
                f"{what} is programmed for {precision.name.lower()};"
                f" {self.configuration.name} has {names}",
            )


def add_products(
    operation: Operation, total: np.ndarray, seen: np.ndarray, weights: np.ndarray
) -> None:
    """Add a matrix product to ``total``, a part at a time, so that it ends at the timeout."""
    step = max(1, _MACS_AT_ONCE // max(1, weights.size))
    for start in range(0, len(seen), step):
        operation.check_time()
        total[start : start + step] += seen[start : start + step] @ weights


def split_plane(
    operation: Operation, lines: int, columns: int, elements: int
) -> Iterator[tuple[slice, slice]]:
    """Cut a plane into tiles that bound memory, and look at the clock before each.

    ``elements`` are computed on for each place of the plane.

    Raises:
        NvdlaError: the task's time is up (TIMEOUT).
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
