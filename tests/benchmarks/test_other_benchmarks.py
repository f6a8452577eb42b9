"""Each benchmark runs in a tiny mode and writes the rows that tables are made of."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from benchmarks import (
    barrier,
    contention,
    cpu_kernels,
    gpu_kernels,
    gpu_sanitize,
    guards,
    memory,
    rotation,
    run_all,
    verifier,
)
from benchmarks.support.models import load_inputs
from benchmarks.support.peak import PeakLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="these figures are Linux's"
)


def _rows(file: Path) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", json.loads(file.read_text(encoding="utf-8")))


def test_memory_is_told_for_each_stage_of_each_engine(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ["--models", str(model), "--peers", "", "--repeats", "1", "--json", str(file)]
    assert memory.main(options) == 0
    saved, built = _rows(file)
    assert [row["engine"] for row in (saved, built)] == ["smelt", "smelt-build"]
    stages = ["numpy_mib", "import_mib", "loaded_mib", "ran_mib", "peak_mib"]
    sizes = [saved[name] for name in stages]
    assert 5 < sizes[0] <= sizes[-1]
    assert saved["peak_mib"] < built["peak_mib"]


def test_a_fixed_plan_pays_nothing_for_guards_and_an_open_one_is_told_for_each_case(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.json"
    assert guards.main(["--models", "", "--turns", "1", "--json", str(file)]) == 0
    fixed, opened, known, new, full, detector, indices = _rows(file)
    assert fixed["checks"] == fixed["us"] == 0
    assert opened["checks"] == 1
    assert opened["us"] > 0
    assert new["steps"] >= 100
    assert min(known["us"], new["us"], full["us"]) > 0
    assert indices["launches"] == 1
    for row in (detector, indices):
        assert row["launches"] >= 1
        assert min(row["us"], row["unchecked_us"]) > 0


def test_the_verifier_is_timed_on_plans_of_many_steps(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert verifier.main(["--steps", "10,20", "--json", str(file)]) == 0
    assert [row["steps"] for row in _rows(file)] == 3 * [10, 20]


def test_a_busy_neighbour_is_measured_and_leaves(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ["--models", str(model), "--peers", "", "--threads", "1", "--rounds", "1"]
    options += ["--seconds", "0.02", "--engines", "", "--json", str(file)]
    assert contention.main(options) == 0
    (row,) = _rows(file)
    assert row["busy_processes"] >= 1
    assert row["slowdown"] == pytest.approx(row["busy_median_ms"] / row["quiet_median_ms"], 0.1)


def test_models_in_turn_are_measured_against_each_alone(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    other, file = tmp_path / "other.onnx", tmp_path / "rows.json"
    other.write_bytes(model.read_bytes())
    options = ["--models", f"{model},{other}", "--threads", "1", "--rounds", "2"]
    options += ["--seconds", "0.005", "--engines", "", "--json", str(file)]
    assert rotation.main(options) == 0
    rows = _rows(file)
    assert [(row["model"], row["engine"]) for row in rows] == [
        (name, engine) for name in (model.stem, "other") for engine in ("smelt", "onnxruntime")
    ]
    assert all(row["alone_median_ms"] > 0 and row["rotation_median_ms"] > 0 for row in rows)
    assert ["kept" in row for row in rows] == [True, False] * 2


def test_what_is_kept_in_rotation_is_the_advantage_over_the_best_peer() -> None:
    ours = {"alone": [1.0, 2.0], "rotation": [2.0, 2.0]}
    peers = [
        {"alone": [3.0, 4.0], "rotation": [3.0, 4.0]},
        {"alone": [9.0, 9.0], "rotation": [9.0, 3.0]},
    ]
    assert rotation.kept_advantage(ours, peers) == [0.5, 0.75]


def test_kernels_are_told_as_rates_and_shares_of_the_peak(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = tmp_path / "rows.json"
    options = ["--families", "global,layer norm", "--peers", "onnxruntime", "--rounds", "1"]
    options += ["--seconds", "0.005", "--engines", str(tmp_path), "--json", str(file)]
    assert cpu_kernels.main(options) == 0
    rows = _rows(file)
    assert {row["family"] for row in rows} == {"global pooling", "layer norm"}
    assert [row["engine"] for row in rows] == ["smelt", "onnxruntime"] * 4
    assert all(row["agrees"] and row["unit"] == "GB/s" for row in rows)
    assert all(row["share_of_peak"] > 0 and row["rate"] > 0 for row in rows)
    assert len(cpu_kernels.ratios_of(rows)) == 4


def test_the_peak_is_a_rate_whatever_the_dtype() -> None:
    loops = [PeakLoop(dtype) for dtype in ("float32", "bfloat16", "int8")]
    rates = [loop.run() for loop in loops]
    assert all(1 < rate < 1e5 for rate in rates)


def test_neighbours_wait_until_they_are_let_loose() -> None:
    neighbours = contention.Neighbours()
    try:
        first = neighbours.numbers[0]
        time.sleep(0.1)
        before = contention.processor_seconds(first)
        time.sleep(0.1)
        assert contention.processor_seconds(first) == before
    finally:
        neighbours.close()


@pytest.mark.parametrize("part", run_all.PARTS)
def test_every_part_of_all_measurements_has_options_that_its_script_takes(
    part: str, tmp_path: Path
) -> None:
    command = run_all.command_of(part, prepare=False, folder=tmp_path)
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in command[2:] if word.startswith("--"))


def test_a_barrier_is_measured_for_each_number_of_threads(tmp_path: Path) -> None:
    file = tmp_path / "barrier.json"
    assert barrier.main(["--threads", "1,2", "--runs", "3", "--json", str(file)]) == 0
    assert [row["threads"] for row in json.loads(file.read_text())] == [1, 2]


def test_engines_of_each_batch_are_run_under_each_tool(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes: list[tuple[int, ...]] = []

    def run(_program: str, arguments: list[str], before: Sequence[str], _limit: float) -> str:
        shapes.append(load_inputs(Path(arguments[1]))["x"].shape)
        return "a race" if "racecheck" in before and shapes[-1] == (32, 8) else ""

    monkeypatch.setattr("benchmarks.gpu_sanitize._python", run)
    monkeypatch.setattr("shutil.which", str)
    assert gpu_sanitize.main(["--models", str(model), "--batch", "1,32"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "tiny float16 batch=1 memcheck: nothing found",
        "tiny float16 batch=1 racecheck: nothing found",
        "tiny float16 batch=32 memcheck: nothing found",
        "tiny float16 batch=32 racecheck: a race",
    ]
    assert shapes == [(1, 8)] * 3 + [(32, 8)] * 3


def test_a_familys_gain_counts_what_others_can_do_too(capsys: pytest.CaptureFixture[str]) -> None:
    times: tuple[list[Any], ...] = (
        [[3.0, "persistent(a)"], [4.0, "conv(b)"]],
        [[5.0, "conv(b)"]],
        [[9.0, "persistent(a)"]],
        [],
    )
    common: dict[str, Any] = {"network": "one", "batch": 1, "label": "x", "errors": {}}
    rows = [{**common, "count": 2, "times": own} for own in times]
    gpu_kernels.report_family(rows, "persistent")
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .endswith("18.0 us without, 16.0 us with persistent")
    )
