"""Valid models to begin with: whole small networks, with symbols, indices and lengths as inputs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx import helper as untyped_helper

from tests.fuzz.onnx_seeds import onnx_seeds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

helper: Any = untyped_helper

OPSET: Final = 21
F32: Final = TensorProto.FLOAT
I64: Final = TensorProto.INT64
Extents = tuple[int | str, ...]


class ModelMaker:
    """Collects the nodes, inputs and weights of a model."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.weights: list[Any] = []

    def input(self, name: str, *shape: int | str, dtype: int = F32) -> str:
        """An input; texts are symbols."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, array: Any, dtype: Any = None) -> str:
        """An initialiser."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def ints(self, *numbers: int) -> str:
        """A vector of int64."""
        return self.constant(numbers, np.int64)

    def weight(self, *shape: int) -> str:
        """Random float32."""
        array: NDArray[Any] = self.rng.standard_normal(shape) * 0.5
        return self.constant(array, np.float32)

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; its first output's name, behind which come 1, 2, … for the others."""
        name = f"v{len(self.nodes)}"
        names = [name, *(f"{name}_{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return name

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The whole model."""
        named = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "model", self.inputs, named, self.weights)
        model: onnx.ModelProto = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
        )
        return model


def _unet() -> onnx.ModelProto:
    m = ModelMaker(1)
    x = m.input("x", "n", 2, "h", "w")
    down = m.add("Relu", m.add("Conv", x, m.weight(4, 2, 3, 3), m.weight(4), pads=[1] * 4))
    pool = m.add("MaxPool", down, kernel_shape=[2, 2], strides=[2, 2])
    deep = m.add("Relu", m.add("Conv", pool, m.weight(6, 4, 3, 3), m.weight(6), pads=[1] * 4))
    up = m.add("ConvTranspose", deep, m.weight(6, 4, 2, 2), strides=[2, 2])
    both = m.add("Concat", up, down, axis=1)
    return m.model(m.add("Sigmoid", m.add("Conv", both, m.weight(1, 8, 1, 1))))


def _resized() -> onnx.ModelProto:
    m = ModelMaker(2)
    x = m.input("x", 1, 3, "h", "w")
    small = m.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    sizes = m.add("Slice", m.add("Shape", x), m.ints(2), m.ints(4))
    lead = m.add("Slice", m.add("Shape", small), m.ints(0), m.ints(2))
    wanted = m.add("Concat", lead, sizes, axis=0)
    back = m.add("Resize", small, "", "", wanted, mode="linear")
    norm = m.add("InstanceNormalization", m.add("Add", back, x), m.weight(3), m.weight(3))
    return m.model(m.add("GlobalAveragePool", norm), norm)


def _boxes() -> onnx.ModelProto:
    m = ModelMaker(3)
    boxes, scores = m.input("boxes", 1, "k", 4), m.input("scores", 1, 2, "k")
    limits = (m.ints(3), m.constant([0.5], np.float32), m.constant([0.1], np.float32))
    chosen = m.add("NonMaxSuppression", boxes, scores, *limits)
    places = m.add("Gather", chosen, m.ints(2), axis=1)
    flat = m.add("Reshape", places, m.ints(-1))
    return m.model(m.add("Gather", boxes, flat, axis=1), chosen)


def _best() -> onnx.ModelProto:
    m = ModelMaker(4)
    scores, boxes = m.input("scores", "n", "k"), m.input("boxes", "n", "k", 4)
    best = m.add("TopK", m.add("Sigmoid", scores), m.ints(2), outputs=2)
    index = m.add("Expand", m.add("Unsqueeze", f"{best}_1", m.ints(2)), m.ints(1, 1, 4))
    return m.model(best, m.add("GatherElements", boxes, index, axis=1))


def _nonzero() -> onnx.ModelProto:
    m = ModelMaker(5)
    x = m.input("x", "n", 4)
    places = m.add("NonZero", m.add("Greater", x, m.constant(0.2, np.float32)))
    rows = m.add("Transpose", places, perm=[1, 0])
    found = m.add("GatherND", x, rows)
    count = m.add("Shape", found)
    return m.model(found, m.add("Concat", found, found, axis=0), count)


def _lstm() -> onnx.ModelProto:
    m = ModelMaker(6)
    x = m.input("x", "t", "n", 3)
    lengths = m.input("lengths", "n", dtype=TensorProto.INT32)
    weights = (m.weight(2, 16, 3), m.weight(2, 16, 4), m.weight(2, 32))
    y = m.add("LSTM", x, *weights, lengths, outputs=3, hidden_size=4, direction="bidirectional")
    flat = m.add("Reshape", m.add("Transpose", y, perm=[2, 0, 1, 3]), m.ints(0, 0, 8))
    return m.model(m.add("MatMul", flat, m.weight(8, 2)), f"{y}_1")


def _gru() -> onnx.ModelProto:
    m = ModelMaker(7)
    x = m.input("x", "t", 2, 3)
    y = m.add("GRU", x, m.weight(1, 12, 3), m.weight(1, 12, 4), m.weight(1, 24), outputs=2,
              hidden_size=4, linear_before_reset=1)  # fmt: skip
    return m.model(m.add("Squeeze", y, m.ints(1)), f"{y}_1")


def _attention() -> onnx.ModelProto:
    m = ModelMaker(8)
    ids = m.input("ids", "n", "s", dtype=I64)
    mask = m.input("mask", "n", "s", dtype=I64)
    words = m.add("Gather", m.weight(10, 8), ids)
    length = m.add("Gather", m.add("Shape", ids), m.constant(1, np.int64))
    ends = m.add("Reshape", length, m.ints(1))
    places = m.add("Slice", m.weight(12, 8), m.ints(0), ends, m.ints(0))
    x = m.add("LayerNormalization", m.add("Add", words, places), m.weight(8), m.weight(8), axis=-1)
    query, key, value = (m.add("MatMul", x, m.weight(8, 8)) for _ in range(3))
    heads: list[str] = []
    for part, perm in ((query, [0, 2, 1, 3]), (key, [0, 2, 3, 1]), (value, [0, 2, 1, 3])):
        split = m.add("Reshape", part, m.ints(0, 0, 2, 4))
        heads.append(m.add("Transpose", split, perm=perm))
    scores = m.add("Mul", m.add("MatMul", heads[0], heads[1]), m.constant(0.5, np.float32))
    hidden = m.add("Equal", m.add("Unsqueeze", mask, m.ints(1, 2)), m.constant(0, np.int64))
    sanitize_name = m.add("Where", hidden, m.constant(-1e4, np.float32), scores)
    mixed = m.add("MatMul", m.add("Softmax", sanitize_name, axis=-1), heads[2])
    rows = m.add("Reshape", m.add("Transpose", mixed, perm=[0, 2, 1, 3]), m.ints(0, 0, 8))
    return m.model(m.add("Gelu", m.add("Add", m.add("MatMul", rows, m.weight(8, 8)), x)))


def _shapes() -> onnx.ModelProto:
    m = ModelMaker(9)
    x, y = m.input("x", "n", 3), m.input("y", "m", 3)
    rest = m.add("Sub", m.ints(9), m.add("Shape", x, start=0, end=1))
    wide = m.add("Expand", m.weight(1, 3), m.add("Concat", rest, m.ints(3), axis=0))
    joined = m.add("Concat", x, wide, y, axis=0)
    zeros = m.add("ConstantOfShape", m.add("Shape", joined))
    total = m.add("Add", joined, zeros)
    count = m.add("Squeeze", m.add("Shape", total, start=0, end=1))
    steps = m.add("Range", m.constant(0, np.int64), count, m.constant(1, np.int64))
    return m.model(m.add("ReduceSum", total, m.ints(0), keepdims=0), steps, m.add("Relu", wide))


def _opposite() -> onnx.ModelProto:
    """One extent grows as another shrinks: their product is largest between."""
    m = ModelMaker(16)
    x = m.input("x", "n", 3)
    count = m.add("Shape", x, start=0, end=1)
    wanted = m.add("Concat", count, m.add("Sub", m.ints(12), count), axis=0)
    wide = m.add("Exp", m.add("Expand", m.weight(1, 1), wanted))
    return m.model(m.add("ReduceMax", m.add("Neg", wide), m.ints(1)), wide)


def _products() -> onnx.ModelProto:
    m = ModelMaker(10)
    a, b = m.input("a", 4, "h"), m.input("b", "k", 4)
    both = m.add("MatMul", a, b)
    c, d = m.input("c", "k", 4), m.input("d", "h", 4)
    joined = m.add("Concat", c, b, axis=1)
    return m.model(both, joined, m.add("Gemm", a, d, m.weight(4), transB=0), m.add("Neg", c))


def _indexed() -> onnx.ModelProto:
    m = ModelMaker(11)
    x = m.input("x", "n", 5)
    index = m.input("index", "k", dtype=I64)
    pairs = m.input("pairs", "k", 2, dtype=I64)
    updates = m.input("updates", "k")
    rows = m.add("Gather", x, index, axis=0)
    column = m.add("Unsqueeze", index, m.ints(1))
    picked = m.add("GatherElements", x, column, axis=0)
    spread = m.add("ScatterElements", x, column, m.add("Unsqueeze", updates, m.ints(1)), axis=1)
    put = m.add("ScatterND", spread, pairs, updates)
    hot = m.add("OneHot", index, m.ints(5), m.constant([0.0, 1.0], np.float32))
    return m.model(rows, picked, put, hot)


def _quantised() -> onnx.ModelProto:
    m = ModelMaker(12)
    x = m.input("x", "n", 3, 6, "w")
    scale, zero = m.constant(0.05, np.float32), m.constant(7, np.uint8)
    steps = m.add("DequantizeLinear", m.add("QuantizeLinear", x, scale, zero), scale, zero)
    weights = m.constant(m.rng.integers(-9, 9, (5, 3, 3, 3)), np.int8)
    real = m.add("DequantizeLinear", weights, m.constant([0.1] * 5, np.float32), axis=0)
    y = m.add("Relu", m.add("Conv", steps, real, m.weight(5), pads=[1] * 4, strides=[2, 1]))
    return m.model(m.add("QuantizeLinear", y, scale, zero), m.add("GlobalMaxPool", y))


def _cut() -> onnx.ModelProto:
    m = ModelMaker(13)
    x = m.input("x", "n", "k")
    tanh = m.add("Tanh", x)
    halves = m.add("Split", tanh, outputs=2, axis=1, num_outputs=2)
    part = m.add("Slice", x, m.ints(1), m.ints(4), m.ints(0))
    padded = m.add("Pad", part, m.ints(1, 0, 0, 2), m.constant(0.5, np.float32))
    tiled = m.add("Tile", padded, m.ints(2, 1))
    return m.model(halves, f"{halves}_1", tiled, m.add("CumSum", x, m.constant(1, np.int64)))


def _flow() -> onnx.ModelProto:
    m = ModelMaker(14)
    m.input("x", "n", 2)
    choice = m.input("choice", dtype=TensorProto.BOOL)
    out = helper.make_empty_tensor_value_info
    arms = [
        helper.make_graph([helper.make_node(kind, ["x", "c0"], [name])], name, [], [out(name)])
        for kind, name in (("Mul", "then"), ("Add", "else"))
    ]
    m.weight(2)
    chosen = m.add("If", choice, then_branch=arms[0], else_branch=arms[1])
    made: tuple[tuple[str, int, list[Any]], ...] = (
        ("i", I64, []),
        ("go", TensorProto.BOOL, []),
        ("v", F32, ["n", 2]),
    )
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "x"], ["v2"]),
            helper.make_node("Identity", ["go"], ["going"]),
            helper.make_node("ReduceSum", ["v2"], ["scan"], keepdims=0),
        ],
        "body",
        [helper.make_tensor_value_info(*row) for row in made],
        [out("going"), out("v2"), out("scan")],
    )
    trips = m.input("trips", dtype=I64)
    y = m.add("Loop", trips, "", chosen, outputs=2, body=body)
    return m.model(y, f"{y}_1")


def _convolutions() -> onnx.ModelProto:
    m = ModelMaker(15)
    x = m.input("x", "n", 8, "h", 9)
    wide = m.add("Clip", m.add("Conv", x, m.weight(16, 8, 1, 1), m.weight(16)),
                 m.constant(0, np.float32), m.constant(6, np.float32))  # fmt: skip
    deep = m.add("Conv", wide, m.weight(16, 1, 3, 3), m.weight(16), group=16, pads=[1] * 4)
    shut = m.add("Conv", m.add("Relu", deep), m.weight(8, 16, 1, 1), m.weight(8))
    total = m.add("Add", shut, x)
    moved = m.add("DepthToSpace", total, blocksize=2)
    tall = m.add("Conv", total, m.weight(8, 8, 3, 3), m.weight(8), pads=[1] * 4, dilations=[1, 1])
    flat = m.add("Flatten", m.add("GlobalAveragePool", tall))
    return m.model(m.add("Gemm", flat, m.weight(8, 3), m.weight(3)), moved)


NETWORKS: Final[tuple[Callable[[], onnx.ModelProto], ...]] = (
    _unet,
    _resized,
    _boxes,
    _best,
    _nonzero,
    _lstm,
    _gru,
    _attention,
    _shapes,
    _opposite,
    _products,
    _indexed,
    _quantised,
    _cut,
    _flow,
    _convolutions,
)


@functools.cache
def seed_models() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Whole networks, and models of one node for cases of every op."""
    return tuple(make().SerializeToString() for make in NETWORKS), tuple(onnx_seeds())
