"""What comes before the first inference is told, each part of it in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from benchmarks import build_time
from benchmarks.support import stages
from benchmarks.support.fresh import run_python, run_stages
from benchmarks.support.models import save_inputs
from tests.support.cuda_driver_stub import StubDriver
from tests.support.cuda_engines import affine_gpu_engine, use_stub

if TYPE_CHECKING:
    from collections.abc import Mapping

_FEW = ("--peers", "", "--repeats", "1", "--builds", "1", "--cached", "1")


def _measured(model: Path, *options: str) -> list[dict[str, Any]]:
    file = model.with_name("rows.json")
    assert build_time.main(["--models", str(model), *_FEW, *options, "--json", str(file)]) == 0
    return cast("list[dict[str, Any]]", json.loads(file.read_text(encoding="utf-8")))


def test_building_loading_and_importing_are_timed(model: Path) -> None:
    rows = _measured(model)
    kinds = ["import numpy", "import", "cold build", "cached build", "load"]
    assert [row["measure"] for row in rows] == kinds
    assert all(0 < row["best_s"] <= row["median_s"] for row in rows)


@pytest.mark.slow
def test_for_a_gpu_that_is_not_here_engines_are_built_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")

    def nothing(*_: object) -> None: ...

    monkeypatch.setattr(build_time, "warm_up", nothing)
    rows = _measured(model, "--device", "cuda:sm_90", "--precision", "float16")
    assert [row["measure"] for row in rows[2:]] == ["cold build", "cached build"]
    assert all((row["device"], row["dtype"]) == ("cuda:sm_90", "float16") for row in rows[2:])


def test_on_a_gpu_loading_is_told_up_to_the_end_of_each_step(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, stages.Settings]] = []

    def taken(
        engine: str, _file: Path, _inputs: Path, settings: stages.Settings, *_: object
    ) -> Any:
        asked.append((engine, settings))
        seconds = {"python": 64.0, "numpy": 32.0, "import": 16.0}
        if engine == "smelt-build":
            return _told(seconds | {"read": 1.0, "build": 8.0})
        steps = {"device": 0.5, "load": 0.25, "context": 0.125, "first run": 1.0, "runs": 9.0}
        return _told(seconds | steps)

    monkeypatch.setattr(build_time, "run_stages", taken)
    monkeypatch.setattr(build_time, "name_of_gpu", lambda: "a GPU with driver 1.2")
    rows = _measured(model, "--device", "cuda", "--precision", "tf32", "--batch", "3")[2:]
    assert {row["measure"]: row["best_s"] for row in rows} == {
        "cold build": 9.0,
        "cached build": 9.0,
        "open the GPU": 0.5,
        "load": 0.75,
        "context": 0.875,
        "first answer": 1.875,
    }
    assert all((row["device"], row["dtype"], row["batch"]) == ("cuda", "tf32", 3) for row in rows)
    assert all(row["machine"].startswith("a GPU with driver 1.2, ") for row in rows)
    # One small build, one with nothing cached, one from the caches, one load.
    assert [engine for engine, _ in asked] == ["smelt-build"] * 3 + ["smelt-bare"]
    assert {settings.device for _, settings in asked} == {"cuda"}


def _told(seconds: Mapping[str, float]) -> dict[str, dict[str, float]]:
    return {stage: {"seconds": time} for stage, time in seconds.items()}


def test_an_engine_answers_where_nothing_can_compile(model: Path, tmp_path: Path) -> None:
    inputs, saved = tmp_path / "inputs.npz", tmp_path / "saved.engine"
    save_inputs(inputs, {"x": np.zeros((1, 8), np.float32)})
    settings = stages.Settings(1, saved=str(saved))
    assert "load" not in run_stages("smelt-build", model, inputs, settings, 60)
    detail = run_stages("smelt-bare", saved, inputs, settings, 60)
    assert list(detail)[2:] == ["import", "device", "load", "context", "first run", "runs"]


def test_where_nothing_can_compile_no_compiler_is_found() -> None:
    program = f"""
import importlib, json, shutil, sys
sys.path[0] = {str(Path(stages.__file__).parent)!r}
import stages
stages.forbid_compilers()
absent = []
for name in (*stages.COMPILERS, "triton.language"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        absent.append(name)
print(json.dumps([absent, shutil.which("sh")]))
"""
    absent, shell = json.loads(run_python(["-c", program], 60))
    assert absent == ["triton", "torch", "llvmlite", "onnx", "triton.language"]
    assert shell is None


def test_a_gpu_is_opened_before_an_engine_is_loaded_onto_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = StubDriver()
    use_stub(driver, monkeypatch)
    monkeypatch.setattr(stages, "forbid_compilers", lambda: None)
    file = tmp_path / "saved.engine"
    with affine_gpu_engine(driver) as engine:
        engine.save(file)
        binding = engine.inputs[0]
    use_stub(driver, monkeypatch)
    kept = stages.Stages()
    shape = [size if isinstance(size, int) else 1 for size in binding.shape]
    inputs = {binding.name: np.ones(shape, np.float32)}
    run = stages.run_smelt_bare(kept, str(file), inputs, stages.Settings(1, "cuda:0"))
    assert [row["stage"] for row in kept.rows] == ["import", "device", "load", "context"]
    assert np.isfinite(next(iter(run().values()))).all()
