"""The text that an engine's kernels were made from, generated once more from their specs.

The generators ask for no compiler: neither Triton nor LLVM need be installed. They are not made for
specs of strangers, so only an engine that this user trusts, or has just built, is told so much of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from smelt.devices.cuda import LIBRARIES
from smelt.engine import VERSION
from smelt.errors import SmeltError
from smelt.inspect._report import SourceReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Fingerprint, KernelSpec


class Generator(Protocol):
    """Writes kernels."""

    def generate(self, kernel: KernelSpec, target: Any, /) -> str:
        """The kernel's text."""
        ...


class SourceWriter:
    """Writes the text of an engine's kernels."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        """Find who made the engine's code.

        Raises:
            SmeltError: it cannot be told here.
        """
        if fingerprint.version != VERSION:
            raise SmeltError(
                f"smelt {fingerprint.version} made these kernels, and this is {VERSION}"
            )
        self._generator, self._targets, self._language = _generator_of(fingerprint)

    def sources(self, kernel: KernelSpec) -> tuple[SourceReport, ...]:
        """A kernel's texts; architectures of one text share it. A library's call has none."""
        if kernel.family in LIBRARIES:
            return ()
        texts: dict[str, list[str]] = {}
        for name, target in self._targets:
            texts.setdefault(self._generator.generate(kernel, target), []).append(name)
        return tuple(
            SourceReport(tuple(names), self._language, text) for text, names in texts.items()
        )


def _generator_of(
    fingerprint: Fingerprint,
) -> tuple[Generator, Sequence[tuple[str, Any]], str]:
    if fingerprint.device == "cuda":
        from smelt.backends.cuda import CudaBackend, target_named

        parts = target_named(fingerprint.architecture).parts
        return CudaBackend(), [(part.architecture, part) for part in parts], "Triton"
    from smelt.backends.cpu import CpuBackend, target_of

    target = target_of(fingerprint.architecture, fingerprint.features)
    return CpuBackend(), [(target.architecture, target)], "LLVM IR"
