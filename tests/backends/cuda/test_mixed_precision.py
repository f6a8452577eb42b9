"""Layers that compute in float32 among others in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.backends import Aliasing
from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.ir import Graph
from smelt.ops import Concat, Conv, Relu, Reshape, Softmax, Split
from smelt.passes import assign_precision
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from smelt.ir import Node, Value

_TARGET = CudaTarget(90)
_NARROW, _WIDE = {DType.FLOAT16}, {DType.FLOAT32}


class _Network:
    """Convolutions, each named, and what is between them."""

    def __init__(self) -> None:
        self.graph = Graph("mixed")
        x = self.graph.add_input("x", TensorType(DType.FLOAT32, (2, 8, 4, 4)))
        self.first = self.conv(x, "first")

    def conv(self, x: Value, name: str, group: int = 1) -> Value:
        w = self.graph.add_constant(np.ones((8, 8 // group, 1, 1), np.float32), "w")
        return self.graph.add(Conv((1, 1), group=group), x, w, name=name).output

    def add(self, op: Any, *inputs: Value) -> Value:
        return self.graph.add(op, *inputs, name=f"node{len(self.graph.nodes)}").output


def _tactics(net: _Network, value: Value, *kept: str) -> list[Any]:
    node = value.producer
    assert node is not None
    assign_precision(net.graph.nodes, DType.FLOAT16, kept, supports_mixed_precision=True)
    found, _ = CudaBackend(jobs=1).candidates(node, _TARGET)
    own = [t for t in found if not t.is_host_step]
    assert own
    return own


def _types(net: _Network, value: Value, *kept: str) -> tuple[set[DType], set[DType]]:
    """In which types what makes a value reads its first operand, and stores the value."""
    own = _tactics(net, value, *kept)
    return {t.input_formats[0].dtype for t in own}, {t.output_formats[0].dtype for t in own}


def _packed(node: Node, tactic: Any) -> set[DType]:
    family = CudaBackend(jobs=1).family(tactic.family)
    return {constant.type.dtype for constant in family.pack(node, tactic)}


def test_a_kept_layer_reads_and_multiplies_float32_and_rounds_its_result() -> None:
    net = _Network()
    kept = net.conv(net.first, "kept")
    net.graph.outputs += [net.conv(kept, "last")]
    assert _types(net, net.first, "kept") == (_NARROW, _WIDE)
    assert _types(net, kept, "kept") == (_WIDE, _NARROW)
    assert _types(net, net.graph.outputs[0], "kept") == (_NARROW, _WIDE)
    (node,) = (n for n in net.graph.nodes if n.name == "kept")
    assert all(_packed(node, t) == _WIDE for t in _tactics(net, kept, "kept"))


def test_between_kept_layers_nothing_is_rounded() -> None:
    net = _Network()
    second = net.conv(net.first, "second")
    net.graph.outputs += [net.conv(second, "third")]
    assert _types(net, net.first, "first", "second", "third") == (_WIDE, _WIDE)
    assert _types(net, second, "first", "second", "third") == (_WIDE, _WIDE)


def test_what_is_handed_on_to_a_kept_layer_stays_in_float32_all_the_way() -> None:
    net = _Network()
    halves = net.graph.add(Split(axis=1, num_outputs=2), net.first, name="halves").outputs
    joined = net.add(Concat(1), *halves)
    net.graph.outputs += [net.conv(joined, "kept")]
    assert _types(net, net.first, "kept") == (_NARROW, _WIDE)
    assert _types(net, joined, "kept") == (_WIDE, _WIDE)
    assert _types(net, joined, "first") == _types(net, joined)


def test_what_is_divided_and_joined_again_and_again_is_followed_once() -> None:
    net = _Network()
    x = net.first
    for number in range(400):
        node = net.graph.add(Split(axis=1, num_outputs=2), x, name=f"halves{number}")
        x = net.add(Concat(1), *node.outputs)
    net.graph.outputs += [net.conv(x, "kept")]
    assert _types(net, net.first, "kept") == (_NARROW, _WIDE)
    assert _types(net, net.first, "other") == (_NARROW, _NARROW)


def test_windows_are_of_one_type() -> None:
    net = _Network()
    shape = net.graph.add_constant(np.array((2, 8, 4, 4), np.int64), "shape")
    flat = net.add(Reshape(), net.first, shape)
    net.graph.outputs += [net.conv(flat, "kept"), net.add(Relu(), flat)]
    windows = [t for t in _tactics(net, flat, "kept") if t.aliasing is not Aliasing.NONE]
    assert all(
        t.input_formats[0].dtype is t.output_formats[0].dtype is DType.FLOAT32 for t in windows
    )


def test_logits_of_a_kept_layer_stay_in_float32() -> None:
    net = _Network()
    logits = net.conv(net.first, "kept")
    net.graph.outputs += [net.add(Softmax(axis=1), logits)]
    assert _types(net, logits, "kept") == (_WIDE, _WIDE)
