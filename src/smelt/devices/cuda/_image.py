"""How kernels for GPUs lie in an engine's code: a cubin, and what its launches need to know.

A *record* is a length, that many bytes of JSON, and the cubin; the engine's table of symbols says
where each record starts.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.errors import EngineFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LENGTHS: Final = struct.Struct("<II")
_MOST_THREADS: Final = 1024
_MOST_SHARED_BYTES: Final = 1 << 20


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
    may_start_early: bool = False
    """Whether it may start before the launch before it has ended."""

    def to_bytes(self) -> bytes:
        """The kernel's record."""
        fields = asdict(self)
        del fields["cubin"]
        text = json.dumps(fields, sort_keys=True).encode()
        return _LENGTHS.pack(len(text), len(self.cubin)) + text + self.cubin

    @staticmethod
    def from_bytes(code: bytes | memoryview, offset: int) -> CudaKernel:
        """Read the record at an offset of the engine's code.

        Raises:
            EngineFormatError: it is truncated or malformed.
        """
        view = memoryview(code)
        try:
            text_size, cubin_size = _LENGTHS.unpack_from(view, offset)
            start = offset + _LENGTHS.size
            end = start + text_size + cubin_size
            if offset < 0 or end > len(view):
                raise EngineFormatError("a kernel's record reaches beyond the engine's code")
            fields = json.loads(bytes(view[start : start + text_size]))
            return _checked(fields, bytes(view[start + text_size : end]))
        except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
            raise EngineFormatError(f"a kernel's record is malformed: {error}") from error


def _checked(fields: Any, cubin: bytes) -> CudaKernel:
    known = cast("Mapping[str, Any]", fields)
    kernel = CudaKernel(
        entry=str(known["entry"]),
        cubin=cubin,
        threads=int(known["threads"]),
        dynamic_shared_bytes=int(known["dynamic_shared_bytes"]),
        scratch_words=int(known["scratch_words"]),
        may_start_early=bool(known["may_start_early"]),
    )
    if not 0 < kernel.threads <= _MOST_THREADS:
        raise EngineFormatError(f"{kernel.entry}: a block of {kernel.threads} threads")
    if not 0 <= kernel.dynamic_shared_bytes <= _MOST_SHARED_BYTES:
        raise EngineFormatError(
            f"{kernel.entry}: {kernel.dynamic_shared_bytes} bytes of shared memory"
        )
    if not 0 <= kernel.scratch_words <= 2:
        raise EngineFormatError(f"{kernel.entry}: {kernel.scratch_words} words of scratch")
    return kernel
