"""Engines and contexts in the documented vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, cast

from smelt.builder import load
from smelt.errors import ContextError, SmeltError
from smelt.gie._destroyable import Destroyable
from smelt.gie._logging import SeverityAdapter, adopt, release
from smelt.gie._network import fixed_extents
from smelt.logger import Severity, forward_to
from smelt.types import override, parse_json, require_bool, require_int, require_str, shown

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from smelt.engine import Binding
    from smelt.logger import Logger
    from smelt.runtime import Engine, Event, ExecutionContext, Profiler, Stream


class InferContext(Destroyable):
    """Runs an engine on the application's buffers: contiguous float32 NCHW, indexed by binding."""

    def __init__(self, engine: CudaEngine, context: ExecutionContext) -> None:
        self.engine = engine
        self.context = context
        self.debug_sync = False
        """Whether the logger hears of each layer that `execute` has run; `enqueue` says nothing."""

    def set_debug_sync(self, sync: bool) -> None:  # noqa: FBT001  (the documented signature)
        """Let the logger hear of each layer that `execute` has run."""
        self.debug_sync = sync

    def execute(self, batch_size: int, bindings: Sequence[Any]) -> bool:
        """Run once and return when the outputs are there: always True, failures are raised.

        Raises:
            ContextError: the batch is larger than the engine's, or the context is in use.
            BindingError: a buffer does not fit.
        """
        if not require_bool(self.debug_sync, "debug_sync", ContextError):
            self.context.execute(batch_size, bindings)
            return True
        before = self.profiler
        self.profiler = _LayerLog(self.engine.logger, before)
        try:
            self.context.execute(batch_size, bindings)
        finally:
            self.profiler = before
        return True

    def enqueue(
        self,
        batch_size: int,
        bindings: Sequence[Any],
        stream: Stream,
        event: Event | None = None,
    ) -> bool:
        """Queue one run on a stream; ``event`` is signalled when the inputs may be refilled."""
        self.context.enqueue(batch_size, bindings, stream, input_consumed=event)
        return True

    @property
    def profiler(self) -> Profiler | None:
        """Told the time of every layer after each execution, synchronous or not."""
        return self.context.profiler

    @profiler.setter
    def profiler(self, profiler: Profiler | None) -> None:
        self.context.profiler = profiler

    def set_profiler(self, profiler: Profiler | None) -> None:
        """Set what is told the times; None for nothing."""
        self.profiler = profiler

    @override
    def destroy(self) -> None:
        """Give back the context's memory; again is harmless."""
        self.context.close()


class _LayerLog:
    """Tells a logger of each layer, and the application's profiler if there is one."""

    def __init__(self, logger: Logger, profiler: Profiler | None) -> None:
        self._logger, self._profiler = logger, profiler

    def report_layer_time(self, name: str, milliseconds: float, /) -> None:
        message = f"{name}: done in {milliseconds:.3f} ms"
        self._logger.log(Severity.INFO, message)
        if self._profiler is not None:
            self._profiler.report_layer_time(name, milliseconds)


class CudaEngine(Destroyable):
    """A built engine. The name is the guide's; the device is whatever it was built for."""

    def __init__(self, engine: Engine, logger: Logger) -> None:
        self.engine = engine
        self.logger = logger

    @property
    def nb_bindings(self) -> int:
        """Number of inputs and outputs."""
        return len(self.engine.bindings)

    def get_binding_index(self, name: str) -> int:
        """Return the index of a tensor by its name, or -1."""
        names = [binding.name for binding in self.engine.bindings]
        require_str(name, "a binding's name", ContextError)
        return names.index(name) if name in names else -1

    def get_binding_name(self, index: int) -> str | None:
        """Return the name of a binding, or None when there is none."""
        binding = self._binding(index)
        return None if binding is None else binding.name

    def binding_is_input(self, index: int) -> bool:
        """Return whether a binding is an input."""
        binding = self._binding(index)
        return binding is not None and binding.is_input

    def get_binding_dimensions(self, index: int) -> tuple[int, ...]:
        """Return the dims (C, H, W) of a binding, less the batch; (0, 0, 0) when there is none."""
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
        """The largest batch; smaller ones run too."""
        return self.engine.max_batch_size or 1

    @property
    def nb_layers(self) -> int:
        """Number of layers after optimisation."""
        return len(self.engine.layers)

    @property
    def workspace_size(self) -> int:
        """Bytes of scratch that a step needs at most; each context has its own."""
        return max(int(plan["workspace_bytes"]) for plan in self.optimisations())

    def serialize(self, stream: BinaryIO | None = None) -> bytes:
        """Return the engine's bytes; write them to ``stream`` as well, if there is one."""
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
        """Return a context; several may be at work at once and share the weights."""
        return InferContext(self, self.engine.create_context())

    def execute(self, context: InferContext, bindings: Sequence[Any]) -> bool:
        """Run a context of this engine on its largest batch: the guide's other spelling.

        Raises ContextError: the context belongs to another engine.
        """
        if getattr(context, "engine", None) is not self:
            raise ContextError("the context belongs to another engine")
        return context.execute(self.max_batch_size, bindings)

    def optimisations(self) -> list[dict[str, Any]]:
        """Return what the build did to the graph, one entry a plan."""
        return list(cast("list[dict[str, Any]]", parse_json(self.engine.header.report)))

    @override
    def destroy(self) -> None:
        """Let go of code and weights; contexts go on. Again is harmless."""
        self.engine.close()


class InferRuntime(Destroyable):
    """Brings serialised engines back."""

    def __init__(self, logger: Logger) -> None:
        self.logger = adopt(self, logger)
        self._is_open = True

    def deserialize_cuda_engine(
        self, source: bytes | bytearray | memoryview | BinaryIO | str | os.PathLike[str]
    ) -> CudaEngine:
        """Return the engine that was serialised; it behaves as the one that was built.

        Raises:
            EngineMismatchError: it was built on another platform or by another version.
            EngineFormatError: the bytes are no engine.
        """
        if not self._is_open:
            raise ContextError("this runtime was destroyed; create another")
        with forward_to(SeverityAdapter(self.logger)):
            try:
                return CudaEngine(load(source), self.logger)
            except SmeltError as error:
                self.logger.log(Severity.ERROR, str(error))
                raise

    @override
    def destroy(self) -> None:
        """End the runtime's life; its engines go on. Again is harmless."""
        self._is_open = False
        release(self)


def create_infer_runtime(logger: Logger) -> InferRuntime:
    """Return a runtime that reports to ``logger``; as for builders, one logger serves all."""
    return InferRuntime(logger)
