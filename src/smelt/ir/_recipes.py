"""Constants whose recipes come from outside: every step is checked before it is computed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from smelt.errors import GraphError, InternalError, SmeltError
from smelt.ir._op import Operand
from smelt.types import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir._graph import Constant, Recipe
    from smelt.ir._op import Array

_FREE_BYTES: Final = 1 << 28
"""A result up to this size is always computed ..."""
_MOST_GROWTH: Final = 64
"""... a larger one only if it is no more than so many times as large as all sources together."""

_TRIPPED: Final = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, MemoryError, InternalError,
)  # fmt: skip
"""What a reference may raise over operands that no graph of ours would give it."""


def compute_untrusted(constant: Constant) -> Array:
    """The elements of a constant whose recipe nobody vouches for.

    Raises:
        GraphError: a step of the recipe does not fit its inputs, or makes something huge of little.
    """
    parts = list(_sources_first(constant))
    given = sum(part.array.nbytes for part in parts if part.recipe is None)
    for part in parts:
        if part.recipe is None:
            continue
        try:
            _check_step(part.recipe, max(_FREE_BYTES, _MOST_GROWTH * given))
            _ = part.array  # its inputs are computed: no recipe is too deep
        except SmeltError:
            raise
        except _TRIPPED as error:
            raise GraphError(
                f"the recipe of a constant is wrong: {str(error)[:300]}", node=part.name[:200]
            ) from error
    return constant.array


def _check_step(recipe: Recipe, most_bytes: int) -> None:
    operands = [None if c is None else Operand.constant(c.array) for c in recipe.inputs]
    made = recipe.op.infer(operands)[recipe.output]
    if not isinstance(made, TensorType):
        raise TypeError(f"{recipe.op.name} makes {made}, no tensor")
    extents = [extent for extent in made.shape if isinstance(extent, int)]
    size = math.prod(extents) * made.dtype.size_bytes
    if size > most_bytes:
        raise ValueError(f"{recipe.op.name} makes {size} bytes; {most_bytes} are allowed")


def _sources_first(constant: Constant) -> Iterator[Constant]:
    """The constant and what it derives from, each once."""
    done: set[int] = set()
    stack: list[tuple[Constant, bool]] = [(constant, False)]
    while stack:
        part, is_ready = stack.pop()
        if id(part) in done:
            continue
        if is_ready or part.recipe is None:
            done.add(id(part))
            yield part
        else:
            stack.append((part, True))
            stack.extend((c, False) for c in part.recipe.inputs if c is not None)
