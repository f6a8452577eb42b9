"""How much scratch memory a tactic needs: what its launches share, and what each worker has."""

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
    box: Mapping[str, tuple[int, int]],
    workers: int,
) -> int:
    """Bytes that a step needs beside its tensors.

    Args:
        backend: has the tactic's family.
        node: what is computed.
        tactic: how.
        box: the smallest and the largest value of each symbol.
        workers: threads among which the step is divided.
    """
    shared = bounds_of(tactic.workspace_bytes, box)[1]
    if tactic.is_reference or tactic.aliasing.value != "none" or not workers:
        return shared
    largest = {name: high for name, (_, high) in box.items()}
    return shared + workers * lower_isolated_node(backend, node, tactic, largest).scratch_bytes
