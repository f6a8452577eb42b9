"""Changes of a model that leave most of it valid: shapes, attributes, constants, edges, nodes.

Each takes a `Mutant`, a model with a source of chance, and changes it in place. A change that finds
nothing to change does nothing.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, numpy_helper, shape_inference
from onnx import helper as untyped_helper

from tests.fuzz.model_chains import CHAINS
from tests.fuzz.mutators import message_mutator

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

helper: Any = untyped_helper

EXTENTS: Final = (1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 0)
SYMBOLS: Final = ("n", "m", "k", "h", "w")
_SMALL: Final = (-3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8)
_LARGE: Final = (100, 4096, 1 << 31, (1 << 63) - 1, -(1 << 63), -(1 << 31), 1 << 40, 10**9)
_FLOATS: Final = (0.0, -1.0, 0.5, 2.0, 1e-3, 1e4, 1e30, -1e30, float("nan"), float("inf"))
_TEXTS: Final = (
    "linear", "nearest", "cubic", "constant", "reflect", "edge", "wrap", "NOTSET", "VALID",
    "SAME_UPPER", "SAME_LOWER", "forward", "reverse", "bidirectional", "none", "add", "mul", "max",
    "min", "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "floor", "ceil",
    "tf_crop_and_resize", "half_pixel_symmetric", "round_prefer_floor", "stretch", "DCR", "CRD",
    "not_larger", "not_smaller", "tanh", "bilinear",
)  # fmt: skip
_CLASSES: Final = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "PRelu"),
    ("And", "Or", "Xor"),
    ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"),
    ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Sqrt", "Floor", "Identity", "Softplus", "Erf",
     "Gelu", "Round", "Sign", "Reciprocal", "HardSwish", "Elu"),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceL1",
     "ReduceLogSumExp", "ReduceSumSquare", "ReduceLogSum"),
    ("ArgMax", "ArgMin"),
    ("Gather", "GatherElements", "GatherND"),
    ("ScatterElements", "ScatterND"),
    ("MaxPool", "AveragePool", "LpPool"),
    ("GlobalAveragePool", "GlobalMaxPool"),
    ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"),
    ("Reshape", "Expand", "Tile"),
    ("Squeeze", "Unsqueeze"),
    ("Conv", "ConvTranspose"),
    ("LSTM", "GRU", "RNN"),
    ("MatMul", "Gemm", "Mul"),
    ("DepthToSpace", "SpaceToDepth"),
)  # fmt: skip
_DTYPES: Final = (
    TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL,
    TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8, TensorProto.INT8,
    TensorProto.BFLOAT16, TensorProto.INT16, TensorProto.UINT16,
)  # fmt: skip
_change_any_field: Final = message_mutator(onnx.ModelProto)


class Mutant:
    """A model that is being changed, and what chance decides."""

    def __init__(self, model: onnx.ModelProto, chance: random.Random) -> None:
        self.model = model
        self.graph: Any = model.graph
        self.chance = chance
        self.types: dict[str, tuple[int, list[int | str]]] = {}
        self._made = 0
        self.look()

    def look(self) -> None:
        """Find out what values there are, with element type and extents as far as these are known.

        Extents that are not known are texts.
        """
        graph = self.graph
        try:
            graph = shape_inference.infer_shapes(self.model).graph
        except Exception:  # noqa: BLE001  (it knows no base of its errors)
            graph = self.graph  # what is there is enough
        self.types = {t.name: (t.data_type, list(t.dims)) for t in graph.initializer}
        for info in (*graph.input, *graph.value_info, *graph.output):
            tensor = info.type.tensor_type
            if tensor.elem_type:
                self.types[info.name] = (tensor.elem_type, [_extent(d) for d in tensor.shape.dim])

    def restore(self, data: bytes) -> None:
        """Be another model."""
        self.model.ParseFromString(data)
        self.graph = self.model.graph  # what was it is detached
        self.look()

    def fresh(self) -> str:
        """A name that nothing has."""
        self._made += 1
        return f"m{self._made}_{self.chance.randrange(1 << 24)}"

    def values(self, dtype: int | None = None, rank: int | None = None) -> list[str]:
        """Names of values of a type, as far as it is known; all where nothing is asked."""
        return [
            name
            for name, (kind, shape) in self.types.items()
            if dtype in (None, kind) and rank in (None, len(shape))
        ]

    def constant(self, array: Any) -> str:
        """A new initialiser."""
        name = self.fresh()
        tensor = numpy_helper.from_array(np.asarray(array), name)
        self.graph.initializer.append(tensor)
        self.types[name] = (tensor.data_type, list(tensor.dims))
        return name

    def ints(self, *numbers: int) -> str:
        """A new vector of int64."""
        return self.constant(np.array(numbers, np.int64))

    def input(self, dtype: int, shape: list[int | str]) -> str:
        """A new input."""
        name = self.fresh()
        self.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
        self.types[name] = (dtype, shape)
        return name

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A new node at the end; its first output."""
        names = [self.fresh() for _ in range(outputs)]
        self.graph.node.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0]

    def mark(self, name: str) -> None:
        """Make a value an output, if it is none."""
        if all(output.name != name for output in self.graph.output):
            self.graph.output.append(helper.make_empty_tensor_value_info(name))

    def extents(self, shape: list[int | str]) -> list[int]:
        """Some numbers for extents; for what is not known a small one."""
        return [d if isinstance(d, int) else self.chance.choice((1, 2, 3, 4)) for d in shape]


def _extent(dim: Any) -> int | str:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or "?"


def mutate_model(
    data: bytes, chance: random.Random, count: int, corpus: tuple[bytes, ...]
) -> bytes:
    """The model with so many changes."""
    for _ in range(count):
        seed = chance.random()
        if seed < 0.02:
            data = _change_any_field(data, chance, corpus)
            continue
        model = onnx.ModelProto()
        try:
            model.ParseFromString(data)
        except DecodeError:
            return data
        mutant = Mutant(model, chance)
        try:
            chance.choice(_CHANGES)(mutant)
        except Exception:  # noqa: BLE001, S112  (what a message cannot hold, or is not there)
            continue
        data = model.SerializeToString()
    return data


# ---- inputs


def _input_extent(m: Mutant) -> None:
    info = m.chance.choice(m.graph.input)
    dim = m.chance.choice(info.type.tensor_type.shape.dim)
    if m.chance.random() < 0.55:
        dim.dim_param = m.chance.choice(SYMBOLS)
    else:
        dim.dim_value = m.chance.choice(EXTENTS)


def _input_rank(m: Mutant) -> None:
    dims = m.chance.choice(m.graph.input).type.tensor_type.shape.dim
    if len(dims) and m.chance.random() < 0.5:
        del dims[m.chance.randrange(len(dims))]
    else:
        dims.add(dim_value=m.chance.choice(EXTENTS))


def _input_dtype(m: Mutant) -> None:
    m.chance.choice(m.graph.input).type.tensor_type.elem_type = m.chance.choice(_DTYPES)


def _constant_to_input(m: Mutant) -> None:
    """What was a constant is given with each run, some of its extents open."""
    at = m.chance.randrange(len(m.graph.initializer))
    tensor = m.graph.initializer[at]
    shape: list[int | str] = [
        m.chance.choice(SYMBOLS) if m.chance.random() < 0.4 else d for d in tensor.dims
    ]
    m.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    del m.graph.initializer[at]


def _input_to_constant(m: Mutant) -> None:
    info = m.chance.choice(m.graph.input)
    kind, shape = m.types[info.name]
    array = np.array(m.chance.choices(_SMALL, k=int(np.prod(m.extents(shape)))))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    made = numpy_helper.from_array(array.astype(dtype).reshape(m.extents(shape)), info.name)
    m.graph.initializer.append(made)
    m.graph.input.remove(info)


# ---- constants


def _constant_element(m: Mutant) -> None:
    tensor = m.chance.choice(m.graph.initializer)
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    at = m.chance.randrange(flat.size)
    if array.dtype.kind == "f":
        flat[at] = m.chance.choice(_FLOATS)
    elif array.dtype.kind in "iu":
        pool = (int(flat[at]) + 1, int(flat[at]) - 1, *_SMALL)
        number = m.chance.choice(pool if m.chance.random() < 0.85 else _LARGE)
        limits = np.iinfo(array.dtype)
        flat[at] = min(max(number, limits.min), limits.max)
    else:
        flat[at] = not flat[at]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _constant_shape(m: Mutant) -> None:
    tensor = m.chance.choice(m.graph.initializer)
    array = numpy_helper.to_array(tensor)
    axis = m.chance.randrange(array.ndim) if array.ndim else None
    choice = m.chance.randrange(6)
    if axis is None or choice == 0:
        array = np.expand_dims(array, m.chance.randrange(array.ndim + 1))
    elif choice == 1:
        array = np.delete(array, -1, axis)
    elif choice == 2:
        array = np.concatenate([array, array.take([0], axis)], axis)
    elif choice == 3:
        array = array.take(0, axis)
    elif choice == 4:
        array = array.reshape(-1)
    else:
        array = np.swapaxes(array, axis, m.chance.randrange(array.ndim))
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def _constant_dtype(m: Mutant) -> None:
    tensor = m.chance.choice(m.graph.initializer)
    dtype = helper.tensor_dtype_to_np_dtype(m.chance.choice(_DTYPES))
    with np.errstate(all="ignore"):
        array = numpy_helper.to_array(tensor).astype(dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


# ---- attributes


def _attribute(m: Mutant) -> None:
    nodes = [node for node in m.graph.node if len(node.attribute)]
    attribute = m.chance.choice(m.chance.choice(nodes).attribute)
    if attribute.type == AttributeProto.INT:
        pool = (attribute.i + 1, attribute.i - 1, *_SMALL)
        attribute.i = m.chance.choice(pool if m.chance.random() < 0.95 else _LARGE)
    elif attribute.type == AttributeProto.INTS:
        _numbers(m, attribute.ints)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = m.chance.choice(_FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = m.chance.choice(_TEXTS).encode()


def _numbers(m: Mutant, numbers: Any) -> None:
    choice = m.chance.randrange(8)
    if choice == 0 and len(numbers):
        del numbers[m.chance.randrange(len(numbers))]
    elif choice == 1:
        numbers.append(m.chance.choice(_SMALL))
    elif choice <= 3 and len(numbers) > 1:
        mixed = list(numbers)
        m.chance.shuffle(mixed)
        numbers[:] = mixed
    else:
        at = m.chance.randrange(len(numbers))
        pool = (numbers[at] + 1, numbers[at] - 1, *_SMALL)
        numbers[at] = m.chance.choice(pool if m.chance.random() < 0.95 else _LARGE)


@functools.cache
def _schemas() -> dict[str, Any]:
    return {s.name: s for s in onnx.defs.get_all_schemas() if not s.domain}


def _new_attribute(m: Mutant) -> None:
    """An attribute that the op has, and the node has not."""
    node = m.chance.choice(m.graph.node)
    known = _schemas()[node.op_type].attributes
    name = m.chance.choice(sorted(known))
    if any(attribute.name == name for attribute in node.attribute):
        return
    made: dict[str, Any] = {
        "INT": m.chance.choice(_SMALL),
        "INTS": m.chance.choices((0, 1, 1, 2, 3), k=m.chance.choice((1, 2, 2, 4))),
        "FLOAT": m.chance.choice(_FLOATS),
        "STRING": m.chance.choice(_TEXTS),
    }
    value = made.get(known[name].type.name)
    if value is not None:
        node.attribute.append(helper.make_attribute(name, value))


# ---- nodes and edges


def _rewire(m: Mutant) -> None:
    """A node reads another value; mostly one of the same type."""
    node = m.chance.choice(m.graph.node)
    at = m.chance.randrange(len(node.input))
    known = m.types.get(node.input[at])
    kind = known[0] if known else None
    pool = m.values(kind, len(known[1])) if known and m.chance.random() < 0.6 else []
    if not pool:
        pool = m.values(kind if m.chance.random() < 0.7 else None) or m.values()
    node.input[at] = m.chance.choice(pool)


def _delete(m: Mutant) -> None:
    """A node is left out; what read its results reads its first input."""
    node = m.chance.choice(m.graph.node)
    _replace(m, node.output[0], node.input[0])
    m.graph.node.remove(node)


def _replace(m: Mutant, old: str, new: str) -> None:
    for node in m.graph.node:
        for at, name in enumerate(node.input):
            if name == old:
                node.input[at] = new
    kept = [output for output in m.graph.output if output.name != old]
    del m.graph.output[:]
    m.graph.output.extend(kept)
    m.mark(new if not kept else kept[0].name)


def _duplicate(m: Mutant) -> None:
    """A node once more, behind itself, on its own result or beside it."""
    at = m.chance.randrange(len(m.graph.node))
    node = m.graph.node[at]
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = ""
    names = [m.fresh() for _ in copy.output]
    if m.chance.random() < 0.5:
        _replace(m, node.output[0], names[0])
        copy.input[0] = node.output[0]
    else:
        m.mark(names[0])
    copy.output[:] = names
    m.graph.node.insert(at + 1, copy)


def _other_op(m: Mutant) -> None:
    nodes = [n for n in m.graph.node if any(n.op_type in kinds for kinds in _CLASSES)]
    node = m.chance.choice(nodes)
    kinds = m.chance.choice([kinds for kinds in _CLASSES if node.op_type in kinds])
    node.op_type = m.chance.choice(kinds)


def _exchange(m: Mutant) -> None:
    """Two nodes change places, or two inputs of a node."""
    if m.chance.random() < 0.7:
        node = m.chance.choice(m.graph.node)
        i, k = m.chance.randrange(len(node.input)), m.chance.randrange(len(node.input))
        node.input[i], node.input[k] = node.input[k], node.input[i]
        return
    one, other = m.chance.choice(m.graph.node), m.chance.choice(m.graph.node)
    one.op_type, other.op_type = other.op_type, one.op_type


def _mark_output(m: Mutant) -> None:
    m.mark(m.chance.choice([o for node in m.graph.node for o in node.output]))


def _unmark(m: Mutant) -> None:
    if len(m.graph.output) > 1:
        del m.graph.output[m.chance.randrange(len(m.graph.output))]


def _opset(m: Mutant) -> None:
    m.model.opset_import[0].version = m.chance.choice((7, 9, 11, 13, 15, 17, 18, 20, 22, 23))


def _append(m: Mutant) -> None:
    """A few nodes behind a value; their result is an output, or read instead of the value."""
    made = m.chance.choice(CHAINS)(m, m.chance)
    m.mark(made)
    if m.chance.random() < 0.3:
        _unmark(m)


def _cast(m: Mutant) -> None:
    """A node reads what it read in another type."""
    node = m.chance.choice(m.graph.node)
    at = m.chance.randrange(len(node.input))
    name = m.fresh()
    cast = helper.make_node("Cast", [node.input[at]], [name], to=m.chance.choice(_DTYPES))
    m.graph.node.insert(list(m.graph.node).index(node), cast)
    node.input[at] = name


_CHANGES: Final[tuple[Callable[[Mutant], None], ...]] = (
    *(_input_extent,) * 6,
    _input_rank,
    _input_dtype,
    *(_constant_to_input,) * 2,
    _input_to_constant,
    *(_constant_element,) * 4,
    *(_constant_shape,) * 2,
    _constant_dtype,
    *(_attribute,) * 4,
    *(_new_attribute,) * 2,
    *(_rewire,) * 4,
    *(_delete,) * 2,
    *(_duplicate,) * 2,
    *(_other_op,) * 3,
    _exchange,
    *(_mark_output,) * 2,
    _unmark,
    _opset,
    *(_append,) * 8,
    _cast,
)
