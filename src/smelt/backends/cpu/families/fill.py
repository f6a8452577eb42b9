"""ConstantOfShape and Range: results that follow from extents alone, or from a start and a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt.backends import Family, Operands, Refusal, Tactic
from smelt.backends._iteration_space import iteration_axes
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Reg, emitter_for, vector_type
from smelt.backends.cpu._loop_nest import LoopNest, emit_loop_nest
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import InternalError
from smelt.ops import ConstantOfShape, Range
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Step, View
    from smelt.ir import Node
_RANGES: Final = frozenset(
    {DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.INT32, DType.INT16, DType.INT8}
)
"""Element types of supported ranges."""


class FillFamily(Family["CpuTarget"]):
    """ConstantOfShape and Range whose extent is symbolic.

    Without symbols these nodes are constants. Only a range reads elements of its inputs: start and
    step.
    """

    name: ClassVar[str] = "fill"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, ConstantOfShape | Range):
            return
        dtype = node.output.tensor.dtype
        inputs: tuple[TensorFormat | None, ...] = (None,) * len(node.inputs)
        if isinstance(node.op, Range):
            if dtype not in _RANGES:
                yield Refusal(self.name, f"ranges of {dtype.value} are not supported")
                return
            number = TensorFormat(dtype, Layout.LINEAR)
            inputs = (number, None, number)
        result = TensorFormat(dtype, Layout.LINEAR)
        yield Tactic(self.name, (), inputs, (result,), cost_hint=1e-6)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        (result,) = operands.outputs
        if isinstance(node.op, ConstantOfShape):
            value = np.array([node.op.value], result.dtype.numpy)
            bits = int(value.view(f"i{result.dtype.size_bytes}")[0])
            return (_constant(bits, result),)
        return (_range(operands, result),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return _GENERATORS[kernel["what"]](kernel, target)


def _constant(bits: int, result: View) -> Launch:
    """Return the launch that fills a tensor with elements of the given bits."""
    scalars = LaunchScalars()
    loop_nest = LoopNest.over(iteration_axes(result.shape, [result.strides], 0), 1)
    spec = KernelSpec(
        FillFamily.name,
        parameters(
            what="constant",
            bits=bits,
            size=result.dtype.size_bytes,
            loop_nest=loop_nest.json(scalars),
        ),
    )
    return Launch(spec, (result,), (0,), scalars.values, loop_nest.chunks)


def _range(operands: Operands, result: View) -> Launch:
    """Return the launch that writes a range."""
    start, _, delta = operands.inputs
    if start is None or delta is None:
        raise InternalError("the start or the step of a range is missing")
    scalars = LaunchScalars()
    spec = KernelSpec(
        FillFamily.name,
        parameters(
            what="range",
            dtype=result.dtype.value,
            count=scalars.json(result.shape[0]),
            stride=scalars.json(result.strides[0]),
        ),
    )
    return Launch(spec, (start, delta, result), (2,), scalars.values, 1)


def _generate_constant(kernel: KernelSpec, target: CpuTarget) -> str:
    """Return the LLVM IR that fills a tensor."""
    e = emitter_for(kernel, 1)
    size, bits = kernel["size"], kernel["bits"]
    element = f"i{8 * size}"
    lanes = target.vector_bits // (8 * size)

    def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
        full_end = first
        if strides[0] == 1:
            full_end = e.add(first, e.mul(e.div(e.sub(last, first), lanes), lanes))
            with e.loop(first, full_end, lanes) as steps:
                at = e.at(starts[0], e.mul(steps.index, size))
                e.store(e.constant(bits, vector_type(element, lanes)), at)
        with e.loop(full_end, last) as steps:
            at = e.at(starts[0], e.mul(steps.index, e.mul(strides[0], size)))
            e.store(e.constant(bits, element), at)

    emit_loop_nest(e, kernel["loop_nest"], [e.pointer(0)], [size], row)
    return e.module()


def _generate_range(kernel: KernelSpec, target: CpuTarget) -> str:
    """Return the LLVM IR that writes a range."""
    del target
    e = emitter_for(kernel, 3)
    dtype = DType(kernel["dtype"])
    element, size = LLVM_TYPES[dtype], dtype.size_bytes
    start, delta = (e.load(element, e.pointer(k)) for k in (0, 1))
    add, multiply = ("fadd", "fmul") if dtype.is_float else ("add", "mul")
    with e.loop(0, e.extent(kernel["count"])) as steps:
        step = _as_number(e, steps.index, element, is_float=dtype.is_float)
        value = e.binary(add, start, e.binary(multiply, step, delta))
        e.store(
            value, e.at(e.pointer(2), e.mul(steps.index, e.mul(e.extent(kernel["stride"]), size)))
        )
    return e.module()


def _as_number(e: Emitter, index: Reg, element: str, *, is_float: bool) -> Reg:
    """Return an i64 index as an element of the range."""
    if is_float:
        return e.convert("sitofp", index, element)
    return index if element == "i64" else e.convert("trunc", index, element)


_GENERATORS: Final = {
    "constant": _generate_constant,
    "range": _generate_range,
}
"""Generator of each kind of kernel."""
