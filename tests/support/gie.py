"""What the tests of the GIE façade share: a logger, a profiler, files, small networks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt import gie

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from smelt.ir import Array
    from smelt.logger import Severity
    from smelt.network import Tensor

MNIST = Path(__file__).resolve().parents[2] / "examples" / "01_mnist"


@dataclass
class RecordingLogger:
    """Keeps what it is told; with ``quiet`` it drops information, as the guide's logger does."""

    quiet: bool = False
    messages: list[tuple[Severity, str]] = field(default_factory=list["tuple[Severity, str]"])

    def log(self, severity: Severity, message: str, /) -> None:
        if not (self.quiet and severity == gie.Severity.INFO):
            self.messages.append((severity, message))

    def texts(self, severity: Severity | None = None) -> list[str]:
        return [text for kind, text in self.messages if severity in (None, kind)]


class AccumulatingProfiler:
    """Adds up the times of each layer over executions, as the sample does."""

    def __init__(self) -> None:
        self.milliseconds: defaultdict[str, float] = defaultdict(float)
        self.calls: list[str] = []

    def report_layer_time(self, name: str, milliseconds: float, /) -> None:
        self.milliseconds[name] += milliseconds
        self.calls.append(name)

    def means(self, iterations: int) -> dict[str, float]:
        return {name: total / iterations for name, total in self.milliseconds.items()}


def numbers(*shape: int, seed: int = 0) -> Array:
    """Reproducible float32 numbers of magnitude one."""
    source = np.random.default_rng([seed, *shape])
    return source.standard_normal(shape).astype(np.float32)


def parse_mnist(
    network: gie.InferNetwork, dtype: gie.DataType = gie.DataType.FLOAT
) -> gie.BlobNameToTensor:
    """Fill a network from the example's own trained files."""
    parser = gie.create_caffe_parser()
    return parser.parse(MNIST / "mnist.prototxt", MNIST / "mnist.caffemodel", network, dtype)


def found(blobs: gie.BlobNameToTensor, name: str) -> Tensor:
    """The tensor of a blob that is there."""
    tensor = blobs.find(name)
    assert tensor is not None
    return tensor


def output_of(layer: gie.InferLayer, index: int = 0) -> Tensor:
    """An output of a layer that is there."""
    tensor = layer.get_output(index)
    assert tensor is not None
    return tensor


def small_network(
    *, relu: bool = True, kind: gie.DataType = gie.DataType.FLOAT, channels: int = 4
) -> gie.InferNetwork:
    """Conv 3x3 (8 filters, padded) called conv, an activation called relu; result called out."""
    network = gie.InferNetwork("small")
    x = network.add_input("data", kind, (channels, 10, 9))
    conv = network.add_convolution(x, 8, (3, 3), numbers(8, channels, 3, 3) / 6, numbers(8))
    conv.set_padding((1, 1))
    conv.set_name("conv")
    last = output_of(conv)
    if relu:
        act = network.add_activation(last, gie.ActivationType.RELU)
        act.set_name("relu")
        last = output_of(act)
    last.name = "out"
    network.mark_output(last)
    return network


def build(
    network: gie.InferNetwork, logger: RecordingLogger | None = None, **options: Any
) -> gie.CudaEngine:
    """Build with options of the builder, each set by the documented setter."""
    builder = gie.create_infer_builder(logger or RecordingLogger())
    for name, value in options.items():
        getattr(builder, f"set_{name}")(value)
    engine = builder.build_cuda_engine(network)
    builder.destroy()
    return engine


def execute(engine: gie.CudaEngine, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """One synchronous execution on buffers by binding index; outputs by name."""
    batch = next(iter(inputs.values())).shape[0]
    buffers = buffers_for(engine, batch, inputs)
    context = engine.create_execution_context()
    assert context.execute(batch, buffers) is True
    context.destroy()
    return {
        str(engine.get_binding_name(i)): buffers[i]
        for i in range(engine.nb_bindings)
        if not engine.binding_is_input(i)
    }


def buffers_for(engine: gie.CudaEngine, batch: int, inputs: Mapping[str, Array]) -> list[Array]:
    """Contiguous float32 NCHW buffers in the order of the bindings; zero where nothing is given."""
    buffers: list[Array] = []
    for index in range(engine.nb_bindings):
        shape = (batch, *engine.get_binding_dimensions(index))
        given = inputs.get(str(engine.get_binding_name(index)))
        made = np.zeros(shape, np.float32)
        if given is not None:
            made[:] = given.reshape(shape)
        buffers.append(made.reshape(batch, -1) if _is_flat(engine, index) else made)
    return buffers


def _is_flat(engine: gie.CudaEngine, index: int) -> bool:
    return len(engine.engine.bindings[index].shape) == 2


def layer_names(engine: gie.CudaEngine) -> list[str]:
    """The layers of the optimised engine."""
    return [layer.name for layer in engine.engine.layers]


def report(engine: gie.CudaEngine) -> dict[str, Any]:
    """The build report of the engine's only plan."""
    (plan,) = engine.optimisations()
    return plan


def candidates_times(engine: gie.CudaEngine) -> Mapping[str, Sequence[tuple[str, float]]]:
    """For each layer, the candidates and their seconds."""
    times: Mapping[str, Sequence[tuple[str, float]]] = report(engine)["candidates"]
    return times
