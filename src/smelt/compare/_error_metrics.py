"""Errors of arrays relative to the expected ones, and their default tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from smelt.tuner import largest_error
from smelt.types import is_float_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.compare._quantization_steps import QuantizationStep
    from smelt.ir import Array

TOLERANCES: Final = {"float16": 3e-3, "half2": 3e-3, "tf32": 1e-2, "bfloat16": 2e-2}
"""Default tolerances by element type and by ``build``'s precision, relative to the output's largest
magnitude."""
DEFAULT_TOLERANCE: Final = 1e-4
"""Default tolerance of other element types, relative to the output's largest magnitude."""


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    largest_magnitude: float
    """Largest finite magnitude of the expected elements."""
    max_abs_error: float
    """Largest absolute error; infinite if shapes or types differ, or if infinities or NaNs do."""
    relative_error: float
    """Largest absolute error divided by the largest magnitude.

    It is infinite for unequal integers, unless they are quantised real numbers.
    """
    tolerance: float
    """Largest allowed relative error, including that of the allowed quantisation steps."""
    is_nondeterministic: bool = False
    """Whether two runs on the same inputs gave different bits, which is an error of any size."""
    steps: float | None = None
    """Largest absolute error in quantisation steps; None for a tensor without such steps."""
    allowed_steps: int | None = None
    caution: str = ""
    """Why the agreement of the output is weak evidence; empty if it is not."""

    @property
    def passed(self) -> bool:
        """Whether the error is allowed."""
        return self.relative_error <= self.tolerance and not self.is_nondeterministic


@dataclass(frozen=True, slots=True)
class ErrorTolerances:
    """Allowed errors of tensors."""

    tolerance: float | None
    """Largest allowed relative error; None for the default of the element type."""
    allowed_steps: int = 0
    """Number of quantisation steps that are allowed in addition, for tensors in ``quantized``."""
    quantized: Mapping[str, QuantizationStep] = field(default_factory=dict[str, "QuantizationStep"])
    """Quantisation steps by the tensor's name, for tensors that depend on quantised ones."""

    def limit(self, expected: Array) -> float:
        """Return the largest allowed relative error of an array, without quantisation steps."""
        default = TOLERANCES.get(str(expected.dtype), DEFAULT_TOLERANCE)
        return default if self.tolerance is None else self.tolerance

    def error(
        self, name: str, actual: Array, expected: Array, *, varies_between_runs: bool = False
    ) -> OutputError:
        """Return the error of ``actual``.

        ``varies_between_runs`` becomes the error's `is_nondeterministic`.
        """
        step = self.quantized.get(name)
        magnitude, absolute, relative = _errors(actual, expected, is_real=step is not None)
        limit = self.limit(expected)
        steps = allowed = None
        if step is not None:
            size = step.size_for(magnitude)
            steps, allowed = absolute / (size or 1.0), self.allowed_steps
            limit += allowed * size / (magnitude or 1.0)
        kind, shape = str(expected.dtype), tuple(expected.shape)
        return OutputError(
            name,
            kind,
            shape,
            magnitude,
            absolute,
            relative,
            limit,
            varies_between_runs,
            steps,
            allowed,
        )


def _errors(actual: Array, expected: Array, *, is_real: bool) -> tuple[float, float, float]:
    """Return the largest expected magnitude, the largest absolute error and the relative error.

    Args:
        actual: the engine's result.
        expected: the result of the oracle.
        is_real: whether integers stand for quantised real numbers.
    """
    if actual.dtype != expected.dtype:
        return 0.0, math.inf, math.inf
    magnitude, absolute = largest_error(actual, expected)
    if is_float_dtype(expected.dtype) or is_real:
        return magnitude, absolute, absolute / (magnitude or 1.0)
    return magnitude, absolute, 0.0 if absolute == 0 else math.inf
