"""Test cases of the recurrent ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from smelt.ir import Case
from smelt.ops._conformance_data import HALF_TOLERANCE, floats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from smelt.ir import Array
    from smelt.ops._recurrent import Recurrent


def recurrent_case(
    name: str,
    op: Recurrent,
    time: int,
    batch: int,
    width: int,
    *,
    bias: bool = True,
    lengths: tuple[int, ...] = (),
    initial: bool = False,
    peepholes: bool = False,
    dtype: type[np.floating[Any]] = np.float32,
) -> Case:
    """Return a case whose weights are small enough that the states do not saturate."""
    directions, hidden = op.directions, op.hidden_size
    rows = op.gates * hidden

    def weights(*shape: int, seed: int) -> Array:
        return floats(*shape, dtype=dtype, low=-0.7, high=0.7, seed=seed)

    state = (directions, batch, hidden) if op.layout == 0 else (batch, directions, hidden)
    arrays: list[Array | None] = [
        weights(*((time, batch) if op.layout == 0 else (batch, time)), width, seed=0),
        weights(directions, rows, width, seed=1),
        weights(directions, rows, hidden, seed=2),
        weights(directions, 2 * rows, seed=3) if bias else None,
        np.array(lengths, np.int32) if lengths else None,
        weights(*state, seed=5) if initial else None,
    ]
    if op.states == 2:
        arrays.append(weights(*state, seed=6) if initial else None)
        arrays.append(weights(directions, 3 * hidden, seed=7) if peepholes else None)
    tolerance = HALF_TOLERANCE if dtype is np.float16 else 1e-4
    return Case(name, op, tuple(arrays), tolerance, frozenset({1, 2, 3, 7}))


def common_cases(cls: type[Recurrent]) -> Iterator[Case]:
    """Yield the cases that all recurrent ops have."""
    yield recurrent_case("forward", cls(5), 4, 3, 7)
    yield recurrent_case("no_bias", cls(3), 3, 1, 2, bias=False)
    yield recurrent_case("reverse", cls(17, "reverse"), 3, 2, 3, initial=True)
    yield recurrent_case("bidirectional", cls(4, "bidirectional"), 5, 2, 3, initial=True)
    lengths = (3, 5, 1)
    yield recurrent_case("lengths", cls(4), 5, 3, 2, lengths=lengths, initial=True)
    op = cls(4, "bidirectional")
    yield recurrent_case("lengths_both_ways", op, 5, 3, 2, lengths=lengths)
    yield recurrent_case("batch_first", cls(4, layout=1), 5, 3, 2, initial=True)
    yield recurrent_case("clipped", cls(4, clip=0.2), 4, 2, 3)
    yield recurrent_case("one_step", cls(33), 1, 1, 17)
    yield recurrent_case("many_moments", cls(20), 15, 2, 9)
    yield recurrent_case("float16", cls(5), 3, 2, 4, dtype=np.float16)
