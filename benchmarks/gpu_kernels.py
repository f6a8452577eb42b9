"""Measure the GPU kernels of products one by one: every tactic, checked, and timed in a graph.

For each distinct convolution and matrix product of a network, all tactics of the CUDA backend are
compiled side by side, each result is compared with float32 arithmetic on fresh inputs (outputs
poisoned, before and after the timing), and 20 or more launches on rotating memory are timed as one
CUDA graph. The best stand beside what torch takes for the same op, and beside the roofline.
Nothing of the builder or runtime takes part.

What a family gains: ``gpu_kernels resnet50:32 resnet50:128 --family held`` measures the products
that it has tactics for, beside the most promising others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.support.gpu_gemm_problems import NETWORKS, GemmProblem, gemm_problems_of
from benchmarks.support.gpu_kernel_bench import (
    Candidate,
    CandidateBench,
    GpuKernelBench,
    Memory,
    candidates_of,
    compiled,
)
from smelt.backends import Tactic
from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.devices.cuda import CudaGraph
from smelt.errors import SmeltError
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.ir import Node

FLOPS = 790e12
BYTES_PER_SECOND = 4.3e12
TOLERANCE = 3e-3
Submit = Callable[..., Future[Any]]

_NEXT = "tl.extra.cuda.gdc_launch_dependents()"


def _at_its_beginning(text: str) -> str:
    """The kernel that lets the next one start before it waits itself."""
    head, *lines = [line for line in text.splitlines() if line.strip() != _NEXT]
    return "\n".join([head, f"    {_NEXT}", *lines, ""])


VARIANTS: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "the next starts at a launch's beginning": _at_its_beginning,
}
"""How the kernels of a chain are changed."""


def measure_chain(
    rig: GpuKernelBench, chain: list[tuple[Memory, Candidate]], target: CudaTarget, submit: Submit
) -> None:
    """Print what the best kernels of a network take one behind the other, as they are and else."""
    backend = CudaBackend()
    distinct = {id(candidate): (memory, candidate) for memory, candidate in chain}
    for name, change in VARIANTS.items():
        benches: dict[int, CandidateBench] = {}
        for key, (memory, candidate) in distinct.items():
            texts = [change(backend.generate(s.kernel, target)) for s in candidate.steps]
            steps = zip(candidate.steps, texts, strict=True)
            records = [submit(compiled, s.kernel, text, target) for s, text in steps]
            made = dataclasses.replace(candidate, records=records)
            benches[key] = CandidateBench(memory, made, backend)
        worst = max(bench.error() for bench in benches.values())
        print(f"-- {name}: errors up to {worst:.2g}")
        order = [benches[id(candidate)] for _, candidate in chain]
        print(f"chain of {len(order)}: {chain_us(rig, order):.1f} us")
        if change is VARIANTS["as it is"]:
            print(f"started late: {chain_us(rig, order, early=False):.1f} us")
            alike = sorted(order, key=id)
            print(f"alike behind each other: {chain_us(rig, alike):.1f} us")
            print(f"on one set of memory: {chain_us(rig, order, sets=1):.1f} us")
            print(f"both: {chain_us(rig, alike, sets=1):.1f} us")
        for module in [module for bench in benches.values() for module in bench.modules]:
            module.close()


def chain_us(
    rig: GpuKernelBench, order: Sequence[CandidateBench], *, early: bool = True, sets: int = 1 << 20
) -> float:
    """Microseconds of launches one behind the other, in one graph."""

    def record() -> None:
        for number, bench in enumerate(order):
            bench.queue(number % sets, early=early)

    graph = CudaGraph(rig.stream, record)
    try:
        return rig.milliseconds(graph, 30) * 1e3
    finally:
        graph.close()


def measure(
    rig: GpuKernelBench,
    product: GemmProblem,
    node: Node,
    found: list[Candidate],
    options: argparse.Namespace,
) -> tuple[dict[str, Any], Memory, Candidate | None]:
    """The row of one product."""
    backend, memory = CudaBackend(), Memory(rig, product, node)
    times: list[tuple[float, str]] = []
    errors: dict[str, float] = {}
    best: tuple[float, Candidate | None] = (float("inf"), None)
    wrong: list[str] = []
    for candidate in found:
        try:
            bench = CandidateBench(memory, candidate, backend)
            before = bench.error()
            taken = bench.microseconds(options.rounds)
            error = max(before, bench.error())
            if error > TOLERANCE:
                wrong.append(f"{candidate.name}: error {before:.2g} then {error:.2g}")
            else:
                times.append((round(taken, 2), candidate.name))
                errors[candidate.name] = error
                best = min(best, (taken, candidate), key=lambda pair: pair[0])
            for module in bench.modules:
                module.close()
        except SmeltError as problem:
            wrong.append(f"{candidate.name}: {str(problem)[:200]}")
    times.sort()
    roof = max(product.flop / FLOPS, product.moved_bytes(2) / BYTES_PER_SECOND) * 1e6
    torch_us = round(memory.torch_us(), 2) if options.torch else None
    memory.pool.clear()
    row = {
        "label": product.label, "rows": product.rows, "roof_us": round(roof, 2),
        "torch_us": torch_us, "times": times, "wrong": wrong, "errors": errors,
    }  # fmt: skip
    return row, memory, best[1]


def report(row: dict[str, Any], count: int, shown: int) -> None:
    """Print the row of a product."""
    times = row["times"]
    best = times[0][0] if times else float("nan")
    share = row["roof_us"] / best if times else 0.0
    beside = "" if row["torch_us"] is None else f" torch {row['torch_us']:8.2f}"
    print(f"{row['label']:34s} x{count:<2d} {best:8.2f} us {share:4.0%} of roof{beside}")
    for taken, name in times[:shown]:
        print(f"      {taken:8.2f}  {name}")
    for text in row["wrong"][:3]:
        print(f"      WRONG ({len(row['wrong'])}) {text}")
    sys.stdout.flush()


def best_of(row: dict[str, Any], family: str, *, others: bool) -> tuple[float, str]:
    """The shortest time in a row, and whose it is: of a family, or of all others."""
    found = [(t, name) for t, name in row["times"] if name.startswith(f"{family}(") is not others]
    return min(found, default=(float("nan"), "none"))


def report_family(rows: Sequence[dict[str, Any]], family: str) -> None:
    """Print what a family's best tactic takes for each product, beside the best of the others."""
    before = after = 0.0
    print(f"-- {family} beside the best of the others, microseconds; the largest error of both")
    for row in rows:
        old, new = (best_of(row, family, others=others) for others in (True, False))
        error = max(row["errors"].get(name, 0.0) for _, name in (old, new))
        share = f"{old[0]:8.2f} {new[0]:8.2f}  {new[0] / old[0]:5.0%}  {error:.1e}"
        label = f"{row['network']}:{row['batch']} {row['label']}"
        print(f"{label:46s} x{row['count']:<2d} {share}  {new[1]}")
        if not math.isnan(old[0]):
            before += row["count"] * old[0]
            after += row["count"] * min(old[0], new[0] if not math.isnan(new[0]) else math.inf)
    print(f"-- all of them: {before:.1f} us without, {after:.1f} us with {family}")


def picked(tactics: list[Tactic], family: str, kept: int) -> list[Tactic]:
    """A family's tactics and the most promising others; none if it has none."""
    own = [t for t in tactics if t.family == family]
    others = [t for t in tactics if t.family != family]
    return [*own, *sorted(others, key=lambda t: t.estimated_seconds)[:kept]] if own else []


@dataclass(slots=True)
class Job:
    """A network, and its products while their candidates are compiled."""

    network: str
    batch: int
    products: list[tuple[GemmProblem, int, Node, list[Candidate]]]
    chain: dict[GemmProblem, tuple[Memory, Candidate]] = field(
        default_factory=dict[GemmProblem, "tuple[Memory, Candidate]"]
    )
    """The best candidate of each product that was measured."""

    def cancel(self) -> None:
        """Compile no more."""
        for *_, found in self.products:
            for candidate in found:
                for record in candidate.records:
                    record.cancel()


def begin_job(
    text: str, pattern: str, target: CudaTarget, submit: Submit, family: str, others: int
) -> Job:
    """Have all candidates of a network's products compiled."""
    network, batch = text.split(":")
    backend, job = CudaBackend(), Job(network, int(batch), [])
    for product, count in gemm_problems_of(network, job.batch).items():
        if re.search(pattern, product.label):
            node = product.node(DType.FLOAT32)
            pick = partial(picked, family=family, kept=others) if family else list[Tactic]
            found = candidates_of(backend, node, target, submit, DType.FLOAT16, pick)
            if found:
                job.products.append((product, count, node, found))
    return job


def run_job(
    rig: GpuKernelBench, job: Job, options: argparse.Namespace, end: float
) -> list[dict[str, Any]]:
    """Measure the products of a network as long as there is time; their rows."""
    rows: list[dict[str, Any]] = []
    print(f"== {job.network} at batch {job.batch}, {end - time.monotonic():.1f} s are left")
    for product, count, node, found in job.products:
        if time.monotonic() > end:
            print("out of time")
            break
        row, memory, best = measure(rig, product, node, found, options)
        if best is not None:
            job.chain[product] = (memory, best)
        report(row, count, options.shown)
        rows.append({"network": job.network, "batch": job.batch, "count": count, **row})
    total = sum(row["count"] * row["times"][0][0] for row in rows if row["times"])
    beside = sum(row["count"] * (row["torch_us"] or 0.0) for row in rows)
    print(f"== {job.network} at batch {job.batch}: {total:.1f} us in sum; torch {beside:.1f}")
    return rows


def run(options: argparse.Namespace) -> None:
    """Measure all jobs."""
    begin, target = time.monotonic(), CudaTarget(90)
    workers = options.workers or max(1, (os.cpu_count() or 2) - 1)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        wanted = (options.only, target, pool.submit, options.family, options.others)
        jobs = [begin_job(text, *wanted) for text in options.jobs]
        rig = GpuKernelBench()
        for job in jobs:
            rows += run_job(rig, job, options, begin + options.seconds)
            products = NETWORKS[job.network](job.batch)
            order = [job.chain[p] for p in products if p in job.chain]
            if order and options.chain:
                measure_chain(rig, order, target, pool.submit)
            job.cancel()
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
    if options.family:
        report_family(rows, options.family)
    print(f"{time.monotonic() - begin:.1f} s")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="+", help="NETWORK:BATCH, as in resnet50:1")
    parser.add_argument("--only", default="", help="products whose label this pattern finds")
    parser.add_argument("--family", default="", help="measure what it computes, beside others")
    parser.add_argument("--others", type=int, default=12, help="how many of those others")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shown", type=int, default=2, help="how many of the best are printed")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--torch", action="store_true", help="time torch as well")
    parser.add_argument("--chain", action="store_true", help="time the best as a network, too")
    parser.add_argument("--json", help="where all times are written")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
