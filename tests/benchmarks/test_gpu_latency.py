"""The benchmark on GPUs compares engines' outputs, and keeps how far they are from each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import gpu_latency
from benchmarks.support.engines import Job
from benchmarks.support.models import random_inputs, save_inputs

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


class _Engine:
    """One whose only output is one number; it stands for its worker, and for all of them."""

    version = "1"

    def __init__(self, engine: str, output: float, *others: _Engine) -> None:
        self.engine, self.output = engine, output
        self.others = others
        self.options: dict[str, object] = {}

    def ready(self, _job: Job, _names: object) -> list[_Engine]:
        return [self, *self.others]

    def save(self, _file: Path) -> list[NDArray[np.float32]]:
        return [np.array([self.output], np.float32)]

    def turn(self, _seconds: float, _warm_up: int) -> dict[str, list[float]]:
        return {"warm": [1.0], "cold": [], "call": [2.0]}


def _measure(model: Path, first: _Engine) -> dict[str, Any]:
    inputs = model.with_name("inputs.npz")
    save_inputs(inputs, random_inputs(model, 1, {}))
    job = Job("tiny", str(model), str(inputs), "float16", 1)
    options: Any = SimpleNamespace(rounds=1, seconds=0.1, warm_up=1, stamp="now")
    workers: Any = first
    rows = gpu_latency.measure(job, workers, [], options)
    return {row["engine"]: (row["error"], row["compared_with"]) for row in rows}


def test_a_row_says_how_far_the_outputs_were_from_another_engines(model: Path) -> None:
    found = _measure(model, _Engine("smelt", 1.0041, _Engine("torch", 1.0)))
    assert found == {"smelt": (pytest.approx(4.1e-3), "torch"), "torch": (None, None)}


def test_two_float16_engines_may_each_be_as_far_off_as_a_build_may(model: Path) -> None:
    peers = _Engine("xla", 1.0061), _Engine("torch", 1.0)
    assert set(_measure(model, _Engine("smelt", 1.0059, *peers))) == {"smelt", "torch"}
