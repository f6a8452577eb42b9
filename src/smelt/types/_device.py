"""Parsing of device names such as ``cpu``, ``cuda:0`` and ``cuda:sm_90``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from smelt.errors import UnsupportedError
from smelt.types._argument_checks import shown

DEVICE_GRAMMAR: Final = "cpu, cpu:TARGET, cuda, cuda:INDEX, cuda:sm_90, cuda:sm_80,sm_90, null"
"""Forms of device names, as messages list them."""
_KINDS: Final = {
    "cpu": "a processor",
    "cuda": "an NVIDIA GPU",
    "null": "the device that computes nothing",
}
_CUDA: Final = "cuda"
_INDEX: Final = re.compile(r"[0-9]|[1-5][0-9]|6[0-3]")
"""Index of a GPU, at most 63: compute capabilities that smelt compiles for have larger numbers."""
_ONLY: Final = re.compile("0")
"""The only index of ``cpu`` and ``null``: all processors of a machine are one device."""
_ARCHITECTURES: Final = re.compile(r"sm_\d+[a-z]?(,\s*sm_\d+[a-z]?)*")
_CAPABILITY: Final = re.compile(r"(?:sm|compute)?[_-]?(\d{1,2})\.?(\d)[a-z]?", re.IGNORECASE)
"""One GPU architecture in its common spellings: 90, 9.0, sm90, SM_90a, compute_90."""
_OTHER_NAMES: Final = {"gpu": _CUDA, "nvidia": _CUDA, "x86": "cpu", "host": "cpu"}
"""Kinds of devices under other names, for the advice in the message."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """Kind of a device, with its index on this machine or the target to compile for."""

    kind: str
    """Kind of the device: cpu, cuda or null."""
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
        kind, colon, detail = text.partition(":")
        if kind in _KINDS and not colon:
            return cls(kind)
        if kind in _KINDS and (_INDEX if kind == _CUDA else _ONLY).fullmatch(detail):
            return cls(kind, int(detail))
        is_target = _ARCHITECTURES.fullmatch(detail) if kind == _CUDA else detail[:1].isalpha()
        if kind in _KINDS and is_target:
            return cls(kind, target=detail)
        raise UnsupportedError(
            f"device {text!r} does not exist; devices are: {DEVICE_GRAMMAR}{_advice(kind, detail)}"
        )


def _advice(kind: str, detail: str) -> str:
    """Return the end of a message: the correct spelling of the device that was probably meant."""
    likely_kind = re.sub(r"\d*$", "", kind.strip().lower())
    likely_kind = _OTHER_NAMES.get(likely_kind, likely_kind)
    if likely_kind == "dla":
        return "; NVDLA runs loadables (`smelt dla run`), and smelt cannot build them yet"
    if likely_kind not in _KINDS:
        return ""
    if not detail or _INDEX.fullmatch(detail):
        index = detail if likely_kind == _CUDA else ""
        return f"; {_KINDS[likely_kind]} is {':'.join(filter(None, (likely_kind, index)))!r}"
    if likely_kind != _CUDA:
        return f"; {detail!r} is neither a number nor a target such as 'cpu:x86-64-v3'"
    matches = [_CAPABILITY.fullmatch(part.strip()) for part in detail.split(",") if part.strip()]
    names = [f"sm_{match[1]}{match[2]}" for match in matches if match]
    if names and len(names) == len(matches):
        return f"; to compile for that architecture, write 'cuda:{','.join(names)}'"
    return (
        f"; {detail!r} is neither the index of a GPU ('cuda:0') nor an architecture to compile "
        "for ('cuda:sm_90')"
    )
