"""Guards: conditions on symbols that shape inference assumes and that are checked at run time.

Shape inference compares extents that are polynomials in symbols. When the result of a comparison
depends on the symbols, inference assumes the result under which the op is valid and records it as a
guard. The code that binds the symbols checks the guards: `interp` before each node, a plan before
its first step.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum

from smelt.errors import ShapeError
from smelt.types._dim import Dim, evaluate_dim, substitute_dim, symbols_of
from smelt.types._dim_sign import is_never_negative


class Relation(Enum):
    """Relation between the two sides of a guard."""

    EQUAL = "=="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Guard:
    """Condition on symbols under which an inferred shape is correct."""

    left: Dim
    relation: Relation
    right: Dim
    what: str
    """Description of the compared extents for the message, by operands and axes."""
    node: str = ""
    """Op and name of the node to which the guard belongs."""

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols on which the guard depends."""
        return symbols_of(self.left, self.right)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Return whether the guard holds. Raises UnboundSymbolError: a symbol has no value."""
        left, right = evaluate_dim(self.left, values), evaluate_dim(self.right, values)
        return left == right if self.relation is Relation.EQUAL else left >= right

    def violation(self, values: Mapping[str, int]) -> ShapeError:
        """Return the error for values that violate the guard, with op, axes and both extents."""
        left, right = (_value_text(dim, values) for dim in (self.left, self.right))
        wanted = "equal" if self.relation is Relation.EQUAL else "be at least"
        return ShapeError(f"{self.what}: {left} must {wanted} {right}", node=self.node or None)

    def at(self, values: Mapping[str, Dim]) -> Guard:
        """Return the guard with symbols replaced by other dimensions."""
        left, right = substitute_dim(self.left, values), substitute_dim(self.right, values)
        return replace(self, left=left, right=right)


def _value_text(dim: Dim, values: Mapping[str, int]) -> str:
    value = evaluate_dim(dim, values)
    return str(value) if isinstance(dim, int) else f"{value} ({dim})"


_collected: ContextVar[list[Guard] | None] = ContextVar("collected_guards", default=None)


@contextmanager
def collect_guards() -> Generator[list[Guard], None, None]:
    """Collect the guards that inference records in the ``with`` block, without duplicates."""
    guards: list[Guard] = []
    token = _collected.set(guards)
    try:
        yield guards
    finally:
        _collected.reset(token)


def assume_equal(left: Dim, right: Dim, what: str) -> bool:
    """Return False if two extents are known to differ; record a guard if that is undecided.

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
    """Return False if ``left`` is known to be less; record a guard if that is undecided."""
    gap = left - right
    if is_never_negative(gap):
        return True
    if is_never_negative(-gap - 1):
        return False
    _record(Guard(left, Relation.AT_LEAST, right, what))
    return True


def assume_divides(divisor: int, count: Dim, what: str) -> bool:
    """Return False if ``divisor`` is known not to divide ``count``; record a guard if undecided."""
    what = f"{what}, which must be a multiple of {divisor}"
    return assume_equal(count, count // divisor * divisor, what)


def _record(guard: Guard) -> None:
    guards = _collected.get()
    if guards is not None and guard not in guards:
        guards.append(guard)
