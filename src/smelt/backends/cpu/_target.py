"""CPU targets: the processors that kernels are generated for.

Access to LLVM through llvmlite.

llvmlite is imported when something is compiled, so a machine that only runs engines need not have
it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from smelt.engine import Host, detect_host, known_features
from smelt.errors import Argument, MissingExtraError, UnsupportedError
from smelt.types import DType


@functools.cache
def load_llvm() -> Any:
    """Return the module ``llvmlite.binding``, which has no type information.

    Raises:
        MissingExtraError: llvmlite is not installed.
    """
    try:
        return import_module("llvmlite.binding")
    except ModuleNotFoundError as error:
        raise MissingExtraError("llvmlite") from error


@functools.cache
def without_global_lock(name: str) -> Any:
    """Return a function of LLVM's library that several threads may call at once.

    llvmlite holds one lock during every call, as if all threads shared one context. Here each
    thread has a context and target machines of its own, so the calls that take long do not need the
    lock.
    """
    library = load_llvm().ffi.lib
    locked = getattr(library, name)
    function = getattr(ctypes.CDLL(library._name, handle=library._handle), name)
    function.argtypes, function.restype = locked.argtypes, locked.restype
    return function


def llvm_version() -> str:
    """Return the version of llvmlite."""
    load_llvm()
    return str(import_module("llvmlite").__version__)


_V2: Final = ("cx16", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3")
"""Features of x86-64-v2."""
_V3: Final = tuple(sorted((*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")))
"""Features of x86-64-v3."""
_V4: Final = tuple(sorted((*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")))
"""Features of x86-64-v4."""
_NAMED: Final = {
    "x86-64": ("x86_64", "x86-64", ("sse", "sse2")),
    "x86-64-v2": ("x86_64", "x86-64-v2", _V2),
    "x86-64-v3": ("x86_64", "x86-64-v3", _V3),
    "x86-64-v4": ("x86_64", "x86-64-v4", _V4),
    "aarch64": ("aarch64", "generic", ("fp-armv8", "neon")),
}
"""Architecture, LLVM processor name and features of each named target."""
_BASELINES: Final = {"x86_64": "x86-64", "aarch64": "aarch64"}
"""Named target with the features that every processor of an architecture has."""
_FEATURES_SHOWN: Final = 3
"""Number of features that `processor_text` lists before it summarises."""
_WIDE: Final = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
"""Features that kernels with 512-bit vectors need."""


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A processor to generate code for. Equal targets get equal code."""

    triple: str
    """LLVM's target triple. The object format is always ELF, whatever the system, because the
    linker is smelt's and an image needs no system loader."""
    cpu: str
    """LLVM's processor name, which determines scheduling but adds no feature to `features`."""
    features: tuple[str, ...]
    """All instruction-set features that the code may use, sorted, by LLVM's names."""
    vector_bits: int
    """Width of the widest vectors in bits: 512, 256 or 128."""

    @property
    def architecture(self) -> str:
        """Instruction set: "x86_64" or "aarch64"."""
        return self.triple.partition("-")[0]

    @property
    def name(self) -> str:
        """Name for caches and reports: architecture, processor and vector width."""
        return f"{self.architecture}:{self.cpu}:{self.vector_bits}"

    @property
    def llvm_features(self) -> str:
        """Features in LLVM's syntax."""
        # A processor's name implies features that a hypervisor may have disabled.
        absent = known_features(self.architecture).difference(self.features)
        wanted = [f"-{feature}" for feature in sorted(absent)]
        wanted += [f"+{feature}" for feature in self.features]
        if self.vector_bits == 512:
            # Without this, LLVM splits 512-bit vectors on processors for which it prefers 256 bits.
            wanted.append("-prefer-256-bit")
        if self.architecture == "aarch64":
            # Apple's systems and Windows reserve this register; elsewhere kernels do not miss it.
            wanted.append("+reserve-x18")
        return ",".join(wanted)

    def storage(self, wanted: DType) -> DType:
        """Return the type in which float32 tensors are stored if ``wanted`` is requested.

        A narrow type pays only if an instruction converts it; without one the result is float32.
        """
        return wanted if self.has_conversion_instruction(wanted) else DType.FLOAT32

    def has_conversion_instruction(self, dtype: DType) -> bool:
        """Return whether the target has instructions between ``dtype`` and float32."""
        needed = {DType.BFLOAT16: {"avx512bf16", "bf16"}, DType.FLOAT16: {"f16c", "neon"}}
        return not needed.get(dtype, set()).isdisjoint(self.features)

    def has(self, *features: str) -> bool:
        """Return whether code for the target may use all of ``features``."""
        return set(features) <= set(self.features)


def target_named(name: str) -> CpuTarget:
    """Return the target with a name: "native", an x86-64 level, or "aarch64".

    Raises:
        UnsupportedError: there is no target of that name, or this machine's architecture is not
            supported.
    """
    if name == "native":
        return host_target()
    if name not in _NAMED:
        names = ", ".join(("native", *_NAMED))
        raise UnsupportedError(f"there is no CPU target {name!r}; choose one of: {names}")
    architecture, cpu, features = _NAMED[name]
    return _target(architecture, cpu, features)


@functools.cache
def host_target() -> CpuTarget:
    """Return the target for this machine.

    Raises:
        UnsupportedError: no code can be generated for this architecture.
    """
    host = detect_host()
    if host.architecture not in _BASELINES:
        example = Argument("device", "cpu:x86-64-v3")
        raise UnsupportedError(
            f"no code can be generated for {host.architecture}; build on x86-64 or aarch64, or "
            f"name a target of one of them, such as {example}",
            arguments=[example],
        )
    llvm = load_llvm()
    llvm_host_features = llvm.get_host_cpu_features()
    # Only features that the runtime detects without LLVM may be used, since it checks that a
    # machine has an engine's features.
    features = tuple(
        f for f in host.features if llvm_host_features.get(f, False) or _is_baseline(host, f)
    )
    return _target(host.architecture, llvm.get_host_cpu_name(), features)


def host_target_with(features: Iterable[str]) -> CpuTarget:
    """Return the target for this machine, restricted to ``features``."""
    host = host_target()
    return _target(host.architecture, host.cpu, tuple(f for f in features if f in host.features))


def target_of(architecture: str, features: Iterable[str]) -> CpuTarget:
    """Return the target for a processor of which only the features are known, without loading LLVM.

    Raises:
        UnsupportedError: no code can be generated for this architecture.
    """
    if architecture not in _BASELINES:
        raise UnsupportedError(
            f"no code can be generated for {architecture}; the supported architectures are: "
            f"{', '.join(_BASELINES)}"
        )
    return _target(architecture, _NAMED[_BASELINES[architecture]][1], tuple(features))


def processor_text(architecture: str, features: Iterable[str]) -> str:
    """Return a short description of required features: the level, and those beyond it."""
    required = set(features)
    levels = [
        n for n, (a, _, needs) in _NAMED.items() if a == architecture and required >= {*needs}
    ]
    if not levels:
        return architecture
    others = sorted(required.difference(_NAMED[levels[-1]][2]))
    if len(others) > _FEATURES_SHOWN:
        others[_FEATURES_SHOWN:] = [f"{len(others) - _FEATURES_SHOWN} more"]
    return levels[-1] + (f" with {', '.join(others)}" if others else "")


def _is_baseline(host: Host, feature: str) -> bool:
    """Return whether every processor of the host's architecture has the feature."""
    return feature in _NAMED[_BASELINES[host.architecture]][2]


def _target(architecture: str, cpu: str, features: tuple[str, ...]) -> CpuTarget:
    """Return a target with the widest vectors that the features support."""
    bits = 512 if set(features) >= _WIDE else 256 if {"avx2", "fma"} <= set(features) else 128
    return CpuTarget(f"{architecture}-unknown-linux-gnu", cpu, tuple(sorted(features)), bits)
