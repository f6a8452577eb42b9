"""The plan: the steps of a context as data. Compilers write plans, and contexts run them.

Addresses are (buffer, byte offset); extents, offsets and strides may be polynomials in the plan's
symbols, evaluated once for each new set of symbol values. A plan contains no pointers and no code,
only the names of kernels.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast

from smelt.errors import InternalError
from smelt.types import (
    Dim,
    DType,
    Guard,
    bounds_of,
    evaluate_dim,
    is_sequence,
    symbols_of,
    upper_bound,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Json = None | bool | int | float | str | tuple["Json", ...]
"""Values of kernel and tactic parameters: hashable, and exactly representable in JSON, where tuples
are lists."""

Parameters = tuple[tuple[str, Json], ...]
"""Named parameters, sorted by name."""


def parameters(**values: Json) -> Parameters:
    """Return named parameters in canonical order."""
    return tuple(sorted(values.items()))


class TypedParameters(dict[str, "Json"]):
    """Named parameters of a tactic or a kernel, with typed access.

    Each method raises InternalError if the parameter has another type, or is absent and has no
    default. This is an internal error because families write the parameters that they read.
    """

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer parameter."""
        value = self.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise InternalError(f"the option {name} is {value!r}; it must be an integer")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string parameter."""
        value = self.get(name, default)
        if isinstance(value, str):
            return value
        raise InternalError(f"the option {name} is {value!r}; it must be a string")

    def nested(self, name: str) -> TypedParameters:
        """Return a parameter that consists of named parameters, as `parameters` creates them."""
        value = self.get(name)
        if isinstance(value, tuple):
            found = TypedParameters()
            for pair in value:
                match pair:
                    case (str(key), inner):
                        found[key] = inner
                    case _:
                        break
            else:
                return found
        raise InternalError(f"the option {name} is {value!r}; it must be named parameters")

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a parameter that is a tuple of integers."""
        value = self.get(name)
        if isinstance(value, tuple):
            found = tuple(item for item in value if isinstance(item, int))
            if len(found) == len(value):
                return found
        raise InternalError(f"the option {name} is {value!r}; it must be integers")


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Specification of a kernel; its code is determined by the specification and the target."""

    family: str
    parameters: Parameters

    def __getitem__(self, name: str) -> Any:
        """Return the parameter ``name``. Raises KeyError: there is none."""
        return dict(self.parameters)[name]

    @property
    def options(self) -> TypedParameters:
        """The parameters by name."""
        return TypedParameters(self.parameters)

    @property
    def symbol(self) -> str:
        """Name of the kernel's function in every code image: family and content hash."""
        text = json.dumps([self.family, self.parameters], separators=(",", ":"))
        return f"{self.family}_{hashlib.sha256(text.encode()).hexdigest()[:20]}"


class Space(Enum):
    """The memory space of a buffer."""

    ARENA = "arena"
    """The context's own memory; ``start`` is the byte offset in it."""
    WEIGHTS = "weights"
    """The engine's packed weights, read-only; ``start`` is the byte offset in them."""
    INPUT = "input"
    """Memory of the application, read-only; ``start`` is the binding's index."""
    OUTPUT = "output"
    """Memory of the application; ``start`` is the binding's index."""
    ERRORS = "errors"
    """The context's error words: `ERROR_BYTES` for each layer of the engine, zero unless an index
    was out of range. Launches write them, and the host reads them after a run."""


ERROR_BYTES: Final = 16
"""Size of a layer's error words: the index that is out of range, and the bitwise complement of the
exceeded extent, which is never zero."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A range of memory, large enough for every value of the plan's symbols."""

    space: Space
    start: int
    size_bytes: int


Halo = tuple[tuple[int, int], ...]
"""For each logical axis, elements that may be read before and after the extent; () for none."""


@dataclass(frozen=True, slots=True)
class View:
    """A strided view of a buffer, in logical axis order (NCHW for all layouts)."""

    buffer: int
    offset: Dim
    """Bytes from the buffer's start to element (0, …, 0)."""
    dtype: DType
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    """Stride of each axis in elements."""
    halo: Halo = ()
    """Elements around the view that a reader may read as padding."""

    def footprint(self, values: Mapping[str, int]) -> tuple[int, int]:
        """Return the first and one past the last byte of view and halo, from the buffer's start.

        Both are equal if the view is empty; the offset may then be arbitrary.
        """
        shape = [evaluate_dim(d, values) for d in self.shape]
        strides = [evaluate_dim(d, values) for d in self.strides]
        low = high = evaluate_dim(self.offset, values)
        halo = self.halo or ((0, 0),) * len(shape)
        for extent, stride, (before, after) in zip(shape, strides, halo, strict=True):
            if extent + before + after == 0:
                return low, low
            ends = (-before * stride, (extent - 1 + after) * stride)
            low += min(ends) * self.dtype.size_bytes
            high += max(ends) * self.dtype.size_bytes
        return low, high + self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch of a kernel; its 64-bit argument words are the operands' addresses, then scalars."""

    kernel: KernelSpec
    operands: tuple[View, ...]
    writes: tuple[int, ...]
    """Positions of the operands that are written; the others are only read."""
    scalars: tuple[Dim, ...] = ()
    chunks: Dim = 1
    """Number of independent work items; results do not depend on how workers share them."""
    scratch_bytes: int = 0
    """Scratch bytes for each worker, with undefined content."""
    waits: bool = True
    """Whether every earlier step must be complete before this one starts."""
    uses_pdl: bool = False
    """Whether the launch may start before the steps that it depends on have ended (PDL), if its
    code waits for them."""
    layer: int = 0
    """Index into the engine's layers, for the profiler and messages."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """Host step: runs the reference of an op in Python (also plugins, If and Loop)."""

    op: Json
    """The op, in the op codec's form."""
    inputs: tuple[View | None, ...]
    outputs: tuple[View, ...]
    sizes: tuple[tuple[str, int, int], ...] = ()
    """(symbol, output, axis): symbols that are set to the actual extent of the op's result."""
    layer: int = 0


@dataclass(frozen=True, slots=True)
class Submit:
    """Host step: runs an engine of another device that the engine contains, and waits for it."""

    partition: int
    """Position of the engine among the partitions."""
    inputs: tuple[View, ...]
    """Contiguous views, in the order of the partition's input bindings."""
    outputs: tuple[View, ...]
    """Contiguous views, in the order of its output bindings."""
    layer: int = 0


HostStep = HostCall | Submit
"""A step that the host runs: it waits for all steps before it, and all after it wait for it."""
Step = Launch | HostStep


def accesses_of(step: Step) -> Iterator[tuple[View, bool]]:
    """Yield the views that a step accesses, each with whether the step writes it."""
    if isinstance(step, HostStep):
        yield from ((view, False) for view in step.inputs if view is not None)
        yield from ((view, True) for view in step.outputs)
        return
    for position, view in enumerate(step.operands):
        yield view, position in step.writes


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps and buffers to run the engine, for one range of each symbol."""

    symbols: tuple[tuple[str, int, int], ...]
    """(name, smallest, largest) value for which the plan is valid."""
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    arena_bytes: int
    scratch_bytes: int
    """Scratch bytes for each worker: the maximum over the steps."""
    guards: tuple[Guard, ...] = ()
    """Conditions on symbols that shape inference assumed, checked by each run."""
    outputs: tuple[tuple[Dim, ...], ...] = ()
    """Shape of each output in the plan's symbols; empty if they are those of the bindings. Plans
    differ here if an extent is data-dependent in one plan and follows from inputs in another."""

    @property
    def launches(self) -> list[Launch]:
        """The steps that are launches."""
        return [step for step in self.steps if isinstance(step, Launch)]

    @property
    def is_open(self) -> bool:
        """Whether a symbol may have more than one value or is determined by a run."""
        return any(low != high for _, low, high in self.symbols) or bool(
            self.data_dependent_symbols
        )

    @property
    def data_dependent_symbols(self) -> dict[str, int]:
        """Symbols whose values a run determines, with the last step that determines each."""
        return {
            name: number
            for number, step in enumerate(self.steps)
            if isinstance(step, HostCall)
            for name, _, _ in step.sizes
        }

    def memory_key(self, view: View) -> tuple[Space, int]:
        """Return the key that is equal for views that may share bytes.

        Buffers of the arena have their own keys, because lifetimes separate them.
        """
        buffer = self.buffers[view.buffer]
        is_own = buffer.space in {Space.ARENA, Space.WEIGHTS}
        return buffer.space, view.buffer if is_own else buffer.start

    def shapes(self, bindings: Sequence[Binding]) -> list[tuple[Dim, ...]]:
        """Return the shape of each binding in the plan's symbols."""
        own_shapes = iter(self.outputs)
        return [b.shape if b.is_input else next(own_shapes, b.shape) for b in bindings]

    def max_shapes(self, bindings: Sequence[Binding]) -> list[tuple[Dim, ...]]:
        """Return the shape of each binding with data-dependent extents at their maximum."""
        box = {name: (low, high) for name, low, high in self.symbols}
        ranges = {name: box[name] for name in self.data_dependent_symbols}

        def largest(dim: Dim) -> Dim:
            if symbols_of(dim).isdisjoint(ranges):
                return dim
            bound = upper_bound(dim, ranges)
            return max(bounds_of(dim, box)[1], 0) if bound is None else bound

        return [tuple(map(largest, shape)) for shape in self.shapes(bindings)]

    @property
    def largest(self) -> dict[str, int]:
        """Every symbol's largest value."""
        return {name: high for name, _, high in self.symbols}


@dataclass(frozen=True, slots=True)
class Binding:
    """An input or output: a contiguous array in the model's dtype and axis order."""

    name: str
    is_input: bool
    dtype: DType
    shape: tuple[Dim, ...]
    """Extents, batch included, in the engine's symbols."""


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """A layer of the optimised engine: what the profiler and the inspector show."""

    name: str
    """Names of the model's layers that it implements, joined by " + "."""
    kind: str
    tactic: str
    details: tuple[tuple[str, Json], ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True)
class Weight:
    """A packed weight: its location in the engine's weights, and its recipe."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    recipe: Json = None
    """Recipe that computes it from named arrays, in the form of the recipe codec; None if it cannot
    be refitted."""


@dataclass(frozen=True, slots=True)
class RefittableArray:
    """An array of the model that recipes use; a refit may replace it by one of this type."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Machine and version of smelt that an engine's code requires."""

    device: str
    architecture: str
    """"x86_64", "aarch64", "sm_90"…"""
    features: tuple[str, ...]
    """Instruction-set features that the code uses, sorted."""
    system: str
    """"linux", "darwin", "windows"."""
    abi: int
    """Version of the kernels' calling convention and run list."""
    version: str
    """smelt's version."""
    tuned_on: str = ""
    """GPU and driver, or CPU and threads, on which the tactics were timed; empty if they were
    chosen by estimates. The code also runs elsewhere, but other tactics may be faster there."""


@dataclass(frozen=True, slots=True)
class EngineHeader:
    """All data of an engine except its weights and code."""

    name: str
    fingerprint: Fingerprint
    bindings: tuple[Binding, ...]
    max_batch_size: int | None
    """Bound of the symbol ``batch`` where the batch is implicit; None with explicit shapes only."""
    plans: tuple[Plan, ...]
    layers: tuple[LayerInfo, ...]
    weights: tuple[Weight, ...]
    symbols: tuple[tuple[str, int], ...] = ()
    """(kernel symbol, byte offset in the code image)."""
    runtime_symbols: tuple[tuple[str, int], ...] = ()
    """(function, byte offset in the native runtime's image)."""
    report: str = "{}"
    """JSON text of the build report (passes, candidates' times, formats): the inspector's, never
    the runtime's."""
    program: str = "{}"
    """JSON text of the optimised graphs and the tactics that the plans were assembled from."""
    network: str = ""
    """JSON text of the embedded network and the build options; empty if the engine cannot be
    retuned."""
    network_arrays: tuple[Weight, ...] = ()
    """Arrays of the embedded network, stored in the engine's section of that name."""
    given: tuple[RefittableArray, ...] = ()
    """Arrays of the model that recipes of weights use."""
    scales: tuple[Json, ...] = ()
    """Recipes of values that must be positive and finite, such as scales."""
    metadata: tuple[tuple[str, str], ...] = field(default=())


def as_json(value: object) -> Json:
    """The value with lists made tuples, as ``Json`` wants them."""
    if is_sequence(value):
        return tuple(as_json(v) for v in value)
    return cast("Json", value)
