"""Weights that lie in files beside a model: read once, and only from the model's own folder."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from smelt.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    from onnx import TensorProto

    from smelt.ir import Array

_MAX_READ_BYTES: Final = 1 << 30
"""By one call: some systems read no 2 GB at once."""


class _Part(NamedTuple):
    """Bytes of a file."""

    path: Path
    offset: int
    size_bytes: int


class ExternalData:
    """The files beside a model, as far as its tensors name them.

    They are read and not mapped: whoever truncates a mapped file ends the process. Tensors that
    name the same bytes share one array, and no file is read more than once over, so that a model
    takes no more memory than its files have bytes.
    """

    def __init__(self, folder: Path | None) -> None:
        """Take the folder that files must lie in; None where the model came without a path."""
        self._folder: Final = folder
        self._read: Final[dict[_Part, Array]] = {}
        self._read_bytes: Final[Counter[Path]] = Counter()

    def read(self, tensor: TensorProto, expected: int, where: str) -> Array:
        """The ``expected`` bytes of a tensor: uint8[expected], not to be written to.

        Raises ModelFormatError: they are missing, elsewhere, of another number, or overlap others.
        """
        part = self._find(tensor, expected, where)
        if part not in self._read:
            self._read[part] = self._read_part(part, where)
        return self._read[part]

    def _find(self, tensor: TensorProto, expected: int, where: str) -> _Part:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if self._folder is None:
            raise ModelFormatError(
                f"{where}: its data is in the external file {location!r}, and the model was given "
                "without a path; import it by its path"
            )
        path = _external_path(self._folder, location, where)
        offset = _number(entries, "offset", 0, where)
        length = _number(entries, "length", expected, where)
        if length != expected:
            raise ModelFormatError(
                f"{where}: its shape and type need {expected} bytes, and {location!r} has {length}"
            )
        return _Part(path, offset, expected)

    def _read_part(self, part: _Part, where: str) -> Array:
        path = part.path
        try:
            file = open(path, "rb", buffering=0, opener=_open)  # noqa: SIM115  (closed below)
        except (OSError, ValueError) as error:
            raise ModelFormatError(
                f"{where}: cannot read its external data: {error}; put that file beside the model"
            ) from error
        with file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelFormatError(f"{where}: its external data {path} is not a regular file")
            if part.offset + part.size_bytes > status.st_size:
                raise _cut_off(part, status.st_size, where)
            self._read_bytes[path] += part.size_bytes
            if self._read_bytes[path] > status.st_size:
                raise ModelFormatError(
                    f"{where}: the tensors in {path} overlap: they have {self._read_bytes[path]} "
                    f"bytes and the file {status.st_size}; save the model again"
                )
            try:
                return _read_bytes(file, part, where)
            except (OSError, MemoryError) as error:
                detail = str(error) or f"{part.size_bytes} bytes cannot be allocated"
                raise ModelFormatError(
                    f"{where}: cannot read its external data {path}: {detail}"
                ) from error


def _open(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _read_bytes(file: FileIO, part: _Part, where: str) -> Array:
    """The bytes of a part; what is no more than a hole in the file takes no memory."""
    made = np.zeros(part.size_bytes, np.uint8)
    for start, stop in _stored_runs(file, part.offset, part.offset + part.size_bytes):
        file.seek(start)
        position = start
        while position < stop:
            begin = position - part.offset
            room = made[begin : begin + min(stop - position, _MAX_READ_BYTES)]
            count = file.readinto(room.data)
            if not count:
                raise _cut_off(part, position, where)
            position += count
    made.flags.writeable = False
    return made


def _stored_runs(file: FileIO, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where a file has more than holes between two places; all of it where nobody knows."""
    if not hasattr(os, "SEEK_DATA"):
        yield start, stop
        return
    while start < stop:
        try:
            start = file.seek(start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows, or the file's end
                return
            raise
        if start < stop:
            end = min(stop, file.seek(start, os.SEEK_HOLE))
            yield start, end
            start = end


def _cut_off(part: _Part, size_bytes: int, where: str) -> ModelFormatError:
    return ModelFormatError(
        f"{where}: bytes {part.offset} to {part.offset + part.size_bytes} of {part.path} are "
        f"needed, and the file has {size_bytes}; it is truncated, download it again"
    )


def _external_path(folder: Path, location: str, where: str) -> Path:
    """The file that a model names, which must lie in the model's folder and be no link."""
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
        except OSError as error:  # a name that no file may have
            raise ModelFormatError(
                f"{where}: external data cannot be read: {error.strerror}"
            ) from error
        if is_link:
            raise ModelFormatError(
                f"{where}: external data {location!r} contains the symbolic link {path}; replace "
                "it by the file itself"
            )
    return path


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelFormatError(
            f"{where}: {key} {text!r} of its external data is not a number of bytes"
        )
    return int(text)
