"""Measure the latency of whole networks on the CPU: smelt beside other engines, taking turns.

Every engine has a process of its own that stays alive; short turns go round among them, so that a
change of the machine's clock or a busy neighbour hits all alike. All get the same random inputs,
and their outputs are compared before anything is timed. Best and median are over all calls of all
turns, without the first calls of each turn, which refill the caches.

A model is one of the benchmark topologies (built with seeded random weights), the folder of a model
in --model-dir or in the reference models (SMELT_SHARED, else ../shared), or the path of a file.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = ROOT / "build" / "benchmark-models"
TOPOLOGIES: Final = ("resnet50", "googlenet", "squeezenet", "mobilenetv2", "minilm")
DTYPES: Final = ("float32", "float16", "bfloat16")
TOLERANCE: Final = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
"""Largest difference between two engines that is not called an error, of the largest output."""
LARGEST_TOKEN: Final = 1000


@dataclass(frozen=True, slots=True)
class Job:
    """What every engine is given."""

    model: str
    file: str
    inputs: str
    """A file of arrays, in the order of ``names``."""
    names: tuple[str, ...]
    dtype: str
    threads: int
    tune: str


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


# ---- in the workers: one engine each


class Smelt:
    """This project."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Build an engine for exactly these shapes."""
        smelt = cast("Any", importlib.import_module("smelt"))
        network = smelt.network_from_onnx(job.file)
        shapes = {name: array.shape for name, array in inputs.items()}
        engine = smelt.build(
            network, device="cpu", precision=job.dtype, shapes=shapes, tune=job.tune
        )
        self._context = engine.create_context(threads=job.threads)
        self._names = [binding.name for binding in engine.outputs]
        self._inputs = dict(inputs)
        self.version = importlib.metadata.version("smelt")
        self.options: dict[str, object] = {"threads": job.threads, "tune": job.tune}

    def run(self) -> None:
        """Run once."""
        self._context.run(self._inputs)

    def outputs(self) -> list[Array]:
        """Run once and return the outputs."""
        results = self._context.run(self._inputs)
        return [np.array(results[name]) for name in self._names]


class OnnxRuntime:
    """ONNX Runtime's CPU provider, spinning as it does by default."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Load the model with every optimisation."""
        if job.dtype != "float32":
            raise SystemExit(f"onnxruntime has no {job.dtype} mode on the CPU")
        ort = cast("Any", importlib.import_module("onnxruntime"))
        options = ort.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        self._session = ort.InferenceSession(job.file, options, ["CPUExecutionProvider"])
        self._inputs = dict(inputs)
        self.version = str(ort.__version__)
        self.options: dict[str, object] = {
            "intra_op_num_threads": job.threads,
            "graph_optimization_level": "ORT_ENABLE_ALL",
        }

    def run(self) -> None:
        """Run once."""
        self._session.run(None, self._inputs)

    def outputs(self) -> list[Array]:
        """Run once and return the outputs."""
        return list(self._session.run(None, self._inputs))


class OpenVino:
    """OpenVINO's CPU plugin, set for latency."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Compile the model for exactly these shapes."""
        openvino = cast("Any", importlib.import_module("openvino"))
        precision = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[job.dtype]
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
        self.version = str(openvino.__version__).split("-", maxsplit=1)[0]
        self.options = settings

    def run(self) -> None:
        """Run once, without copies of inputs and outputs."""
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


def serve(name: str) -> None:
    """Be one engine's worker: a job on the first line of the input, then one command a line."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get among the replies
    job = Job(**json.loads(sys.stdin.readline()))
    with np.load(job.inputs) as arrays:
        inputs = {name: arrays[key] for name, key in zip(job.names, arrays.files, strict=True)}
    engine = ENGINES[name](job, inputs)
    print(json.dumps([engine.version, engine.options]), file=replies, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "save" in command:
            np.savez(command["save"], *engine.outputs())
            reply: list[float] = []
        else:
            reply = take_turn(engine, command["seconds"], command["warm_up"])
        print(json.dumps(reply), file=replies, flush=True)


def take_turn(engine: Engine, seconds: float, warm_up: int) -> list[float]:
    """Run for a while; return the milliseconds of every call after the first ones."""
    for _ in range(warm_up):
        engine.run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        engine.run()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


# ---- in the parent


class Worker:
    """The process of one engine."""

    def __init__(self, engine: str, job: Job) -> None:
        """Start it; it loads or builds its engine while others do."""
        self.engine = engine
        command = [sys.executable, str(Path(__file__)), "--serve", engine]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._send(asdict(job))
        self.version, self.options = cast("tuple[str, dict[str, object]]", self._receive())

    def save(self, file: Path) -> list[Array]:
        """Return the outputs of one inference."""
        self._send({"save": str(file)})
        self._receive()
        with np.load(file) as arrays:
            return [arrays[key] for key in arrays.files]

    def take_turn(self, seconds: float, warm_up: int) -> list[float]:
        """Return the milliseconds of each call of a turn."""
        self._send({"seconds": seconds, "warm_up": warm_up})
        return cast("list[float]", self._receive())

    def close(self) -> None:
        """End the process."""
        with self._process:  # closes the pipes, which ends it, and waits
            self._pipe(self._process.stdin).close()

    def _send(self, message: object) -> None:
        pipe = self._pipe(self._process.stdin)
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    def _receive(self) -> object:
        line = self._pipe(self._process.stdout).readline()
        if not line:
            code = self._process.wait()
            raise SystemExit(f"{self.engine} ended with status {code}; its message stands above")
        return json.loads(line)

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        if pipe is None:
            raise SystemExit(f"{self.engine} has no pipe")
        return pipe


def find_models(name: str, folders: Sequence[Path], batch: int) -> Iterator[tuple[str, Path]]:
    """Yield name and file of every ONNX model that ``name`` stands for."""
    if name.endswith(".onnx"):
        yield Path(name).stem, Path(name)
        return
    for folder in folders:
        if (file := folder / f"{name}.onnx").is_file():
            yield name, file
            return
        if files := sorted((folder / name).glob("*.onnx")):
            for file in files:
                yield (name if len(files) == 1 else f"{name}/{file.stem}"), file
            return
    if name not in TOPOLOGIES:
        raise SystemExit(
            f"no model {name!r} in {', '.join(map(str, folders))}; "
            f"topologies that can be built: {', '.join(TOPOLOGIES)}"
        )
    yield name, build_topology(name, folders[-1] / "build_topologies.py", batch)


def build_topology(name: str, script: Path, batch: int) -> Path:
    """Return the file of a topology, built by the reference models' script when it is not there."""
    folder = CACHE / f"batch{batch}"
    file = folder / f"{name}.onnx"
    if not file.exists():
        if not script.exists():
            raise SystemExit(f"{script} is not there: set SMELT_SHARED, or give --model-dir")
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, str(script), scratch, name, "--batch", str(batch)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            folder.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / f"{name}.onnx").rename(file)
    return file


def random_inputs(file: Path, batch: int, shapes: Mapping[str, list[int]]) -> dict[str, Array]:
    """Return an array for each input: normal numbers, or small token ids."""
    onnx = cast("Any", importlib.import_module("onnx"))
    graph = onnx.load(str(file), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    random = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for value in graph.input:
        if value.name in weights:
            continue
        declared = enumerate(value.type.tensor_type.shape.dim)
        shape = shapes.get(value.name) or [
            dim.dim_value or (batch if axis == 0 else 0) for axis, dim in declared
        ]
        if 0 in shape:
            raise SystemExit(
                f"{file.name}: {value.name} has free dims; give --shape {value.name}=1,2,3"
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        is_float = np.issubdtype(dtype, np.floating)
        drawn = (
            random.standard_normal(shape) if is_float else random.integers(0, LARGEST_TOKEN, shape)
        )
        inputs[value.name] = np.asarray(drawn).astype(dtype)
    return inputs


def largest_error(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """Return the largest difference of any output, of that output's largest magnitude."""
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return float("inf")
    errors = [0.0]
    for x, y in zip(ours, theirs, strict=True):
        if x.size:
            difference = np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
            errors.append(float(difference / (np.abs(y.astype(np.float64)).max() or 1.0)))
    return max(errors)


def measure(job: Job, names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each engine."""
    with ExitStack() as stack:
        workers: list[Worker] = []
        for name in names:
            workers.append(Worker(name, job))
            stack.callback(workers[-1].close)
        compare(workers, job, Path(job.inputs).parent)
        times: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(options.rounds + 1):
            for worker in workers:
                taken = worker.take_turn(options.seconds, options.warm_up)
                if turn:  # the first round warms all of them up
                    times[worker.engine] += taken
    return [
        {
            "model": job.model,
            "dtype": job.dtype,
            "threads": job.threads,
            "batch": options.batch,
            "engine": worker.engine,
            "version": worker.version,
            "options": worker.options,
            "best_ms": round(min(times[worker.engine]), 4),
            "median_ms": round(statistics.median(times[worker.engine]), 4),
        }
        for worker in workers
    ]


def compare(workers: Sequence[Worker], job: Job, folder: Path) -> None:
    """Print how far each engine's outputs are from those of the last, and stop when it is far."""
    *others, judge = [(worker, worker.save(folder / f"{worker.engine}.npz")) for worker in workers]
    for worker, outputs in others:
        error = largest_error(outputs, judge[1])
        print(f"{job.model}: {worker.engine} differs from {judge[0].engine} by {error:.1e}")
        if not error <= TOLERANCE[job.dtype]:
            raise SystemExit(f"{job.model}: {worker.engine} computes something else; not timed")


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a model's rows, and the ratio to the best of the others."""
    for row in rows:
        label = f"{row['model']} {row['dtype']} threads={row['threads']} batch={row['batch']}"
        print(f"{label}  {row['engine']:12} best {row['best_ms']:9.3f} ms", end="")
        print(f"   median {row['median_ms']:9.3f} ms")
    best = {row["engine"]: row["best_ms"] for row in rows}
    if (ours := best.pop("smelt", None)) and best:
        print(f"best peer's time / ours: {min(best.values()) / ours:.3f}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="resnet50", help="names, separated by commas")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--peers", default="onnxruntime,openvino", help="engines to compare with")
    parser.add_argument("--no-smelt", action="store_true", help="measure the peers alone")
    parser.add_argument("--json", type=Path, help="where the rows are written")
    parser.add_argument("--model-dir", type=Path, help="a folder of ONNX files to look in first")
    parser.add_argument("--shape", action="append", default=[], help="INPUT=1,3,224,224")
    parser.add_argument("--tune", default="fast", help="smelt's tuning effort")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each engine")
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a turn")
    parser.add_argument("--warm-up", type=int, default=2, help="calls of a turn that do not count")
    parser.add_argument("--serve", choices=tuple(ENGINES), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model and write the rows."""
    options = parse(arguments)
    if options.serve:
        serve(options.serve)
        return 0
    names = [] if options.no_smelt else ["smelt"]
    names += [name for name in options.peers.split(",") if name]
    if unknown := [name for name in names if name not in ENGINES]:
        raise SystemExit(f"no engine {', '.join(unknown)}; there are: {', '.join(ENGINES)}")
    shapes = {
        name: [int(size) for size in sizes.split(",")]
        for name, sizes in (text.split("=") for text in options.shape)
    }
    shared = Path(os.environ.get("SMELT_SHARED") or ROOT.parent / "shared") / "models"
    folders = [folder for folder in (options.model_dir, shared) if folder is not None]
    rows: list[dict[str, Any]] = []
    for name in options.models.split(","):
        for model, file in find_models(name, folders, options.batch):
            with tempfile.TemporaryDirectory() as scratch:
                file_of_inputs = Path(scratch) / "inputs.npz"
                inputs = random_inputs(file, options.batch, shapes)
                np.savez(file_of_inputs, *inputs.values())
                job = Job(
                    model=model,
                    file=str(file),
                    inputs=str(file_of_inputs),
                    names=tuple(inputs),
                    dtype=options.dtype,
                    threads=options.threads,
                    tune=options.tune,
                )
                rows += (measured := measure(job, names, options))
            print_rows(measured)
            if options.json:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
