"""ConstantOfShape and Range: results that follow from extents alone, or from a start and a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt.backends import Family, LaunchScalars, Operands, Tactic, linear_format
from smelt.backends._iteration_space import iteration_axes
from smelt.backends._node_operands import input_view
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Int, Reg, vector_type
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._loop_nest import LoopNest, write_loop_nest
from smelt.backends.cpu._refusals import check_dtype
from smelt.engine import KernelSpec, Launch, Step, View
from smelt.ops import ConstantOfShape, Range
from smelt.types import DType, TensorFormat, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node
_RANGES: Final = (DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.INT32, DType.INT16, DType.INT8)
"""Element types of supported ranges."""


class FillFamily(Family["CpuTarget"]):
    """ConstantOfShape and Range whose extent is symbolic.

    Without symbols these nodes are constants. Only a range reads elements of its inputs: start and
    step.
    """

    name: ClassVar[str] = "fill"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, ConstantOfShape | Range):
            return
        result = linear_format(node.output)
        inputs: tuple[TensorFormat | None, ...] = (None,) * len(node.inputs)
        if isinstance(node.op, Range):
            check_dtype("the result", result.dtype, *_RANGES)
            inputs = (result, None, result)
        yield Tactic(self.name, (), inputs, (result,), estimated_seconds=1e-6)

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
        if kernel["what"] == "range":
            return _generate_range(kernel)
        return _generate_constant(kernel, target)


def _constant(bits: int, result: View) -> Launch:
    """Return the launch that fills a tensor with elements of the given bits."""
    loop_nest = LoopNest.over(iteration_axes(result.shape, [result.strides], 0), 1)
    size = result.dtype.size_bytes
    return loop_nest.launch(
        FillFamily.name, (result,), LaunchScalars(), what="constant", bits=bits, size=size
    )


def _range(operands: Operands, result: View) -> Launch:
    """Return the launch that writes a range."""
    scalars = LaunchScalars()
    views = (input_view(operands, 0), input_view(operands, 2), result)
    spec = kernel_spec(
        FillFamily.name,
        what="range",
        dtype=result.dtype.value,
        count=scalars.json(result.shape[0]),
        stride=scalars.json(result.strides[0]),
    )
    return Launch(spec, views, (2,), scalars.values, 1)


def _generate_constant(kernel: KernelSpec, target: CpuTarget) -> str:
    """Return the LLVM IR that fills a tensor."""
    e = Emitter(kernel.symbol, 1)
    size, bits = kernel["size"], kernel["bits"]
    element = f"i{8 * size}"
    lanes = target.vector_bits // (8 * size)

    def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
        for index, width in e.vector_steps(first, last, lanes if strides[0] == 1 else 1):
            at = e.at(starts[0], e.mul(index, e.mul(strides[0], size)))
            e.store(e.constant(bits, vector_type(element, width)), at)

    return write_loop_nest(e, kernel["loop_nest"], [size], row)


def _generate_range(kernel: KernelSpec) -> str:
    """Return the LLVM IR that writes a range."""
    e = Emitter(kernel.symbol, 3)
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
