"""Checks of unsigned engines that can be taken away, to show that they are missed.

That of tables is not among them: kernels check what they take from a table as well.
"""

from __future__ import annotations

from typing import Any, Final

from smelt.builder import _plan_recipe
from tests.fuzz.planted import Planted

_REMADE: Final[Any] = _plan_recipe.RegeneratedEngine


def _believe_bindings() -> None:
    def believing(self: Any, bindings: Any, graph: Any, plan: Any) -> None:
        """Anything goes."""

    _REMADE._check_bindings = believing


def _believe_tactics() -> None:
    def believing(tactic: Any, node: Any, backend: Any, target: Any) -> Any:
        del node, backend, target
        return tactic

    module: Any = _plan_recipe
    module._checked = believing


PLANTS: Final[dict[str, Planted]] = {
    "bindings": Planted(_believe_bindings, ("depends on poison", "signal SIGSEGV")),
    "tactics": Planted(_believe_tactics, ("signal SIGSEGV", "memory damaged")),
}
"""What an engine is believed about, that it must not be."""
