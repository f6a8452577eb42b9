"""One engine from a bare interpreter to its answers, with time and memory after each stage.

usage: python stages.py ENGINE MODEL INPUTS.npz THREADS, in a process of its own. ENGINE is smelt
(MODEL is then a saved engine), smelt-build, onnxruntime or openvino (MODEL is then ONNX). Nothing
is imported but what the engine needs; one line of JSON is printed.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 5
"""Runs after the first: some engines take memory late."""
FIELDS = {"VmRSS:": "rss_mib", "RssAnon:": "own_mib", "VmHWM:": "peak_mib"}
"""Resident memory, the part of it that no other process can share, and the most there ever was."""


class Stages:
    """Times and memory so far."""

    def __init__(self) -> None:
        """Begin."""
        self.rows: list[dict[str, Any]] = []
        self._before = time.perf_counter()

    def note(self, stage: str) -> None:
        """Record a stage that has ended: its seconds, and the memory in MiB."""
        seconds = time.perf_counter() - self._before
        row: dict[str, Any] = {"stage": stage, "seconds": round(seconds, 4)}
        status = Path("/proc/self/status")
        if status.exists():
            for line in status.read_text(encoding="ascii").splitlines():
                name, *rest = line.split()
                if name in FIELDS:
                    row[FIELDS[name]] = round(int(rest[0]) / 1024, 1)
        self.rows.append(row)
        self._before = time.perf_counter()


def run_smelt(
    stages: Stages, model: str, inputs: dict[str, Any], threads: int
) -> Callable[[], Any]:
    """Load a saved engine."""
    import smelt

    stages.note("import")
    context = smelt.load(model).create_context(threads=threads)
    stages.note("load")
    return lambda: context.run(inputs)


def run_smelt_build(
    stages: Stages, model: str, inputs: dict[str, Any], threads: int
) -> Callable[[], Any]:
    """Build an engine, and run it in the same process."""
    import smelt

    stages.note("import")
    network = smelt.network_from_onnx(model)
    stages.note("read")
    shapes = {name: array.shape for name, array in inputs.items()}
    engine = smelt.build(network, device="cpu", shapes=shapes, tune="fast")
    del network
    stages.note("build")
    context = engine.create_context(threads=threads)
    stages.note("load")
    return lambda: context.run(inputs)


def run_onnxruntime(
    stages: Stages, model: str, inputs: dict[str, Any], threads: int
) -> Callable[[], Any]:
    """Load a model with every optimisation."""
    ort: Any = importlib.import_module("onnxruntime")

    stages.note("import")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    stages.note("load")
    return lambda: session.run(None, inputs)


def run_openvino(
    stages: Stages, model: str, inputs: dict[str, Any], threads: int
) -> Callable[[], Any]:
    """Compile a model for latency."""
    openvino: Any = importlib.import_module("openvino")
    stages.note("import")
    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({name: list(array.shape) for name, array in inputs.items()})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(network, "CPU", settings).create_infer_request()
    stages.note("load")
    return lambda: request.infer(inputs, share_inputs=True, share_outputs=True)


START = {
    "smelt": run_smelt,
    "smelt-build": run_smelt_build,
    "onnxruntime": run_onnxruntime,
    "openvino": run_openvino,
}


def main(engine: str, model: str, inputs_file: str, threads: str) -> None:
    """Go through the stages and print them."""
    stages = Stages()
    stages.note("python")
    import numpy as np

    with np.load(inputs_file) as arrays:
        inputs = dict(arrays)
    stages.note("numpy")
    run = START[engine](stages, model, inputs, int(threads))
    run()
    stages.note("first run")
    for _ in range(RUNS):
        run()
    stages.note("runs")
    print(json.dumps(stages.rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
