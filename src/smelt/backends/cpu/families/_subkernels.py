"""Kernels that call other kernels of the same module.

A fused launch runs several generated kernels one after the other on a worker's own scratch memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from smelt.backends.cpu._emit import Emitter, Int, Reg

_WORD_BYTES: Final = 8
"""Size in bytes of one word of a kernel's argument block."""


def call_subkernel(
    e: Emitter, symbol: str, frame: Reg, words: Sequence[Reg], chunks: tuple[Int, Int]
) -> None:
    """Write a call of another kernel for a range of its chunks.

    Args:
        e: emitter of the calling kernel.
        symbol: name of the called kernel.
        frame: address of the memory for its argument block.
        words: the arguments: operand addresses, then scalars.
        chunks: the first chunk, and the one after the last.
    """
    for number, word in enumerate(words):
        e.store(word, e.at(frame, number * _WORD_BYTES), _WORD_BYTES)
    begin, end = (e.i64(chunk) for chunk in chunks)
    e.do(f"call void @{symbol}({frame}, {begin}, {end}, {e.scratch})")


def link_subkernels(caller: str, subkernels: Sequence[str]) -> str:
    """Return one module with the calling kernel and its subkernels.

    Each declaration appears once, and the subkernels become internal functions. They are not
    inlined, because their argument blocks are constant within a call only: their loads are marked
    invariant.
    """
    lines = caller.splitlines()
    for subkernel in dict.fromkeys(subkernels):
        for line in subkernel.splitlines():
            if line.startswith("define void"):
                lines.append(
                    line.replace("define void", "define internal void", 1).replace(
                        "nounwind {", "nounwind noinline {"
                    )
                )
            else:
                lines.append(line)
    declared = sorted({line for line in lines if line.startswith("declare ")})
    return "\n".join([*declared, *(line for line in lines if line not in declared), ""])
