"""Serpentine tile order: every other large launch processes its tiles last to first.

The L2 cache still holds what a launch read and wrote last. If the next launch starts with its first
tiles, these data are evicted before it reaches them. In reverse order it reads them first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import gpu_spec_of
from smelt.types import element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.backends._base import Tactic
    from smelt.backends.cuda._target import CudaTarget
    from smelt.ir import Node

_LARGE_L2_SHARE: Final = 0.5
"""Share of the L2 cache from which a launch counts as large; the data of smaller launches remain in
the cache in either order. Chosen without a measurement."""


def alternate_tile_order(
    nodes: Iterable[Node],
    tactics: Mapping[Node, Tactic],
    sizes: Mapping[str, int],
    target: CudaTarget,
) -> dict[Node, Tactic]:
    """Return the tactics with every other large launch of ``nodes``, in their order, reversed."""
    ordered = dict(tactics)
    min_bytes, is_reversed = _LARGE_L2_SHARE * gpu_spec_of(target).l2_bytes, False
    for node in nodes:
        tactic = ordered[node]
        if _touched_bytes(node, tactic, sizes) >= min_bytes:
            ordered[node] = replace(tactic, reversed_tile_order=is_reversed)
            is_reversed = not is_reversed
    return ordered


def _touched_bytes(node: Node, tactic: Tactic, sizes: Mapping[str, int]) -> int:
    """Return how many bytes a node reads and writes, without packed weights."""
    values = (*node.inputs, *node.outputs)
    formats = (*tactic.inputs, *tactic.outputs)
    return sum(
        evaluate_dim(element_count(value.tensor.shape), sizes) * fmt.dtype.size_bytes
        for value, fmt in zip(values, formats, strict=True)
        if value is not None and fmt is not None
    )
