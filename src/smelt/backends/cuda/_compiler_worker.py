"""A process that compiles kernels: one request after another on its input, replies on its output.

A *frame* is a length and that many bytes. A request is JSON: the kernel, its text, the capability
of the GPU. A reply is a byte that says how it went, then the kernel's record or the reason. What
the compiler itself prints goes to the process's error stream.
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
"""What a worker says first."""
DONE: Final = b"+"
REFUSED: Final = b"-"
_LENGTH: Final = struct.Struct("<I")


def write_frame(file: IO[bytes], content: bytes) -> None:
    """Send one frame."""
    file.write(_LENGTH.pack(len(content)) + content)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes | None:
    """The next frame; None when the other side is gone."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = file.read(size)
    return content if len(content) == size else None


def request(kernel: KernelSpec, text: str, target: CudaTarget) -> bytes:
    """What a worker is asked."""
    return json.dumps([kernel.family, kernel.parameters, text, target.capability]).encode()


def answer(asked: bytes) -> bytes:
    """What a worker replies."""
    family, listed, text, capability = json.loads(asked)
    parameters: Parameters = tuple((str(name), as_json(value)) for name, value in listed)
    kernel = KernelSpec(family, parameters)
    try:
        return DONE + compile_kernel(kernel, text, CudaTarget(capability)).to_bytes()
    except (BuildError, MissingExtraError) as error:
        return REFUSED + str(error).encode()


def main(folder: str) -> None:
    """Answer requests until there are no more; the compiler may write to ``folder``."""
    keep_compiled_in(folder)
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a compiler that prints must not break a frame
    sys.stdout = sys.stderr
    write_frame(replies, READY)
    while (asked := read_frame(requests)) is not None:
        write_frame(replies, answer(asked))
