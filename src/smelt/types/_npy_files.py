"""Readers and writers of .npy and .npz files, safe for untrusted files.

A header is accepted only if the file holds exactly the bytes that the header announces.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from smelt.errors import BindingError, SmeltError
from smelt.signal_errors import convert_own
from smelt.types._dtype import DType
from smelt.types._files import open_file
from smelt.types._limits import Limit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
"""First four bytes of a zip archive with members, and of an empty one."""
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that numpy writes; others may need gigabytes to unpack one byte."""
_LOCAL_HEADER_BYTES: Final = 30
"""Bytes before the name and the data of a member of a zip archive."""
_LENGTH_BYTES: Final = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4, b"\x93NUMPY\x03\x00": 4}
"""Bytes of the header length, by the magic bytes of each version of the .npy format."""
_MAGIC_BYTES: Final = 8
"""Bytes of the magic string and the format version at the start of a .npy file."""
_MAX_HEADER_BYTES: Final = 4096
"""Bytes of the longest header that is read."""
_PIECE_BYTES: Final = 1 << 20
"""Bytes that are read from a file at once."""
_MAX_NAME_BYTES: Final = 0xFFFF - len(".npy")
"""Bytes of the longest array name: a zip archive stores the length of a name in two bytes."""
# numpy's own parser evaluates the header as a Python expression of unlimited depth.
_HEADER: Final = re.compile(
    r"\{'descr': '([<>|=]?[biufcVSU]\d{1,9})', 'fortran_order': (False|True), "
    r"'shape': \(((?:\d{1,19}+,?+ ?+){0,64}+)\), \} *\n"
)

_WRITTEN_BFLOAT16: Final = np.dtype("V2")
"""Element type that numpy writes for bfloat16, which the .npy format does not have."""


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Header of an array in a .npy file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool

    @property
    def size_bytes(self) -> int:
        """Size of all elements in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_array(
    path: str | os.PathLike[str], check: Callable[[ArrayHeader], None] | None = None
) -> NDArray[Any]:
    """Return the array of a ``.npy`` file.

    Untyped elements of two bytes are read as bfloat16. Object arrays (pickles) are refused.

    Args:
        path: the file.
        check: called with the header before any element is read; it refuses an array by raising.

    Raises:
        BindingError: the file cannot be opened, does not hold exactly one array, or is truncated or
            damaged.
    """
    with _reading(path, "a .npy array", "save"), open_file(path, Limit.MAX_ARRAYS_BYTES) as file:
        if _is_archive(file):
            raise ValueError("it is an archive of several arrays; give one array as .npy")
        header = _read_header(file, os.fstat(file.fileno()).st_size)
        if check is not None:
            check(header)
        return _read_elements(file, header)


def read_arrays(
    path: str | os.PathLike[str], wanted: Callable[[str, ArrayHeader], bool] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` archive by name; `read_array` says which elements are read.

    All headers are read before any elements. Memory is allocated only for bytes that the file has.

    Args:
        path: the file.
        wanted: returns whether the elements of an array are read, by its name and header. It is
            called for all arrays before any elements are read; it refuses an archive by raising.

    Raises:
        BindingError: the file cannot be opened, is not an archive, is truncated or damaged, or
            unpacks to more than ``MAX_ARRAYS_BYTES``.
    """
    with (
        _reading(path, "an .npz archive", "savez"),
        open_file(path, Limit.MAX_ARRAYS_BYTES) as file,
    ):
        if not _is_archive(file):
            raise ValueError("it is not a zip archive")
        try:
            return _read_archive(file, wanted)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as e:
            raise ValueError(f"it is damaged: {e}") from e


def _reading(path: str | os.PathLike[str], kind: str, writer: str) -> AbstractContextManager[None]:
    """Convert the errors of reading a file of arrays."""

    def refuse(error: Exception) -> BindingError:
        reason = getattr(error, "strerror", None) or f"{error}; write it with numpy.{writer}"
        return BindingError(f"{path} cannot be read as {kind}: {reason}")

    return convert_own(refuse, OSError, ValueError)


def write_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of an ``.npz`` archive of arrays with any names.

    `numpy.savez` takes the names as keyword arguments, so arrays cannot be named ``file`` or
    ``allow_pickle`` there.

    Raises:
        SmeltError: a zip archive cannot store the name of an array.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            _check_name(name)
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.external_attr = 0o600 << 16
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def _check_name(name: str) -> None:
    """Check that a zip archive can store a name. Raises SmeltError."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = -1
    if not 0 <= size <= _MAX_NAME_BYTES or "\0" in name:
        raise SmeltError(
            f"the array {name[:80]!r} cannot be saved in an .npz archive: its name must be UTF-8 "
            f"text of at most {_MAX_NAME_BYTES:,} bytes without NUL; rename it in the model"
        )


def _is_archive(file: BinaryIO) -> bool:
    is_archive = file.read(4) in _ZIP
    file.seek(0)
    return is_archive


class _BoundedArchiveFile:
    """File of a zip archive whose single reads are limited until the archive has been opened.

    zipfile reads the whole directory and creates an object for each entry before the caller can
    check how many there are.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.is_open = False
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes. Raises ValueError when the directory exceeds its limit."""
        if not self.is_open and size > Limit.MAX_DIRECTORY_BYTES.most:
            raise ValueError(f"its directory has {Limit.MAX_DIRECTORY_BYTES.excess(size)}")
        return self._file.read(size)


def _read_archive(
    file: BinaryIO, wanted: Callable[[str, ArrayHeader], bool] | None
) -> dict[str, NDArray[Any]]:
    """Read the wanted arrays of an open archive after checking all headers."""
    arrays: dict[str, NDArray[Any]] = {}
    bounded = _BoundedArchiveFile(file)
    with zipfile.ZipFile(bounded) as archive:
        bounded.is_open = True
        entries = archive.infolist()
        total = sum(entry.file_size for entry in entries)
        if total > Limit.MAX_ARRAYS_BYTES.most:
            raise ValueError(f"it unpacks to {Limit.MAX_ARRAYS_BYTES.excess(total)}")
        _check_entries(entries)
        selected: list[zipfile.ZipInfo] = []
        for entry in entries:
            if entry.compress_type not in _METHODS:
                raise ValueError(
                    f"the array {entry.filename[:80]!r} in it is compressed by a method that is "
                    "not supported"
                )
            with archive.open(entry) as member:
                header = _read_header(member, entry.file_size)
            if wanted is None or wanted(entry.filename.removesuffix(".npy"), header):
                selected.append(entry)
        for entry in selected:
            with archive.open(entry) as member:
                header = _read_header(member, entry.file_size)
                arrays[entry.filename.removesuffix(".npy")] = _read_elements(member, header)
    return arrays


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    """Check that names occur once and members do not overlap, before any is unpacked.

    Otherwise a small archive could list one large member thousands of times.
    """
    names: set[str] = set()
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        name = entry.filename.removesuffix(".npy")
        if name in names:
            raise ValueError(f"the array {name[:80]!r} is in it more than once")
        if entry.header_offset < end:
            raise ValueError(f"the array {name[:80]!r} in it overlaps another one")
        names.add(name)
        end = entry.header_offset + _LOCAL_HEADER_BYTES + entry.compress_size


def _read_header(file: IO[bytes], size: int) -> ArrayHeader:
    """Read the header of a .npy file and check that its array fills the file of ``size`` bytes."""
    length_bytes = _LENGTH_BYTES.get(file.read(_MAGIC_BYTES))
    if length_bytes is None:
        raise ValueError("it does not begin with the signature of a .npy file")
    length = int.from_bytes(file.read(length_bytes), "little")
    text = file.read(min(length, _MAX_HEADER_BYTES)).decode("latin-1")
    match = _HEADER.fullmatch(text)
    if match is None:
        raise ValueError("its header is damaged, or its elements are not real numbers")
    try:
        dtype = np.dtype(match[1])
    except TypeError as error:  # the kind has no type of that length_bytes, such as f3
        raise ValueError(f"its element type is not supported: {error}") from error
    if dtype == _WRITTEN_BFLOAT16:
        dtype = DType.BFLOAT16.numpy
    shape = tuple(int(extent) for extent in re.findall(r"\d+", match[3]))
    header = ArrayHeader(shape, dtype, is_fortran=match[2] == "True")
    if header.size_bytes != size - _MAGIC_BYTES - length_bytes - length:
        raise ValueError("its size does not match its array; it is truncated or damaged")
    return header


def _read_elements(file: IO[bytes], header: ArrayHeader) -> NDArray[Any]:
    """Read the elements after a header, piece by piece into the array."""
    data = np.empty(header.size_bytes, np.uint8)
    done = 0
    while done < data.size:
        piece = file.read(min(_PIECE_BYTES, data.size - done))
        if not piece:
            raise ValueError("it is truncated")
        data[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
    return np.ndarray(
        header.shape, header.dtype, data.data, order="F" if header.is_fortran else "C"
    )
