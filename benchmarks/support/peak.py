"""The processor's peak, measured: a generated loop of nothing but independent multiply-adds."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.backends.cpu import compile_ir, host_target, link
from smelt.devices.cpu import MappedCode

if TYPE_CHECKING:
    from smelt.backends.cpu import CpuTarget

_CHAINS: Final = 16
"""Enough to hide the latency of every processor's multiply-add, few enough for its registers."""
_ROUNDS: Final = 2_000_000
"""Some milliseconds: a thread's start does not count beside them."""


@dataclass(frozen=True, slots=True)
class _Instruction:
    """A multiply-add of LLVM's, on vectors."""

    name: str
    sum: str
    """Type of what it adds to and gives."""
    unit: str
    """Type of one factor."""
    count: int
    """Products of one instruction."""
    seed: str
    """Makes a factor of the number of rounds, so that nothing is known when it is compiled."""

    @property
    def factors(self) -> str:
        """Type of the factors."""
        return f"<{self.count} x {self.unit}>"

    def call(self, total: str) -> str:
        """Return the call that adds to ``total``; only the plain one takes the sum last."""
        factors, added = f"{self.factors} %x, {self.factors} %x", f"{self.sum} {total}"
        operands = f"{factors}, {added}" if ".fma." in self.name else f"{added}, {factors}"
        return f"call {self.sum} {self.name}({operands})"

    def declaration(self) -> str:
        """Return the declaration."""
        return "declare " + self.call("").removeprefix("call ").replace("%x", "")


def _instruction(dtype: str, target: CpuTarget) -> _Instruction:
    wide = target.vector_bits == 512
    if dtype == "bfloat16" and wide and target.has("avx512bf16"):
        name, seed = "@llvm.x86.avx512bf16.dpbf16ps.512", "uitofp i64 %rounds to bfloat"
        return _Instruction(name, "<16 x float>", "bfloat", 32, seed)
    if dtype == "int8" and wide and target.has("avx512vnni"):
        name, seed = "@llvm.x86.avx512.vpdpbusd.512", "trunc i64 %rounds to i8"
        return _Instruction(name, "<16 x i32>", "i8", 64, seed)
    lanes = target.vector_bits // 32
    name, seed = f"@llvm.fma.v{lanes}f32", "uitofp i64 %rounds to float"
    return _Instruction(name, f"<{lanes} x float>", "float", lanes, seed)


class PeakLoop:
    """The loop for one dtype; a processor that has no instruction for it computes float32."""

    def __init__(self, dtype: str = "float32") -> None:
        """Generate it for this machine."""
        target = host_target()
        multiply = _instruction(dtype, target)
        image, symbols = link([compile_ir(_loop(multiply), target)])
        self._code = MappedCode(image)
        signature = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
        self._loop = signature(self._code.address + dict(symbols)["peak"])
        self._gflop = 2e-9 * multiply.count * _CHAINS * _ROUNDS

    def run(self, threads: int = 1) -> float:
        """Return 1e9 operations a second, all threads together, in one short run."""
        others = [threading.Thread(target=self._loop, args=(_ROUNDS,)) for _ in range(threads - 1)]
        begin = time.perf_counter()
        for other in others:
            other.start()
        self._loop(_ROUNDS)
        for other in others:
            other.join()
        return self._gflop * threads / (time.perf_counter() - begin)


def _loop(multiply: _Instruction) -> str:
    factors, kind = multiply.factors, multiply.sum
    chains = range(_CHAINS)
    phis = [f" %a{n} = phi {kind} [zeroinitializer, %entry], [%n{n}, %body]" for n in chains]
    sums = [f" %n{n} = {multiply.call(f'%a{n}')}" for n in chains]
    # Whatever the sums are: they must only look wanted.
    lanes = f"{kind.partition(' x ')[0]} x i32>"
    bits = [f" %b{n} = bitcast {kind} %n{n} to {lanes}" for n in chains]
    mask = f"<{multiply.count} x i32>"
    total = [f" %t{n} = xor {lanes} %{f't{n - 1}' if n else 'b0'}, %b{n}" for n in chains]
    return "\n".join(
        [
            multiply.declaration(),
            "define i32 @peak(i64 %rounds) {",
            "entry:",
            f" %s = {multiply.seed}",
            f" %x0 = insertelement {factors} zeroinitializer, {multiply.unit} %s, i32 0",
            f" %x = shufflevector {factors} %x0, {factors} %x0, {mask} zeroinitializer",
            " br label %body",
            "body:",
            " %i = phi i64 [0, %entry], [%next, %body]",
            *phis,
            *sums,
            " %next = add i64 %i, 1",
            " %more = icmp ult i64 %next, %rounds",
            " br i1 %more, label %body, label %done",
            "done:",
            *bits,
            *total,
            f" %e = extractelement {lanes} %t{_CHAINS - 1}, i32 0",
            " ret i32 %e",
            "}",
        ]
    )
