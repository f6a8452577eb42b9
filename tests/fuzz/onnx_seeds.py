"""First inputs of the ONNX importer: models of one node, and models of what has no op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from smelt import ops
from smelt.errors import SmeltError
from tests.support.one_node_models import model_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def onnx_seeds() -> Iterator[bytes]:
    """A model of one node for a few cases of each op, and models of what has no op."""
    for kind in ops.ALL_OPS:
        for case in list(kind.cases())[:3]:
            try:
                results = case.op.reference(*case.inputs)
                yield model_of(case, results).SerializeToString()
            except (TypeError, ValueError, KeyError, AttributeError, AssertionError, SmeltError):
                continue  # what ONNX has not
    for change in _EXTERNAL:
        yield _external(change)
    for dims, indices in _SPARSE:
        yield _sparse(dims, indices).SerializeToString()
    yield onnx_with_external_data()[:40]
    for row in _NODES:
        yield _node(*row).SerializeToString()
    for made in (
        _control_flow,
        _functions,
        _weights_of_every_kind,
        _quantised,
        _captures,
        _users,
        _users_and_deep,
    ):
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
        [_floats(name, *cast("Any", shape)) for name, shape in pairs if isinstance(shape, tuple)],
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


_EXTERNAL: Final = (
    {"location": "../data.bin"}, {"location": "/data.bin"}, {"location": "none.bin"},
    {"location": "."}, {"location": ""}, {"offset": "8190"}, {"offset": "x"}, {"length": "3"},
    {"location": "absent.bin"}, {"location": "n" * 300}, {"location": "link.bin"},
    {"location": "folder"}, {"offset": "4096"},
)  # fmt: skip
_SPARSE: Final = (
    ([4], [0, 9]),
    ([-4], [0, 1]),
    ([2, 2], [[0, 1], [1, 1]]),
    ([2, 2], [[0, 1], [5, 1]]),
)


def _external(change: dict[str, str]) -> bytes:
    model = _weights_of_every_kind()
    for entry in model.graph.initializer[1].external_data:
        entry.value = change.get(entry.key, entry.value)
    data: bytes = model.SerializeToString()
    return data


def _sparse(dims: list[int], indices: Any) -> Any:
    places = np.array(indices, np.int64)
    weight = helper.make_sparse_tensor(
        helper.make_tensor("w", 1, [2], [1.0, 2.0]),
        helper.make_tensor("wi", TensorProto.INT64, places.shape, places.ravel().tolist()), dims,
    )  # fmt: skip
    model = _model([helper.make_node("Relu", ["w"], ["y"])], [], ["y"])
    model.graph.sparse_initializer.append(weight)
    return model


def _users_and_deep() -> Any:
    """A registered op, and a function that calls itself."""
    body = [helper.make_node("Deep", ["a"], ["b"], domain="my")]
    deep = helper.make_function("my", "Deep", ["a"], ["b"], body, [helper.make_opsetid("my", 1)])
    nodes = [
        helper.make_node("fuzzed", ["x"], ["y"], domain="my", number=2.0),
        helper.make_node("Deep", ["y"], ["z"], domain="my"),
    ]
    return _model(nodes, [_floats("x", 2)], ["y", "z"], functions=[deep])


def _users() -> Any:
    node = helper.make_node("fuzzed", ["x"], ["y"], domain="my", number=2.0)
    return _model([node], [_floats("x", 2)], ["y"])


def _captures() -> Any:
    """Regions that read a weight and a shape from outside."""

    def branch(kind: str) -> Any:
        nodes = [
            helper.make_node(kind, ["x", "w"], [f"{kind}_t"]),
            helper.make_node("Reshape", [f"{kind}_t", "shape"], [f"{kind}_y"]),
        ]
        return helper.make_graph(nodes, kind, [], [_empty(f"{kind}_y")])

    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("Add"), else_branch=branch("Mul")),
    ]
    cond = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    weights = [numpy_helper.from_array(np.ones(2, np.float32), "w")]
    return _model(nodes, [_floats("x", "n", 2), cond], ["y"], weights)


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
