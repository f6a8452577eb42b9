"""InferBuilder of GIE: builds engines from networks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smelt.builder import EFFORTS, TuningEffort, build
from smelt.devices import DeviceName
from smelt.errors import BuildError, ContextError
from smelt.gie._network import InferNetwork, check_network
from smelt.gie._runtime import CudaEngine
from smelt.gie._shared_logger import LoggingFactory
from smelt.ir import Graph, Value, clone
from smelt.logger import Severity
from smelt.ops import Cast
from smelt.types import DType, TensorType, counted, require_bool, require_int

if TYPE_CHECKING:
    from smelt.logger import Logger

_DEFAULT_WORKSPACE_BYTES = 1 << 20
"""Default of `InferBuilder.max_workspace_size`, in bytes."""


class InferBuilder(LoggingFactory):
    """Builder of engines. Each option is an attribute and also has the documented setter."""

    def __init__(self, logger: Logger) -> None:
        super().__init__(logger)
        self.device = "cpu"
        """Device that engines are built for: "cpu", "cuda", or "cuda:1" for the GPU of index 1."""
        self.max_batch_size = 1
        self.max_workspace_size = _DEFAULT_WORKSPACE_BYTES
        """Maximum scratch memory of a step at run time, in bytes."""
        self.half2_mode = False
        self.debug_sync = False
        """Whether each layer is logged as soon as its candidates are timed."""
        self.min_find_iterations = EFFORTS["fast"].repeats
        """Number of means that are measured; the smallest is the candidate's time."""
        self.average_find_iterations = EFFORTS["fast"].runs_per_mean
        """Number of runs that each mean is taken over."""

    def set_max_batch_size(self, batch_size: int) -> None:
        """Set the largest batch, which is the one that is tuned for; smaller ones run too."""
        self.max_batch_size = batch_size

    def set_max_workspace_size(self, size_bytes: int) -> None:
        """Set the maximum scratch memory of a step, in bytes."""
        self.max_workspace_size = size_bytes

    def set_half2_mode(self, mode: bool) -> None:  # noqa: FBT001  (the documented signature)
        """Enable float16 with two images packed in each element, on devices that support it."""
        self.half2_mode = mode

    def set_debug_sync(self, sync: bool) -> None:  # noqa: FBT001  (the documented signature)
        """Enable logging of each layer as soon as its candidates are timed."""
        self.debug_sync = sync

    def set_min_find_iterations(self, count: int) -> None:
        """Set the number of means per candidate; the smallest is its time.

        Times in the timing cache are not measured again.
        """
        self.min_find_iterations = count

    def set_average_find_iterations(self, count: int) -> None:
        """Set the number of runs that each mean of a candidate's time is taken over."""
        self.average_find_iterations = count

    @property
    def platform_has_fast_fp16(self) -> bool:
        """Whether 16-bit arithmetic is faster than 32-bit on the device; true for GPUs."""
        return DeviceName.from_text(self.device).kind.has_fast_float16

    def create_network(self) -> InferNetwork:
        """Return an empty network."""
        return InferNetwork()

    def build_cuda_engine(self, network: InferNetwork) -> CudaEngine:
        """Optimise and compile a network; all bindings are float32, contiguous NCHW.

        Raises:
            SmeltError: the engine cannot be built; the message is also logged as an error.
        """
        is_watched = require_bool(self.debug_sync, "debug_sync", BuildError)
        minimum = Severity.VERBOSE if is_watched else Severity.INFO
        with self._logged(minimum):
            return self._build(network)

    def _build(self, network: InferNetwork) -> CudaEngine:
        """Check the options and the network, build the engine, and log its layers."""
        if not self._is_open:
            raise ContextError("this builder was destroyed; create another")
        max_batch_size = require_int(self.max_batch_size, "max_batch_size", BuildError, minimum=1)
        check_network(network)
        network.check(max_batch_size)
        is_half = (
            require_bool(self.half2_mode, "half2_mode", BuildError) and self.platform_has_fast_fp16
        )
        if self.half2_mode and not is_half:
            message = f"half2 mode is only for GPUs; on {self.device!r}, layers compute in float32"
            self.logger.log(Severity.WARNING, message)
        engine = build(
            float32_bindings(network.graph),
            device=self.device,
            precision="half2" if is_half else "float32",
            max_batch_size=max_batch_size,
            max_workspace_bytes=self.max_workspace_size,
            tune=TuningEffort(
                repeats=self.min_find_iterations,
                runs_per_mean=self.average_find_iterations,
                seconds_per_trial=math.inf,
                min_sample_seconds=0.0,  # the user's number of runs per mean is not raised
            ),
        )
        names = ", ".join(layer.name for layer in engine.layers)
        message = f"{engine.name}: {counted(len(engine.layers), 'layer')}: {names}"
        self.logger.log(Severity.INFO, message)
        return CudaEngine(engine, self.logger)


def float32_bindings(graph: Graph) -> Graph:
    """Return a copy of a graph whose float16 inputs and outputs are float32 instead.

    Casts to and from float16 are inserted. Inputs and outputs keep their names.
    """
    copy = clone(graph)
    for index, value in enumerate(copy.inputs):
        if value.tensor.dtype is DType.FLOAT16:
            source = Value(value.name, TensorType(DType.FLOAT32, value.tensor.shape))
            name, first = f"{value.name} to float16", next(iter(value.users), None)
            cast = copy.add(Cast(DType.FLOAT16), source, name=name, before=first)
            copy.inputs[index] = source
            copy.replace_uses(value, cast.output)
    for index, value in enumerate(copy.outputs):
        if value.tensor.dtype is DType.FLOAT16:
            name, value.name = value.name, f"{value.name} in float16"
            node = copy.add(
                Cast(DType.FLOAT32), value, name=f"{name} to float32", output_names=(name,)
            )
            copy.outputs[index] = node.output
    return copy


def create_infer_builder(logger: Logger) -> InferBuilder:
    """Return a builder that logs to ``logger``, which has a method ``log(severity, message)``.

    All builders and runtimes share one logger: while another one exists, its logger is used
    instead of ``logger``, and a warning is logged to both.

    Raises:
        SmeltError: ``logger`` has no method ``log``.
    """
    return InferBuilder(logger)
