"""Arrays in numpy's files, whose headers are believed only as far as their bytes go."""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from smelt.errors import SmeltError
from smelt.types._dtype import DType
from smelt.types._files import open_file
from smelt.types._limits import Limit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO

    from numpy.typing import NDArray

_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What numpy writes; the others may ask for gigabytes to unpack a byte."""
_LENGTH_BYTES: Final = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4, b"\x93NUMPY\x03\x00": 4}
_MAGIC_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 4096
_PIECE_BYTES: Final = 1 << 20
_MAX_NAME_BYTES: Final = 0xFFFF - len(".npy")
"""A zip archive has two bytes for the length of a name."""
# numpy's own parser evaluates the text as an expression of Python, however deep it goes.
_HEADER: Final = re.compile(
    r"\{'descr': '([<>|=]?[biufcVSU]\d{1,9})', 'fortran_order': (False|True), "
    r"'shape': \(((?:\d{1,19},? ?){0,64})\), \} *\n"
)

_WRITTEN_BFLOAT16: Final = np.dtype("V2")
"""What numpy writes of bfloat16, of which its format knows nothing."""


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What a file says of an array before its elements."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_array(
    path: str | os.PathLike[str], check: Callable[[ArrayHeader], None] | None = None
) -> NDArray[Any]:
    """Return the array of a ``.npy`` file.

    Elements of two bytes without a type are bfloat16's. Objects, which are pickles, are never read.

    Args:
        path: the file.
        check: is given the header before any element is read. What it raises refuses the array.

    Raises:
        OSError: it cannot be opened; see `open_file`.
        ValueError: it holds no array, or several, or is cut off or damaged.
    """
    with open_file(path, Limit.MAX_ARRAYS_BYTES) as file:
        if _is_archive(file):
            raise ValueError("it is an archive of several arrays; give one array as .npy")
        header = _read_header(file, os.fstat(file.fileno()).st_size)
        if check is not None:
            check(header)
        return _read_elements(file, header)


def read_arrays(
    path: str | os.PathLike[str], wanted: Callable[[str, ArrayHeader], bool] | None = None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` archive by their names; their elements as `read_array`'s.

    Nothing is allocated that the file does not fill, and nothing before all headers are read.

    Args:
        path: the file.
        wanted: says of each array, by name and header, whether its elements are read; asked of all
            before any are. What it raises refuses the archive.

    Raises:
        OSError: it cannot be opened; see `open_file`.
        ValueError: it is not an archive, or is cut off, damaged or unpacks to too much.
    """
    with open_file(path, Limit.MAX_ARRAYS_BYTES) as file:
        if not _is_archive(file):
            raise ValueError("it is not a zip archive")
        try:
            return _read_archive(file, wanted)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as e:
            raise ValueError(f"it is damaged: {e}") from e


def write_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return an ``.npz`` archive of arrays, whatever their names are.

    numpy's own writer takes names as keyword arguments, of which ``file`` and ``allow_pickle`` are
    its own.

    Raises:
        SmeltError: a zip archive has no place for a name.
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
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = -1
    if not 0 <= size <= _MAX_NAME_BYTES or "\0" in name:
        raise SmeltError(
            f"the array {name[:80]!r} cannot be saved in an .npz archive: its name is not text of "
            f"at most {_MAX_NAME_BYTES:,} bytes without NUL; rename it in the model"
        )


def _is_archive(file: BinaryIO) -> bool:
    is_archive = file.read(4) in _ZIP
    file.seek(0)
    return is_archive


class _BoundedDirectory:
    """A zip archive's file: until it is open, nothing larger than a directory may be is read.

    zipfile reads the whole directory, and makes objects of it, before anybody can count them.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.is_open = False
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes. Raises ValueError: they are too many."""
        if not self.is_open and size > Limit.MAX_DIRECTORY_BYTES.most:
            raise ValueError(f"its directory has {Limit.MAX_DIRECTORY_BYTES.excess(size)}")
        return self._file.read(size)


def _read_archive(
    file: BinaryIO, wanted: Callable[[str, ArrayHeader], bool] | None
) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    bounded = _BoundedDirectory(file)
    with zipfile.ZipFile(bounded) as archive:
        bounded.is_open = True
        entries = archive.infolist()
        total = sum(entry.file_size for entry in entries)
        if total > Limit.MAX_ARRAYS_BYTES.most:
            raise ValueError(f"it unpacks to {Limit.MAX_ARRAYS_BYTES.excess(total)}")
        taken: list[zipfile.ZipInfo] = []
        for entry in entries:
            if entry.compress_type not in _METHODS:
                raise ValueError(
                    f"{entry.filename[:80]!r} in it uses an unknown compression method"
                )
            with archive.open(entry) as member:
                header = _read_header(member, entry.file_size)
            if wanted is None or wanted(entry.filename.removesuffix(".npy"), header):
                taken.append(entry)
        for entry in taken:
            with archive.open(entry) as member:
                header = _read_header(member, entry.file_size)
                arrays[entry.filename.removesuffix(".npy")] = _read_elements(member, header)
    return arrays


def _read_header(file: IO[bytes], size: int) -> ArrayHeader:
    """The header of an array's file of ``size`` bytes; it must ask for just these."""
    width = _LENGTH_BYTES.get(file.read(_MAGIC_BYTES))
    if width is None:
        raise ValueError("it is not a .npy array")
    length = int.from_bytes(file.read(width), "little")
    text = file.read(min(length, _MAX_HEADER_BYTES)).decode("latin-1")
    found = _HEADER.fullmatch(text)
    if found is None:
        raise ValueError("its header is damaged, or its elements are not real numbers")
    try:
        dtype = np.dtype(found[1])
    except TypeError as error:  # a kind of numbers in a width that it has not
        raise ValueError(f"its element type is not supported: {error}") from error
    if dtype == _WRITTEN_BFLOAT16:
        dtype = DType.BFLOAT16.numpy
    shape = tuple(int(extent) for extent in re.findall(r"\d+", found[3]))
    header = ArrayHeader(shape, dtype, is_fortran=found[2] == "True")
    if header.size_bytes != size - _MAGIC_BYTES - width - length:
        raise ValueError("its size does not match its array; it is truncated or damaged")
    return header


def _read_elements(file: IO[bytes], header: ArrayHeader) -> NDArray[Any]:
    """The array whose elements follow; what is there is read piece by piece into its place."""
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
