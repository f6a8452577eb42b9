"""The engine file: a prefix, a JSON header, a signature, and five sections.

====================  ==========================================================================
bytes                 content
====================  ==========================================================================
0 .. 64               magic, format version, length of the header, length of the file, zeros
64 .. 64 + header     JSON: the engine's header, and each section's offset, size and SHA-256
next 128              signature: kind, public key, ed25519 signature of all bytes before it
multiples of 4096     weights, network arrays, partitions, code, native runtime; zeros between
====================  ==========================================================================

The network arrays are those of the embedded network, if the engine contains one. The partitions
are the engines of other devices, one after another, each an unsigned engine file without
partitions.
The header holds the sections' checksums, so the signature covers the whole file. A reader checks
every length and offset before it uses them, and copies bytes while it checks them
(`_engine_reader.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

import numpy as np

from smelt.engine._atomic_files import open_atomic_file, writing_to
from smelt.engine._engine_reader import BytesLike, EngineBytes, PrefixFormat, open_engine_bytes
from smelt.engine._file_mapping import request_large_pages
from smelt.engine._header_json import header_from_data, header_to_data
from smelt.errors import EngineFormatError, InternalError, SmeltError
from smelt.signal_errors import path_mode
from smelt.types import (
    Limit,
    application_errors,
    count_json_parts,
    counted,
    fields_of,
    is_json_object,
    is_special,
    items_of,
    open_special,
    parse_json,
    require_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from smelt.engine._plan import EngineHeader

MAGIC: Final = b"\x89SMELT\r\n"
"""File magic: a non-text byte, and line ends that text-mode transfers would change."""
FORMAT_VERSION: Final = 10
"""Version of the file format; incremented with every change of the header's content."""
ALIGNMENT_BYTES: Final = 4096
"""Alignment of sections in the file, so that they can be mapped."""

_PREFIX: Final = struct.Struct("<8sIIQQ32x")
_SIGNATURE: Final = struct.Struct("<I32s64s28x")
_UNSIGNED: Final = 0
_ED25519: Final = 1
_SECTIONS: Final = ("weights", "network_arrays", "partitions", "code", "runtime")


class SignerLike(Protocol):
    """An object that signs engines."""

    @property
    def public_key(self) -> bytes:
        """The 32-byte public key that verifies the signatures."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the ed25519 signature of ``message``."""
        ...


@dataclass(frozen=True, slots=True)
class Signature:
    """Signature of an engine; not trustworthy until `verify_signature` has checked it."""

    public_key: bytes
    signature: bytes
    message: bytes
    """The signed bytes."""

    def sign(self, message: bytes) -> bytes:
        """Return the signature for the message that it signs, as its signer would."""
        if message != self.message:
            raise InternalError("the engine that was read back differs from the one written")
        return self.signature


@dataclass(frozen=True, slots=True, eq=False)
class EngineFile:
    """An engine file with verified structure and checksums."""

    header: EngineHeader
    weights: NDArray[np.uint8]
    """Packed weights, read-only; a private copy unless the file is mapped."""
    code: bytes
    runtime_code: bytes
    signature: Signature | None
    source: str
    """Origin of the file, for messages."""
    network_arrays: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """Arrays of the embedded network, stored like the weights."""
    partitions: tuple[EngineFile, ...] = ()
    """Engines of other devices, which steps of the plans submit; these have no partitions."""


def damaged(source: str, problem: object) -> EngineFormatError:
    """Return the error of a file whose content contradicts itself."""
    return EngineFormatError(f"{source}: {problem}; the file is damaged: copy or build it again")


def serialize_engine(
    header: EngineHeader,
    weights: BytesLike,
    code: bytes,
    runtime_code: bytes,
    signer: SignerLike | None,
    network_arrays: BytesLike = b"",
    partitions: Sequence[EngineFile] = (),
) -> bytes:
    """Return the bytes of an engine file, unsigned if ``signer`` is None."""
    own = header, weights, code, runtime_code
    return b"".join(engine_parts(*own, signer, network_arrays, partitions))


def write_engine(
    destination: str | os.PathLike[str] | BinaryIO, parts: Iterator[bytes | memoryview]
) -> None:
    """Write the parts of an engine atomically to a path, or to an open binary file.

    Raises:
        SmeltError: the destination cannot be written; a path is left unchanged.
    """
    if not isinstance(destination, str | os.PathLike) and not hasattr(destination, "write"):
        kind = type(destination).__name__
        raise SmeltError(f"the destination must be a path or an open binary file, not {kind}")
    if not isinstance(destination, str | os.PathLike):
        for part in parts:
            _write_all(destination, part)
        return
    write_atomically(destination, parts)


def _write_all(destination: Any, part: bytes | memoryview) -> None:
    """Write bytes to an open file. Raises SmeltError: the file does not accept them."""
    rest = memoryview(part).cast("B")
    with application_errors(_unwritable):
        while rest:
            written = destination.write(rest)
            if written is None or not 0 < written <= len(rest):
                raise SmeltError(
                    "the file accepts no more bytes: the disk is full, or the file is non-blocking"
                )
            rest = rest[written:]


def _unwritable(reason: str) -> SmeltError:
    return SmeltError(f"the engine cannot be written to the file: {reason}")


def write_atomically(path: str | os.PathLike[str], parts: Iterator[bytes | memoryview]) -> None:
    """Write a file atomically; special files are written in place.

    Raises:
        SmeltError: the path is invalid or cannot be written; an existing file is unchanged.
    """
    target = require_path(path, "a file to be written")
    if is_special(target):
        _write_into(target, parts)
    else:
        replace_file(target, parts)


def replace_file(target: Path, parts: Iterator[bytes | memoryview]) -> None:
    """Write a file atomically, replacing an existing one.

    Raises:
        SmeltError: the file cannot be written; an existing file is unchanged.
    """
    if stat.S_ISDIR(path_mode(target)):
        raise SmeltError(f"{target} cannot be written: it is a folder; name a file in it")
    with writing_to(target), open_atomic_file(target) as draft:
        for part in parts:
            draft.file.write(part)
        draft.file.flush()
        os.fsync(draft.file.fileno())
        request_large_pages(draft.file.fileno())
        draft.replace_target()


def _write_into(device: Path, parts: Iterator[bytes | memoryview]) -> None:
    """Write to a device or a pipe, which must not be replaced."""
    with writing_to(device), open_special(device) as file:
        for part in parts:
            file.write(part)


def engine_parts(
    header: EngineHeader,
    weights: BytesLike,
    code: bytes,
    runtime_code: bytes,
    signer: SignerLike | None,
    network_arrays: BytesLike = b"",
    partitions: Sequence[EngineFile] = (),
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of an engine file in parts, for `write_engine`."""
    nested = b"".join(
        serialize_engine(p.header, p.weights, p.code, p.runtime_code, None, p.network_arrays)
        for p in partitions
    )
    _check_partition_headers(np.frombuffer(nested, np.uint8), "the engine")
    contents = (weights, network_arrays, nested, code, runtime_code)
    sections = [np.frombuffer(content, np.uint8) for content in contents]
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
    """Return the header's JSON and the file size; padded to a length independent of the offsets."""
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

    padded_bytes = len(text_for(1 << 62)[0])
    text, total = text_for(_PREFIX.size + padded_bytes + _SIGNATURE.size)
    Limit.MAX_ENGINE_BYTES.check(total, "the engine has", SmeltError)
    Limit.MAX_HEADER_BYTES.check(padded_bytes, "the engine's header has", SmeltError)
    Limit.MAX_JSON_PARTS.check(count_json_parts(text), "the engine's header has", SmeltError)
    return text.ljust(padded_bytes), total


def check_header(header: EngineHeader) -> None:
    """Check that a header can be written to a file and read back.

    Raises:
        EngineFormatError: the header exceeds a limit or cannot be read back.
    """
    text = json.dumps(header_to_data(header), separators=(",", ":")).encode()
    Limit.MAX_HEADER_BYTES.check(len(text), "its header has", EngineFormatError)
    try:
        header_from_data(parse_json(text))
    except ValueError as error:
        raise EngineFormatError(f"the header of the engine cannot be read back: {error}") from error


def _sign(message: bytes, signer: SignerLike | None) -> bytes:
    if signer is None:
        return _SIGNATURE.pack(_UNSIGNED, bytes(32), bytes(64))
    return _SIGNATURE.pack(_ED25519, signer.public_key, signer.sign(message))


def read_engine(
    source: str | os.PathLike[str] | BytesLike | BinaryIO, *, mapped: bool = False
) -> EngineFile:
    """Read an engine from a path, from bytes or from an open binary file.

    Args:
        source: the engine; its content is copied.
        mapped: map the weights and network arrays of a path instead of copying them. Only this user
            and root may be able to write to the file.

    Raises:
        EngineFormatError: the source is truncated, damaged or not an engine.
        TrustError: the file is to be mapped, but other users may write to it.
    """
    with open_engine_bytes(source, _PREFIX_FORMAT, mapped=mapped) as content:
        return _read(content)


def _declared_bytes(prefix: bytes) -> int:
    """Return the size of an engine by its prefix; 0 if it is not an engine's prefix."""
    magic, version, _, _, total = _PREFIX.unpack(prefix)
    known = magic == MAGIC and version == FORMAT_VERSION
    return min(total, Limit.MAX_ENGINE_BYTES.most) if known else 0


_PREFIX_FORMAT: Final = PrefixFormat(_PREFIX.size, _declared_bytes)


def _read(content: EngineBytes, *, is_partition: bool = False) -> EngineFile:
    source = content.source
    message = _message(content)
    try:
        entries = _entries(message[_PREFIX.size :])
        header = header_from_data(entries["engine"])
        signature = _signature(content.copy(len(message), _SIGNATURE.size), message)
        end = len(message) + _SIGNATURE.size
        weights, network_arrays, nested, code, runtime = _read_sections(
            content, entries["sections"], end
        )
    except EngineFormatError as error:
        raise damaged(source, error) from error
    if is_partition and (nested.size or signature is not None):
        raise damaged(source, "a partition has a signature or partitions of its own")
    return EngineFile(
        header,
        weights,
        code.tobytes(),
        runtime.tobytes(),
        signature,
        source,
        network_arrays,
        tuple(_partitions(nested, source)),
    )


def _partitions(section: NDArray[np.uint8], source: str) -> Iterator[EngineFile]:
    """Yield the engines of a section."""
    # All headers are counted before any is parsed: together they are read as fast as one.
    _check_partition_headers(section, source)
    for number, part in enumerate(_split_section(section, source)):
        with open_engine_bytes(part, _PREFIX_FORMAT) as content:
            file = _read(content, is_partition=True)
        yield replace(file, source=f"partition {number} of {source}")


def _split_section(section: NDArray[np.uint8], source: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of the engines of a section, which follow one another."""
    start = number = 0
    while start < section.size:
        prefix = section[start : start + _PREFIX.size].tobytes()
        size = _declared_bytes(prefix) if len(prefix) == _PREFIX.size else 0
        if not _PREFIX.size <= size <= section.size - start:
            raise damaged(source, f"partition {number} is not an engine of this format version")
        Limit.MAX_PARTITIONS.check(number + 1, f"{source} has", EngineFormatError)
        yield section[start : start + size]
        start, number = start + size, number + 1


def _check_partition_headers(section: NDArray[np.uint8], source: str) -> None:
    """Check that the headers of all partitions have no more parts than one header may have.

    Raises:
        EngineFormatError: they have more.
    """
    count = 0
    for part in _split_section(section, source):
        length = min(_PREFIX.unpack(part[: _PREFIX.size].tobytes())[3], Limit.MAX_HEADER_BYTES.most)
        count += count_json_parts(part[_PREFIX.size : _PREFIX.size + length].tobytes())
    what = f"the headers of the partitions of {source} have"
    Limit.MAX_JSON_PARTS.check(count, what, EngineFormatError)


def _entries(text: bytes) -> dict[str, Any]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise EngineFormatError(f"the header is not JSON: {error}") from error
    if not is_json_object(content) or content.keys() != {"engine", "sections"}:
        raise EngineFormatError(
            "the header must have the fields engine and sections, and no others"
        )
    return content


def _read_sections(content: EngineBytes, table: object, end: int) -> list[NDArray[np.uint8]]:
    """Read the sections of a table; they must be contiguous from ``end`` to the file's end."""
    rows = items_of(table)
    if len(rows) != len(_SECTIONS):
        raise EngineFormatError(f"the header must list {len(_SECTIONS)} sections")
    # All offsets are checked before any content is copied.
    locations: list[tuple[int, int, str]] = []
    for name, row in zip(_SECTIONS, rows, strict=True):
        offset, size, checksum = _section(content, row, name, end)
        locations.append((offset, size, checksum))
        end = offset + size
    if end != content.size:
        raise EngineFormatError(
            f"the file ends {counted(content.size - end, 'byte')} after the last section"
        )
    parts: list[NDArray[np.uint8]] = []
    for name, (offset, size, checksum) in zip(_SECTIONS, locations, strict=True):
        part, digest = content.section(offset, size)
        if digest != checksum:
            raise EngineFormatError(f"the checksum of the section {name!r} is wrong")
        parts.append(part)
    return parts


def _message(content: EngineBytes) -> bytes:
    """Return the signed bytes: the prefix, which is checked here, and the header."""
    source = content.source
    prefix = content.copy(0, min(content.size, _PREFIX.size))
    if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
        raise EngineFormatError(f"{source} is not a smelt engine; `smelt build` makes one")
    _, version, reserved, length, total = _PREFIX.unpack(prefix)
    if version != FORMAT_VERSION:
        raise EngineFormatError(
            f"{source} has format version {version}, but this version of smelt reads "
            f"{FORMAT_VERSION}; build the engine again with this version"
        )
    if total != content.size:
        raise EngineFormatError(
            f"{source} has {content.size} bytes and declares {total}; copy it again"
        )
    Limit.MAX_HEADER_BYTES.check(length, f"the header of {source} has", EngineFormatError)
    end = _PREFIX.size + length + _SIGNATURE.size
    if reserved or any(prefix[-32:]) or end > total:
        raise damaged(source, "the length of its header is wrong")
    return prefix + content.copy(_PREFIX.size, length)


def _section(content: EngineBytes, row: object, name: str, end: int) -> tuple[int, int, str]:
    """Return offset, size and checksum of a section in the table; it must follow ``end``."""
    entry = fields_of(row)
    offset, size, checksum = entry.get("offset"), entry.get("size"), entry.get("sha256")
    is_valid = set(entry) == {"name", "offset", "size", "sha256"} and entry["name"] == name
    if not (is_valid and type(offset) is int and type(size) is int and type(checksum) is str):
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
