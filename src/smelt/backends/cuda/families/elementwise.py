"""Family of elementwise ops and fused programs of them, with broadcasting, in any layout."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from smelt.backends._fused_programs import elementwise_tactics, stages_of
from smelt.backends.cuda._cost_model import memory_seconds
from smelt.backends.cuda._elementwise import unsupported_op_reason
from smelt.backends.cuda._elementwise_kernel import PointwiseWriter, pointwise_launch
from smelt.backends.cuda._family import CudaFamily
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._base import Operands, Tactic
    from smelt.backends.cuda._kernel_source import KernelWriter
    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Step
    from smelt.ir import Node


class ElementwiseFamily(CudaFamily):
    """One pass over the output; each element is computed by the whole program in registers."""

    name: ClassVar[str] = "elementwise"
    writer: ClassVar[type[KernelWriter]] = PointwiseWriter

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        seconds_of = partial(memory_seconds, target=target)
        return elementwise_tactics(self.name, node, unsupported_op_reason, seconds_of)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        views = [view for view in operands.inputs if view is not None]
        return (pointwise_launch(self.name, [*views, operands.outputs[0]], stages_of(node)),)
