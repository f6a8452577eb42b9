"""Every candidate for every node of some models, compiled, checked and timed on a GPU.

    python -m benchmarks.gpu_tactics MODEL.onnx … [--keep 64] [--out FOLDER]

For each node shape: the best tactic, its time, what the cost model thought, and which candidates
were out, with reasons. With ``--out`` everything is written as JSON, one file a model and batch.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import smelt
from smelt.backends.cuda import CudaBackend, CudaTarget, target_named
from smelt.devices.cuda import cuda_device
from smelt.errors import BuildError
from smelt.ir import clone
from smelt.passes import assign_precision, pipeline, run_passes
from smelt.tuner._benchmark_timer import is_not_timed, node_text
from smelt.tuner._cuda_bench import CudaBench
from smelt.tuner._isolated_node import TimingRepeats, lower_isolated_node
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends import Tactic
    from smelt.ir import Graph, Node

REPEATS = TimingRepeats(7)


def graph_of(path: Path, backend: CudaBackend) -> Graph:
    """The model, optimised."""
    graph = clone(smelt.network_from_onnx(str(path)).graph)
    passes = pipeline(
        non_fusable_ops=backend.non_fusable_ops,
        supported_composite_ops=backend.supported_composite_ops,
    )
    run_passes(graph, passes, lambda _: None)
    return graph


def roofline(node: Node) -> float:
    """Seconds that reading and writing everything once takes in float16, at 4.3 TB/s."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    total = sum(
        math.prod(d if isinstance(d, int) else 1 for d in v.tensor.shape) * 2 for v in values
    )
    return total / 4.3e12


def work_of(
    graph: Graph, backend: CudaBackend, target: CudaTarget, keep: int
) -> dict[str, tuple[Node, list[Tactic], int]]:
    """For each shape of node: one of them, its most promising tactics, and how many there are."""
    found: dict[str, tuple[Node, list[Tactic], int]] = {}
    assign_precision(graph.nodes, DType.FLOAT16, supports_mixed_precision=True)
    for node in graph.nodes:
        text = node_text(node)
        if text in found:
            first, tactics, count = found[text]
            found[text] = (first, tactics, count + 1)
            continue
        every, _ = backend.candidates(node, target)
        tactics = sorted(
            (t for t in every if not is_not_timed(t)), key=lambda t: t.estimated_seconds
        )
        if any(is_not_timed(t) and not t.is_host_step for t in every):
            continue
        if not tactics:
            print(f"  no kernel: {node}", flush=True)
        found[text] = (node, tactics[:keep], 1)
    return found


def tune(path: Path, keep: int, jobs: int | None) -> dict[str, Any]:
    """Times of all candidates of a model's nodes."""
    started = time.perf_counter()
    device = cuda_device(0)
    target = target_named(device.properties.architecture)
    backend = CudaBackend(jobs=jobs)
    graph = graph_of(path, backend)
    lab = CudaBench(backend, target, device, sizes={})
    work = work_of(graph, backend, target, keep)
    prepared = time.perf_counter()
    lab.compile_candidates([(node, t) for node, tactics, _ in work.values() for t in tactics])
    rows: list[dict[str, Any]] = []
    timing = 0.0
    for node, tactics, count in work.values():
        for tactic in tactics:
            wait(lab, node, tactic)
        before = time.perf_counter()
        times = safe_seconds(lab, node, tactics)
        timing += time.perf_counter() - before
        if tactics:
            rows.append(row_of(lab, node, tactics, times, count))
            print(line_of(rows[-1]), flush=True)
    backend.pool.close()
    summary = {
        "model": path.stem,
        "batch": graph.inputs[0].tensor.shape[0],
        "candidates": sum(len(tactics) for _, tactics, _ in work.values()),
        "sum_best_us": round(sum(r["best_us"] * r["count"] for r in rows if r["best_us"]), 1),
        "load_s": round(prepared - started, 1),
        "timing_s": round(timing, 1),
        "all_s": round(time.perf_counter() - started, 1),
    }
    print("==", summary, flush=True)
    return {**summary, "rows": rows}


def wait(lab: CudaBench, node: Node, tactic: Tactic) -> None:
    """Until the tactic is compiled, or refused."""
    for launch in lower_isolated_node(lab.backend, node, tactic, lab.sizes).launches:
        try:
            lab.backend.records(launch.kernel, lab.target)
        except BuildError:
            return


def safe_seconds(lab: CudaBench, node: Node, tactics: Sequence[Tactic]) -> list[float]:
    """The times, or infinity for all if something unexpected happens."""
    try:
        return lab.seconds(node, tactics, repeats=REPEATS)
    except Exception as error:  # noqa: BLE001  (the other nodes are of interest)
        print(f"  !! {node}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return [math.inf] * len(tactics)


def row_of(
    lab: CudaBench,
    node: Node,
    tactics: Sequence[Tactic],
    times: Sequence[float],
    count: int,
) -> dict[str, Any]:
    """What is told of one node."""
    order = sorted(range(len(tactics)), key=lambda i: times[i])
    best = order[0]
    finite = [i for i in order if math.isfinite(times[i])]
    estimates = [tactic.estimated_seconds for tactic in tactics]
    hints = [estimates[i] for i in finite]
    real = [times[i] for i in finite]
    return {
        "node": node.name,
        "what": node_text(node)[:400],
        "count": count,
        "shapes": " ".join(str(v.type) for v in node.inputs if v is not None and v.constant is None)
        + " -> "
        + " ".join(str(v.type) for v in node.outputs),
        "weights": [str(v.type) for v in node.inputs if v is not None and v.constant is not None],
        "roofline_us": round(roofline(node) * 1e6, 2),
        "best": str(tactics[best]) if finite else None,
        "best_us": round(times[best] * 1e6, 2) if finite else None,
        "hint_us": round(estimates[best] * 1e6, 2),
        "hint_rank": sorted(estimates).index(estimates[best]),
        "hinted_us": round(times[min(finite, key=lambda i: estimates[i])] * 1e6, 2)
        if finite
        else None,
        "correlation": correlation(hints, real),
        "all": [
            (str(tactics[i]), round(times[i] * 1e6, 2), round(estimates[i] * 1e6, 2))
            for i in finite
        ],
        "refused": [
            (str(t), lab.refused[node.name, str(t)])
            for t in tactics
            if (node.name, str(t)) in lab.refused
        ],
    }


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's, of ranks."""
    if len(a) < 3:
        return None
    x, y = (np.argsort(np.argsort(v)) for v in (a, b))
    return round(float(np.corrcoef(x, y)[0, 1]), 2)


def line_of(row: dict[str, Any]) -> str:
    """A row of the table."""
    reasons = Counter(reason.splitlines()[0][-60:] for _, reason in row["refused"])
    detail = f"  OUT {len(row['refused'])}: {dict(reasons)}" if reasons else ""
    where = f"{row['count']:3}x {row['node'][:16]:16} {row['shapes'][:70]:70}"
    weights = f"{row['weights'][:1]!s:32.32}"
    guess = f"hint {row['hint_us']:7} #{row['hint_rank']}, hinted {row['hinted_us']}"
    facts = f"(roof {row['roofline_us']:7}, {guess}, rho {row['correlation']})"
    return (
        f"{where} {weights} {row['best_us']!s:>8} us {facts} of {len(row['all'])}: "
        f"{row['best']}{detail}"
    )


def main() -> None:
    """Tune what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--keep", type=int, default=64)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--out", type=Path)
    detail = parser.parse_args()
    logging.getLogger("smelt").setLevel(logging.ERROR)
    for path in detail.models:
        print(f"-- {path}", flush=True)
        try:
            found = tune(path, detail.keep, detail.jobs)
        except Exception as error:  # noqa: BLE001  (the other models are of interest)
            print(f"!! {type(error).__name__}: {error}", flush=True)
            continue
        if detail.out is not None:
            name = detail.out / f"{path.stem}_b{found['batch']}.json"
            name.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
