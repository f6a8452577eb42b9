"""Kernels made of kernels: one that calls others, on memory of the worker's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends.cpu._emit import Emitter, Int, Reg

_WORD_BYTES: Final = 8


def call_subkernel(
    e: Emitter, symbol: str, frame: Reg, words: Sequence[Reg], chunks: tuple[Int, Int]
) -> None:
    """Call another kernel for some of its chunks.

    Args:
        e: where the call is.
        symbol: the kernel's name.
        frame: memory for its arguments.
        words: the arguments: addresses, then scalars.
        chunks: the first, and the one after the last.
    """
    for number, word in enumerate(words):
        e.store(word, e.at(frame, number * _WORD_BYTES), _WORD_BYTES)
    begin, end = (e.i64(chunk) for chunk in chunks)
    e.do(f"call void @{symbol}({frame}, {begin}, {end}, {e.scratch})")


def link_subkernels(whole: str, parts: Sequence[str]) -> str:
    """One module: every declaration once, the parts known to it alone.

    They stay functions of their own: their arguments are constant in each call, not between calls.
    """
    lines = whole.splitlines()
    for part in dict.fromkeys(parts):
        for line in part.splitlines():
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
