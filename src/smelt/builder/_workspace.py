"""How much scratch memory a tactic needs: what its launches share, and what each worker has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smelt.backends import Operands, Stored
from smelt.engine import Launch, Space
from smelt.types import DType, Layout, TensorFormat, TensorType, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.backends import Backend, Tactic
    from smelt.engine import Halo, View
    from smelt.ir import Node, Value


def workspace_bytes(
    backend: Backend[Any],
    node: Node,
    tactic: Tactic,
    largest: Mapping[str, int],
    workers: int,
) -> int:
    """Bytes that a step needs beside its tensors.

    Args:
        backend: has the tactic's family.
        node: what is computed.
        tactic: how.
        largest: the largest value of each symbol.
        workers: threads among which the step is divided.
    """
    shared = evaluate_dim(tactic.workspace_bytes, largest)
    if tactic.is_reference or tactic.aliasing.value != "none":
        return shared
    if not workers:
        return shared
    steps = backend.family(tactic.family).lower(node, tactic, _operands(backend, node, tactic))
    own = max((step.scratch_bytes for step in steps if isinstance(step, Launch)), default=0)
    return shared + workers * own


def _operands(backend: Backend[Any], node: Node, tactic: Tactic) -> Operands:
    """Operands in memory of their own, which nobody allocates."""
    halos: tuple[Halo, ...] = tactic.halos or ((),) * len(node.inputs)
    views: list[View] = []

    def place(kind: TensorType, fmt: TensorFormat, halo: Any = ()) -> View:
        stored = Stored("operand", kind, fmt, Space.ARENA, halo=halo)
        stored.buffer = len(views)
        views.append(stored.view())
        return views[-1]

    def input_view(value: Value | None, fmt: TensorFormat | None, halo: Any) -> View | None:
        return None if value is None or fmt is None else place(value.tensor, fmt, halo)

    inputs = tuple(map(input_view, node.inputs, tactic.inputs, halos))
    outputs = tuple(place(v.tensor, f) for v, f in zip(node.outputs, tactic.outputs, strict=True))
    packed = tuple(
        place(c.type, TensorFormat(c.type.dtype, Layout.LINEAR))
        for c in backend.family(tactic.family).pack(node, tactic)
    )
    workspace = None
    if tactic.workspace_bytes != 0:
        kind = TensorType(DType.UINT8, (tactic.workspace_bytes,))
        workspace = place(kind, TensorFormat(DType.UINT8, Layout.LINEAR))
    return Operands(inputs, outputs, packed, workspace)
