"""Attention in one launch, and in five."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt import ops
from smelt.backends.cpu import host_target
from smelt.backends.cpu.families.attention import AttentionFamily
from tests.support.cpu_families import assert_tactics_agree, make_node, random, tactics_of
from tests.support.random_operands import every_target

if TYPE_CHECKING:
    from smelt.backends import Tactic
    from smelt.backends.cpu import CpuTarget

FAMILY = AttentionFamily()


def _queries(tactics: list[Tactic]) -> set[Any]:
    """How many queries each tactic works on at once; 0 for five launches."""
    return {dict(tactic.parameters)["queries"] for tactic in tactics}


@every_target
@pytest.mark.parametrize(
    ("heads", "queries", "keys"), [(1, 131, 40), (2, 131, 131), (3, 500, 17), (16, 7, 300)]
)
def test_blocks_of_queries_that_overlap_are_right_on_several_threads(
    heads: int, queries: int, keys: int, target: CpuTarget
) -> None:
    q, k, v = (
        random((2, queries, heads * 16)),
        random((2, keys, heads * 16), 1),
        random((2, keys, heads * 24), 2),
    )
    mask = random((queries, keys), 3)
    tactics = assert_tactics_agree(
        FAMILY, ops.Attention(0.3, heads), [q, k, v, mask], target=target, workers=3, gap=3
    )
    assert len(_queries(tactics)) > 1


@every_target
@pytest.mark.parametrize("keys", [8, 12, 16, 24, 48, 96])
def test_keys_that_fill_whole_panels_are_right_for_panels_of_any_width(
    keys: int, target: CpuTarget
) -> None:
    """Panels of three vectors, as AVX2 has them, are turned over in tiles and a rest."""
    arrays = [random((1, 3, 7, 32)), random((1, 3, keys, 32), 1), random((1, 3, keys, 32), 2)]
    assert_tactics_agree(FAMILY, ops.Attention(0.125), arrays, target=target)


@pytest.mark.parametrize("keys", [5_461, 6_000, 100_000, 1_000_000])
def test_very_many_keys_take_one_launch_and_little_memory(keys: int) -> None:
    shapes = [(1, 12, 4096, 32), (1, 12, keys, 32), (1, 12, keys, 32)]
    node = make_node(ops.Attention(0.25), [np.empty(s, np.float32) for s in shapes], frozenset())
    found = _queries(tactics_of(FAMILY, node, host_target())) - {0}
    assert found
    assert max(found) * keys * 4 <= max(1 << 20, keys * 4)


def test_few_queries_at_once_are_right() -> None:
    arrays = [random((1, 2, 9, 8)), random((1, 2, 70_000, 8), 1), random((1, 2, 70_000, 5), 2)]
    tactics = assert_tactics_agree(FAMILY, ops.Attention(0.25), arrays, workers=2)
    assert _queries(tactics) == {3, 0}


def test_a_batch_that_only_a_run_knows_takes_one_launch_too() -> None:
    arrays = [random((3, 2, 19, 16), seed) for seed in range(3)]
    symbols = {(index, 0): "batch" for index in range(3)}
    tactics = assert_tactics_agree(FAMILY, ops.Attention(0.25), arrays, symbols=symbols)
    assert len(_queries(tactics)) > 1


def test_as_many_keys_as_a_run_brings_take_five_launches() -> None:
    arrays = [random((3, 2, 19, 16), seed) for seed in range(3)]
    symbols = {(0, 2): "queries", (1, 2): "keys", (2, 2): "keys", (3, 3): "keys"}
    arrays.append(random((3, 1, 1, 19), 5))
    tactics = assert_tactics_agree(FAMILY, ops.Attention(0.25), arrays, symbols=symbols)
    assert _queries(tactics) == {0}


@every_target
def test_keys_that_a_mask_rules_out_have_no_weight(target: CpuTarget) -> None:
    arrays = [random((1, 2, 37, 16), seed) for seed in range(3)]
    mask = np.where(np.arange(37) < 9, np.float32(0), np.float32("-inf"))
    assert_tactics_agree(FAMILY, ops.Attention(0.25), [*arrays, mask], target=target)
