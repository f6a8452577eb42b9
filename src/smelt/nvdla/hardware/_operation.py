"""State of one operation while an engine runs it, and helpers that bound its memory and time."""

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
