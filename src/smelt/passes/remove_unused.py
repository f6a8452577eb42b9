"""Dead layers: nodes that no output depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.passes._base import Note, Pass, PassResult
from smelt.types import override

if TYPE_CHECKING:
    from smelt.ir import Graph


class RemoveUnused(Pass):
    """Remove nodes whose results are not needed."""

    @override
    def apply(self, graph: Graph) -> PassResult:
        dead = graph.remove_unused()
        return PassResult.of(
            Note(node.layers, (), "no output depends on it") for node in reversed(dead)
        )
