"""How far an array is from what is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from smelt.types import is_float_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.compare._quantization_steps import QuantizationStep
    from smelt.ir import Array

TOLERANCES: Final = {"float16": 3e-3, "half2": 3e-3, "tf32": 1e-2, "bfloat16": 2e-2}
"""Errors allowed where nothing is said, relative to the output's largest magnitude, by dtype and by
what ``build`` calls a precision."""
DEFAULT_TOLERANCE: Final = 1e-4


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    largest_magnitude: float
    """Largest finite magnitude that is wanted."""
    max_abs_error: float
    """Infinite where shapes differ, or one has no number where the other has one."""
    relative_error: float
    """The largest absolute error by the largest magnitude; infinite for unequal integers, if they
    stand for no real numbers."""
    tolerance: float
    """Largest relative error allowed, that of the allowed steps included."""
    moves: bool = False
    """Whether two runs on the same inputs gave different bits: a race, wrong whatever its size."""
    steps: float | None = None
    """The largest absolute error in quantisation steps; None where none are counted."""
    allowed_steps: int | None = None
    caution: str = ""
    """Why it says little that an output agrees; empty where it says something."""

    @property
    def passed(self) -> bool:
        """Whether the error is allowed."""
        return self.relative_error <= self.tolerance and not self.moves


@dataclass(frozen=True, slots=True)
class ErrorTolerances:
    """What errors are allowed."""

    tolerance: float | None
    """Largest relative error; None for what suits the dtype."""
    allowed_steps: int = 0
    """Quantisation steps that are allowed besides, in what follows from quantised tensors."""
    quantized: Mapping[str, QuantizationStep] = field(default_factory=dict[str, "QuantizationStep"])
    """The steps of these tensors, by name."""

    def limit(self, wanted: Array) -> float:
        """Largest relative error allowed in an array, where no steps are counted."""
        usual = TOLERANCES.get(str(wanted.dtype), DEFAULT_TOLERANCE)
        return usual if self.tolerance is None else self.tolerance

    def error(self, name: str, got: Array, wanted: Array, *, moves: bool = False) -> OutputError:
        """The error of ``got``, which should be ``wanted``; ``moves`` as in `OutputError`."""
        step = self.quantized.get(name)
        magnitude, absolute, relative = _errors(got, wanted, is_real=step is not None)
        limit = self.limit(wanted)
        steps = allowed = None
        if step is not None:
            size = step.size_for(magnitude)
            steps, allowed = absolute / (size or 1.0), self.allowed_steps
            limit += allowed * size / (magnitude or 1.0)
        kind, shape = str(wanted.dtype), tuple(wanted.shape)
        return OutputError(
            name, kind, shape, magnitude, absolute, relative, limit, moves, steps, allowed
        )


def measure_error(
    name: str, got: Array, wanted: Array, tolerance: float | None = None, *, moves: bool = False
) -> OutputError:
    """The error of ``got``.

    Args:
        name: name of the tensor.
        got: what an engine gave.
        wanted: what it should be.
        tolerance: largest relative error allowed; None for what suits the dtype.
        moves: whether another run gave something else.
    """
    return ErrorTolerances(tolerance).error(name, got, wanted, moves=moves)


def _errors(got: Array, wanted: Array, *, is_real: bool) -> tuple[float, float, float]:
    """Largest magnitude wanted, largest absolute error, and that relative to the magnitude."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return 0.0, math.inf, math.inf
    if wanted.size == 0:
        return 0.0, 0.0, 0.0
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return 0.0, math.inf, math.inf
    if not finite.any():
        return 0.0, 0.0, 0.0
    magnitude = float(np.abs(b[finite]).max())
    absolute = float(np.abs(a[finite] - b[finite]).max())
    if math.isnan(absolute):
        return magnitude, math.inf, math.inf
    if not is_float_dtype(wanted.dtype) and not is_real:
        return magnitude, absolute, 0.0 if absolute == 0 else math.inf
    return magnitude, absolute, absolute / (magnitude or 1.0)
