"""From measured rows to the tables of README and docs/performance.md, and to the chart."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING, Any

import pytest

from tools import readme_benchmarks as tables
from tools.speed_chart import Bar, chart

if TYPE_CHECKING:
    from pathlib import Path


def _row(engine: str, best: float, *, model: str = "net", **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": model,
        "dtype": "float32",
        "threads": 2,
        "batch": 1,
        "engine": engine,
        "version": "1.2",
        "options": {},
        "best_ms": best,
        "median_ms": best + 1,
    }
    return row | more


def _latencies(folder: Path, name: str, *rows: dict[str, Any]) -> tables.Table:
    (folder / f"{name}.json").write_text(json.dumps(rows))
    return tables.read_latencies(folder)


def test_the_ratio_is_the_best_peer_over_ours(tmp_path: Path) -> None:
    rows = [_row("smelt", 2.0, share_of_peak=0.5), _row("onnxruntime", 3.0), _row("openvino", 2.5)]
    table = tables.latency_table(_latencies(tmp_path, "cpu_run", *rows))
    line = "| net | float32 | 2 | 1 | 1.25 | 2.00, 3.00 | 3.00, 4.00 | 2.50, 3.50 | 50% |"
    assert line in table
    assert "onnxruntime 1.2, openvino 1.2, smelt 1.2" in table


def test_times_of_different_runs_are_not_compared(tmp_path: Path) -> None:
    _latencies(tmp_path, "cpu_a", _row("smelt", 2.0))
    table = tables.latency_table(_latencies(tmp_path, "cpu_b", _row("openvino", 1.0)))
    assert table.splitlines()[2:4] == [
        "| net | float32 | 2 | 1 |  | 2.00, 3.00 |  |  |",
        "| net | float32 | 2 | 1 |  |  | 1.00, 2.00 |  |",
    ]


def test_a_group_has_the_geometric_mean_of_its_ratios(tmp_path: Path) -> None:
    rows = [
        _row(engine, best, model=model)
        for model, ours, theirs in (("a", 1.0, 4.0), ("b", 1.0, 1.0))
        for engine, best in (("smelt", ours), ("openvino", theirs))
    ]
    table = tables.latency_table(_latencies(tmp_path, "cpu_networks", *rows))
    assert "Geometric means of the ratios: networks, float32, 2 threads, batch 1: 2.00." in table


def test_networks_on_a_gpu_have_a_ratio_to_each_other_engine(tmp_path: Path) -> None:
    more: dict[str, Any] = {"dtype": "float16", "cold_ms": None, "call_ms": 5.0, "roofline_ms": 0.5}
    rows = [
        _row("smelt", 1.0, **more, share_of_roofline=0.25),
        _row("xla", 3.0, **more, share_of_roofline=0.125),
        _row("smelt", 1.0, **more, batch=8, share_of_roofline=0.25, error=4.1e-4),
    ]
    (tmp_path / "2026-01-02_gpu.json").write_text(json.dumps(rows))
    table = tables.gpu_table(tables.read_rows(tmp_path, "20[0-9][0-9]-*_"))
    line = "| net | float16 | 1 | 2.000 |  | 5.000 |  |  | 4.000 (2.00) | 0.500 | 25% |  |"
    assert line in table
    assert "| net | float16 | 8 | 2.000 |  | 5.000 |  |  |  | 0.500 | 25% | 4.1e-04 |" in table
    assert tables.gpu_table([]) == tables.NOTHING


def test_readme_has_of_networks_on_a_gpu_the_ratio_to_the_fastest_engine(tmp_path: Path) -> None:
    rows = [
        _row(engine, best, dtype=dtype, model=model, batch=batch)
        for engine, best in (("smelt", 1.0), ("torch", 5.0), ("xla", 3.0))
        for dtype in ("float16", "tf32")
        for model in ("resnet50", "other")
        for batch in (32, 1)
    ]
    alone = _row("smelt", 1.0, dtype="float16", model="minilm")
    (tmp_path / "2026-01-02_gpu.json").write_text(json.dumps([*rows, alone]))
    table = tables.short_gpu_table(tables.read_rows(tmp_path, "20[0-9][0-9]-*_"))
    assert table.splitlines()[2:] == [
        "| ResNet-50 | 1 | 2.000 | 6.000 |  | 4.000 | 2.00 |",
        "| ResNet-50 | 32 | 2.000 | 6.000 |  | 4.000 | 2.00 |",
    ]
    assert tables.short_gpu_table([]) == tables.NOTHING


def test_readme_shows_networks_on_two_threads_alone(tmp_path: Path) -> None:
    _latencies(tmp_path, "cpu_given", _row("smelt", 1.0, model="given"))
    rows = [_row("smelt", 1.0), _row("smelt", 1.0, threads=1)]
    shown = tables.readme_rows(_latencies(tmp_path, "cpu_networks", *rows))
    assert [(setting.model, setting.threads) for setting in shown] == [("net", 2)]


def test_no_measurement_is_said_plainly(tmp_path: Path) -> None:
    assert tables.latency_table(tables.read_latencies(tmp_path)) == tables.NOTHING
    for table in (tables.kernel_table, tables.memory_table, tables.build_table):
        assert table([]) == tables.NOTHING


def test_builds_have_a_table_for_each_machine(tmp_path: Path) -> None:
    common = {"measure": "cold build", "engine": "smelt", "best_s": 1.0, "median_s": 2.0}
    given: dict[str, dict[str, Any]] = {
        "build_time": {"model": "old", "machine": "a CPU"},
        "build_time_gpu": {"model": "new", "dtype": "tf32", "batch": 4, "machine": "a GPU, a CPU"},
    }
    for name, row in given.items():
        (tmp_path / f"{name}.json").write_text(json.dumps([common | row]))
    lines = tables.build_table(tables.read_rows(tmp_path, "build_time")).splitlines()
    assert lines[2:5] == ["| cold build | old | smelt | 1.000 | 2.000 |", "", "On a CPU."]
    assert lines[8:] == [
        "| cold build | new tf32 batch 4 | smelt | 1.000 | 2.000 |",
        "",
        "On a GPU, a CPU.",
    ]


def test_the_chart_is_well_formed_and_has_a_bar_for_each_engine() -> None:
    bars = [Bar("a & b", {"smelt": 1.3, "openvino": 1.0}), Bar("c", {"smelt": 0.9, "torch": 1.0})]
    root = ElementTree.fromstring(chart(bars))  # noqa: S314  (we have just written it)
    boxes = [box for box in root.iter() if box.tag.endswith("rect") and box.get("height") == "11"]
    assert [float(str(box.get("width"))) for box in boxes] == [442.0, 340.0, 306.0, 340.0]
    assert "prefers-color-scheme: dark" in chart(bars)


@pytest.mark.parametrize("path", list(tables.pages(tables.RESULTS)), ids=lambda path: path.name)
def test_what_the_pages_show_is_what_was_measured(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert tables.pages(tables.RESULTS)[path](text) == text, "run tools/readme_benchmarks.py"
