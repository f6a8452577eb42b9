"""In which type nodes compute, and results are stored, in a 16-bit build."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt.ir import Graph, clone
from smelt.ops import Concat, Conv, GlobalAveragePool, Relu, Softmax, Split
from smelt.passes import assign_precision, fuse_pair_nodes
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from smelt.ir import Value

_HALF, _SINGLE = DType.FLOAT16, DType.FLOAT32


class _Network:
    """Convolutions of images, and what is between them."""

    def __init__(self) -> None:
        self.graph = Graph("mixed")
        self.x = self.graph.add_input("x", TensorType(_SINGLE, (2, 8, 4, 4)))

    def conv(self, x: Value, name: str) -> Value:
        w = self.graph.add_constant(np.ones((8, 8, 1, 1), np.float32), "w")
        return self.graph.add(Conv((1, 1)), x, w, name=name).output

    def add(self, op: Any, *inputs: Value, name: str) -> Value:
        return self.graph.add(op, *inputs, name=name).output

    def assigned(
        self, *float32_layers: str, supports_mixed_precision: bool = True
    ) -> dict[str, tuple[Any, Any]]:
        """For each node, its precision and the storage type of its first result."""
        assign_precision(
            self.graph.nodes,
            _HALF,
            float32_layers,
            supports_mixed_precision=supports_mixed_precision,
        )
        return {node.name: (node.precision, node.output.storage) for node in self.graph.nodes}


def test_every_node_computes_in_16_bits_and_outputs_are_not_rounded() -> None:
    net = _Network()
    net.graph.outputs += [net.conv(net.conv(net.x, "first"), "last")]
    assert net.assigned() == {"first": (_HALF, _HALF), "last": (_HALF, _SINGLE)}


def test_a_float32_layer_reads_float32_and_stores_for_its_readers() -> None:
    net = _Network()
    values = [net.conv(net.x, "a")]
    for name in "bcd":
        values.append(net.conv(values[-1], name))
    net.graph.outputs += values[-1:]
    assert net.assigned("b") == {
        "a": (_HALF, _SINGLE),
        "b": (_SINGLE, _HALF),
        "c": (_HALF, _HALF),
        "d": (_HALF, _SINGLE),
    }


def test_what_is_passed_to_a_float32_layer_stays_in_float32_all_the_way() -> None:
    net = _Network()
    first = net.conv(net.x, "first")
    halves = net.graph.add(Split(axis=1, num_outputs=2), first, name="halves").outputs
    net.graph.outputs += [net.conv(net.add(Concat(1), *halves, name="joined"), "kept")]
    wide = (_SINGLE, _SINGLE)
    assert net.assigned("kept") == {
        "first": (_HALF, _SINGLE), "halves": wide, "joined": wide, "kept": wide
    }  # fmt: skip


def test_logits_stay_in_float32_and_so_does_their_softmax() -> None:
    net = _Network()
    pooled = net.add(GlobalAveragePool(), net.conv(net.x, "first"), name="pooled")
    classes = net.add(Softmax(axis=1), pooled, name="classes")
    net.graph.outputs += [net.conv(classes, "last")]
    assert net.assigned() == {
        "first": (_HALF, _HALF),
        "pooled": (_HALF, _SINGLE),
        "classes": (_SINGLE, _HALF),
        "last": (_HALF, _SINGLE),
    }


def test_logits_that_are_joined_to_a_constant_stay_in_float32() -> None:
    net = _Network()
    pooled = net.add(GlobalAveragePool(), net.conv(net.x, "first"), name="pooled")
    constant = net.graph.add_constant(np.ones((2, 1, 1, 1), np.float32), "constant")
    joined = net.add(Concat(1), constant, pooled, name="joined")
    net.graph.outputs += [net.add(Softmax(axis=1), joined, name="classes")]
    assert net.assigned()["joined"] == (_SINGLE, _SINGLE)


def test_without_kernels_for_both_types_only_outputs_are_float32() -> None:
    net = _Network()
    classes = net.add(Softmax(axis=1), net.conv(net.x, "first"), name="classes")
    net.graph.outputs += [classes]
    assigned = net.assigned("first", supports_mixed_precision=False)
    assert assigned == {"first": (_HALF, _HALF), "classes": (_HALF, _SINGLE)}


def test_a_second_assignment_leaves_nothing_of_the_first() -> None:
    net = _Network()
    net.graph.outputs += [net.conv(net.conv(net.x, "first"), "last")]
    before = net.assigned()
    net.assigned("last")
    assert net.assigned() == before
    assign_precision(net.graph.nodes, _SINGLE, ("first",), supports_mixed_precision=True)
    types = {t for n in net.graph.nodes for t in (n.precision, n.output.storage)}
    assert types == {_SINGLE}


@pytest.mark.parametrize("is_shared", [False, True])
def test_copies_and_fused_pairs_have_the_precision_of_their_nodes(is_shared: bool) -> None:
    net = _Network()
    first = net.conv(net.x, "first")
    second = net.conv(first, "second")
    net.graph.outputs += [net.add(Relu(), second, name="last")]
    if is_shared:
        net.graph.outputs += [net.add(Softmax(axis=1), first, name="classes")]
    net.assigned("last")
    copy = clone(net.graph)
    pair = fuse_pair_nodes(copy, *copy.nodes[:2])
    shared = [_HALF] * is_shared  # though only a softmax reads it now: its tactic is chosen
    assert (pair.precision, [v.storage for v in pair.outputs]) == (_HALF, [_SINGLE, *shared])
    others = {n.name: (n.precision, n.output.storage) for n in copy.nodes[1:]}
    assert others == {n.name: (n.precision, n.output.storage) for n in net.graph.nodes[2:]}


def test_a_long_chain_of_parts_is_followed_once() -> None:
    net = _Network()
    value = net.conv(net.x, "first")
    for number in range(4000):
        parts = net.graph.add(Split(axis=1, num_outputs=2), value, name=f"halves{number}").outputs
        value = net.add(Concat(1), *parts, name=f"joined{number}")
    net.graph.outputs += [net.add(Softmax(axis=1), value, name="classes")]
    start = time.process_time()
    assigned = net.assigned("nothing")
    assert time.process_time() - start < 30  # following each value alone takes minutes
    assert assigned["first"] == (_HALF, _SINGLE)
    assert assigned["joined3999"] == (_SINGLE, _SINGLE)
