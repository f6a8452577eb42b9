"""Measure what a run on a GPU pays for index checks: one engine with the checks, and one without.

The engine is built once. For both variants the kernels that read indices are compiled again and
placed behind all others, once with the check and once without; the other kernels are the same,
tuned or not. The variant without checks has no error words to read. Both are compiled again because
the place of a kernel alone changes a run of MiniLM by up to 1.4 %. Both variants and a second
context of the first are timed in turns; the difference of its two contexts is the noise.

A detector whose boxes are picked by index is left out: the host picks them.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import numpy as np

import smelt
from benchmarks.support.gpu_engines import Bound
from benchmarks.support.index_checks import single_elements
from benchmarks.support.models import find_models, random_inputs, reference_folder
from smelt.backends.cuda import CudaBackend, target_named
from smelt.engine import Launch, Space
from smelt.runtime import Engine

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from smelt.engine import KernelSpec
    from smelt.ir import Graph

    Network = smelt.NetworkDefinition | Graph
    Inputs = dict[str, NDArray[Any]]
    Row = dict[str, Any]

_TURN_S: Final = 0.05
_CALLS: Final = 20
"""Calls of a turn that the host's clock times."""
_CHECKED: Final = "us"
_UNCHECKED: Final = "unchecked_us"
_AGAIN: Final = "again_us"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is measured."""

    models: Sequence[str]
    folder: Path | None
    """Where to look for them first."""
    batches: Sequence[int] = (1, 16)
    precisions: Sequence[str] = ("float16",)
    tunes: Sequence[str] = ("none",)
    turns: int = 80
    """How often each engine runs for a while."""


def gpu_index_rows(asked: Asked) -> Iterator[Row]:
    """Yield rows for each model, and for a gather of single elements: warm, cold, and of calls.

    The first two are the GPU's time of a run, with what the run before left in L2 and with nothing
    of it; the third is the host's, from the call until it has heard that all indices were in range.
    """
    for tune in asked.tunes:
        for precision in asked.precisions:
            for batch in asked.batches:
                yield from _model_rows(asked, batch, precision, tune)
        net, inputs = single_elements()
        about = {"batch": 1, "dtype": "float32", "tune": tune}
        yield from _rows("single elements", net, inputs, about, asked.turns)


def _model_rows(asked: Asked, batch: int, precision: str, tune: str) -> Iterator[Row]:
    folders = [place for place in (asked.folder, reference_folder()) if place is not None]
    about = {"batch": batch, "dtype": precision, "tune": tune}
    for name in asked.models:
        for model, file in find_models(name, folders, batch):
            inputs = random_inputs(file, batch, {})
            yield from _rows(model, smelt.network_from_onnx(file), inputs, about, asked.turns)


def _rows(name: str, net: Network, inputs: Inputs, about: Row, turns: int) -> Iterator[Row]:
    shapes = {key: array.shape for key, array in inputs.items()}
    build: Any = smelt.build
    with ExitStack() as stack:
        engine = stack.enter_context(
            build(net, device="cuda", precision=about["dtype"], shapes=shapes, tune=about["tune"])
        )
        kernels = kernels_that_look(engine)
        row = {"check": f"indices of {name}", "device": "cuda", **about, "launches": len(kernels)}
        if not kernels:
            yield row
            return
        twin = stack.enter_context(engine_without_looking(engine, kernels))
        engine = stack.enter_context(_with_kernels(engine, kernels, CudaBackend()))
        runs = {_CHECKED: Bound(engine, stack.enter_context(engine.create_context()), inputs)}
        with _without_words():
            context = stack.enter_context(twin.create_context())
        runs[_UNCHECKED] = Bound(twin, context, inputs)
        runs[_AGAIN] = Bound(engine, stack.enter_context(engine.create_context()), inputs)
        _compare(name, runs)
        for state, found in _in_turns(runs, turns).items():
            yield {**row, "state": state, **_told(found)}


def kernels_that_look(engine: Engine) -> list[KernelSpec]:
    """The kernel of each launch that looks at indices."""
    plan = engine.header.plans[0]
    return [
        step.kernel
        for step in plan.steps
        if isinstance(step, Launch)
        and any(plan.buffers[view.buffer].space is Space.ERRORS for view in step.operands)
    ]


def engine_without_looking(engine: Engine, kernels: Sequence[KernelSpec]) -> Engine:
    """Return the same engine, for which some kernels are compiled so that they tell nobody.

    Raises:
        SystemExit: they look all the same, so that there would be nothing to measure.
    """
    header, backend = engine.header, CudaBackend()
    target = target_named(header.fingerprint.architecture)
    looking = [backend.generate(kernel, target) for kernel in kernels]
    with patch("smelt.backends.cuda._kernel_source.KernelSource.write_index_error"):
        others = [backend.generate(kernel, target) for kernel in kernels]
        if any(text == other for text, other in zip(looking, others, strict=True)):
            raise SystemExit("kernels tell of indices in a way that this benchmark does not know")
        return _with_kernels(engine, kernels, backend)


def _with_kernels(engine: Engine, kernels: Sequence[KernelSpec], backend: CudaBackend) -> Engine:
    """Return the engine with some kernels compiled again and placed behind all others."""
    header = engine.header
    image = backend.compile(kernels, target_named(header.fingerprint.architecture))
    backend.pool.close()
    places = dict(header.symbols)
    places |= {symbol: len(engine.code) + place for symbol, place in image.symbols}
    header = replace(header, symbols=tuple(sorted(places.items())))
    file = engine.file
    return Engine.create(header, file.weights, engine.code + image.code, file.runtime_code)


@contextmanager
def _without_words() -> Generator[None]:
    """Make contexts that have no error words."""
    with patch("smelt.runtime._cuda_executor.error_words", return_value=None):
        yield


def _compare(name: str, runs: dict[str, Bound]) -> None:
    """Raise SystemExit unless all compute the same, bit by bit."""
    wanted, *others = [[np.array(array) for array in run.outputs()] for run in runs.values()]
    for found in others:
        if not all(map(np.array_equal, found, wanted)):
            raise SystemExit(f"{name}: with other kernels outputs differ; nothing is timed")


def _in_turns(runs: dict[str, Bound], turns: int) -> dict[str, dict[str, list[float]]]:
    """The milliseconds of each run, by state and by whose they are; a first turn does not count."""
    names = list(runs)
    found: dict[str, dict[str, list[float]]] = {
        state: {name: [] for name in names} for state in ("warm", "cold", "call")
    }
    for turn in range(turns + 1):
        for name in names if turn % 2 else reversed(names):
            run = runs[name]
            taken = {
                "warm": run.times(_TURN_S, cold=False),
                "cold": run.times(_TURN_S, cold=True),
                "call": run.heard_times(_CALLS),
            }
            if turn:
                for state, times in taken.items():
                    found[state][name] += times
    return found


def _told(found: dict[str, list[float]]) -> Row:
    """Medians in microseconds, what checks add to them, and what the same engine does, in %."""
    medians = {name: statistics.median(times) * 1e3 for name, times in found.items()}
    checked = medians[_CHECKED]
    return {
        _CHECKED: round(checked, 3),
        _UNCHECKED: round(medians[_UNCHECKED], 3),
        "percent": round((checked / medians[_UNCHECKED] - 1) * 100, 2),
        "noise_percent": round(abs(medians[_AGAIN] / checked - 1) * 100, 2),
        "runs": len(found[_CHECKED]),
    }
