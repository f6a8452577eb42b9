"""Whether two ways of computing a graph agree, as far as its numbers are well conditioned at all.

Rounding differs between an engine and the references. Where a graph amplifies it (a rounding at a
tie, a difference of equals, an index chosen by comparison), the reference itself moves as much when
its inputs and every intermediate result move by a last bit; such results are not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from smelt.errors import SmeltError
from smelt.interp import interpret
from smelt.types import is_float_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.ir import Graph, Node

Array = np.ndarray[Any, Any]

_TOLERANCES: Final = {"bfloat16": 3e-2, "float16": 5e-3, "float32": 1e-4, "float64": 1e-4}
"""Of an output's largest magnitude."""
_NOISE: Final = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-20, "float64": 2.0**-20}
_AMPLIFIED: Final = 100.0
"""So many times what noise changes may differ."""
_TRIES: Final = 5
"""The first two move all numbers in one direction, by which each rounding at a tie moves."""
_VAST: Final = 1e15
"""Numbers that may overflow in one order of summation and not in another."""


class _Noise:
    """Moves every number by about a last bit, and notes how large they become."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._range = {0: (1, 1), 1: (-1, -1)}.get(seed, (-1, 1))
        self.is_vast = False

    def will_run(self, node: Node, inputs: Sequence[Array | None]) -> None:
        del node
        self._look(inputs)

    def did_run(self, node: Node, outputs: Sequence[Array]) -> None:
        del node
        self._look(outputs)
        for array in outputs:
            self.shake(array)

    def _look(self, arrays: Sequence[Array | None]) -> None:
        for array in arrays:
            if array is not None and is_float_dtype(array.dtype) and array.size:
                with np.errstate(all="ignore"):
                    largest = float(np.abs(array.astype(np.float64)).max())
                self.is_vast = self.is_vast or not largest < _VAST

    def shake(self, array: Array) -> None:
        if is_float_dtype(array.dtype) and array.size and array.flags.writeable:
            size = _NOISE[array.dtype.name]
            low, high = (1 + end * size for end in self._range)
            noise = cast("Array", self._rng.uniform(low, high, array.shape))
            with np.errstate(all="ignore"):
                array[...] = (array * noise).astype(array.dtype)


def disagreement(
    graph: Graph,
    inputs: Mapping[str, Array],
    mine: Mapping[str, Array],
    wanted: Mapping[str, Array],
) -> str | None:
    """Which output differs from what is wanted, and how; None where none does."""
    wrong = [
        (name, why) for name, array in wanted.items() if (why := difference(mine[name], array))
    ]
    if not wrong:
        return None
    spread = _spread(graph, inputs, wanted)
    if spread is None:
        return None
    for name, why in wrong:
        if why := difference(mine[name], wanted[name], spread[name]) or "":
            return f"{name}: {why}"
    return None


def difference(mine: Array, wanted: Array, spread: Array | None = None) -> str | None:
    """Why an array is not what is wanted; None when it is.

    Args:
        mine: what was computed.
        wanted: what is right.
        spread: how far each element moves with noise, infinite where it is anything.
    """
    if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
        return f"{mine.dtype}{list(mine.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    allowed: Array = np.zeros(wanted.shape) if spread is None else _AMPLIFIED * spread
    wrong: Array
    if wanted.dtype.kind in "iub":
        wrong = (mine != wanted) & (allowed == 0)
        return _told(mine, wanted, wrong)
    a, b = mine.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    bound = _TOLERANCES[wanted.dtype.name] * scale + allowed + 1e-30
    with np.errstate(all="ignore"):
        wrong = np.where(
            finite, ~(np.abs(a - b) <= bound), ~((a == b) | (np.isnan(a) & np.isnan(b)))
        )
    return _told(mine, wanted, wrong & ~np.isinf(allowed))


def _told(mine: Array, wanted: Array, wrong: Any) -> str | None:
    if not wrong.any():
        return None
    at = tuple(int(k[0]) for k in np.nonzero(wrong)) if wrong.ndim else ()
    return (
        f"{int(np.count_nonzero(wrong))} of {wrong.size} elements differ; "
        f"at {list(at)} {mine[at]!r}, not {wanted[at]!r}"
    )


def _spread(
    graph: Graph, inputs: Mapping[str, Array], wanted: Mapping[str, Array]
) -> dict[str, Array] | None:
    """How far noise moves each element; None where nothing can be said."""
    spread: dict[str, Array] = {name: np.zeros(a.shape) for name, a in wanted.items()}
    for seed in range(_TRIES):
        noise = _Noise(seed)
        copies = {name: np.array(array, copy=True) for name, array in inputs.items()}
        for array in copies.values():
            noise.shake(array)
        try:
            moved = interpret(graph, copies, listeners=[noise])
        except SmeltError:
            return None  # noise alone decides whether it runs
        if noise.is_vast or any(moved[n].shape != a.shape for n, a in wanted.items()):
            return None
        for name, array in wanted.items():
            with np.errstate(all="ignore"):
                gap = np.abs(moved[name].astype(np.float64) - array.astype(np.float64))
            alike = (moved[name] == array) | (
                np.isnan(moved[name]) & np.isnan(array) if is_float_dtype(array.dtype) else False
            )
            if not is_float_dtype(array.dtype):
                gap = np.where(alike, 0.0, np.inf)
            spread[name] = np.maximum(
                spread[name], np.where(alike, 0.0, np.nan_to_num(gap, nan=np.inf))
            )
    return spread
