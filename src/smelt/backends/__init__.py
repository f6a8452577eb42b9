"""Compile half of each backend: what it can run, with which tactics, and the code of its kernels."""

from smelt.backends._base import Aliasing, Backend, CodeImage, Family, Operands, Refusal, Tactic, Target

__all__ = [
    "Aliasing",
    "Backend",
    "CodeImage",
    "Family",
    "Operands",
    "Refusal",
    "Tactic",
    "Target",
]
