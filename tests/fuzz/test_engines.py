"""Hostile unsigned engines: some of the many that `python -m tests.fuzz.engines` tries."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smelt.engine import read_engine
from tests.fuzz.engine_forger import forge

ROOT = Path(__file__).resolve().parents[2]


def _campaign(tmp_path: Path, *options: str) -> dict[str, Any]:
    """What a campaign in a process of its own came to."""
    summary = tmp_path / "summary.json"
    command = [sys.executable, "-m", "tests.fuzz.engines", "--json", str(summary)]
    command += ["--findings", str(tmp_path / "findings"), *options]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True)
    found: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8"))
    return found


def test_every_file_that_is_forged_can_be_read() -> None:
    """Only deeper checks can find what is wrong: lengths and checksums are right."""
    for number in range(4):
        made = forge(random.Random(f"forged {number}"))  # noqa: S311  (no secret)
        assert read_engine(made.data).signature is None


@pytest.mark.slow
def test_hostile_engines_are_refused_or_run_in_their_own_memory(tmp_path: Path) -> None:
    found = _campaign(tmp_path, "--count", "120")
    assert found["findings"] == []
    assert found["done"]["loaded"] > 20
    assert found["done"]["refused"] > 20
    assert found["done"]["ran"] > 50
