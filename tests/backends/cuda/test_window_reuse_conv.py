"""Windows slide over shared memory where that may pay, and Triton can say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smelt.backends import Tactic, WeightStore, build_plan
from smelt.backends.cuda import CompilerPool, CudaBackend, CudaTarget
from smelt.backends.cuda.families import window_reuse_conv
from smelt.builder import _plan_recipe
from smelt.devices.cuda import CudaKernel
from smelt.engine import Launch
from smelt.errors import EngineFormatError
from smelt.ir import Graph, Node
from smelt.ops import Conv
from smelt.types import DType, TensorType

_HOPPER = CudaTarget(90)
_WINDOW = Conv((3, 3), pads=(1, 1, 1, 1))


def _convolution(
    op: Conv = _WINDOW, channels: int = 64, dtype: DType = DType.FLOAT16, size: int = 28
) -> tuple[Graph, Node]:
    graph = Graph("one")
    x = graph.add_input("x", TensorType(dtype, (32, channels, size, size)))
    array = np.zeros((64, channels // op.group, *op.kernel_shape), dtype.numpy)
    node = graph.add(op, x, graph.add_constant(array, "w"), name="node")
    graph.outputs += node.outputs
    return graph, node


def _window_reuse_tactics(node: Node, target: CudaTarget = _HOPPER) -> list[Tactic]:
    return [t for t in CudaBackend().candidates(node, target)[0] if t.family == "window_reuse"]


def _reasons(node: Node, target: CudaTarget = _HOPPER) -> list[str]:
    return [
        r.reason for r in CudaBackend().candidates(node, target)[1] if r.family == "window_reuse"
    ]


@pytest.fixture
def with_gluon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever Triton there is: nothing is compiled."""
    monkeypatch.setattr(window_reuse_conv, "gluon_unavailable_reason", lambda: None)


@pytest.mark.usefixtures("with_gluon")
@pytest.mark.parametrize("size", [28, 56])
def test_they_are_never_the_first_by_estimate(size: int) -> None:
    _, node = _convolution(size=size)
    tactics, _ = CudaBackend().candidates(node, _HOPPER)
    assert _window_reuse_tactics(node)
    assert min(tactics, key=lambda t: t.estimated_seconds).family == "conv"


@pytest.mark.usefixtures("with_gluon")
@pytest.mark.parametrize(
    ("op", "channels", "target", "reason"),
    [
        (Conv((1, 1)), 64, _HOPPER, "only windows larger than 1x1"),
        (replace(_WINDOW, strides=(2, 2)), 64, _HOPPER, "with strides (2, 2)"),
        (replace(_WINDOW, group=2), 64, _HOPPER, "grouped"),
        (_WINDOW, 20, _HOPPER, "not a multiple of the vector"),
        (_WINDOW, 64, CudaTarget(80), "no tensor cores that read both operands"),
        (
            _WINDOW,
            64,
            CudaTarget(80, newer_capabilities=(90,)),
            "no tensor cores that read both operands",
        ),
        (_WINDOW, 8, _HOPPER, "mostly padding"),
    ],
    ids=["one tap", "steps", "groups", "no vectors", "old", "old as well", "few channels"],
)
def test_they_are_refused_where_nothing_is_gained(
    op: Conv, channels: int, target: CudaTarget, reason: str
) -> None:
    _, node = _convolution(op, channels)
    assert not _window_reuse_tactics(node, target)
    (found,) = _reasons(node, target)
    assert reason in found


@pytest.mark.usefixtures("with_gluon")
def test_they_are_not_offered_where_most_multiprocessors_would_have_none() -> None:
    _, node = _convolution(size=9)
    assert _window_reuse_tactics(node, replace(_HOPPER, multiprocessors=16))
    assert not _window_reuse_tactics(node)


@pytest.mark.usefixtures("with_gluon")
def test_they_are_refused_where_what_windows_reach_over_has_no_room() -> None:
    assert _window_reuse_tactics(_convolution(channels=128, size=128)[1])
    _, node = _convolution(channels=128, size=512)
    assert not _window_reuse_tactics(node)
    (reason,) = _reasons(node)
    assert "windows exceed shared memory" in reason


def test_they_multiply_sixteen_bits_alone() -> None:
    _, node = _convolution(dtype=DType.FLOAT32)
    assert not _window_reuse_tactics(node)


@pytest.mark.parametrize("version", ["3.8.0", "3.9.0", "4.0.1"])
def test_they_are_refused_where_triton_has_no_views_from_any_row_on(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(_name: str) -> str:
        return version

    monkeypatch.setattr("importlib.metadata.version", installed)
    _, node = _convolution()
    (reason,) = _reasons(node)
    assert f"triton {version}" in reason
    assert not _window_reuse_tactics(node)


def test_who_loads_an_engine_of_them_with_another_triton_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, node = _convolution()
    with monkeypatch.context() as patch:
        patch.setattr(window_reuse_conv, "gluon_unavailable_reason", lambda: None)
        tactic, backend = _window_reuse_tactics(node)[0], CudaBackend()
        assert _plan_recipe._checked(tactic, node, backend, _HOPPER) == tactic  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(
        window_reuse_conv, "gluon_unavailable_reason", lambda: "triton 3.8 has none; 3.6 has"
    )
    with pytest.raises(
        EngineFormatError,
        match=r"window_reuse does not support this node .*\(triton 3\.8 has none; 3\.6 has\)",
    ):
        _plan_recipe._checked(tactic, node, backend, _HOPPER)  # pyright: ignore[reportPrivateUsage]


def test_what_they_need_of_shared_memory_is_what_a_block_may_have(compilers: CompilerPool) -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")
    graph, node = _convolution()
    if not (tactics := _window_reuse_tactics(node)):
        pytest.skip(_reasons(node)[0])
    backend = CudaBackend(pool=compilers)
    assembled = build_plan(graph, {node: tactics[0]}, backend, WeightStore())
    launches = [s for s in assembled.plan.steps if isinstance(s, Launch)]
    (launch,) = (s for s in launches if s.kernel.family == "window_reuse")
    record = CudaKernel.from_bytes(backend.records(launch.kernel, _HOPPER), 0)
    assert record.dynamic_shared_bytes <= _HOPPER.shared_bytes
    assert record.supports_pdl
