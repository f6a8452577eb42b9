"""Execution contexts: each runs one inference at a time in memory of its own."""

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
"""Lowest valid address: no system maps the first page, so a lower one is a null pointer or an
error."""
_MAX_CACHED_SHAPES: Final = 64
"""Number of combinations of shapes whose calls are kept."""
RUN: Final = "run"
"""Key of the current run's token in `ExecutionContext._owner`."""


class Profiler(Protocol):
    """Receives the time of each layer after every execution."""

    def report_layer_time(self, name: str, milliseconds: float, /) -> None:
        """Receive the time of one layer of the optimised network."""
        ...


class ExecutionContext(Closeable):
    """Runs an engine, one inference at a time; get one from `Engine.create_context`.

    A context keeps its engine alive. If a second thread uses a context that is busy, a
    `ContextError` is raised: create one context for each thread.
    """

    threads: int
    """Maximum number of host threads that a run uses."""

    def __init__(
        self, engine: Engine, code: LoadedCode, segment_factory: SegmentFactory, staging: Staging
    ) -> None:
        self._engine, self._code = engine, code
        self._header = code.header
        self._segment_factory, self._staging = segment_factory, staging
        self._profiler: Profiler | None = None
        self._segments: dict[int, list[Segment]] = {}
        self._weights = code.weights
        self._memories = MemoryMap(0, self._weights.address)
        self._indexed_bindings = [
            (i, b, b.dtype.numpy) for i, b in enumerate(self._header.bindings)
        ]
        self._inputs = [
            indexed_binding
            for indexed_binding in self._indexed_bindings
            if indexed_binding[1].is_input
        ]
        self._outputs = [
            indexed_binding
            for indexed_binding in self._indexed_bindings
            if not indexed_binding[1].is_input
        ]
        self._staged_calls: dict[object, StagedCall] = {}
        self._checked_starts: tuple[StagedCall | None, list[int | None]] = (None, [])
        """The last call that passed the overlap check, with the addresses of its arrays."""
        self._runtime_checks = [
            None if c is None else CachedRuntimeChecks(c) for c in engine.conditions
        ]
        self._last_completed: tuple[ResolvedCall, dict[str, int]] | None = None
        """The last completed run: its call, and the symbol values including those it determined."""
        self._is_closed = False
        self.reset()
        _contexts.add(self)

    def reset(self) -> None:
        """Discard the state of runs of other threads, which do not exist in a forked child."""
        self._owner: dict[str, list[int]] = {}
        """Holds the token of the current run under `RUN`, if there is one. `setdefault` is atomic,
        so one thread at a time acquires the context."""

    @property
    def engine(self) -> Engine:
        """The engine that the context runs."""
        return self._engine

    @property
    def profiler(self) -> Profiler | None:
        """Receives layer times after each execution, also an enqueued one; None to disable.

        Any object with a method ``report_layer_time(name, milliseconds)`` is accepted.
        """
        return self._profiler

    @profiler.setter
    def profiler(self, profiler: Profiler | None) -> None:
        if profiler is not None and not callable(getattr(profiler, "report_layer_time", None)):
            kind = type(profiler).__name__
            raise ContextError(
                f"a profiler must have a method report_layer_time(name, milliseconds), but {kind} "
                "does not"
            )
        self._profiler = profiler

    def output_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an output in the last completed run.

        It includes data-dependent extents, such as the number of elements that NonZero finds.
        After `enqueue`, synchronize the stream first.

        Args:
            name: name of the output.

        Raises:
            BindingError: the engine has no output with this name.
            ContextError: no run is complete yet.
        """
        ((index, _, _),) = self._resolve_output_names([name])
        if self._last_completed is None:
            raise ContextError(
                "this context has not completed a run, so its outputs have no shapes yet"
            )
        call, values = self._last_completed
        return tuple([evaluate_dim(dim, values) for dim in call.extents[index]])

    # ---- by name

    def run(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """Run once and return the outputs, by name.

        Args:
            inputs: an array for each input, by name: a numpy array or one that supports DLPack.
                Strided and read-only arrays are accepted; dtypes are not cast.
            outputs: names of the outputs to return, in this order; None for all. The others are
                computed but not copied.

        Returns:
            New arrays: of the inputs' library if it supports DLPack, else numpy arrays.

        Raises:
            BindingError: a name is missing or unknown, or an array does not fit.
            DeviceError: memory is insufficient, or the call would deadlock in a stream's task.
            ShapeError: the extents violate a requirement of an op in the network.
            IndexRangeError: an index or a length in the data is out of range; the next run is not
                affected.
            ContextError: the context is closed or busy, or the batch is too large.
            The error of a run that was enqueued before, if it was not raised yet.
        """
        requested = self._outputs if outputs is None else self._resolve_output_names(outputs)
        token = [get_ident()]
        try:
            self._enter(token)
            arrays, shapes = self._arrays_from(inputs)
            staged_call = self._staged_calls.get(shapes)
            if staged_call is None:
                staged_call = self._staged_call_for_shapes(shapes)
            return self._compute(staged_call, arrays, inputs, requested)
        except MemoryError as error:
            raise out_of_memory("the run") from error
        finally:
            # No call here: an interrupt is handled at calls, and could leave the context acquired.
            if RUN in self._owner and self._owner[RUN] is token:
                del self._owner[RUN]

    def _resolve_output_names(self, names: object) -> list[IndexedBinding]:
        """Return the outputs with the given names. Raises BindingError: a name is unknown."""
        output_names = [indexed_binding[1].name for indexed_binding in self._outputs]
        name_list = require_list(names, "outputs", BindingError)
        requested = [require_str(name, "the name of an output", BindingError) for name in name_list]
        unknown = [name for name in requested if name not in output_names]
        if unknown:
            detail = ", ".join(name or "''" for name in unknown)
            raise BindingError(
                f"the engine's outputs are {', '.join(output_names)}; unknown: {detail}"
            )
        return [self._outputs[output_names.index(name)] for name in requested]

    def _arrays_from(
        self, inputs: Mapping[str, Any]
    ) -> tuple[list[Any], tuple[tuple[int, ...], ...]]:
        """Return arrays by binding index (None for outputs) and the shapes of the inputs."""
        if inputs.__class__ is not dict:
            _check_mapping(inputs, self._engine.inputs)
        if len(inputs) != len(self._inputs):
            raise _input_names_error(inputs, self._engine.inputs)
        arrays: list[NDArray[Any] | None] = [None] * len(self._indexed_bindings)
        shapes: list[tuple[int, ...]] = []
        for index, binding, dtype in self._inputs:
            try:
                array = inputs[binding.name]
            except KeyError:
                raise _input_names_error(inputs, self._engine.inputs) from None
            if type(array) is not ndarray or array.dtype is not dtype:
                array = self._input(array, binding, dtype)
            arrays[index] = array
            shapes.append(array.shape)
        return arrays, tuple(shapes)

    def _staged_call_for_shapes(self, shapes: tuple[tuple[int, ...], ...]) -> StagedCall:
        """Create and cache the call for inputs of these shapes."""
        values = values_from_shapes([binding for _, binding, _ in self._inputs], shapes)
        call = call_from_values(self._header, values)
        return self._cache_call(shapes, call, call.shapes)

    def _cache_call(
        self, key: object, call: ResolvedCall, shapes: tuple[tuple[int, ...] | None, ...]
    ) -> StagedCall:
        """Check the call's symbol values and cache the staged call under ``key``."""
        if (runtime_checks := self._runtime_checks[call.plan]) is not None:
            runtime_checks.check(call.values)
        if len(self._staged_calls) >= _MAX_CACHED_SHAPES:
            self._staged_calls.clear()
        self._staged_calls[key] = staged_call = self._staging.staged_call(call, shapes)
        return staged_call

    @abstractmethod
    def _compute(
        self,
        staged_call: StagedCall,
        arrays: list[Any],
        inputs: Mapping[str, Any],
        requested: Sequence[IndexedBinding],
    ) -> dict[str, Any]:
        """Run on arrays by binding index; return new arrays of the ``wanted`` outputs by name.

        ``inputs`` are the arrays that the application passed.
        """

    @abstractmethod
    def _input(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        """Convert an input array of any library. Raises BindingError: the dtype is wrong."""

    @abstractmethod
    def _output(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        """Convert an output array of any library. Raises BindingError: it cannot be written."""

    # ---- by index

    def execute(self, batch_size: int, bindings: Sequence[Any]) -> None:
        """Run once on the application's memory and return when the outputs are complete.

        Args:
            batch_size: the implicit batch, or the extent of the symbol ``batch``. It must be 1 if
                the batch has another name or is fixed: it then follows from the arrays.
            bindings: for each binding index an array or an address. Addresses are not validated on
                the host. An array has the binding's shape, apart from axes of extent one, or is
                flat. An array for more images or rows than the batch is filled from its start.
                For an output with a data-dependent extent, the array must have the largest shape
                that the plan can produce; the error message for a smaller array gives it. The
                result is stored contiguously at the array's start:
                ``array.reshape(-1)[:prod(shape)].reshape(shape)``, with ``shape`` from
                `output_shape`. The elements behind it are not written.

        Raises:
            BindingError: an array does not fit, or the number of bindings is wrong.
            IndexRangeError: as for `run`; the content of the outputs is then undefined.
            ContextError: the batch is larger than the engine's maximum, or the context is closed
                or busy.
        """
        staged_call, arrays = self._bind(batch_size, bindings)
        token = [get_ident()]
        try:
            self._enter(token)
            self._execute_bound(staged_call, arrays)
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
        """Enqueue one run on a stream and return without waiting for it.

        The arguments are checked at once. An error that occurs in the run, such as an index out of
        range, is raised once: by the stream's ``synchronize`` or by the context's next `run`,
        `execute` or `enqueue`, whichever comes first. Events and ``close`` do not raise it. The
        outputs of that run are then undefined; later work of the stream is executed. A run behind
        a failed task of `smelt.Stream.submit` is dropped. A second run waits for the first, even
        on another stream.

        Args:
            batch_size: as for `execute`.
            bindings: as for `execute`; the arrays are kept alive until the run is complete. After
                the stream is synchronized, `output_shape` returns the shapes of this run.
            stream: executes the run in order: a `smelt.Stream` of the engine's device; on a GPU
                also a stream of another library, or a handle.
            input_consumed: a `smelt.Event` that is recorded when the inputs may be changed again.

        Raises:
            BindingError: as for `execute`.
            ContextError: the batch is too large, the context is closed, or ``stream`` or
                ``input_consumed`` has a wrong type or device.
            The error of a run that was enqueued before; this run is then not enqueued.
        """

    def _bind(self, batch_size: int, bindings: Sequence[Any]) -> tuple[StagedCall, list[Any]]:
        """Check bindings by index; return their call, and the bindings as arrays and addresses."""
        self._check_open()
        arrays = require_list(bindings, "bindings", BindingError)
        if len(arrays) != len(self._indexed_bindings):
            names = ", ".join(binding.name for _, binding, _ in self._indexed_bindings)
            raise BindingError(
                f"{len(arrays)} bindings are given, but the engine has "
                f"{len(self._indexed_bindings)}: {names}"
            )
        shapes: list[tuple[int, ...] | None] = []
        for index, binding, dtype in self._indexed_bindings:
            array = arrays[index]
            if (
                type(array) is not ndarray
                or array.dtype is not dtype
                or not (binding.is_input or array.flags.carray)
            ):
                array = arrays[index] = self._convert_binding(array, binding, dtype)
            shapes.append(None if isinstance(array, int) else array.shape)
        if type(batch_size) is not int:
            batch_size = require_int(batch_size, "the batch size", ContextError, least=1)
        key = (batch_size, tuple(shapes))
        staged_call = self._staged_calls.get(key)
        if staged_call is None:
            staged_call = self._staged_call_for_batch(batch_size, key[1])
        starts = start_addresses(arrays)
        checked_call, checked_starts = self._checked_starts
        if checked_call is not staged_call or checked_starts != starts:
            check_apart(self._header.bindings, starts, staged_call.sizes)
            self._checked_starts = staged_call, starts
        return staged_call, arrays

    def _convert_binding(self, value: Any, binding: Binding, dtype: np.dtype[Any]) -> Any:
        """Convert one binding of the application to an array or an address."""
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return _checked_address(binding, int(cast("int", value)))
        convert = self._input if binding.is_input else self._output
        return convert(value, binding, dtype)

    def _staged_call_for_batch(
        self, batch_size: int, shapes: tuple[tuple[int, ...] | None, ...]
    ) -> StagedCall:
        """Create and cache the call for a batch size and shapes (None for an address)."""
        values = values_from_batch(self._header, batch_size, shapes)
        call = call_from_values(self._header, values)
        call = call_for_arrays(call, self._header.bindings, shapes)
        return self._cache_call((batch_size, shapes), call, shapes)

    @abstractmethod
    def _execute_bound(self, staged_call: StagedCall, arrays: list[Any]) -> None:
        """Run on the application's memory and return when the outputs are complete."""

    # ---- one run

    def _enter(self, token: list[int]) -> None:
        """Acquire the context for a synchronous run; the caller releases it if it owns it.

        Each run has its own token, which holds the identifier of its thread.
        """
        if self._owner.setdefault(RUN, token) is not token or self._is_closed:
            self._raise_not_available()

    def _raise_not_available(self) -> NoReturn:
        """Raise ContextError: the context is closed or busy."""
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
        """Run plan ``number``; values that the run determines are set in ``values``."""
        if self._weights is not self._code.weights:
            self._use_new_weights()
        segments = self._segments.get(number)
        if segments is None:
            plan, runtime_checks = self._header.plans[number], self._runtime_checks[number]
            segments = split_plan(plan, self._segment_factory, runtime_checks)
            self._segments[number] = segments
        if consumed is None and self._profiler is None and len(segments) == 1:
            segments[0].run(values, self._memories, addresses, timed=False)
        else:
            self._execute_segments(number, values, addresses, consumed)

    def _execute_segments(
        self,
        number: int,
        values: dict[str, int],
        addresses: list[int],
        consumed: InputsConsumed | None,
    ) -> None:
        """Run a plan by segments, timed for a profiler or signalling when inputs are consumed."""
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
        """Report each layer of the plan once; a layer without steps takes no time."""
        layers = self._header.layers
        if len(self._header.plans) == 1:
            layer_indices: Sequence[int] = range(len(layers))
        else:
            steps = self._header.plans[number].steps
            layer_indices = list(dict.fromkeys(step.layer for step in steps))
        for layer in layer_indices:
            profiler.report_layer_time(layers[layer].name, times.get(layer, 0.0))

    def _use_new_weights(self) -> None:
        """Switch to refitted weights.

        If it is interrupted, the next run repeats it; until then the old weights stay alive.
        """
        weights = self._code.weights
        self._memories.weights = weights.address
        self._forget_addresses()
        self._weights = weights

    def _forget_addresses(self) -> None:
        """Make segments evaluate addresses again."""
        for segments in self._segments.values():
            for segment in segments:
                segment.forget()

    # ---- release

    @abstractmethod
    def close(self) -> None:
        """Release the context's memory after enqueued runs are complete. Idempotent.

        Errors of enqueued runs are not raised here: the stream's ``synchronize`` raises them.
        """

    def _close_segments(self) -> None:
        self._is_closed = True
        for segments in self._segments.values():
            for segment in segments:
                segment.close()
        self._segments.clear()
        self._staged_calls.clear()


def _check_mapping(inputs: object, expected: Sequence[Binding]) -> None:
    if not isinstance(inputs, Mapping):
        name = min((binding.name for binding in expected), default="name")
        raise BindingError(
            f"run expects a mapping of arrays by name, e.g. {{{name!r}: array}}, not "
            f"{type(inputs).__name__}"
        )


def _input_names_error(inputs: Mapping[str, object], expected: Sequence[Binding]) -> BindingError:
    """Return the error for input names that are missing or unknown."""
    names = {binding.name for binding in expected}
    missing = sorted(names - set(inputs))
    unknown = sorted(set(map(str, inputs)) - names)
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    parts += [f"unknown: {', '.join(unknown)}"] if unknown else []
    return BindingError(f"the engine's inputs are {', '.join(sorted(names))}; {'; '.join(parts)}")


def _checked_address(binding: Binding, address: int) -> int:
    """Return an application's address; only numbers that are never addresses are rejected."""
    if not _FIRST_ADDRESS <= address < 1 << 63:
        raise BindingError(
            f"{binding.name}: {address} is not a valid address; pass an array or its address"
        )
    return address


def _reset(context: ExecutionContext) -> None:
    """Reset a context in a forked child, where the parent's threads do not exist."""
    context.reset()


_contexts = reset_in_child(_reset)
