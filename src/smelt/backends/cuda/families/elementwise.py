"""Elementwise ops and chains of them, with broadcasting, in any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import ABSENT_INPUT, op_as_json, program_of
from smelt.backends.cuda._costs import memory_seconds
from smelt.backends.cuda._elementwise import why_not_written
from smelt.backends.cuda._pointwise import pointwise_launch, write_pointwise
from smelt.backends.cuda._target import CudaTarget
from smelt.types import Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import KernelSpec, Step
    from smelt.ir import Node, Value
    from smelt.types import Dim


class ElementwiseFamily(Family[CudaTarget]):
    """One pass over the output; each value runs through the whole program in registers."""

    name: ClassVar[str] = "elementwise"

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not node.op.elementwise:
            return
        if reason := _why_not(node):
            yield Refusal(self.name, reason)
            return
        kind = node.output.tensor
        layouts = (Layout.CHANNELS_LAST, Layout.LINEAR) if kind.rank >= 3 else (Layout.LINEAR,)
        for layout in layouts:
            inputs = tuple(
                None if v is None else _format(v, layout, kind.rank) for v in node.inputs
            )
            output = TensorFormat(kind.dtype, layout)
            seconds = memory_seconds(node)
            yield Tactic(self.name, (), inputs, (output,), cost_hint=seconds)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        present = [k for k, view in enumerate(operands.inputs) if view is not None]
        positions = {k: number for number, k in enumerate(present)}
        stages = tuple(
            (
                op_as_json(op),
                tuple(positions[a] if 0 <= a < ABSENT_INPUT else a for a in arguments),
                tuple(d.value for d in dtypes),
            )
            for op, arguments, dtypes in program_of(node)
        )
        views = [view for view in operands.inputs if view is not None]
        return (pointwise_launch(self.name, [*views, operands.outputs[0]], stages),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_pointwise(kernel)


def _format(value: Value, layout: Layout, rank: int) -> TensorFormat:
    """The layout where the axes are the result's; fewer, as of a bias, lie in their own order."""
    own = layout if value.tensor.rank == rank else Layout.LINEAR
    return TensorFormat(value.tensor.dtype, own)


def _why_not(node: Node) -> str | None:
    shape = node.output.tensor.shape
    for value in node.inputs:
        if value is not None and not _broadcasts(value.tensor.shape, shape):
            return f"{value.name} {value.tensor} may or may not repeat along {shape}"
    for op, _, dtypes in program_of(node):
        if reason := why_not_written(op, dtypes):
            return reason
    return None


def _broadcasts(shape: tuple[Dim, ...], onto: tuple[Dim, ...]) -> bool:
    tail = onto[len(onto) - len(shape) :]
    return all(extent in (1, whole) for extent, whole in zip(shape, tail, strict=True))
