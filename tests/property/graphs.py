"""Random small networks, and inputs for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from smelt import ops
from smelt.ir import Graph
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from smelt.ir import Array, Op, Value

Draw = Any


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Numbers around zero for every input."""
    rng = np.random.default_rng(seed)
    shapes = {v.name: [d for d in v.tensor.shape if isinstance(d, int)] for v in graph.inputs}
    kinds = {v.name: v.tensor.dtype.numpy for v in graph.inputs}
    return {name: rng.normal(size=shape).astype(kinds[name]) for name, shape in shapes.items()}


class _Builder:
    def __init__(self, draw: Draw, dtype: DType) -> None:
        self.draw = draw
        self.dtype = dtype
        self.graph = Graph("random")
        self.values: list[Value] = []
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))

    def weights(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Value:
        array = self.rng.uniform(low, high, shape).astype(self.dtype.numpy)
        return self.graph.add_constant(
            array, f"w{len(self.graph.nodes)}_{self.rng.integers(1 << 30)}"
        )

    def numbers(self, *numbers: int) -> Value:
        name = f"n{len(self.graph.nodes)}_{self.rng.integers(1 << 30)}"
        return self.graph.add_constant(np.asarray(numbers, np.int64), name)

    def add(self, op: Op, *inputs: Value | None) -> None:
        node = self.graph.add(op, *inputs, name=f"{op.name}{len(self.graph.nodes)}")
        self.values.extend(node.outputs)

    def pick(self, rank: int | None = None) -> Value:
        fitting: list[Value] = [v for v in self.values if rank is None or v.tensor.rank == rank]
        # The newest first: it is what hypothesis shrinks to, and chains are what passes look for.
        chosen: Value = self.draw(st.sampled_from(fitting[::-1])) if fitting else self.values[0]
        return chosen


def shape_of(value: Value) -> list[int]:
    """The extents, all known."""
    return [d for d in value.tensor.shape if isinstance(d, int)]


_UNARY = (
    ops.Relu(),
    ops.Sigmoid(),
    ops.Tanh(),
    ops.LeakyRelu(0.1),
    ops.HardSwish(),
    ops.Abs(),
    ops.Erf(),
    ops.Softplus(),
    ops.HardSigmoid(1 / 6, 0.5),
    ops.Identity(),
)


def _unary(b: _Builder) -> None:
    b.add(b.draw(st.sampled_from(_UNARY)), b.pick())


def _binary(b: _Builder) -> None:
    x = b.pick()
    same = [v for v in b.values if v.type == x.type]
    op = b.draw(st.sampled_from((ops.Add(), ops.Mul(), ops.Sub(), ops.Max(), ops.Sum())))
    b.add(op, x, b.draw(st.sampled_from(same[::-1])))


def _affine(b: _Builder) -> None:
    _shift_or_scale(b, b.pick())


def _shift_or_scale(b: _Builder, x: Value) -> None:
    shape = shape_of(x)
    choices = [(), (1,) * len(shape), (shape[-1],)]
    if len(shape) > 2:
        choices.append((shape[1], *[1] * (len(shape) - 2)))
    extent = b.draw(st.sampled_from(choices))
    op = b.draw(st.sampled_from((ops.Mul(), ops.Add(), ops.Sub(), ops.Div())))
    other = b.weights(*extent, low=0.5, high=1.5)
    swap = b.draw(st.booleans()) and not isinstance(op, ops.Div)
    b.add(op, *((other, x) if swap else (x, other)))


def _conv(b: _Builder) -> None:
    x = b.pick(4)
    channels, height, width = shape_of(x)[1:]
    kernel = b.draw(st.sampled_from((1, 3))) if min(height, width) > 2 else 1
    group = b.draw(st.sampled_from((1, channels)))
    filters = b.draw(st.sampled_from((1, 2))) * group if group > 1 else b.draw(st.integers(1, 8))
    pad = b.draw(st.integers(0, 1)) if kernel == 3 else 0
    bias = b.weights(filters) if b.draw(st.booleans()) else None
    op = ops.Conv((kernel, kernel), pads=(pad,) * 4, group=group)
    weights = b.weights(filters, channels // group, kernel, kernel)
    b.add(op, x, weights, *([bias] if bias else []))


def _expansion(b: _Builder) -> None:
    """A convolution to more channels and a depthwise one behind it."""
    x = b.pick(4)
    channels, height, width = shape_of(x)[1:]
    many = b.draw(st.sampled_from((2, 6, 17)))
    b.add(ops.Conv((1, 1)), x, b.weights(many, channels, 1, 1), b.weights(many))
    if b.draw(st.booleans()):
        b.add(ops.Relu(), b.values[-1])
    pad = 1 if min(height, width) < 3 or b.draw(st.booleans()) else 0
    step = b.draw(st.integers(1, 2))
    op = ops.Conv((3, 3), (step, step), (pad,) * 4, group=many)
    b.add(op, b.values[-1], b.weights(many, 1, 3, 3), b.weights(many))


def _siblings(b: _Builder) -> None:
    x = b.pick(4)
    channels = shape_of(x)[1]
    activation = b.draw(st.booleans())
    for filters in b.draw(st.lists(st.sampled_from((8, 16, 3)), min_size=2, max_size=3)):
        b.add(ops.Conv((1, 1)), x, b.weights(filters, channels, 1, 1), b.weights(filters))
        if activation:
            b.add(ops.Relu(), b.values[-1])


def _inception(b: _Builder) -> None:
    """Branches that begin alike, go on differently and meet again."""
    x = b.pick(4)
    channels = shape_of(x)[1]
    op = ops.Conv((1, 1)) if b.draw(st.booleans()) else ops.Conv((1, 1), strides=(2, 2))
    heads: list[Value] = []
    for filters in b.draw(st.lists(st.sampled_from((8, 16, 3)), min_size=2, max_size=3)):
        bias = [b.weights(filters)] if b.draw(st.booleans()) else []
        b.add(op, x, b.weights(filters, channels, 1, 1), *bias)
        if b.draw(st.booleans()):
            b.add(ops.Relu(), b.values[-1])
        heads.append(b.values[-1])
    tails: list[Value] = []
    for head in heads:
        if b.draw(st.booleans()):
            b.add(ops.MaxPool((1, 1)), head)
        else:
            b.add(ops.Conv((1, 1)), head, b.weights(2, shape_of(head)[1], 1, 1))
        tails.append(b.values[-1])
    b.add(ops.Concat(1), *tails)


def _block(b: _Builder) -> None:
    """What batch normalisation follows, itself, an activation, perhaps a residual."""
    b.draw(st.sampled_from((_conv, _deconv, _matmul, _gemm)))(b)
    b.draw(st.sampled_from((_normalize, _shift_or_scale)))(b, b.values[-1])
    if b.draw(st.booleans()):
        others = [v for v in b.values if v.type == b.values[-1].type]
        b.add(ops.Add(), b.values[-1], b.draw(st.sampled_from(others)))
    b.add(b.draw(st.sampled_from(_UNARY)), b.values[-1])


def _deconv(b: _Builder) -> None:
    x = b.pick(4)
    channels = shape_of(x)[1]
    group = b.draw(st.sampled_from((1, channels)))
    b.add(ops.ConvTranspose((2, 2), group=group), x, b.weights(channels, 2, 2, 2))


def _batch_norm(b: _Builder) -> None:
    _normalize(b, b.pick(4))


def _normalize(b: _Builder, x: Value) -> None:
    c = shape_of(x)[1]
    parameters = [b.weights(c), b.weights(c), b.weights(c), b.weights(c, low=0.5, high=2)]
    b.add(ops.BatchNormalization(), x, *parameters)


def _instance_norm(b: _Builder) -> None:
    x = b.pick(4)
    c = shape_of(x)[1]
    # A fair epsilon: with none, constant planes amplify rounding without bound.
    b.add(ops.InstanceNormalization(0.1), x, b.weights(c), b.weights(c))


def _pool(b: _Builder) -> None:
    x = b.pick(4)
    kernel = 2 if min(shape_of(x)[2:]) > 1 else 1
    pools = (ops.MaxPool((kernel,) * 2), ops.AveragePool((kernel,) * 2), ops.GlobalAveragePool())
    b.add(b.draw(st.sampled_from(pools)), x)


def _concat(b: _Builder) -> None:
    x = b.pick()
    axis: int = b.draw(st.integers(0, x.tensor.rank - 1))
    parts = [v for v in b.values if v.type == x.type][-3:]
    if sum(shape_of(v)[axis] for v in parts) < 64:
        b.add(ops.Concat(axis), *parts)


def _split(b: _Builder) -> None:
    x = b.pick()
    axis: int = b.draw(st.integers(0, x.tensor.rank - 1))
    extent = shape_of(x)[axis]
    first = b.draw(st.integers(1, extent))
    if first == extent:
        b.add(ops.Split(axis), x, b.numbers(extent))
    else:
        b.add(ops.Split(axis), x, b.numbers(first, extent - first))


def _rejoin(b: _Builder) -> None:
    x = b.pick()
    axis: int = b.draw(st.integers(0, x.tensor.rank - 1))
    extent = shape_of(x)[axis]
    if extent > 1:
        b.add(ops.Split(axis), x, b.numbers(1, extent - 1))
        b.add(ops.Concat(axis), *b.values[-2:])


def _slice(b: _Builder) -> None:
    x = b.pick()
    axis: int = b.draw(st.integers(0, x.tensor.rank - 1))
    stop = b.draw(st.integers(1, shape_of(x)[axis]))
    b.add(ops.Slice(), x, b.numbers(0), b.numbers(stop), b.numbers(axis))


def _transpose(b: _Builder) -> None:
    x = b.pick()
    perm = b.draw(st.permutations(range(x.tensor.rank)))
    b.add(ops.Transpose(tuple(perm)), x)


def _there_and_back(b: _Builder) -> None:
    x = b.pick(4)
    b.add(ops.Transpose((0, 2, 3, 1)), x)
    _unary(b) if b.draw(st.booleans()) else _affine(b)
    if b.values[-1].tensor.rank == 4:
        b.add(ops.Transpose((0, 3, 1, 2)), b.values[-1])


def _reshape(b: _Builder) -> None:
    x = b.pick()
    shape = shape_of(x)
    choices = [[0, -1], shape, [shape[0], -1, 1, 1]]
    b.add(ops.Reshape(), x, b.numbers(*b.draw(st.sampled_from(choices))))


def _matmul(b: _Builder) -> None:
    x = b.pick()
    columns = b.draw(st.integers(1, 6))
    b.add(ops.MatMul(), x, b.weights(shape_of(x)[-1], columns))


def _gemm(b: _Builder) -> None:
    x = b.pick(2)
    if x.tensor.rank != 2:
        b.add(ops.Flatten(), x)
        x = b.values[-1]
    inner, columns = shape_of(x)[1], b.draw(st.integers(1, 6))
    transposed = b.draw(st.booleans())
    weights = b.weights(*((columns, inner) if transposed else (inner, columns)))
    alpha, beta = b.draw(st.sampled_from((1.0, 0.5))), b.draw(st.sampled_from((1.0, 2.0, 0.0)))
    b.add(ops.Gemm(alpha=alpha, beta=beta, trans_b=transposed), x, weights, b.weights(columns))


def _gate(b: _Builder) -> None:
    x = b.pick()
    b.add(b.draw(st.sampled_from((ops.Sigmoid(), ops.HardSigmoid(1 / 6, 0.5)))), x)
    b.add(ops.Mul(), *b.draw(st.permutations((x, b.values[-1]))))


def _shape_chain(b: _Builder) -> None:
    x = b.pick()
    b.add(ops.Shape(), x)
    shape = b.values.pop()
    b.add(ops.Reshape(), x, shape)


def _norm(b: _Builder) -> None:
    x = b.pick()
    b.add(b.draw(st.sampled_from((ops.LogSoftmax(), ops.Softmax(), ops.LpNormalization()))), x)


_STEPS = (
    _unary,
    _binary,
    _affine,
    _conv,
    _expansion,
    _siblings,
    _inception,
    _block,
    _block,
    _deconv,
    _batch_norm,
    _instance_norm,
    _pool,
    _concat,
    _split,
    _rejoin,
    _slice,
    _transpose,
    _there_and_back,
    _reshape,
    _matmul,
    _gemm,
    _gate,
    _shape_chain,
    _norm,
)


@st.composite
def graphs(draw: Draw, dtype: DType = DType.FLOAT32, *, max_steps: int = 12) -> Graph:
    """A network of up to ``max_steps`` random steps, with one to three outputs."""
    b = _Builder(draw, dtype)
    channels, extent = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    for name in ("x", "y")[: draw(st.integers(1, 2))]:
        kind = TensorType(dtype, (draw(st.integers(1, 2)), channels, extent, extent + 1))
        b.values.append(b.graph.add_input(name, kind))
    for _ in range(draw(st.integers(1, max_steps))):
        if max(np.prod(shape_of(v)) for v in b.values) < 4000:
            draw(st.sampled_from(_STEPS))(b)
    inner = [v for v in b.values if v.producer is not None] or b.values
    count = draw(st.integers(1, min(3, len(inner))))
    others = draw(st.permutations(inner[:-1]))[: count - 1]
    b.graph.outputs = [inner[-1], *others]
    return b.graph
