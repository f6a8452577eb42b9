"""Quantisation and dequantisation, with one scale or one per channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, LaunchScalars, Operands, Tactic, linear_format
from smelt.backends._fused_programs import layouts_of
from smelt.backends._iteration_space import iteration_axes
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._elementwise import to_compute_type, to_storage_type
from smelt.backends.cpu._emit import Emitter, Int, Reg, vector_type
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._loop_nest import LoopNest, write_loop_nest
from smelt.backends.cpu._quantization import LIMITS, as_float, dequantized, quantized
from smelt.backends.cpu._refusals import check_dtype
from smelt.backends.cpu.families.elementwise import load_along
from smelt.backends.cpu.families.reduce import combine, reduce_lanes
from smelt.engine import Json, KernelSpec, Launch, Step, View
from smelt.errors import InternalError
from smelt.ops import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from smelt.types import Dim, DType, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node

_QUANTIZABLE: Final = (DType.FLOAT32, DType.FLOAT16, DType.INT32)
"""Element types that can be quantised."""


class QuantizeFamily(Family["CpuTarget"]):
    """QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear, computed in float32.

    Nodes without an axis are elementwise ops and belong to the elementwise family.
    """

    name: ClassVar[str] = "quantize"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, QuantizeLinear | DequantizeLinear | DynamicQuantizeLinear):
            return
        if node.op.elementwise:
            return
        _check(node)
        first, *others = (None if v is None else linear_format(v) for v in node.inputs)
        result, *range_results = map(linear_format, node.outputs)
        for layout in layouts_of(node.outputs[0].tensor.rank):
            inputs = (first and replace(first, layout=layout), *others)
            results = (replace(result, layout=layout), *range_results)
            yield Tactic(self.name, (), inputs, results, estimated_seconds=5e-6)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        x = input_view(operands, 0)
        if isinstance(node.op, DynamicQuantizeLinear):
            result, *range_outputs = operands.outputs
            return (
                _dynamic_range(x, *range_outputs),
                _apply_scale(x, range_outputs[0], range_outputs[1], result, 0, to_real=False),
            )
        if not isinstance(node.op, QuantizeLinear | DequantizeLinear) or node.op.axis is None:
            raise InternalError(
                f"{node} is not a QuantizeLinear or DequantizeLinear with scales along one axis"
            )
        scale, zero = input_view(operands, 1), (*operands.inputs[2:], None)[0]
        to_real = isinstance(node.op, DequantizeLinear)
        return (_apply_scale(x, scale, zero, operands.outputs[0], node.op.axis, to_real=to_real),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        lanes = target.vector_bits // 32
        if kernel["what"] == "dynamic_range":
            return _generate_dynamic_range(kernel, lanes)
        return _generate_apply_scale(kernel, lanes)


def _check(node: Node) -> None:
    """Check that the family supports a node."""
    scale = (*node.inputs[1:], None)[0]
    if scale is not None:
        check_dtype("the scale", scale.tensor.dtype, DType.FLOAT32)
    if isinstance(node.op, QuantizeLinear):
        check_dtype("the input", required_input(node, 0).tensor.dtype, *_QUANTIZABLE)
        check_dtype("the result", node.output.tensor.dtype, *LIMITS)


def _dynamic_range(x: View, scale: View, zero: View) -> Launch:
    """Return the launch that computes scale and zero point from a tensor's range."""
    scalars = LaunchScalars()
    loop_nest = LoopNest.over(iteration_axes(x.shape, [x.strides], 0), 1)
    spec = kernel_spec(
        QuantizeFamily.name, what="dynamic_range", axes=_axes_json(loop_nest, scalars)
    )
    return Launch(spec, (x, scale, zero), (1, 2), scalars.values, 1)


def _axes_json(loop_nest: LoopNest, scalars: LaunchScalars) -> Json:
    """Return all axes of the loop nest as a JSON value."""
    return tuple(a.json(scalars) for a in (*loop_nest.outer, loop_nest.row))


def _apply_scale(
    x: View, scale: View, zero: View | None, result: View, axis: int, *, to_real: bool
) -> Launch:
    """Return the launch that quantises, or dequantises if ``to_real``."""
    views = [x, scale, *([] if zero is None else [zero]), result]
    strides = [x.strides, *(_along(v, axis, len(x.shape)) for v in views[1:-1]), result.strides]
    loop_nest = LoopNest.over(iteration_axes(x.shape, strides, len(views) - 1), len(views))
    what = "dequantize" if to_real else "quantize"
    dtypes = tuple(v.dtype.value for v in views)
    return loop_nest.launch(QuantizeFamily.name, views, LaunchScalars(), what=what, dtypes=dtypes)


def _along(view: View, axis: int, rank: int) -> tuple[Dim, ...]:
    """Return the strides of a scalar, or of a vector along one axis, beside a tensor."""
    if not view.shape or view.shape == (1,):
        return (0,) * rank
    return tuple(view.strides[0] if a == axis % rank else 0 for a in range(rank))


def _generate_apply_scale(kernel: KernelSpec, lanes: int) -> str:
    """Return the LLVM IR that quantises or dequantises."""
    dtypes = [DType(d) for d in kernel["dtypes"]]
    e = Emitter(kernel.symbol, len(dtypes))
    convert = _dequantized if kernel["what"] == "dequantize" else _quantized

    sizes = [d.size_bytes for d in dtypes]

    def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
        for index, width in e.vector_steps(first, last, lanes if strides[-1] == 1 else 1):
            values = [
                load_along(e, start, stride, index, dtype, width)
                for start, stride, dtype in zip(starts[:-1], strides, dtypes[:-1], strict=False)
            ]
            result = convert(e, values, dtypes)
            e.store(result, e.at(starts[-1], e.mul(index, e.mul(strides[-1], sizes[-1]))))

    return write_loop_nest(e, kernel["loop_nest"], sizes, row)


def _quantized(e: Emitter, values: Sequence[Reg], dtypes: Sequence[DType]) -> Reg:
    """Return quantised elements from ``values`` (input, scale, optional zero point)."""
    steps = e.binary("fdiv", as_float(e, values[0], dtypes[0]), values[1])
    return quantized(e, steps, values[2] if len(values) > 2 else None, dtypes[-1])


def _dequantized(e: Emitter, values: Sequence[Reg], dtypes: Sequence[DType]) -> Reg:
    """Return dequantised elements from ``values`` (input, scale, optional zero point)."""
    zero = values[2] if len(values) > 2 else None
    return to_storage_type(e, dequantized(e, values[0], values[1], zero, dtypes[0]), dtypes[-1])


def _generate_dynamic_range(kernel: KernelSpec, lanes: int) -> str:
    """Return the LLVM IR that computes scale and zero point from the range of all elements.

    One worker runs it, since the range needs a single result. The range always includes 0, as ONNX
    DynamicQuantizeLinear requires.
    """
    e = Emitter(kernel.symbol, 3)
    axes = [tuple(e.extent(x) for x in axis) for axis in kernel["axes"]]
    width = lanes if axes[-1][1] == 1 else 1
    zero = e.constant(0.0, vector_type("float", width))
    one = e.constant(0.0, "float")
    low, high, low_rest, high_rest = _extremes(e, axes, e.pointer(0), (zero, zero, one, one), width)
    if width > 1:
        low = combine(e, "reduce_min", reduce_lanes(e, "reduce_min", low), low_rest)
        high = combine(e, "reduce_max", reduce_lanes(e, "reduce_max", high), high_rest)
    range_step = e.binary("fdiv", e.binary("fsub", high, low), e.constant(255.0, "float"))
    is_nonzero = e.compare_float("ogt", high, low)
    scale = e.select(is_nonzero, range_step, e.constant(1.0, "float"))
    zero_point = m.round_even(e, e.binary("fdiv", m.negative(e, low), scale))
    bounded = m.clamp_max(e, m.clamp_min(e, zero_point, 0.0), 255.0)
    e.store(scale, e.pointer(1))
    e.store(e.convert("trunc", e.convert("fptosi", bounded, "i32"), "i8"), e.pointer(2))
    return e.module()


def _extremes(
    e: Emitter, axes: Sequence[tuple[Int, ...]], start: Reg, initial: Sequence[Reg], width: int
) -> Sequence[Reg]:
    """Return the smallest and the largest element.

    The first two values cover full vectors, the last two the elements beyond them. ``initial``
    holds their start values.
    """
    (extent, stride), *inner = axes
    if inner:
        with e.loop(0, extent, carried=initial) as steps:
            at = e.at(start, e.mul(steps.index, e.mul(stride, 4)))
            steps.carry = _extremes(e, inner, at, steps.values, width)
        return steps.values
    full_end = e.mul(e.div(extent, width), width) if width > 1 else extent
    with e.loop(0, full_end, width, carried=initial[:2]) as steps:
        at = e.at(start, e.mul(steps.index, e.mul(stride, 4)))
        value = to_compute_type(e, e.load(vector_type("float", width), at), DType.FLOAT32)
        steps.carry = _extend_range(e, steps.values, value)
    with e.loop(full_end, extent, carried=initial[2:]) as singles:
        value = e.load("float", e.at(start, e.mul(singles.index, e.mul(stride, 4))))
        singles.carry = _extend_range(e, singles.values, value)
    return (*steps.values, *singles.values)


def _extend_range(e: Emitter, extremes: Sequence[Reg], value: Reg) -> tuple[Reg, Reg]:
    """Return the range extended by a value."""
    return (
        combine(e, "reduce_min", extremes[0], value),
        combine(e, "reduce_max", extremes[1], value),
    )
