"""How kernels for GPUs lie in an engine's code: a cubin, and what its launches need to know.

A *record* is two lengths, that many bytes of JSON and of a cubin, and zeros up to a multiple of 16.
Where a library is called instead of a kernel there is no cubin: the JSON names the library.
The engine's table of symbols says where each kernel's records start: one for every architecture
that the engine is for, in the order in which its fingerprint names them.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.devices.cuda._library_calls import LIBRARIES, LibraryCall
from smelt.errors import EngineFormatError
from smelt.types import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ABI_VERSION: Final = 3
"""Changes with records, and with how launches pass their arguments."""
_LENGTHS: Final = struct.Struct("<II")
_ALIGNMENT_BYTES: Final = 16
_FIRST_EXACT: Final = 90
"""From this capability on code is for one architecture alone."""
_MAX_TEXT_BYTES: Final = 1 << 14
_MAX_THREADS: Final = 1024
_MAX_BESIDE: Final = 8
"""Blocks of a cluster that every GPU with clusters can hold."""
_MAX_SHARED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A compiled kernel as data."""

    entry: str
    """Name of its function in the cubin."""
    cubin: bytes
    threads: int
    """Threads of a block."""
    dynamic_shared_bytes: int
    scratch_words: int = 0
    """Words of zero that it takes behind its arguments: the compiler's scratch pointers."""
    supports_pdl: bool = False
    """Whether it may start before the launch before it has ended."""
    cluster: int = 1
    """Blocks that must run at the same time, because they wait for each other."""

    def to_bytes(self) -> bytes:
        """The kernel's record."""
        fields = asdict(self)
        del fields["cubin"]
        return _record(fields, self.cubin)

    @staticmethod
    def from_bytes(
        code: bytes | memoryview, offset: int, architecture_index: int = 0
    ) -> CudaKernel:
        """Read the record at an offset of the engine's code.

        Args:
            code: the engine's.
            offset: where the kernel's records start.
            architecture_index: which of them, for an engine of several architectures.

        Raises:
            EngineFormatError: it is truncated or malformed, or a library's.
        """
        kernel = read_record(code, offset, architecture_index)
        if isinstance(kernel, LibraryCall):
            raise EngineFormatError("the kernel record describes a library call, not a kernel")
        return kernel


def call_to_bytes(call: LibraryCall) -> bytes:
    """The record of a library call."""
    return _record({"library": call.provider, **call.to_fields()}, b"")


def read_record(
    code: bytes | memoryview, offset: int, architecture_index: int = 0
) -> CudaKernel | LibraryCall:
    """Read the record at an offset of the engine's code; `CudaKernel.from_bytes` says more.

    Raises:
        EngineFormatError: it is truncated or malformed.
    """
    view = memoryview(code)
    try:
        for _ in range(architecture_index):
            offset = _parts(view, offset)[-1]
        text, cubin, _ = _parts(view, offset)
        fields: Any = parse_json(bytes(text))
        if type(fields) is not dict:
            raise EngineFormatError("a kernel's record has no fields")
        fields = cast("dict[str, Any]", fields)
        if "library" not in fields:
            return _checked(fields, cubin)
        if (name := fields.pop("library")) not in LIBRARIES or cubin:
            raise EngineFormatError(f"there is no library {name!r}")
        return LIBRARIES[name].read(fields)
    except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise EngineFormatError(f"a kernel's record is malformed: {error}") from error


def matching_architecture(built_for: Sequence[str], capability: tuple[int, int]) -> int | None:
    """Which of an engine's architectures a GPU runs best; None when it runs none.

    Code for sm_90 and newer uses what only that very architecture has. Older code runs on GPUs of
    the same major number and the same or a larger minor one.
    """
    major, minor = capability
    best = -1
    found = None
    for architecture_index, name in enumerate(built_for):
        number = int(name.removeprefix("sm_")) if name.removeprefix("sm_").isdecimal() else 0
        runs = number == 10 * major + minor
        if number < _FIRST_EXACT:
            runs = number // 10 == major and number % 10 <= minor
        if runs and number > best:
            best, found = number, architecture_index
    return found


def _record(fields: Mapping[str, Any], cubin: bytes) -> bytes:
    text = json.dumps(fields, sort_keys=True).encode()
    record = _LENGTHS.pack(len(text), len(cubin)) + text + cubin
    return record + bytes(-len(record) % _ALIGNMENT_BYTES)


def _parts(view: memoryview, offset: int) -> tuple[memoryview, memoryview, int]:
    """A record's text and cubin, and where the next record starts."""
    text_size, cubin_size = _LENGTHS.unpack_from(view, offset)
    start = offset + _LENGTHS.size
    middle, end = start + text_size, start + text_size + cubin_size
    if offset < 0 or end > len(view):
        raise EngineFormatError("a kernel's record reaches beyond the engine's code")
    if text_size > _MAX_TEXT_BYTES:
        raise EngineFormatError(f"a kernel's record says that its text has {text_size} bytes")
    after = end + (offset - end) % _ALIGNMENT_BYTES
    return view[start:middle], view[middle:end], after


def _whole(value: object) -> int:
    """A whole number of a record: infinity and fractions are JSON, too, and true is one to Python.

    Raises TypeError.
    """
    if type(value) is not int:
        raise TypeError(f"{str(value)[:40]!r} is not an integer")
    return value


def _checked(fields: Any, cubin: memoryview) -> CudaKernel:
    known = cast("Mapping[str, Any]", fields)
    kernel = CudaKernel(
        entry=str(known["entry"]),
        cubin=b"",
        threads=_whole(known["threads"]),
        dynamic_shared_bytes=_whole(known["dynamic_shared_bytes"]),
        scratch_words=_whole(known["scratch_words"]),
        supports_pdl=bool(known["supports_pdl"]),
        cluster=_whole(known["cluster"]),
    )
    if not 0 < kernel.threads <= _MAX_THREADS:
        raise EngineFormatError(
            f"{kernel.entry}: a block of {kernel.threads} threads is not possible"
        )
    if not 0 <= kernel.dynamic_shared_bytes <= _MAX_SHARED_BYTES:
        raise EngineFormatError(
            f"{kernel.entry}: {kernel.dynamic_shared_bytes} bytes of shared memory are not possible"
        )
    if not 1 <= kernel.cluster <= _MAX_BESIDE:
        raise EngineFormatError(
            f"{kernel.entry}: a cluster of {kernel.cluster} blocks is not possible"
        )
    if not 0 <= kernel.scratch_words <= 2:
        raise EngineFormatError(
            f"{kernel.entry}: {kernel.scratch_words} words of scratch memory are not possible"
        )
    # Copied last: of a file of strangers each kernel may claim all code, and be refused.
    return replace(kernel, cubin=bytes(cubin))
