"""Run CPU kernels on memory between guard pages, cut into chunks and spread over threads.

Two ways in: `run_ir` for one function on arrays, `run_launches` for what a family's ``lower``
returned on `buffers`. Inputs are write-protected meanwhile; a kernel that reads or writes beyond a
buffer dies on the spot.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.backends.cpu import compile_ir, host_target, link
from smelt.devices.cpu import MappedCode, protect
from smelt.types import evaluate_dim
from tests.support.guarded_memory import GuardedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.backends.cpu import CpuTarget
    from smelt.devices.cpu import CpuAllocation
    from smelt.engine import KernelSpec, Launch, View

_PAGE = 4096
FILL = 0xA5
"""As floats tiny, as integers odd: never what a test expects."""
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class GuardedBuffer:
    """Bytes between guard pages; ends at one (``at_end``) or starts behind one."""

    def __init__(
        self, size_bytes: int, *, at_end: bool = True, align: int = 64, fill: int = FILL
    ) -> None:
        self._memory: CpuAllocation = GuardedMemory(at_end=at_end, align=align).allocate(
            size_bytes, "test"
        )
        self.size_bytes = size_bytes
        self.address = self._memory.address
        self._memory.bytes[:] = fill

    @property
    def bytes(self) -> NDArray[np.uint8]:
        memory: NDArray[np.uint8] = self._memory.bytes
        return memory

    @classmethod
    def holding(cls, array: NDArray[Any], *, at_end: bool = True, align: int = 64) -> GuardedBuffer:
        """A buffer that holds the elements of ``array``, contiguous."""
        buffer = cls(array.nbytes, at_end=at_end, align=align)
        buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """The buffer's memory as an array, not copied."""
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        array: NDArray[Any] = self.bytes[offset : offset + count].view(dtype).reshape(shape)
        return array

    def view(self, view: View, values: Mapping[str, int] | None = None) -> NDArray[Any]:
        """The elements that a plan's view on this buffer names, not copied."""
        known = values or {}
        start = evaluate_dim(view.offset, known)
        width = view.dtype.size_bytes
        return np.lib.stride_tricks.as_strided(
            self.bytes[start : start + width].view(view.dtype.numpy),
            [evaluate_dim(d, known) for d in view.shape],
            [evaluate_dim(d, known) * width for d in view.strides],
        )

    def seal(self, *, sealed: bool) -> None:
        """Forbid, or allow, writing."""
        start = self.address // _PAGE * _PAGE
        end = -(-(self.address + max(self.size_bytes, 1)) // _PAGE) * _PAGE
        protect(start, end - start, writable=not sealed)


@functools.lru_cache(maxsize=512)
def load_function(ir_text: str, symbol: str, target: CpuTarget | None = None) -> Any:
    """Compile, link and map ``ir_text``; return the kernel ``symbol`` as a callable."""
    image, symbols = link([compile_ir(ir_text, target or host_target())])
    code = MappedCode(image)
    function: Any = _KERNEL(code.address + dict(symbols)[symbol])
    function.code = code  # mapped as long as it can be called
    return function


def call_kernel(
    function: Any,
    words: Sequence[int],
    *,
    chunks: int,
    scratch_bytes: int = 0,
    workers: int = 1,
    piece: int | None = None,
    fill: int = FILL,
) -> None:
    """Run every chunk on ``workers`` threads, ``piece`` chunks a call, last pieces first.

    Their scratch memory is full of ``fill`` before.
    """
    arguments = np.array([word % (1 << 64) for word in words] or [0], np.uint64)
    size = piece or max(1, -(-chunks // max(1, workers)))
    pieces = [(at, min(at + size, chunks)) for at in range(0, chunks, size)]
    lock = threading.Lock()

    def work() -> None:
        scratch = GuardedBuffer(scratch_bytes, fill=fill)
        while True:
            with lock:
                if not pieces:
                    return
                begin, end = pieces.pop()
            function(arguments.ctypes.data, begin, end, scratch.address)

    threads = [threading.Thread(target=work) for _ in range(workers - 1)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()


def run_ir(
    ir_text: str,
    symbol: str,
    arrays: Sequence[NDArray[Any]],
    *,
    scalars: Sequence[int] = (),
    chunks: int = 1,
    scratch_bytes: int = 0,
    workers: int = 1,
    piece: int | None = None,
    writes: Sequence[int] = (-1,),
    at_end: bool = True,
    target: CpuTarget | None = None,
) -> list[NDArray[Any]]:
    """Run one kernel on copies of ``arrays``; return what they hold afterwards.

    ``writes`` are the positions of the arrays that the kernel writes, the last by default.
    """
    buffers = [GuardedBuffer.holding(array, at_end=at_end) for array in arrays]
    written = {position % len(arrays) for position in writes}
    for position, buffer in enumerate(buffers):
        buffer.seal(sealed=position not in written)
    call_kernel(
        load_function(ir_text, symbol, target),
        [*(buffer.address for buffer in buffers), *scalars],
        chunks=chunks,
        scratch_bytes=scratch_bytes,
        workers=workers,
        piece=piece,
    )
    return [
        buffer.array(array.dtype, array.shape).copy()
        for buffer, array in zip(buffers, arrays, strict=True)
    ]


def run_launches(
    generate: Callable[[KernelSpec], str],
    launches: Sequence[Launch],
    buffers: Sequence[GuardedBuffer],
    *,
    values: Mapping[str, int] | None = None,
    workers: int = 1,
    piece: int | None = None,
    target: CpuTarget | None = None,
    fill: int = FILL,
) -> None:
    """Run launches in order; their views name ``buffers`` by position.

    ``generate`` gives a kernel's LLVM IR, as ``Family.generate`` does. Buffers that no launch
    writes are write-protected, and every view must lie inside its buffer.
    """
    known = dict(values or {})
    written = {launch.operands[i].buffer for launch in launches for i in launch.writes}
    for number, buffer in enumerate(buffers):
        buffer.seal(sealed=number not in written)
    for launch in launches:
        for view in launch.operands:
            low, high = view.footprint(known)
            if low == high:  # it touches nothing, wherever it is
                continue
            assert low >= 0, (launch.kernel, view)
            assert high <= buffers[view.buffer].size_bytes, (launch.kernel, view)
        addresses = [
            buffers[view.buffer].address + evaluate_dim(view.offset, known)
            for view in launch.operands
        ]
        call_kernel(
            load_function(generate(launch.kernel), launch.kernel.symbol, target),
            [*addresses, *(evaluate_dim(scalar, known) for scalar in launch.scalars)],
            chunks=evaluate_dim(launch.chunks, known),
            scratch_bytes=launch.scratch_bytes,
            workers=workers,
            piece=piece,
            fill=fill,
        )
    for buffer in buffers:
        buffer.seal(sealed=False)
