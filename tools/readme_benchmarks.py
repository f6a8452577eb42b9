"""Write the figures of README and docs/performance.md from the rows in benchmarks/results/*.json.

usage: python tools/readme_benchmarks.py [--check]

A file is a list of rows, as one of the benchmarks writes it; what was measured in one run is in one
file, and times of different runs are never compared. The file's name says which benchmark it is:
cpu_kernels, build_time, memory, contention, any other cpu_* for latencies, or DATE_GPU for those on
a GPU. README shows the networks on two threads, a chart of them, and some on a GPU;
docs/performance.md shows everything. With --check nothing is written, and what is stale fails.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

ROOT: Final = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script
    sys.path[0] = str(ROOT)

from tools.speed_chart import Bar, chart  # noqa: E402  (the path comes first)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

RESULTS: Final = ROOT / "benchmarks" / "results"
PICTURE: Final = ROOT / "docs" / "images" / "speed.svg"
OURS: Final = "smelt"
PEERS: Final = ("onnxruntime", "openvino", "torch")
GPU_PEERS: Final = ("torch", "torch.compile", "xla")
_ON_GPU: Final = "20[0-9][0-9]-*_"
_IN_README: Final = frozenset({"cpu_networks.json", "cpu_bfloat16.json", "cpu_int8.json"})
_TITLES: Final = {
    "resnet50": "ResNet-50",
    "minilm": "MiniLM",
    "mobilenetv2": "MobileNetV2",
    "googlenet": "GoogLeNet",
}
"""README's networks on GPUs, in its order."""
_LEAST_SHARE: Final = 0.005
"""A smaller share says that the arithmetic of a network could not be counted."""
NOTHING: Final = "No measurement is recorded yet.\n"

_MARKED: Final = r"(?P<begin><!-- {0}: begin[^>]*-->\n).*?(?P<end><!-- {0}: end -->)"

Row = dict[str, Any]


class Setting(NamedTuple):
    """What is measured; one line of the table."""

    source: str
    """The file: times of different runs are never compared."""
    model: str
    dtype: str
    threads: int
    batch: int
    bound: bool


Table = dict[Setting, dict[str, Row]]


def read_rows(folder: Path, prefix: str) -> list[tuple[str, Row]]:
    """Return every row of the files whose names start so, with its file's name."""
    return [
        (file.name, row)
        for file in sorted(folder.glob(f"{prefix}*.json"))
        for row in cast("list[Row]", json.loads(file.read_text(encoding="utf-8")))
    ]


def read_latencies(folder: Path) -> Table:
    """Return the rows of whole networks, by setting and engine."""
    table: Table = {}
    for source, row in read_rows(folder, "cpu_"):
        if not source.startswith("cpu_kernels"):
            bound = bool(row["options"].get("bound", False))
            setting = Setting(
                source, row["model"], row["dtype"], row["threads"], row["batch"], bound
            )
            table.setdefault(setting, {})[row["engine"]] = row
    return table


def lines_of(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> list[str]:
    """Return a table as Markdown; the first ``words`` columns are words, the rest numbers."""
    rule = ["---"] * words + ["---:"] * (len(heads) - words)
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "|".join(rule) + "|",
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]


# ---- latencies


def latency_table(table: Table) -> str:
    """Return whole networks as Markdown, with means and versions below."""
    if not table:
        return NOTHING
    peers = [name for name in PEERS if any(name in rows for rows in table.values())]
    # The ratio stands before what it is made of: pages may be too narrow for all.
    heads = ["model", "type", "threads", "batch", "ratio", OURS, *peers, "of the peak"]
    lines = lines_of(
        heads,
        (
            [
                setting.model + (" (bound)" if setting.bound else ""),
                setting.dtype,
                str(setting.threads),
                str(setting.batch),
                _text(ratio(rows)),
                *(_times(rows.get(name)) for name in (OURS, *peers)),
                _share(rows.get(OURS)),
            ]
            for setting, rows in sorted(table.items(), key=_in_order)
        ),
        2,
    )
    means = "; ".join(_means(table))
    versions = sorted(
        {f"{row['engine']} {row['version']}" for r in table.values() for row in r.values()}
    )
    machines = sorted(
        {m for r in table.values() for row in r.values() if (m := row.get("machine"))}
    )
    said = f"Geometric means of the ratios: {means}. " if means else ""
    where = f" on {'; '.join(machines)}" if machines else ""
    return "\n".join(lines) + f"\n\n{said}Measured with {', '.join(versions)}{where}.\n"


def _in_order(item: tuple[Setting, Any]) -> tuple[object, ...]:
    setting = item[0]
    return (setting.dtype != "float32", setting.dtype, setting.threads == 1, setting.threads,
            setting.batch, setting.source, setting.bound, setting.model)  # fmt: skip


def _means(table: Table) -> Iterable[str]:
    """The mean of each group that was measured together, in words."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for setting, rows in sorted(table.items(), key=_in_order):
        found = ratio(rows)
        if found is not None:
            key = (setting.source, setting.dtype, setting.threads, setting.batch, setting.bound)
            groups.setdefault(key, []).append(found)
    for (source, dtype, threads, batch, _), ratios in groups.items():
        if len(ratios) > 1:
            what = str(source).removesuffix(".json").removeprefix("cpu_")
            count = "one thread" if threads == 1 else f"{threads} threads"
            words = dict.fromkeys([what, str(dtype), count, f"batch {batch}"])
            yield f"{', '.join(words)}: {geometric_mean(ratios):.2f}"


def ratio(rows: Mapping[str, Row]) -> float | None:
    """Return the best peer's best time over ours, if both were measured."""
    peers = [float(row["best_ms"]) for name, row in rows.items() if name != OURS]
    return min(peers) / float(rows[OURS]["best_ms"]) if peers and OURS in rows else None


def _times(row: Row | None) -> str:
    if row is None:
        return ""
    digits = 4 if row["best_ms"] < 0.1 else 2
    return f"{row['best_ms']:.{digits}f}, {row['median_ms']:.{digits}f}"


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _share(row: Row | None) -> str:
    share = row.get("share_of_peak") if row else None
    return f"{share:.0%}" if share and share >= _LEAST_SHARE else ""


# ---- on GPUs


def gpu_table(rows: Sequence[tuple[str, Row]]) -> str:
    """Return whole networks on GPUs: a line for each run, model, type and batch."""
    settings = _gpu_settings(rows)
    if not settings:
        return NOTHING
    heads = [
        "model",
        "type",
        "batch",
        OURS,
        "cold",
        "call",
        *GPU_PEERS,
        "roofline",
        "of it",
        "error",
    ]
    body: list[list[str]] = []
    for (_, dtype, batch, model), found in sorted(settings.items()):
        ours = found.get(OURS)
        times = [found[name]["median_ms"] if name in found else None for name in GPU_PEERS]
        body.append(
            [
                model,
                dtype,
                str(batch),
                *(_milliseconds(ours[k] if ours else None) for k in _GPU_TIMES),
                *(_peer_time(t, ours) for t in times),
                _milliseconds(next(iter(found.values()))["roofline_ms"]),
                f"{ours['share_of_roofline']:.0%}" if ours else "",
                _error(ours),
            ]
        )
    versions = sorted({f"{row['engine']} {row['version']}" for _, row in rows})
    machines = sorted({row["machine"] for _, row in rows if row.get("machine")})
    where = f" on {'; '.join(machines)}" if machines else ""
    return "\n".join(lines_of(heads, body, 2)) + f"\n\nWith {', '.join(versions)}{where}.\n"


def short_gpu_table(rows: Sequence[tuple[str, Row]]) -> str:
    """Return README's networks on GPUs: float16, and how far the fastest peer is behind."""
    body: list[list[str]] = []
    for (_, dtype, batch, model), found in _gpu_settings(rows).items():
        times = {name: row["median_ms"] for name, row in found.items()}
        ours = times.pop(OURS, None)
        if dtype == "float16" and model in _TITLES and ours and times:
            shown = [_milliseconds(times.get(name)) for name in GPU_PEERS]
            least = min(times.values()) / ours
            title = _TITLES[model]
            body.append([title, str(batch), _milliseconds(ours), *shown, f"{least:.2f}"])
    order = list(_TITLES.values())
    body.sort(key=lambda cells: (order.index(cells[0]), int(cells[1])))
    heads = ["float16", "batch", OURS, *GPU_PEERS, "ratio"]
    return "\n".join(lines_of(heads, body)) + "\n" if body else NOTHING


def _gpu_settings(rows: Sequence[tuple[str, Row]]) -> dict[tuple[Any, ...], dict[str, Row]]:
    """The rows of each run, type, batch and model, by engine."""
    settings: dict[tuple[Any, ...], dict[str, Row]] = {}
    for source, row in rows:
        key = (source, row["dtype"], row["batch"], row["model"])
        settings.setdefault(key, {})[row["engine"]] = row
    return settings


_GPU_TIMES: Final = ("median_ms", "cold_ms", "call_ms")


def _error(row: Row | None) -> str:
    """How far outputs were from another engine's; not every row says it."""
    error = row.get("error") if row else None
    return "" if error is None else f"{error:.1e}"


def _peer_time(time: float | None, ours: Row | None) -> str:
    times = f" ({time / ours['median_ms']:.2f})" if time and ours else ""
    return _milliseconds(time) + times


def _milliseconds(time: float | None) -> str:
    return "" if time is None else f"{time:.3f}"


# ---- the other benchmarks


def kernel_table(rows: Sequence[tuple[str, Row]]) -> str:
    """Return kernels: a line for each case."""
    cases: dict[str, dict[str, Row]] = {}
    for _, row in rows:
        cases.setdefault(row["case"], {})[row["engine"]] = row
    if not cases:
        return NOTHING
    peers = [name for name in PEERS if any(name in case for case in cases.values())]
    heads = [
        "kernel",
        f"{OURS}, µs",
        "rate",
        "of the peak",
        *(f"{name}, µs" for name in peers),
        "ratio",
    ]
    body: list[list[str]] = []
    for name, case in cases.items():
        if OURS in case:
            ours = case[OURS]
            body.append(
                [
                    name,
                    f"{ours['best_ms'] * 1e3:.1f}",
                    f"{ours['rate']:.0f} {ours['unit']}",
                    _share(ours),
                    *(f"{case[p]['best_ms'] * 1e3:.1f}" if p in case else "" for p in peers),
                    _text(ratio(case)),
                ]
            )
    ratios = [found for case in cases.values() if (found := ratio(case)) is not None]
    mean = f"\n\nGeometric mean of the ratios: {geometric_mean(ratios):.2f}." if ratios else ""
    return "\n".join(lines_of(heads, body)) + mean + "\n"


def memory_table(rows: Sequence[tuple[str, Row]]) -> str:
    """Return memory: a line for each model and engine."""
    heads = ["model", "engine", "numpy", "imported", "loaded", "after runs", "its own", "peak"]
    fields = ["numpy_mib", "import_mib", "loaded_mib", "ran_mib", "own_mib", "peak_mib"]
    body = [
        [row["model"], row["engine"], *(f"{row[name]:.0f}" for name in fields)] for _, row in rows
    ]
    return "\n".join(lines_of(heads, body, 2)) + "\n" if body else NOTHING


def build_table(rows: Sequence[tuple[str, Row]]) -> str:
    """Return what comes before the first run: a table for each machine, a line for each row."""
    machines: dict[str, list[list[str]]] = {}
    for _, row in rows:
        # Rows for the CPU did not say more than the model at first.
        what = [str(row[name]) for name in ("model", "dtype") if name in row]
        what += [f"batch {row['batch']}"] if "batch" in row else []
        times = [f"{row[name]:.3f}" for name in ("best_s", "median_s")]
        line = [row["measure"], " ".join(what), row["engine"], *times]
        machines.setdefault(row["machine"], []).append(line)
    heads = ["measure", "model", "engine", "best, s", "median, s"]
    tables = [
        "\n".join(lines_of(heads, body, 3)) + f"\n\nOn {machine}.\n"
        for machine, body in machines.items()
    ]
    return "\n".join(tables) or NOTHING


def contention_table(rows: Sequence[tuple[str, Row]]) -> str:
    """Return slowdowns beside busy processes: a line for each model and engine."""
    body = [
        [
            row["model"],
            row["engine"],
            str(row["threads"]),
            f"{row['quiet_median_ms']:.2f}",
            f"{row['busy_median_ms']:.2f}",
            f"{row['busy_p95_ms']:.2f}",
            f"{row['slowdown']:.2f}",
            f"{row['idle_share']:.0%}",
        ]
        for _, row in rows
    ]
    heads = ["model", "engine", "threads", "quiet, ms", "busy, ms", "95 of 100", "slowdown", "idle"]
    return "\n".join(lines_of(heads, body, 2)) + "\n" if body else NOTHING


# ---- the pages


def readme_rows(table: Table) -> Table:
    """Return what README shows: the networks on two threads."""
    return {
        setting: rows
        for setting, rows in table.items()
        if setting.source in _IN_README and setting.threads == 2
    }


def bars(table: Table) -> list[Bar]:
    """Return the chart's bars: how many times as fast as the fastest other engine each is."""
    made: list[Bar] = []
    for setting, rows in sorted(table.items(), key=_in_order):
        if setting.dtype == "float32" and (ratio(rows)):
            fastest = min(row["best_ms"] for name, row in rows.items() if name != OURS)
            names = [name for name in (OURS, *PEERS) if name in rows]
            made.append(Bar(setting.model, {n: fastest / rows[n]["best_ms"] for n in names}))
    return made


def pages(folder: Path) -> dict[Path, Callable[[str], str]]:
    """Return what makes each page new from what it was."""
    table = read_latencies(folder)
    shown = readme_rows(table)
    gpu = read_rows(folder, _ON_GPU)
    in_readme = {"benchmarks": latency_table(shown), "gpu": short_gpu_table(gpu)}
    parts = {
        "latency": latency_table(table),
        "gpu": gpu_table(gpu),
        "kernels": kernel_table(read_rows(folder, "cpu_kernels")),
        "memory": memory_table(read_rows(folder, "memory")),
        "builds": build_table(read_rows(folder, "build_time")),
        "contention": contention_table(read_rows(folder, "contention")),
    }
    return {
        ROOT / "README.md": lambda text: replace_parts(text, in_readme),
        ROOT / "docs" / "performance.md": lambda text: replace_parts(text, parts),
        PICTURE: lambda _: chart(bars(shown)),
    }


def replace_parts(text: str, parts: Mapping[str, str]) -> str:
    """Return a page with what stands between each part's markers replaced."""
    for name, content in parts.items():
        marked = re.search(_MARKED.format(name), text, re.DOTALL)
        if marked is not None:
            text = text[: marked.end("begin")] + content + text[marked.start("end") :]
    return text


def main(arguments: Sequence[str]) -> int:
    """Rewrite what is between the markers, and the picture."""
    stale = 0
    for path, renew in pages(RESULTS).items():
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = renew(before)
        if before == after:
            continue
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is stale: run tools/readme_benchmarks.py")
            stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(after, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
