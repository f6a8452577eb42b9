"""Kernels that check other kernels for the tuner: maximum error, and differences between runs.

Operands are contiguous. Each program writes one float32 for its block of elements.
"""

from __future__ import annotations

from typing import Final

from smelt.backends.cuda._kernel_source import KernelWriter
from smelt.engine import KernelSpec, parameters
from smelt.types import DType, override

RESULT_CHECK: Final = "result_check"
"""Name of the kernel family."""
RESULT_CHECK_BLOCK: Final = 4096
"""Elements per program. Chosen without a measurement."""


def error_kernel(dtype: DType) -> KernelSpec:
    """Return the kernel that computes the largest absolute error of each block, as float32.

    Operands: results, expected results in float32, one error for each block. Scalar: the number of
    elements. The error is infinite where exactly one of the two is NaN.
    """
    return _spec("error", (dtype, DType.FLOAT32, DType.FLOAT32))


def mismatch_kernel() -> KernelSpec:
    """Return the kernel that tells whether 32-bit words differ, as 1 or 0 for each block.

    Operands: words, words, one result for each block. Scalar: the number of words.
    """
    return _spec("change", (DType.INT32, DType.INT32, DType.FLOAT32))


def cache_flush_kernel() -> KernelSpec:
    """Return the kernel that reads memory, and so evicts everything else from the L2 cache.

    Operands: words, a result that is almost never written. Scalar: the number of words.
    """
    return _spec("flush", (DType.FLOAT32, DType.FLOAT32))


def _spec(what: str, dtypes: tuple[DType, ...]) -> KernelSpec:
    """Return the spec of one of these kernels."""
    values = parameters(
        what=what,
        dtypes=tuple(d.value for d in dtypes),
        aligned=(True,) * len(dtypes),
        scalars=1,
        num_warps=8,
        num_stages=1,
    )
    return KernelSpec(RESULT_CHECK, values)


class ResultCheckWriter(KernelWriter):
    """Writer of a kernel that checks results."""

    @override
    def write(self) -> str:
        s, what, size = self.s, self.k["what"], RESULT_CHECK_BLOCK
        s.line("block = tl.program_id(0)")
        s.line(f"i = block.to(tl.int64) * {size} + tl.arange(0, {size})")
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
