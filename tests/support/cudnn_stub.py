# ruff: noqa: N802  (functions have the library's own names)
"""cuDNN without a GPU: the functions that smelt calls, on the driver stub's memory, by numpy.

It is as strict as the real one, and stricter: unknown handles, attributes of the wrong type, a
descriptor that is used before it is finished or after it is gone, graphs that are no convolution
with its epilogue, operands and workspaces at odd addresses, and leaks are seen. What it computes it
computes when the stream comes to it, and it writes over all of its workspace.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from smelt import ops
from smelt.devices.cuda import _cudnn
from smelt.ops import RoundMantissa
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from tests.support.cuda_driver_stub import StubDriver

VERSION = 91900
OK, BAD, NOT_SUPPORTED = 0, 2000, 3000
Array = np.ndarray[Any, Any]
_TYPES = {0: DType.FLOAT32, 2: DType.FLOAT16, 9: DType.BFLOAT16}
"""Element types by number."""

_POINTWISE, _WINDOW, _ENGINE, _CONFIGURATION, _HEURISTICS, _PLAN = 0, 1, 2, 3, 4, 5
_CHOICE, _CONVOLUTION, _OPERATION, _GRAPH, _PACK, _TENSOR = 7, 10, 13, 15, 16, 17
_HANDLE, _DESCRIPTOR = 0, 15
_C_TYPES: dict[int, Any] = {
    0: ctypes.c_void_p, 1: ctypes.c_int, 2: ctypes.c_bool, 3: ctypes.c_int64, 4: ctypes.c_float,
    6: ctypes.c_void_p, 7: ctypes.c_int, 8: ctypes.c_int, 9: ctypes.c_int, 11: ctypes.c_int,
    14: ctypes.c_int, 15: ctypes.c_void_p,
}  # fmt: skip
_SCHEMA: dict[int, dict[int, int]] = {
    _POINTWISE: {0: 14, 1: 1},
    _WINDOW: {100: 1, 101: 7, 102: 3, 103: 3, 104: 3, 105: 3, 106: 3},
    _ENGINE: {1300: 15, 1301: 3},
    _CONFIGURATION: {300: 15, 302: 15},
    _HEURISTICS: {200: 8, 201: 15},
    _PLAN: {400: 0, 401: 15},
    _CHOICE: {600: 9, 601: 3},
    _CONVOLUTION: {700: 4, 701: 4, 702: 15, 703: 15, 704: 15, 705: 15},
    _OPERATION: {750: 15, 751: 15, 752: 15, 753: 15},
    _GRAPH: {800: 0, 801: 15},
    _PACK: {1000: 3, 1001: 6, 1003: 6},
    _TENSOR: {900: 3, 901: 1, 902: 3, 903: 3, 906: 3, 907: 2},
}
"""The types of the attributes of each kind of descriptor."""
_OPTIONAL = {302, 752}
_ADD, _RELU = 0, 100


@dataclass
class _Descriptor:
    kind: int
    values: dict[int, list[Any]] = field(default_factory=dict[int, list[Any]])
    is_finished: bool = False
    meaning: Any = None
    """What it was found to stand for."""


@dataclass(frozen=True)
class _Tensor:
    number: int
    kind: int
    shape: tuple[int, ...]
    is_virtual: bool


@dataclass(frozen=True)
class Convolution:
    """One graph, as the library understood it."""

    images: _Tensor
    filters: _Tensor
    result: _Tensor
    window: tuple[tuple[int, ...], ...]
    """Strides, pads, dilations."""
    residual: _Tensor | None = None
    bias: _Tensor | None = None
    relu: bool = False

    @property
    def operands(self) -> list[_Tensor]:
        """Those that lie in memory."""
        found = (self.images, self.filters, self.residual, self.bias, self.result)
        return [tensor for tensor in found if tensor is not None]


@dataclass(frozen=True)
class StubEngine:
    """An engine of the stub's."""

    number: int
    knobs: tuple[tuple[int, int], ...] = ()
    workspace_bytes: int = 0
    notes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Execution:
    """One call."""

    what: Convolution
    engine: int
    knobs: tuple[tuple[int, int], ...]


class StubCudnn:
    """Put it where the library is loaded."""

    def __init__(self, driver: StubDriver, version: int = VERSION) -> None:
        self.driver, self.version, self.cuda = driver, version, 13000
        plain, roomy = StubEngine(10, ((2, 5), (13, 1))), StubEngine(41, ((2, 1),), 4000)
        self.proposals: dict[int, tuple[StubEngine, ...]] = {
            3: (plain, StubEngine(5, notes=(0, 4)), roomy, StubEngine(6, notes=(2,))),
            1: (roomy, StubEngine(10, ((2, 7), (13, 0))), StubEngine(51, notes=(0,))),
            2: (StubEngine(0),),
        }
        """Of each mode of the heuristics."""
        self.costs_ms: dict[int, float] = {}
        """What engines take on a driver with a clock."""
        self.refuses_graphs = False
        self.checks_fail = False
        self.calls: list[Execution] = []
        self.done = 0
        self.live: dict[int, _Descriptor | str] = {}
        self.streams: dict[int, int] = {}
        self._next = 1

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Be the only library of this name."""

        def paths(*_: Any) -> Iterator[str]:
            yield "stub"

        def opened(*_: Any, **_named: Any) -> StubCudnn:
            return self

        patch.setattr(_cudnn, "load_cublaslt", opened)
        patch.setattr(_cudnn, "paths_to_try", paths)
        patch.setattr(_cudnn, "open_library", opened)

    def cudnnGetVersion(self) -> int:
        return self.version

    def cudnnGetCudartVersion(self) -> int:
        return self.cuda

    # ---- handles and descriptors

    def _give(self, place: int, what: _Descriptor | str) -> int:
        self._next += 8
        self.live[self._next] = what
        ctypes.c_uint64.from_address(place).value = self._next
        return OK

    def cudnnCreate(self, place: int) -> int:
        assert self.driver.current is not None, "no GPU is selected"
        return self._give(place, "library")

    def cudnnDestroy(self, handle: int) -> int:
        assert self.live.pop(handle) == "library"
        return OK

    def cudnnSetStream(self, handle: int, stream: int) -> int:
        assert self.live[handle] == "library"
        self.streams[handle] = stream
        return OK

    def cudnnBackendCreateDescriptor(self, kind: int, place: int) -> int:
        return self._give(place, _Descriptor(kind)) if kind in _SCHEMA else BAD

    def cudnnBackendDestroyDescriptor(self, handle: int) -> int:
        assert isinstance(self.live.pop(handle), _Descriptor)
        return OK

    def _of(self, handle: int, *kinds: int) -> _Descriptor:
        """A finished descriptor that is alive."""
        found = self.live[handle]
        assert isinstance(found, _Descriptor)
        assert found.is_finished
        assert not kinds or found.kind in kinds
        return found

    def cudnnBackendSetAttribute(
        self, handle: int, attribute: int, type_: int, count: int, at: int
    ) -> int:
        made = self.live[handle]
        assert isinstance(made, _Descriptor)
        if made.is_finished or _SCHEMA[made.kind].get(attribute) != type_:
            return BAD
        values = list((_C_TYPES[type_] * count).from_address(at))
        for value in values if type_ == _DESCRIPTOR else ():
            self._of(value)
        assert type_ != _HANDLE or [self.live[value] for value in values] == ["library"]
        made.values[attribute] = values
        return OK

    def cudnnBackendFinalize(self, handle: int) -> int:
        made = self.live[handle]
        assert isinstance(made, _Descriptor)
        if made.is_finished or not _SCHEMA[made.kind].keys() - _OPTIONAL <= made.values.keys():
            return BAD
        finish = {
            _TENSOR: self._tensor,
            _GRAPH: self._graph,
            _ENGINE: self._engine,
            _CONFIGURATION: self._configuration,
            _PLAN: self._plan,
            _HEURISTICS: self._heuristics,
        }.get(made.kind)
        status = OK if finish is None else finish(made)
        made.is_finished = status == OK
        return status

    def _tensor(self, made: _Descriptor) -> int:
        values = made.values
        shape = tuple(values[902])
        (alignment,), (kind,), (number,), (is_virtual,) = (values[k] for k in (900, 901, 906, 907))
        steps = [prod(shape[axis + 1 :]) * shape[1] for axis in range(2, len(shape))]
        if alignment != 16 or kind not in _TYPES or min(shape) < 1 or not 4 <= len(shape) <= 5:
            return BAD
        if values[903] != [prod(shape[1:]), 1, *steps]:
            return NOT_SUPPORTED
        made.meaning = _Tensor(number, kind, shape, is_virtual)
        return OK

    def _graph(self, made: _Descriptor) -> int:
        first, *behind = (self._of(place) for place in made.values[801])
        what = self._convolution(first)
        for operation in behind if what else ():
            what = what and self._with(what, operation)
        numbers = [] if what is None else [tensor.number for tensor in what.operands]
        if what is None or len(numbers) != len(set(numbers)) or what.result.is_virtual:
            return BAD
        made.meaning = what
        return NOT_SUPPORTED if self.refuses_graphs else OK

    def _convolution(self, operation: _Descriptor) -> Convolution | None:
        assert operation.kind == _CONVOLUTION
        images, filters, result = (
            cast("_Tensor", self._of(operation.values[k][0], _TENSOR).meaning)
            for k in (704, 703, 705)
        )
        values = self._of(operation.values[702][0], _WINDOW).values
        (sums,), (mode,), dilations, strides, after, before, (axes,) = (
            values[k] for k in range(100, 107)
        )
        assert (sums, mode, operation.values[700], operation.values[701]) == (0, 1, [1.0], [0.0])
        lengths = {len(x) for x in (dilations, strides, after, before)}
        if lengths != {axes} or {len(t.shape) for t in (images, filters, result)} != {axes + 2}:
            return None
        window = tuple(strides), (*before, *after), tuple(dilations)
        groups, odd = divmod(images.shape[1], filters.shape[1])
        if odd or filters.shape[0] % groups or images.kind != filters.kind:
            return None
        return Convolution(images, filters, result, window)

    def _with(self, what: Convolution, operation: _Descriptor) -> Convolution | None:
        """The graph with one more operation, in the order that the library knows."""
        values = operation.values
        mode = self._of(values[750][0], _POINTWISE).values[0][0]
        x, y = (cast("_Tensor", self._of(values[k][0], _TENSOR).meaning) for k in (751, 753))
        assert operation.kind == _OPERATION
        if x != what.result or not x.is_virtual or x.kind != 0 or x.shape != y.shape or what.relu:
            return None
        changes: dict[str, Any] = {"result": y}
        if mode == _RELU and 752 not in values:
            changes["relu"] = True
        elif mode == _ADD and what.bias is None:
            other = cast("_Tensor", self._of(values[752][0], _TENSOR).meaning)
            is_bias = prod(other.shape) == other.shape[1] == x.shape[1]
            if not is_bias and (other.shape != x.shape or what.residual is not None):
                return None
            changes["bias" if is_bias else "residual"] = other
        else:
            return None
        return Convolution(**{**vars(what), **changes})

    # ---- engines

    @property
    def _engines(self) -> list[StubEngine]:
        return [engine for engines in self.proposals.values() for engine in engines]

    def _engine(self, made: _Descriptor) -> int:
        self._of(made.values[1300][0], _GRAPH)
        number = made.values[1301][0]
        return OK if number in {engine.number for engine in self._engines} else NOT_SUPPORTED

    def _configuration(self, made: _Descriptor) -> int:
        number = self._of(made.values[300][0], _ENGINE).values[1301][0]
        choices = [self._of(place, _CHOICE).values for place in made.values.get(302, [])]
        knobs = tuple((choice[600][0], choice[601][0]) for choice in choices)
        for engine in self._engines:
            if (engine.number, engine.knobs) == (number, knobs):
                made.meaning = engine
                return OK
        return NOT_SUPPORTED

    def _heuristics(self, made: _Descriptor) -> int:
        self._of(made.values[201][0], _GRAPH)
        made.meaning = self.proposals[made.values[200][0]]
        return OK

    def _plan(self, made: _Descriptor) -> int:
        if self.checks_fail:
            return NOT_SUPPORTED
        made.meaning = self._of(made.values[401][0], _CONFIGURATION).meaning
        return OK

    def cudnnBackendGetAttribute(
        self, handle: int, attribute: int, type_: int, most: int, count: int, at: int | None
    ) -> int:
        made = self._of(handle)
        found: list[Any] = []
        if (made.kind, attribute) == (_HEURISTICS, 202):
            found = [(_CONFIGURATION, {}, engine) for engine in made.meaning]
        elif (made.kind, attribute) == (_CONFIGURATION, 300):
            engine = made.meaning
            found = [(_ENGINE, {1301: [engine.number], 1303: list(engine.notes)}, engine)]
        elif (made.kind, attribute) == (_CONFIGURATION, 302) and most:
            found = [(_CHOICE, {600: [k], 601: [v]}, None) for k, v in made.meaning.knobs]
        elif (made.kind, attribute) in {(_CONFIGURATION, 303), (_PLAN, 402)}:
            found = [made.meaning.workspace_bytes]
        elif (made.kind, attribute) != (_CONFIGURATION, 302):
            found = made.values[attribute]
        ctypes.c_int64.from_address(count).value = len(found)
        if at is None:
            return OK
        places = (_C_TYPES[type_] * most).from_address(at)
        for place, value in enumerate(found[:most]):
            if type_ == _DESCRIPTOR:
                self._fill(places[place], *value)
            else:
                places[place] = value
        return OK

    def _fill(self, handle: int, kind: int, values: dict[int, list[Any]], meaning: Any) -> None:
        blank = self.live[handle]
        assert isinstance(blank, _Descriptor)
        assert (blank.kind, blank.is_finished) == (kind, False)
        blank.values, blank.meaning, blank.is_finished = values, meaning, True

    # ---- the convolution

    def cudnnBackendExecute(self, handle: int, plan: int, pack: int) -> int:
        assert self.live[handle] == "library"
        configuration = self._of(self._of(plan, _PLAN).values[401][0], _CONFIGURATION)
        graph = self._of(self._of(configuration.values[300][0], _ENGINE).values[1300][0], _GRAPH)
        what, engine = graph.meaning, configuration.meaning
        given = self._of(pack, _PACK).values
        places = dict(zip(given[1000], given[1001], strict=True))
        workspace = given[1003][0] or 0
        if sorted(places) != sorted(tensor.number for tensor in what.operands):
            return BAD
        odd = any(place % 16 for place in places.values()) or workspace % 256
        if odd or (engine.workspace_bytes and not workspace):
            return BAD
        self.calls.append(Execution(what, engine.number, engine.knobs))

        def work() -> None:
            if engine.workspace_bytes:
                ctypes.memset(workspace, 0xEE, engine.workspace_bytes)
            _compute(what, places, is_rounded=0 in engine.notes)
            self.done += 1
            self.driver.now_ms += self.costs_ms.get(engine.number, 0.0)

        stream = self.streams[handle]
        return int(self.driver._do(stream, work)[0])  # pyright: ignore[reportPrivateUsage]


def hide_cudnn(patch: pytest.MonkeyPatch) -> None:
    """Have the library nowhere."""

    def opened(*_: Any) -> None:
        return None

    patch.setattr(_cudnn, "open_library", opened)


def _compute(what: Convolution, places: dict[int, int], *, is_rounded: bool) -> None:
    x, w = (_array(tensor, places) for tensor in (what.images, what.filters))
    if is_rounded and what.images.kind == 0:
        x, w = (RoundMantissa().reference(a)[0] for a in (x, w))
    strides, pads, dilations = what.window
    groups = what.images.shape[1] // what.filters.shape[1]
    op = ops.Conv(what.filters.shape[2:], strides, pads, dilations, groups)
    (total,) = op.reference(x, w, None)
    for other in (what.residual, what.bias):
        if other is not None:
            total = total + _array(other, places)
    total = np.maximum(total, 0) if what.relu else total
    memory = _memory(what.result, places)
    memory[...] = np.moveaxis(total, 1, -1).astype(np.float32).astype(memory.dtype)


def _memory(tensor: _Tensor, places: dict[int, int]) -> Array:
    """A tensor's memory, its channels last."""
    dtype = _TYPES[tensor.kind].numpy
    count, channels, *extents = tensor.shape
    size = prod(tensor.shape) * dtype.itemsize
    memory: Any = (ctypes.c_uint8 * size).from_address(places[tensor.number])
    flat: Any = np.frombuffer(memory, dtype)
    return cast("Array", flat.reshape(count, *extents, channels))


def _array(tensor: _Tensor, places: dict[int, int]) -> Array:
    return np.moveaxis(_memory(tensor, places), -1, 1).astype(np.float32)
