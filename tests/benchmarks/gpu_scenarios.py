"""Measurements on a GPU, as small as they can be, for a GPU that is interpreted or there."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import smelt
from benchmarks import guards
from benchmarks.support.convnext import CONVNEXTS, build_convnext
from benchmarks.support.engines import Job
from benchmarks.support.gpu_engines import Smelt, measure_round
from benchmarks.support.models import random_inputs, save_inputs
from smelt.interp import interpret

if TYPE_CHECKING:
    from collections.abc import Generator

_FEW: dict[str, float] = {
    "gpu_engines._FLUSH_BYTES": 1 << 10,
    "gpu_engines._AHEAD": 1,
    "gpu_engines._BATCH": 2,
    "gpu_index_checks._TURN_S": 0.0,
    "gpu_index_checks._CALLS": 1,
    "index_checks._ELEMENTS": 64,
}


@contextmanager
def _few() -> Generator[None]:
    """Measure as little as can be."""
    with ExitStack() as stack:
        for name, value in _FEW.items():
            stack.enter_context(patch(f"benchmarks.support.{name}", value))
        yield


def _save_lookup(file: Path) -> None:
    """Write a network that looks tokens up, with a free batch."""
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, 8])
    table = np.random.default_rng(0).standard_normal((1000, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["picked"], name="look up"),
        helper.make_node("Relu", ["picked"], ["y"], name="act"),
    ]
    weights = [numpy_helper.from_array(table, "table")]
    graph = helper.make_graph(nodes, "lookup", [x], [y], weights)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    file.write_bytes(model.SerializeToString())


def index_checks_are_measured() -> None:
    """Each setting has a row for each state, whose engines compute the same."""
    with tempfile.TemporaryDirectory() as folder:
        model, file = Path(folder) / "lookup.onnx", Path(folder) / "rows.json"
        _save_lookup(model)
        options = ["--device", "cuda", "--models", str(model), "--batch", "1,2", "--turns", "1"]
        with _few():
            assert guards.main([*options, "--json", str(file)]) == 0
        rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    found = [(row["check"], row["batch"], row["dtype"], row["state"]) for row in rows]
    states = ("warm", "cold", "call")
    assert found == [
        *(("indices of lookup", batch, "float16", s) for batch in (1, 2) for s in states),
        *(("indices of single elements", 1, "float32", state) for state in states),
    ]
    for row in rows:
        assert (row["device"], row["tune"], row["launches"]) == ("cuda", "none", 1)
        assert min(row["us"], row["unchecked_us"], row["runs"]) > 0
        assert row["noise_percent"] >= 0


def a_convnext_is_timed() -> None:
    """Before training and after it, an engine in float16 answers as onnx's steps say."""
    for name in CONVNEXTS:
        with tempfile.TemporaryDirectory() as folder, _few():
            file, given = Path(folder) / f"{name}.onnx", Path(folder) / "inputs.npz"
            build_convnext(name, file, depths=(1, 1), widths=(16, 32), extent=16)
            inputs = random_inputs(file, 1, {})
            save_inputs(given, inputs)
            job = Job(name, str(file), str(given), "float16", 1, tune="none")
            engine = Smelt(job, inputs)
            times = measure_round(engine, 0.0, 1)
            (made,) = engine.outputs()
            (wanted,) = interpret(smelt.network_from_onnx(file).graph, inputs).values()
        assert all(times[kind] for kind in ("warm", "cold", "call"))
        assert np.abs(made - wanted).max() <= 6e-3 * np.abs(wanted).max()
