"""Detection of this machine's architecture and CPU features, without a compiler.

Feature names are those of LLVM, because compilers write them into fingerprints. On Linux, features
come from the flags in /proc/cpuinfo, which include only what the operating system enables. On
other systems, only the baseline of the architecture is known.
"""

from __future__ import annotations

import functools
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from smelt.signal_errors import pass_on_handler_error

if TYPE_CHECKING:
    from collections.abc import Iterator

_CPUINFO: Final = Path("/proc/cpuinfo")
_CPUINFO_LIMIT_BYTES: Final = 1 << 16
"""Bytes to read: more than the lines of one CPU, but not those of all CPUs of a large machine."""

_SPELLED_ALIKE: Final = (
    "sse sse2 ssse3 cx16 popcnt movbe bmi2 f16c fma avx avx2 gfni vpclmulqdq "
    "avx_vnni avx_vnni_int8 avx_ifma avx_ne_convert "
    "avx512f avx512cd avx512bw avx512dq avx512vl avx512ifma avx512vbmi avx512_vbmi2 "
    "avx512_bitalg avx512_vnni avx512_bf16 avx512_fp16 avx512_vpopcntdq"
)
"""Linux's names of x86 features that differ from LLVM's at most in underscores."""
_X86_FLAGS: Final = {name: name.replace("_", "") for name in _SPELLED_ALIKE.split()} | {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "lahf_lm": "sahf",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "pclmulqdq": "pclmul",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
}
"""LLVM's names of x86 features by Linux's."""
_ARM_FLAGS: Final = {
    "fp": "fp-armv8",
    "asimd": "neon",
    "atomics": "lse",
    "fphp": "fullfp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}
_ARCHITECTURES: Final = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
_BASELINES: Final = {
    "x86_64": ("sse", "sse2"),
    "aarch64": ("fp-armv8", "neon"),
}


@dataclass(frozen=True, slots=True)
class Host:
    """A CPU and its operating system."""

    architecture: str
    """"x86_64", "aarch64"…"""
    features: tuple[str, ...]
    """Instruction-set features that code may use, as sorted LLVM names."""
    system: str
    """"linux", "darwin", "windows"."""
    processor: str = ""
    """Name of the CPU according to the system; empty if unknown."""


def known_features(architecture: str) -> frozenset[str]:
    """Return all features that `detect_host` can detect on an architecture."""
    return frozenset((_X86_FLAGS if architecture == "x86_64" else _ARM_FLAGS).values())


@functools.cache
def detect_host() -> Host:
    """Return the machine that this process runs on."""
    machine = platform.machine().lower()
    architecture = _ARCHITECTURES.get(machine, machine)
    system = "windows" if sys.platform == "win32" else sys.platform
    features = set(_BASELINES.get(architecture, ()))
    processor = ""
    if system == "linux":
        text = _read_cpuinfo()
        features |= _features_from_cpuinfo(architecture, text)
        processor = next(_values_in_cpuinfo(text, "model name"), "")
    return Host(architecture, tuple(sorted(features)), system, processor)


def _read_cpuinfo() -> str:
    try:
        with _CPUINFO.open("rb") as file:
            return file.read(_CPUINFO_LIMIT_BYTES).decode("ascii", "replace")
    except OSError as error:
        pass_on_handler_error(error)
        return ""


def _features_from_cpuinfo(architecture: str, text: str) -> set[str]:
    names = _X86_FLAGS if architecture == "x86_64" else _ARM_FLAGS
    flags = next(_values_in_cpuinfo(text, "flags", "features"), "")
    return {names[flag] for flag in flags.split() if flag in names}


def _values_in_cpuinfo(text: str, *keys: str) -> Iterator[str]:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in keys:
            yield value.strip()
