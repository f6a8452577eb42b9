"""The GPUs that kernels are supported for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from smelt.backends.cuda._cost_model import multiprocessors_of
from smelt.devices.cuda import SM_RESOURCES
from smelt.errors import UnsupportedError
from smelt.types import DType

_NAME: Final = re.compile(r"sm_(\d{2,3})a?")
_MAX_PARTS: Final = 16
_FIRST_WITH_BFLOAT16: Final = 80
_FIRST_WITH_TF32: Final = 80
_FIRST_WITH_PDL: Final = 90
_FITTED_CAPABILITY: Final = 90


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """A GPU architecture, or several for which one plan must do. Two equal targets get equal code.

    Of several, `capability` is the oldest: what it can, all can.
    """

    capability: int
    """Compute capability, ten times: 90 is Hopper."""
    multiprocessors: int = 132
    """For the cost model alone; code does not depend on it."""
    newer_capabilities: tuple[int, ...] = ()
    """Capabilities of further architectures, ascending."""
    allows_tf32: bool = False
    """Whether products of float32 may be rounded to ten bits on their way in."""

    uses_half2: bool = False
    """Whether images go in pairs, where a kernel takes them so."""
    narrow_dtype: DType = DType.FLOAT32
    """What float32 is stored as where a family can; the backend sets it while it lists tactics."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of the architectures, ascending: ("sm_90",)."""
        return tuple(f"sm_{number}" for number in (self.capability, *self.newer_capabilities))

    @property
    def architecture(self) -> str:
        """The architectures in one word: "sm_90", or "sm_80,sm_90"."""
        return ",".join(self.architectures)

    @property
    def parts(self) -> tuple[CudaTarget, ...]:
        """What code is compiled for: a target for each architecture, which says nothing else."""
        return tuple(CudaTarget(number) for number in (self.capability, *self.newer_capabilities))

    @property
    def name(self) -> str:
        """The target in one word, for caches and reports."""
        return f"cuda:{self.architecture}:{self.multiprocessors}"

    def operand_dtype(self, dtype: DType) -> DType:
        """Element type in which tensors of a type are multiplied."""
        return self.narrow_dtype if dtype is DType.FLOAT32 else dtype

    @property
    def has_tf32(self) -> bool:
        """Whether ten bits of float32 can be multiplied."""
        return self.capability >= _FIRST_WITH_TF32

    @property
    def uses_pdl(self) -> bool:
        """Whether a launch may start before the one before it has ended."""
        return self.capability >= _FIRST_WITH_PDL

    @property
    def has_fitted_cost_model(self) -> bool:
        """Whether the estimates were fitted to times on such GPUs, and on no others."""
        return self.capability == _FITTED_CAPABILITY and not self.newer_capabilities

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a block may have on every one of the architectures."""
        all_ = (self.capability, *self.newer_capabilities)
        return min(SM_RESOURCES[number].block_shared_bytes for number in all_)

    def storage(self, wanted: DType) -> DType:
        """How float32 tensors are stored where ``wanted`` is asked for."""
        is_old = wanted is DType.BFLOAT16 and self.capability < _FIRST_WITH_BFLOAT16
        return DType.FLOAT32 if is_old else wanted


def target_named(name: str) -> CudaTarget:
    """Return the target of an architecture's name, or of several: "sm_90", "sm_80,sm_90".

    Raises:
        UnsupportedError: no kernels are made for such an architecture.
    """
    parts = name.split(",")
    if len(parts) > _MAX_PARTS:
        raise UnsupportedError(
            f"{len(parts)} GPU architectures are too many for one engine; give fewer"
        )
    numbers = sorted({_capability(part.strip()) for part in parts})
    oldest, *newer_capabilities = numbers
    return CudaTarget(
        oldest, multiprocessors_of(oldest), newer_capabilities=tuple(newer_capabilities)
    )


def _capability(name: str) -> int:
    found = _NAME.fullmatch(name)
    if found is None or int(found[1]) not in SM_RESOURCES:
        known = ", ".join(f"sm_{number}" for number in SM_RESOURCES)
        raise UnsupportedError(
            f"there is no GPU target {name!r}; the targets are {known}; give one or several, as "
            "device='cuda:sm_90', device='cuda:sm_80,sm_90'"
        )
    return int(found[1])
