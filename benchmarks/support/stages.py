"""One engine from a bare interpreter to its answers, with time and memory after each stage.

usage: python stages.py ENGINE MODEL INPUTS.npz SETTINGS, in a process of its own. ENGINE is smelt
or smelt-bare (MODEL is then a saved engine), smelt-build, onnxruntime or openvino (MODEL is then
ONNX). SETTINGS are the fields of `Settings`, a list in JSON. Nothing is imported but what the
engine needs; one line of JSON is printed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 5
"""Runs after the first: some engines take memory late."""
FIELDS = {"VmRSS:": "rss_mib", "RssAnon:": "own_mib", "VmHWM:": "peak_mib"}
"""Resident memory, the part of it that no other process can share, and the most there ever was."""
COMPILERS = ("triton", "torch", "llvmlite", "onnx")
"""What builds engines, and nothing that runs one may need."""


class Settings(NamedTuple):
    """How an engine is built and run."""

    threads: int
    """Of a run on the CPU."""
    device: str = "cpu"
    precision: str = "float32"
    saved: str = ""
    """Where what was built is saved; it is then not run. Empty for nowhere."""


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


def forbid_compilers() -> None:
    """Make this process one on a machine without compilers: no package of them, no nvcc."""
    none: dict[str, Any] = dict.fromkeys(COMPILERS)
    sys.modules.update(none)  # which is how Python marks what cannot be imported
    for name in ("CUDA_HOME", "CUDA_PATH"):
        os.environ.pop(name, None)
    os.environ["PATH"] = ""


def run_smelt(
    stages: Stages, model: str, inputs: dict[str, Any], settings: Settings
) -> Callable[[], Any]:
    """Load a saved engine."""
    import smelt

    stages.note("import")
    context = smelt.load(model).create_context(threads=settings.threads)
    stages.note("load")
    return lambda: context.run(inputs)


def run_smelt_bare(
    stages: Stages, model: str, inputs: dict[str, Any], settings: Settings
) -> Callable[[], Any]:
    """Load a saved engine where nothing can compile, a GPU opened before."""
    forbid_compilers()
    import smelt

    stages.note("import")
    if settings.device.startswith("cuda"):
        gpu: Any = importlib.import_module("smelt.devices.cuda")
        gpu.cuda_device(int(settings.device.partition(":")[2] or 0))
    stages.note("device")
    engine = smelt.Engine.load(model, device=settings.device)
    stages.note("load")
    context = engine.create_context(threads=settings.threads)
    stages.note("context")
    return lambda: context.run(inputs)


def run_smelt_build(
    stages: Stages, model: str, inputs: dict[str, Any], settings: Settings
) -> Callable[[], Any] | None:
    """Build an engine, and save it or run it in the same process."""
    import smelt

    stages.note("import")
    network = smelt.network_from_onnx(model)
    stages.note("read")
    shapes = {name: array.shape for name, array in inputs.items()}
    device, precision = settings.device, settings.precision
    engine = smelt.build(network, device=device, precision=precision, shapes=shapes, tune="fast")
    del network
    stages.note("build")
    if settings.saved:
        engine.save(settings.saved)
        return None
    context = engine.create_context(threads=settings.threads)
    stages.note("load")
    return lambda: context.run(inputs)


def run_onnxruntime(
    stages: Stages, model: str, inputs: dict[str, Any], settings: Settings
) -> Callable[[], Any]:
    """Load a model with every optimisation."""
    ort: Any = importlib.import_module("onnxruntime")

    stages.note("import")
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    stages.note("load")
    return lambda: session.run(None, inputs)


def run_openvino(
    stages: Stages, model: str, inputs: dict[str, Any], settings: Settings
) -> Callable[[], Any]:
    """Compile a model for latency."""
    openvino: Any = importlib.import_module("openvino")
    stages.note("import")
    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({name: list(array.shape) for name, array in inputs.items()})
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": settings.threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = core.compile_model(network, "CPU", properties).create_infer_request()
    stages.note("load")
    return lambda: request.infer(inputs, share_inputs=True, share_outputs=True)


START = {
    "smelt": run_smelt,
    "smelt-bare": run_smelt_bare,
    "smelt-build": run_smelt_build,
    "onnxruntime": run_onnxruntime,
    "openvino": run_openvino,
}


def main(engine: str, model: str, inputs_file: str, settings: str) -> None:
    """Go through the stages and print them."""
    stages = Stages()
    stages.note("python")
    import numpy as np

    with np.load(inputs_file) as arrays:
        inputs = dict(arrays)
    stages.note("numpy")
    run = START[engine](stages, model, inputs, Settings(*json.loads(settings)))
    if run is not None:
        run()
        stages.note("first run")
        for _ in range(RUNS):
            run()
        stages.note("runs")
    print(json.dumps(stages.rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
