"""Evaluation of constants whose recipes are untrusted: each step is checked before it runs."""

from __future__ import annotations

import math
from typing import Final

from smelt.errors import GraphError, InternalError, SmeltError
from smelt.ir._graph import Constant, Recipe, sources_first
from smelt.ir._op import Array, Operand
from smelt.signal_errors import pass_on_handler_error
from smelt.types import Limit, TensorType, counted

_FREE_BYTES: Final = 1 << 27
"""Total size of results in bytes up to which recipes are always computed. A reference may need some
ten times as much for a moment: it computes quotients and sums of bytes in 8 bytes each."""
_MAX_GROWTH: Final = 64
"""Factor by which results larger than ``_FREE_BYTES`` may exceed the size of all sources."""
_FREE_ELEMENTS: Final = 1 << 28
"""Elements that the steps of recipes may always read and write: 5 s at the 20 ns of a power."""
_MAX_PASSES: Final = 64
"""Elements beyond them, for each element of a source. Packing takes ten steps of a few passes."""

_REFERENCE_ERRORS: Final = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, MemoryError,
    InternalError,
)  # fmt: skip
"""Errors that a reference may raise for operands that no valid graph passes to it."""


class RecipeBudget:
    """Operations and accesses to elements that all untrusted recipes of a file may take."""

    def __init__(self) -> None:
        self._work = 0
        self._elements = 0
        self._most_elements = _FREE_ELEMENTS
        self._sources: dict[int, int] = {}
        """Size of each source in elements, by its address: several recipes may read one."""

    def add_source(self, array: Array) -> None:
        """Allow more passes for an array that recipes start from."""
        known = self._sources.get(array.ctypes.data, 0)
        if array.size > known:
            self._sources[array.ctypes.data] = array.size
            self._most_elements += _MAX_PASSES * (array.size - known)

    def spend(self, work: int, elements: int) -> None:
        """Count a step. Raises ValueError when the recipes exceed a limit."""
        self._work += work
        self._elements += elements
        if self._work > Limit.MAX_FOLDED_WORK.most:
            raise ValueError(f"it takes {Limit.MAX_FOLDED_WORK.excess(self._work)}")
        if self._elements > self._most_elements:
            raise ValueError(
                f"the steps read and write {self._elements:,} elements; at most "
                f"{self._most_elements:,} are allowed"
            )


def compute_untrusted(*constants: Constant, budget: RecipeBudget | None = None) -> None:
    """Compute the elements of constants with untrusted recipes.

    Args:
        constants: the constants; all share the limit on the size of results.
        budget: counts the operations of several calls together; None for one call.

    Raises:
        GraphError: a step of a recipe does not fit its inputs, or the recipes exceed the limits on
            the size of results or on the number of operations.
    """
    budget = budget or RecipeBudget()
    parts = list(sources_first(*constants))
    sources = [part.array for part in parts if part.recipe is None]
    for array in sources:
        budget.add_source(array)
    bytes_left = max(_FREE_BYTES, _MAX_GROWTH * sum(array.nbytes for array in sources))
    for part in parts:
        if part.recipe is None:
            continue
        try:
            _check_step(part.recipe, bytes_left, budget)
            # The inputs are computed already, so accessing the array does not recurse.
            bytes_left = max(0, bytes_left - part.array.nbytes)
        except SmeltError:
            raise
        except _REFERENCE_ERRORS as error:
            pass_on_handler_error(error)
            raise GraphError(
                f"the computation of a constant (its recipe) is invalid: {str(error)[:300]}",
                node=part.name[:200],
            ) from error


def _check_step(recipe: Recipe, max_bytes: int, budget: RecipeBudget) -> None:
    """Check the type and size of the result of a step, and count its operations."""
    if not recipe.op.is_recipe_step:
        raise ValueError(f"{recipe.op.name} cannot be a step of a recipe")
    operands = [None if c is None else Operand.constant(c.array) for c in recipe.inputs]
    results = recipe.op.infer(operands)
    kind = results[recipe.output]
    if not isinstance(kind, TensorType):
        raise TypeError(f"{recipe.op.name} gives {kind}, not a tensor")
    extents = [extent for extent in kind.shape if isinstance(extent, int)]
    size = math.prod(extents) * kind.dtype.size_bytes
    if size > max_bytes:
        raise ValueError(
            f"{recipe.op.name} gives {counted(size, 'byte')}; at most {max_bytes} more are allowed"
        )
    work = recipe.op.count_work(operands, results)  # a number, for the operands are known
    read = sum(c.array.size for c in recipe.inputs if c is not None)
    budget.spend(work if isinstance(work, int) else 0, read + math.prod(extents))
