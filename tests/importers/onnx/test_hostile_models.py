"""Damaged, hostile and wrong models: each is refused with an error that says what and where."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

from smelt.errors import GraphError, ModelFormatError, ShapeError, SmeltError, UnsupportedError
from smelt.importers.onnx import import_onnx, read_onnx
from smelt.interp import interpret
from tests.importers.onnx.one_node import compare, float_info, node_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from onnx import ModelProto, NodeProto


def _model(
    nodes: Sequence[NodeProto],
    weights: Sequence[TensorProto] = (),
    *,
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "hostile",
        list(inputs) or [float_info("x", [2, 3])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        list(weights),
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("my", 1)],
        functions=list(functions),
        ir_version=8,
    )


def _add(weight: TensorProto) -> ModelProto:
    return _model([helper.make_node("Add", ["x", "w"], ["y"], name="sum")], [weight])


def _weight(**fields: Any) -> TensorProto:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3])
    weight.raw_data = np.ones(6, np.float32).tobytes()
    for name, value in fields.items():
        if name == "dims":
            del weight.dims[:]
            weight.dims.extend(value)
        else:
            setattr(weight, name, value)
    return weight


RELU = helper.make_node("Relu", ["x"], ["y"], name="relu")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\xff\xff\xff\xff", "not an ONNX model"),
        (b"name: 'lenet'", "not an ONNX model"),
        (_model([RELU]).SerializeToString()[:-7], "truncated"),
        (b"\x08\x08", "no graph"),
    ],
)
def test_bytes_that_are_no_model_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(ModelFormatError, match=words):
        import_onnx(data)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ModelFormatError, match=r"no_such\.onnx"):
        import_onnx("no_such.onnx")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"raw_data": b"\0" * 20}, "24 bytes, but there are 20"),
        ({"dims": [2, -3]}, "negative extent"),
        ({"dims": [1 << 40, 1 << 40]}, "bytes, but there are 24"),
        ({"dims": [0, 1 << 62, 1 << 62], "raw_data": b""}, "too large"),
        ({"data_type": 99}, "element type 99 is unknown"),
        ({"data_type": TensorProto.DOUBLE}, "48 bytes, but there are 24"),
    ],
)
def test_a_weight_whose_sizes_contradict_each_other_is_named(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelFormatError, match=words) as caught:
        import_onnx(_add(_weight(**fields)))
    assert "'w'" in str(caught.value)


def test_a_weight_with_too_few_typed_elements_is_named() -> None:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], float_data=[1, 2])
    with pytest.raises(ModelFormatError, match="needs 6 elements, but float_data has 2"):
        import_onnx(_add(weight))


def test_strings_in_damaged_bytes_are_refused() -> None:
    data = _model([RELU]).SerializeToString().replace(b"relu", b"\xff\xfe\xfd\xfc")
    with pytest.raises(ModelFormatError, match="UTF-8"):
        import_onnx(data)


@pytest.mark.parametrize(
    ("build", "kind", "words"),
    [
        (
            lambda: _model(
                [
                    helper.make_node("Add", ["x", "b"], ["a"], name="first"),
                    helper.make_node("Relu", ["a"], ["b"], name="second"),
                ],
                outputs=["b"],
            ),
            GraphError,
            "cycle.*'first'.*'second'",
        ),
        (
            lambda: _model([RELU, helper.make_node("Abs", ["x"], ["y"])]),
            GraphError,
            "has the name 'y' twice",
        ),
        (
            lambda: _model([helper.make_node("Relu", ["nothing"], ["y"], name="relu")]),
            GraphError,
            "Relu 'relu': the node reads 'nothing'",
        ),
        (lambda: _model([RELU], outputs=["z"]), GraphError, "no value 'z' to use as an output"),
        (lambda: _model([RELU], outputs=[]), GraphError, "no output"),
        (
            lambda: _model([RELU], [_weight(), _weight()]),
            GraphError,
            "weight 'w'.*twice",
        ),
        (
            lambda: _model([RELU], inputs=[float_info("x", [2]), float_info("x", [2])]),
            GraphError,
            "input 'x' occurs twice",
        ),
        (
            lambda: _model([RELU], inputs=[float_info("x", [2, -7])]),
            ModelFormatError,
            "extent -7",
        ),
        (
            lambda: _model([RELU], inputs=[float_info("x", [1 << 30, 1 << 30])]),
            ModelFormatError,
            "bytes; the maximum is 1099511627776",
        ),
        (
            lambda: _model([helper.make_node("Relu", ["x", "x"], ["y"], name="relu")]),
            ModelFormatError,
            "2 inputs; expected 1",
        ),
        (
            lambda: _model([helper.make_node("Concat", ["x", "x"], ["y"], axis="one")]),
            ModelFormatError,
            "'axis' has type string; it must be int",
        ),
        (
            lambda: _model([helper.make_node("Concat", ["x", "x"], ["y"])]),
            ModelFormatError,
            "'axis' is required",
        ),
        (
            lambda: _model([helper.make_node("MatMul", ["x", "x"], ["y"], name="product")]),
            ShapeError,
            "product",
        ),
    ],
)
def test_a_wrong_network_is_refused_with_the_place(
    build: Callable[[], ModelProto], kind: type[SmeltError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        import_onnx(build())


def test_every_unsupported_node_is_reported_at_once() -> None:
    branch = helper.make_graph(
        [helper.make_node("Unheard", ["x"], ["t"], name="inner")],
        "branch",
        [],
        [helper.make_empty_tensor_value_info("t")],
    )
    other = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["e"])],
        "other",
        [],
        [helper.make_empty_tensor_value_info("e")],
    )
    nodes = [
        helper.make_node("Det", ["x"], ["d"], name="determinant"),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("Special", ["r"], ["s"], name="custom", domain="my"),
        helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=other),
        helper.make_node("Elu", ["i"], ["y"], name="misspelt", alfa=1.0),
    ]
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    model = _model(nodes, inputs=[float_info("x", [2, 2]), flag])
    with pytest.raises(UnsupportedError) as caught:
        import_onnx(model)
    reasons = "\n".join(caught.value.reasons)
    assert len(caught.value.reasons) == 4
    for words in (
        "Det-17 'determinant': the op Det is not supported",
        "my.Special-1 'custom': ops of domain my are not supported",
        "Unheard-17 'inner'",
        "attribute 'alfa' is unknown; the attributes are: alpha",
    ):
        assert words in reasons


def test_what_many_nodes_have_in_common_is_told_once() -> None:
    nodes = [helper.make_node("Det", [f"x{n}"], [f"x{n + 1}"], name=f"d{n}") for n in range(5)]
    with pytest.raises(UnsupportedError, match=r"^5 part") as caught:
        import_onnx(_model(nodes, inputs=[float_info("x0", [2, 2])], outputs=["x5"]))
    (reason,) = caught.value.reasons
    assert reason.startswith("Det-17 'd0': the op Det is not supported")
    assert reason.endswith("(and 4 more of the same kind)")


@pytest.mark.parametrize(("opset", "words"), [(6, "7 to"), (999, "install a newer onnx")])
def test_an_opset_that_is_not_read_is_refused(opset: int, words: str) -> None:
    with pytest.raises(UnsupportedError, match=f"opset {opset}.*{words}"):
        import_onnx(_model([RELU], opset=opset))


def test_a_function_that_calls_itself_is_refused() -> None:
    body = [helper.make_node("F", ["a"], ["b"], domain="my")]
    function = helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("my", 1)])
    node = helper.make_node("F", ["x"], ["y"], domain="my")
    with pytest.raises(ModelFormatError, match="call itself"):
        import_onnx(_model([node], functions=[function]))


def test_wrong_declared_shapes_are_warned_about_and_inferred(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _model([RELU])
    model.graph.output[0].CopyFrom(float_info("y", [7, 7]))
    with caplog.at_level(logging.WARNING, "smelt"):
        graph = import_onnx(model)
    assert graph.outputs[0].tensor.shape == (2, 3)
    assert "'y' is declared as [7, 7] but is float32[2, 3]" in caplog.text


def _external(tmp_path: Path, **entries: object) -> Path:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        weight.external_data.add(key=key, value=str(value))
    path = tmp_path / "model.onnx"
    path.write_bytes(_add(weight).SerializeToString())
    return path


def test_external_data_is_read_from_the_models_folder(tmp_path: Path) -> None:
    data = np.arange(8, dtype=np.float32)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(data.tobytes())
    path = _external(tmp_path, location="sub/w.bin", offset=8, length=24)
    (value,) = interpret(import_onnx(path), {"x": np.zeros((2, 3), np.float32)}).values()
    assert np.array_equal(value.ravel(), data[2:])
    compare(str(path), {"x": np.ones((2, 3), np.float32)})
    read = read_onnx(path)
    assert not read.graph.initializer[0].external_data
    compare(read, {"x": np.ones((2, 3), np.float32)})


def test_external_data_that_changes_after_the_import_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    graph = import_onnx(_external(tmp_path, location="w.bin"))
    (tmp_path / "w.bin").write_bytes(b"")  # in place: a map of the file would end the process
    (value,) = interpret(graph, {"x": np.zeros((2, 3), np.float32)}).values()
    assert np.array_equal(value.ravel(), np.arange(6))


def test_external_data_is_read_once_however_many_tensors_name_it(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(28))
    path = _external(tmp_path, location="w.bin")
    model = onnx.ModelProto.FromString(path.read_bytes())
    twin = model.graph.initializer.add()
    twin.CopyFrom(model.graph.initializer[0])
    twin.name = "twin"
    model.graph.node.add(op_type="Add", input=["y", "twin"], output=["z"])
    model.graph.output.append(float_info("z", [2, 3]))
    path.write_bytes(model.SerializeToString())
    graph = import_onnx(path)
    first, second = (v.constant.array for v in graph.values() if v.constant is not None)
    assert np.shares_memory(first, second)
    twin.external_data.add(key="offset", value="4")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFormatError, match="overlap: those read so far need 48 bytes"):
        import_onnx(path)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "absent.bin"}, "put that file into the folder of the model"),
        ({"location": "../w.bin"}, "must be a path inside"),
        ({"location": "a/../../w.bin"}, "must be a path inside"),
        ({"location": "/etc/passwd"}, "must be a path inside"),
        ({"location": "C:\\w.bin"}, "must be a path inside"),
        ({"location": ""}, "must be a path inside"),
        ({"location": "link.bin"}, "contains the symbolic link"),
        ({"location": "folder/w.bin"}, "contains the symbolic link"),
        ({"location": "w.bin", "offset": 8}, "truncated"),
        ({"location": "w.bin", "offset": "1e3"}, "is not a number of bytes"),
        ({"location": "w.bin", "offset": "9" * 30}, "is not a number of bytes"),
        ({"location": "w.bin", "length": 4}, "need 24 bytes"),
        ({"location": "pipe"}, "is not a regular file"),
    ],
)
def test_external_data_that_is_elsewhere_or_too_short_is_refused(
    tmp_path: Path, entries: dict[str, object], words: str
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(24))
    (tmp_path / "link.bin").symlink_to(tmp_path / "w.bin")
    (tmp_path / "folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFormatError, match=words):
        import_onnx(_external(tmp_path, **entries))


def test_external_data_of_a_model_without_a_path_is_refused(tmp_path: Path) -> None:
    path = _external(tmp_path, location="w.bin")
    with pytest.raises(ModelFormatError, match="import the model by its path"):
        import_onnx(path.read_bytes())


def test_a_model_with_more_than_two_gigabytes_of_weights_imports(tmp_path: Path) -> None:
    rows = 1 << 15
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(rows * rows * 4)  # a hole: nothing is stored
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, rows])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="big.bin")
    model = _model(
        [helper.make_node("Gather", ["w", "i"], ["y"])],
        [weight],
        inputs=[helper.make_tensor_value_info("i", TensorProto.INT64, [1])],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    graph = import_onnx(path)
    (row,) = interpret(graph, {"i": np.array([7])}).values()
    assert row.shape == (1, rows)


_SEED = _model(
    [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Constant", [], ["shape"], value_ints=[0, -1]),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ],
    [numpy_helper.from_array(np.ones((2, 3, 3, 3), np.float32), "w")],
    inputs=[float_info("x", ["N", 3, 8, 8])],
).SerializeToString()


@given(st.data())
def test_damaged_bytes_end_in_an_error_of_ours_or_in_a_graph(data: st.DataObject) -> None:
    damaged = bytearray(_SEED)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 40))
    with contextlib.suppress(SmeltError):
        import_onnx(bytes(damaged[: len(damaged) - cut]))


@pytest.mark.parametrize(
    "build",
    [
        # An output_shape with an extent too few for the axes, on weights of another rank.
        lambda: node_model(
            "ConvTranspose",
            17,
            [np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 3), np.float32)],
            output_shape=[9, 9],
        ),
        # Shapes beyond any memory that follow from constants.
        lambda: node_model(
            "Resize",
            17,
            [np.ones((1, 0, 2), np.float32), None, None, np.array([1, 0, 1 << 31])],
            weights=[0, 3],
        ),
        lambda: node_model("Mul", 17, [np.array([1 << 62]), np.array([1 << 62])], weights=[0, 1]),
    ],
)
def test_numbers_that_fuzzing_found_end_quickly_and_in_no_foreign_error(
    build: Callable[[], ModelProto],
) -> None:
    with contextlib.suppress(SmeltError):
        import_onnx(build())


@pytest.mark.parametrize("count", [0, 1])
def test_a_sparse_scalar_is_read(count: int) -> None:
    """Its indices have no columns; numpy's ValueError once came out."""
    values = numpy_helper.from_array(np.full(count, 3, np.float32), "w")
    indices = numpy_helper.from_array(np.zeros((count, 0), np.int64), "w indices")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "sparse scalar",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, []))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.arange(4, dtype=np.float32)
    results = interpret(import_onnx(model), {"x": x})
    np.testing.assert_array_equal(results["y"], x + 3 * count)


@pytest.mark.parametrize("shape", [[0, (1 << 63) - 1], [1] * 65, [(1 << 62), 4, 0]])
@pytest.mark.parametrize("columns", [None, 2])
def test_a_sparse_tensor_of_an_impossible_shape_is_refused(
    shape: list[int], columns: int | None
) -> None:
    values = numpy_helper.from_array(np.zeros(0, np.float32), "w")
    rows = (0,) if columns is None else (0, columns)
    indices = numpy_helper.from_array(np.zeros(rows, np.int64), "w indices")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "sparse",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    sparse = SparseTensorProto(values=values, indices=indices, dims=shape)
    graph.sparse_initializer.append(sparse)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelFormatError, match=r"w.*(too large|MAX_RANK|outside)"):
        import_onnx(model)
