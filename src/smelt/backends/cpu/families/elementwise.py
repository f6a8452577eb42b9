"""Elementwise ops and fused programs of them, with broadcasting, in any layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from smelt.backends import Family, LaunchScalars, Operands, Tactic
from smelt.backends._fused_programs import elementwise_tactics, stages_of
from smelt.backends._iteration_space import broadcast_strides, iteration_axes
from smelt.backends.cpu._elementwise import to_compute_type, to_storage_type, unsupported_op_reason
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Int, Reg, vector_type
from smelt.backends.cpu._epilogue import emit_stages
from smelt.backends.cpu._loop_nest import LoopNest, write_loop_nest
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Node

_BYTES_PER_SECOND = 8e9
"""Memory bandwidth assumed by the cost estimate, in bytes per second. Chosen without a measurement;
a copy within the caches of the development machine moves 1e11 bytes per second
(docs/lab/choosing-tactics.md)."""


class ElementwiseFamily(Family["CpuTarget"]):
    """One pass over the output; each register runs through the whole program."""

    name: ClassVar[str] = "elementwise"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        return elementwise_tactics(self.name, node, unsupported_op_reason, _cost)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        (output,) = operands.outputs
        present = [v for v in operands.inputs if v is not None]
        views = [*present, output]
        strides = [broadcast_strides(v, output.shape) for v in views]
        axes = iteration_axes(output.shape, strides, len(present))
        dtypes = tuple(v.dtype.value for v in views)
        launch = LoopNest.over(axes, len(views)).launch(
            self.name, views, LaunchScalars(), dtypes=dtypes, stages=stages_of(node)
        )
        return (launch,)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        dtypes = [DType(d) for d in kernel["dtypes"]]
        e = Emitter(kernel.symbol, len(dtypes))
        lanes = target.vector_bits // 32

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            def step(index: Reg, lanes: int) -> None:
                loaded: dict[int, Reg] = {}

                def read(k: int) -> Reg:
                    if k not in loaded:
                        loaded[k] = load_along(e, starts[k], strides[k], index, dtypes[k], lanes)
                    return loaded[k]

                result = emit_stages(e, kernel["stages"], (), read)
                result = to_storage_type(e, result, dtypes[-1])
                size = dtypes[-1].size_bytes
                e.store(result, e.at(starts[-1], e.mul(index, e.mul(strides[-1], size))))

            full_end = e.add(first, e.mul(e.div(e.sub(last, first), lanes), lanes))
            if strides[-1] == 1:
                with e.loop(first, full_end, lanes) as steps:
                    step(steps.index, lanes)
            else:
                full_end = first
            with e.loop(full_end, last) as steps:
                step(steps.index, 1)

        return write_loop_nest(e, kernel["loop_nest"], [d.size_bytes for d in dtypes], row)


def _cost(node: Node) -> float:
    """Return the estimated seconds: a launch and the memory traffic; symbols count as 8."""
    values = [v for v in (*node.inputs, node.output) if v is not None]
    total = sum(
        math.prod(extent if isinstance(extent, int) else 8 for extent in value.tensor.shape)
        * value.tensor.dtype.size_bytes
        for value in values
    )
    return 1e-6 + total / _BYTES_PER_SECOND


def load_along(e: Emitter, start: Reg, stride: Int, index: Reg, dtype: DType, lanes: int) -> Reg:
    """Load ``lanes`` elements of a row from ``index`` on: contiguous, broadcast or strided."""
    element, size = LLVM_TYPES[dtype], dtype.size_bytes
    if stride == 0:
        return e.splat(to_compute_type(e, e.load(element, start), dtype), lanes)
    at = e.at(start, e.mul(index, e.mul(stride, size)))
    if stride == 1 or lanes == 1:
        return to_compute_type(e, e.load(vector_type(element, lanes), at), dtype)
    kind = vector_type(element, lanes)
    gathered = Reg("poison", kind)
    for lane in range(lanes):
        element_value = e.load(element, e.at(at, e.mul(e.mul(stride, size), lane)))
        gathered = e.emit(kind, f"insertelement {gathered}, {element_value}, i64 {lane}")
    return to_compute_type(e, gathered, dtype)
