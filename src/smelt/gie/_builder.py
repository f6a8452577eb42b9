"""The builder in the documented vocabulary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from smelt.builder import EFFORTS, TuningEffort, build
from smelt.errors import BuildError, ContextError, SmeltError
from smelt.gie._destroyable import Destroyable
from smelt.gie._logging import SeverityAdapter, adopt, release
from smelt.gie._network import InferNetwork, check_network
from smelt.gie._runtime import CudaEngine
from smelt.ir import Graph, clone
from smelt.logger import Severity, forward_to
from smelt.ops import Cast
from smelt.types import DeviceName, DType, TensorType, override, require_bool, require_int

if TYPE_CHECKING:
    from smelt.logger import Logger

_DEFAULT_WORKSPACE_BYTES = 1 << 20


class InferBuilder(Destroyable):
    """Builds engines from networks; options are attributes and have the documented setters."""

    def __init__(self, logger: Logger) -> None:
        self.logger = adopt(self, logger)
        self.device = "cpu"
        """What engines are built for: "cuda" for a GPU, "cuda:1" for another one."""
        self.max_batch_size = 1
        self.max_workspace_size = _DEFAULT_WORKSPACE_BYTES
        """Bytes of scratch that a step may use at run time."""
        self.half2_mode = False
        self.debug_sync = False
        """Whether the logger hears of each layer as soon as its candidates are timed."""
        self.min_find_iterations = EFFORTS["fast"].repeats
        """Means of which the least is a candidate's time."""
        self.average_find_iterations = EFFORTS["fast"].runs_per_mean
        """Runs of which each mean is taken."""
        self._is_open = True

    def set_max_batch_size(self, batch_size: int) -> None:
        """Set the batch to tune for: smaller ones run, larger ones are refused."""
        self.max_batch_size = batch_size

    def set_max_workspace_size(self, size_bytes: int) -> None:
        """Set the upper bound of the scratch memory of a step, in bytes."""
        self.max_workspace_size = size_bytes

    def set_half2_mode(self, mode: bool) -> None:  # noqa: FBT001  (the documented signature)
        """Ask for pairs of images in 16 bits, where the device has that."""
        self.half2_mode = mode

    def set_debug_sync(self, sync: bool) -> None:  # noqa: FBT001  (the documented signature)
        """Let the logger hear of each layer as soon as its candidates are timed."""
        self.debug_sync = sync

    def set_min_find_iterations(self, count: int) -> None:
        """Set of how many means the least is a candidate's time. Known times are not taken anew."""
        self.min_find_iterations = count

    def set_average_find_iterations(self, count: int) -> None:
        """Set of how many runs each mean is taken while candidates are timed."""
        self.average_find_iterations = count

    @property
    def platform_has_fast_fp16(self) -> bool:
        """Whether 16-bit arithmetic is faster than 32-bit on the device: on GPUs."""
        return DeviceName.from_text(self.device).kind == "cuda"

    def create_network(self) -> InferNetwork:
        """Return an empty network."""
        return InferNetwork()

    def build_cuda_engine(self, network: InferNetwork) -> CudaEngine:
        """Optimise a network and compile it; all bindings are float32, contiguous NCHW.

        Raises SmeltError: what stands against it; the logger hears it as an error as well.
        """
        is_watched = require_bool(self.debug_sync, "debug_sync", BuildError)
        least = Severity.VERBOSE if is_watched else Severity.INFO
        with forward_to(SeverityAdapter(self.logger), minimum=least):
            try:
                return self._build(network)
            except SmeltError as error:
                self.logger.log(Severity.ERROR, str(error))
                raise

    def _build(self, network: InferNetwork) -> CudaEngine:
        if not self._is_open:
            raise ContextError("this builder was destroyed; create another")
        most = require_int(self.max_batch_size, "max_batch_size", BuildError, least=1)
        check_network(network)
        network.check(most)
        is_half = (
            require_bool(self.half2_mode, "half2_mode", BuildError) and self.platform_has_fast_fp16
        )
        if self.half2_mode and not is_half:
            message = f"half2 mode is only for GPUs; on {self.device!r} layers compute in float32"
            self.logger.log(Severity.WARNING, message)
        engine = build(
            float32_bindings(network.graph),
            device=self.device,
            precision="half2" if is_half else "float32",
            max_batch_size=most,
            max_workspace_bytes=self.max_workspace_size,
            tune=TuningEffort(
                repeats=self.min_find_iterations,
                runs_per_mean=self.average_find_iterations,
                seconds_per_trial=math.inf,
                min_sample_seconds=0.0,  # each mean is of as many runs as the user says
            ),
        )
        names = ", ".join(layer.name for layer in engine.layers)
        message = f"{engine.name}: {len(engine.layers)} layers: {names}"
        self.logger.log(Severity.INFO, message)
        return CudaEngine(engine, self.logger)

    @override
    def destroy(self) -> None:
        """End the builder's life; networks and engines go on. Again is harmless."""
        self._is_open = False
        release(self)


def float32_bindings(graph: Graph) -> Graph:
    """A copy of the graph whose inputs and outputs are float32 where they were float16."""
    copy = clone(graph)
    for value in copy.inputs:
        kind = value.tensor
        if kind.dtype is DType.FLOAT16:
            value.type = TensorType(DType.FLOAT32, kind.shape)
            users = list(dict.fromkeys(value.users))
            first = next((n for n in copy.nodes if n in users), None)
            made = copy.add(
                Cast(DType.FLOAT16), value, name=f"{value.name} to float16", before=first
            )
            for user in users:
                for index, read in enumerate(user.inputs):
                    if read is value:
                        copy.set_input(user, index, made.output)
    for index, value in enumerate(copy.outputs):
        if value.tensor.dtype is DType.FLOAT16:
            name, value.name = value.name, f"{value.name} in float16"
            node = copy.add(
                Cast(DType.FLOAT32), value, name=f"{name} to float32", output_names=(name,)
            )
            copy.outputs[index] = node.output
    return copy


def create_infer_builder(logger: Logger) -> InferBuilder:
    """Return a builder that reports to ``logger``, which has ``log(severity, message)``.

    One logger serves all: while another builder or runtime is alive, its logger is used here too,
    and both are warned.

    Raises SmeltError: it is not a logger.
    """
    return InferBuilder(logger)
