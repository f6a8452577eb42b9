"""Write README's benchmark table from the rows in benchmarks/results/*.json.

usage: python tools/readme_benchmarks.py [--check]

A file is a list of rows {model, dtype, threads, batch, engine, version, options, best_ms,
median_ms}, as benchmarks/cpu_latency.py writes them: what was measured in one run is in one file.
With --check nothing is written, and a stale table fails.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
README: Final = ROOT / "README.md"
RESULTS: Final = ROOT / "benchmarks" / "results"
OURS: Final = "smelt"
PEERS: Final = ("onnxruntime", "openvino", "torch")

_MARKED: Final = re.compile(
    r"(?P<begin><!-- benchmarks: begin[^>]*-->\n).*?(?P<end><!-- benchmarks: end -->)", re.DOTALL
)


class Row(TypedDict):
    """One engine's times for one setting."""

    model: str
    dtype: str
    threads: int
    batch: int
    engine: str
    version: str
    options: dict[str, object]
    best_ms: float
    median_ms: float


class Setting(NamedTuple):
    """What is measured; one line of the table."""

    source: str
    """The file: times of different runs are never compared."""
    model: str
    dtype: str
    threads: int
    batch: int


def read_rows(folder: Path) -> dict[Setting, dict[str, Row]]:
    """Return every row, by setting and engine."""
    table: dict[Setting, dict[str, Row]] = {}
    for file in sorted(folder.glob("*.json")):
        for row in cast("list[Row]", json.loads(file.read_text(encoding="utf-8"))):
            setting = Setting(file.name, row["model"], row["dtype"], row["threads"], row["batch"])
            table.setdefault(setting, {})[row["engine"]] = row
    return table


def make_table(table: dict[Setting, dict[str, Row]]) -> str:
    """Return the table as Markdown, with the versions below it."""
    if not table:
        return "No measurement is recorded yet.\n"
    peers = [name for name in PEERS if any(name in rows for rows in table.values())]
    lines = [
        "| model | type | threads | batch | " + " | ".join((OURS, *peers)) + " | ratio |",
        "|---|---|---:|---:|" + "---:|" * (len(peers) + 2),
    ]
    for setting, rows in sorted(table.items(), key=lambda item: item[0][1:]):
        cells = [_times(rows.get(name)) for name in (OURS, *peers)]
        head = f"| {setting.model} | {setting.dtype} | {setting.threads} | {setting.batch} | "
        lines.append(head + " | ".join(cells) + f" | {_ratio(rows)} |")
    versions = sorted({f"{row['engine']} {row['version']}" for row in _all(table.values())})
    return "\n".join(lines) + f"\n\nMeasured with {', '.join(versions)}.\n"


def _all(groups: Iterable[dict[str, Row]]) -> Iterable[Row]:
    return (row for group in groups for row in group.values())


def _times(row: Row | None) -> str:
    return f"{row['best_ms']:.2f}, {row['median_ms']:.2f}" if row else ""


def _ratio(rows: dict[str, Row]) -> str:
    peers = [row["best_ms"] for name, row in rows.items() if name != OURS]
    return f"{min(peers) / rows[OURS]['best_ms']:.2f}" if peers and OURS in rows else ""


def main(arguments: Sequence[str]) -> int:
    """Rewrite the part of README between the markers."""
    before = README.read_text(encoding="utf-8")
    table = make_table(read_rows(RESULTS))
    after = _MARKED.sub(lambda found: found["begin"] + table + found["end"], before)
    if "--check" in arguments:
        if before != after:
            print("README.md: the benchmark table is stale: run tools/readme_benchmarks.py")
        return int(before != after)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
