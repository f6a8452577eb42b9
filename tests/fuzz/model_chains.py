"""Nodes that a mutated model gets behind its values: most are valid, sizes follow from the model.

Each takes a mutant and a source of chance, adds nodes, and returns the name of the last result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from onnx import TensorProto

if TYPE_CHECKING:
    import random
    from collections.abc import Callable


class Making(Protocol):
    """What chains are added to."""

    types: dict[str, tuple[int, list[int | str]]]

    def values(self, dtype: int | None = None, rank: int | None = None) -> list[str]:
        """Names of values of a type."""
        ...

    def constant(self, array: Any) -> str:
        """A new initialiser."""
        ...

    def ints(self, *numbers: int) -> str:
        """A new vector of int64."""
        ...

    def input(self, dtype: int, shape: list[int | str]) -> str:
        """A new input."""
        ...

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A new node; its first output."""
        ...

    def extents(self, shape: list[int | str]) -> list[int]:
        """Numbers for extents."""
        ...


F32: Final = TensorProto.FLOAT
I64: Final = TensorProto.INT64
_UNARY: Final = (
    "Relu",
    "Sigmoid",
    "Exp",
    "Neg",
    "Tanh",
    "Abs",
    "Identity",
    "HardSwish",
    "Softplus",
)
_BINARY: Final = ("Add", "Mul", "Sub", "Div", "Max", "Min")
_REDUCE: Final = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd")


def _pick(m: Making, chance: random.Random, dtype: int | None = F32, ranks: Any = None) -> str:
    """A value; of at least one axis, or of one of the ranks."""
    names = [
        name
        for name in m.values(dtype)
        if (len(m.types[name][1]) in ranks if ranks else len(m.types[name][1]) > 0)
    ]
    return chance.choice(names)


def _rank(m: Making, name: str) -> int:
    return len(m.types[name][1])


def _axis(m: Making, chance: random.Random, name: str) -> int:
    return chance.randrange(-_rank(m, name), _rank(m, name))


def _unary(m: Making, chance: random.Random) -> str:
    return m.add(chance.choice(_UNARY), _pick(m, chance))


def _binary(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    same = m.values(F32, _rank(m, x))
    return m.add(chance.choice(_BINARY), x, chance.choice(same))


def _affine(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    extents = m.extents(m.types[x][1])
    shape = extents[chance.randrange(len(extents)) :]
    return m.add(chance.choice(_BINARY), x, m.constant(np.full(shape, 0.5, np.float32)))


def _concat(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    same = m.values(F32, _rank(m, x))
    parts = [x, *(chance.choice(same) for _ in range(chance.choice((1, 1, 2))))]
    return m.add("Concat", *parts, axis=_axis(m, chance, x))


def _rest(m: Making, chance: random.Random) -> str:
    """A number minus an extent, and a tensor of that size."""
    x = _pick(m, chance)
    at = chance.randrange(_rank(m, x))
    extent = m.add("Shape", x, start=at, end=at + 1)
    kind = chance.choice(("Sub", "Sub", "Mul", "Add", "Max", "Min", "Div"))
    pair = [m.ints(chance.choice((2, 3, 5, 8, 9, 17, 40))), extent]
    if chance.random() < 0.3:
        pair.reverse()
    size = m.add(kind, *pair)
    if chance.random() < 0.4:
        y = _pick(m, chance)
        other = m.add("Shape", y, start=0, end=1)
        size = m.add(chance.choice(("Mul", "Sub", "Add", "Max")), size, other)
    return _sized(m, chance, size, x)


def _sized(m: Making, chance: random.Random, size: str, x: str) -> str:
    """A tensor, one of whose extents is a value that was computed."""
    choice = chance.randrange(6)
    if choice == 0:
        wanted = m.add("Concat", size, m.ints(3), axis=0)
        return m.add("Expand", m.constant(np.ones((1, 3), np.float32)), wanted)
    if choice == 1:
        filled = m.add("ConstantOfShape", size)
        return m.add("Exp", filled)
    if choice == 2:
        scalar = m.add("Squeeze", size)
        zero, one = m.constant(np.int64(0)), m.constant(np.int64(1))
        return m.add("Range", zero, scalar, one)
    if choice == 3:
        axis = m.ints(chance.randrange(_rank(m, x)))
        return m.add("Slice", x, m.ints(0), size, axis)
    if choice == 4:
        flat = m.add("Reshape", x, m.ints(-1))
        return m.add("Tile", flat, size)
    flat = m.add("Reshape", x, m.ints(-1))
    return m.add("Pad", flat, m.add("Concat", m.ints(0), size, axis=0))


def _reshape(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    wanted = chance.choice(([-1], [0, -1], [1, -1], [-1, 1], [0, 0, -1], [2, -1], [-1, 3]))
    return m.add("Reshape", x, m.ints(*wanted))


def _slice(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    bounds = [m.ints(chance.choice((-9, -2, -1, 0, 1, 2, 3, 8))) for _ in range(2)]
    step = m.ints(chance.choice((1, 1, 1, 2, 3, -1, -2)))
    return m.add("Slice", x, *bounds, m.ints(_axis(m, chance, x)), step)


def _transpose(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    perm = list(range(_rank(m, x)))
    chance.shuffle(perm)
    return m.add("Transpose", x, perm=perm)


def _reduce(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    kind = chance.choice((*_REDUCE, "ArgMax", "ArgMin"))
    if kind.startswith("Arg"):
        return m.add(kind, x, axis=_axis(m, chance, x), keepdims=chance.randrange(2))
    return m.add(kind, x, m.ints(_axis(m, chance, x)), keepdims=chance.randrange(2))


def _softmax(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    kind = chance.choice(("Softmax", "LogSoftmax", "LpNormalization", "Hardmax"))
    return m.add(kind, x, axis=_axis(m, chance, x))


def _indices(m: Making, chance: random.Random, shape: list[int | str]) -> str:
    """Indices: an input, or a constant that may be out of range."""
    if chance.random() < 0.6:
        return m.input(I64, shape)
    extents = m.extents(shape)
    numbers = chance.choices((0, 0, 1, 1, 2, -1, 3, 9, 10**9), k=int(np.prod(extents)))
    return m.constant(np.array(numbers, np.int64).reshape(extents))


def _gather(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance, None)
    shapes: tuple[list[int | str], ...] = ([2], ["k"], ["k", 2], [], [1, 3], ["n"])
    shape = chance.choice(shapes)
    return m.add("Gather", x, _indices(m, chance, shape), axis=_axis(m, chance, x))


def _gather_elements(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    shape = [chance.choice((d, d, 1, 2, "k")) for d in m.types[x][1]]
    return m.add("GatherElements", x, _indices(m, chance, shape), axis=_axis(m, chance, x))


def _gather_nd(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    shape: list[int | str] = [chance.choice((2, "k")), chance.randrange(1, _rank(m, x) + 1)]
    return m.add("GatherND", x, _indices(m, chance, shape))


def _scatter(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    shape = [chance.choice((d, d, 1, 2, "k")) for d in m.types[x][1]]
    index, updates = _indices(m, chance, shape), m.input(F32, shape)
    reduction = chance.choice(("none", "none", "add", "max"))
    axis = _axis(m, chance, x)
    return m.add("ScatterElements", x, index, updates, axis=axis, reduction=reduction)


def _scatter_nd(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    depth = chance.randrange(1, _rank(m, x) + 1)
    count = chance.choice((1, 2, "k"))
    index = _indices(m, chance, [count, depth])
    return m.add("ScatterND", x, index, m.input(F32, [count, *m.types[x][1][depth:]]))


def _nonzero(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    places = m.add("NonZero", m.add("Greater", x, m.constant(np.float32(0.3))))
    if chance.random() < 0.5:
        return places
    return m.add("GatherND", x, m.add("Transpose", places, perm=[1, 0]))


def _compress(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    keep = m.input(TensorProto.BOOL, [chance.choice((2, 3, "k"))])
    return m.add("Compress", x, keep, axis=_axis(m, chance, x))


def _top(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    count = m.ints(chance.choice((1, 1, 2, 3, 9)))
    return m.add("TopK", x, count, outputs=2, axis=_axis(m, chance, x), sorted=1)


def _where(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    other = chance.choice(m.values(F32, _rank(m, x)))
    return m.add("Where", m.add("Less", x, m.constant(np.float32(0))), x, other)


def _product(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance, ranks=(2, 3, 4))
    if chance.random() < 0.5:
        return m.add("MatMul", x, chance.choice(m.values(F32, _rank(m, x))))
    inner = m.extents(m.types[x][1])[-1]
    return m.add("MatMul", x, m.constant(np.full((inner, 3), 0.25, np.float32)))


def _filter(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance, ranks=(4,))
    channels = m.extents(m.types[x][1])[1]
    size, group = chance.choice((1, 2, 3)), chance.choice((1, 1, channels))
    pads = [chance.choice((0, 0, 1, size // 2)) for _ in range(4)]
    strides = [chance.choice((1, 1, 2)) for _ in range(2)]
    if chance.random() < 0.25:
        weights = m.constant(np.full((channels, 2, 2, 2), 0.2, np.float32))
        return m.add("ConvTranspose", x, weights, strides=strides)
    filters = group * chance.choice((1, 2, 5))
    shape = (filters, max(channels // group, 1), size, size)
    weights = m.constant(np.full(shape, 0.2, np.float32))
    return m.add("Conv", x, weights, pads=pads, strides=strides, group=group)


def _pool(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance, ranks=(4,))
    kind = chance.choice(("MaxPool", "AveragePool"))
    return m.add(
        kind,
        x,
        kernel_shape=chance.choice(([2, 2], [3, 3], [1, 2])),
        strides=chance.choice(([1, 1], [2, 2])),
        ceil_mode=chance.randrange(2),
        pads=chance.choice(([0] * 4, [1] * 4, [0, 0, 1, 1])),
    )


def _resize(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance, ranks=(4,))
    mode = chance.choice(("nearest", "linear", "cubic"))
    if chance.random() < 0.5:
        scales = np.array([1, 1, *chance.choices((0.5, 1, 1.5, 2), k=2)], np.float32)
        return m.add("Resize", x, "", m.constant(scales), mode=mode)
    sizes = m.ints(*m.extents(m.types[x][1])[:2], *chance.choices((1, 3, 5, 8), k=2))
    return m.add("Resize", x, "", "", sizes, mode=mode)


def _pad(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    pads = [chance.choice((0, 0, 1, 2, -1)) for _ in range(2 * _rank(m, x))]
    mode = chance.choice(("constant", "reflect", "edge", "wrap"))
    return m.add("Pad", x, m.ints(*pads), mode=mode)


def _split(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    axis = _axis(m, chance, x)
    if chance.random() < 0.5:
        return m.add("Split", x, outputs=2, axis=axis, num_outputs=2)
    return m.add("Split", x, m.ints(1, chance.choice((1, 2, 3))), outputs=2, axis=axis)


def _one_hot(m: Making, chance: random.Random) -> str:
    index = _indices(m, chance, [chance.choice((2, "n"))])
    values = m.constant(np.array([0, 1], np.float32))
    return m.add("OneHot", index, m.constant(np.int64(chance.choice((1, 3, 5)))), values)


def _sum_up(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance)
    return m.add(
        "CumSum", x, m.constant(np.int64(_axis(m, chance, x))), reverse=chance.randrange(2)
    )


def _norm(m: Making, chance: random.Random) -> str:
    x = _pick(m, chance, ranks=(2, 3, 4))
    extents = m.extents(m.types[x][1])
    if chance.random() < 0.5:
        return m.add("LayerNormalization", x, m.constant(np.ones(extents[-1], np.float32)), axis=-1)
    ones = [m.constant(np.ones(extents[1], np.float32)) for _ in range(4)]
    return m.add("BatchNormalization", x, *ones, epsilon=0.1)


def _boxes(m: Making, chance: random.Random) -> str:
    boxes, scores = m.input(F32, [1, "k", 4]), m.input(F32, [1, chance.choice((1, 2)), "k"])
    most = m.ints(chance.choice((1, 3, 100)))
    chosen = m.add(
        "NonMaxSuppression", boxes, scores, most, m.constant(np.array([0.5], np.float32))
    )
    if chance.random() < 0.5:
        return chosen
    return m.add("Concat", chosen, chosen, axis=chance.randrange(2))


CHAINS: Final[tuple[Callable[[Making, random.Random], str], ...]] = (
    _unary,
    _binary,
    _binary,
    _affine,
    _concat,
    _concat,
    _rest,
    _rest,
    _rest,
    _reshape,
    _slice,
    _transpose,
    _reduce,
    _softmax,
    _gather,
    _gather_elements,
    _gather_nd,
    _scatter,
    _scatter_nd,
    _nonzero,
    _compress,
    _top,
    _where,
    _product,
    _filter,
    _pool,
    _resize,
    _pad,
    _split,
    _one_hot,
    _sum_up,
    _norm,
    _boxes,
)
