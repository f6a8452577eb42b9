"""Quantised layers of any scales and zero points: what passes and kernels make of them.

A quantised result may differ by one step where both roundings are within float rounding of a tie:
scales are multiplied beforehand, and so rounded elsewhere. Kernels give what the rewritten graph
gives, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt
from smelt import ops
from smelt.errors import ShapeError
from smelt.interp import interpret
from smelt.ir import Graph, Operand, clone
from smelt.passes import DEFAULT_PIPELINE, run_passes
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from smelt.ir import Array, Value

Draw = Any

_SCALES = st.floats(2**-10, 1.0, width=32)
_BYTES = st.sampled_from(["uint8", "int8"])


class _Layer:
    """A convolution or product with its pairs, perhaps a residual and a rectifier."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.graph = draw, Graph("layer")
        self.random = np.random.default_rng(draw(st.integers(0, 1 << 16)))
        self.count = 0

    def constant(self, array: Any) -> Value:
        self.count += 1
        return self.graph.add_constant(np.asarray(array), f"constant{self.count}")

    def add(self, op: ops.Op, *inputs: Value | None) -> Value:
        return self.graph.add(op, *inputs, name=f"{op.name}{len(self.graph.nodes)}").output

    def wrapped(self, x: Value) -> Value:
        """What is left of a value after it was quantised."""
        kind = np.dtype(self.draw(_BYTES))
        limits = np.iinfo(kind.name)
        zero = self.constant(np.array(self.draw(st.integers(limits.min, limits.max)), kind))
        scale = self.constant(np.float32(self.draw(_SCALES)))
        steps = self.add(ops.QuantizeLinear(), x, scale, zero)
        return self.add(ops.DequantizeLinear(), steps, scale, zero)

    def convolution(self, x: Value) -> Value:
        channels = x.tensor.shape[1]
        assert isinstance(channels, int)
        group = self.draw(st.sampled_from([1, channels]))
        filters = group if group > 1 else self.draw(st.integers(1, 40))
        size, pad = self.draw(st.sampled_from([(1, 0), (3, 0), (3, 1)]))
        several = self.draw(st.booleans())
        count = (filters,) if several else ()
        factors = np.asarray(self.random.uniform(1e-3, 0.1, count), np.float32)
        integers = self.random.integers(-128, 128, (filters, channels // group, size, size))
        weights = self.constant(np.asarray(integers, np.int8))
        real = self.add(ops.DequantizeLinear(axis=0), weights, self.constant(factors))
        bias = self.constant(np.asarray(self.random.normal(size=filters), np.float32))
        op = ops.Conv((size, size), pads=(pad,) * 4, group=group)
        return self.add(op, x, real, bias)

    def build(self) -> Graph:
        channels = self.draw(st.sampled_from([1, 3, 8, 19, 70]))
        shape = (self.draw(st.integers(1, 2)), channels, self.draw(st.integers(3, 9)), 7)
        x = self.graph.add_input("x", TensorType(DType.FLOAT32, shape))
        made = self.convolution(self.wrapped(x))
        if self.draw(st.booleans()):
            made = self.wrapped(made)
            other = self.graph.add_input("y", made.tensor)
            made = self.add(ops.Add(), made, self.wrapped(other))
        if self.draw(st.booleans()):
            made = self.add(ops.Relu(), made)
        kind = np.dtype(self.draw(_BYTES))
        zero = self.constant(np.array(self.draw(st.integers(0, 9)), kind))
        scale = self.constant(np.float32(self.draw(_SCALES)))
        self.graph.outputs = [self.add(ops.QuantizeLinear(), made, scale, zero)]
        return self.graph


def _inputs(graph: Graph) -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {v.name: [d for d in v.tensor.shape if isinstance(d, int)] for v in graph.inputs}
    return {name: random.normal(size=s).astype(np.float32) for name, s in shapes.items()}


@settings(max_examples=25)
@given(st.data())
def test_passes_move_no_quantised_result_by_more_than_a_step(data: st.DataObject) -> None:
    graph = _Layer(data.draw).build()
    rewritten = clone(graph)
    run_passes(rewritten, DEFAULT_PIPELINE)
    inputs = _inputs(graph)
    (before,), (after,) = (interpret(g, inputs).values() for g in (graph, rewritten))
    gap = np.abs(before.astype(np.int64) - after.astype(np.int64))
    # Two roundings one after the other may move a result twice.
    assert gap.max(initial=0) <= 2
    assert np.count_nonzero(gap) <= max(2, gap.size // 100)


@settings(max_examples=8)
@given(st.data())
def test_kernels_give_what_the_rewritten_layer_gives_bit_for_bit(data: st.DataObject) -> None:
    graph = _Layer(data.draw).build()
    rewritten, inputs = clone(graph), _inputs(graph)
    run_passes(rewritten, DEFAULT_PIPELINE)
    (wanted,) = interpret(rewritten, inputs).values()
    with smelt.build(graph, tune="none") as engine, engine.create_context(threads=2) as context:
        (made,) = context.run(inputs).values()
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("op", [ops.QuantizeLinear(), ops.DequantizeLinear()])
@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_are_no_steps_are_refused(op: ops.Op, scale: float) -> None:
    kind = DType.FLOAT32 if isinstance(op, ops.QuantizeLinear) else DType.UINT8
    scales = Operand.constant(np.array([0.5, scale, 1.0], np.float32))
    with pytest.raises(ShapeError, match=r"scale at index 1 is .*positive and finite"):
        op.infer([Operand(TensorType(kind, (1, 3, 4))), scales])


@pytest.mark.parametrize("op", [ops.QuantizeLinear(), ops.DequantizeLinear()])
def test_scales_and_zero_points_of_the_wrong_shape_are_refused(op: ops.Op) -> None:
    kind = DType.FLOAT32 if isinstance(op, ops.QuantizeLinear) else DType.UINT8
    x = Operand(TensorType(kind, (1, 3, 4)))
    scale = Operand.constant(np.ones(4, np.float32))
    with pytest.raises(ShapeError, match=r"of the scale is \[4\]; it must be \[3\]"):
        op.infer([x, scale])
    zero = Operand.constant(np.zeros(4, np.uint8))
    with pytest.raises(ShapeError, match=r"of the zero point is \[4\]; it must be \[3\]"):
        op.infer([x, Operand.constant(np.ones(3, np.float32)), zero])


def test_without_an_axis_there_is_one_scale() -> None:
    x = Operand(TensorType(DType.FLOAT32, (1, 3, 4)))
    with pytest.raises(ShapeError, match="without an axis it must be one number"):
        ops.QuantizeLinear(axis=None).infer([x, Operand.constant(np.ones(3, np.float32))])
