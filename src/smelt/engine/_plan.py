"""The plan: what a context does, as data. Compilers write it, contexts run it.

Addresses are (buffer, byte offset); extents, offsets and strides may be polynomials in the plan's
symbols, evaluated once for each new set of symbol values. A plan holds no pointer and no code, only
the names of kernels.
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
    symbols_of,
    upper_bound,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Json = None | bool | int | float | str | tuple["Json", ...]
"""What may stand in the parameters of a kernel or tactic: hashable, and exact in JSON (tuples are
lists there)."""

Parameters = tuple[tuple[str, Json], ...]
"""Named parameters, sorted by name."""


def parameters(**values: Json) -> Parameters:
    """Named parameters in canonical order."""
    return tuple(sorted(values.items()))


class Options(dict[str, "Json"]):
    """Named parameters of a tactic or a kernel, read with the type that a reader needs.

    Each reader raises InternalError where the parameter is of another type, or is absent and has
    no default: families write what they read, and plans of files are made again from their program.
    """

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer."""
        value = self.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise InternalError(f"the option {name} is {value!r}; it must be an integer")

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        value = self.get(name, default)
        if isinstance(value, str):
            return value
        raise InternalError(f"the option {name} is {value!r}; it must be a string")

    def nested(self, name: str) -> Options:
        """Named parameters within these, as `parameters` gives them."""
        value = self.get(name)
        if isinstance(value, tuple):
            found = Options()
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
        """A tuple of integers."""
        value = self.get(name)
        if isinstance(value, tuple):
            found = tuple(item for item in value if isinstance(item, int))
            if len(found) == len(value):
                return found
        raise InternalError(f"the option {name} is {value!r}; it must be integers")


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One launchable piece of native code, as data: its code follows from this and a target."""

    family: str
    parameters: Parameters

    def __getitem__(self, name: str) -> Any:
        """The parameter called ``name``. Raises KeyError."""
        return dict(self.parameters)[name]

    @property
    def options(self) -> Options:
        """The parameters by name."""
        return Options(self.parameters)

    @property
    def symbol(self) -> str:
        """Name of the kernel's function in every code image: family and content hash."""
        text = json.dumps([self.family, self.parameters], separators=(",", ":"))
        return f"{self.family}_{hashlib.sha256(text.encode()).hexdigest()[:20]}"


class Space(Enum):
    """Where a buffer lies."""

    ARENA = "arena"
    """The context's own memory; ``start`` is the byte offset in it."""
    WEIGHTS = "weights"
    """The engine's packed weights, read-only; ``start`` is the byte offset in them."""
    INPUT = "input"
    """Memory of the application, read-only; ``start`` is the binding's index."""
    OUTPUT = "output"
    """Memory of the application; ``start`` is the binding's index."""
    ERRORS = "errors"
    """The context's error words, zeros as long as nothing was out of range: `ERROR_BYTES` for each
    layer of the engine. Launches write them, and the host reads them once a run is complete."""


ERROR_BYTES: Final = 16
"""What a layer tells of an index out of range, as two words: the index, and the complement of the
extent that it is outside of, which is never zero."""


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
    """A strided window on a buffer, in logical axis order (NCHW whatever the layout)."""

    buffer: int
    offset: Dim
    """Bytes from the buffer's start to element (0, …, 0)."""
    dtype: DType
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    """Elements from one index to the next, for each axis."""
    halo: Halo = ()
    """Zeros around the window that a reader may read as padding."""

    def footprint(self, values: Mapping[str, int]) -> tuple[int, int]:
        """First and one past last byte that window and halo touch, from the buffer's start.

        Equal where they touch none: the offset may then lie anywhere.
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
    """Run one kernel; its 64-bit argument words are the operands' addresses, then the scalars."""

    kernel: KernelSpec
    operands: tuple[View, ...]
    writes: tuple[int, ...]
    """Positions of the operands that are written; the others are only read."""
    scalars: tuple[Dim, ...] = ()
    chunks: Dim = 1
    """Independent pieces of work; which worker takes which never changes a result."""
    scratch_bytes: int = 0
    """Scratch memory for each worker, its content undefined."""
    waits: bool = True
    """Whether every earlier step must be complete before this one starts."""
    uses_pdl: bool = False
    """Whether the device may begin it before the steps that it waits for have ended, where its code
    itself waits for them."""
    layer: int = 0
    """Index into the engine's layers, for the profiler and messages."""


@dataclass(frozen=True, slots=True)
class HostCall:
    """Run the reference of an op in Python (a reference step, a plugin, If or Loop)."""

    op: Json
    """The op, in the op codec's form."""
    inputs: tuple[View | None, ...]
    outputs: tuple[View, ...]
    sizes: tuple[tuple[str, int, int], ...] = ()
    """(symbol, output, axis): symbols that take the extent which the op's result really has."""
    layer: int = 0


Step = Launch | HostCall


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run the engine, for one box of symbol values."""

    symbols: tuple[tuple[str, int, int], ...]
    """(name, smallest, largest) value for which the plan is valid."""
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    arena_bytes: int
    scratch_bytes: int
    """Scratch for each worker: the largest that a step needs."""
    guards: tuple[Guard, ...] = ()
    """What shape inference assumed of the symbols' values, and each run checks."""
    outputs: tuple[tuple[Dim, ...], ...] = ()
    """Extents of each output, in the plan's own symbols: what a run decides in one plan may follow
    from the inputs' shapes in another. Nothing where they are the bindings' own."""

    @property
    def is_open(self) -> bool:
        """Whether a symbol may take more than one value, or a run decides one."""
        return any(low != high for _, low, high in self.symbols) or bool(self.decided)

    @property
    def decided(self) -> dict[str, int]:
        """Each symbol whose value a run itself decides, and the step that decides it last."""
        return {
            name: number
            for number, step in enumerate(self.steps)
            if isinstance(step, HostCall)
            for name, _, _ in step.sizes
        }

    def shapes(self, bindings: Sequence[Binding]) -> list[tuple[Dim, ...]]:
        """Extents of each binding, in the plan's symbols."""
        own = iter(self.outputs)
        return [b.shape if b.is_input else next(own, b.shape) for b in bindings]

    def max_shapes(self, bindings: Sequence[Binding]) -> list[tuple[Dim, ...]]:
        """For each binding, extents for which there is memory before a run decides others."""
        box = {name: (low, high) for name, low, high in self.symbols}
        decided = {name: box[name] for name in self.decided}

        def largest(dim: Dim) -> Dim:
            if symbols_of(dim).isdisjoint(decided):
                return dim
            bound = upper_bound(dim, decided)
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
    """The names of the model's layers that it stands for, joined by " + "."""
    kind: str
    tactic: str
    details: tuple[tuple[str, Json], ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True)
class Weight:
    """A packed weight: bytes in the engine's weights, and how they follow from the model's own."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    recipe: Json = None
    """The transform from named sources, in the recipe codec's form; None when it cannot be
    refitted."""


@dataclass(frozen=True, slots=True)
class GivenArray:
    """An array of the model, from which weights follow: what a refit may put in its place."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The machine and smelt for which an engine's code was made; equal or wider machines run it."""

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
    """Where its tactics were timed: a GPU and its driver, a processor and its threads. Code runs
    elsewhere, too, but others may be faster there. Empty where tactics were chosen by estimates."""


@dataclass(frozen=True, slots=True)
class EngineHeader:
    """Everything about an engine but its weights and code."""

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
    """JSON text of the network as it was given and of what was asked of its build; nothing in an
    engine that cannot be retuned."""
    sources: tuple[Weight, ...] = ()
    """The arrays of that network, which lie in the engine's sources."""
    given: tuple[GivenArray, ...] = ()
    """The model's arrays that weights' recipes name."""
    scales: tuple[Json, ...] = ()
    """Recipes, as of weights, of what a build demands to be positive and finite."""
    metadata: tuple[tuple[str, str], ...] = field(default=())


def as_json(value: object) -> Json:
    """The value with lists made tuples, as ``Json`` wants them."""
    if isinstance(value, list | tuple):
        return tuple(as_json(v) for v in cast("tuple[object, ...]", value))
    return cast("Json", value)
