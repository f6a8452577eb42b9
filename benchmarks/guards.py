"""Measure what a run pays for checking shapes and indices, in microseconds.

A plan of fixed shapes has nothing to check. One of open shapes checks its guards and footprints
once for each combination of extents, and looks the verdict up afterwards. That is measured on a
U-Net of open extents; what the runs of a context spend on checks is counted. What launches pay that
look whether indices are in range is measured on models and on a detector whose boxes are picked by
index, beside the same kernels that do not look. With --device cuda that alone is measured, on a
GPU: see `support/gpu_index_checks.py`.
"""

from __future__ import annotations

import sys
import time
import timeit
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import smelt
from benchmarks.support.index_checks import index_rows
from benchmarks.support.results import name_of_gpu, numbers, parser_for, words, write_fused_kernel
from smelt import ops
from smelt.engine import CachedRuntimeChecks, RuntimeChecks, verify_plan_at
from smelt.ir import Graph
from smelt.types import DType, SymbolicDim, TensorType

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from smelt.ir import Value
    from smelt.runtime import Engine

_LEVELS: Final = 4
_BLOCKS: Final = 6
"""Convolutions on each side of a level: some 120 steps in all."""
_CHANNELS: Final = 8
_EXTENT: Final = 64
_FIRST_RUNS: Final = 5
"""Of a context: the first has a shape that it has not met."""


def unet() -> Graph:
    """Return a network whose shortcuts fit only where extents are multiples of 16."""
    graph, rng = Graph("unet"), np.random.default_rng(0)

    def weights(name: str, *shape: int) -> Value:
        return graph.add_constant(rng.standard_normal(shape).astype(np.float32) * 0.1, name)

    def convolve(value: Value, inputs: int, name: str) -> Value:
        conv = ops.Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1))
        filters = weights(f"{name}.weights", _CHANNELS, inputs, 3, 3)
        made = graph.add(conv, value, filters, name=name).output
        return graph.add(ops.Sigmoid(), made, name=f"{name}.sigmoid").output

    h, w = SymbolicDim.symbol("h"), SymbolicDim.symbol("w")
    value = graph.add_input("x", TensorType(DType.FLOAT32, (1, _CHANNELS, h, w)))
    shortcuts: list[Value] = []
    for level in range(_LEVELS):
        for block in range(_BLOCKS):
            value = convolve(value, _CHANNELS, f"down{level}.{block}")
        shortcuts.append(value)
        pool = ops.MaxPool(kernel_shape=(2, 2), strides=(2, 2))
        value = graph.add(pool, value, name=f"pool{level}").output
    for level in reversed(range(_LEVELS)):
        up = ops.ConvTranspose(kernel_shape=(2, 2), strides=(2, 2))
        filters = weights(f"up{level}.weights", _CHANNELS, _CHANNELS, 2, 2)
        value = graph.add(up, value, filters, name=f"up{level}").output
        value = graph.add(ops.Concat(1), value, shortcuts[level], name=f"join{level}").output
        value = convolve(value, 2 * _CHANNELS, f"joined{level}")
        for block in range(_BLOCKS):
            value = convolve(value, _CHANNELS, f"up{level}.{block}")
    graph.outputs = [value]
    return graph


def engine_for(*extents: int) -> Engine:
    """Return an engine for pictures of one size, or for the range of three."""
    spec = [(1, _CHANNELS, extent, extent) for extent in extents]
    return smelt.build(unet(), shapes={"x": tuple(spec) if len(spec) > 1 else spec}, tune="none")


def microseconds(call: Callable[[], object], number: int) -> float:
    """Return the time of one call, in the fastest of twenty batches."""
    return min(timeit.repeat(call, number=number, repeat=20)) / number * 1e6


def measure() -> list[dict[str, Any]]:
    """Return a row for each kind of plan and of shape."""
    fixed = engine_for(_EXTENT)
    ranged = engine_for(16, _EXTENT, 256)
    header, plan = ranged.header, ranged.header.plans[0]
    values = {name: _EXTENT if low != high else low for name, low, high in plan.symbols}
    conditions = RuntimeChecks(header, plan)
    verdicts = CachedRuntimeChecks(conditions)
    verdicts.check(values)
    measured = {
        "open plan, known shape": microseconds(lambda: verdicts.check(values), 1000),
        "open plan, new shape": microseconds(lambda: conditions.check(values), 20),
        "full verifier, new shape": microseconds(lambda: verify_plan_at(header, plan, values), 1),
    }
    steps = len(plan.steps)
    rows = [spent_by_runs("fixed plan", fixed), spent_by_runs("open plan", ranged)]
    rows += [{"check": what, "steps": steps, "us": round(us, 3)} for what, us in measured.items()]
    return rows


def spent_by_runs(what: str, engine: Engine) -> dict[str, Any]:
    """Count the checks of a context's first runs, and return with them what a run pays."""
    spent: list[float] = []
    check = CachedRuntimeChecks.check

    def timed(kept: CachedRuntimeChecks, *arguments: Any, **more: Any) -> None:
        start = time.perf_counter()
        check(kept, *arguments, **more)
        spent.append(time.perf_counter() - start)

    x = np.zeros((1, _CHANNELS, _EXTENT, _EXTENT), np.float32)
    with patch.object(CachedRuntimeChecks, "check", timed), engine.create_context() as context:
        for _ in range(_FIRST_RUNS):
            context.run({"x": x})
    steps = len(engine.header.plans[0].steps)
    return {
        "check": f"{what}, {_FIRST_RUNS} runs",
        "steps": steps,
        "checks": len(spent),
        "us": round(sum(spent) / _FIRST_RUNS * 1e6, 3),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = parser_for(__doc__)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where indices are looked at")
    add("--models", type=words, help="whose indices are measured")
    add("--turns", type=int, default=80, help="of each engine that reads indices")
    add("--batch", type=numbers, default=[1, 16], help="on a GPU: several, by commas")
    add("--precision", type=words, default=["float16"], help="on a GPU: several, by commas")
    add("--tune", type=words, default=["none"], help="on a GPU: several efforts, by commas")
    options = parser.parse_args(arguments)
    if options.models is None:
        options.models = ["minilm"]
        options.models += ["ultraface", "fastestdet_coco"] if options.device == "cpu" else []
    return options


def print_guards(rows: Sequence[dict[str, Any]]) -> None:
    """Print what guards cost."""
    for row in rows:
        checks = f"{row['checks']} checks" if "checks" in row else ""
        print(f"{row['check']:24} {row['steps']:4} steps {row['us']:10.2f} µs {checks}")


def print_indices(row: dict[str, Any]) -> None:
    """Print what looking at indices costs."""
    found = "no kernel of it reads an index"
    if row["launches"]:
        found = f"{row['launches']} launches {row['us']:10.2f} µs {row['percent']:6.2f} %"
    if "noise_percent" in row:
        found += f" (the same twice: {row['noise_percent']:.2f} %)"
    about = [f"b{row['batch']}"] if "batch" in row else []
    about += [row[name] for name in ("dtype", "tune", "state") if name in row]
    print(f"{' '.join([row['check'], *about]):44} {found}", flush=True)


def rows_of_indices(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what looking at indices costs, on the device that is asked for."""
    if options.device == "cpu":
        yield from index_rows(options.models, options.model_dir, options.turns)
        return
    from benchmarks.support.gpu_index_checks import Asked, gpu_index_rows  # needs Triton

    setting = (options.batch, options.precision, options.tune, options.turns)
    yield from gpu_index_rows(Asked(options.models, options.model_dir, *setting))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the rows."""
    options = parse(arguments)
    where = name_of_gpu() if options.device == "cuda" else None
    rows = measure() if options.device == "cpu" else []
    print_guards(rows)
    for row in rows_of_indices(options):
        rows.append(row)
        print_indices(row)
        write_fused_kernel(options.json, rows, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
