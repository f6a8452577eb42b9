"""GPU targets of code generation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from smelt.backends.cuda._cost_model import multiprocessors_of
from smelt.devices.cuda import SM_RESOURCES
from smelt.errors import Argument, UnsupportedError
from smelt.types import DType

_NAME: Final = re.compile(r"sm_(\d{2,3})a?")
"""Name of an architecture."""
_MAX_PARTS: Final = 16
"""Maximum number of architectures of an engine. Chosen without a measurement."""
_FIRST_WITH_BFLOAT16: Final = 80
"""Compute capability (times ten) from which bfloat16 is supported."""
_FIRST_WITH_TF32: Final = 80
"""Compute capability (times ten) from which TF32 is supported."""
_FIRST_WITH_PDL: Final = 90
"""Compute capability (times ten) from which programmatic dependent launch is supported."""
_FITTED_CAPABILITY: Final = 90
"""Compute capability (times ten) of the GPU to which the cost model was fitted."""


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """One GPU architecture, or several that one plan must run on. Equal targets get equal code.

    With several architectures, `capability` is the oldest, whose features all others have.
    """

    capability: int
    """Compute capability times ten: 90 is Hopper."""
    multiprocessors: int = 132
    """Number of multiprocessors, for the cost model only; code does not depend on it."""
    newer_capabilities: tuple[int, ...] = ()
    """Capabilities of further architectures, ascending."""
    allows_tf32: bool = False
    """Whether float32 operands of products may be rounded to a mantissa of ten bits."""

    uses_half2: bool = False
    """Whether images are packed in pairs (half2) where a kernel supports it."""
    narrow_dtype: DType = DType.FLOAT32
    """Type in which float32 tensors are stored where a family supports it; the backend sets it
    while it lists tactics."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of the architectures, ascending: ("sm_90",)."""
        return tuple(f"sm_{number}" for number in (self.capability, *self.newer_capabilities))

    @property
    def architecture(self) -> str:
        """Names of the architectures as one string: "sm_90", or "sm_80,sm_90"."""
        return ",".join(self.architectures)

    @property
    def parts(self) -> tuple[CudaTarget, ...]:
        """Targets that code is compiled for: one per architecture, with default settings."""
        return tuple(CudaTarget(number) for number in (self.capability, *self.newer_capabilities))

    @property
    def name(self) -> str:
        """Name of the target in caches and reports."""
        return f"cuda:{self.architecture}:{self.multiprocessors}"

    def operand_dtype(self, dtype: DType) -> DType:
        """Return the element type in which tensors of a type are multiplied."""
        return self.narrow_dtype if dtype is DType.FLOAT32 else dtype

    @property
    def has_tf32(self) -> bool:
        """Whether tensor cores support TF32."""
        return self.capability >= _FIRST_WITH_TF32

    @property
    def uses_pdl(self) -> bool:
        """Whether a launch may start before the preceding one has ended."""
        return self.capability >= _FIRST_WITH_PDL

    @property
    def has_fitted_cost_model(self) -> bool:
        """Whether the cost model was fitted to this architecture, and there is no other."""
        return self.capability == _FITTED_CAPABILITY and not self.newer_capabilities

    @property
    def shared_bytes(self) -> int:
        """Maximum shared memory per block on every one of the architectures, in bytes."""
        all_ = (self.capability, *self.newer_capabilities)
        return min(SM_RESOURCES[number].block_shared_bytes for number in all_)

    def storage(self, wanted: DType) -> DType:
        """Return the storage type of float32 tensors if ``wanted`` is requested."""
        is_old = wanted is DType.BFLOAT16 and self.capability < _FIRST_WITH_BFLOAT16
        return DType.FLOAT32 if is_old else wanted


def target_named(name: str) -> CudaTarget:
    """Return the target of one or several architectures: "sm_90", "sm_80,sm_90".

    Raises:
        UnsupportedError: an architecture is not supported, or there are too many.
    """
    parts = name.split(",")
    if len(parts) > _MAX_PARTS:
        raise UnsupportedError(
            f"{len(parts)} GPU architectures are too many for one engine; give at most {_MAX_PARTS}"
        )
    numbers = sorted({_capability(part.strip()) for part in parts})
    oldest, *newer_capabilities = numbers
    return CudaTarget(
        oldest, multiprocessors_of(oldest), newer_capabilities=tuple(newer_capabilities)
    )


def _capability(name: str) -> int:
    """Return the compute capability of an architecture's name, times ten."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) not in SM_RESOURCES:
        known = ", ".join(f"sm_{number}" for number in SM_RESOURCES)
        one, several = Argument("device", "cuda:sm_90"), Argument("device", "cuda:sm_80,sm_90")
        raise UnsupportedError(
            f"there is no GPU target {name!r}; the targets are {known}; give one or several, for "
            f"example {one} or {several}",
            arguments=[one, several],
        )
    return int(match[1])
