"""Running an example as its reader would: a process of its own, with an empty home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_example(folder: str, script: str, *options: str, home: Path) -> str:
    """Run the script of an example; return what it prints. Fails when the script does."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("SMELT_")}
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / folder / script), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=home,
        env={**environment, "HOME": str(home), "USERPROFILE": str(home)},
    )
    assert run.returncode == 0, run.stderr
    assert not run.stderr, run.stderr
    return run.stdout
