"""Size of the scratch memory that a tactic needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smelt.tuner import lower_isolated_node
from smelt.types import bounds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.backends import Backend, Tactic
    from smelt.ir import Node


def workspace_bytes(
    backend: Backend[Any],
    node: Node,
    tactic: Tactic,
    ranges: Mapping[str, tuple[int, int]],
    workers: int,
) -> int:
    """Return the scratch memory in bytes that a step needs in addition to its tensors.

    The size includes the memory that its launches share, and the memory of each worker.

    Args:
        backend: backend of the tactic's family.
        node: node that the step computes.
        tactic: tactic of the node.
        ranges: smallest and largest value of each symbol.
        workers: number of threads among which the step is divided; 0 on GPUs.
    """
    shared = bounds_of(tactic.workspace_bytes, ranges)[1]
    if tactic.runs_on_host or tactic.aliasing.value != "none" or not workers:
        return shared
    largest = {name: high for name, (_, high) in ranges.items()}
    return shared + workers * lower_isolated_node(backend, node, tactic, largest).scratch_bytes
