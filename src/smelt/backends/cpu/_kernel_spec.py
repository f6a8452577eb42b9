"""Specs of the kernels that a family generates."""

from __future__ import annotations

from smelt.engine import Json, KernelSpec, parameters


def kernel_spec(family: str, /, **own: Json) -> KernelSpec:
    """Return the spec of the family's kernel with the parameters ``own``."""
    return KernelSpec(family, parameters(**own))
