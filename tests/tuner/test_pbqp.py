"""The choice for a whole graph: exact where reductions suffice, never forbidden where avoidable."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.tuner._pbqp import Costs, solve

Problem = tuple[list[Costs], dict[tuple[int, int], Costs]]


def total(problem: Problem, choice: tuple[int, ...] | list[int]) -> float:
    nodes, edges = problem
    own = sum(float(costs[c]) for costs, c in zip(nodes, choice, strict=True))
    return own + sum(float(m[choice[a], choice[b]]) for (a, b), m in edges.items())


def best(problem: Problem) -> float:
    return min(total(problem, c) for c in product(*[range(len(n)) for n in problem[0]]))


def _costs(draw: st.DrawFn, *shape: int) -> Costs:
    count = int(np.prod(shape))
    numbers = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    return np.array(numbers, np.float64).reshape(shape)


@st.composite
def trees(draw: st.DrawFn) -> Problem:
    """Every node hangs on an earlier one; edges point either way."""
    count = draw(st.integers(1, 7))
    nodes = [_costs(draw, draw(st.integers(1, 3))) for _ in range(count)]
    edges: dict[tuple[int, int], Costs] = {}
    for node in range(1, count):
        ends = (draw(st.integers(0, node - 1)), node)
        a, b = ends if draw(st.booleans()) else ends[::-1]
        edges[a, b] = _costs(draw, len(nodes[a]), len(nodes[b]))
    return nodes, edges


@st.composite
def series_parallel(draw: st.DrawFn) -> Problem:
    """Grown from one edge: edges are subdivided, or get a detour, as networks' branches do."""
    links = [(0, 1)]
    count = 2
    for _ in range(draw(st.integers(0, 4))):
        a, b = draw(st.sampled_from(links))
        if draw(st.booleans()):
            links.remove((a, b))
        links += [(a, count), (count, b)]
        count += 1
    nodes = [_costs(draw, draw(st.integers(1, 3))) for _ in range(count)]
    return nodes, {(a, b): _costs(draw, len(nodes[a]), len(nodes[b])) for a, b in links}


@given(trees())
@settings(max_examples=100, deadline=None)
def test_trees_are_solved_exactly(problem: Problem) -> None:
    assert total(problem, solve(*problem)) == best(problem)


@given(series_parallel())
@settings(max_examples=100, deadline=None)
def test_branches_that_join_again_are_solved_exactly(problem: Problem) -> None:
    assert total(problem, solve(*problem)) == best(problem)


def test_what_is_forbidden_is_not_chosen() -> None:
    nodes = [np.array([np.inf, 5.0]), np.array([0.0, np.inf])]
    edges = {(0, 1): np.array([[0.0, 0.0], [100.0, 0.0]])}
    assert solve(nodes, edges) == [1, 0]


def test_a_dense_graph_gets_a_choice_for_every_node() -> None:
    rng = np.random.default_rng(0)
    nodes = [rng.random(3) for _ in range(9)]
    edges = {(a, b): rng.random((3, 3)) for a in range(9) for b in range(a)}
    choice = solve(nodes, edges)
    assert len(choice) == 9
    assert all(0 <= c < 3 for c in choice)
    # Not exact here, but far better than chance.
    chance = np.mean([total((nodes, edges), list(rng.integers(0, 3, 9))) for _ in range(200)])
    assert total((nodes, edges), choice) < chance


def test_nothing_has_an_empty_choice() -> None:
    assert solve([], {}) == []


def test_an_edge_to_itself_counts_on_its_diagonal() -> None:
    nodes = [np.array([0.0, 1.0])]
    assert solve(nodes, {(0, 0): np.array([[9.0, 0.0], [0.0, 1.0]])}) == [1]
