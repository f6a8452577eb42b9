"""The engine file: a prefix, a JSON header, a signature, and four sections.

====================  ==========================================================================
bytes                 content
====================  ==========================================================================
0 .. 64               magic, format version, length of the header, length of the file, zeros
64 .. 64 + header     JSON: the engine's header, and each section's place and SHA-256
128 more              signature: kind, public key, ed25519 signature of all bytes before it
multiples of 4096     weights, sources, code, native runtime; zeros between them
====================  ==========================================================================

The sources are the arrays of the network as it was given, where the engine keeps it.
The header holds the sections' checksums, so the signature covers the whole file. A reader checks
every length and offset before it follows one, and copies what it reads while it checks it
(`_engine_bytes.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, cast

import numpy as np

from smelt.engine._atomic_files import open_atomic_file
from smelt.engine._engine_bytes import BytesLike, EngineBytes, EnginePrefix, open_engine_bytes
from smelt.engine._header_json import header_from_data, header_to_data
from smelt.engine._large_pages import request_large_pages
from smelt.errors import EngineFormatError, SmeltError
from smelt.types import Limit, count_json_parts, is_special, open_special, parse_json, require_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from smelt.engine._plan import EngineHeader

MAGIC: Final = b"\x89SMELT\r\n"
"""Not text, and broken by whatever translates line ends."""
FORMAT_VERSION: Final = 8
"""Raised with every change of what a header may hold."""
ALIGNMENT_BYTES: Final = 4096

_PREFIX: Final = struct.Struct("<8sIIQQ32x")
_SIGNATURE: Final = struct.Struct("<I32s64s28x")
_UNSIGNED: Final = 0
_ED25519: Final = 1
_SECTIONS: Final = ("weights", "sources", "code", "runtime")


class SignerLike(Protocol):
    """Whoever signs an engine."""

    @property
    def public_key(self) -> bytes:
        """The 32 bytes that verify its signatures."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the ed25519 signature of ``message``."""
        ...


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed an engine. It says nothing until `verify_signature` has checked it."""

    public_key: bytes
    signature: bytes
    message: bytes
    """What was signed."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineFile:
    """An engine file whose structure and checksums are right."""

    header: EngineHeader
    weights: NDArray[np.uint8]
    """Read-only, and of this process alone, unless the file is mapped."""
    code: bytes
    runtime_code: bytes
    signature: Signature | None
    source: str
    """Where it came from, for messages."""
    sources: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """As the weights are."""


def serialize_engine(
    header: EngineHeader,
    weights: BytesLike,
    code: bytes,
    runtime_code: bytes,
    signer: SignerLike | None,
    sources: BytesLike = b"",
) -> bytes:
    """Return an engine file's bytes; without a signer it is unsigned."""
    return b"".join(_parts(header, weights, code, runtime_code, signer, sources))


def write_engine(
    destination: str | os.PathLike[str] | BinaryIO,
    header: EngineHeader,
    weights: BytesLike,
    code: bytes,
    runtime_code: bytes,
    signer: SignerLike | None,
    sources: BytesLike = b"",
) -> None:
    """Write an engine to a path, whole or not at all, or to an open binary file.

    Raises:
        SmeltError: the path cannot be written; nothing of the engine is left there.
    """
    if not isinstance(destination, str | os.PathLike) and not hasattr(destination, "write"):
        kind = type(destination).__name__
        raise SmeltError(f"an engine is saved to a path or an open binary file, not to {kind}")
    parts = _parts(header, weights, code, runtime_code, signer, sources)
    if not isinstance(destination, str | os.PathLike):
        for part in parts:
            _write_all(destination, part)
        return
    write_atomically(destination, parts)


def _write_all(destination: Any, part: bytes | memoryview) -> None:
    """Write a part to an open file. Raises SmeltError: it takes no more, or is not an open file."""
    rest = memoryview(part).cast("B")
    try:
        while rest:
            written = destination.write(rest)
            if written is None or not 0 < written <= len(rest):
                raise SmeltError(
                    "the file accepts no more bytes: the disk is full, or the file is non-blocking"
                )
            rest = rest[written:]
    except (OSError, TypeError, ValueError) as error:
        raise SmeltError(f"the engine cannot be written to the file: {error}") from error


def write_atomically(path: str | os.PathLike[str], parts: Iterator[bytes | memoryview]) -> None:
    """Write a file that appears complete under its name, or not at all.

    Raises:
        SmeltError: the path cannot be one, or not be written; what was there before is there still.
    """
    target = require_path(path, "a file to be written")
    if is_special(target):
        _write_into(target, parts)
    else:
        replace_file(target, parts)


def replace_file(target: Path, parts: Iterator[bytes | memoryview]) -> None:
    """Write a file that appears complete under its name, in the place of whatever has the name.

    Raises:
        SmeltError: it cannot be written; what was there before is there still.
    """
    if os.path.isdir(target):
        raise SmeltError(f"{target} cannot be written: it is a folder; name a file in it")
    try:
        with open_atomic_file(target) as draft:
            for part in parts:
                draft.file.write(part)
            draft.file.flush()
            os.fsync(draft.file.fileno())
            request_large_pages(draft.file.fileno())
            draft.replace_target()
    except OSError as error:
        raise SmeltError(f"{target} cannot be written: {error.strerror}") from error


def _write_into(device: Path, parts: Iterator[bytes | memoryview]) -> None:
    """Write into a device or a pipe: nothing may take its place."""
    try:
        with open_special(device) as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise SmeltError(f"{device} cannot be written: {error.strerror}") from error


def _parts(
    header: EngineHeader,
    weights: BytesLike,
    code: bytes,
    runtime_code: bytes,
    signer: SignerLike | None,
    sources: BytesLike = b"",
) -> Iterator[bytes | memoryview]:
    sections = [np.frombuffer(part, np.uint8) for part in (weights, sources, code, runtime_code)]
    text, total = _header_text(header, sections)
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, 0, len(text), total)
    yield prefix
    yield text
    yield _sign(prefix + text, signer)
    at = _PREFIX.size + len(text) + _SIGNATURE.size
    for section in sections:
        yield bytes(-at % ALIGNMENT_BYTES)
        yield section.data
        at += -at % ALIGNMENT_BYTES + section.size


def _header_text(header: EngineHeader, sections: list[NDArray[np.uint8]]) -> tuple[bytes, int]:
    """The JSON, padded so that its own length does not depend on the offsets that it holds."""
    engine = header_to_data(header)
    digests = [hashlib.sha256(section.data).hexdigest() for section in sections]

    def text_for(start: int) -> tuple[bytes, int]:
        rows: list[object] = []
        for name, section, digest in zip(_SECTIONS, sections, digests, strict=True):
            start += -start % ALIGNMENT_BYTES
            rows.append({"name": name, "offset": start, "size": section.size, "sha256": digest})
            start += section.size
        text = json.dumps({"engine": engine, "sections": rows}, separators=(",", ":"))
        return text.encode(), start

    room = len(text_for(1 << 62)[0])
    text, total = text_for(_PREFIX.size + room + _SIGNATURE.size)
    if total > Limit.MAX_ENGINE_BYTES.most:
        raise SmeltError(f"the engine has {Limit.MAX_ENGINE_BYTES.excess(total)}")
    if room > Limit.MAX_HEADER_BYTES.most:
        raise SmeltError(f"the engine's header has {Limit.MAX_HEADER_BYTES.excess(room)}")
    if (parts := count_json_parts(text)) > Limit.MAX_JSON_PARTS.most:
        raise SmeltError(f"the engine's header has {Limit.MAX_JSON_PARTS.excess(parts)}")
    return text.ljust(room), total


def check_header(header: EngineHeader) -> None:
    """Check that a file can hold a header, and that whoever reads the file takes it.

    Raises:
        EngineFormatError: it is beyond a limit; the message says which, and where.
    """
    text = json.dumps(header_to_data(header), separators=(",", ":")).encode()
    if len(text) > Limit.MAX_HEADER_BYTES.most:
        raise EngineFormatError(f"its header has {Limit.MAX_HEADER_BYTES.excess(len(text))}")
    try:
        header_from_data(parse_json(text))
    except ValueError as error:
        raise EngineFormatError(f"its header cannot be read back: {error}") from error


def _sign(message: bytes, signer: SignerLike | None) -> bytes:
    if signer is None:
        return _SIGNATURE.pack(_UNSIGNED, bytes(32), bytes(64))
    return _SIGNATURE.pack(_ED25519, signer.public_key, signer.sign(message))


def read_engine(
    source: str | os.PathLike[str] | BytesLike | BinaryIO, *, mapped: bool = False
) -> EngineFile:
    """Read an engine from a path, from bytes or from an open binary file.

    Args:
        source: the engine. Nothing of it is needed afterwards: all of it is copied.
        mapped: map weights and sources of a path instead, for a file that only this user and root
            may write to.

    Raises:
        EngineFormatError: it is truncated, damaged or no engine.
        TrustError: it is to be mapped, and others may write to it.
    """
    with open_engine_bytes(
        source, EnginePrefix(_PREFIX.size, _declared_bytes), mapped=mapped
    ) as content:
        return _read(content)


def _declared_bytes(prefix: bytes) -> int:
    """How long an engine is by its first bytes; 0 where they are no engine's."""
    magic, version, _, _, total = _PREFIX.unpack(prefix)
    known = magic == MAGIC and version == FORMAT_VERSION
    return min(total, Limit.MAX_ENGINE_BYTES.most) if known else 0


def _read(content: EngineBytes) -> EngineFile:
    source = content.source
    message = _message(content)
    try:
        entries = _entries(message[_PREFIX.size :])
        header = header_from_data(entries["engine"])
        signature = _signature(content.copy(len(message), _SIGNATURE.size), message)
        end = len(message) + _SIGNATURE.size
        weights, sources, code, runtime = _read_sections(content, entries["sections"], end)
    except EngineFormatError as error:
        raise EngineFormatError(f"{source}: {error}; the file is damaged, copy it again") from error
    return EngineFile(
        header, weights, code.tobytes(), runtime.tobytes(), signature, source, sources
    )


def _entries(text: bytes) -> dict[str, Any]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise EngineFormatError(f"its header is not JSON: {error}") from error
    if not isinstance(content, dict) or content.keys() != {"engine", "sections"}:
        raise EngineFormatError("the header has no engine or no sections")
    return cast("dict[str, Any]", content)


def _read_sections(content: EngineBytes, table: object, end: int) -> list[NDArray[np.uint8]]:
    """The sections that a table names, which follow each other from ``end`` to the file's."""
    rows = cast("list[object]", table) if isinstance(table, list) else []
    if len(rows) != len(_SECTIONS):
        raise EngineFormatError("the header has no engine or no sections")
    # All places before any content: what ends elsewhere than the file costs no copy of it.
    places: list[tuple[int, int, str]] = []
    for name, row in zip(_SECTIONS, rows, strict=True):
        offset, size, checksum = _section(content, row, name, end)
        places.append((offset, size, checksum))
        end = offset + size
    if end != content.size:
        raise EngineFormatError(f"{content.size - end} bytes follow the engine")
    parts: list[NDArray[np.uint8]] = []
    for name, (offset, size, checksum) in zip(_SECTIONS, places, strict=True):
        part, found = content.section(offset, size)
        if found != checksum:
            raise EngineFormatError(f"the checksum of its {name} is wrong")
        parts.append(part)
    return parts


def _message(content: EngineBytes) -> bytes:
    """All that a signature is of: the fixed part, which is checked here, and the header."""
    source = content.source
    prefix = content.copy(0, min(content.size, _PREFIX.size))
    if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
        raise EngineFormatError(f"{source} is not a smelt engine; `smelt build` makes one")
    _, version, reserved, length, total = _PREFIX.unpack(prefix)
    if version != FORMAT_VERSION:
        raise EngineFormatError(
            f"{source} has format {version}, and this smelt reads {FORMAT_VERSION}; "
            "build the engine again with this smelt"
        )
    if total != content.size:
        raise EngineFormatError(
            f"{source} has {content.size} bytes and declares {total}; copy it again"
        )
    if length > Limit.MAX_HEADER_BYTES.most:
        detail = Limit.MAX_HEADER_BYTES.excess(length)
        raise EngineFormatError(f"the header of {source} has {detail}")
    end = _PREFIX.size + length + _SIGNATURE.size
    if reserved or any(prefix[-32:]) or end > total:
        raise EngineFormatError(
            f"{source}: the length of its header is wrong; the file is damaged, copy it again"
        )
    return prefix + content.copy(_PREFIX.size, length)


def _section(content: EngineBytes, row: object, name: str, end: int) -> tuple[int, int, str]:
    """Offset, size and checksum of the section that a table row names; it must follow ``end``."""
    entry = cast("dict[str, object]", row) if isinstance(row, dict) else {}
    offset, size, checksum = entry.get("offset"), entry.get("size"), entry.get("sha256")
    sound = entry.keys() == {"name", "offset", "size", "sha256"} and entry["name"] == name
    if not (sound and type(offset) is int and type(size) is int and type(checksum) is str):
        raise EngineFormatError(f"the header's entry for the section {name!r} is wrong")
    if offset != end + -end % ALIGNMENT_BYTES or not 0 <= size <= content.size - offset:
        raise EngineFormatError(f"the section {name!r} is at a wrong offset")
    if any(content.copy(end, offset - end)):
        raise EngineFormatError(f"the bytes before the section {name!r} are not zero")
    return offset, size, checksum


def _signature(block: bytes, message: bytes) -> Signature | None:
    kind, public_key, signature = _SIGNATURE.unpack(block)
    if kind == _ED25519 and not any(block[-28:]):
        return Signature(public_key, signature, message)
    if kind == _UNSIGNED and not any(block):
        return None
    raise EngineFormatError("the engine's signature block is malformed")
