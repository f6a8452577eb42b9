"""Evaluation of constants whose recipes are untrusted: each step is checked before it runs."""

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
"""Total size of results in bytes up to which recipes are always computed."""
_MAX_GROWTH: Final = 64
"""Factor by which results larger than ``_FREE_BYTES`` may exceed the size of all sources."""

_REFERENCE_ERRORS: Final = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, MemoryError,
    InternalError,
)  # fmt: skip
"""Errors that a reference may raise for operands that no valid graph passes to it."""


def compute_untrusted(*constants: Constant, spent: int = 0) -> int:
    """Compute the elements of constants with untrusted recipes.

    Returns the total number of operations, including ``spent``, the operations of earlier calls.

    Raises:
        GraphError: a step of a recipe does not fit its inputs, or the recipes exceed the limits on
            the size of results or on the number of operations.
    """
    parts = list(sources_first(*constants))
    source_bytes = sum(part.array.nbytes for part in parts if part.recipe is None)
    work = spent
    bytes_left = max(_FREE_BYTES, _MAX_GROWTH * source_bytes)
    for part in parts:
        if part.recipe is None:
            continue
        try:
            work += _check_step(part.recipe, bytes_left)
            if work > Limit.MAX_FOLDED_WORK.most:
                raise ValueError(f"the recipe takes {Limit.MAX_FOLDED_WORK.excess(work)}")
            # The inputs are computed already, so accessing the array does not recurse.
            bytes_left = max(0, bytes_left - part.array.nbytes)
        except SmeltError:
            raise
        except _REFERENCE_ERRORS as error:
            raise GraphError(
                f"the recipe of a constant is invalid: {str(error)[:300]}", node=part.name[:200]
            ) from error
    return work


def _check_step(recipe: Recipe, max_bytes: int) -> int:
    """Check the type and size of the result of a step; return its number of operations."""
    operands = [None if c is None else Operand.constant(c.array) for c in recipe.inputs]
    results = recipe.op.infer(operands)
    kind = results[recipe.output]
    if not isinstance(kind, TensorType):
        raise TypeError(f"{recipe.op.name} gives {kind}, not a tensor")
    extents = [extent for extent in kind.shape if isinstance(extent, int)]
    size = math.prod(extents) * kind.dtype.size_bytes
    if size > max_bytes:
        raise ValueError(
            f"{recipe.op.name} gives {size} bytes; at most {max_bytes} more are allowed"
        )
    work = recipe.op.count_work(operands, results)  # an op with regions has no fixed number
    return work if isinstance(work, int) else 0
