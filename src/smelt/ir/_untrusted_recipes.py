"""Constants whose recipes come from outside: every step is checked before it is computed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from smelt.errors import GraphError, InternalError, SmeltError
from smelt.ir._graph import sources_first
from smelt.ir._op import Operand
from smelt.types import Limit, TensorType

if TYPE_CHECKING:
    from smelt.ir._graph import Constant, Recipe

_FREE_BYTES: Final = 1 << 28
"""Results of up to this size, all together, are always computed ..."""
_MAX_GROWTH: Final = 64
"""... larger ones only if they are no more than so many times as large as all sources together."""

_TRIPPED: Final = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, MemoryError,
    InternalError,
)  # fmt: skip
"""What a reference may raise over operands that no graph of ours would give it."""


def compute_untrusted(*constants: Constant, spent: int = 0) -> int:
    """Compute the elements of constants whose recipes nobody vouches for.

    Returns the operations that were spent, ``spent`` of them before.

    Raises:
        GraphError: a step of a recipe does not fit its inputs, or all together make something huge
            of little.
    """
    parts = list(sources_first(*constants))
    given = sum(part.array.nbytes for part in parts if part.recipe is None)
    work = spent
    left = max(_FREE_BYTES, _MAX_GROWTH * given)
    for part in parts:
        if part.recipe is None:
            continue
        try:
            work += _check_step(part.recipe, left)
            if work > Limit.MAX_FOLDED_WORK.most:
                raise ValueError(f"it takes {Limit.MAX_FOLDED_WORK.excess(work)}")
            # Its inputs are computed: no recipe is too deep.
            left = max(0, left - part.array.nbytes)
        except SmeltError:
            raise
        except _TRIPPED as error:
            raise GraphError(
                f"the recipe of a constant is invalid: {str(error)[:300]}", node=part.name[:200]
            ) from error
    return work


def _check_step(recipe: Recipe, most_bytes: int) -> int:
    """Check what a step makes; how many operations it takes."""
    operands = [None if c is None else Operand.constant(c.array) for c in recipe.inputs]
    results = recipe.op.infer(operands)
    made = results[recipe.output]
    if not isinstance(made, TensorType):
        raise TypeError(f"{recipe.op.name} gives {made}, not a tensor")
    extents = [extent for extent in made.shape if isinstance(extent, int)]
    size = math.prod(extents) * made.dtype.size_bytes
    if size > most_bytes:
        raise ValueError(
            f"{recipe.op.name} gives {size} bytes; at most {most_bytes} more are allowed"
        )
    work = recipe.op.count_work(operands, results)  # an op that runs graphs has none
    return work if isinstance(work, int) else 0
