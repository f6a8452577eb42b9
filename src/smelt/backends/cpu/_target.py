"""The processors that CPU kernels are supported for."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends.cpu._llvm import load_llvm
from smelt.engine import Host, detect_host, known_features
from smelt.errors import UnsupportedError
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterable

_V2: Final = ("cx16", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3: Final = tuple(sorted((*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")))
_V4: Final = tuple(
    sorted((*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")),
)
_NAMED: Final = {
    "x86-64": ("x86_64", "x86-64", ("sse", "sse2")),
    "x86-64-v2": ("x86_64", "x86-64-v2", _V2),
    "x86-64-v3": ("x86_64", "x86-64-v3", _V3),
    "x86-64-v4": ("x86_64", "x86-64-v4", _V4),
    "aarch64": ("aarch64", "generic", ("fp-armv8", "neon")),
}
_BASELINES: Final = {"x86_64": "x86-64", "aarch64": "aarch64"}
_FEATURES_SHOWN: Final = 3
_WIDE: Final = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A processor to generate code for. Two equal targets get equal code."""

    triple: str
    """LLVM's. Always ELF's, whatever the system: the image is ours and needs no system loader."""
    cpu: str
    """LLVM's name of the processor: decides scheduling, and no feature beyond `features`."""
    features: tuple[str, ...]
    """Every instruction-set feature that the code may use, sorted, by LLVM's names."""
    vector_bits: int
    """Width of the widest vectors: 512, 256 or 128."""

    @property
    def architecture(self) -> str:
        """Name of the instruction set: "x86_64" or "aarch64"."""
        return self.triple.partition("-")[0]

    @property
    def name(self) -> str:
        """The target in one word, for caches and reports: processor and vector width."""
        return f"{self.architecture}:{self.cpu}:{self.vector_bits}"

    @property
    def llvm_features(self) -> str:
        """The features as LLVM wants them."""
        # A processor's name implies features that a hypervisor may have taken away.
        absent = known_features(self.architecture).difference(self.features)
        wanted = [f"-{feature}" for feature in sorted(absent)]
        wanted += [f"+{feature}" for feature in self.features]
        if self.vector_bits == 512:
            # LLVM splits 512-bit vectors on processors that it deems happier with 256.
            wanted.append("-prefer-256-bit")
        if self.architecture == "aarch64":
            # Apple's and Windows' systems own this register; elsewhere one fewer is not a loss.
            wanted.append("+reserve-x18")
        return ",".join(wanted)

    def storage(self, wanted: DType) -> DType:
        """How float32 tensors are stored where ``wanted`` is asked for.

        A narrow type pays where an instruction converts it; elsewhere float32 stays.
        """
        return wanted if self.has_conversion_instruction(wanted) else DType.FLOAT32

    def has_conversion_instruction(self, dtype: DType) -> bool:
        """Whether an instruction makes float32 of ``dtype``, and ``dtype`` of float32."""
        by = {DType.BFLOAT16: {"avx512bf16", "bf16"}, DType.FLOAT16: {"f16c", "neon"}}
        return not by.get(dtype, set()).isdisjoint(self.features)

    def has(self, *features: str) -> bool:
        """Whether code for the target may use all of ``features``."""
        return set(features) <= set(self.features)


def target_named(name: str) -> CpuTarget:
    """Return the target with that name: "native", an x86-64 level, or "aarch64".

    Raises:
        UnsupportedError: there is no such target, or "native" is a machine without kernels.
    """
    if name == "native":
        return host_target()
    if name not in _NAMED:
        known = ", ".join(("native", *_NAMED))
        raise UnsupportedError(f"there is no CPU target {name!r}; choose one of: {known}")
    architecture, cpu, features = _NAMED[name]
    return _target(architecture, cpu, features)


@functools.cache
def host_target() -> CpuTarget:
    """Return the target that is this machine.

    Raises:
        UnsupportedError: no code can be generated for this architecture.
    """
    host = detect_host()
    if host.architecture not in _BASELINES:
        raise UnsupportedError(
            f"no code can be generated for {host.architecture}; build on x86-64 or aarch64, or "
            "for them, as device='cpu:x86-64-v3'"
        )
    llvm = load_llvm()
    found = llvm.get_host_cpu_features()
    # Only what the bare runtime can find out as well may be used: it checks the fingerprint.
    features = tuple(f for f in host.features if found.get(f, False) or _is_baseline(host, f))
    return _target(host.architecture, llvm.get_host_cpu_name(), features)


def host_target_with(features: Iterable[str]) -> CpuTarget:
    """Return the target that is this machine where it uses no more than ``features``."""
    host = host_target()
    return _target(host.architecture, host.cpu, tuple(f for f in features if f in host.features))


def target_of(architecture: str, features: Iterable[str]) -> CpuTarget:
    """Return what generates the kernels of a processor of which no more is known; it asks no LLVM.

    Raises:
        UnsupportedError: no code can be generated for this architecture.
    """
    if architecture not in _BASELINES:
        raise UnsupportedError(f"no code can be generated for {architecture}")
    return _target(architecture, _NAMED[_BASELINES[architecture]][1], tuple(features))


def processor_text(architecture: str, features: Iterable[str]) -> str:
    """What a processor must have, briefly: its level, and the features that are no level's."""
    have = set(features)
    levels = [n for n, (a, _, needs) in _NAMED.items() if a == architecture and have >= {*needs}]
    if not levels:
        return architecture
    more = sorted(have.difference(_NAMED[levels[-1]][2]))
    if len(more) > _FEATURES_SHOWN:
        more[_FEATURES_SHOWN:] = [f"{len(more) - _FEATURES_SHOWN} more"]
    return levels[-1] + (f" with {', '.join(more)}" if more else "")


def _is_baseline(host: Host, feature: str) -> bool:
    return feature in _NAMED[_BASELINES[host.architecture]][2]


def _target(architecture: str, cpu: str, features: tuple[str, ...]) -> CpuTarget:
    bits = 512 if set(features) >= _WIDE else 256 if {"avx2", "fma"} <= set(features) else 128
    return CpuTarget(f"{architecture}-unknown-linux-gnu", cpu, tuple(sorted(features)), bits)
