"""Memory bugs that can be planted in this process, to show that the instruments find them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends import _plan_builder, _storage
from smelt.backends.cpu.families import elementwise
from smelt.engine import _runtime_checks
from smelt.types import Relation, evaluate_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sized

    from smelt.types import Dim


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug."""

    plant: Callable[[], None]
    """Puts it into the modules of this process."""
    kinds: tuple[str, ...]
    """As what it may be found."""


def _write_one_element_past_the_view() -> None:
    """Elementwise kernels compute one element more of each row."""
    module: Any = elementwise
    sound = module.write_loop_nest

    def write_loop_nest(e: Any, walk: Any, sizes: Any, row: Any) -> Any:
        def longer(starts: Any, first: Any, last: Any, strides: Any) -> None:
            row(starts, first, e.add(last, 1), strides)

        return sound(e, walk, sizes, longer)

    module.write_loop_nest = write_loop_nest


def _size_buffers_at_the_corners() -> None:
    """A buffer is as large as at the corners of its plan's box, and no run looks at views again."""
    storage: Any = _storage
    conditions: Any = _runtime_checks

    def bounds_of(dim: Dim, box: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        names = sorted(symbols_of(dim))
        corners = itertools.product(*(box[name] for name in names))
        sizes = [evaluate_dim(dim, dict(zip(names, c, strict=True))) for c in corners]
        return min(sizes), max(sizes)

    def hold(_footprints: object, _found: object) -> bool:
        return True

    def proven(footprints: Sized, _bounds: object) -> Any:
        return np.ones(len(footprints), np.bool_)

    storage.bounds_of = bounds_of
    conditions._Footprints.hold = hold
    conditions._Footprints.proven = proven


def _keep_no_equality() -> None:
    """A plan forgets which extents inference took as equal."""
    module: Any = _plan_builder
    sound = module._open_guards

    def open_guards(guards: Any, symbols: Any) -> Any:
        return tuple(g for g in sound(guards, symbols) if g.relation is not Relation.EQUAL)

    module._open_guards = open_guards


PLANTS: Final = {
    "element": Planted(
        _write_one_element_past_the_view,
        ("signal SIGSEGV", "memory damaged", "depends on poison", "wrong numbers"),
    ),
    "corners": Planted(
        _size_buffers_at_the_corners,
        ("verifiers differ", "signal SIGSEGV", "memory damaged", "depends on poison"),
    ),
    "equality": Planted(
        _keep_no_equality, ("answers alone", "signal SIGSEGV", "depends on poison")
    ),
}
