"""The GPUs that kernels are generated for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from smelt.errors import UnsupportedError

_NAME: Final = re.compile(r"sm_(\d{2,3})a?")
_OLDEST: Final = 75
_SHARED_BYTES: Final = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 120: 99 << 10}
_LARGE_SHARED_BYTES: Final = 227 << 10


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """A GPU architecture. Two equal targets get equal code."""

    capability: int
    """Compute capability, ten times: 90 is Hopper."""
    multiprocessors: int = 132
    """For the cost model alone; code does not depend on it."""

    @property
    def architecture(self) -> str:
        """Name of the architecture: "sm_90"."""
        return f"sm_{self.capability}"

    @property
    def name(self) -> str:
        """The target in one word, for caches and reports."""
        return f"cuda:{self.architecture}:{self.multiprocessors}"

    @property
    def shared_bytes(self) -> int:
        """Shared memory that a block may have (CUDA C++ Programming Guide, table of features)."""
        return _SHARED_BYTES.get(self.capability, _LARGE_SHARED_BYTES)


def target_named(name: str) -> CudaTarget:
    """Return the target of an architecture's name: "sm_90".

    Raises:
        UnsupportedError: it is no such name, or older than the kernels.
    """
    found = _NAME.fullmatch(name)
    if found is None or int(found[1]) < _OLDEST:
        raise UnsupportedError(
            f"there is no GPU target {name!r}; give an architecture from sm_{_OLDEST} on: "
            "device='cuda:sm_90'"
        )
    return CudaTarget(int(found[1]))
