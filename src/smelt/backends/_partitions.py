"""The tactic of a partition: its engine, submitted by the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Family, Operands, Refusal, Tactic, TargetT
from smelt.backends._storage import linear_format
from smelt.engine import Submit
from smelt.errors import InternalError
from smelt.ops import Partition
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Step
    from smelt.ir import Node


class PartitionFamily(Family[TargetT]):
    """Family that runs partitions on contiguous tensors of the model's dtypes."""

    name: ClassVar[str] = "partition"
    requires_contiguous: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic | Refusal]:
        if isinstance(node.op, Partition):
            yield Tactic(
                self.name,
                (("device", node.op.device),),
                tuple(None if v is None else linear_format(v) for v in node.inputs),
                tuple(linear_format(v) for v in node.outputs),
                runs_on_host=True,
            )

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        if not isinstance(node.op, Partition):
            raise InternalError(f"{node} is not a partition")
        inputs = tuple(view for view in operands.inputs if view is not None)
        return (Submit(node.op.index, inputs, operands.outputs),)

    @override
    def generate(self, kernel: KernelSpec, target: TargetT) -> str:
        raise InternalError("a partition has no kernel of its own")
