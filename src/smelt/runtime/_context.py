"""The execution context: one inference at a time, on memory of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

import numpy as np
from numpy import ndarray

from smelt.engine import CachedRuntimeChecks
from smelt.errors import BindingError, ContextError
from smelt.runtime._array_interop import check_apart, start_addresses
from smelt.runtime._plan_selection import (
    call_for_arrays,
    call_from_values,
    values_from_batch,
    values_from_shapes,
)
from smelt.runtime._segments import MemoryMap, split_plan
from smelt.types import (
    Closeable,
    evaluate_dim,
    out_of_memory,
    require_int,
    require_list,
    require_str,
    reset_in_child,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from smelt.engine import Binding
    from smelt.runtime._engine import Engine
    from smelt.runtime._loaded_code import LoadedCode
    from smelt.runtime._plan_selection import ResolvedCall
    from smelt.runtime._segments import InputsConsumed, Segment, SegmentFactory
    from smelt.runtime._staging import StagedCall, Staging

    IndexedBinding = tuple[int, Binding, np.dtype[Any]]
    """A binding with its index and its dtype."""

_FIRST_ADDRESS: Final = 4096
"""No system maps the first page: an address in it is a mistaken number or a null pointer."""
_MAX_CACHED_SHAPES: Final = 64
RUN: Final = "run"


class Profiler(Protocol):
    """Hears how long each layer took, after every execution."""

    def report_layer_time(self, name: str, milliseconds: float, /) -> None:
        """Take the time of one layer of the optimised network."""
        ...


class ExecutionContext(Closeable):
    """Runs an engine, one inference at a time; get one from `Engine.create_context`.

    It keeps its engine alive. A second thread that comes while it is busy gets a `ContextError`:
    give each thread its own context.
    """

    threads: int
    """Of the host, that a run uses at most."""

    def __init__(
        self, engine: Engine, code: LoadedCode, segment_factory: SegmentFactory, staging: Staging
    ) -> None:
        self._engine, self._code = engine, code
        self._header = code.header
        self._machinery, self._staging = segment_factory, staging
        self._profiler: Profiler | None = None
        self._segments: dict[int, list[Segment]] = {}
        self._weights = code.weights
        self._memories = MemoryMap(0, self._weights.address)
        self._ports = [(i, b, b.dtype.numpy) for i, b in enumerate(self._header.bindings)]
        self._inputs = [port for port in self._ports if port[1].is_input]
        self._outputs = [port for port in self._ports if not port[1].is_input]
        self._ready: dict[object, StagedCall] = {}
        self._checked_starts: tuple[StagedCall | None, list[int | None]] = (None, [])
        """Where the arrays of the last call began that was seen to have no overlap."""
        self._verdicts = [None if c is None else CachedRuntimeChecks(c) for c in engine.conditions]
        self._latest: tuple[ResolvedCall, dict[str, int]] | None = None
        """The latest run that is complete: its call, and the values that it has decided."""
        self._is_closed = False
        self.reset()
        _contexts.add(self)

    def reset(self) -> None:
        """Forget runs of other threads, as a forked child must: they are not going on here."""
        self._owner: dict[str, list[int]] = {}
        """Holds what stands for the run that is going on, if one is; `setdefault` takes the context
        in one step, whatever other threads do."""

    @property
    def engine(self) -> Engine:
        """The engine that the context runs."""
        return self._engine

    @property
    def profiler(self) -> Profiler | None:
        """What hears of every layer after each execution, synchronous or not; None for nothing.

        Any object with a method ``report_layer_time(name, milliseconds)`` will do.
        """
        return self._profiler

    @profiler.setter
    def profiler(self, profiler: Profiler | None) -> None:
        if profiler is not None and not callable(getattr(profiler, "report_layer_time", None)):
            kind = type(profiler).__name__
            raise ContextError(
                f"a profiler must have a method report_layer_time(name, milliseconds); {kind} has "
                "none"
            )
        self._profiler = profiler

    def output_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that an output had in the latest run that was complete.

        What a run decides itself, as how many elements NonZero finds, is known from then on. After
        `enqueue`, wait for the stream first.

        Args:
            name: the output's.

        Raises:
            BindingError: the engine has no such output.
            ContextError: no run is complete yet.
        """
        ((index, _, _),) = self._asked([name])
        if self._latest is None:
            raise ContextError(
                "this context has not completed a run, so its outputs have no shapes yet"
            )
        call, values = self._latest
        return tuple([evaluate_dim(dim, values) for dim in call.extents[index]])

    # ---- by name

    def run(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """Run once and return the outputs, by name.

        Args:
            inputs: an array for each input, by name: numpy's, or any that speaks DLPack. Strided
                and read-only arrays are fine; nothing is cast.
            outputs: names of the outputs to return, in this order; None for all. The others are
                computed as well, but not brought to the caller.

        Returns:
            New arrays; of the inputs' library where that takes DLPack, else numpy's.

        Raises:
            BindingError: a name is missing or unknown, or an array does not fit.
            DeviceError: there is too little memory, or a stream's task runs what waits for it.
            ShapeError: the extents violate what an op of the network requires of them.
            IndexRangeError: an index or a length in the data is out of range; the next run is not
                affected.
            What a run failed with that was queued before, if nobody has heard of it.
            ContextError: the context is closed or busy, or the batch too large.
        """
        wanted = self._outputs if outputs is None else self._asked(outputs)
        token = [get_ident()]
        try:
            self._enter(token)
            arrays, shapes = self._arrays_from(inputs)
            ready = self._ready.get(shapes)
            if ready is None:
                ready = self._staged_call_for(shapes)
            return self._compute(ready, arrays, inputs, wanted)
        except MemoryError as error:
            raise out_of_memory("the run") from error
        finally:
            # No call stands here: at a call an interrupt could come before the context is free.
            if RUN in self._owner and self._owner[RUN] is token:
                del self._owner[RUN]

    def _asked(self, names: object) -> list[IndexedBinding]:
        """The outputs of these names, or BindingError."""
        known = [port[1].name for port in self._outputs]
        listed = require_list(names, "outputs", BindingError)
        asked = [require_str(name, "the name of an output", BindingError) for name in listed]
        unknown = [name for name in asked if name not in known]
        if unknown:
            detail = ", ".join(name or "''" for name in unknown)
            raise BindingError(f"the engine's outputs are {', '.join(known)}; unknown: {detail}")
        return [self._outputs[known.index(name)] for name in asked]

    def _arrays_from(
        self, inputs: Mapping[str, Any]
    ) -> tuple[list[Any], tuple[tuple[int, ...], ...]]:
        """The inputs' arrays by binding, None for outputs; and the inputs' shapes."""
        if inputs.__class__ is not dict:
            _check_mapping(inputs, self._engine.inputs)
        if len(inputs) != len(self._inputs):
            raise _misnamed(inputs, self._engine.inputs)
        arrays: list[NDArray[Any] | None] = [None] * len(self._ports)
        shapes: list[tuple[int, ...]] = []
        for index, binding, dtype in self._inputs:
            try:
                array = inputs[binding.name]
            except KeyError:
                raise _misnamed(inputs, self._engine.inputs) from None
            if type(array) is not ndarray or array.dtype is not dtype:
                array = self._input(array, binding, dtype)
            arrays[index] = array
            shapes.append(array.shape)
        return arrays, tuple(shapes)

    def _staged_call_for(self, shapes: tuple[tuple[int, ...], ...]) -> StagedCall:
        """The call for inputs of these shapes."""
        values = values_from_shapes([binding for _, binding, _ in self._inputs], shapes)
        call = call_from_values(self._header, values)
        return self._keep(shapes, call, call.shapes)

    def _keep(
        self, key: object, call: ResolvedCall, shapes: tuple[tuple[int, ...] | None, ...]
    ) -> StagedCall:
        if (verdicts := self._verdicts[call.plan]) is not None:
            verdicts.check(call.values)
        if len(self._ready) >= _MAX_CACHED_SHAPES:
            self._ready.clear()
        self._ready[key] = ready = self._staging.ready(call, shapes)
        return ready

    @abstractmethod
    def _compute(
        self,
        ready: StagedCall,
        arrays: list[Any],
        inputs: Mapping[str, Any],
        wanted: Sequence[IndexedBinding],
    ) -> dict[str, Any]:
        """Run on inputs, given by binding and as they came; return new ``wanted`` ones by name."""

    @abstractmethod
    def _input(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        """An array of any library as one that has the binding's dtype, or BindingError."""

    @abstractmethod
    def _output(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        """The same for an array that will be written."""

    # ---- by index

    def execute(self, batch_size: int, bindings: Sequence[Any]) -> None:
        """Run once on the application's memory, and return when the outputs are there.

        Args:
            batch_size: the implicit batch, or the extent of the symbol ``batch``; 1 where the
                batch has another name or is fixed: the arrays then say how many.
            bindings: for each binding index an array, or an address that is taken on trust. An
                array has the binding's shape, axes of one apart, or is flat; one for more
                images or rows than there are is filled from its front. Where a run decides an
                extent of an output itself, its array has the largest shape that any run of the
                plan gives, which the message about a smaller one names; the result then lies
                contiguous at the array's front, as
                ``array.reshape(-1)[:prod(shape)].reshape(shape)``, in the ``shape`` that
                `output_shape` tells, and what is behind it is not written.

        Raises:
            BindingError: an array does not fit, or there are too few or too many.
            IndexRangeError: as for `run`; what outputs hold is undefined then.
            ContextError: the batch is larger than the engine's maximum, or the context is closed
                or busy.
        """
        ready, arrays = self._bind(batch_size, bindings)
        token = [get_ident()]
        try:
            self._enter(token)
            self._execute_bound(ready, arrays)
        except MemoryError as error:
            raise out_of_memory("the run") from error
        finally:
            if RUN in self._owner and self._owner[RUN] is token:
                del self._owner[RUN]

    @abstractmethod
    def enqueue(
        self,
        batch_size: int,
        bindings: Sequence[Any],
        stream: Any,
        input_consumed: Any = None,
    ) -> None:
        """Queue one run on a stream and return at once.

        Arguments are checked here. What is found later, as an index out of range is, is raised
        once: by the stream's ``synchronize`` or the context's next `run`, `execute` or `enqueue`,
        whichever comes first; events and ``close`` do not raise it. The run's outputs are then
        undefined, and later work of the stream is done. Where a task of `smelt.Stream.submit`
        failed before it, the run is dropped. A second run waits for the first, whatever its stream.

        Args:
            batch_size: as for `execute`.
            bindings: as for `execute`; the arrays are kept until the run is complete. What
                `output_shape` tells is this run's once the stream is synchronized.
            stream: does the work, in order: a `smelt.Stream` of the engine's device; on a GPU also
                another library's, or a handle.
            input_consumed: a `smelt.Event`, recorded when the inputs may be changed again.

        Raises:
            BindingError: as for `execute`.
            ContextError: the batch is too large, the context is closed, or ``stream`` or
                ``input_consumed`` is none.
            What a run failed with that was queued before; this one is then not queued.
        """

    def _bind(self, batch_size: int, bindings: Sequence[Any]) -> tuple[StagedCall, list[Any]]:
        """The call for bindings by index, and these as arrays and addresses."""
        self._check_open()
        arrays = require_list(bindings, "bindings", BindingError)
        if len(arrays) != len(self._ports):
            names = ", ".join(binding.name for _, binding, _ in self._ports)
            raise BindingError(
                f"{len(arrays)} bindings are given, and the engine has {len(self._ports)}: {names}"
            )
        shapes: list[tuple[int, ...] | None] = []
        for index, binding, dtype in self._ports:
            array = arrays[index]
            if (
                type(array) is not ndarray
                or array.dtype is not dtype
                or not (binding.is_input or array.flags.carray)
            ):
                array = arrays[index] = self._bound(array, binding, dtype)
            shapes.append(None if isinstance(array, int) else array.shape)
        if type(batch_size) is not int:
            batch_size = require_int(batch_size, "the batch size", ContextError, least=1)
        key = (batch_size, tuple(shapes))
        ready = self._ready.get(key)
        if ready is None:
            ready = self._staged_call_for_batch(batch_size, key[1])
        starts = start_addresses(arrays)
        known, these = self._checked_starts
        if known is not ready or these != starts:
            check_apart(self._header.bindings, starts, ready.sizes)
            self._checked_starts = ready, starts
        return ready, arrays

    def _bound(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        """What an application bound, as an array or an address."""
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return _checked_address(binding, int(cast("int", value)))
        convert = self._input if binding.is_input else self._output
        return convert(value, binding, dtype)

    def _staged_call_for_batch(
        self, batch_size: int, shapes: tuple[tuple[int, ...] | None, ...]
    ) -> StagedCall:
        """The call for a batch size, and arrays of these shapes (None for an address)."""
        values = values_from_batch(self._header, batch_size, shapes)
        call = call_from_values(self._header, values)
        call = call_for_arrays(call, self._header.bindings, shapes)
        return self._keep((batch_size, shapes), call, shapes)

    @abstractmethod
    def _execute_bound(self, ready: StagedCall, arrays: list[Any]) -> None:
        """Run on the application's memory, and return when the outputs are there."""

    # ---- one run

    def _enter(self, token: list[int]) -> None:
        """Take the context for a synchronous run. Whoever calls gives it back if it is his.

        A token is one run's alone, and holds the thread that it is in.
        """
        if self._owner.setdefault(RUN, token) is not token or self._is_closed:
            self._refuse()

    def _refuse(self) -> NoReturn:
        """Say why the context cannot be entered."""
        self._check_open()
        raise ContextError(
            "this context is busy in another thread; create one context for each thread"
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise ContextError("this context is closed; create another from its engine")

    def _execute(
        self,
        number: int,
        values: dict[str, int],
        addresses: list[int],
        consumed: InputsConsumed | None,
    ) -> None:
        if self._weights is not self._code.weights:
            self._use_new_weights()
        segments = self._segments.get(number)
        if segments is None:
            plan, verdicts = self._header.plans[number], self._verdicts[number]
            segments = split_plan(plan, self._machinery, verdicts)
            self._segments[number] = segments
        if consumed is None and self._profiler is None and len(segments) == 1:
            segments[0].run(values, self._memories, addresses, timed=False)
        else:
            self._execute_watched(number, values, addresses, consumed)

    def _execute_watched(
        self,
        number: int,
        values: dict[str, int],
        addresses: list[int],
        consumed: InputsConsumed | None,
    ) -> None:
        """The same in several segments, or with somebody who wants to know how far it is."""
        segments, profiler = self._segments[number], self._profiler
        timed = profiler is not None
        times: dict[int, float] = {}
        last = max((i for i, s in enumerate(segments) if s.reads_input), default=-1)
        for position, segment in enumerate(segments):
            segment.run(values, self._memories, addresses, timed=timed)
            if timed:
                for layer, milliseconds in segment.milliseconds():
                    times[layer] = times.get(layer, 0.0) + milliseconds
            if consumed is not None and position == last:
                consumed.signal()
        if profiler is not None:
            self._report(profiler, number, times)

    def _report(self, profiler: Profiler, number: int, times: Mapping[int, float]) -> None:
        """Report each layer of the plan once; one that was optimised into nothing takes no time."""
        layers = self._header.layers
        if len(self._header.plans) == 1:
            chosen: Sequence[int] = range(len(layers))
        else:
            steps = self._header.plans[number].steps
            chosen = list(dict.fromkeys(step.layer for step in steps))
        for layer in chosen:
            profiler.report_layer_time(layers[layer].name, times.get(layer, 0.0))

    def _use_new_weights(self) -> None:
        """Interrupted anywhere, it is done again by the next run; until then the old ones live."""
        weights = self._code.weights
        self._memories.weights = weights.address
        self._forget_addresses()
        self._weights = weights

    def _forget_addresses(self) -> None:
        """Let segments find anew what lies where."""
        for segments in self._segments.values():
            for segment in segments:
                segment.forget()

    # ---- the end

    @abstractmethod
    def close(self) -> None:
        """Give back the context's memory, once what was enqueued is done. Again is harmless.

        It raises nothing of what was enqueued: the stream's ``synchronize`` still does.
        """

    def _close_segments(self) -> None:
        self._is_closed = True
        for segments in self._segments.values():
            for segment in segments:
                segment.close()
        self._segments.clear()
        self._ready.clear()


def _check_mapping(inputs: object, wanted: Sequence[Binding]) -> None:
    if not isinstance(inputs, Mapping):
        name = min((binding.name for binding in wanted), default="name")
        raise BindingError(
            f"run takes arrays by name, as {{{name!r}: array}}, not {type(inputs).__name__}"
        )


def _misnamed(inputs: Mapping[str, object], wanted: Sequence[Binding]) -> BindingError:
    """What is wrong with names that are not those of the inputs."""
    names = {binding.name for binding in wanted}
    missing = sorted(names - set(inputs))
    unknown = sorted(set(map(str, inputs)) - names)
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    parts += [f"unknown: {', '.join(unknown)}"] if unknown else []
    return BindingError(f"the engine's inputs are {', '.join(sorted(names))}; {'; '.join(parts)}")


def _checked_address(binding: Binding, address: int) -> int:
    """An application's address is taken on trust, but for what is none anywhere."""
    if not _FIRST_ADDRESS <= address < 1 << 63:
        raise BindingError(
            f"{binding.name}: {address} is not a valid address; pass an array or its address"
        )
    return address


def _reset(context: ExecutionContext) -> None:
    """In a forked child: runs of the parent's other threads are not going on here."""
    context.reset()


_contexts = reset_in_child(_reset)
