"""Gluon's words that our kernels use, on the host: shared memory as arrays, products as numpy's.

Triton's interpreter knows nothing of Gluon, so a kernel's names ``gl`` and ``hopper`` stand for
this here. Copies and products go on while a kernel does something else, and nothing says when they
touch memory; so a kernel is run with each as early as can be, and with each as late: copies that
come as late as their group may, and products that read until all warps have waited for them, which
they surely have at the next barrier.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_POISON: Final = float("nan")
_LAYOUTS: Final = (
    "BlockedLayout", "DistributedLinearLayout", "NVMMADistributedLayout", "NVMMASharedLayout",
    "SliceLayout", "SwizzledSharedLayout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Memory:
    """A view of shared memory."""

    data: NDArray[Any]
    """All of what was taken."""
    first: int
    shape: tuple[int, ...]
    is_transposed: bool = False
    written: list[Any] = field(default_factory=list[Any])
    """What was stored through this view."""

    def index(self, number: Any) -> _Memory:
        """One of what the first axis has side by side."""
        inner = self.shape[1:]
        assert 0 <= int(number) < self.shape[0], f"there is no {number} of {self.shape}"
        return _Memory(self.data, self.first + int(number) * prod(inner), inner)

    def _reinterpret(self, _dtype: object, shape: Sequence[int], _layout: object) -> _Memory:
        return _Memory(self.data, self.first, tuple(shape))

    def permute(self, _order: Sequence[int]) -> _Memory:
        """Turned."""
        return _Memory(self.data, self.first, self.shape, is_transposed=True)

    def store(self, value: Any) -> None:
        """Written at once, in whatever type it is now taken for."""
        self._as(value).array()[:] = value.handle.data
        self.written[:] = [value]

    def _as(self, value: Any) -> _Memory:
        bytes_ = self.data.view(np.uint8)[self.first * self.data.itemsize :]
        size = prod(self.shape) * value.handle.data.itemsize
        assert size <= bytes_.size, "a view reaches beyond its memory"
        return _Memory(bytes_[:size].view(value.handle.data.dtype), 0, self.shape)

    def load(self, _layout: object) -> Any:
        """What was last written through this view."""
        values = self._as(self.written[0])
        handle = type(self.written[0].handle)(values.array().copy(), self.written[0].handle.dtype)
        return type(self.written[0])(handle, self.written[0].type)

    def array(self) -> NDArray[Any]:
        """What it holds, to be read or written."""
        end = self.first + prod(self.shape)
        assert end <= self.data.size, "a view reaches beyond its memory"
        found = self.data[self.first : end].reshape(self.shape)
        return found.T if self.is_transposed else found


@dataclass(slots=True)
class _Sum:
    """A tile of sums, some products of which are on their way."""

    data: NDArray[np.float32]
    pending: list[Callable[[], None]] = field(default_factory=list["Callable[[], None]"])

    def settle(self, left: int) -> None:
        """Do all products but the last few."""
        while len(self.pending) > left:
            self.pending.pop(0)()


class Gluon:
    """The names of one run of a kernel; each program begins with memory of its own."""

    def __init__(self, interpreter: Any, *, late_copies: bool) -> None:
        """Emulate with copies late and products early, or the other way round."""
        self._interpreter, self._tl = interpreter, interpreter.tl
        self._late_copies = late_copies
        self._open: list[Callable[[], None]] = []
        self._groups: list[list[Callable[[], None]]] = []
        self._sum: _Sum | None = None
        self._waited_for = 0
        self.gl = SimpleNamespace(
            **dict.fromkeys(_LAYOUTS, self._layout),
            allocate_shared_memory=self._allocate,
            arange=self._arange,
            convert_layout=self._convert,
            zeros=self._zeros,
        )
        self._tl.debug_barrier = self._settle
        self.hopper = SimpleNamespace(
            async_copy=SimpleNamespace(
                async_copy_global_to_shared=self._copy,
                commit_group=self._commit,
                wait_group=self._wait,
            ),
            fence_async_shared=self._layout,
            warpgroup_mma=self._multiply,
            warpgroup_mma_wait=self._wait_for_products,
        )

    def _layout(self, *_arguments: object) -> None:
        """Nothing lies anywhere here."""

    def _arange(self, first: int, end: int, _layout: object) -> Any:
        return self._tl.arange(first, end)

    def _convert(self, value: Any, _layout: object) -> Any:
        return value

    def _allocate(self, dtype: Any, shape: Sequence[int], _layout: object) -> _Memory:
        kind = self._interpreter._get_np_dtype(dtype)
        return _Memory(np.full(prod(shape), _POISON, kind), 0, tuple(shape))

    def _zeros(self, shape: Sequence[int], _dtype: object, _layout: object) -> Any:
        return self._tensor(np.zeros(shape, np.float32))

    def _tensor(self, data: NDArray[np.float32]) -> Any:
        handle = self._interpreter.TensorHandle(data, self._tl.float32)
        return self._tl.core.tensor(handle, self._tl.block_type(self._tl.float32, [*data.shape]))

    # ---- copies

    def _copy(self, to: _Memory, source: Any, mask: Any = None) -> None:
        found = self._tl.load(source) if mask is None else self._tl.load(source, mask, 0.0)
        array, values = to.array(), found.handle.data.copy()
        assert array.shape == values.shape, f"{values.shape} elements are copied to {array.shape}"

        def land() -> None:
            array[:] = values

        if self._late_copies:
            array[:] = np.array(_POISON, array.dtype)  # neither what was there nor what will be
            self._open.append(land)
        else:
            land()

    def _commit(self) -> None:
        self._groups.append(self._open)
        self._open = []

    def _wait(self, left: int) -> None:
        while len(self._groups) > left:
            for land in self._groups.pop(0):
                land()
        self._settle()

    def _settle(self) -> None:
        """A barrier: no warp is behind."""
        if self._sum is not None:
            self._sum.settle(self._waited_for)

    # ---- products

    def _multiply(self, a: _Memory, b: _Memory, before: Any, *, is_async: bool) -> _Sum:
        assert is_async
        total = before if isinstance(before, _Sum) else _Sum(before.handle.data.copy())

        def add() -> None:
            product = a.array().astype(np.float32) @ b.array().astype(np.float32)
            total.data += product

        total.pending.append(add)
        if self._late_copies:
            total.settle(0)
        self._sum = total
        return total

    def _wait_for_products(self, left: int, deps: Sequence[_Sum]) -> Any:
        (total,) = deps
        self._waited_for = left
        if left:
            return total
        total.settle(0)
        handle = self._interpreter.TensorHandle(total.data, self._tl.float32)
        return self._tl.core.tensor(
            handle, self._tl.block_type(self._tl.float32, list(total.data.shape))
        )


def gluon_of(*, late_copies: bool) -> Gluon:
    """Emulate for one launch."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    return Gluon(interpreter, late_copies=late_copies)
