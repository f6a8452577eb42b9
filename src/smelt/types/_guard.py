"""Guards: what inference assumes about extents that no symbol decides yet.

Inference of shapes compares extents that are polynomials in symbols. Where the comparison is open
it takes the only answer under which the op is legal, and records the assumption as a guard. A guard
holds for some symbol values and fails for others, so whoever binds the symbols checks it: `interp`
before each node, a plan before its first step.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from smelt.errors import ShapeError
from smelt.types._dim import Dim, evaluate_dim, substitute_dim, symbols_of
from smelt.types._dim_sign import is_never_negative

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


class Relation(Enum):
    """How the two sides of a guard compare."""

    EQUAL = "=="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on symbols under which an inferred shape is right."""

    left: Dim
    relation: Relation
    right: Dim
    what: str
    """Which extents are compared: operands and axes, as a message names them."""
    node: str = ""
    """The op and the name of the node that needs it."""

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols on which the guard depends."""
        return symbols_of(self.left, self.right)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether the guard holds. Raises UnboundSymbolError naming a symbol without a value."""
        left, right = evaluate_dim(self.left, values), evaluate_dim(self.right, values)
        return left == right if self.relation is Relation.EQUAL else left >= right

    def violation(self, values: Mapping[str, int]) -> ShapeError:
        """The error for values under which the guard fails: op, axes and both extents."""
        left, right = (_shown(dim, values) for dim in (self.left, self.right))
        wanted = "equal" if self.relation is Relation.EQUAL else "be at least"
        return ShapeError(f"{self.what}: {left} must {wanted} {right}", node=self.node or None)

    def at(self, values: Mapping[str, Dim]) -> Guard:
        """The guard with symbols replaced."""
        left, right = substitute_dim(self.left, values), substitute_dim(self.right, values)
        return replace(self, left=left, right=right)


def _shown(dim: Dim, values: Mapping[str, int]) -> str:
    value = evaluate_dim(dim, values)
    return str(value) if isinstance(dim, int) else f"{value} ({dim})"


_collected: ContextVar[list[Guard] | None] = ContextVar("collected_guards", default=None)


@contextmanager
def collect_guards() -> Generator[list[Guard], None, None]:
    """Collect the guards that inference records inside the ``with`` block."""
    found: list[Guard] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def assume_equal(left: Dim, right: Dim, what: str) -> bool:
    """Return False where two extents are known to differ; record a guard where that is open.

    ``what`` names both extents, as in ``"axis 2 of inputs 0 and 1"``.
    """
    gap = left - right
    if isinstance(gap, int):
        return gap == 0
    if is_never_negative(gap - 1) or is_never_negative(-gap - 1):
        return False
    _record(Guard(left, Relation.EQUAL, right, what))
    return True


def assume_at_least(left: Dim, right: Dim, what: str) -> bool:
    """Return False where ``left`` is known to be less; record a guard where that is open."""
    gap = left - right
    if is_never_negative(gap):
        return True
    if is_never_negative(-gap - 1):
        return False
    _record(Guard(left, Relation.AT_LEAST, right, what))
    return True


def assume_divides(divisor: int, count: Dim, what: str) -> bool:
    """Return False where a positive number is known not to divide; record a guard where open."""
    return assume_equal(count, count // divisor * divisor, what)


def _record(guard: Guard) -> None:
    found = _collected.get()
    if found is not None and guard not in found:
        found.append(guard)
