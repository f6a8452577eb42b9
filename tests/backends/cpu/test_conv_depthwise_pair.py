"""A convolution and the depthwise one behind it: as one kernel, and as two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

import smelt
from smelt.backends.cpu import CpuBackend, host_target
from smelt.backends.cpu.families.unfused_conv_depthwise import UnfusedConvDepthwiseFamily
from smelt.interp import interpret
from smelt.ir import Graph
from smelt.ops import Add, Conv, ConvTranspose, FusedPair, Relu
from smelt.tuner import CostModelTimer
from smelt.types import DType, SymbolicDim, TensorType
from tests.support.cpu_families import refusal_reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.ir import Node, Op, Value
    from smelt.types import Dim

_FEW, _MANY, _EXTENT = 8, 96, 40
_BETWEEN_BYTES = _MANY * _EXTENT * _EXTENT * 4


def _weights(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def _network(*, residual: bool = False) -> Graph:
    """An inverted residual, as MobileNetV2 has it."""
    graph = Graph("inverted")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (2, _FEW, _EXTENT, _EXTENT)))
    expand = graph.add_constant(_weights(_MANY, _FEW, 1, 1), "expand")
    taps = graph.add_constant(_weights(_MANY, 1, 3, 3), "taps")
    project = graph.add_constant(_weights(_FEW, _MANY, 1, 1), "project")
    wide = graph.add(Relu(), graph.add(Conv((1, 1)), x, expand, name="a").output, name="b")
    deep = Conv((3, 3), pads=(1, 1, 1, 1), group=_MANY)
    filtered = graph.add(Relu(), graph.add(deep, wide.output, taps, name="c").output, name="d")
    y = graph.add(Conv((1, 1)), filtered.output, project, name="e").output
    graph.outputs.append(graph.add(Add(), x, y, name="f").output if residual else y)
    return graph


def _built_by(graph: Graph, family: str) -> smelt.Engine:
    def seconds(_: CostModelTimer, node: Node, tactics: Sequence[Tactic]) -> list[float]:
        del node
        return [t.estimated_seconds + (t.family not in (family, "conv")) for t in tactics]

    with mock.patch.object(CostModelTimer, "seconds", seconds):
        return smelt.build(graph, tune="none")


@pytest.mark.parametrize("family", ["fused_conv_depthwise", "unfused_conv_depthwise"])
@pytest.mark.parametrize("residual", [False, True])
def test_an_inverted_residual_is_right_on_any_number_of_threads(
    family: str, *, residual: bool
) -> None:
    graph = _network(residual=residual)
    inputs = {"x": _weights(2, _FEW, _EXTENT, _EXTENT)}
    (wanted,) = interpret(graph, inputs).values()
    runs: list[Any] = []
    with _built_by(graph, family) as engine:
        assert any(layer.tactic.startswith(family) for layer in engine.layers)
        for threads in (1, 2, 3):
            with engine.create_context(threads=threads) as context:
                runs.extend(context.run(inputs).values())
    np.testing.assert_allclose(runs[0], wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0], other)


def test_panel_by_panel_the_tensor_between_is_never_stored() -> None:
    sizes: dict[str, int] = {}
    for family in ("fused_conv_depthwise", "unfused_conv_depthwise"):
        with _built_by(_network(), family) as engine:
            sizes[family] = engine.header.plans[0].arena_bytes
    assert sizes["fused_conv_depthwise"] <= sizes["unfused_conv_depthwise"] - _BETWEEN_BYTES


def test_the_layers_of_both_are_named() -> None:
    with smelt.build(_network(), tune="none") as engine:
        names = [layer.name for layer in engine.layers]
    assert "a + b + c + d" in names


def _candidates(shape: tuple[Dim, ...]) -> tuple[set[str], list[str]]:
    """Families that run a chain on such images, and the reasons of the others."""
    graph = Graph("unfused_conv_depthwise")
    x = graph.add_input("x", TensorType(DType.FLOAT32, shape))
    expand = graph.add_constant(_weights(20, 4, 1, 1), "expand")
    taps = graph.add_constant(_weights(20, 1, 3, 3), "taps")
    op = FusedPair(Conv((1, 1)), 2, Conv((3, 3), pads=(1, 1, 1, 1), group=20))
    node = graph.add(op, x, expand, taps, name="node")
    tactics, refusals = CpuBackend().candidates(node, host_target())
    return {t.family for t in tactics}, [str(r) for r in refusals]


def test_images_of_any_size_are_left_to_two_kernels() -> None:
    families, refusals = _candidates((1, 4, SymbolicDim.symbol("h"), 9))
    assert families == {"unfused_conv_depthwise", "reference"}
    assert (
        "fused_conv_depthwise: the image's height or width is not known at build time" in refusals
    )
    assert _candidates((SymbolicDim.symbol("n"), 4, 9, 9))[0] == {
        "unfused_conv_depthwise",
        "fused_conv_depthwise",
        "reference",
    }


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (Conv((1, 1)), "the weights 'expand' are not constant; the weights are not constant"),
        (ConvTranspose((1, 1)), "the weights are not constant"),
    ],
    ids=["both refused", "another op"],
)
def test_a_pair_is_refused_with_the_reasons_of_both(first: Op, reason: str) -> None:
    assert (
        refusal_reason(
            UnfusedConvDepthwiseFamily(), _pair(first, are_constant=False), host_target()
        )
        == reason
    )


def test_a_pair_that_begins_with_another_op_has_no_empty_refusal() -> None:
    node = _pair(ConvTranspose((1, 1)), are_constant=True)
    assert not list(UnfusedConvDepthwiseFamily().tactics(node, host_target()))


def _pair(first: Op, *, are_constant: bool) -> Node:
    """A pair of an op and a depthwise convolution, with constant weights or not."""
    graph = Graph("pair")

    def add(name: str, *shape: int) -> Value:
        if are_constant:
            return graph.add_constant(_weights(*shape), name)
        return graph.add_input(name, TensorType(DType.FLOAT32, shape))

    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 20, 9, 9)))
    op = FusedPair(first, 2, Conv((3, 3), group=20))
    return graph.add(op, x, add("expand", 20, 20, 1, 1), add("taps", 20, 1, 3, 3), name="node")


def test_rows_of_a_large_image_are_cut_to_fit_the_cache() -> None:
    graph = Graph("unfused_conv_depthwise")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 4, 1000, 2000)))
    expand = graph.add_constant(_weights(20, 4, 1, 1), "expand")
    taps = graph.add_constant(_weights(20, 1, 3, 3), "taps")
    op = FusedPair(Conv((1, 1)), 2, Conv((3, 3), pads=(1, 1, 1, 1), group=20))
    node = graph.add(op, x, expand, taps, name="node")
    tactics, _ = CpuBackend().candidates(node, host_target())
    rows = [dict(t.parameters)["rows"] for t in tactics if t.family == "fused_conv_depthwise"]
    assert rows
    assert all(isinstance(count, int) and count <= 8 for count in rows)
