"""Run a campaign of `tests.fuzz.campaign` as its command line does, and read what it came to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent


def run_module(module: str, *arguments: str) -> dict[str, Any]:
    """The summary: ``done`` says how often what happened, ``findings`` what is wrong.

    Each finding has a kind, a place, a text, and the recipe by which it is made again.
    """
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        summary = Path(folder) / "summary.json"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        command = [sys.executable, "-m", module, "--json", str(summary), "--findings", folder]
        ended = subprocess.run(
            [*command, *arguments],
            env=environment,
            cwd=ROOT,
            check=False,
            capture_output=True,
            encoding="utf-8",
        )
        assert summary.exists(), ended.stdout + ended.stderr
        found: dict[str, Any] = json.loads(summary.read_text(encoding="utf-8"))
        return found


def detail(summary: dict[str, Any]) -> str:
    """The findings, for whoever reads that a test failed."""
    rows = [f"{kind} at {place} ({recipe})\n{text}" for kind, place, text, recipe in
            summary["findings"]]  # fmt: skip
    return "\n\n".join(rows)
