"""First inputs of every target, made by our own writers when they are asked for."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from smelt import ops
from smelt.backends import WeightStore, assemble
from smelt.backends.cpu import CpuBackend, target_named
from smelt.builder._program import program_of
from smelt.builder._report import describe_plan
from smelt.devices.cpu import abi
from smelt.engine import (
    VERSION,
    Binding,
    Buffer,
    EngineHeader,
    Fingerprint,
    HostCall,
    KernelSpec,
    Launch,
    Plan,
    Signer,
    Space,
    View,
    Weight,
    header_to_data,
    parameters,
    serialize_engine,
)
from smelt.errors import SmeltError
from smelt.ir import Constant, Graph, Recipe, clone, print_graph
from smelt.ops import op_to_json, recipe_to_json
from smelt.passes import pipeline, run_passes
from smelt.tuner import Choice
from smelt.types import DType, OptionalType, SequenceType, SymbolicDim, TensorType
from tests.fuzz.user_op import Fuzzed
from tests.importers.caffe.builders import random_array
from tests.support.one_node_models import model_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.backends import Assembled, Tactic
    from smelt.ir import Array, Op
    from smelt.types import ValueType

TARGET: Final = "x86-64-v3"
"""Programs are for one processor, so that they are the same everywhere."""


# ---- ONNX


def onnx_seeds() -> Iterator[bytes]:
    """A model of one node for a few cases of each op, and models of what has no op."""
    for kind in ops.ALL_OPS:
        for case in list(kind.cases())[:3]:
            try:
                results = case.op.reference(*case.inputs)
                yield model_of(case, results).SerializeToString()
            except (TypeError, ValueError, KeyError, AttributeError, AssertionError, SmeltError):
                continue  # what ONNX has not
    for row in _NODES:
        yield _node(*row).SerializeToString()
    for made in (_control_flow, _functions, _weights_of_every_kind, _quantised):
        yield made().SerializeToString()


_I8: Final = (np.ones((1, 2, 4, 4), np.uint8), np.float32(0.1), np.uint8(3))
_NODES: Final[tuple[tuple[str, int, tuple[Any, ...], dict[str, Any]], ...]] = (
    ("Slice", 9, ((4, 6),), {"starts": [0, 1], "ends": [2, 9], "axes": [0, 1]}),
    ("Split", 11, ((4, 6),), {"split": [1, 3], "axis": 0}),
    ("Split", 11, ((4, 6),), {}),
    ("Split", 13, ((4, 6),), {}),
    ("Split", 18, ((5, 6),), {"num_outputs": 2}),
    ("Pad", 10, ((2, 3),), {"pads": [1, 0, 0, 1], "mode": "reflect"}),
    ("Pad", 8, ((2, 3),), {"pads": [1, 0, 0, 1], "value": 2.0}),
    ("Clip", 10, ((2, 3),), {"min": 0.0, "max": 6.0}),
    ("TopK", 9, ((2, 5),), {"k": 2}),
    ("Dropout", 11, ((2, 5),), {}),
    ("Dropout", 13, ((2, 5), np.float32(0.5), np.bool_(1)), {}),
    ("Softmax", 11, ((2, 3, 4),), {"axis": 1}),
    ("LogSoftmax", 12, ((2, 3, 4),), {"axis": 1}),
    ("Shape", 15, ((2, 3, 4),), {"start": 1, "end": -1}),
    ("Upsample", 7, ((1, 2, 3, 3),), {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "nearest"}),
    ("Upsample", 9, ((1, 2, 3, 3), np.array([1, 1, 2, 2], np.float32)), {"mode": "linear"}),
    ("CastLike", 15, ((2, 3), np.zeros(1, np.int32)), {}),
    ("Squeeze", 11, ((1, 3),), {"axes": [0]}),
    ("ReduceSum", 11, ((2, 3),), {"axes": [0], "keepdims": 0}),
    ("Scatter", 10, ((3, 3), np.zeros((1, 3), np.int64), np.ones((1, 3), np.float32)), {}),
    ("ScatterND", 18, ((3, 3), np.zeros((1, 1), np.int64), np.ones((1, 3), np.float32)), {}),
    ("BatchNormalization", 14, ((2, 3, 4), *[np.ones(3, np.float32)] * 4), {"epsilon": 0.1}),
    ("BatchNormalization", 7, ((2, 3, 4), *[np.ones(3, np.float32)] * 4), {"spatial": 0}),
    ("LayerNormalization", 17, ((2, 3), np.ones(3, np.float32)), {"stash_type": 1}),
    ("QuantizeLinear", 21, ((2, 3), np.float32(0.5)), {"output_dtype": 3}),
    ("QuantizeLinear", 13, ((2, 3), np.ones(3, np.float32), np.zeros(3, np.int8)), {"axis": 1}),
    ("QLinearConv", 10, (*_I8, np.ones((2, 2, 3, 3), np.uint8), *_I8[1:], *_I8[1:]), {}),
    ("QLinearMatMul", 10, (_I8[0], *_I8[1:], _I8[0], *_I8[1:], *_I8[1:]), {}),
    ("MatMulInteger", 10, (_I8[0], _I8[0], _I8[2]), {}),
    ("ConvInteger", 10, (_I8[0], np.ones((2, 2, 3, 3), np.uint8), _I8[2]), {"pads": [1, 1, 1, 1]}),
    ("MaxPool", 12, ((1, 2, 5, 5),), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("MaxPool", 12, ((1, 2, 5, 5),), {"kernel_shape": [2, 2], "pads": [1, 0, 1, 0],
                                      "ceil_mode": 1}),
    ("AveragePool", 19, ((1, 2, "h", 5),), {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"}),
    ("LpPool", 18, ((1, 2, 5, 5),), {"kernel_shape": [2, 2], "strides": [2, 2], "p": 2}),
    ("Conv", 11, ((1, 2, 5, 5), np.ones((2, 2, 3, 3), np.float32)), {"auto_pad": "VALID"}),
    ("Conv", 11, ((1, 2, 5, 5), np.ones((2, 1, 2, 2), np.float32)),
     {"auto_pad": "SAME_LOWER", "group": 2, "strides": [2, 2]}),
    ("ConvTranspose", 11, ((1, 2, 5, 5), np.ones((2, 2, 3, 3), np.float32)),
     {"output_shape": [10, 10], "strides": [2, 2]}),
    ("ConvTranspose", 11, ((1, 2, 5, 5), np.ones((2, 2, 3, 3), np.float32)),
     {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("MeanVarianceNormalization", 13, ((2, 3, 4, 4),), {}),
    ("Celu", 12, ((2, 3),), {"alpha": 2.0}),
    ("GroupNormalization", 21, ((1, 4, 3), *[np.ones(4, np.float32)] * 2), {"num_groups": 2}),
    ("RMSNormalization", 23, ((2, 4), np.ones(4, np.float32)), {}),
    ("Swish", 24, ((2, 4),), {}),
    ("Attention", 23, ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)), {}),
    ("SoftmaxCrossEntropyLoss", 13, ((2, 3), np.zeros(2, np.int64)), {}),
    ("Gelu", 20, ((2, 3),), {"approximate": "tanh"}),
    ("AffineGrid", 20, (np.ones((1, 2, 3), np.float32), np.array([1, 1, 2, 2], np.int64)), {}),
    ("Scan", 16, ((2, 3),), {"num_scan_inputs": 1}),
    ("Constant", 13, (), {"value_string": b"text"}),
    ("Constant", 13, (), {"value_ints": [1, 2]}),
    ("RandomNormal", 7, (), {"shape": [2]}),
)  # fmt: skip
"""Models of one node that bring rules of old opsets, of padding and of functions: op, opset, inputs
(a shape, or an array that is a weight) and attributes."""


def _node(op: str, opset: int, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    names = [f"x{number}" for number in range(len(inputs))]
    outputs = ["y0", "y1"] if op in ("Split", "TopK") else ["y0"]
    node = helper.make_node(op, names, outputs, **attributes)
    pairs = list(zip(names, inputs, strict=True))
    return _model(
        [node],
        [_floats(name, *shape) for name, shape in pairs if isinstance(shape, tuple)],
        outputs,
        [numpy_helper.from_array(np.asarray(a), n) for n, a in pairs if not isinstance(a, tuple)],
        opset=opset,
    )


def _model(
    nodes: Any, inputs: Any, outputs: Any, weights: Any = (), opset: int = 17, **options: Any
) -> Any:
    graph = helper.make_graph(nodes, "seed", inputs, [_empty(o) for o in outputs], weights)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **options)


def _empty(name: str) -> Any:
    return helper.make_empty_tensor_value_info(name)


def _floats(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _control_flow() -> Any:
    def branch(kind: str) -> Any:
        node = helper.make_node(kind, ["x"], [f"{kind}_y"])
        return helper.make_graph([node], kind, [], [_empty(f"{kind}_y")])

    cond = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    trips = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "x"], ["v2"]),
            helper.make_node("Identity", ["c_in"], ["c_out"]),
            helper.make_node("Identity", ["v2"], ["scan"]),
        ],
        "body",
        [trips, helper.make_tensor_value_info("c_in", TensorProto.BOOL, []), _floats("v", 2)],
        [_empty("c_out"), _empty("v2"), _empty("scan")],
    )
    nodes = [
        helper.make_node("If", ["c"], ["a"], then_branch=branch("Relu"), else_branch=branch("Abs")),
        helper.make_node("Loop", ["n", "", "a"], ["b", "stack"], body=body),
    ]
    weights = [numpy_helper.from_array(np.array(3, np.int64), "n")]
    return _model(nodes, [_floats("x", 2), cond], ["b", "stack"], weights)


def _functions() -> Any:
    body = [
        helper.make_node("Mul", ["a", "a"], ["t"]),
        helper.make_node("Elu", ["t"], ["b"]),
    ]
    body[1].attribute.add(name="alpha", ref_attr_name="slope", type=1)
    own = [helper.make_opsetid("", 17)]
    function = helper.make_function("my", "Square", ["a"], ["b"], body, own, ["slope"])
    nodes = [
        helper.make_node("Square", ["x"], ["s"], domain="my", slope=0.5),
        helper.make_node("LayerNormalization", ["s", "g"], ["l"]),
        helper.make_node("MeanVarianceNormalization", ["im"], ["m"]),
        helper.make_node("HardSwish", ["m"], ["h"]),
        helper.make_node("Constant", [], ["k"], value_floats=[1.0, 2.0]),
        helper.make_node("Constant", [], ["k2"], value_int=3),
        helper.make_node("ConstantOfShape", ["shape"], ["z"]),
    ]
    weights = [
        numpy_helper.from_array(np.ones(4, np.float32), "g"),
        numpy_helper.from_array(np.array([2, 3], np.int64), "shape"),
    ]
    model = _model(
        nodes, [_floats("x", "n", 4), _floats("im", 1, 2, 3, 3)],
        ["l", "h", "k", "k2", "z"], weights, functions=[function],
    )  # fmt: skip
    model.graph.value_info.append(_floats("s", 9, 9))
    return model


def onnx_with_external_data() -> bytes:
    """A model with bytes 16 to 32 of data.bin."""
    data: bytes = _weights_of_every_kind().SerializeToString()
    return data


def _weights_of_every_kind() -> Any:
    raw = numpy_helper.from_array(np.ones(4, np.float32), "raw")
    external = TensorProto(name="far", data_type=1, dims=[4])
    external.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "data.bin"), ("offset", "16"), ("length", "16")):
        external.external_data.add(key=key, value=value)
    typed = [
        helper.make_tensor(f"t{code}", code, [4], [1, 0, 1, 2 if code != TensorProto.BOOL else 1])
        for code in (1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13)
    ]
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sp", 1, [2], [1.0, 2.0]),
        helper.make_tensor("spi", TensorProto.INT64, [2], [0, 3]), [4],
    )  # fmt: skip
    flat = helper.make_sparse_tensor(
        helper.make_tensor("sq", 1, [1], [1.0]),
        helper.make_tensor("sqi", TensorProto.INT64, [1, 2], [1, 1]), [2, 2],
    )  # fmt: skip
    nodes = [
        helper.make_node("Sum", ["x", "raw", "far", "t1", "sp"], ["y"], name="sum"),
        *(helper.make_node("Cast", [t.name], [f"c{t.name}"], to=1) for t in typed),
        helper.make_node("Constant", [], ["k"], sparse_value=flat),
    ]
    outputs = ["y", "k", *(f"c{t.name}" for t in typed)]
    model = _model(nodes, [_floats("x", 4)], outputs, [raw, external, *typed])
    model.graph.sparse_initializer.append(sparse)
    model.graph.input.append(_floats("raw", 4))
    return model


def _quantised() -> Any:
    weights = [
        numpy_helper.from_array(np.array(0.1, np.float32), "s"),
        numpy_helper.from_array(np.array(3, np.uint8), "z"),
        numpy_helper.from_array(np.array([1, -1], np.int64), "shape"),
        numpy_helper.from_array(np.array([0, 1], np.int64), "index"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["r"]),
        helper.make_node("Gather", ["r", "index"], ["g"], axis=1),
        helper.make_node("Shape", ["g"], ["sh"]),
        helper.make_node("Dropout", ["g"], ["y"]),
    ]
    return _model(nodes, [_floats("x", 2, 4)], ["y", "sh"], weights)


# ---- engines and what is inside them


def graph_seeds() -> Iterator[Graph]:
    """Small optimised networks, with fused, recurrent, viewed and reference nodes."""
    for make in (_dense_graph, _image_graph, _odd_graph):
        graph = make()
        run_passes(graph, pipeline(precision="float32"), lambda _: None)
        yield graph


def _weight(graph: Graph, name: str, *shape: int) -> Any:
    return graph.add_constant(random_array(*shape), name)


def _dense_graph() -> Graph:
    graph = Graph("dense")
    batch = SymbolicDim.symbol("batch")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (batch, 8)))
    (y,) = graph.add(ops.MatMul(), x, _weight(graph, "w", 8, 4), name="product").outputs
    (y,) = graph.add(ops.Add(), y, _weight(graph, "b", 4), name="bias").outputs
    (y,) = graph.add(ops.Relu(), y, name="relu").outputs
    graph.outputs = list(graph.add(ops.Softmax(), y, name="prob").outputs)
    return graph


def _image_graph() -> Graph:
    graph = Graph("image")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (1, 4, 6, 6)))
    w = _weight(graph, "w", 4, 4, 3, 3)
    (a,) = graph.add(ops.Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), x, w, name="conv").outputs
    (a,) = graph.add(ops.Relu(), a, name="relu").outputs
    (b,) = graph.add(ops.MaxPool(kernel_shape=(3, 3), pads=(1, 1, 1, 1)), x, name="pool").outputs
    (c,) = graph.add(ops.Concat(axis=1), a, b, name="join").outputs
    (d,) = graph.add(ops.Transpose(perm=(0, 2, 3, 1)), c, name="turn").outputs
    graph.outputs = [c, d]
    return graph


def _odd_graph() -> Graph:
    graph = Graph("odd")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (3, 5)))
    k = graph.add_constant(np.array([2], np.int64), "k")
    node = graph.add(ops.TopK(), x, k, name="top")
    graph.outputs = list(node.outputs)
    return graph


def header_of(graph: Graph) -> tuple[EngineHeader, bytes]:
    """A header with a plan of the graph, and its weights; no code is compiled."""
    backend, target, store = CpuBackend(), target_named(TARGET), WeightStore()
    tactics = {id(n): backend.candidates(n, target)[0][0] for n in graph.nodes}
    is_batched = any(isinstance(d, SymbolicDim) for v in graph.inputs for d in v.tensor.shape)
    symbols = (("batch", 1, 4),) if is_batched else ()
    made = assemble(graph, tactics, backend, store, symbols=symbols, first_layer=0)
    fingerprint = Fingerprint("cpu", "x86_64", target.features, "linux", abi.ABI_VERSION, VERSION)
    names = {id(s): s.name for c in graph.constants() for s in c.sources()}
    weights = tuple(
        Weight(
            c.name, DType.from_numpy(c.array.dtype), c.array.shape, offset,
            recipe_to_json(c, lambda source: names.get(id(source))),
        )
        for c, offset in store.entries
    )  # fmt: skip
    kernels = {s.kernel.symbol for s in made.plan.steps if hasattr(s, "kernel")}
    bindings = [Binding(v.name, True, v.tensor.dtype, v.tensor.shape) for v in graph.inputs]  # noqa: FBT003
    bindings += [Binding(v.name, False, v.tensor.dtype, v.tensor.shape) for v in graph.outputs]  # noqa: FBT003
    header = EngineHeader(
        graph.name, fingerprint, tuple(bindings), 4 if is_batched else None, (made.plan,),
        made.layers, weights, tuple((name, 0) for name in sorted(kernels)),
        report=_report(graph, tactics, made),
        program=program_of([(graph, tactics, symbols)], store),
        metadata=(("origin", "seed"),),
    )  # fmt: skip
    return header, bytes(store.data())


def _report(graph: Graph, tactics: dict[int, Tactic], made: Assembled) -> str:
    """The build report of a plan whose candidates were timed in thought."""
    passes = run_passes(clone(graph), pipeline(precision="float32"), lambda _: None).to_json()
    note = {"before": ["a"], "after": ["b"], "detail": "why", "applied": True}
    record = {"name": "fold", "nodes_before": 2, "nodes_after": 1, "seconds": 0.1, "notes": [note]}
    passes["passes"] = [record, *passes["passes"][:2]]
    times = {n.name: [(str(tactics[id(n)]), 1e-5), ("reference()", 2e-3)] for n in graph.nodes}
    choice = Choice(tactics, times)
    refusals = {n.name: ["gemm: no product"] for n in graph.nodes}
    return json.dumps([describe_plan(graph, graph, passes, choice, refusals, made)])


WEIGHT_BYTES: Final = 1 << 16
CODE_BYTES: Final = 64


def engine_seeds() -> Iterator[bytes]:
    """Unsigned and signed engine files."""
    header, weights = header_of(_odd_graph())
    yield serialize_engine(header, weights, b"code", b"runtime", None)
    header = replace(header, program="{}")
    yield serialize_engine(header, weights, b"code", b"", Signer(b"s" * 32))
    yield serialize_engine(header, b"", b"", b"", None)


def plan_seeds() -> Iterator[bytes]:
    """Headers: assembled ones, and some with what the small networks do not need."""
    for graph in graph_seeds():
        header, _ = header_of(graph)
        header = replace(header, program="{}")
        yield json.dumps(header_to_data(header)).encode()
    details = replace(header.layers[0], details=parameters(kept=(1, 2.5, None, "text")))
    header = replace(header, layers=(details, *header.layers[1:]))
    for plan in _odd_plans():
        yield json.dumps(header_to_data(replace(header, plans=(plan,)))).encode()


def _odd_plans() -> Iterator[Plan]:
    """Symbols beyond four, steps at once, windows in place and beside each other, host calls."""
    n = SymbolicDim.symbol("a")
    names = tuple((name, 1, 4) for name in "abcdef")
    arena = (Buffer(Space.ARENA, 0, 1024), Buffer(Space.ARENA, 1024, 1024))
    whole = View(0, 0, DType.FLOAT32, (n, 8), (16, 1))
    beside = View(0, 32, DType.FLOAT32, (n, 8), (16, 1))
    other = View(1, 64, DType.FLOAT32, (n, 4), (8, 1), ((0, 0), (1, 1)))
    kernel = KernelSpec("copy", parameters(size=8))
    steps = (
        Launch(kernel, (whole, beside), writes=(1,), scalars=(n * 2 + 1,), chunks=n),
        Launch(kernel, (whole, whole), writes=(1,), waits=False),
        Launch(kernel, (other, beside), writes=(0,), scratch_bytes=8),
        HostCall(op_to_json(ops.Relu()), (whole, None), (other,), (("b", 0, 0),)),
    )
    yield Plan(names, arena, steps, 4096, 64)
    yield Plan(names[:2], arena, steps[2:], 4096, 64)
    yield Plan((), (), (), 0, 0)


def program_seeds() -> Iterator[bytes]:
    """What plans are assembled anew from."""
    for graph in graph_seeds():
        yield header_of(graph)[0].program.encode()


def op_seeds() -> Iterator[bytes]:
    """Every op with fields, and recipes of weights."""
    for kind in ops.ALL_OPS:
        for case in list(kind.cases())[:2]:
            yield json.dumps(["op", op_to_json(case.op)]).encode()
    for case in Fuzzed.cases():
        written: Any = op_to_json(case.op)
        yield json.dumps(["op", written]).encode()
        yield json.dumps(["op", [*written[:3], ["other", "fuzzed", "1", "0"]]]).encode()
    region = Graph("region")
    dims = TensorType(DType.INT8, (SymbolicDim.symbol("n"), 2))
    region.outputs = [region.add_input(n, k) for n, k in zip("abc", _types(dims), strict=True)]
    region.symbol_bounds["n"] = 4
    yield json.dumps(["op", op_to_json(Fuzzed(region=region))]).encode()
    source = Constant("w", random_array(2, 3))
    turned = Constant("t", recipe=Recipe(ops.Transpose(perm=(1, 0)), (source,), 0))
    sliced = Constant("s", recipe=Recipe(ops.Concat(axis=0), (turned, turned), 0))
    for intern in _INTERNS:
        yield json.dumps(["recipe", recipe_to_json(sliced, intern)]).encode()


def _types(tensor: TensorType) -> tuple[ValueType, ...]:
    return tensor, SequenceType(tensor), OptionalType(SequenceType(tensor))


_INTERNS: Final[tuple[Callable[[Constant], str | None], ...]] = (
    lambda constant: constant.name,
    lambda _: None,
)


_ODD_IR: Final = """
graph "odd name" {
bound count 12
input %s: sequence(float32[n, 3])
input %o: optional(sequence(int64[]))
input %x: float32[n, 3, (n + 1) // 2]
const %c: int64[2] [1, -2]
const %d = Concat(axis=0) %c, %c
%y: float32[n, 3, (n + 1) // 2] = Relu() %x @here of first, "second one"
%z: float32[n, 3, (n + 1) // 2] = Abs() %y || Exp() $0 | Add() $ , %x
%f: float32[n, 3, (n + 1) // 2] = Fuzzed(layout=Layout.LINEAR, number=-inf, pairs=[["x", 1]], \
anything=array(int8[2] [1, 2])) %z
return %y, %z
}
"""


def ir_seeds() -> Iterator[bytes]:
    """The text of small networks, and of a network of each op's first cases."""
    yield _ODD_IR.encode()
    for graph in text_graphs():
        yield print_graph(graph).encode()


def text_graphs() -> Iterator[Graph]:
    """Small networks, and a network of each op's first cases."""
    yield from graph_seeds()
    for kind in ops.ALL_OPS:
        for case in list(kind.cases())[: 6 if kind is ops.Fused else 1]:
            if sum(a.nbytes for a in case.inputs if a is not None) < 1 << 16:
                with contextlib.suppress(SmeltError):
                    yield graph_of(case.op, case.inputs, case.constants)


def graph_of(op: Op, inputs: tuple[Array | None, ...], constants: frozenset[int]) -> Graph:
    """A network of one node."""
    graph = Graph("one")
    values: list[Any] = []
    for number, array in enumerate(inputs):
        if array is None:
            values.append(None)
        elif number in constants:
            values.append(graph.add_constant(array, f"c{number}"))
        else:
            kind = TensorType(DType.from_numpy(array.dtype), array.shape)
            values.append(graph.add_input(f"x{number}", kind))
    graph.outputs = list(graph.add(op, *values, name="node").outputs)
    return graph


# ---- small files


def timing_seeds() -> Iterator[bytes]:
    """Timing caches, sound and nearly."""
    for seconds in (
        {},
        {"conv a": 1e-3, "gemm b": 2.0},
        {"x": -1, "y": "1", "z": None, "w": 1e999},
    ):
        yield json.dumps({"format": "smelt timing cache 1", "seconds": seconds}).encode()
    yield b'{"format": "other"}'
    yield b"[" * 5000


def key_seeds() -> Iterator[bytes]:
    """Public keys as text, and a private key's file."""
    from base64 import b64encode

    text = b"smelt-ed25519 " + b64encode(bytes(range(32)))
    yield text
    yield text + b" a label of mine\n"
    yield b"smelt-ed25519 AAAA short"
    yield b"s" * 32
    yield (b"k" * 32).hex().encode()


def dim_seeds() -> Iterator[bytes]:
    """Dimensions as text."""
    for text in (
        "3",
        "n",
        "-n + 1",
        "2*n*m - 3",
        "((n + 1) // 2)",
        "(n*m + 2*k) // 3 // 2",
        "n//n",
    ):
        yield text.encode()


def code_seeds() -> Iterator[bytes]:
    """Entries of the code cache with a wrong seal; the sound one is the target's own."""
    yield b"smeltobj" + bytes(32) + b"object"
    yield b"smeltobj"
