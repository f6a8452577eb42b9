"""``DEVICE_KINDS``: the table of the kinds of devices, and the parsing of device names.

A kind is one record. Packages above find their part of a device by the import paths in it, and
import that part on first use: running an engine never imports the compile half.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from smelt.errors import UnsupportedError
from smelt.types import shown

if TYPE_CHECKING:
    from collections.abc import Callable

_CAPABILITY: Final = re.compile(r"(?:sm|compute)?[_-]?(\d{1,2})\.?(\d)[a-z]?", re.IGNORECASE)
"""One GPU architecture in its common spellings: 90, 9.0, sm90, SM_90a, compute_90."""
_SINGLE_INDEX: Final = re.compile("0")
"""The only index of a kind of which a machine has one device."""
_GPU_INDEX: Final = re.compile(r"[0-9]|[1-5][0-9]|6[0-3]")
"""Index of a GPU, at most 63: compute capabilities that smelt compiles for have larger numbers."""


def _processor_advice(detail: str) -> str:
    return f"{detail!r} is neither the index 0 nor the name of a target, as in 'cpu:x86-64-v3'"


def _gpu_advice(detail: str) -> str:
    """Return the correct spelling of architectures, or the forms of what may follow the colon."""
    matches = [_CAPABILITY.fullmatch(part.strip()) for part in detail.split(",") if part.strip()]
    names = [f"sm_{match[1]}{match[2]}" for match in matches if match]
    if names and len(names) == len(matches):
        return f"to compile for {' and '.join(names)}, write 'cuda:{','.join(names)}'"
    return (
        f"{detail!r} is neither the index of a GPU ('cuda:0') nor an architecture to compile for "
        "('cuda:sm_90')"
    )


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A kind of device: its names, and where its parts are.

    The parts are import paths, ``"module:name"``; `load_part` imports them.
    """

    name: str
    """Name of the kind in device names and engines."""
    description: str
    forms: tuple[str, ...]
    """Forms of its device names, as messages list them."""
    runtime: str = field(repr=False)
    """Subclass of `smelt.runtime.DeviceRuntime`: loads code, and makes contexts and streams."""
    backend: str = field(repr=False)
    """Subclass of `smelt.backends.Backend`: compiles. Only builds and reports import it."""
    toolchain: str = field(repr=False)
    """Subclass of the builder's ``Toolchain``: builds, and times candidates."""
    compiler: str = field(repr=False)
    """Package without which nothing can be compiled for the kind."""
    other_names: tuple[str, ...] = field(default=(), repr=False)
    """Names that users try instead; messages give the correct one."""
    indices: re.Pattern[str] = field(default=_SINGLE_INDEX, repr=False)
    """Indices of devices on one machine."""
    targets: re.Pattern[str] = field(default=re.compile(r"[^\W\d_].*", re.DOTALL), repr=False)
    """Targets to compile for, after the colon; the backend knows which ones exist."""
    advise: Callable[[str], str] = field(default=_processor_advice, repr=False)
    """Returns advice on a wrong text after the colon."""
    computes: bool = True
    """Whether engines compute anything."""
    has_own_memory: bool = False
    """Whether the memory of the device is not that of the process."""
    has_cubins: bool = False
    """Whether engines contain cubins, whose headers list the registers and memory of kernels."""
    has_fast_float16: bool = False
    """Whether 16-bit arithmetic is faster than 32-bit arithmetic."""

    def load_part(self, path: str) -> Any:
        """Import and return a part, given its import path."""
        module, _, name = path.partition(":")
        return getattr(import_module(module), name)


DEVICE_KINDS: Final = {
    kind.name: kind
    for kind in (
        DeviceKind(
            name="cpu",
            description="a processor",
            forms=("cpu", "cpu:TARGET"),
            other_names=("x86", "host"),
            runtime="smelt.runtime._host_code:CpuDeviceRuntime",
            backend="smelt.backends.cpu:CpuBackend",
            toolchain="smelt.builder._cpu_toolchain:CpuToolchain",
            compiler="llvmlite",
        ),
        DeviceKind(
            name="cuda",
            description="an NVIDIA GPU",
            forms=("cuda", "cuda:INDEX", "cuda:sm_90", "cuda:sm_80,sm_90"),
            other_names=("gpu", "nvidia"),
            indices=_GPU_INDEX,
            targets=re.compile(r"sm_\d+[a-z]?(,\s*sm_\d+[a-z]?)*"),
            advise=_gpu_advice,
            runtime="smelt.runtime._cuda_code:CudaDeviceRuntime",
            backend="smelt.backends.cuda:CudaBackend",
            toolchain="smelt.builder._cuda_toolchain:CudaToolchain",
            compiler="triton",
            has_own_memory=True,
            has_cubins=True,
            has_fast_float16=True,
        ),
        DeviceKind(
            name="null",
            description="the device that computes nothing",
            forms=("null",),
            runtime="smelt.runtime._host_code:NullDeviceRuntime",
            backend="smelt.backends.cpu:CpuBackend",
            toolchain="smelt.builder._cpu_toolchain:CpuToolchain",
            compiler="llvmlite",
            computes=False,
        ),
    )
}
"""Every kind of device by name, in the order in which messages list them."""


def device_kind(name: str) -> DeviceKind:
    """Return the kind of device that an engine names.

    Raises:
        UnsupportedError: this version of smelt has no such device.
    """
    kind = DEVICE_KINDS.get(name)
    if kind is None:
        names = ", ".join(DEVICE_KINDS)
        raise UnsupportedError(
            f"the device {shown(name)} is unknown; this version of smelt has {names}"
        )
    return kind


DEVICE_GRAMMAR: Final = ", ".join(form for kind in DEVICE_KINDS.values() for form in kind.forms)
"""Forms of device names, as messages list them."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """Kind of a device, with its index on this machine or the target to compile for."""

    kind: DeviceKind
    index: int | None = None
    """Index of the device on this machine; None if the name has none."""
    target: str = ""
    """Target to compile for, such as "x86-64-v3" or "sm_80,sm_90"; empty if the name has none."""

    @classmethod
    def from_text(cls, text: object) -> DeviceName:
        """Parse a device name, without checking that the device or the target exists.

        Raises:
            UnsupportedError: the text is not a device name; the message suggests a spelling.
        """
        if not isinstance(text, str):
            raise UnsupportedError(
                f"device {shown(text)} is not a name; devices are: {DEVICE_GRAMMAR}"
            )
        name, colon, detail = text.partition(":")
        kind = DEVICE_KINDS.get(name)
        if kind is not None and not colon:
            return cls(kind)
        if kind is not None and kind.indices.fullmatch(detail):
            return cls(kind, int(detail))
        if kind is not None and kind.targets.fullmatch(detail):
            return cls(kind, target=detail)
        raise UnsupportedError(
            f"device {text!r} does not exist; devices are: {DEVICE_GRAMMAR}{_advice(name, detail)}"
        )


def _advice(name: str, detail: str) -> str:
    """Return the end of a message: the correct spelling of the device that was probably meant."""
    likely_name = name.strip().lower().rstrip("0123456789")
    if likely_name == "dla":
        return "; NVDLA runs loadables (`smelt dla run`), and smelt cannot build them yet"
    for kind in DEVICE_KINDS.values():
        if likely_name not in (kind.name, *kind.other_names):
            continue
        if detail and not _GPU_INDEX.fullmatch(detail):
            return f"; {kind.advise(detail)}"
        index = detail if detail and kind.indices.fullmatch(detail) else ""
        return f"; {kind.description} is {':'.join(filter(None, (kind.name, index)))!r}"
    return ""
