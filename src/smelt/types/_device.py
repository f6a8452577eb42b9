"""What a device's name means: where it is on this machine, or what code shall be made for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from smelt.errors import UnsupportedError
from smelt.types._argument_checks import shown

DEVICE_GRAMMAR: Final = "cpu, cpu:TARGET, cuda, cuda:INDEX, cuda:sm_90, cuda:sm_80,sm_90, null"
"""The names of devices, for messages."""
_KINDS: Final = {
    "cpu": "a processor",
    "cuda": "an NVIDIA GPU",
    "null": "the device that computes nothing",
}
_CUDA: Final = "cuda"
_INDEX: Final = re.compile(r"[0-9]|[1-5][0-9]|6[0-3]")
"""No machine has more GPUs than 64, and no architecture that we compile for has so low a number."""
_ONLY: Final = re.compile("0")
"""A machine's processors are one device."""
_ARCHITECTURES: Final = re.compile(r"sm_\d+[a-z]?(,\s*sm_\d+[a-z]?)*")
_CAPABILITY: Final = re.compile(r"(?:sm|compute)?[_-]?(\d{1,2})\.?(\d)[a-z]?", re.IGNORECASE)
"""One architecture in the ways in which people write it: 90, 9.0, sm90, SM_90a, compute_90."""
_OTHER_NAMES: Final = {"gpu": _CUDA, "nvidia": _CUDA, "x86": "cpu", "host": "cpu"}


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A kind of device, and which of its kind, or for which of its kind."""

    kind: str
    """One of cpu, cuda and null."""
    index: int | None = None
    """Which one on this machine."""
    target: str = ""
    """What to compile for: "x86-64-v3", "sm_80,sm_90"."""

    @classmethod
    def from_text(cls, text: object) -> DeviceName:
        """Read a name. Whether there is such a device or target is not asked.

        Raises:
            UnsupportedError: it is not a device's; says how what may be meant is written.
        """
        if not isinstance(text, str):
            raise UnsupportedError(
                f"device {shown(text)} is not a name; devices are: {DEVICE_GRAMMAR}"
            )
        kind, colon, detail = text.partition(":")
        if kind in _KINDS and not colon:
            return cls(kind)
        if kind in _KINDS and (_INDEX if kind == _CUDA else _ONLY).fullmatch(detail):
            return cls(kind, int(detail))
        is_sound = _ARCHITECTURES.fullmatch(detail) if kind == _CUDA else detail[:1].isalpha()
        if kind in _KINDS and is_sound:
            return cls(kind, target=detail)
        raise UnsupportedError(
            f"device {text!r} does not exist; devices are: {DEVICE_GRAMMAR}{_advice(kind, detail)}"
        )


def _advice(kind: str, detail: str) -> str:
    """How what may be meant is written."""
    meant = re.sub(r"\d*$", "", kind.strip().lower())
    meant = _OTHER_NAMES.get(meant, meant)
    if meant == "dla":
        return "; NVDLA runs loadables (`smelt dla run`), and smelt cannot build them yet"
    if meant not in _KINDS:
        return ""
    if not detail or _INDEX.fullmatch(detail):
        index = detail if meant == _CUDA else ""
        return f"; {_KINDS[meant]} is {':'.join(filter(None, (meant, index)))!r}"
    if meant != _CUDA:
        return f"; {detail!r} is neither a number nor a target such as 'cpu:x86-64-v3'"
    found = [_CAPABILITY.fullmatch(part.strip()) for part in detail.split(",") if part.strip()]
    names = [f"sm_{match[1]}{match[2]}" for match in found if match]
    if names and len(names) == len(found):
        return f"; to compile for that architecture, write 'cuda:{','.join(names)}'"
    return (
        f"; {detail!r} is neither the index of a GPU ('cuda:0') nor an architecture to compile "
        "for ('cuda:sm_90')"
    )
