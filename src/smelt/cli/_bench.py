"""``smelt bench``: measure the speed of an engine on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import click

from smelt.cli._console import print_report, print_table, show
from smelt.cli._file_arguments import FileCommand, ModelFile
from smelt.cli._model_options import BuildArguments, build_options, is_model, open_engine
from smelt.cli._option_types import FiniteFloat, pairs_from_texts
from smelt.cli._options import THREADS_OPTION, Count, input_option, json_option, output_option
from smelt.errors import SmeltError
from smelt.types import counted, format_number, format_percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine import LayerInfo
    from smelt.runtime import Engine, ExecutionContext

_PROFILED_SECONDS: Final = 3.0
"""Time after which no further profiled run starts, in seconds."""
_PROFILED_RUNS: Final = 50
"""Largest number of profiled runs."""


@dataclass(slots=True)
class _LayerTimes:
    """A profiler that accumulates per-layer time."""

    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    """Total time by the layer's name."""

    def report_layer_time(self, name: str, milliseconds: float) -> None:
        """Add the time of one run of a layer."""
        self.milliseconds[name] = self.milliseconds.get(name, 0.0) + milliseconds


@click.command(
    cls=FileCommand, short_help="Measure latency and throughput; with --profile, each layer's time."
)
@click.argument("engine_path", metavar="ENGINE", type=ModelFile())
@THREADS_OPTION
@click.option("--batch", type=Count(1), help="Batch size.  [default: the largest of all plans]")
@click.option("--iterations", type=Count(1), help="Number of runs to measure.  [default: no limit]")
@click.option(
    "--seconds",
    type=FiniteFloat(0, min_open=True),
    help="How long to measure, in seconds.  [default: 3, or no limit with --iterations]",
)
@click.option("--warmup", default=5, type=Count(0), help="Runs before measuring.")
@input_option(
    metavar="NAME=VALUE", help="An input: a .npy file, random or zeros.  [default: random]"
)
@output_option(help="A tensor to make an output of a MODEL; repeatable.")
@click.option("--profile", is_flag=True, help="Also time each layer, in separate runs.")
@json_option()
@build_options
def bench(
    *,
    engine_path: str,
    threads: int | None,
    batch: int | None,
    iterations: int | None,
    seconds: float | None,
    warmup: int,
    inputs: tuple[str, ...],
    profile: bool,
    as_json: bool,
    build_arguments: BuildArguments,
) -> None:
    r"""Measure ENGINE on random inputs; a model instead of an engine is built first.

    A run is an inference of the whole batch on preallocated arrays. Layer times come from further
    runs with a profiler; their sum is a little more than the time of an unprofiled run.

    \b
    Examples:
      smelt bench model.engine
      smelt bench model.engine --threads 1 --batch 4 --iterations 200 --json
      smelt bench model.onnx --shape input=1x3x224x224 --profile
    """
    if (
        is_model(engine_path)
        and batch is not None
        and "max_batch_size" not in build_arguments.explicit
    ):
        build_arguments = replace(build_arguments, max_batch_size=batch)
    engine = open_engine(engine_path, build_arguments, quiet=as_json)
    with engine.create_context(threads=threads) as context:
        benchmark_run = _BenchmarkRun.prepare(engine, context, batch, pairs_from_texts(inputs))
        for _ in range(warmup):
            benchmark_run.run()
        times = _measure(benchmark_run, iterations, seconds)
        report = _report(engine_path, engine, benchmark_run, times)
        if profile:
            report["layers"] = _profile(engine, benchmark_run)
    print_report(report, _show, as_json=as_json)


@dataclass(slots=True)
class _BenchmarkRun:
    """A run that can be repeated on the same arrays."""

    context: ExecutionContext
    batch: int
    """Batch size that is passed to `execute`."""
    items: int
    """Number of items that one run computes."""
    bindings: list[NDArray[Any]]
    """Arrays of all bindings, in the engine's order."""
    sizes: Mapping[str, int]
    """Values of the engine's symbols."""

    @classmethod
    def prepare(
        cls,
        engine: Engine,
        context: ExecutionContext,
        batch: int | None,
        sources: Mapping[str, str],
    ) -> _BenchmarkRun:
        """Allocate the arrays of a run.

        Args:
            engine: the engine.
            context: the context to run in.
            batch: batch size; None for the largest of all plans.
            sources: by the input's name, a .npy file, ``random`` or ``zeros``; others are random.

        Raises:
            SmeltError: an input does not exist, or no plan takes the shapes.
        """
        import numpy as np

        from smelt.cli._inputs import require_array, shape_at, values_of_batch

        unknown = sorted(set(sources) - {b.name for b in engine.inputs})
        if unknown:
            names = ", ".join(b.name for b in engine.inputs)
            raise SmeltError(f"the engine has no input {unknown[0]!r}; it has: {names}")
        plans = engine.header.plans
        arrays = {
            b.name: require_array(sources[b.name], b, {}, plans)
            for b in engine.inputs
            if sources.get(b.name, "random") not in ("random", "zeros")
        }
        values = values_of_batch(engine, batch, {n: array.shape for n, array in arrays.items()})
        for b in engine.inputs:
            if b.name not in arrays:
                arrays[b.name] = require_array(sources.get(b.name, "random"), b, values, plans)
        results = [np.empty(shape_at(b, values), b.dtype.numpy) for b in engine.outputs]
        first = engine.inputs[0] if engine.inputs else None
        extents = arrays[first.name].shape if first is not None else ()
        items = extents[0] if len(extents) > 1 else 1
        symbols = {str(d) for b in engine.inputs for d in b.shape if not isinstance(d, int)}
        batch_size = items if "batch" in symbols else 1
        outputs = iter(results)
        bindings = [arrays[b.name] if b.is_input else next(outputs) for b in engine.bindings]
        return cls(context, batch_size, items, bindings, values)

    def run(self) -> None:
        """Run once and wait for the outputs."""
        self.context.execute(self.batch, self.bindings)


def _measure(
    benchmark_run: _BenchmarkRun, iterations: int | None, seconds: float | None
) -> list[float]:
    """Return the time of each run in seconds; measuring ends at the first of the two limits."""
    limit = seconds if seconds is not None else (float("inf") if iterations else 3.0)
    times: list[float] = []
    clock = time.perf_counter
    end = clock() + limit
    while not times or (clock() < end and (iterations is None or len(times) < iterations)):
        start = clock()
        benchmark_run.run()
        times.append(clock() - start)
    return times


def _report(
    path: str, engine: Engine, benchmark_run: _BenchmarkRun, times: Sequence[float]
) -> dict[str, Any]:
    """Return the result of the command as JSON values."""
    import numpy as np

    milliseconds = np.array(times) * 1e3
    return {
        "engine": path,
        "network": engine.name,
        "device": engine.device,
        "threads": benchmark_run.context.threads,
        "batch": benchmark_run.items,
        "sizes": dict(benchmark_run.sizes),
        "iterations": len(times),
        "best_ms": float(milliseconds.min()),
        "median_ms": float(np.median(milliseconds)),
        "mean_ms": float(milliseconds.mean()),
        "p95_ms": float(np.percentile(milliseconds, 95)),
        "items_per_second": float(benchmark_run.items * len(times) / (milliseconds.sum() / 1e3)),
    }


def _profile(engine: Engine, benchmark_run: _BenchmarkRun) -> list[dict[str, Any]]:
    """Return the mean time of each layer over profiled runs, as JSON values."""
    times = _LayerTimes()
    benchmark_run.context.profiler = times
    count, end = 0, time.perf_counter() + _PROFILED_SECONDS
    while count < _PROFILED_RUNS and (not count or time.perf_counter() < end):
        benchmark_run.run()
        count += 1
    benchmark_run.context.profiler = None
    total = sum(times.milliseconds.values()) or 1.0
    layers = _layers_by_name(engine, benchmark_run.sizes)
    return [
        {
            "name": name,
            "kind": layers[name].kind,
            "tactic": layers[name].tactic,
            "milliseconds": milliseconds / count,
            "share": milliseconds / total,
        }
        for name, milliseconds in times.milliseconds.items()
    ]


def _layers_by_name(engine: Engine, sizes: Mapping[str, int]) -> dict[str, LayerInfo]:
    """Return the layers by name; the plan that runs takes precedence if plans share a name."""
    from smelt.inspect import Profile

    fitting = (plan for plan in engine.header.plans if Profile({}, sizes).fits(plan))
    own = [engine.layers[step.layer] for step in next(fitting).steps]
    return {layer.name: layer for layer in (*engine.layers, *own)}


def _show(report: Mapping[str, Any]) -> None:
    """Print the result as text."""
    show(
        f"{report['network']} on {report['device']}, {counted(report['threads'], 'thread')}, "
        f"batch {report['batch']}, {counted(report['iterations'], 'run')}"
    )
    best, median, p95 = (format_number(report[f"{n}_ms"], 3) for n in ("best", "median", "p95"))
    show(
        f"best {best} ms, median {median} ms, 95 % within {p95} ms, "
        f"{format_number(report['items_per_second'], 1)} items/s"
    )
    if "layers" in report:
        rows = [
            (
                x["name"],
                x["kind"],
                format_number(x["milliseconds"], 4),
                format_percent(x["share"], 1),
                x["tactic"],
            )
            for x in report["layers"]
        ]
        print_table(rows, ("layer", "kind", "ms", "share", "tactic"))
