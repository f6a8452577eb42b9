"""Large launches take turns: one goes through its tiles from the first to the last, the next back.

What a launch wrote last, and what it read last, is what the second-level cache still has when the
next one begins. That one would read it last, when all of it has made room for what came between;
going backwards it reads it first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import gpu_spec_of
from smelt.backends.cuda._kernel_source import reverse_tile_order
from smelt.engine import Launch
from smelt.types import element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.backends._base import Tactic
    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Step
    from smelt.ir import Node

REVERSIBLE_FAMILIES: Final = (
    "fused_pair", "conv", "conv_sum", "depthwise", "gemm", "persistent", "pool", "window_reuse",
    "stem",
    "stem_direct",
)  # fmt: skip
"""Families whose kernels know both orders."""
_LARGE: Final = 0.5
"""Share of the cache; what launches of less leave is there yet in either order."""


def with_reversed_tiles(step: Step) -> Step:
    """The step with its last tiles first, if it is of such a family."""
    if not isinstance(step, Launch) or step.kernel.family not in REVERSIBLE_FAMILIES:
        return step
    return replace(step, kernel=reverse_tile_order(step.kernel))


def alternate_tile_order(
    nodes: Iterable[Node],
    tactics: Mapping[Node, Tactic],
    sizes: Mapping[str, int],
    target: CudaTarget,
) -> dict[Node, Tactic]:
    """The tactics of nodes in their order, by ``node``: every other large one backwards."""
    made = dict(tactics)
    least, is_next = _LARGE * gpu_spec_of(target).l2_bytes, False
    for node in nodes:
        tactic = made[node]
        if tactic.family in REVERSIBLE_FAMILIES and _touched_bytes(node, tactic, sizes) >= least:
            made[node] = replace(tactic, reversed_tile_order=is_next)
            is_next = not is_next
    return made


def _touched_bytes(node: Node, tactic: Tactic, sizes: Mapping[str, int]) -> int:
    """What a node reads and writes, but for packed weights."""
    values = (*node.inputs, *node.outputs)
    formats = (*tactic.inputs, *tactic.outputs)
    return sum(
        evaluate_dim(element_count(value.tensor.shape), sizes) * fmt.dtype.size_bytes
        for value, fmt in zip(values, formats, strict=True)
        if value is not None and fmt is not None
    )
