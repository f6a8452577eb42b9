"""Execution contexts: each runs one inference at a time in memory of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy import ndarray

from smelt.errors import BindingError, ContextError
from smelt.runtime._array_interop import check_apart, start_addresses
from smelt.runtime._plan_executor import NamedRun
from smelt.runtime._plan_selection import (
    call_for_arrays,
    call_from_values,
    values_from_batch,
    values_from_shapes,
)
from smelt.signal_errors import pass_on_handler_error
from smelt.types import (
    Closeable,
    counted,
    evaluate_dim,
    is_integer,
    override,
    require_int,
    require_list,
    require_method,
    require_str,
    reset_in_child,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from smelt.engine import Binding
    from smelt.runtime._engine import Engine
    from smelt.runtime._plan_executor import IndexedBinding, PlanExecutor, Profiler
    from smelt.runtime._plan_selection import ArrayShapes, ResolvedCall
    from smelt.runtime._staging import StagedCall

_FIRST_ADDRESS: Final = 4096
"""Lowest valid address: no system maps the first page, so a lower one is a null pointer or an
error."""
_MAX_CACHED_SHAPES: Final = 64
"""Number of combinations of shapes whose calls are kept."""


class ExecutionContext(Closeable):
    """Runs an engine, one inference at a time; get one from `Engine.create_context`.

    A context keeps its engine alive. If a second thread uses a context that is busy, a
    `ContextError` is raised: create one context for each thread.
    """

    def __init__(self, engine: Engine, executor: PlanExecutor) -> None:
        self._engine, self._executor, self._lock = engine, executor, executor.lock
        self._header = engine.header
        self._indexed_bindings = executor.indexed_bindings
        self._inputs = [indexed for indexed in self._indexed_bindings if indexed[1].is_input]
        self._outputs = [indexed for indexed in self._indexed_bindings if not indexed[1].is_input]
        self._staged_calls: dict[object, StagedCall] = {}
        self._checked_starts: tuple[StagedCall | None, list[int | None]] = (None, [])
        """The last call that passed the overlap check, with the addresses of its arrays."""
        self._is_released = False
        """Whether all memory is released; a close that is interrupted is repeated by the next."""
        _contexts.add(self)

    def reset(self) -> None:
        """Discard the state of runs of other threads, which do not exist in a forked child."""
        self._executor.reset()

    @property
    def engine(self) -> Engine:
        """The engine that the context runs."""
        return self._engine

    @property
    def threads(self) -> int:
        """Maximum number of host threads that a run uses."""
        return self._executor.threads

    @property
    def profiler(self) -> Profiler | None:
        """Receives layer times after each execution, also an enqueued one; None to disable.

        Any object with a method ``report_layer_time(name, milliseconds)`` is accepted.
        """
        return self._executor.profiler

    @profiler.setter
    def profiler(self, profiler: Profiler | None) -> None:
        if profiler is not None:
            kind = type(profiler).__name__
            require_method(profiler, "report_layer_time", f"a profiler ({kind})", ContextError)
        self._executor.profiler = profiler

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
        completed = self._executor.last_completed
        if completed is None:
            raise ContextError(
                "this context has not completed a run, so its outputs have no shapes yet"
            )
        call, values = completed
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
        if self._executor.enqueued or self._executor.failures:
            self._executor.check_enqueued()
        return self._lock.hold(self._run, inputs, requested)

    def _run(
        self, inputs: Mapping[str, Any], requested: Sequence[IndexedBinding]
    ) -> dict[str, Any]:
        """Run by name; the caller holds the lock."""
        arrays, shapes = self._arrays_from(inputs)
        staged_call = self._staged_calls.get(shapes)
        if staged_call is None:
            staged_call = self._staged_call_for_shapes(shapes)
        return self._executor.run(NamedRun(staged_call, arrays, inputs, requested))

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
            except KeyError as error:
                pass_on_handler_error(error)
                raise _input_names_error(inputs, self._engine.inputs) from None
            if type(array) is not ndarray or array.dtype is not dtype:
                array = self._executor.array_of(array, binding, dtype)
            arrays[index] = array
            shapes.append(array.shape)
        return arrays, tuple(shapes)

    def _staged_call_for_shapes(self, shapes: tuple[tuple[int, ...], ...]) -> StagedCall:
        """Create and cache the call for inputs of these shapes."""
        values = values_from_shapes([binding for _, binding, _ in self._inputs], shapes)
        call = call_from_values(self._header, values)
        return self._cache_call(shapes, call, call.shapes)

    def _cache_call(self, key: object, call: ResolvedCall, shapes: ArrayShapes) -> StagedCall:
        """Check the call's symbol values and cache the staged call under ``key``."""
        if (runtime_checks := self._executor.runtime_checks[call.plan]) is not None:
            runtime_checks.check(call.values)
        if len(self._staged_calls) >= _MAX_CACHED_SHAPES:
            self._staged_calls.clear()
        self._staged_calls[key] = staged_call = self._executor.staging.staged_call(call, shapes)
        return staged_call

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
        if self._executor.enqueued or self._executor.failures:
            self._executor.check_enqueued()
        self._lock.hold(self._execute, batch_size, bindings)

    def _execute(self, batch_size: int, bindings: Sequence[Any]) -> None:
        """Run by index; the caller holds the lock."""
        staged_call, arrays = self._bind(batch_size, bindings)
        self._executor.execute(staged_call, arrays)

    def enqueue(
        self, batch_size: int, bindings: Sequence[Any], stream: Any, input_consumed: Any = None
    ) -> None:
        """Enqueue one run on a stream and return without waiting for it.

        The arguments are checked at once. An error that occurs in the run, such as an index out of
        range, is raised once: by the stream's ``synchronize`` or by the context's next `run`,
        `execute` or `enqueue`, whichever comes first. Events and ``close`` do not raise it. The
        outputs of that run are then undefined; later work of the stream is executed. A run behind
        a failed task of `smelt.Stream.submit` is dropped. A second run waits for the first, even
        on another stream. On a CPU several threads may call it at once: their runs follow one
        another in any order. On a GPU all but one of them raise a ContextError.

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
        native_stream, event = self._executor.check_stream(stream, input_consumed)
        staged_call, arrays = self._bind(batch_size, bindings)
        self._executor.enqueue(staged_call, arrays, native_stream, event)

    def _bind(self, batch_size: int, bindings: Sequence[Any]) -> tuple[StagedCall, list[Any]]:
        """Check bindings by index; return their call, and the bindings as arrays and addresses."""
        self._lock.check_open()
        self._executor.check_thread()
        arrays = require_list(bindings, "bindings", BindingError)
        if len(arrays) != len(self._indexed_bindings):
            names = ", ".join(binding.name for _, binding, _ in self._indexed_bindings)
            raise BindingError(
                f"the call passes {counted(len(arrays), 'binding')}, but the engine has "
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
            batch_size = require_int(batch_size, "the batch size", ContextError, minimum=1)
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
        if is_integer(value):
            address = _checked_address(binding, int(value))
            self._executor.check_address(binding, address)
            return address
        return self._executor.array_of(value, binding, dtype)

    def _staged_call_for_batch(self, batch_size: int, shapes: ArrayShapes) -> StagedCall:
        """Create and cache the call for a batch size and shapes (None for an address)."""
        values = values_from_batch(self._header, batch_size, shapes)
        call = call_from_values(self._header, values)
        call = call_for_arrays(call, self._header.bindings, shapes)
        return self._cache_call((batch_size, shapes), call, shapes)

    # ---- release

    @override
    def close(self) -> None:
        """Release the context's memory after enqueued runs are complete. Idempotent.

        Errors of enqueued runs are not raised here: the stream's ``synchronize`` raises them.

        Raises:
            ContextError: the call is made during the context's own run, in the same thread.
        """
        if not self._is_released:
            self._executor.wait_for_enqueued()
            self._lock.hold_in_turn(self._close)

    def _close(self) -> None:
        self._lock.is_closed = True
        self._staged_calls.clear()
        self._executor.close()
        self._is_released = True


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
    keys: list[object] = list(inputs)  # an application may use anything
    unknown = sorted({key if isinstance(key, str) else shown(key) for key in keys} - names)
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


_contexts = reset_in_child(ExecutionContext.reset)
