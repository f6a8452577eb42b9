"""Rows of results: how they are written, and the options that every benchmark has."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def parser_for(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where the rows are written")
    parser.add_argument("--model-dir", type=Path, help="a folder of ONNX files to look in first")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds after which an engine is given up"
    )
    return parser


def numbers(text: str) -> list[int]:
    """Return the numbers of a list separated by commas."""
    return [int(part) for part in text.split(",")]


def words(text: str) -> list[str]:
    """Return the words of a list separated by commas."""
    return [part for part in text.split(",") if part]


def write_fused_kernel(
    file: Path | None, rows: Sequence[dict[str, Any]], device: str | None = None
) -> None:
    """Write what was measured so far; every row says on which machine, and on which device."""
    if file is None:
        return
    where = machine() if device is None else f"{device}, {machine()}"
    file.parent.mkdir(parents=True, exist_ok=True)
    written = [{**row, "machine": where} for row in rows]
    file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def machine() -> str:
    """Return processor, cores and system in one line."""
    name = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
        name = next((x.partition(": ")[2] for x in lines if x.startswith("model name")), name)
    return (
        f"{name}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    )


def name_of_gpu() -> str:
    """Return the first GPU and its driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    if shutil.which(command[0]) is None:
        return "an unnamed GPU"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    name, _, driver = done.stdout.strip().partition(", ")
    return f"{name} with driver {driver}" if driver else "an unnamed GPU"


def summary(times: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Return best and median in milliseconds, as rows have them."""
    return {
        "best_ms": round(min(times), digits),
        "median_ms": round(statistics.median(times), digits),
    }
