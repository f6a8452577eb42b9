"""Worker process of the compiler pool: reads requests from stdin and writes replies to stdout.

A *frame* is a 4-byte length and that many bytes. A request is JSON: the kernel, its text and the
capability of the GPU. A reply is a status byte, then the kernel's record or the error message. The
compiler's own output goes to stderr.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import IO, TYPE_CHECKING, Final

from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda._triton import compile_kernel, keep_compiled_in
from smelt.engine import KernelSpec, as_json
from smelt.errors import BuildError, MissingExtraError

if TYPE_CHECKING:
    from smelt.engine import Parameters

READY: Final = b"ready"
"""First frame of a worker."""
DONE: Final = b"+"
"""Status byte of a reply with a record."""
REFUSED: Final = b"-"
"""Status byte of a reply with an error message."""
_LENGTH: Final = struct.Struct("<I")
"""Length field of a frame."""


def write_frame(file: IO[bytes], content: bytes) -> None:
    """Write one frame."""
    file.write(_LENGTH.pack(len(content)) + content)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes | None:
    """Read the next frame; None at the end of the stream."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = file.read(size)
    return content if len(content) == size else None


def request(kernel: KernelSpec, text: str, target: CudaTarget) -> bytes:
    """Return a request to compile a kernel."""
    return json.dumps([kernel.family, kernel.parameters, text, target.capability]).encode()


def answer(payload: bytes) -> bytes:
    """Compile the kernel of a request and return the reply."""
    family, raw_parameters, text, capability = json.loads(payload)
    parameters: Parameters = tuple((str(name), as_json(value)) for name, value in raw_parameters)
    kernel = KernelSpec(family, parameters)
    try:
        return DONE + compile_kernel(kernel, text, CudaTarget(capability)).to_bytes()
    except (BuildError, MissingExtraError) as error:
        return REFUSED + str(error).encode()


def main(folder: str) -> None:
    """Answer requests until the end of stdin; the compiler may write to ``folder``."""
    keep_compiled_in(folder)
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the compiler's output must not mix with frames
    sys.stdout = sys.stderr
    write_frame(replies, READY)
    while (payload := read_frame(requests)) is not None:
        write_frame(replies, answer(payload))
