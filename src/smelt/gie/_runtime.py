"""InferRuntime, CudaEngine and InferContext of GIE: load and run engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from smelt.builder import load
from smelt.errors import ContextError
from smelt.gie._destroyable import Destroyable
from smelt.gie._network import fixed_extents
from smelt.gie._shared_logger import LoggingFactory
from smelt.logger import Severity
from smelt.types import (
    is_json_object,
    items_of,
    override,
    parse_json,
    require_bool,
    require_int,
    require_str,
    shown,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from smelt.engine import Binding
    from smelt.logger import Logger
    from smelt.runtime import Engine, Event, ExecutionContext, Profiler, Stream


class InferContext(Destroyable):
    """Execution context that runs an engine on the application's buffers.

    Buffers are contiguous float32 NCHW, in the order of the engine's bindings.
    """

    def __init__(self, engine: CudaEngine, context: ExecutionContext) -> None:
        self.engine = engine
        self.context = context
        self.debug_sync = False
        """Whether `execute` logs each layer with its time; `enqueue` never does."""

    def set_debug_sync(self, sync: bool) -> None:  # noqa: FBT001  (the documented signature)
        """Enable logging of each layer and its time in `execute`."""
        self.debug_sync = sync

    def execute(self, batch_size: int, bindings: Sequence[Any]) -> bool:
        """Run once, wait for the outputs, and return True; failures are raised.

        Raises:
            ContextError: the batch is larger than the engine's, or the context is in use.
            BindingError: a buffer does not fit.
        """
        if not require_bool(self.debug_sync, "debug_sync", ContextError):
            self.context.execute(batch_size, bindings)
            return True
        before = self.profiler
        self.profiler = _LoggingProfiler(self.engine.logger, before)
        try:
            self.context.execute(batch_size, bindings)
        finally:
            self.profiler = before
        return True

    def enqueue(
        self, batch_size: int, bindings: Sequence[Any], stream: Stream, event: Event | None = None
    ) -> bool:
        """Enqueue one run on a stream and return True.

        Args:
            batch_size: number of items in the batch.
            bindings: buffers in the order of the engine's bindings.
            stream: the stream.
            event: event that is signalled when the input buffers may be overwritten.
        """
        self.context.enqueue(batch_size, bindings, stream, input_consumed=event)
        return True

    @property
    def profiler(self) -> Profiler | None:
        """Profiler that receives the time of every layer after each execution, or None."""
        return self.context.profiler

    @profiler.setter
    def profiler(self, profiler: Profiler | None) -> None:
        self.context.profiler = profiler

    def set_profiler(self, profiler: Profiler | None) -> None:
        """Set the profiler that receives the layers' times; None for no profiling."""
        self.profiler = profiler

    @override
    def destroy(self) -> None:
        """Release the context's memory; a second call does nothing."""
        self.context.close()


class _LoggingProfiler:
    """Profiler that logs each layer's time and passes it to the application's profiler, if any."""

    def __init__(self, logger: Logger, profiler: Profiler | None) -> None:
        self._logger, self._profiler = logger, profiler

    def report_layer_time(self, name: str, milliseconds: float, /) -> None:
        message = f"{name}: done in {milliseconds:.3f} ms"
        self._logger.log(Severity.INFO, message)
        if self._profiler is not None:
            self._profiler.report_layer_time(name, milliseconds)


class CudaEngine(Destroyable):
    """A built engine. The name is the guide's; the engine may be for any device."""

    def __init__(self, engine: Engine, logger: Logger) -> None:
        self.engine = engine
        self.logger = logger

    @property
    def nb_bindings(self) -> int:
        """Number of inputs and outputs."""
        return len(self.engine.bindings)

    def get_binding_index(self, name: str) -> int:
        """Return the index of the binding of a name, or -1 if there is none."""
        names = [binding.name for binding in self.engine.bindings]
        require_str(name, "a binding's name", ContextError)
        return names.index(name) if name in names else -1

    def get_binding_name(self, index: int) -> str | None:
        """Return the name of a binding, or None if the index is out of range."""
        binding = self._binding(index)
        return None if binding is None else binding.name

    def binding_is_input(self, index: int) -> bool:
        """Return whether a binding is an input; False if the index is out of range."""
        binding = self._binding(index)
        return binding is not None and binding.is_input

    def get_binding_dimensions(self, index: int) -> tuple[int, ...]:
        """Return the dims (C, H, W) of a binding without its batch.

        The result is (0, 0, 0) if the index is out of range.
        """
        binding = self._binding(index)
        if binding is None:
            return (0, 0, 0)
        dims = fixed_extents(binding.shape[1:], binding.name)
        return (*dims, *(1,) * (3 - len(dims)))

    def _binding(self, index: int) -> Binding | None:
        number = require_int(index, "the index of a binding", ContextError)
        return self.engine.bindings[number] if 0 <= number < self.nb_bindings else None

    @property
    def max_batch_size(self) -> int:
        """Largest batch that the engine runs."""
        return self.engine.max_batch_size or 1

    @property
    def nb_layers(self) -> int:
        """Number of layers after optimisation."""
        return len(self.engine.layers)

    @property
    def workspace_size(self) -> int:
        """Largest scratch memory of a step in bytes; each context allocates its own."""
        return max(int(plan["workspace_bytes"]) for plan in self.optimisations())

    def serialize(self, stream: BinaryIO | None = None) -> bytes:
        """Return the serialised engine; also write it to ``stream``, if given."""
        writer: Any = stream
        if writer is not None and not callable(getattr(writer, "write", None)):
            raise ContextError(
                f"the stream is {shown(writer)}; it must be a binary file that is open for writing"
            )
        data = self.engine.serialize()
        if writer is not None:
            writer.write(data)
        return data

    def create_execution_context(self) -> InferContext:
        """Return a new context; contexts share the weights and may run concurrently."""
        return InferContext(self, self.engine.create_context())

    def execute(self, context: InferContext, bindings: Sequence[Any]) -> bool:
        """Run a context of this engine at the largest batch; the guide also has this form.

        Raises:
            ContextError: the context belongs to another engine.
        """
        if getattr(context, "engine", None) is not self:
            raise ContextError("the context belongs to another engine")
        return context.execute(self.max_batch_size, bindings)

    def optimisations(self) -> list[dict[str, Any]]:
        """Return the build report of each plan, which lists the optimisations of the graph."""
        plans = items_of(parse_json(self.engine.header.report))
        return [plan for plan in plans if is_json_object(plan)]

    @override
    def destroy(self) -> None:
        """Release the engine; its contexts stay valid. A second call does nothing."""
        self.engine.close()


class InferRuntime(LoggingFactory):
    """Runtime that deserialises engines."""

    def deserialize_cuda_engine(
        self, source: bytes | bytearray | memoryview | BinaryIO | str | os.PathLike[str]
    ) -> CudaEngine:
        """Return the engine from its serialised form.

        Args:
            source: bytes, a binary file, or a path.

        Raises:
            EngineMismatchError: the engine was built for another platform or by another version.
            EngineFormatError: the bytes are not a valid engine.
            ContextError: the runtime was destroyed.
        """
        if not self._is_open:
            raise ContextError("this runtime was destroyed; create another")
        with self._logged():
            return CudaEngine(load(source), self.logger)


def create_infer_runtime(logger: Logger) -> InferRuntime:
    """Return a runtime that logs to ``logger``, which is shared as by `create_infer_builder`."""
    return InferRuntime(logger)
