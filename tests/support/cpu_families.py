"""Run one node by a family's tactics, on buffers with halos and gaps, against the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest

from smelt.backends import (
    Aliasing,
    NodeRefusedError,
    Operands,
    Tactic,
    contiguous_strides,
)
from smelt.backends.cpu import CpuBackend, host_target
from smelt.engine import Launch, View
from smelt.ir import Graph
from smelt.types import DType, Layout, SymbolicDim, TensorType, evaluate_dim, is_float_dtype
from tests.support.cpu_kernels import FILL, GuardedBuffer, run_launches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.backends import Family
    from smelt.backends.cpu import CpuTarget
    from smelt.engine import Halo, KernelSpec
    from smelt.ir import Node, Op, Value
    from smelt.types import Dim, TensorFormat

Array = np.ndarray[Any, Any]


class Run(Protocol):
    """Runs launches on buffers, which their views name by position."""

    def __call__(
        self,
        launches: Sequence[Launch],
        buffers: Sequence[GuardedBuffer],
        *,
        values: dict[str, int],
        fill: int,
    ) -> None:
        """Run them; ``fill`` is every byte that is nobody's."""


_BACKEND = CpuBackend(jobs=1)


def make_node(
    op: Op,
    arrays: Sequence[Array | None],
    constants: frozenset[int],
    symbols: dict[tuple[int, int], str] | None = None,
) -> Node:
    """A graph of one node; ``symbols`` names the (input, axis) extents that are symbolic."""
    graph = Graph()
    values: list[Value | None] = []
    for position, array in enumerate(arrays):
        if array is None:
            values.append(None)
        elif position in constants:
            values.append(graph.add_constant(array, f"constant{position}"))
        else:
            shape: list[Dim] = list(array.shape)
            for (owner, axis), name in (symbols or {}).items():
                if owner == position:
                    shape[axis] = SymbolicDim.symbol(name)
            kind = TensorType(DType.from_numpy(array.dtype), tuple(shape))
            values.append(graph.add_input(f"input{position}", kind))
    return graph.add(op, *values, name="node")


def tactics_of(family: Family[CpuTarget], node: Node, target: CpuTarget) -> list[Tactic]:
    """The family's tactics; a refusal fails the test with its reason."""
    tactics = list(family.tactics(node, target))
    assert tactics, f"{family.name} has no answer"
    return tactics


def refusal_reason(family: Family[CpuTarget], node: Node, target: CpuTarget) -> str:
    """Why the family refuses the node; a tactic fails the test."""
    with pytest.raises(NodeRefusedError) as refused:
        next(family.tactics(node, target))
    return refused.value.reason


class _Memory:
    """The buffers of one run."""

    def __init__(
        self, *, at_end: bool, fill: int | None = None, spares_constants: bool = False
    ) -> None:
        self.at_end = at_end
        self.spares_constants = spares_constants
        self.fill = fill
        self.buffers: list[GuardedBuffer] = []
        self.errors: GuardedBuffer | None = None

    def hold(self, array: Array) -> View:
        """A contiguous array."""
        buffer = GuardedBuffer.holding(array, at_end=self.at_end, align=4)
        return self._view(buffer, array.shape, _contiguous(array.shape), array.dtype, (), 0)

    def error_words(self) -> View:
        """Zeros that launches may write."""
        view = self.hold(np.zeros(2, np.int64))
        self.errors = self.buffers[view.buffer]
        return view

    def reserve(self, size_bytes: int) -> View:
        fill = FILL if self.fill is None else self.fill
        buffer = GuardedBuffer(size_bytes, at_end=self.at_end, fill=fill)
        return self._view(buffer, (size_bytes,), (1,), np.dtype(np.uint8), (), 0)

    def place(
        self,
        array: Array,
        layout: Layout,
        halo: Halo,
        shape: tuple[Dim, ...],
        gap: int,
        margin: int = 0,
        halo_value: int = 0,
    ) -> View:
        """An array in a layout, its halo around it, ``gap`` channels (or columns) between lines.

        With a ``margin`` it is a window on a larger tensor, as the part of a concatenation is.
        """
        own = halo or ((0, 0),) * array.ndim
        pairs = tuple((before + margin, after + margin) for before, after in own)
        order = layout.axis_order(array.ndim)
        outer = [array.shape[a] + sum(pairs[a]) for a in order]
        if not outer:
            return self.hold(array)
        outer[-1] += gap
        inside = self._surroundings(tuple(outer), array.dtype)
        zero = tuple(slice(margin, margin + array.shape[a] + sum(own[a])) for a in order)
        inside[zero] = halo_value
        window = tuple(slice(pairs[a][0], pairs[a][0] + array.shape[a]) for a in order)
        inside[window] = array.transpose(order)
        flat = inside.reshape(-1)
        steps = _contiguous(tuple(outer))
        strides = [0] * array.ndim
        for axis, step in zip(order, steps, strict=True):
            strides[axis] = step
        start = sum(pairs[a][0] * strides[a] for a in range(array.ndim))
        kept = flat[: flat.size - gap] if gap and flat.size else flat
        buffer = GuardedBuffer.holding(kept, at_end=self.at_end, align=4)
        places: tuple[Dim, ...] = tuple(strides)
        if not (gap or margin or halo):
            # A tensor of its own: its strides are as symbolic as its extents.
            kind = TensorType(DType.from_numpy(array.dtype), shape)
            places = contiguous_strides(kind, layout)
        return self._view(buffer, shape, places, array.dtype, halo, start * array.itemsize)

    def blank(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A result before it is computed."""
        return np.zeros(shape, dtype) if self.fill is None else self._surroundings(shape, dtype)

    def _surroundings(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """What lies around a tensor: no number, or what every byte is full of."""
        if self.fill is None:
            return np.full(shape, np.nan if is_float_dtype(dtype) else 0, dtype)
        count = int(np.prod(shape)) * dtype.itemsize
        filled: Array = np.full(count, self.fill, np.uint8).view(dtype).reshape(shape)
        return filled

    def _view(
        self,
        buffer: GuardedBuffer,
        shape: tuple[Dim, ...],
        strides: tuple[Dim, ...],
        dtype: np.dtype[Any],
        halo: Halo,
        offset: int,
    ) -> View:
        self.buffers.append(buffer)
        number = len(self.buffers) - 1
        return View(number, offset, DType.from_numpy(dtype), shape, strides, halo)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


def kernels_of(
    family: Family[CpuTarget], node: Node, tactic: Tactic, arrays: Sequence[Array | None]
) -> list[KernelSpec]:
    """The kernels that a tactic launches."""
    launches, _ = _lower(_Memory(at_end=False), family, node, tactic, arrays, {}, (0, 0))
    return [launch.kernel for launch in launches]


def _lower(
    memory: _Memory,
    family: Family[Any],
    node: Node,
    tactic: Tactic,
    arrays: Sequence[Array | None],
    values: dict[str, int],
    spare: tuple[int, int],
) -> tuple[list[Launch], tuple[View, ...]]:
    """The launches of a tactic on memory of its own, and the outputs' views."""
    halos = tactic.halos or ((),) * len(arrays)
    inputs: list[View | None] = []
    for value, array, form, halo in zip(
        node.inputs, arrays, tactic.input_formats, halos, strict=True
    ):
        if form is None or array is None or value is None:
            inputs.append(None)
        else:
            shape = value.tensor.shape
            stored = array.astype(form.dtype.numpy, copy=False)
            is_whole = memory.spares_constants and value.constant is not None
            around = (0, 0) if is_whole else spare
            view = memory.place(
                stored, form.layout, halo, shape, *around, halo_value=tactic.halo_value
            )
            inputs.append(view)
    packed = tuple(memory.hold(c.array) for c in family.pack(node, tactic))
    outputs = _outputs(memory, node, tactic.output_formats, values, spare)
    workspace = None
    if tactic.workspace_bytes != 0:
        workspace = memory.reserve(_known(tactic.workspace_bytes, values))
    errors = memory.error_words() if family.reports_index_errors(node) else None
    operands = Operands(tuple(inputs), outputs, packed, workspace, errors)
    steps = family.lower(node, tactic, operands)
    return [s for s in steps if isinstance(s, Launch)], outputs


def run_tactic(
    family: Family[Any],
    node: Node,
    tactic: Tactic,
    arrays: Sequence[Array | None],
    *,
    values: dict[str, int] | None = None,
    gap: int = 0,
    margin: int = 0,
    at_end: bool = True,
    workers: int = 1,
    target: CpuTarget | None = None,
    errors: Array | None = None,
    fill: int | None = None,
    run: Run | None = None,
    spares_constants: bool = False,
) -> list[Array]:
    """The node's results by one tactic; ``fill`` is every byte that is nobody's before it.

    Its kernels are compiled for ``target`` and run on so many ``workers``, or as ``run`` does.
    Constants have gaps and margins too, though no plan has that, unless ``spares_constants``.
    What launches tell of indices out of range is written into ``errors``; without it nothing may
    be told.
    """
    assert tactic.aliasing is Aliasing.NONE
    memory = _Memory(at_end=at_end, fill=fill, spares_constants=spares_constants)
    launches, outputs = _lower(memory, family, node, tactic, arrays, values or {}, (gap, margin))
    poison = FILL if fill is None else fill
    before = [memory.buffers[v.buffer].bytes.copy() for v in outputs]
    run = run or _compiled(target or host_target(), workers)
    run(launches, memory.buffers, values=values or {}, fill=poison)
    if memory.errors is not None:
        detail = memory.errors.array(np.int64, (2,))
        if errors is None:
            assert not detail.any(), f"{tactic} tells of an index out of range: {detail}"
        else:
            errors[:] = detail
    results = [memory.buffers[v.buffer].view(v, values).copy() for v in outputs]
    for view, old in zip(outputs, before, strict=True):
        buffer = memory.buffers[view.buffer]
        buffer.view(view, values)[...] = memory.blank((), view.dtype.numpy)
        assert np.array_equal(buffer.bytes, old), f"{tactic} writes beside its result"
    return results


def _compiled(target: CpuTarget, workers: int) -> Run:
    """What runs launches on the host's processors."""

    def run(
        launches: Sequence[Launch],
        buffers: Sequence[GuardedBuffer],
        *,
        values: dict[str, int],
        fill: int,
    ) -> None:
        run_launches(
            lambda spec: _BACKEND.generate(spec, target),
            launches,
            buffers,
            values=values,
            workers=workers,
            target=target,
            fill=fill,
        )

    return run


def _outputs(
    memory: _Memory,
    node: Node,
    formats: tuple[TensorFormat, ...],
    values: dict[str, int],
    gaps: tuple[int, int],
) -> tuple[View, ...]:
    views: list[View] = []
    for value, form in zip(node.outputs, formats, strict=True):
        shape = tuple(_known(d, values) for d in value.tensor.shape)
        blank = memory.blank(shape, form.dtype.numpy)
        views.append(memory.place(blank, form.layout, (), value.tensor.shape, *gaps))
    return tuple(views)


def _known(dim: Dim, values: dict[str, int]) -> int:
    return evaluate_dim(dim, values)


def assert_tactics_agree(
    family: Family[CpuTarget],
    op: Op,
    arrays: Sequence[Array | None],
    constants: frozenset[int] = frozenset(),
    *,
    symbols: dict[tuple[int, int], str] | None = None,
    target: CpuTarget | None = None,
    limit: int | None = None,
    tolerance: float = 2e-5,
    gap: int = 0,
    margin: int = 0,
    at_end: bool = True,
    workers: int = 1,
) -> list[Tactic]:
    """Every tactic gives what the reference gives, relative to the largest magnitude."""
    chosen = target or host_target()
    node = make_node(op, arrays, constants, symbols)
    with np.errstate(all="ignore"):
        wanted = op.reference(*arrays)
    values = {n: int(arrays[i].shape[a]) for (i, a), n in (symbols or {}).items()}  # type: ignore[union-attr]
    tactics = tactics_of(family, node, chosen)[:limit]
    for tactic in tactics:
        made = run_tactic(
            family,
            node,
            tactic,
            arrays,
            values=values,
            gap=gap,
            margin=margin,
            at_end=at_end,
            workers=workers,
            target=chosen,
        )
        for mine, theirs in zip(made, wanted, strict=True):
            assert mine.shape == theirs.shape
            assert mine.dtype == theirs.dtype
            error, scale = _difference(mine, theirs)
            assert error <= tolerance * max(scale, 1e-30), (str(tactic), error, scale)
    return tactics


def _difference(mine: Array, theirs: Array) -> tuple[float, float]:
    """Largest difference and magnitude; integers and what is not finite must be equal."""
    if not is_float_dtype(mine.dtype):
        return float(not np.array_equal(mine, theirs)), 0.0
    finite = np.isfinite(theirs)
    assert np.array_equal(mine[~finite], theirs[~finite], equal_nan=True)
    a, b = mine[finite].astype(np.float64), theirs[finite].astype(np.float64)
    return float(np.max(np.abs(a - b), initial=0.0)), float(np.max(np.abs(b), initial=0.0))


def random(shape: Sequence[int], seed: int = 0) -> NDArray[np.float32]:
    """Normal float32."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(np.float32)
