"""Tactics that the host runs: the numpy reference of any op, and the engine of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Family, NodeRefusedError, Operands, Tactic, TargetT
from smelt.backends._storage import linear_format
from smelt.engine import HostCall, Submit
from smelt.errors import InternalError
from smelt.ops import Partition, op_to_json
from smelt.types import SymbolicDim, TensorType, override, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import Parameters, Step
    from smelt.ir import Node, Op
    from smelt.types import Dim

_REFERENCE_SECONDS = 1e3
"""Estimated seconds, so large that any kernel is preferred to the reference."""


class ReferenceFamily(Family[TargetT]):
    """Family that runs any op on linear tensors by its numpy reference."""

    name: ClassVar[str] = "reference"
    is_reference: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic]:
        if isinstance(node.op, Partition):
            return
        value_types = [v.type for v in (*node.inputs, *node.outputs) if v is not None]
        if not all(isinstance(value_type, TensorType) for value_type in value_types):
            raise NodeRefusedError(
                "an input or output is a sequence or an optional; only tensors are supported"
            )
        yield _host_tactic(self.name, (), node, _REFERENCE_SECONDS)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        sizes = tuple(
            (symbol, index, axis)
            for index, value in enumerate(node.outputs)
            for axis, extent in enumerate(value.tensor.shape)
            if (symbol := _own_symbol(node, extent)) is not None
        )
        return (HostCall(op_to_json(node.op), operands.inputs, operands.outputs, sizes),)


def _own_symbol(node: Node, extent: Dim) -> str | None:
    """Return the symbol that an extent consists of, if a run of the node determines its value."""
    if not isinstance(extent, SymbolicDim) or len(extent.symbols) != 1:
        return None
    (name,) = extent.symbols
    kinds = [value.type for value in node.inputs if value is not None]
    read = symbols_of(*(d for kind in kinds if isinstance(kind, TensorType) for d in kind.shape))
    is_own = any(
        name == prefix or (name.startswith(f"{prefix}_") and name not in read)
        for prefix in _count_symbol_prefixes(node.op)
    )
    return name if is_own and extent == SymbolicDim.symbol(name) else None


def _count_symbol_prefixes(op: Op) -> Iterator[str]:
    """Yield the prefixes of the symbols that a run determines; those of If number its results."""
    if prefix := getattr(op, "count_symbol", ""):
        yield prefix
    for region in op.regions:
        for node in region.nodes:
            yield from _count_symbol_prefixes(node.op)


class PartitionFamily(Family[TargetT]):
    """Family that runs partitions on contiguous tensors of the model's dtypes."""

    name: ClassVar[str] = "partition"
    requires_contiguous: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic]:
        if isinstance(node.op, Partition):
            yield _host_tactic(self.name, (("device", node.op.device),), node, 0.0)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        if not isinstance(node.op, Partition):
            raise InternalError(f"{node} is not a partition")
        inputs = tuple(view for view in operands.inputs if view is not None)
        return (Submit(node.op.index, inputs, operands.outputs),)


def _host_tactic(family: str, parameters: Parameters, node: Node, seconds: float) -> Tactic:
    """Return the tactic of a node that the host runs, on contiguous tensors of its own dtypes."""
    inputs = tuple(None if v is None else linear_format(v) for v in node.inputs)
    outputs = tuple(linear_format(v) for v in node.outputs)
    return Tactic(family, parameters, inputs, outputs, is_host_step=True, estimated_seconds=seconds)
