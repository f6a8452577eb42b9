"""Build options and tuning efforts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from smelt.errors import Argument, BuildError, UnsupportedError
from smelt.tuner import InNetworkEffort
from smelt.types import (
    DType,
    require_bool,
    require_float,
    require_instance,
    require_int,
    require_path,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from smelt.builder._optimization_profiles import ShapeSpec

_EFFORT_NAMES: Final = ("none", "fast", "full")
TF32: Final = "tf32"
"""Name of the precision that stores float32 and multiplies with ten bits of the significand where
that is faster.
"""
HALF2: Final = "half2"
"""Name of the precision that stores float16 and, on GPUs, keeps images in pairs between layers."""
PRECISIONS: Final = {
    **{d.value: d for d in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)},
    TF32: DType.FLOAT32,
    HALF2: DType.FLOAT16,
}
"""Storage type of the model's float32 tensors, for each precision."""
MIXED: Final = ("float16", "bfloat16")
"""Precisions in which some layers may stay in float32 to limit the rounding error."""
ROUNDING_ERRORS: Final = {"float16": 3e-3, "bfloat16": 2e-2}
"""Default allowed rounding error for each of these, relative to the outputs' largest magnitude."""


class ProgressCallback(Protocol):
    """A function that is called as a build progresses."""

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        """Report that ``done`` of ``total`` parts of ``stage`` are done."""
        ...


@dataclass(frozen=True, slots=True)
class TuningEffort:
    """How candidates are timed: the minimum of ``repeats`` means of ``runs_per_mean`` runs."""

    candidates: int = 4
    """Number of candidates of each family and format to time, in order of estimated time."""
    repeats: int = 5
    runs_per_mean: int = 1
    seconds: float = math.inf
    """Time limit of all tuning, in seconds; after it, estimates are used."""
    seconds_per_trial: float = 0.02
    """Time limit for one candidate in seconds; it applies after two repeats."""
    min_sample_seconds: float = 5e-5
    """Shortest sample in seconds. A shorter mean is extended to more runs, so that a worker that
    starts late does not decide the result.
    """
    network: InNetworkEffort = field(default_factory=InNetworkEffort)
    """Effort of the trials in the whole network that follow."""

    def __post_init__(self) -> None:
        for name in ("candidates", "repeats", "runs_per_mean"):
            what = f"{name} of a tuning effort"
            number = require_int(getattr(self, name), what, BuildError, minimum=1)
            object.__setattr__(self, name, number)
        for name in ("seconds", "seconds_per_trial", "min_sample_seconds"):
            what = f"{name} of a tuning effort"
            time = require_float(getattr(self, name), what, BuildError, 0.0, math.inf)
            object.__setattr__(self, name, time)
        what = "the field 'network' of a tuning effort"
        require_instance(self.network, InNetworkEffort, what, BuildError, "an InNetworkEffort")


EFFORTS: Final = {
    "fast": TuningEffort(),
    "full": TuningEffort(
        8, 15, network=InNetworkEffort(extra_candidates=6, passes=3, runs=16, seconds=10.0)
    ),
}
"""The efforts that can be given by name."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of `build`, checked; `build` documents them."""

    precision: str = "float32"
    max_batch_size: int = 1
    max_workspace_bytes: int = 1 << 30
    shapes: Mapping[str, ShapeSpec] | None = None
    timing_cache: str | Path | None = None
    tune: str | float | TuningEffort = "fast"
    retunable: bool = False
    libraries: bool = False
    self_contained: bool = False
    max_rounding_error: float | None = None

    def __post_init__(self) -> None:
        if not _is_precision(self.precision):
            supported = ", ".join(PRECISIONS)
            raise UnsupportedError(
                f"precision {shown(self.precision)} is not supported; choose one of: {supported}. "
                "Models with float16 weights need no option and compute in float32; models with "
                "QuantizeLinear and DequantizeLinear compute in int8"
            )
        for name, least in (("max_batch_size", 1), ("max_workspace_bytes", 0)):
            number = require_int(getattr(self, name), name, BuildError, minimum=least)
            object.__setattr__(self, name, number)
        for name in ("retunable", "libraries", "self_contained"):
            object.__setattr__(self, name, require_bool(getattr(self, name), name, BuildError))
        object.__setattr__(self, "tune", _checked_effort(self.tune))
        if self.timing_cache is not None:
            require_path(self.timing_cache, "a timing cache", BuildError)
        object.__setattr__(
            self, "max_rounding_error", _checked_max_rounding_error(self.max_rounding_error)
        )
        if self.libraries and self.self_contained:
            libraries, self_contained = (
                Argument("libraries", value=True),
                Argument("self_contained", value=True),
            )
            raise BuildError(
                f"{libraries} allows library kernels, and {self_contained} forbids them; give only "
                "one of them",
                arguments=[libraries, self_contained],
            )


def _checked_effort(tune: object) -> str | float | TuningEffort:
    """Check and return the option ``tune``.

    Raises:
        BuildError: the value is neither a known name, an effort nor a time.
    """
    if isinstance(tune, TuningEffort) or (isinstance(tune, str) and tune in _EFFORT_NAMES):
        return tune

    def tune_error(_: str) -> BuildError:
        return BuildError(
            f'tune is {shown(tune)}; it must be "none", "fast", "full" or a number of seconds'
        )

    return require_float(tune, "tune", tune_error, 0.0, math.inf)


def _is_precision(name: object) -> bool:
    return isinstance(name, str) and name in PRECISIONS


def _checked_max_rounding_error(value: object) -> float | None:
    """Check and return the option ``max_rounding_error``.

    Raises:
        BuildError: the value is not a number in (0, 1].
    """
    if value is None:
        return None

    def range_error(_: str) -> BuildError:
        return BuildError(
            f"max_rounding_error is {shown(value)}; it must be a number above 0 and at most 1: the "
            "allowed error as a fraction of the outputs' largest magnitude (1 allows any error)"
        )

    return require_float(value, "max_rounding_error", range_error, math.ulp(0.0), 1.0)
