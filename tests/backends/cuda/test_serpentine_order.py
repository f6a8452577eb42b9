"""Every other large launch of a plan goes through its tiles from the last to the first."""

from __future__ import annotations

import pytest

from smelt.backends import WeightStore, build_plan
from smelt.backends.cuda import CudaBackend
from smelt.engine import Launch
from tests.support.cuda_conv_chains import TARGET, row_of


def _orders(kinds: str, batch: int) -> list[bool]:
    """Whether each node of a row goes backwards."""
    graph, tactics = row_of(kinds, batch)
    alternated = CudaBackend(jobs=1).alternate_tile_order(graph.nodes, tactics, {}, TARGET)
    return [alternated[node].reversed_tile_order for node in graph.nodes]


def test_every_other_large_launch_goes_backwards() -> None:
    assert _orders("ccccc", 128) == [False, True, False, True, False]


def test_what_all_fits_into_the_cache_is_done_in_order() -> None:
    assert not any(_orders("ccccc", 4))


def test_families_that_know_one_order_are_left_alone() -> None:
    assert _orders("crccr", 128) == [False, False, True, False, False]


@pytest.mark.parametrize("goes", [False, True], ids=["forwards", "reversed_tile_order"])
def test_a_plan_has_the_kernels_of_the_order_that_its_tactics_say(*, goes: bool) -> None:
    graph, tactics = row_of("cc", 128)
    backend = CudaBackend(jobs=1)
    if goes:
        tactics = backend.alternate_tile_order(graph.nodes, tactics, {}, TARGET)
    plan = build_plan(graph, tactics, backend, WeightStore()).plan
    kernels = [s.kernel for s in plan.steps if isinstance(s, Launch) and s.kernel.family == "conv"]
    texts = [backend.generate(kernel, TARGET) for kernel in kernels]
    assert ["num_programs" in text for text in texts] == [False, goes]


def test_the_ways_to_launch_a_tactic_go_forwards() -> None:
    graph, tactics = row_of("cc", 128)
    alternated = CudaBackend(jobs=1).alternate_tile_order(graph.nodes, tactics, {}, TARGET)
    backend = CudaBackend(jobs=1)
    ways = {way for tactic in alternated.values() for way in backend.launch_variants(tactic)}
    assert ways == {way for tactic in tactics.values() for way in backend.launch_variants(tactic)}
    assert not any(way.reversed_tile_order for way in ways)
