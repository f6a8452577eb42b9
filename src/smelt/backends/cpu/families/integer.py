"""Convolutions and matrix products of bytes: the panel kernel, with sums of integers.

Zero points cost nothing while the kernel runs. That of the activations, times the sum of a
filter's weights, is taken off the bias beforehand, and what lies around an image is that zero
point. Weights are int8 without one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from smelt.backends import Family, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._nodes import value_of, view_of
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._arithmetic import ARITHMETICS, arithmetic_of_bytes
from smelt.backends.cpu.families._operands import (
    constant_of,
    epilogue_of,
    extra_strides,
    named,
    pack_bias,
    pack_extras,
    pack_panels,
    plan_extras,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._panels import write_panels
from smelt.backends.cpu.families._product import Product, Walk
from smelt.backends.cpu.families._tiling import (
    Problem,
    budgets,
    choose_tile,
    estimate_seconds,
    known_or_none,
    splits,
)
from smelt.backends.cpu.families.conv import halo_of
from smelt.engine import parameters
from smelt.ir import Constant
from smelt.ops.add import Add
from smelt.ops.cast import Cast
from smelt.ops.conv_integer import ConvInteger
from smelt.ops.mat_mul_integer import MatMulInteger
from smelt.ops.mul import Mul
from smelt.ops.reduce_sum import ReduceSum
from smelt.ops.sub import Sub
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends import Operands
    from smelt.backends.cpu._epilogue import Epilogue
    from smelt.backends.cpu.families._arithmetic import Arithmetic
    from smelt.engine import Halo, Json, KernelSpec, Step, View
    from smelt.ir import Node
    from smelt.types import Dim

_MOST_SIGNED = 128
"""How far signed bytes are moved to be unsigned."""
_FEW_CHANNELS = 8
_LONGEST_SUM = 1 << 16
"""More products of bytes than these may not fit into 32 bits."""


class IntegerFamily(Family[CpuTarget]):
    """Products of bytes over packed panels of weights."""

    name: ClassVar[str] = "integer"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, ConvInteger | MatMulInteger):
            return
        extras = plan_extras(node, channel_axis_of(node))
        reason = why_no_integers(node) or _why_not(node)
        if reason or isinstance(extras, str):
            yield Refusal(self.name, reason or str(extras))
            return
        for options, seconds in _candidates(node, target):
            yield integer_tactic(self.name, node, options, extras.formats, seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        options = dict(tactic.parameters)
        lanes, vectors = cast("int", options["lanes"]), cast("int", options["vectors"])
        arithmetic = ARITHMETICS[cast("str", options["arithmetic"])]
        sources, groups = _Weights.of(node, arithmetic), _groups(node)
        packed = pack_panels(sources.filters, groups, lanes, vectors, arithmetic)
        bias = pack_bias(first_sums(node), groups, lanes)
        return (*packed, bias, *pack_extras(node, channel_axis_of(node)))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        count = len(self.pack(node, tactic)) - len(pack_extras(node, channel_axis_of(node)))
        arithmetic = ARITHMETICS[cast("str", dict(tactic.parameters)["arithmetic"])]
        reads = _reads(node, operands, count)
        make = _convolution if isinstance(root_of(node)[0], ConvInteger) else _matrix_product
        product = make(node, operands, reads, arithmetic)
        views = (view_of(operands, 0), *operands.packed[:count], *reads.views, operands.outputs[0])
        return (product.launch(self.name, tactic.parameters, views),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        del target
        return write_panels(kernel)


# ---- what kernels of bytes share


def why_no_integers(node: Node) -> str | None:
    """Why a node is no product of bytes by constant signed weights."""
    x, weights, *others = [*node.inputs[: root_of(node)[1]], None, None, None]
    x_zero, w_zero, bias = others[:3]
    if x is None or weights is None or weights.constant is None:
        return "the weights are not constant"
    if weights.tensor.dtype is not DType.INT8:
        return "the weights are unsigned"
    if w_zero is not None and (w_zero.constant is None or np.any(w_zero.constant.array)):
        return "the weights have a zero point"
    if x_zero is not None and (x_zero.constant is None or x_zero.constant.array.size != 1):
        return "the zero point is not one constant"
    if bias is not None and bias.constant is None:
        return f"the bias {bias.name} is not constant"
    if 0 in weights.tensor.shape:
        return "there are no weights"
    return None


def channel_axis_of(node: Node) -> int:
    """Axis of the result along which filters run."""
    return 1 if isinstance(root_of(node)[0], ConvInteger) else node.output.tensor.rank - 1


def zero_point_of(node: Node) -> int:
    """The integer that stands for nothing among the activations."""
    zero = node.inputs[2] if root_of(node)[1] > 2 else None
    return 0 if zero is None else int(constant_of(zero).array.ravel()[0])


def integer_tactic(
    family: str,
    node: Node,
    options: tuple[tuple[str, Json], ...],
    extras: tuple[TensorFormat | None, ...],
    seconds: float,
) -> Tactic:
    """The tactic of a kernel that reads bytes, channels last, with the zero point around them."""
    root, count = root_of(node)
    layout, halo = Layout.LINEAR, cast("Halo", ())
    if isinstance(root, ConvInteger):
        layout, halo = Layout.CHANNELS_LAST, halo_of(node, root)
    first = TensorFormat(value_of(node, 0).tensor.dtype, layout)
    return Tactic(
        family,
        options,
        (first, *[None] * (count - 1), *extras),
        (TensorFormat(node.output.tensor.dtype, layout),),
        (halo, *[()] * (len(node.inputs) - 1)) if halo else (),
        zero_point_of(node),
        cost_hint=seconds,
    )


def first_sums(node: Node) -> Constant:
    """What the sums of each filter start from: its bias, less what the zero point adds to it."""
    x, weights = value_of(node, 0), constant_of(node.inputs[1])
    count = root_of(node)[1]
    zero = node.inputs[2] if count > 2 else None
    bias = node.inputs[4] if count > 4 else None
    rank = len(weights.type.shape)
    axes = range(1, rank) if isinstance(root_of(node)[0], ConvInteger) else range(rank - 1)
    wide = Constant.derive("", Cast(DType.INT32), weights)
    over = Constant("", np.array(list(axes), np.int64))
    total = Constant.derive("", ReduceSum(keepdims=False), wide, over)
    shift = Constant("", np.array(_MOST_SIGNED if x.tensor.dtype is DType.INT8 else 0, np.int32))
    if zero is not None:
        given = reshape(Constant.derive("", Cast(DType.INT32), constant_of(zero)))
        shift = Constant.derive("", Add(), given, shift)
    start = Constant("", np.array(0, np.int32)) if bias is None else constant_of(bias)
    return named(f"{weights.name}.sums", _minus(start, Constant.derive("", Mul(), total, shift)))


def _minus(a: Constant, b: Constant) -> Constant:
    return Constant.derive("", Sub(), a, b)


# ---- panels


def _why_not(node: Node) -> str | None:
    root, weights = root_of(node)[0], constant_of(node.inputs[1]).type.shape
    depth = prod(cast("int", e) for e in weights) // max(1, cast("int", weights[0]))
    if isinstance(root, ConvInteger):
        if len(root.kernel_shape) not in {1, 2}:
            return f"a window of {len(root.kernel_shape)} dimensions; 1 and 2 are generated"
        if root.group > 1 and weights[1] == 1:
            return "one channel for each filter"
    elif len(weights) != 2 or value_of(node, 0).tensor.rank < 2:
        return "a factor is no matrix"
    if depth > _LONGEST_SUM:
        return f"sums of {depth} products may not fit into 32 bits"
    return None


def _groups(node: Node) -> int:
    root = root_of(node)[0]
    return root.group if isinstance(root, ConvInteger) else 1


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights as they are packed."""

    filters: Constant
    """``[filter, run, *taps]``."""
    by_columns: bool
    """Whether a run goes over the columns of the window: few channels would not fill words."""

    @staticmethod
    def of(node: Node, arithmetic: Arithmetic) -> _Weights:
        """The weights of a node."""
        weights = constant_of(node.inputs[1])
        if not isinstance(root_of(node)[0], ConvInteger):
            return _Weights(transpose(weights, 1, 0), by_columns=False)
        filters, depth, *rows, width = (cast("int", e) for e in weights.type.shape)
        if width == 1 or depth % arithmetic.group == 0 or depth >= _FEW_CHANNELS:
            return _Weights(weights, by_columns=False)
        axes = range(2, 2 + len(rows))
        turned = transpose(weights, 0, 2 + len(rows), 1, *axes)
        joined = reshape(turned, filters, width * depth, *rows)
        return _Weights(named(weights.name, joined), by_columns=True)


def _problem(node: Node) -> Problem:
    root, shape = root_of(node)[0], node.output.tensor.shape
    weights = [cast("int", e) for e in constant_of(node.inputs[1]).type.shape]
    if not isinstance(root, ConvInteger):
        rows = known_or_none(shape[-2])
        return Problem(1, 1, 1, rows, weights[1], weights[0])
    height, width = shape[2:] if len(shape) == 4 else (1, shape[2])
    problem = Problem(
        known_or_none(shape[0]),
        root.group,
        known_or_none(height),
        known_or_none(width),
        weights[0] // root.group,
        prod(weights[1:]),
    )
    plain = {*root.kernel_shape, *root.strides} == {1} and not any(root.pads)
    if plain and problem.height is not None and problem.width is not None:
        return replace(problem, height=1, width=problem.height * problem.width)
    return problem


def _candidates(
    node: Node, target: CpuTarget
) -> Iterator[tuple[tuple[tuple[str, Json], ...], float]]:
    lanes, arithmetic = target.vector_bits // 32, arithmetic_of_bytes(target)
    problem = _problem(node)
    words = replace(problem, depth=-(-problem.depth // arithmetic.group))
    ranked: list[tuple[float, tuple[tuple[str, Json], ...]]] = []
    for budget, vectors in budgets(target):
        if (vectors - 1) * lanes >= problem.filters or (vectors == 1 and problem.filters > lanes):
            continue
        tile = choose_tile(words, budget, vectors)
        seconds = estimate_seconds(words, tile, vectors, target)
        for penalty, split in enumerate(splits(words, problem.pixels * problem.depth)):
            options = parameters(
                lanes=lanes,
                vectors=vectors,
                pixels=budget,
                split=split,
                arithmetic=arithmetic.name,
            )
            ranked.append((seconds * (1 + 0.1 * penalty), options))
    for seconds, options in sorted(ranked, key=lambda r: r[0])[:6]:
        yield options, seconds


@dataclass(frozen=True, slots=True)
class _Reads:
    """The epilogue, and what it reads."""

    epilogue: Epilogue
    strides: tuple[tuple[Dim, ...], ...]
    views: tuple[View, ...]


def _reads(node: Node, operands: Operands, packed: int) -> _Reads:
    axis = channel_axis_of(node)
    extras = extra_strides(node, operands, operands.packed[packed:], axis)
    return _Reads(
        epilogue_of(node, axis),
        tuple(strides for _, strides in extras),
        tuple(view for view, _ in extras),
    )


def _convolution(node: Node, operands: Operands, reads: _Reads, arithmetic: Arithmetic) -> Product:
    """The sum that a convolution is, on the memory of its operands."""
    root = cast("ConvInteger", root_of(node)[0])
    x, out = view_of(operands, 0), operands.outputs[0]
    filters, depth, *_ = (cast("int", e) for e in constant_of(node.inputs[1]).type.shape)
    window = (1, *root.kernel_shape)[-2:]
    dilations, steps = (1, *root.dilations)[-2:], (1, *root.strides)[-2:]
    before = (0, *(pair[0] for pair in root.pad_pairs))[-2:]
    row, column = _places(x.strides)
    a_taps: tuple[Dim, Dim, Dim] = (row * dilations[0], column * dilations[1], x.strides[1])
    joined = _Weights.of(node, arithmetic).by_columns
    runs_on = window[1] > 1 and a_taps[2] == 1 and a_taps[1] == depth
    taps = (window[0], window[1], depth)
    if joined or (runs_on and depth % arithmetic.group == 0):
        taps = (window[0], 1, window[1] * depth)
    shape = node.output.tensor.shape
    height, width = shape[2:] if len(shape) == 4 else (1, shape[2])
    each = filters // root.group

    def walk(strides: tuple[Dim, ...], group: Dim) -> Walk:
        image, channel, *_ = strides
        return Walk((image,), group * channel, *_places(strides), channel)

    return Product(
        images=(shape[0],),
        groups=root.group,
        height=height,
        width=width,
        filters=each,
        taps=taps,
        a=Walk((x.strides[0],), depth * x.strides[1], row * steps[0], column * steps[1]),
        a_start=row * -before[0] + column * -before[1],
        a_taps=a_taps,
        b_images=(0,),
        out=walk(out.strides, each),
        extras=tuple(walk(strides, each) for strides in reads.strides),
        epilogue=reads.epilogue,
        bias=True,
        column_run=depth if joined and not runs_on else 0,
    )


def _places(strides: tuple[Dim, ...]) -> tuple[Dim, Dim]:
    """Strides along rows and columns; one row where there is one dimension."""
    return (strides[2], strides[3]) if len(strides) == 4 else (0, strides[2])


def _matrix_product(
    node: Node, operands: Operands, reads: _Reads, arithmetic: Arithmetic
) -> Product:
    """The product of a stack of matrices with one matrix."""
    del arithmetic
    x, out = view_of(operands, 0), operands.outputs[0]
    depth, filters = (cast("int", e) for e in constant_of(node.inputs[1]).type.shape)
    *stack, rows, _ = node.output.tensor.shape

    def walk(strides: tuple[Dim, ...], channel: Dim) -> Walk:
        return Walk(tuple(strides[:-2]), 0, 0, strides[-2], channel)

    return Product(
        images=tuple(stack),
        groups=1,
        height=1,
        width=rows,
        filters=filters,
        taps=(1, 1, depth),
        a=walk(x.strides, 1),
        a_start=0,
        a_taps=(0, 0, x.strides[-1]),
        b_images=(0,) * len(stack),
        out=walk(out.strides, out.strides[-1]),
        extras=tuple(walk(strides, strides[-1]) for strides in reads.strides),
        epilogue=reads.epilogue,
        bias=True,
    )
