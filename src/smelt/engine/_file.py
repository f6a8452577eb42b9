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
every length and offset before it follows one, and maps a file's weights and sources instead of
reading them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import secrets
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from smelt.engine._codec import header_from_data, header_to_data, parse_json
from smelt.engine._pages import keep_in_large_pages, map_file
from smelt.errors import EngineFormatError, SmeltError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.engine._plan import EngineHeader

MAGIC: Final = b"\x89SMELT\r\n"
"""Not text, and broken by whatever translates line ends."""
FORMAT_VERSION: Final = 4
"""Raised with every change of what a header may hold."""
ALIGNMENT_BYTES: Final = 4096
MAX_HEADER_BYTES: Final = 1 << 28

_PREFIX: Final = struct.Struct("<8sIIQQ32x")
_SIGNATURE: Final = struct.Struct("<I32s64s28x")
_UNSIGNED: Final = 0
_ED25519: Final = 1
_SECTIONS: Final = ("weights", "sources", "code", "runtime")
_MAPPED: Final = frozenset({"weights", "sources"})


BytesLike = bytes | bytearray | memoryview | mmap.mmap | NDArray[Any]
"""Bytes that are not copied."""


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
    """Read-only; mapped when the file was given by its path."""
    code: bytes
    runtime_code: bytes
    signature: Signature | None
    source: str
    """Where it came from, for messages."""
    sources: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """Read-only, and mapped as the weights are."""


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
            destination.write(part)
        return
    write_atomically(destination, parts)


def write_atomically(path: str | os.PathLike[str], parts: Iterator[bytes | memoryview]) -> None:
    """Write a file that appears complete under its name, or not at all.

    Raises:
        SmeltError: it cannot be written; what was there before is there still.
    """
    target = Path(path)
    if target.exists() and not (target.is_file() or target.is_dir()):
        _write_into(target, parts)
        return
    if target.is_dir():
        raise SmeltError(f"{target} cannot be written: it is a folder; name a file in it")
    draft = target.with_name(f".{target.name[:80]}.{secrets.token_hex(6)}.part")
    try:
        with draft.open("x+b") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            keep_in_large_pages(file.fileno())
        draft.replace(target)
    except OSError as error:
        raise SmeltError(f"{target} cannot be written: {error.strerror}") from error
    finally:  # Ctrl-C, too, leaves no half-written file, even if it comes as one is opened
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _write_into(device: Path, parts: Iterator[bytes | memoryview]) -> None:
    """Write into a device or a pipe: nothing may take its place."""
    try:
        with device.open("wb") as file:
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
    if room > MAX_HEADER_BYTES:
        raise SmeltError(f"the engine's header has {room} bytes; {MAX_HEADER_BYTES} are allowed")
    return text.ljust(room), total


def _sign(message: bytes, signer: SignerLike | None) -> bytes:
    if signer is None:
        return _SIGNATURE.pack(_UNSIGNED, bytes(32), bytes(64))
    return _SIGNATURE.pack(_ED25519, signer.public_key, signer.sign(message))


def read_engine(source: str | os.PathLike[str] | BytesLike | BinaryIO) -> EngineFile:
    """Read an engine from a path (its weights stay mapped), from bytes or from an open file.

    Raises:
        EngineFormatError: it is truncated, damaged or no engine.
    """
    if isinstance(source, str | os.PathLike):
        return _read(_map_file(source), os.fspath(source))
    read: Callable[[], bytes] | None = getattr(source, "read", None)
    content: Any = source
    if read is not None and not isinstance(source, mmap.mmap):
        content = read()
    try:
        data = np.frombuffer(content, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise EngineFormatError(
            f"an engine is a path, bytes or an open binary file, not {type(source).__name__}"
        ) from error
    return _read(data, "the engine")


def _map_file(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise EngineFormatError(f"{os.fspath(path)} is empty; copy it again")
            # The mapping lives as long as an array looks into it.
            return np.frombuffer(map_file(file.fileno()), np.uint8)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EngineFormatError(f"{os.fspath(path)} cannot be read: {reason}") from error


def _read(data: NDArray[np.uint8], source: str) -> EngineFile:
    data = data.view()
    data.flags.writeable = False
    text_end = _check_prefix(data, source)
    message = data[:text_end].tobytes()
    try:
        entries = _entries(message[_PREFIX.size :])
        header = header_from_data(entries["engine"])
        parts = _read_sections(data, entries["sections"], text_end + _SIGNATURE.size)
        signature = _signature(data[text_end : text_end + _SIGNATURE.size].tobytes(), message)
    except EngineFormatError as error:
        raise EngineFormatError(f"{source}: {error}; the file is damaged, copy it again") from error
    weights, sources, code, runtime = parts
    return EngineFile(
        header, weights, code.tobytes(), runtime.tobytes(), signature, source, sources
    )


def _entries(text: bytes) -> dict[str, Any]:
    content = parse_json(text)
    if not isinstance(content, dict) or content.keys() != {"engine", "sections"}:
        raise EngineFormatError("the header lacks the engine or its sections")
    return cast("dict[str, Any]", content)


def _read_sections(data: NDArray[np.uint8], table: object, end: int) -> list[NDArray[np.uint8]]:
    """The sections that a table names, which follow each other from ``end`` to the file's."""
    rows = cast("list[object]", table) if isinstance(table, list) else []
    if len(rows) != len(_SECTIONS):
        raise EngineFormatError("the header lacks the engine or its sections")
    parts: list[NDArray[np.uint8]] = []
    for name, row in zip(_SECTIONS, rows, strict=True):
        part, end, checksum = _section(data, row, name, end)
        # Code is copied before it is checked: a file may change under its mapping.
        parts.append(part if name in _MAPPED else part.copy())
        if hashlib.sha256(parts[-1].data).hexdigest() != checksum:
            raise EngineFormatError(f"the checksum of its {name} is wrong")
    if end != data.size:
        raise EngineFormatError(f"{data.size - end} bytes follow the engine")
    return parts


def _check_prefix(data: NDArray[np.uint8], source: str) -> int:
    """Check the fixed part; return where the header ends."""
    if data.size < _PREFIX.size or data[: len(MAGIC)].tobytes() != MAGIC:
        raise EngineFormatError(f"{source} is no smelt engine; make one with `smelt build`")
    _, version, reserved, length, total = _PREFIX.unpack(data[: _PREFIX.size].tobytes())
    if version != FORMAT_VERSION:
        raise EngineFormatError(
            f"{source} has format {version}, and this smelt reads {FORMAT_VERSION}; "
            "build the engine again with this smelt"
        )
    if total != data.size:
        raise EngineFormatError(
            f"{source} has {data.size} bytes where {total} are declared; copy it again"
        )
    padding = data[_PREFIX.size - 32 : _PREFIX.size]
    end = _PREFIX.size + length
    if reserved or padding.any() or length > MAX_HEADER_BYTES or end > total - _SIGNATURE.size:
        raise EngineFormatError(
            f"{source}: the length of its header is wrong; the file is damaged, copy it again"
        )
    return int(end)


def _section(
    data: NDArray[np.uint8], row: object, name: str, end: int
) -> tuple[NDArray[np.uint8], int, str]:
    """The section that a table row names, its end and checksum; it must follow ``end``."""
    entry = cast("dict[str, object]", row) if isinstance(row, dict) else {}
    offset, size, checksum = entry.get("offset"), entry.get("size"), entry.get("sha256")
    sound = entry.keys() == {"name", "offset", "size", "sha256"} and entry["name"] == name
    if not (sound and type(offset) is int and type(size) is int and type(checksum) is str):
        raise EngineFormatError(f"the header's entry for the section {name!r} is wrong")
    if offset != end + -end % ALIGNMENT_BYTES or not 0 <= size <= data.size - offset:
        raise EngineFormatError(f"the section {name!r} is not where it must be")
    if data[end:offset].any():
        raise EngineFormatError(f"the bytes before the section {name!r} are not zero")
    return data[offset : offset + size], offset + size, checksum


def _signature(block: bytes, message: bytes) -> Signature | None:
    kind, public_key, signature = _SIGNATURE.unpack(block)
    if kind == _ED25519 and not any(block[-28:]):
        return Signature(public_key, signature, message)
    if kind == _UNSIGNED and not any(block):
        return None
    raise EngineFormatError("the engine's signature block is malformed")
