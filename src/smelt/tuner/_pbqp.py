"""Choosing one alternative for each node so that node costs plus edge costs are least.

The partitioned boolean quadratic problem, solved by the reductions of Scholz and Eckstein
("Register allocation for irregular architectures", 2002): nodes of degree 0, 1 and 2 are folded
into their neighbours without loss; where none is left, the node of highest degree takes its locally
best alternative. Chains, trees and series-parallel graphs (most networks) are thus solved exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Costs = NDArray[np.float64]


class _Problem:
    def __init__(self, nodes: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> None:
        self.nodes = [costs.astype(np.float64) for costs in nodes]
        self.edges: list[dict[int, Costs]] = [{} for _ in nodes]
        for (a, b), matrix in edges.items():
            self.connect(a, b, matrix)
        self.alive = set(range(len(nodes)))
        self.undo: list[tuple[int, dict[int, Costs], Costs]] = []

    def connect(self, a: int, b: int, matrix: Costs) -> None:
        """Add the costs of a pair of alternatives of ``a`` (rows) and ``b`` (columns)."""
        if a == b:
            self.nodes[a] = self.nodes[a] + np.diag(matrix)
            return
        total = self.edges[a].get(b, 0.0) + matrix
        self.edges[a][b], self.edges[b][a] = total, total.T

    def take(self, node: int) -> dict[int, Costs]:
        """Remove a node; its edges are kept for the way back."""
        links = self.edges[node]
        self.undo.append((node, links, self.nodes[node]))
        self.edges[node] = {}
        for other in links:
            del self.edges[other][node]
        self.alive.discard(node)
        return links

    def fold(self, node: int) -> None:
        """Remove a node of degree at most 2 and charge its neighbours what it will cost them."""
        own = self.nodes[node]
        links = list(self.take(node).items())
        if len(links) == 1:
            other, matrix = links[0]
            self.nodes[other] = self.nodes[other] + (own[:, None] + matrix).min(axis=0)
        elif len(links) == 2:
            (a, left), (b, right) = links
            both = own[:, None, None] + left[:, :, None] + right[:, None, :]
            self.connect(a, b, both.min(axis=0))

    def fix(self, node: int) -> None:
        """Decide a node of high degree now, as if every neighbour suited it; then they must."""
        links = self.edges[node]
        best = self.nodes[node] + sum(
            (self.nodes[other][None, :] + matrix).min(axis=1) for other, matrix in links.items()
        )
        choice = int(np.argmin(best))
        held = np.full_like(self.nodes[node], np.inf)
        held[choice] = self.nodes[node][choice]
        self.nodes[node] = held
        for other, matrix in self.take(node).items():
            self.nodes[other] = self.nodes[other] + matrix[choice]


def solve(nodes: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> list[int]:
    """The chosen alternative of each node.

    Args:
        nodes: for each node, the cost of each of its alternatives; at least one, infinity forbids.
        edges: for a pair of nodes, the cost of each pair of alternatives.
    """
    problem = _Problem(nodes, edges)
    while problem.alive:
        node = min(problem.alive, key=lambda n: (len(problem.edges[n]), n))
        if len(problem.edges[node]) <= 2:
            problem.fold(node)
        else:
            problem.fix(max(problem.alive, key=lambda n: (len(problem.edges[n]), -n)))
    choice = [0] * len(nodes)
    for node, links, own in reversed(problem.undo):
        costs = own + sum(
            (matrix[:, choice[other]] for other, matrix in links.items()), np.zeros(1)
        )
        choice[node] = int(np.argmin(costs))
    return choice
