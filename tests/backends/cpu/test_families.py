"""The dense families against the ops' references: every tactic, halos, gaps, tails, guard pages."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smelt.backends import NodeRefusedError
from smelt.backends.cpu import CpuTarget, compile_ir, host_target, link, target_named
from smelt.backends.cpu.families.conv import ConvFamily
from smelt.backends.cpu.families.deconv import DeconvFamily
from smelt.backends.cpu.families.depthwise import DepthwiseFamily
from smelt.backends.cpu.families.gemm import GemmFamily
from smelt.backends.cpu.families.lrn import LrnFamily
from smelt.backends.cpu.families.pool import PoolFamily
from smelt.backends.cpu.families.winograd import WinogradFamily
from smelt.ops import (
    LRN,
    Add,
    AveragePool,
    Clip,
    Conv,
    ConvTranspose,
    Fused,
    Gemm,
    GlobalAveragePool,
    GlobalMaxPool,
    LpPool,
    MatMul,
    MaxPool,
    Mul,
    PRelu,
    Relu,
    Sigmoid,
    Stage,
)
from tests.support.cpu_families import (
    assert_tactics_agree,
    kernels_of,
    make_node,
    random,
    refusal_reason,
    run_tactic,
    tactics_of,
)

if TYPE_CHECKING:
    from smelt.backends import Family
    from smelt.ir import Case, Op


def _targets() -> list[CpuTarget]:
    """Every vector width that this machine can run."""
    if host_target().architecture != "x86_64":
        return [host_target()]
    narrow = [target_named("x86-64-v2"), target_named("x86-64-v3")]
    return [t for t in narrow if t.vector_bits < host_target().vector_bits] + [host_target()]


TARGETS = _targets()
every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)

FAMILIES: list[tuple[Family[CpuTarget], tuple[type[Op], ...]]] = [
    (ConvFamily(), (Conv,)),
    (GemmFamily(), (Gemm, MatMul)),
    (DeconvFamily(), (ConvTranspose,)),
    (PoolFamily(), (MaxPool, AveragePool, LpPool, GlobalAveragePool, GlobalMaxPool)),
    (LrnFamily(), (LRN,)),
]


def _cases() -> list[Any]:
    found: list[Any] = []
    for family, kinds in FAMILIES:
        for kind in kinds:
            for case in kind.cases():
                node = make_node(case.op, case.inputs, case.constants)
                with suppress(NodeRefusedError):
                    if list(family.tactics(node, host_target())):
                        name = f"{kind.name}-{case.name}"
                        found.append(pytest.param(family, case, id=name))
    return found


@every_target
@pytest.mark.parametrize(("family", "case"), _cases())
def test_every_case_of_the_ops_agrees_with_its_reference(
    family: Family[CpuTarget], case: Case, target: CpuTarget
) -> None:
    gap = 3 if case.name[0] < "m" else 0
    assert_tactics_agree(family, case.op, case.inputs, case.constants, target=target, gap=gap)


def test_refusals_say_why() -> None:
    half = random((1, 3, 5, 5)).astype(np.float16)
    weights = random((4, 3, 3, 3))
    for op, arrays, constants, words in (
        (Conv((3, 3)), [half, weights.astype(np.float16)], {1}, "float16"),
        (Conv((3, 3)), [random((1, 3, 5, 5)), weights], set[int](), "not constant"),
        (Conv((2, 2, 2)), [random((1, 3, 4, 4, 4)), random((4, 3, 2, 2, 2))], {1}, "axes is 3"),
    ):
        node = make_node(op, arrays, frozenset(constants))
        assert words in refusal_reason(ConvFamily(), node, host_target())


@pytest.mark.parametrize("channels", [1, 3, 5, 16, 17, 33])
@pytest.mark.parametrize("filters", [1, 3, 5, 16, 17, 33])
def test_convolution_handles_every_remainder_of_channels_and_filters(
    channels: int, filters: int
) -> None:
    arrays = [random((1, channels, 5, 9)), random((filters, channels, 3, 3), 1), random((filters,))]
    for target in TARGETS:
        op = Conv((3, 3), (1, 1), (1, 1, 1, 1))
        assert_tactics_agree(ConvFamily(), op, arrays, frozenset({1, 2}), target=target, limit=3)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_convolution_agrees_with_its_reference(data: st.DataObject) -> None:
    draw = data.draw
    group = draw(st.sampled_from([1, 1, 1, 2, 3]))
    depth, filters = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilations = draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
    pads = draw(st.tuples(*[st.integers(0, 3)] * 4))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    height = draw(st.integers(reach[0], reach[0] + 12))
    width = draw(st.integers(reach[1], reach[1] + 30))
    batch = draw(st.integers(1, 2))
    op = Conv(kernel, strides, pads, dilations, group)
    arrays = [
        random((batch, depth * group, height, width)),
        random((filters * group, depth, *kernel), 1),
        random((filters * group,), 2) if draw(st.booleans()) else None,
    ]
    constants = frozenset({1, 2}) if arrays[2] is not None else frozenset({1})
    assert_tactics_agree(
        ConvFamily(),
        op,
        arrays[: len(constants) + 1],
        constants,
        target=draw(st.sampled_from(TARGETS)),
        gap=draw(st.sampled_from([0, 1, 5])),
        at_end=draw(st.booleans()),
        limit=2,
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_matrix_product_agrees_with_its_reference(data: st.DataObject) -> None:
    draw = data.draw
    rows, depth, columns = (draw(st.integers(1, 40)) for _ in range(3))
    op = Gemm(draw(st.sampled_from([1.0, 0.5])), 1.0, draw(st.booleans()), draw(st.booleans()))
    a = random((depth, rows) if op.trans_a else (rows, depth))
    b = random((columns, depth) if op.trans_b else (depth, columns), 1)
    addend = draw(st.sampled_from([(columns,), (rows, 1), (rows, columns), (1, columns), None]))
    arrays = [a, b] if addend is None else [a, b, random(addend, 2)]
    chosen = draw(st.sampled_from([set[int](), {1}, {1, 2}])) & set(range(len(arrays)))
    symbols = {(0, 1 if op.trans_a else 0): "batch"}
    if addend is not None and addend[0] == rows and rows != 1 and len(addend) == 2:
        symbols = {}
    assert_tactics_agree(
        GemmFamily(),
        op,
        arrays,
        frozenset(chosen),
        symbols=symbols if draw(st.booleans()) else None,
        target=draw(st.sampled_from(TARGETS)),
        gap=draw(st.sampled_from([0, 2])),
        at_end=draw(st.booleans()),
        limit=2,
    )


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_depthwise_convolution_agrees_with_its_reference(data: st.DataObject) -> None:
    draw = data.draw
    channels = draw(st.sampled_from([2, 3, 8, 16, 17, 33]))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilations = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    shape = (1, channels, reach[0] + draw(st.integers(0, 9)), reach[1] + draw(st.integers(0, 20)))
    arrays = [random(shape), random((channels, 1, *kernel), 1), random((channels,), 2)]
    symbols = {(0, 3): "width"} if draw(st.booleans()) and not any(pads) else None
    assert_tactics_agree(
        DepthwiseFamily(),
        Conv(kernel, strides, pads, dilations, channels),
        arrays,
        frozenset({1, 2}),
        symbols=symbols,
        target=draw(st.sampled_from(TARGETS)),
        gap=draw(st.sampled_from([0, 3])),
        at_end=draw(st.booleans()),
        limit=2,
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_pooling_agrees_with_its_reference(data: st.DataObject) -> None:
    draw = data.draw
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    pads = tuple(draw(st.integers(0, k - 1)) for k in (*kernel, *kernel))
    ceil = draw(st.booleans())
    op: Op = MaxPool(kernel, strides, pads, (), ceil)
    if draw(st.booleans()):
        op = AveragePool(kernel, strides, pads, (), ceil, draw(st.booleans()))
    shape = (
        2,
        draw(st.sampled_from([1, 3, 16, 17, 70])),
        *(draw(st.integers(4, 12)) for _ in "hw"),
    )
    symbols = {(0, 0): "batch", (0, 2): "height"} if draw(st.booleans()) else None
    assert_tactics_agree(
        PoolFamily(),
        op,
        [random(shape)],
        symbols=symbols,
        target=draw(st.sampled_from(TARGETS)),
        gap=draw(st.sampled_from([0, 3])),
        at_end=draw(st.booleans()),
    )


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_transposed_convolution_agrees_with_its_reference(data: st.DataObject) -> None:
    draw = data.draw
    group = draw(st.sampled_from([1, 2]))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilations = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    channels, filters = draw(st.integers(1, 9)) * group, draw(st.integers(1, 35))
    op = ConvTranspose(kernel, strides, (), dilations, group)
    arrays = [
        random((2, channels, draw(st.integers(1, 7)), draw(st.integers(1, 7)))),
        random((channels, filters, *kernel), 1),
        random((filters * group,), 2),
    ]
    assert_tactics_agree(
        DeconvFamily(),
        op,
        arrays,
        frozenset({1, 2}),
        symbols={(0, 0): "batch"} if draw(st.booleans()) else None,
        target=draw(st.sampled_from(TARGETS)),
        gap=draw(st.sampled_from([0, 3])),
        limit=2,
    )


@every_target
def test_extents_may_be_known_only_at_run_time(target: CpuTarget) -> None:
    weights, bias = random((20, 5, 3, 3), 1), random((20,), 2)
    for width in (1, 2, 7, 13, 14, 15, 40):
        arrays = [random((2, 5, 4, width)), weights, bias]
        symbols = {(0, 0): "batch", (0, 2): "height", (0, 3): "width"}
        op = Conv((3, 3), (1, 1), (1, 1, 1, 1))
        assert_tactics_agree(
            ConvFamily(), op, arrays, frozenset({1, 2}), symbols=symbols, target=target, limit=2
        )


@every_target
def test_the_second_factor_and_every_extent_may_vary(target: CpuTarget) -> None:
    for rows, depth, columns in ((1, 1, 1), (3, 9, 40), (17, 33, 16), (30, 8, 100)):
        arrays = [random((2, rows, depth)), random((2, depth, columns), 1)]
        symbols = {(0, 1): "m", (0, 2): "k", (1, 1): "k", (1, 2): "n"}
        assert_tactics_agree(GemmFamily(), MatMul(), arrays, symbols=symbols, target=target)


def _fused(root: Op, count: int) -> Fused:
    """Root * scale + residual, clipped, gated: every way in which operands are read."""
    stages = (
        Stage(Mul(), (-1, count)),
        Stage(Add(), (-2, count + 1)),
        Stage(PRelu(), (-3, count + 2)),
        Stage(Sigmoid(), (-4,)),
        Stage(Mul(), (-5, -4)),
        Stage(Clip(), (-6, count + 3, count + 4)),
        Stage(Relu(), (-7,)),
    )
    return Fused(root, count, stages)


def _extras(shape: tuple[int, ...] = (1, 37, 14, 14)) -> list[Any]:
    """What `_fused` reads."""
    bounds = [np.float32(v).reshape(()) for v in (-0.5, 1.5)]
    return [random((1, 37, 1, 1), 5), random(shape, 6), random((37, 1, 1), 7), *bounds]


@every_target
@pytest.mark.parametrize("held", [frozenset[int](), frozenset({0, 2, 3, 4}), frozenset(range(5))])
def test_epilogues_read_channels_scalars_and_whole_tensors(
    target: CpuTarget, held: frozenset[int]
) -> None:
    x, shape = random((2, 19, 6, 9)), (2, 37, 6, 9)
    roots: list[tuple[Family[CpuTarget], Op, list[Any]]] = [
        (ConvFamily(), Conv((3, 3), (1, 1), (1,) * 4), [random((37, 19, 3, 3), 1), random((37,))]),
        (ConvFamily(), Conv((1, 1)), [random((37, 19, 1, 1), 1)]),
        (DeconvFamily(), ConvTranspose((3, 3), (1, 1), (1,) * 4), [random((19, 37, 3, 3), 1)]),
    ]
    for family, root, weights in roots:
        own = 1 + len(weights)
        extras = _extras(shape)
        constants = frozenset(range(1, own)) | {own + k for k in held}
        arrays = [x, *weights, *extras]
        assert_tactics_agree(
            family, _fused(root, own), arrays, constants, target=target, gap=2, limit=2
        )


@every_target
def test_epilogues_follow_products_and_pools(target: CpuTarget) -> None:
    scale, slope = random((37,), 5), random((1, 37), 7)
    low, high = np.float32(-0.5).reshape(()), np.float32(1.5).reshape(())
    arrays: list[Any] = [random((11, 19)), random((19, 37), 1), scale, random((11, 37), 6)]
    arrays += [slope, low, high]
    fused = _fused(MatMul(), 2)
    for constants in (frozenset[int](), frozenset({1, 2, 4, 5, 6})):
        assert_tactics_agree(GemmFamily(), fused, arrays, constants, target=target, gap=1)
    x = random((2, 37, 6, 6))
    extras: list[Any] = [random((37, 1, 1)), random((2, 37, 3, 3), 6), random((37, 1, 1), 3)]
    arrays = [x, *extras, low, high]
    fused = _fused(MaxPool((2, 2), (2, 2)), 1)
    assert_tactics_agree(PoolFamily(), fused, arrays, frozenset({1, 3}), target=target, gap=2)


def test_residual_and_activation_are_fused_into_a_depthwise_convolution() -> None:
    x = random((1, 20, 7, 7))
    root = Conv((3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 20)
    fused = Fused(root, 3, (Stage(Add(), (-1, 3)), Stage(Relu(), (-2,))))
    arrays = [x, random((20, 1, 3, 3), 1), random((20,)), random((1, 20, 7, 7), 4)]
    assert_tactics_agree(DepthwiseFamily(), fused, arrays, frozenset({1, 2}))


def test_results_do_not_depend_on_threads_and_chunks() -> None:
    nodes: list[tuple[Family[CpuTarget], Op, list[Any]]] = [
        (
            ConvFamily(),
            Conv((3, 3), (1, 1), (1,) * 4),
            [random((2, 64, 28, 28)), random((96, 64, 3, 3))],
        ),
        (
            ConvFamily(),
            Conv((3, 3), (1, 1), (1,) * 4),
            [random((1, 512, 7, 7)), random((256, 512, 3, 3))],
        ),
        (GemmFamily(), Gemm(), [random((33, 300)), random((300, 200))]),
        (GemmFamily(), MatMul(), [random((4, 33, 300)), random((4, 300, 200))]),
    ]
    for family, op, arrays in nodes:
        constants = frozenset({1}) if arrays[1].ndim != 3 else frozenset[int]()
        node = make_node(op, arrays, constants)
        for tactic in tactics_of(family, node, host_target())[:3]:
            alone = run_tactic(family, node, tactic, arrays)
            shared = run_tactic(family, node, tactic, arrays, workers=4)
            assert np.array_equal(alone[0], shared[0])


def test_weights_too_deep_for_the_cache_are_summed_in_passes() -> None:
    arrays = [random((1, 520, 6, 7)), random((70, 520, 3, 3), 1), random((70,))]
    op = Conv((3, 3), (1, 1), (1, 1, 1, 1))
    made = assert_tactics_agree(ConvFamily(), op, arrays, frozenset({1, 2}), tolerance=1e-5)
    assert any(dict(t.parameters)["reduction_passes"] == 3 for t in made)


@every_target
@pytest.mark.parametrize(
    ("shape", "filters", "pads"),
    [
        ((1, 32, 8, 8), 32, (1, 1, 1, 1)),
        ((2, 33, 7, 9), 40, (1, 1, 1, 1)),
        ((1, 48, 14, 13), 70, (0, 1, 2, 0)),
        ((3, 64, 4, 5), 37, (0, 0, 0, 0)),
    ],
)
def test_winograd_agrees_with_its_reference(
    target: CpuTarget, shape: tuple[int, ...], filters: int, pads: tuple[int, ...]
) -> None:
    arrays = [random(shape), random((filters, shape[1], 3, 3), 1), random((filters,), 2)]
    root = Conv((3, 3), (1, 1), pads)
    for symbols in (None, {(0, 0): "batch"}):
        for gap in (0, 3):
            assert_tactics_agree(
                WinogradFamily(),
                root,
                arrays,
                frozenset({1, 2}),
                symbols=symbols,
                target=target,
                gap=gap,
            )
    residual = random(root.reference(*arrays)[0].shape, 3)
    fused = Fused(root, 3, (Stage(Add(), (-1, 3)), Stage(Relu(), (-2,))))
    assert_tactics_agree(WinogradFamily(), fused, [*arrays, residual], frozenset({1, 2}), gap=2)


@every_target
@pytest.mark.parametrize(
    ("shape", "filters", "window", "stride", "pads"),
    [
        ((1, 3, 37, 45), 64, 7, 2, (3, 3, 3, 3)),
        ((2, 3, 20, 17), 37, 7, 2, (0, 1, 2, 3)),
        ((1, 1, 24, 24), 32, 7, 2, (3, 3, 3, 3)),
        ((2, 2, 33, 35), 20, 5, 2, (2, 2, 2, 2)),
        ((1, 3, 67, 63), 32, 11, 4, (0, 0, 0, 0)),
    ],
)
def test_winograd_folds_few_channels_into_one_vector(
    target: CpuTarget,
    shape: tuple[int, ...],
    filters: int,
    window: int,
    stride: int,
    pads: tuple[int, ...],
) -> None:
    weights = random((filters, shape[1], window, window), 1)
    arrays = [random(shape), weights, random((filters,), 2)]
    root = Conv((window, window), (stride, stride), pads)
    if stride * shape[1] > target.vector_bits // 32:
        node = make_node(root, arrays, frozenset({1, 2}))
        assert "do not fit into a vector" in refusal_reason(WinogradFamily(), node, target)
        return
    for gap in (0, 3):
        assert_tactics_agree(
            WinogradFamily(), root, arrays, frozenset({1, 2}), target=target, gap=gap
        )


def test_winograd_refuses_weights_that_are_not_finite() -> None:
    weights = random((32, 32, 3, 3))
    weights[3, 2, 1, 0] = np.inf
    node = make_node(Conv((3, 3)), [random((1, 32, 9, 9)), weights], frozenset({1}))
    assert "non-finite" in refusal_reason(WinogradFamily(), node, host_target())


def test_kernels_for_the_oldest_processors_compile_and_need_no_library() -> None:
    """Those for aarch64 do in the conformance tests, those for newer processors run above."""
    target = target_named("x86-64")
    x, weights = random((1, 40, 14, 14)), random((37, 40, 3, 3), 1)
    nodes: list[tuple[Family[CpuTarget], Op, list[Any]]] = [
        (ConvFamily(), _fused(Conv((3, 3), (1, 1), (1,) * 4), 2), [x, weights, *_extras()]),
        (WinogradFamily(), Conv((3, 3), (1, 1), (1,) * 4), [x, weights]),
        (DepthwiseFamily(), Conv((3, 3), (1, 1), (1,) * 4, (), 40), [x, weights[:40, :1]]),
        (PoolFamily(), LpPool((3, 3), (2, 2), p=3), [x]),
        (LrnFamily(), LRN(5, beta=0.6), [x]),
        (GemmFamily(), MatMul(), [x, random((14, 9))]),
    ]
    nodes[2][2][1] = random((40, 1, 3, 3))
    for family, op, arrays in nodes:
        constants = frozenset({1}) if not isinstance(op, MatMul) else frozenset[int]()
        node = make_node(op, arrays, constants & frozenset(range(len(arrays))))
        (tactic, *_) = tactics_of(family, node, target)
        for kernel in kernels_of(family, node, tactic, arrays):
            image, symbols = link([compile_ir(family.generate(kernel, target), target)])
            assert image
            assert dict(symbols)[kernel.symbol] >= 0


def test_minimal_filtering_takes_its_channels_from_the_weights() -> None:
    arrays = [random((1, 32, 12, 12)), random((64, 32, 3, 3), 1)]
    op = Conv((3, 3), (1, 1), (1, 1, 1, 1))
    symbols = {(0, 1): "channels"}
    assert_tactics_agree(
        WinogradFamily(), op, arrays, frozenset({1}), symbols=symbols, limit=1, tolerance=1e-4
    )


@pytest.mark.parametrize(
    ("strides", "is_offered"), [((32, 32), True), ((64, 64), False), ((4096,), False)]
)
def test_thousands_of_phases_are_not_planned_one_by_one(
    strides: tuple[int, ...], is_offered: bool
) -> None:
    """A model of 119 bytes, or an engine of 31 kB, took the builder for minutes."""
    axes = len(strides)
    op = ConvTranspose((2,) * axes, strides, (), (1,) * axes, 1)
    arrays = [random((1, 1, *[8] * axes), 1), random((1, 1, *[2] * axes), 2)]
    node = make_node(op, arrays, frozenset({1}))
    if is_offered:
        assert tactics_of(DeconvFamily(), node, host_target())
    else:
        assert "need 4096 launches" in refusal_reason(DeconvFamily(), node, host_target())
