"""From measured rows to README's table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tools.readme_benchmarks import make_table, read_rows

if TYPE_CHECKING:
    from pathlib import Path


def _row(engine: str, best: float, *, model: str = "net") -> dict[str, object]:
    return {
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


def test_the_ratio_is_the_best_peer_over_ours(tmp_path: Path) -> None:
    rows = [_row("smelt", 2.0), _row("onnxruntime", 3.0), _row("openvino", 2.5)]
    (tmp_path / "run.json").write_text(json.dumps(rows))
    table = make_table(read_rows(tmp_path))
    assert "| net | float32 | 2 | 1 | 2.00, 3.00 | 3.00, 4.00 | 2.50, 3.50 | 1.25 |" in table
    assert "onnxruntime 1.2, openvino 1.2, smelt 1.2" in table


def test_times_of_different_runs_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([_row("smelt", 2.0)]))
    (tmp_path / "b.json").write_text(json.dumps([_row("openvino", 1.0)]))
    lines = make_table(read_rows(tmp_path)).splitlines()
    assert lines[2:4] == [
        "| net | float32 | 2 | 1 | 2.00, 3.00 |  |  |",
        "| net | float32 | 2 | 1 |  | 1.00, 2.00 |  |",
    ]


def test_no_measurement_is_said_plainly(tmp_path: Path) -> None:
    assert make_table(read_rows(tmp_path)) == "No measurement is recorded yet.\n"
