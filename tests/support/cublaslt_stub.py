# ruff: noqa: N802  (functions have the library's own names)
"""cuBLASLt without a GPU: the functions that smelt calls, on the driver stub's memory, by numpy.

It is as strict as the real one, and stricter: unknown handles, attributes of the wrong size, other
versions' algorithms, operands and workspaces at odd addresses, and leaks are seen. What it computes
it computes when the stream comes to it, and it writes over all of its workspace.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from smelt.devices.cuda import _cublaslt
from smelt.ops import RoundMantissa
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from tests.support.cuda_driver_stub import StubDriver

VERSION = 130102
OK, INVALID, NOT_SUPPORTED = 0, 7, 15
_TF32 = 77
Array = np.ndarray[Any, Any]
_TYPES = {0: DType.FLOAT32, 2: DType.FLOAT16, 14: DType.BFLOAT16}
"""Element types by number."""
_DESC_BYTES = {3: 4, 4: 4, 7: 4, 8: 8}
_LAYOUT_BYTES = {5: 4, 6: 8}
_PREFERENCE_BYTES = {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4}


@dataclass
class _Described:
    """A descriptor: what it was made with, and its attributes."""

    kind: str
    made_with: tuple[int, ...]
    attributes: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def number(self, attribute: int, default: int = 0) -> int:
        content = self.attributes.get(attribute)
        return default if content is None else int.from_bytes(content, "little")


@dataclass(frozen=True)
class Matmul:
    """One call, as the library understood it."""

    compute: int
    epilogue: int
    transposed: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    """(type, rows, columns, leading dimension, matrices, stride) of both factors, what is added and
    the result."""
    alpha: float = 0.0
    beta: float = 0.0
    algorithm: int = -1
    workspace_bytes: int = 0


class StubCublasLt:
    """Put it where the library is loaded."""

    def __init__(self, driver: StubDriver, version: int = VERSION) -> None:
        self.driver, self.version = driver, version
        self.workspaces: tuple[int, ...] = (0, 4096)
        """Of each algorithm."""
        self.hidden_bytes = 0
        """What the last one needs beyond that, as it says only when it is checked."""
        self.costs_ms: dict[int, float] = {}
        """What algorithms take on a driver with a clock."""
        self.wrong: dict[int, float] = {}
        """By how much the results of algorithms are too large: each time more, if negative."""
        self.refuses_heuristics = False
        self.checks_fail = False
        self.calls: list[Matmul] = []
        self.done = 0
        self.live: dict[int, _Described] = {}
        self._next = 1

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Be the only library of this name."""

        def paths(*_: Any) -> Iterator[str]:
            yield "stub"

        def opened(*_: Any) -> StubCublasLt:
            return self

        patch.setattr(_cublaslt, "paths_to_try", paths)
        patch.setattr(_cublaslt, "open_library", opened)

    def cublasLtGetVersion(self) -> int:
        return self.version

    # ---- handles and descriptors

    def _make(self, place: int, kind: str, *made_with: int) -> int:
        self._next += 8
        self.live[self._next] = _Described(kind, made_with)
        ctypes.c_uint64.from_address(place).value = self._next
        return OK

    def _drop(self, handle: int, kind: str) -> int:
        if self.live[handle].kind != kind:
            return INVALID
        del self.live[handle]
        return OK

    def _set(self, sizes: dict[int, int], handle: int, attribute: int, at: int, size: int) -> int:
        if sizes.get(attribute) != size:
            return INVALID
        self.live[handle].attributes[attribute] = ctypes.string_at(at, size)
        return OK

    def cublasLtCreate(self, place: int) -> int:
        assert self.driver.current is not None, "no GPU is selected"
        return self._make(place, "library")

    def cublasLtDestroy(self, handle: int) -> int:
        return self._drop(handle, "library")

    def cublasLtMatmulDescCreate(self, place: int, compute: int, scale: int) -> int:
        return self._make(place, "desc", compute, scale)

    def cublasLtMatmulDescDestroy(self, handle: int) -> int:
        return self._drop(handle, "desc")

    def cublasLtMatmulDescSetAttribute(self, handle: int, kind: int, at: int, size: int) -> int:
        return self._set(_DESC_BYTES, handle, kind, at, size)

    def cublasLtMatrixLayoutCreate(
        self, place: int, kind: int, rows: int, columns: int, leading: int
    ) -> int:
        if kind not in _TYPES or leading < rows:
            return INVALID
        return self._make(place, "layout", kind, rows, columns, leading)

    def cublasLtMatrixLayoutDestroy(self, handle: int) -> int:
        return self._drop(handle, "layout")

    def cublasLtMatrixLayoutSetAttribute(self, handle: int, kind: int, at: int, size: int) -> int:
        return self._set(_LAYOUT_BYTES, handle, kind, at, size)

    def cublasLtMatmulPreferenceCreate(self, place: int) -> int:
        return self._make(place, "preference")

    def cublasLtMatmulPreferenceDestroy(self, handle: int) -> int:
        return self._drop(handle, "preference")

    def cublasLtMatmulPreferenceSetAttribute(
        self, handle: int, kind: int, at: int, size: int
    ) -> int:
        return self._set(_PREFERENCE_BYTES, handle, kind, at, size)

    # ---- algorithms

    def _understood(self, what: int, layouts: tuple[int, ...]) -> Matmul | None:
        """The call; None where its matrices do not fit each other."""
        desc = self.live[what]
        found: list[tuple[int, ...]] = []
        for handle in layouts:
            layout = self.live[handle]
            assert (desc.kind, layout.kind) == ("desc", "layout")
            found.append((*layout.made_with, layout.number(5, 1), layout.number(6)))
        transposed = desc.number(3), desc.number(4)
        sizes = [
            f[1:3][::-1] if t else f[1:3] for f, t in zip(found, (*transposed, 0, 0), strict=True)
        ]
        (m, k), (also_k, n), added, result = sizes
        fits = k == also_k and added == result == (m, n) and len({f[4] for f in found}) == 1
        alike = found[0][0] == found[1][0] and found[2] == found[3]
        compute, scale = desc.made_with
        if not fits or not alike or scale != 0 or (compute == _TF32 and found[0][0] != 0):
            return None
        return Matmul(compute, desc.number(7, 1), transposed, tuple(found))

    def _algorithm(self, number: int) -> bytes:
        return struct.pack("<QQ", self.version, number).ljust(64, b"\0")

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: int, what: int, a: int, b: int, c: int, d: int,
        preference: int, count: int, results: int, found: int,
    ) -> int:  # fmt: skip
        assert self.live[handle].kind == "library"
        wishes = self.live[preference]
        assert [wishes.number(k) for k in (3, 5, 6, 7, 8)] == [2, 16, 16, 16, 16]
        if self.refuses_heuristics or self._understood(what, (a, b, c, d)) is None:
            return NOT_SUPPORTED
        most = wishes.number(1)
        rooms = [(k, room) for k, room in enumerate(self.workspaces) if room <= most][:count]
        for place, (number, room) in enumerate(rooms):
            content = struct.pack("<64sQifiiii", self._algorithm(number), room, 0, 0.5, 0, 0, 0, 0)
            ctypes.memmove(results + place * len(content), content, len(content))
        ctypes.c_int.from_address(found).value = len(rooms)
        return OK

    def _number(self, at: int) -> int | None:
        version, number = struct.unpack_from("<QQ", ctypes.string_at(at, 64))
        is_known = version == self.version and number < len(self.workspaces)
        return number if is_known else None

    def _room(self, number: int) -> int:
        is_last = number == len(self.workspaces) - 1
        return self.workspaces[number] + self.hidden_bytes * is_last

    def cublasLtMatmulAlgoCheck(
        self, handle: int, what: int, a: int, b: int, c: int, d: int, algorithm: int, result: int
    ) -> int:
        assert self.live[handle].kind == "library"
        number = self._number(algorithm)
        if self.checks_fail or number is None or self._understood(what, (a, b, c, d)) is None:
            return NOT_SUPPORTED
        content = struct.pack("<64sQi", bytes(64), self._room(number), 0)
        ctypes.memmove(result, content, len(content))
        return OK

    # ---- the product

    def cublasLtMatmul(
        self, handle: int, what: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algorithm: int,
        workspace: int, workspace_bytes: int, stream: int,
    ) -> int:  # fmt: skip
        assert self.live[handle].kind == "library"
        call = self._understood(what, (a_layout, b_layout, c_layout, d_layout))
        number = self._number(algorithm)
        if call is None or number is None or workspace_bytes < self._room(number):
            return INVALID
        bias = self.live[what].number(8)
        odd = any(place % 16 for place in (a, b, c, d, bias)) or workspace % 256
        if odd or bool(call.epilogue & 4) != bool(bias):
            return INVALID
        scale, other = (ctypes.c_float.from_address(place).value for place in (alpha, beta))
        made = replace(
            call, alpha=scale, beta=other, algorithm=number, workspace_bytes=workspace_bytes
        )
        self.calls.append(made)

        def work() -> None:
            if workspace_bytes:
                ctypes.memset(workspace, 0xEE, workspace_bytes)
            _compute(made, (a, b, c, d), bias)
            self.done += 1
            if (error := self.wrong.get(made.algorithm)) is not None:
                factor = 1 + (error if error > 0 else -error * (self.done % 3))
                _store(made.shapes[3], d, 0, _matrix(made.shapes[3], d, 0) * factor)
            self.driver.now_ms += self.costs_ms.get(made.algorithm, 0.0)

        return int(self.driver._do(stream, work)[0])  # pyright: ignore[reportPrivateUsage]


def hide_cublaslt(patch: pytest.MonkeyPatch) -> None:
    """Have the library nowhere."""

    def opened(*_: Any) -> None:
        return None

    patch.setattr(_cublaslt, "open_library", opened)


def _compute(call: Matmul, places: tuple[int, ...], bias: int) -> None:
    """The product, column by column as the library has it."""
    first, second, added, result = call.shapes
    for matrix in range(result[4]):
        a, b, c = (
            _matrix(shape, place, matrix)
            for shape, place in zip((first, second, added), places, strict=False)
        )
        a, b = (x.T if t else x for x, t in zip((a, b), call.transposed, strict=True))
        if call.compute == _TF32:
            a, b = (RoundMantissa().reference(x)[0] for x in (a, b))
        total = call.alpha * (a.astype(np.float64) @ b.astype(np.float64))
        if call.beta:
            total = total + call.beta * c
        if bias:
            total = total + _matrix((result[0], result[1], 1, result[1], 1, 0), bias, 0)
        total = _ACTIVATIONS[call.epilogue & ~4](total)
        _store(result, places[3], matrix, total)


def _gelu(x: Array) -> Array:
    inner: Array = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return cast("Array", 0.5 * x * (1 + np.tanh(inner)))


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


_ACTIVATIONS: dict[int, Any] = {0: np.positive, 1: np.positive, 2: _relu, 32: _gelu}


def _elements(shape: tuple[int, ...], place: int, matrix: int) -> Array:
    """The memory of a matrix, a row for each of its columns."""
    kind, rows, columns, leading, _, stride = shape
    dtype = _TYPES[kind].numpy
    size = dtype.itemsize
    memory: Any = (ctypes.c_uint8 * (leading * columns * size)).from_address(
        place + matrix * stride * size
    )
    flat: Any = np.frombuffer(memory, dtype)
    return cast("Array", flat.reshape(columns, leading)[:, :rows])


def _matrix(shape: tuple[int, ...], place: int, matrix: int) -> Array:
    return _elements(shape, place, matrix).T.astype(np.float32)


def _store(shape: tuple[int, ...], place: int, matrix: int, total: Array) -> None:
    content = _elements(shape, place, matrix)
    content[...] = total.astype(np.float32).astype(content.dtype).T
