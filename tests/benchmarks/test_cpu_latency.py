"""The benchmark finds models, draws inputs, and measures engines in processes of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.cpu_latency import largest_error, main
from benchmarks.support.engines import EngineFailedError, Job, Worker, saved_engine
from benchmarks.support.light import build_light
from benchmarks.support.models import count_gflop, expand, find_models, random_inputs

if TYPE_CHECKING:
    from pathlib import Path


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


def test_groups_stand_for_their_models() -> None:
    assert expand("small,tiny,lenet") == ["lenet", "pnet", "tiny"]


def test_arithmetic_is_counted_at_the_measured_shapes(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = numpy_helper.from_array(np.zeros((4, 3, 3, 3), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "one", [x], [y], [weights])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "one.onnx").write_bytes(proto.SerializeToString())
    inputs = random_inputs(tmp_path / "one.onnx", 2, {})
    expected = 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3) / 1e9
    assert count_gflop(tmp_path / "one.onnx", inputs) == pytest.approx(expected)


def test_arithmetic_is_counted_in_networks_whose_weights_were_drawn(tmp_path: Path) -> None:
    build_light("shufflenet", tmp_path / "light.onnx")
    inputs = random_inputs(tmp_path / "light.onnx", 1, {})
    assert count_gflop(tmp_path / "light.onnx", inputs) == pytest.approx(0.249, abs=1e-3)


FAST = ["--rounds", "1", "--seconds", "0.01", "--threads", "1"]


def test_rows_have_the_agreed_fields(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = model.parent / "rows.json"
    saved = model.parent / "engines"
    options = ["--models", str(model), "--peers", "onnxruntime", "--json", str(file), *FAST]
    assert main([*options, "--engines", str(saved)]) == 0
    ours, row = cast("list[dict[str, Any]]", json.loads(file.read_text()))
    fields = "model dtype threads batch engine version options best_ms median_ms"
    assert list(row)[:9] == fields.split()
    assert (row["model"], row["engine"], row["threads"]) == ("tiny", "onnxruntime", 1)
    assert 0 < row["best_ms"] <= row["median_ms"]
    assert (ours["engine"], ours["peak_gflops"] > 0) == ("smelt", True)
    assert [kept.name.split("-")[0] for kept in saved.iterdir()] == ["tiny"]


def test_a_saved_engine_is_taken_again_and_bound(model: Path) -> None:
    saved = model.parent / "engines"
    options = ["--models", str(model), "--peers", "", "--engines", str(saved), *FAST]
    assert main([*options, "--prepare"]) == 0
    (engine,) = saved.iterdir()
    before = engine.stat().st_mtime_ns
    assert main([*options, "--bound"]) == 0
    assert engine.stat().st_mtime_ns == before


def test_engines_for_other_devices_are_other_engines(model: Path) -> None:
    job = Job("tiny", str(model), "", "float32", 1, saved=str(model.parent))
    assert saved_engine(job, {}, "cpu") != saved_engine(job, {}, "cuda")


def test_an_engine_that_takes_too_long_is_given_up(model: Path) -> None:
    worker = Worker("smelt", threads=1, limit=0.01)
    with pytest.raises(EngineFailedError, match="smelt took more than 0 s"):
        worker.load(Job("tiny", str(model), "", "float32", 1))
    worker.close()


def test_an_unknown_engine_is_refused_with_what_there_is() -> None:
    with pytest.raises(SystemExit, match="no engine mxnet; there are: smelt, onnxruntime"):
        main(["--peers", "mxnet"])
