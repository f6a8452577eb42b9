"""What a build may be told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, cast

from smelt.errors import BuildError, UnsupportedError
from smelt.tuner import InNetworkEffort
from smelt.types import DType, require_bool, require_float, require_int, require_path, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from smelt.builder._optimization_profiles import ShapeSpec

_EFFORT_WORDS: Final = ("none", "fast", "full")
TF32: Final = "tf32"
"""The precision that stores float32 and multiplies ten of its bits where that is faster."""
HALF2: Final = "half2"
"""The precision that stores float16, and on GPUs keeps images in pairs between layers."""
PRECISIONS: Final = {
    **{d.value: d for d in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)},
    TF32: DType.FLOAT32,
    HALF2: DType.FLOAT16,
}
"""How an engine may store what the model has in float32, by name."""
MIXED: Final = ("float16", "bfloat16")
"""The precisions in which layers may stay in float32 for the sake of the answers."""
ROUNDING_ERRORS: Final = {"float16": 3e-3, "bfloat16": 2e-2}
"""How far answers may err by rounding if nobody says so, relative to their largest magnitude."""


class Progress(Protocol):
    """Told how far a build is."""

    def __call__(self, stage: str, done: int, total: int, /) -> None:
        """``done`` of ``total`` parts of ``stage`` are done."""
        ...


@dataclass(frozen=True, slots=True)
class TuningEffort:
    """How candidates are timed: the best of ``repeats`` means of ``runs_per_mean`` runs."""

    candidates: int = 4
    """Candidates of each family and format that are timed, the most promising first."""
    repeats: int = 5
    runs_per_mean: int = 1
    seconds: float = math.inf
    """Time for all of the tuning; after it estimates are believed."""
    seconds_per_trial: float = 0.02
    """Time for a candidate, after two repeats."""
    min_sample_seconds: float = 5e-5
    """A mean is taken of more runs where it would last less: a late worker must not decide."""
    network: InNetworkEffort = field(default_factory=InNetworkEffort)
    """What is then compared in the whole network."""

    def __post_init__(self) -> None:
        for name in ("candidates", "repeats", "runs_per_mean"):
            what = f"{name} of a tuning effort"
            made = require_int(getattr(self, name), what, BuildError, least=1)
            object.__setattr__(self, name, made)
        for name in ("seconds", "seconds_per_trial", "min_sample_seconds"):
            what = f"{name} of a tuning effort"
            time = require_float(getattr(self, name), what, BuildError, 0.0, math.inf)
            object.__setattr__(self, name, time)
        if not isinstance(network := cast("object", self.network), InNetworkEffort):
            raise BuildError(
                f"the field network of a tuning effort is {shown(network)}; it must be an Effort"
            )


EFFORTS: Final = {
    "fast": TuningEffort(),
    "full": TuningEffort(
        8, 15, network=InNetworkEffort(extra_candidates=6, passes=3, runs=16, seconds=10.0)
    ),
}
"""The efforts that have a name."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of ``build``; see there."""

    precision: str = "float32"
    max_batch_size: int = 1
    max_workspace_bytes: int = 1 << 30
    shapes: Mapping[str, ShapeSpec] | None = None
    timing_cache: str | Path | None = None
    tune: str | float | TuningEffort = "fast"
    retunable: bool = False
    libraries: bool = False
    portable: bool = False
    rounding_error: float | None = None

    def __post_init__(self) -> None:
        if not _is_precision(self.precision):
            known = ", ".join(PRECISIONS)
            raise UnsupportedError(
                f"precision {shown(self.precision)} is not supported; choose one of: {known}. "
                "Models with float16 weights build as they are and compute in float32, models "
                "with QuantizeLinear and DequantizeLinear in int8"
            )
        for name, least in (("max_batch_size", 1), ("max_workspace_bytes", 0)):
            made = require_int(getattr(self, name), name, BuildError, least=least)
            object.__setattr__(self, name, made)
        for name in ("retunable", "libraries", "portable"):
            object.__setattr__(self, name, require_bool(getattr(self, name), name, BuildError))
        object.__setattr__(self, "tune", _checked_effort(self.tune))
        if self.timing_cache is not None:
            require_path(self.timing_cache, "a timing cache", BuildError)
        object.__setattr__(self, "rounding_error", _checked_error(self.rounding_error))
        if self.libraries and self.portable:
            raise BuildError(
                "libraries=True allows library kernels, and portable=True forbids them; give "
                "only one of them"
            )


def _checked_effort(tune: object) -> str | float | TuningEffort:
    """How long to tune. Raises BuildError."""
    if isinstance(tune, TuningEffort) or (isinstance(tune, str) and tune in _EFFORT_WORDS):
        return tune

    def refused(_: str) -> BuildError:
        return BuildError(f'tune is {shown(tune)}; give "none", "fast", "full" or seconds')

    return require_float(tune, "tune", refused, 0.0, math.inf)


def _is_precision(name: object) -> bool:
    return isinstance(name, str) and name in PRECISIONS


def _checked_error(given: object) -> float | None:
    """The error that is allowed. Raises BuildError."""
    if given is None:
        return None

    def refused(_: str) -> BuildError:
        return BuildError(
            f"rounding_error is {shown(given)}; it must be a number above 0 and at most 1: the "
            "allowed error as a fraction of the outputs' largest magnitude (1 allows any error)"
        )

    return require_float(given, "rounding_error", refused, math.ulp(0.0), 1.0)
