"""What stays in float32 on GPUs where 16 bits are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.backends import Aliasing
from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.ir import Graph
from smelt.ops import (
    Concat,
    Conv,
    Flatten,
    Fused,
    GlobalAveragePool,
    Identity,
    Mul,
    Relu,
    Reshape,
    Softmax,
    Split,
    Stage,
)
from smelt.passes import assign_precision
from smelt.types import DType, TensorType
from tests.support.precision import candidates_in

if TYPE_CHECKING:
    from smelt.ir import Node, Value


class _Network:
    """A convolution of images, and what follows."""

    def __init__(self, side: int = 4) -> None:
        self.graph = Graph("logits")
        self.first = self.conv(
            self.graph.add_input("x", TensorType(DType.FLOAT32, (2, 8, side, side)))
        )

    def conv(self, x: Value) -> Value:
        w = self.graph.add_constant(np.zeros((8, 8, 1, 1), np.float32), "w")
        return self.add(Conv((1, 1)), x, w)

    def add(self, op: Any, *inputs: Value) -> Value:
        return self.graph.add(op, *inputs, name=f"node{len(self.graph.nodes)}").output

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.add(Reshape(), x, self.graph.add_constant(np.array(shape, np.int64), "shape"))


def _types(node: Node | None) -> tuple[set[DType], set[DType]]:
    """In which types the kernels for a node read its first operand, and write its result."""
    assert node is not None
    tactics, _ = candidates_in(DType.FLOAT16, CudaBackend(jobs=1), node, CudaTarget(90))
    own = [t for t in tactics if not t.is_host_step and t.aliasing is Aliasing.NONE]
    assert own
    return {t.input_formats[0].dtype for t in own if t.input_formats[0]}, {
        t.output_formats[0].dtype for t in own
    }


_NARROW, _WIDE = {DType.FLOAT16}, {DType.FLOAT32}


def test_logits_stay_in_float32_from_what_makes_them_to_the_softmax() -> None:
    net = _Network()
    pooled = net.add(GlobalAveragePool(), net.first)
    classes = net.add(Softmax(axis=1), net.add(Flatten(axis=1), pooled))
    net.graph.outputs += [net.conv(net.reshape(classes, 2, 8, 1, 1))]
    assert _types(net.first.producer) == (_NARROW, _NARROW)
    assert _types(pooled.producer) == (_NARROW, _WIDE)
    assert _types(classes.producer) == (_WIDE, _NARROW)


def test_logits_that_are_joined_stay_in_float32_if_all_do() -> None:
    net = _Network()
    parts = [net.reshape(net.conv(net.first), 2, 8, 16) for _ in range(2)]
    classes = net.add(Softmax(axis=1), net.add(Concat(2), *parts))
    net.graph.outputs += [classes]
    assert [_types(p.producer.inputs[0].producer) for p in parts] == [(_NARROW, _WIDE)] * 2  # type: ignore[union-attr]
    assert _types(classes.producer) == (_WIDE, _WIDE)


def test_what_is_joined_or_cut_stays_in_one_type() -> None:
    net = _Network()
    alone, other = net.conv(net.first), net.conv(net.first)
    joined = net.add(Softmax(axis=1), net.add(Concat(2), alone, other))
    whole = net.conv(net.first)
    halves = net.graph.add(Split(axis=1, num_outputs=2), whole, name="halves").outputs
    part = net.add(Softmax(axis=1), halves[0])
    net.graph.outputs += [joined, net.add(Relu(), other), part, net.add(Relu(), halves[1])]
    for made in (alone, other, whole):
        assert _types(made.producer) == (_NARROW, _NARROW)
    for softened in (joined, part):
        assert _types(softened.producer) == (_NARROW, _WIDE)


def test_what_others_read_too_is_stored_in_16_bits() -> None:
    net = _Network()
    logits = net.conv(net.first)
    net.graph.outputs += [net.add(Softmax(axis=1), logits), net.add(Relu(), logits)]
    assert _types(logits.producer) == (_NARROW, _NARROW)
    assert _types(net.graph.nodes[-2]) == (_NARROW, _WIDE)


@pytest.mark.parametrize(("side", "made"), [(128, _WIDE), (256, _NARROW)])
def test_many_logits_are_stored_in_16_bits(side: int, made: set[DType]) -> None:
    net = _Network(side)
    net.graph.outputs += [net.add(Softmax(axis=1), net.conv(net.first))]
    assert _types(net.graph.nodes[-1]) == (made, _WIDE)


def test_a_binding_takes_what_was_not_rounded_however_it_is_reshaped() -> None:
    net = _Network(512)
    result = net.conv(net.first)
    net.graph.outputs += [net.reshape(net.add(Identity(), result), -1)]
    assert _types(result.producer) == (_NARROW, _WIDE)


def test_inputs_of_the_network_are_rounded_as_elsewhere() -> None:
    net = _Network()
    (x,) = net.graph.inputs
    net.graph.outputs += [net.add(Softmax(axis=1), x)]
    assert _types(net.graph.nodes[-1]) == (_NARROW, _WIDE)


def test_the_mask_of_a_softmax_is_read_as_it_is_stored() -> None:
    net = _Network()
    logits, mask = net.conv(net.first), net.conv(net.first)
    op = Fused(Softmax(axis=1), 1, (Stage(Mul(), (-1, 1)),))
    masked = net.add(op, logits, mask)
    net.graph.outputs += [net.conv(masked), net.add(Relu(), mask)]
    assign_precision(net.graph.nodes, DType.FLOAT16, supports_mixed_precision=True)
    assert masked.producer is not None
    tactics, _ = CudaBackend(jobs=1).candidates(masked.producer, CudaTarget(90))
    own = [t for t in tactics if not t.is_host_step]
    read = {tuple(fmt.dtype for fmt in t.input_formats if fmt) for t in own}
    assert own
    assert read == {(DType.FLOAT32, DType.FLOAT16)}
