"""Engines on a GPU, each in a process of its own that stays alive and takes turns when told to.

Everything is timed by events of the driver around one inference, while the host runs far enough
ahead that the GPU never waits for it; XLA, which offers no place for events, by the clock around
many inferences. To add one: a class like those below, and its name in `ENGINES`.
"""

from __future__ import annotations

import importlib
import logging
import lzma
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

from benchmarks.support import engines
from benchmarks.support.engines import our_engine, saved_engine
from benchmarks.support.onnx_steps import read_network

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from benchmarks.support.engines import Job

    Array = NDArray[Any]

_FLUSH_BYTES: Final = 256 << 20
"""More than the L2 of any GPU: writing so much leaves nothing else in it."""
_AHEAD: Final = 64
"""Flushes queued before a batch of inferences: several milliseconds for the host to run ahead."""
_BATCH: Final = 50
"""Inferences that are queued before the host waits."""
_CLOCKED: Final = 10
"""Inferences between two readings of the clock."""


class Engine(Protocol):
    """One engine, ready to run one model on one GPU."""

    version: str
    options: dict[str, object]

    def times(self, seconds: float, *, cold: bool) -> list[float]:
        """Run for a while; return the milliseconds of each inference, with or without L2."""
        ...

    def call_times(self, count: int) -> list[float]:
        """The milliseconds by the host's clock from the call until the results are there."""
        ...

    def outputs(self) -> list[Array]:
        """Compute one inference and return its outputs in the model's order."""
        ...


class Recorder:
    """Times what is queued on a stream."""

    def __init__(self, foreign: object = None) -> None:
        """Use a stream of another library, or a new one."""
        self._cuda = cast("Any", importlib.import_module("smelt.devices.cuda"))
        self.device = self._cuda.cuda_device(0)
        self.stream = self._cuda.CudaStream(self.device, foreign)
        self._flush = self._cuda.CudaMemory(self.device).allocate(_FLUSH_BYTES, "flush")
        self._events = [
            (self._cuda.CudaEvent(self.device), self._cuda.CudaEvent(self.device))
            for _ in range(_BATCH)
        ]

    def times(self, queue: Callable[[], None], seconds: float, *, cold: bool) -> list[float]:
        """The milliseconds of each call of ``queue`` on the GPU."""
        found: list[float] = []
        end = time.monotonic() + seconds
        while not found or time.monotonic() < end:
            for _ in range(_AHEAD):
                self.flush()
            queue()
            for before, after in self._events:
                if cold:
                    self.flush()
                before.record(self.stream)
                queue()
                after.record(self.stream)
            self.stream.synchronize()
            found += [before.elapsed(after) for before, after in self._events]
        return found

    def call_times(self, queue: Callable[[], None], count: int) -> list[float]:
        """The milliseconds of calls that wait for their end."""

        def call() -> None:
            queue()
            self.stream.synchronize()

        return _clocked(call, count)

    def flush(self) -> None:
        """Queue writes that leave nothing in L2."""
        self._cuda.fill_memory(self.device, self._flush.address, _FLUSH_BYTES, self.stream)


def _clocked(call: Callable[[], None], count: int) -> list[float]:
    times: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


class Bound:
    """An engine of this project: arrays bound once, enqueued on a stream of our own."""

    def __init__(self, engine: Any, context: Any, inputs: Mapping[str, Array]) -> None:
        """Bring the inputs to the GPU and run once.

        Args:
            engine: what runs.
            context: one of the engine's.
            inputs: arrays by name.
        """
        smelt = cast("Any", importlib.import_module("smelt"))
        cuda = cast("Any", importlib.import_module("smelt.devices.cuda"))
        self._context = context
        self._stream: Any = smelt.Stream("cuda")
        self._recorder = Recorder(self._stream)
        memory = cuda.CudaMemory(self._recorder.device)
        self._arrays: list[Array] = [
            np.ascontiguousarray(inputs[binding.name])
            if binding.name in inputs
            else np.empty(binding.shape, binding.dtype.numpy)
            for binding in (*engine.inputs, *engine.outputs)
        ]
        self._outputs = len(engine.outputs)
        self._places = [memory.allocate(array.nbytes, "binding") for array in self._arrays]
        self._addresses = [0] * len(self._places)
        for binding, place in zip((*engine.inputs, *engine.outputs), self._places, strict=True):
            self._addresses[engine.binding_index(binding.name)] = place.address
        for array, place in zip(self._arrays, self._places, strict=True):
            self._copy(place.address, int(array.ctypes.data), array.nbytes)
        self._enqueue()
        self._recorder.stream.synchronize()

    def _copy(self, target: int, source: int, size_bytes: int) -> None:
        cuda = cast("Any", importlib.import_module("smelt.devices.cuda"))
        cuda.copy_memory(self._recorder.device, target, source, size_bytes, self._recorder.stream)

    def _enqueue(self) -> None:
        self._context.enqueue(1, self._addresses, self._stream)

    def times(self, seconds: float, *, cold: bool) -> list[float]:
        """See `Engine`."""
        return self._recorder.times(self._enqueue, seconds, cold=cold)

    def call_times(self, count: int) -> list[float]:
        """See `Engine`."""
        return self._recorder.call_times(self._enqueue, count)

    def heard_times(self, count: int) -> list[float]:
        """The same of calls whose caller hears of indices out of range, too."""

        def call() -> None:
            self._enqueue()
            self._stream.synchronize()

        return _clocked(call, count)

    def outputs(self) -> list[Array]:
        """See `Engine`."""
        self._enqueue()
        for array, place in zip(self._arrays, self._places, strict=True):
            self._copy(int(array.ctypes.data), place.address, array.nbytes)
        self._recorder.stream.synchronize()
        return self._arrays[-self._outputs :]


class Smelt(Bound):
    """This project."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Take the saved engine for exactly these shapes, or build and save it."""
        smelt = cast("Any", importlib.import_module("smelt"))
        begin = time.monotonic()
        engine = our_engine(job, inputs, "cuda")
        ready = time.monotonic() - begin
        super().__init__(engine, engine.create_context(), inputs)
        self.version = str(smelt.__version__)
        self.options: dict[str, object] = {"tune": job.tune, "ready_s": round(ready, 2)}


class Torch:
    """PyTorch eager, channels last, inputs in the job's type, captured into a CUDA graph."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Write the model in torch and capture it."""
        networks: Any = importlib.import_module("benchmarks.support.torch_network")
        torch = self._torch = networks.torch
        torch.backends.cudnn.benchmark = True
        allows = job.dtype == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allows
        begin = time.monotonic()
        network = read_network(Path(job.file))
        dtype = "float32" if allows else job.dtype
        module = self.prepare(networks.torch_module(network, dtype))
        self._inputs = [
            networks.torch_tensor(torch.from_numpy(inputs[name]), dtype) for name in network.inputs
        ]
        self._stream = torch.cuda.Stream()
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for _ in range(5):
                module(*self._inputs)
            self._stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._results = module(*self._inputs)
        self._recorder = Recorder(self._stream)
        self.version = str(torch.__version__)
        self.options: dict[str, object] = {
            "channels_last": True,
            "cuda_graph": True,
            "ready_s": round(time.monotonic() - begin, 2),
        }

    def prepare(self, module: Any) -> Any:
        """What is captured of the module."""
        return module

    def _replay(self) -> None:
        with self._torch.cuda.stream(self._stream):
            self._graph.replay()

    def times(self, seconds: float, *, cold: bool) -> list[float]:
        """See `Engine`."""
        return self._recorder.times(self._replay, seconds, cold=cold)

    def call_times(self, count: int) -> list[float]:
        """See `Engine`."""
        return self._recorder.call_times(self._replay, count)

    def outputs(self) -> list[Array]:
        """See `Engine`."""
        self._replay()
        self._stream.synchronize()
        return [result.float().contiguous().cpu().numpy() for result in self._results]


class TorchCompiled(Torch):
    """The same through ``torch.compile(mode="max-autotune")``.

    What it found is kept beside our engines, for it takes minutes to find again.
    """

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Take what was found earlier, compile, and keep what was found."""
        file = saved_engine(job, inputs, "cuda", [Path(__file__).with_name("torch_network.py")])
        compiler: Any = importlib.import_module("torch").compiler
        compiler.reset()
        if file is not None:
            file = file.with_suffix(".inductor.xz")
            if file.exists():
                compiler.load_cache_artifacts(lzma.decompress(file.read_bytes()))
        super().__init__(job, inputs)
        if file is not None and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            if (found := compiler.save_cache_artifacts()) is not None:
                file.write_bytes(lzma.compress(found[0], preset=1))
        self.options["mode"] = "max-autotune"

    def prepare(self, module: Any) -> Any:
        """Compile; the graph is captured by us, as for the others."""
        selection: Any = importlib.import_module("torch._inductor.select_algorithm")
        selection.PRINT_AUTOTUNE = False
        selection.config.max_autotune_report_choices_stats = False
        logging.getLogger("torch._inductor").setLevel(logging.CRITICAL)
        return self._torch.compile(module, mode="max-autotune-no-cudagraphs", dynamic=False)


class Xla:
    """JAX's jit: XLA with its own autotuning and its own graphs."""

    def __init__(self, job: Job, inputs: Mapping[str, Array]) -> None:
        """Write the model in JAX and compile it."""
        networks: Any = importlib.import_module("benchmarks.support.jax_network")
        begin = time.monotonic()
        jax = self._jax = networks.jax
        network = read_network(Path(job.file))
        precision = "default" if job.dtype == "tf32" else "highest"
        dtype = "float32" if job.dtype == "tf32" else job.dtype
        jax.config.update("jax_default_matmul_precision", precision)
        self._run, self._constants = networks.jax_function(network, dtype)
        self._inputs = [
            jax.numpy.asarray(inputs[n], dtype if inputs[n].dtype.kind == "f" else None)
            for n in network.inputs
        ]
        for _ in range(5):
            self._call()
        self.version = str(jax.__version__)
        self.options: dict[str, object] = {"ready_s": round(time.monotonic() - begin, 2)}

    def _call(self) -> Any:
        return self._jax.block_until_ready(self._run(self._constants, *self._inputs))

    def times(self, seconds: float, *, cold: bool) -> list[float]:
        """See `Engine`; nothing for a cold L2."""
        if cold:
            return []

        def some() -> None:
            results = [self._run(self._constants, *self._inputs) for _ in range(_CLOCKED)]
            self._jax.block_until_ready(results)

        found: list[float] = []
        end = time.monotonic() + seconds
        while not found or time.monotonic() < end:
            found += [milliseconds / _CLOCKED for milliseconds in _clocked(some, 3)]
        return found

    def call_times(self, count: int) -> list[float]:
        """See `Engine`."""
        return _clocked(self._call, count)

    def outputs(self) -> list[Array]:
        """See `Engine`."""
        return [np.asarray(result, np.float32) for result in self._call()]


ENGINES: Final[dict[str, Callable[[Job, Mapping[str, Array]], Engine]]] = {
    "smelt": Smelt,
    "torch": Torch,
    "torch.compile": TorchCompiled,
    "xla": Xla,
}


def measure_round(engine: Engine, seconds: float, warm_up: int) -> dict[str, list[float]]:
    """Return the milliseconds of a turn: of a warm and a cold L2, and of whole calls."""
    engine.call_times(warm_up)
    return {
        "warm": engine.times(seconds, cold=False),
        "cold": engine.times(seconds / 2, cold=True),
        "call": engine.call_times(20),
    }


def serve(name: str) -> None:
    """Be one engine's worker."""
    engines.serve(name, ENGINES, measure_round)
