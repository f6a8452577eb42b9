"""Kernels that judge other kernels, for the tuner: how far results are off, and whether they move.

Operands are contiguous. Each program answers for a block with one float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._kernel_source import Source
from smelt.engine import KernelSpec, parameters
from smelt.types import DType

if TYPE_CHECKING:
    from smelt.engine import Json

RESULT_CHECK: Final = "result_check"
"""The family of these kernels."""
RESULT_CHECK_BLOCK: Final = 4096
"""Elements of a program."""


def error_kernel(dtype: DType) -> KernelSpec:
    """The largest difference between results and what is wanted, as float32.

    Operands: results, what is wanted in float32, an answer for each block; a scalar: the count.
    Infinite where one is not a number and the other is.
    """
    return _spec("error", (dtype, DType.FLOAT32, DType.FLOAT32))


def mismatch_kernel() -> KernelSpec:
    """Whether 32-bit words differ: 1 or 0.

    Operands: words, words, an answer for each block; a scalar: the count.
    """
    return _spec("change", (DType.INT32, DType.INT32, DType.FLOAT32))


def cache_flush_kernel() -> KernelSpec:
    """Reads memory, and so takes what else was in the cache out of it.

    Operands: words, an answer that is hardly ever given; a scalar: the count.
    """
    return _spec("flush", (DType.FLOAT32, DType.FLOAT32))


def _spec(what: str, dtypes: tuple[DType, ...]) -> KernelSpec:
    kinds: tuple[Json, ...] = tuple(d.value for d in dtypes)
    return KernelSpec(
        RESULT_CHECK,
        parameters(
            what=what,
            dtypes=kinds,
            aligned=(True,) * len(kinds),
            scalars=1,
            num_warps=8,
            num_stages=1,
        ),
    )


def write_result_check(kernel: KernelSpec) -> str:
    """The kernel's text."""
    s = Source(kernel)
    what = kernel["what"]
    s.line("block = tl.program_id(0)")
    s.line(f"i = block.to(tl.int64) * {RESULT_CHECK_BLOCK} + tl.arange(0, {RESULT_CHECK_BLOCK})")
    s.line("m = i < s0")
    s.line("a = tl.load(p0 + i, mask=m, other=0)")
    if what == "flush":
        s.line("total = tl.sum(a, 0)")
        with s.block("if total == 1.2345678e33:"):
            s.line("tl.store(p1, total)")
        return s.text()
    s.line("b = tl.load(p1 + i, mask=m, other=0)")
    if what == "change":
        s.line("far = (a != b).to(tl.float32)")
    else:
        s.line("a = a.to(tl.float32)")
        s.line("far = tl.abs(a - b)")
        s.line("far = tl.where((a == b) | ((a != a) & (b != b)), 0.0, far)")
        s.line("far = tl.where(far == far, far, float('inf'))")
    s.line("tl.store(p2 + block, tl.max(far, 0))")
    return s.text()
