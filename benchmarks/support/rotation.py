"""Several models in one engine's process: each alone for a while, then all in turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.support import engines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from benchmarks.support.engines import Engine, Job

_loaded: Final[dict[str, Engine]] = {}
"""What this process has loaded, by model."""


class _Loader:
    """Loads a model beside those that are loaded."""

    def __init__(self, name: str) -> None:
        self._make = engines.ENGINES[name]

    def __call__(self, job: Job, inputs: Mapping[str, NDArray[Any]]) -> Engine:
        made = _loaded[job.model] = self._make(job, inputs)
        return made


def take_turns(_engine: Engine, seconds: float, warm_up: int) -> dict[str, dict[str, list[float]]]:
    """Return the milliseconds of every call: of each model alone, and of all in rotation."""
    alone = {model: engines.take_turn(e, seconds, warm_up) for model, e in _loaded.items()}
    rotation: dict[str, list[float]] = {model: [] for model in _loaded}
    clock = time.perf_counter
    end, calls = 0.0, -1
    while calls < 1 or (clock() < end and calls < engines.MAX_CALLS):
        for model, engine in _loaded.items():
            begin = clock()
            engine.run()
            if calls >= 0:  # the first round finds what the last model alone has left
                rotation[model].append((clock() - begin) * 1e3)
        if calls < 0:
            end = clock() + seconds * len(_loaded)
        calls += 1
    return {"alone": alone, "rotation": rotation}


def serve(name: str) -> None:
    """Be one engine's worker."""
    engines.serve(name, {known: _Loader(known) for known in engines.ENGINES}, take_turns)
