"""Kernel records: compiled GPU kernels and library calls as stored in an engine's code.

A record consists of two lengths, the JSON fields and the cubin of these lengths, and zeros up to a
multiple of 16 bytes. The record of a library call has no cubin; its JSON names the library. The
engine's symbol table gives the offset of each kernel's records: one for each architecture of the
engine, in the order of the fingerprint.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from smelt.devices.cuda._library_table import LIBRARIES
from smelt.devices.cuda._vendor_libraries import LibraryCall
from smelt.errors import EngineFormatError
from smelt.types import is_json_object, parse_json, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ABI_VERSION: Final = 3
"""Version of the record format and of the argument convention of launches."""
_LENGTHS: Final = struct.Struct("<II")
_ALIGNMENT_BYTES: Final = 16
_FIRST_EXACT: Final = 90
"""From sm_90 on, code runs on exactly one architecture (arch-specific features)."""
_MAX_TEXT_BYTES: Final = 1 << 14
_LIMITS: Final = {
    "threads": ("threads in a block", 1, 1024),
    "dynamic_shared_bytes": ("bytes of dynamic shared memory", 0, 1 << 20),
    # Every GPU with clusters supports eight blocks.
    "cluster": ("blocks in a cluster", 1, 8),
    "scratch_words": ("argument words for scratch addresses", 0, 2),
}
"""For each number of a kernel, what it counts, and its least and largest value."""


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A compiled kernel as data."""

    entry: str
    """Name of the kernel function in the cubin."""
    cubin: bytes
    threads: int
    """Threads per block."""
    dynamic_shared_bytes: int
    scratch_words: int = 0
    """Number of zero words behind the arguments: null scratch pointers of the compiler."""
    supports_pdl: bool = False
    """Whether its code supports programmatic dependent launch (PDL)."""
    cluster: int = 1
    """Blocks per cluster; they run at the same time and wait for each other."""

    def to_bytes(self) -> bytes:
        """Return the kernel's record."""
        fields = asdict(self)
        del fields["cubin"]
        return _record(fields, self.cubin)

    @staticmethod
    def from_bytes(
        code: bytes | memoryview, offset: int, architecture_index: int = 0
    ) -> CudaKernel:
        """Read the record at an offset of the engine's code.

        Args:
            code: the engine's code.
            offset: offset of the kernel's first record.
            architecture_index: index of the record, for an engine of several architectures.

        Raises:
            EngineFormatError: the record is truncated, malformed, or that of a library call.
        """
        kernel = read_record(code, offset, architecture_index)
        if isinstance(kernel, LibraryCall):
            raise EngineFormatError("the kernel record describes a library call, not a kernel")
        return kernel


def call_to_bytes(call: LibraryCall) -> bytes:
    """Return the record of a library call."""
    return _record({"library": call.provider, **call.to_fields()}, b"")


def read_record(
    code: bytes | memoryview, offset: int, architecture_index: int = 0
) -> CudaKernel | LibraryCall:
    """Read a record; the arguments are those of `CudaKernel.from_bytes`.

    Raises:
        EngineFormatError: the record is truncated or malformed.
    """
    view = memoryview(code)
    try:
        for _ in range(architecture_index):
            offset = _parts(view, offset)[-1]
        text, cubin, _ = _parts(view, offset)
        fields = parse_json(bytes(text))
        if not is_json_object(fields):
            raise EngineFormatError("a kernel's record is not a JSON object")
        if "library" not in fields:
            return _kernel_from_fields(fields, cubin)
        name = fields.pop("library")
        if not isinstance(name, str) or name not in LIBRARIES:
            raise EngineFormatError(f"a kernel's record calls the unknown library {shown(name)}")
        if cubin:
            raise EngineFormatError(f"a kernel's record calls {name} but also has machine code")
        return LIBRARIES[name].read(fields)
    except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise EngineFormatError(f"a kernel's record is malformed: {error}") from error


def matching_architecture(built_for: Sequence[str], capability: tuple[int, int]) -> int | None:
    """Return the index of the newest architecture that a GPU can run; None if there is none.

    Code for sm_90 and newer uses architecture-specific features and runs on that architecture only.
    Older code runs on GPUs of the same major and the same or a larger minor number.
    """
    major, minor = capability
    texts = (name.removeprefix("sm_") for name in built_for)
    numbers = [int(text) if text.isdecimal() else 0 for text in texts]
    runnable = [
        number
        for number in numbers
        if number // 10 == major
        and (number % 10 == minor or (number < _FIRST_EXACT and number % 10 < minor))
    ]
    return numbers.index(max(runnable)) if runnable else None


def _record(fields: Mapping[str, object], cubin: bytes) -> bytes:
    text = json.dumps(fields, sort_keys=True).encode()
    record = _LENGTHS.pack(len(text), len(cubin)) + text + cubin
    return record + bytes(-len(record) % _ALIGNMENT_BYTES)


def _parts(view: memoryview, offset: int) -> tuple[memoryview, memoryview, int]:
    """Return a record's text, its cubin, and the offset of the next record."""
    text_size, cubin_size = _LENGTHS.unpack_from(view, offset)
    start = offset + _LENGTHS.size
    middle, end = start + text_size, start + text_size + cubin_size
    if offset < 0 or end > len(view):
        raise EngineFormatError("a kernel's record reaches beyond the engine's code")
    if text_size > _MAX_TEXT_BYTES:
        raise EngineFormatError(
            f"a kernel's record has a JSON text of {text_size} bytes; at most {_MAX_TEXT_BYTES} "
            "are allowed"
        )
    after = end + (offset - end) % _ALIGNMENT_BYTES
    return view[start:middle], view[middle:end], after


def _require_integer(value: object) -> int:
    """Return an integer field. Raises TypeError: it is another JSON value, such as true or 1.5."""
    if type(value) is not int:
        raise TypeError(f"{str(value)[:40]!r} is not an integer")
    return value


def _kernel_from_fields(fields: Mapping[str, object], cubin: memoryview) -> CudaKernel:
    entry, is_pdl = str(fields["entry"]), bool(fields["supports_pdl"])
    numbers = {field: _require_integer(fields[field]) for field in _LIMITS}
    for field, (name, least, most) in _LIMITS.items():
        if not least <= numbers[field] <= most:
            raise EngineFormatError(
                f"the record of kernel {entry} is damaged: it has {numbers[field]} {name}, but "
                f"{least} to {most} are allowed; copy the engine again, or build it again"
            )
    # Copied last: in an untrusted file, each of many invalid records could span all the code.
    return CudaKernel(entry, bytes(cubin), supports_pdl=is_pdl, **numbers)
