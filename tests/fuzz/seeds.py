"""First inputs of every target, made by our own writers when they are asked for."""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt import ops
from smelt.backends import WeightStore, build_plan
from smelt.backends.cpu import CpuBackend, target_named
from smelt.builder._build_report import describe_plan
from smelt.builder._embedded_network import embed_network
from smelt.builder._options import BuildOptions
from smelt.builder._plan_recipe import PlanRecipe, plan_recipes_json
from smelt.builder._tactic_selection import PlanBuildState
from smelt.devices.cpu import abi
from smelt.devices.cuda import CudaKernel
from smelt.engine import (
    VERSION,
    Binding,
    Buffer,
    EngineFile,
    EngineHeader,
    Fingerprint,
    HostCall,
    KernelSpec,
    Launch,
    Plan,
    RefittableArray,
    Signer,
    Space,
    Submit,
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
from smelt.tuner import TacticChoice
from smelt.types import (
    DType,
    Guard,
    OptionalType,
    Relation,
    SequenceType,
    SymbolicDim,
    TensorType,
)
from tests.fuzz.user_op import Fuzzed
from tests.importers.caffe.builders import random_array
from tests.support.cubins import Kernel, make_cubin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.backends import BuiltPlan, Tactic
    from smelt.ir import Array, Node, Op
    from smelt.types import ValueType

TARGET: Final = "x86-64-v3"
"""Programs are for one processor, so that they are the same everywhere."""


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
    tactics = {n: backend.candidates(n, target)[0][0] for n in graph.nodes}
    is_batched = any(isinstance(d, SymbolicDim) for v in graph.inputs for d in v.tensor.shape)
    symbols = (("batch", 1, 4),) if is_batched else ()
    made = build_plan(graph, tactics, backend, store, symbols=symbols, first_layer=0)
    fingerprint = Fingerprint("cpu", "x86_64", target.features, "linux", abi.ABI_VERSION, VERSION)
    names = {s: s.name for c in graph.constants() for s in c.sources()}
    weights = tuple(
        Weight(
            c.name, DType.from_numpy(c.array.dtype), c.array.shape, offset,
            recipe_to_json(c, lambda source: names.get(source)),
        )
        for c, offset in store.entries
    )  # fmt: skip
    kernels = {s.kernel.symbol for s in made.plan.steps if isinstance(s, Launch)}
    bindings = [Binding(v.name, True, v.tensor.dtype, v.tensor.shape) for v in graph.inputs]  # noqa: FBT003
    bindings += [Binding(v.name, False, v.tensor.dtype, v.tensor.shape) for v in graph.outputs]  # noqa: FBT003
    header = EngineHeader(
        graph.name, fingerprint, tuple(bindings), 4 if is_batched else None, (made.plan,),
        made.layers, weights, tuple((name, 0) for name in sorted(kernels)),
        report=_report(graph, tactics, made),
        program=plan_recipes_json(
            [PlanRecipe(graph, tactics, symbols, ())], store, [v.name for v in graph.outputs]
        ),
        metadata=(("origin", "seed"),),
    )  # fmt: skip
    return header, bytes(store.data())


def _report(graph: Graph, tactics: dict[Node, Tactic], made: BuiltPlan) -> str:
    """The build report of a plan whose candidates were timed in thought."""
    passes = run_passes(clone(graph), pipeline(precision="float32"), lambda _: None).to_json()
    note = {"before": ["a"], "after": ["b"], "detail": "why", "applied": True}
    record = {"name": "fold", "nodes_before": 2, "nodes_after": 1, "seconds": 0.1, "notes": [note]}
    passes["passes"] = [record, *passes["passes"][:2]]
    times = {n.name: [(str(tactics[n]), 1e-5), ("reference()", 2e-3)] for n in graph.nodes}
    choice = TacticChoice(tactics, times)
    refusals = {n.name: ["gemm: no product"] for n in graph.nodes}
    plan = PlanBuildState(
        {}, {}, {}, graph, passes, choice=choice, assembled=made, refusals=refusals
    )
    return json.dumps([describe_plan(graph, plan)])


WEIGHT_BYTES: Final = 1 << 16
CODE_BYTES: Final = 64


def engine_seeds() -> Iterator[bytes]:
    """Unsigned and signed engine files."""
    header, weights = header_of(_odd_graph())
    yield serialize_engine(header, weights, b"code", b"runtime", None)
    header = replace(header, program="{}")
    yield serialize_engine(header, weights, b"code", b"", Signer(b"s" * 32))
    yield serialize_engine(header, b"", b"", b"", None)
    yield from _parted_engines()
    yield from _damaged_engines(serialize_engine(header, b"w" * 64, b"code", b"", None))


def _parted_engines() -> Iterator[bytes]:
    """Files with a partition that fits the step that submits it, and with others."""
    graph = Graph("parted")
    x = graph.add_input("x", TensorType(DType.FLOAT32, (SymbolicDim.symbol("batch"), 4)))
    graph.outputs = graph.add(ops.Relu(), x, name="relu").outputs
    inner, weights = header_of(graph)
    inner = replace(inner, program="{}")
    (plan,) = inner.plans
    x_view, y_view = (v for s in plan.steps if isinstance(s, Launch) for v in s.operands)
    file = EngineFile(inner, np.frombuffer(weights, np.uint8), b"code", b"", None, "part")
    wide = replace(x_view, strides=(8, 1))
    for index, inputs, outputs in (
        (0, (x_view,), (y_view,)), (1, (x_view,), (y_view,)), (0, (), (y_view,)),
        (0, (wide,), (y_view,)), (0, (x_view,), (x_view,)),
    ):  # fmt: skip
        step = Submit(index, inputs, outputs)
        header = replace(inner, plans=(replace(plan, steps=(step,)),))
        yield serialize_engine(header, weights, b"code", b"", None, b"", [file])
    narrow = replace(plan, symbols=(("batch", 1, 2),))
    for part in (replace(inner, plans=(narrow,)), replace(inner, plans=(plan, plan))):
        parts = [replace(file, header=part)]
        yield serialize_engine(header, weights, b"code", b"", None, b"", parts)


def _damaged_engines(file: bytes) -> Iterator[bytes]:
    """Files that each break one rule of the format, so that no rule depends on luck to be tried."""
    length = int.from_bytes(file[16:24], "little")
    for at, value in ((0, b"?"), (8, b"\0"), (12, b"\1"), (23, b"\1"), (31, b"\1"), (63, b"\1")):
        yield file[:at] + value + file[at + 1 :]
    for at in (64, 64 + length, 64 + length + 127, 64 + length + 128, len(file) - 4):
        yield file[:at] + b"?" + file[at + 1 :]
    yield file[:24] + (len(file) + 1).to_bytes(8, "little") + file[32:] + b"?"
    for old, new in (
        (b'"engine"', b'"engin!"'),
        (b'"sections":[', b'"sections":0,"'),
        (b'"name":"code"', b'"name":"cod!"'),
        (b'"size":64', b'"size":65'),
        (b'"sections":[{', b'"sections":[0,{'),
    ):
        assert old in file
        yield file.replace(old, new, 1)


def plan_seeds() -> Iterator[bytes]:
    """Headers: assembled ones, and some with what the small networks do not need."""
    headers = [replace(header_of(graph)[0], program="{}") for graph in graph_seeds()]
    for header in headers:
        yield json.dumps(header_to_data(header)).encode()
    header = headers[-1]
    elsewhere = replace(header.fingerprint, device="tpu")  # of another version of smelt
    yield json.dumps(header_to_data(replace(header, fingerprint=elsewhere))).encode()
    details = replace(header.layers[0], details=parameters(kept=(1, 2.5, None, "text")))
    header = replace(header, layers=(details, *header.layers[1:]))
    for report in ("[]", '[{"candidates": {"relu": [[1, 2], 3]}, "memory": [["a", 1]]}]'):
        yield json.dumps(header_to_data(replace(header, report=report))).encode()
    kept = Weight("w", DType.FLOAT32, (8, 4), 64)
    header = replace(header, network_arrays=(kept,), network="{}")
    yield json.dumps(header_to_data(replace(header, weights=(_recipe_weight(),)))).encode()
    for plan in _odd_plans():
        yield json.dumps(header_to_data(replace(header, plans=(plan,)))).encode()
    for other in (*_gpu_headers(header), *_wrong_headers(header)):
        yield json.dumps(header_to_data(other)).encode()


def _gpu_headers(header: EngineHeader) -> Iterator[EngineHeader]:
    """Of a GPU whose rates are known, with steps on the host; and weights of another shape."""
    features = ("cublaslt=130002", "multiprocessors=132", "other")
    fingerprint = Fingerprint("cuda", "sm_90", features, "any", abi.ABI_VERSION, VERSION)
    (layer, *_), flop = header.layers, {layer.name: "2*a" for layer in header.layers}
    for plan in _odd_plans():
        detail = json.dumps([{"flop": flop, "passes": {}}])
        yield replace(
            header, fingerprint=fingerprint, plans=(plan,), layers=(layer,), report=detail
        )
    given = RefittableArray("w", DType.FLOAT32, (64, 64))
    yield replace(header, given=(given,))
    yield replace(header, scales=(_recipe_weight().recipe,))


def _wrong_headers(header: EngineHeader) -> Iterator[EngineHeader]:
    """What may be read, and not run: each of the verifier's words about whole plans."""
    n, (plan, *_) = SymbolicDim.symbol("a"), header.plans
    binding = Binding("i", True, DType.FLOAT32, (n, 2))  # noqa: FBT003
    yield replace(header, bindings=(binding, binding))
    yield replace(header, symbols=(("kernel", CODE_BYTES),))
    yield replace(header, plans=())
    for symbols in ((("a", 1, 2), ("a", 1, 2)), (("a", 2, 1),)):
        yield replace(header, plans=(replace(plan, symbols=symbols),))
    yield replace(header, plans=(replace(plan, arena_bytes=-1),))
    yield replace(header, plans=(replace(plan, outputs=((n,),) * 9),))
    yield replace(header, plans=(replace(plan, guards=(Guard(n, Relation.EQUAL, 1, "x"),)),))
    yield replace(header, bindings=(binding,), plans=(replace(plan, symbols=()),))


def _recipe_weight() -> Weight:
    """What follows from a source and from numbers that are in the recipe."""
    source, times = Constant("w", random_array(8, 4)), Constant("k", np.array([2, 1], np.int64))
    tiled = Constant("t", recipe=Recipe(ops.Tile(), (source, times), 0))
    recipe = recipe_to_json(tiled, lambda constant: "w" if constant is source else None)
    return Weight("t", DType.FLOAT32, (16, 4), 0, recipe)


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
    """What plans are assembled anew from, and what gives another engine."""
    for graph in graph_seeds():
        program = header_of(graph)[0].program
        yield program.encode()
        for key in ("plans", "outputs"):
            document = json.loads(program)
            document[key] *= 2
            yield json.dumps(document).encode()
        document = json.loads(program)
        document["plans"][0]["assumed"] = [["n", Relation.EQUAL.value, "2*n", "what", "who"]]
        yield json.dumps(document).encode()
        yield from _other_nodes(graph, program)


def _other_nodes(graph: Graph, program: str) -> Iterator[bytes]:
    """Programs whose last node breaks one rule each."""
    refusals = CpuBackend().candidates(graph.nodes[-1], target_named(TARGET))[1]
    families = [refusal.family for refusal in refusals] or ["gemm"]
    changes: list[tuple[str, Callable[[Any], Any]]] = [
        ("tactic", lambda tactic: [families[0], *tactic[1:]]),
        ("types", lambda types: ["int8", *types[1:]]),
        ("types", lambda types: ["float16", *types[1:]]),
        ("inputs", lambda inputs: [["node", 99, 0], *inputs[1:]]),
        ("inputs", lambda inputs: [None, *inputs[1:]]),
    ]
    for key, change in changes:
        document = json.loads(program)
        node = document["plans"][0]["nodes"][-1]
        node[key] = change(node[key])
        yield json.dumps(document).encode()


@functools.cache
def retunable_file() -> EngineFile:
    """An engine without plans that keeps arrays of many types."""
    kept = embed_network(_kept_graph(), BuildOptions())
    fingerprint = Fingerprint("cpu", "x86_64", (), "linux", abi.ABI_VERSION, VERSION)
    header = EngineHeader(
        "kept", fingerprint, (), None, (), (), (), network_arrays=kept.network_arrays
    )
    return EngineFile(header, np.zeros(0, np.uint8), b"", b"", None, "the engine", kept.data)


def _kept_graph() -> Graph:
    """Products of what is derived and what is not, in a network of an open batch."""
    graph = _dense_graph()
    half = Constant("h", random_array(4, 4).astype(np.float16))
    wide = Constant("wide", recipe=Recipe(ops.Cast(DType.FLOAT32), (half,), 0))
    values = [graph.outputs[0], graph.add_constant(wide)]
    graph.outputs = list(graph.add(ops.MatMul(), *values, name="derived").outputs)
    return graph


def network_seeds() -> Iterator[bytes]:
    """Networks that engines keep, with shapes of each kind."""
    for shapes in _SHAPES:
        options = BuildOptions(shapes=None if shapes is None else {"x": shapes})
        yield embed_network(_kept_graph(), options).text.encode()


_SHAPES: Final[tuple[Any, ...]] = (
    None,
    (2, 8),
    [(1, 8), (4, 8)],
    ((1, 8), (2, 8), (4, 8)),
    # What a build refuses: extents, types, other extents than the network's, and sizes.
    (1 << 60, 8),
    [(1, 8), (4,)],
    ((4, 8), (2, 8), (1, 8)),
    (2, 9),
    (2, 8, 8),
    (1 << 38, 8),
)


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
bound count [12]
input %s: sequence(float32[n, 3])
input %o: optional(sequence(int64[]))
input %x: float32[n, 3, (n + 1) // 2]
const %c: int64[2] [1, -2]
const %d = Concat(axis=0) %c, %c
const %r: int64[1] [3]
const %t = Tile %c, %r
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


CUBINS: Final = b"".join(
    CudaKernel("k", make_cubin(Kernel("k", 64, shared, frame)), 128, 4096).to_bytes()
    for shared, frame in ((0, 0), (1024, 96))
)
"""A kernel's records for two GPUs."""


def cubin_seeds() -> Iterator[bytes]:
    """Code of engines for GPUs, and cubins."""
    yield CUBINS
    yield make_cubin(Kernel("k"))
    yield make_cubin(Kernel("other"), Kernel("k", 255, 4096, 8), reserves=True)


def code_seeds() -> Iterator[bytes]:
    """Entries of the code cache with a wrong seal; the sound one is the target's own."""
    yield b"smeltobj" + bytes(32) + b"object"
    yield b"smeltobj"
