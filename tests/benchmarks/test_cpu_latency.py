"""The benchmark finds models, draws inputs, and measures engines in processes of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from onnx import TensorProto, helper

from benchmarks.cpu_latency import find_models, largest_error, main, random_inputs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small network with a free batch."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
    node = helper.make_node("Relu", ["x"], ["y"], name="act")
    graph = helper.make_graph([node], "tiny", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "tiny.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "tiny.onnx"


def test_a_model_is_found_by_path_file_name_and_folder(model: Path) -> None:
    folder = model.parent
    (folder / "pair").mkdir()
    for name in ("a.onnx", "b.onnx"):
        (folder / "pair" / name).touch()
    assert list(find_models(str(model), [], 1)) == [("tiny", model)]
    assert list(find_models("tiny", [folder], 1)) == [("tiny", model)]
    assert [name for name, _ in find_models("pair", [folder], 1)] == ["pair/a", "pair/b"]


def test_an_unknown_model_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no model 'nothing' .* resnet50"):
        list(find_models("nothing", [tmp_path], 1))


def test_inputs_take_the_batch_and_the_declared_type(model: Path) -> None:
    inputs = random_inputs(model, 3, {})
    assert inputs["x"].shape == (3, 8)
    assert inputs["x"].dtype == np.float32


def test_the_error_is_relative_to_the_largest_output() -> None:
    ours, theirs = np.array([10.0, 1.0]), np.array([10.0, 0.0])
    assert largest_error([ours], [theirs]) == pytest.approx(0.1)
    assert largest_error([ours], [theirs[:1]]) == np.inf


def test_rows_have_the_agreed_fields(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = model.parent / "rows.json"
    options = ["--rounds", "1", "--seconds", "0.01", "--threads", "1"]
    main(
        [
            "--models",
            str(model),
            "--no-smelt",
            "--peers",
            "onnxruntime",
            "--json",
            str(file),
            *options,
        ]
    )
    (row,) = cast("list[dict[str, Any]]", json.loads(file.read_text()))
    fields = "model dtype threads batch engine version options best_ms median_ms"
    assert list(row) == fields.split()
    assert (row["model"], row["engine"], row["threads"]) == ("tiny", "onnxruntime", 1)
    assert 0 < row["best_ms"] <= row["median_ms"]


def test_an_unknown_engine_is_refused_with_what_there_is() -> None:
    with pytest.raises(SystemExit, match="no engine mxnet; there are: smelt, onnxruntime"):
        main(["--peers", "mxnet"])
