"""Fallback tactic of every op: its numpy reference, run on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Family, Operands, Refusal, Tactic, TargetT
from smelt.backends._storage import linear_format
from smelt.engine import HostCall
from smelt.errors import InternalError
from smelt.ops import Partition, op_to_json
from smelt.types import SymbolicDim, TensorType, override, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Step
    from smelt.ir import Node, Op
    from smelt.types import Dim

REFERENCE_SECONDS = 1e3
"""Cost hint in seconds, so large that any kernel is preferred to the reference."""


class ReferenceFamily(Family[TargetT]):
    """Family that runs any op on linear tensors by its numpy reference."""

    name: ClassVar[str] = "reference"
    is_reference: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic | Refusal]:
        if isinstance(node.op, Partition):
            return
        value_types = [v.type for v in (*node.inputs, *node.outputs) if v is not None]
        if not all(isinstance(value_type, TensorType) for value_type in value_types):
            yield Refusal(self.name, "only tensors are supported, not sequences or optionals")
            return
        yield Tactic(
            self.name,
            (),
            tuple(None if v is None else linear_format(v) for v in node.inputs),
            tuple(linear_format(v) for v in node.outputs),
            runs_on_host=True,
            cost_hint=REFERENCE_SECONDS,
        )

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        sizes = tuple(
            (symbol, index, axis)
            for index, value in enumerate(node.outputs)
            for axis, extent in enumerate(value.tensor.shape)
            if (symbol := _own_symbol(node, extent)) is not None
        )
        return (HostCall(op_to_json(node.op), operands.inputs, operands.outputs, sizes),)

    @override
    def generate(self, kernel: KernelSpec, target: TargetT) -> str:
        raise InternalError("the reference implementation has no kernel")


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
