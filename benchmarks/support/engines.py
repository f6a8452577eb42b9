"""Engines, each in a process of its own that stays alive and takes turns when told to.

To add one: a class like those below, and its name in `ENGINES`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

from benchmarks.support.models import ROOT, load_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

SAVED: Final = ROOT / "build" / "benchmark-engines"
"""Where our engines are kept between measurements."""
DTYPES: Final = ("float32", "float16", "bfloat16", "int8")
MAX_CALLS: Final = 4000
"""Calls of one turn: a tiny network's times shall not fill the memory."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every engine is given."""

    model: str
    file: str
    inputs: str
    """A file of arrays by name."""
    dtype: str
    threads: int
    batch: int = 1
    tune: str = "fast"
    bound: bool = False
    """Whether inputs and outputs are bound once, outside of what is timed."""
    saved: str = ""
    """A folder where our engine may lie from an earlier measurement; empty to build anew."""

    @property
    def precision(self) -> str:
        """What is computed in where the model does not say: a quantised model says it itself."""
        return "float32" if self.dtype == "int8" else self.dtype


class Engine(Protocol):
    """One engine, ready to run one model."""

    version: str
    options: dict[str, object]

    def run(self) -> None:
        """Compute one inference, outputs included, on the job's inputs."""
        ...

    def outputs(self) -> list[Array]:
        """Compute one inference and return its outputs in the model's order."""
        ...


class Smelt:
    """This project."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Take the saved engine for exactly these shapes, or build and save it."""
        engine = our_engine(job, inputs, "cpu")
        self._context: Any = engine.create_context(threads=job.threads)
        self._names = [binding.name for binding in engine.outputs]
        self._inputs = dict(inputs)
        self._addresses: list[int] = []
        if job.bound:
            results = self._context.run(self._inputs)
            self._kept: list[Array] = [*self._inputs.values(), *map(results.get, self._names)]
            self._addresses = [int(array.ctypes.data) for array in self._kept]
        self.version = str(cast("Any", importlib.import_module("smelt")).__version__)
        self.options: dict[str, object] = {
            "threads": job.threads,
            "tune": job.tune,
            "bound": job.bound,
        }

    def run(self) -> None:
        """Run once."""
        if self._addresses:
            self._context.execute(1, self._addresses)
        else:
            self._context.run(self._inputs)

    def outputs(self) -> list[Array]:
        """Run once and return the outputs."""
        results = self._context.run(self._inputs)
        return [np.array(results[name]) for name in self._names]


class OnnxRuntime:
    """ONNX Runtime's CPU provider, spinning as it does by default."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Load the model with every optimisation."""
        if job.precision != "float32":
            raise SystemExit(f"onnxruntime has no {job.dtype} mode on the CPU")
        ort = cast("Any", importlib.import_module("onnxruntime"))
        options = ort.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        self._session = ort.InferenceSession(job.file, options, ["CPUExecutionProvider"])
        self._inputs = dict(inputs)
        self._binding: Any = None
        if job.bound:
            self._binding = self._session.io_binding()
            for name, array in inputs.items():
                value = ort.OrtValue.ortvalue_from_numpy(array)
                self._binding.bind_ortvalue_input(name, value)
            outputs = self._session.run(None, self._inputs)
            for port, array in zip(self._session.get_outputs(), outputs, strict=True):
                value = ort.OrtValue.ortvalue_from_numpy(array)
                self._binding.bind_ortvalue_output(port.name, value)
        self.version = str(ort.__version__)
        self.options: dict[str, object] = {
            "intra_op_num_threads": job.threads,
            "graph_optimization_level": "ORT_ENABLE_ALL",
            "bound": job.bound,
        }

    def run(self) -> None:
        """Run once."""
        if self._binding is not None:
            self._session.run_with_iobinding(self._binding)
        else:
            self._session.run(None, self._inputs)

    def outputs(self) -> list[Array]:
        """Run once and return the outputs."""
        return list(self._session.run(None, self._inputs))


class OpenVino:
    """OpenVINO's CPU plugin, set for latency."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Compile the model for exactly these shapes."""
        openvino = cast("Any", importlib.import_module("openvino"))
        precision = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[job.precision]
        # Without the precision a processor with bfloat16 would not compute in float32 at all.
        settings: dict[str, object] = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": job.threads,
            "INFERENCE_PRECISION_HINT": precision,
        }
        core = openvino.Core()
        model = core.read_model(job.file)
        model.reshape({name: list(array.shape) for name, array in inputs.items()})
        compiled = core.compile_model(model, "CPU", settings)
        self._request = compiled.create_infer_request()
        self._ports = list(compiled.outputs)
        self._inputs = dict(inputs)
        self._bound = job.bound
        if job.bound:
            for name, array in inputs.items():
                self._request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        self.version = str(openvino.__version__).split("-", maxsplit=1)[0]
        self.options: dict[str, object] = {**settings, "bound": job.bound}

    def run(self) -> None:
        """Run once, without copies of inputs and outputs."""
        if self._bound:
            self._request.infer(share_outputs=True)
        else:
            self._request.infer(self._inputs, share_inputs=True, share_outputs=True)

    def outputs(self) -> list[Array]:
        """Run once and return the outputs."""
        results = self._request.infer(self._inputs)
        return [np.array(results[port]) for port in self._ports]


class Torch:
    """PyTorch eager, channels last, the model translated by onnx2torch."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Translate the model."""
        if job.dtype != "float32":
            raise SystemExit("the torch peer is measured in float32 alone")
        torch = cast("Any", importlib.import_module("torch"))
        translate = cast("Any", importlib.import_module("onnx2torch")).convert
        torch.set_num_threads(job.threads)
        layout = torch.channels_last
        self._torch = torch
        self._module = translate(job.file).eval().to(memory_format=layout)
        tensors: list[Any] = [torch.from_numpy(array) for array in inputs.values()]
        self._inputs = [x.to(memory_format=layout) if x.ndim == 4 else x for x in tensors]
        self.version = str(torch.__version__)
        self.options: dict[str, object] = {"num_threads": job.threads, "channels_last": True}

    def run(self) -> None:
        """Run once."""
        with self._torch.inference_mode():
            self._module(*self._inputs)

    def outputs(self) -> list[Array]:
        """Run once and return the outputs."""
        with self._torch.inference_mode():
            result = self._module(*self._inputs)
        results = cast("list[Any]", result if isinstance(result, tuple | list) else [result])
        return [array.contiguous().numpy() for array in results]


ENGINES: Final[dict[str, Callable[[Job, Mapping[str, Array]], Engine]]] = {
    "smelt": Smelt,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "torch": Torch,
}


def known_engines(names: list[str]) -> list[str]:
    """Return the names, or refuse those that no engine has."""
    if unknown := [name for name in names if name not in ENGINES]:
        raise SystemExit(f"no engine {', '.join(unknown)}; there are: {', '.join(ENGINES)}")
    return names


def our_engine(job: Job, inputs: Mapping[str, Array], device: str) -> Any:
    """Return the saved engine for exactly these shapes, or build and save it."""
    smelt = cast("Any", importlib.import_module("smelt"))
    file = saved_engine(job, inputs, device)
    if file is not None and file.exists():
        return smelt.load(file)
    network = smelt.network_from_onnx(job.file)
    shapes = {name: array.shape for name, array in inputs.items()}
    engine = smelt.build(
        network, device=device, precision=job.precision, shapes=shapes, tune=job.tune
    )
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob(file.name.rpartition("-")[0] + "-*.engine"):
            old.unlink()
        engine.save(file)
    return engine


def saved_engine(
    job: Job, inputs: Mapping[str, Array], device: str, sources: Sequence[Path] | None = None
) -> Path | None:
    """Return where an engine for a job is kept: it is another for another model or device.

    Args:
        job: what it is for.
        inputs: they have its shapes.
        device: where it runs.
        sources: files that make it; None for all of smelt.
    """
    if not job.saved:
        return None
    digest = hashlib.sha256(Path(job.file).read_bytes())
    for file in sorted((ROOT / "src").rglob("*.py")) if sources is None else sources:
        digest.update(file.read_bytes())
    shapes = [(name, array.shape) for name, array in inputs.items()]
    digest.update(f"{shapes} {job.tune}".encode())
    name = f"{job.model}-{device}-{job.dtype}-{job.threads}".replace("/", "_")
    return Path(job.saved) / f"{name}-{job.batch}-{digest.hexdigest()[:20]}.engine"


# ---- in a worker


def serve(
    name: str,
    engines: Mapping[str, Callable[[Job, Mapping[str, Array]], Any]] | None = None,
    turn: Callable[[Any, float, int], object] | None = None,
) -> None:
    """Be one engine's worker: one command on each line of the input, one reply to each.

    Args:
        name: which engine.
        engines: all that there are; None for those on the CPU.
        turn: runs one for some seconds after some calls that do not count, and tells the times.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get among the replies
    made: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        reply: object = None
        if "job" in command:
            made = None  # the old one goes before the new one comes
            job = Job(**command["job"])
            made = (engines or ENGINES)[name](job, load_inputs(Path(job.inputs)))
            reply = [made.version, made.options]
        elif made is not None and "save" in command:
            np.savez(command["save"], *made.outputs())
        elif made is not None:
            reply = (turn or take_turn)(made, command["seconds"], command["warm_up"])
        print(json.dumps(reply), file=replies, flush=True)


def take_turn(engine: Engine, seconds: float, warm_up: int) -> list[float]:
    """Run for a while; return the milliseconds of every call after the first ones."""
    for _ in range(warm_up):
        engine.run()
    times: list[float] = []
    clock = time.perf_counter
    end = clock() + seconds
    while not times or (clock() < end and len(times) < MAX_CALLS):
        begin = clock()
        engine.run()
        times.append((clock() - begin) * 1e3)
    return times


# ---- in the parent


class EngineFailedError(Exception):
    """An engine's process ended or took too long."""


class Worker:
    """The process of one engine."""

    def __init__(self, engine: str, *, threads: int, limit: float, room: str = "engines") -> None:
        """Start it.

        Args:
            engine: its name.
            threads: how many it will use: ours tunes for so many.
            limit: seconds after which a reply is not waited for any more.
            room: the module beside this one whose ``serve`` knows the engine.
        """
        self.engine = engine
        self._limit = limit
        self.version = ""
        self.options: dict[str, object] = {}
        program = f"import sys; from benchmarks.support.{room} import serve; serve(sys.argv[1])"
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "SMELT_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def number(self) -> int:
        """The process's number."""
        return self._process.pid

    def load(self, job: Job) -> None:
        """Let the engine make itself ready for a job."""
        reply = cast("tuple[str, dict[str, object]]", self._ask({"job": asdict(job)}))
        self.version, self.options = reply

    def save(self, file: Path) -> list[Array]:
        """Return the outputs of one inference."""
        self._ask({"save": str(file)})
        with np.load(file) as arrays:
            return [arrays[key] for key in arrays.files]

    def take_turn(self, seconds: float, warm_up: int) -> list[float]:
        """Return the milliseconds of each call of a turn."""
        return cast("list[float]", self.turn(seconds, warm_up))

    def turn(self, seconds: float, warm_up: int) -> object:
        """Return what a turn told."""
        return self._ask({"seconds": seconds, "warm_up": warm_up})

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._pipe(self._process.stdin).close()  # which ends it
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
        with self._process:
            pass

    def _ask(self, message: object) -> object:
        pipe, answers = self._pipe(self._process.stdin), self._pipe(self._process.stdout)
        try:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()
        except OSError:
            raise EngineFailedError(f"{self.engine} has ended; its message stands above") from None
        ready, _, _ = select.select([answers], [], [], self._limit)
        if not ready:
            self._process.kill()
            raise EngineFailedError(f"{self.engine} took more than {self._limit:.0f} s")
        line = answers.readline()
        if not line:
            code = self._process.wait()
            message = f"{self.engine} ended with status {code}; its message stands above"
            raise EngineFailedError(message)
        return json.loads(line)

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        if pipe is None:
            raise EngineFailedError(f"{self.engine} has no pipe")
        return pipe
