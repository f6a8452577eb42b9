"""External data of a model: weights in files of the model's own folder."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from smelt.errors import ModelFormatError
from smelt.signal_errors import convert_own, pass_on_handler_error
from smelt.types import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    from onnx import TensorProto

    from smelt.ir import Array

_MAX_READ_BYTES: Final = 1 << 30
"""Largest number of bytes for one read call; some systems cannot read 2 GB at once."""


class _FileRange(NamedTuple):
    """A range of bytes of a file."""

    path: Path
    offset: int
    size_bytes: int


class ExternalData:
    """Reader of the files that the tensors of a model name.

    Files are read and not mapped, because truncating a mapped file would end the process. Tensors
    with the same byte range share one array. Ranges must not overlap otherwise, so a model never
    takes more memory than its files have bytes.
    """

    def __init__(self, folder: Path | None) -> None:
        """Set the folder that contains the files; None if the model was not read from a path."""
        self._folder: Final = folder
        self._read: Final[dict[_FileRange, Array]] = {}
        self._read_bytes: Final[Counter[Path]] = Counter()

    def read(self, tensor: TensorProto, expected: int, where: str) -> Array:
        """Return the ``expected`` bytes of a tensor as a read-only array uint8[expected].

        Raises:
            ModelFormatError: the bytes are missing, in another folder, of another number, or
                overlap those of other tensors.
        """
        part = self._find(tensor, expected, where)
        if part not in self._read:
            self._read[part] = self._read_part(part, where)
        return self._read[part]

    def _find(self, tensor: TensorProto, expected: int, where: str) -> _FileRange:
        """Return the byte range of a tensor, after checking its entries."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self._folder is None:
            raise ModelFormatError(
                f"{where}: its data is in the external file {location!r}, and the model was given "
                "without a path; import the model by its path"
            )
        path = _external_path(self._folder, location, where)
        offset = _number(entries, "offset", 0, where)
        length = _number(entries, "length", expected, where)
        if length != expected:
            raise ModelFormatError(
                f"{where}: its shape and type need {counted(expected, 'byte')}, but its "
                f"external_data entry for {location!r} gives the length {length}; save the "
                "model again"
            )
        return _FileRange(path, offset, expected)

    def _read_part(self, part: _FileRange, where: str) -> Array:
        """Read a byte range, and check that ranges of the file do not overlap."""
        path = part.path

        def unreadable(error: Exception) -> ModelFormatError:
            reason = getattr(error, "strerror", None) or str(error)
            reason = reason or f"{counted(part.size_bytes, 'byte')} cannot be allocated"
            is_missing = isinstance(error, FileNotFoundError)
            advice = (
                "put that file into the folder of the model" if is_missing else "check the file"
            )
            return ModelFormatError(
                f"{where}: its external data {path} cannot be read: {reason}; {advice}"
            )

        kinds = (OSError, ValueError, MemoryError)
        with convert_own(unreadable, *kinds), open(path, "rb", buffering=0, opener=_open) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelFormatError(f"{where}: its external data {path} is not a regular file")
            if part.offset + part.size_bytes > status.st_size:
                raise _cut_off(part, status.st_size, where)
            self._read_bytes[path] += part.size_bytes
            if self._read_bytes[path] > status.st_size:
                raise ModelFormatError(
                    f"{where}: tensors in {path} overlap: those read so far need "
                    f"{self._read_bytes[path]} bytes, and the file has only "
                    f"{counted(status.st_size, 'byte')}; save the model again"
                )
            return _read_bytes(file, part, where)


def _open(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _read_bytes(file: FileIO, part: _FileRange, where: str) -> Array:
    """Return the bytes of a range; holes in a sparse file do not take memory."""
    content = np.zeros(part.size_bytes, np.uint8)
    for start, stop in _stored_runs(file, part.offset, part.offset + part.size_bytes):
        file.seek(start)
        position = start
        while position < stop:
            begin = position - part.offset
            buffer = content[begin : begin + min(stop - position, _MAX_READ_BYTES)]
            count = file.readinto(buffer.data)
            if not count:
                raise _cut_off(part, position, where)
            position += count
    content.flags.writeable = False
    return content


def _stored_runs(file: FileIO, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a byte range that are not holes; all of it if the system cannot tell."""
    if not hasattr(os, "SEEK_DATA"):
        yield start, stop
        return
    while start < stop:
        try:
            start = file.seek(start, os.SEEK_DATA)
        except OSError as error:
            pass_on_handler_error(error)
            if error.errno == errno.ENXIO:  # nothing but a hole follows, or the file's end
                return
            raise
        if start < stop:
            end = min(stop, file.seek(start, os.SEEK_HOLE))
            yield start, end
            start = end


def _cut_off(part: _FileRange, size_bytes: int, where: str) -> ModelFormatError:
    return ModelFormatError(
        f"{where}: bytes {part.offset} to {part.offset + part.size_bytes} of {part.path} are "
        f"needed, but the file has {counted(size_bytes, 'byte')}: the file is truncated; download "
        "it again"
    )


def _external_path(folder: Path, location: str, where: str) -> Path:
    """Return the path of a file that must be in the model's folder and not a symbolic link."""
    parts = PurePosixPath(location).parts
    forbidden = not parts or location.startswith("/") or ".." in parts or "\0" in location
    if forbidden or "\\" in location or Path(location).is_absolute() or Path(location).drive:
        raise ModelFormatError(
            f"{where}: external data {location!r} must be a path inside the model's folder; files "
            "outside of it are not read"
        )
    path = folder
    for part in parts:
        path = path / part
        try:
            is_link = path.is_symlink()
        except OSError as error:  # not a valid file name
            pass_on_handler_error(error)
            raise ModelFormatError(
                f"{where}: its external data {location!r} cannot be read: {error.strerror}"
            ) from error
        if is_link:
            raise ModelFormatError(
                f"{where}: the path of the external data, {location!r}, contains the symbolic link "
                f"{path}; replace the link with its target"
            )
    return path


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    """Return an entry of a tensor's external data as a number of bytes."""
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelFormatError(
            f"{where}: {key} {text!r} of its external data is not a number of bytes"
        )
    return int(text)
