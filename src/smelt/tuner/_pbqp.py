"""PBQP solver: choose one alternative per node so that node costs plus edge costs are minimal.

The partitioned boolean quadratic problem is solved by the reductions of Scholz and Eckstein
("Register allocation for irregular architectures", 2002). Nodes of degree 0, 1 and 2 are folded
into their neighbours, which is exact. If only nodes of higher degree are left, the node of highest
degree takes its locally best alternative. Chains, trees and series-parallel graphs, which most
networks are, are solved exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Costs = NDArray[np.float64]


class _Problem:
    """A PBQP instance while its nodes are removed one by one."""

    def __init__(self, nodes: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> None:
        self.nodes = [costs.astype(np.float64) for costs in nodes]
        self.edges: list[dict[int, Costs]] = [{} for _ in nodes]
        for (a, b), matrix in edges.items():
            self.connect(a, b, matrix)
        self.alive = set(range(len(nodes)))
        self.removed: list[tuple[int, dict[int, Costs], Costs]] = []

    def connect(self, a: int, b: int, matrix: Costs) -> None:
        """Add the costs of a pair of alternatives of ``a`` (rows) and ``b`` (columns)."""
        if a == b:
            self.nodes[a] = self.nodes[a] + np.diag(matrix)
            return
        total = self.edges[a].get(b, 0.0) + matrix
        self.edges[a][b], self.edges[b][a] = total, total.T

    def remove(self, node: int) -> dict[int, Costs]:
        """Remove a node; its edges are recorded for the back-substitution."""
        links = self.edges[node]
        self.removed.append((node, links, self.nodes[node]))
        self.edges[node] = {}
        for other in links:
            del self.edges[other][node]
        self.alive.discard(node)
        return links

    def fold(self, node: int) -> None:
        """Remove a node of degree at most 2 and add its minimal costs to its neighbours."""
        own = self.nodes[node]
        links = list(self.remove(node).items())
        if len(links) == 1:
            other, matrix = links[0]
            self.nodes[other] = self.nodes[other] + (own[:, None] + matrix).min(axis=0)
        elif len(links) == 2:
            (a, left), (b, right) = links
            both = own[:, None, None] + left[:, :, None] + right[:, None, :]
            self.connect(a, b, both.min(axis=0))

    def fix(self, node: int) -> None:
        """Fix the alternative of a node of high degree and add the edge costs to its neighbours.

        The alternative is the best one if each neighbour could choose its own for this edge alone.
        """
        links = self.edges[node]
        best = self.nodes[node] + sum(
            (self.nodes[other][None, :] + matrix).min(axis=1) for other, matrix in links.items()
        )
        choice = int(np.argmin(best))
        fixed = np.full_like(self.nodes[node], np.inf)
        fixed[choice] = self.nodes[node][choice]
        self.nodes[node] = fixed
        for other, matrix in self.remove(node).items():
            self.nodes[other] = self.nodes[other] + matrix[choice]


def solve(nodes: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> list[int]:
    """Return the index of the chosen alternative of each node.

    Args:
        nodes: cost vector of each node, one entry per alternative, at least one; an infinite cost
            excludes an alternative.
        edges: for a pair of nodes, the cost of each pair of alternatives (rows: first node).
    """
    problem = _Problem(nodes, edges)
    while problem.alive:
        node = min(problem.alive, key=lambda n: (len(problem.edges[n]), n))
        if len(problem.edges[node]) <= 2:
            problem.fold(node)
        else:
            problem.fix(max(problem.alive, key=lambda n: (len(problem.edges[n]), -n)))
    choice = [0] * len(nodes)
    for node, links, own in reversed(problem.removed):
        costs = own + sum(
            (matrix[:, choice[other]] for other, matrix in links.items()), np.zeros(1)
        )
        choice[node] = int(np.argmin(costs))
    return choice
