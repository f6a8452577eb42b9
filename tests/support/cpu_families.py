"""Run one node by a family's tactics, on buffers with halos and gaps, against the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.backends import Aliasing, Operands, Refusal, Tactic, contiguous_strides
from smelt.backends.cpu import CpuBackend, host_target
from smelt.engine import Launch, View
from smelt.ir import Graph
from smelt.types import DType, Layout, SymbolicDim, TensorType, evaluate_dim
from tests.support.cpu_kernels import GuardedBuffer, run_launches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from smelt.backends import Family
    from smelt.backends.cpu import CpuTarget
    from smelt.engine import Halo, KernelSpec
    from smelt.ir import Node, Op, Value
    from smelt.types import Dim, TensorFormat

Array = np.ndarray[Any, Any]

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
    answers = list(family.tactics(node, target))
    reasons = [str(a) for a in answers if isinstance(a, Refusal)]
    assert not reasons, reasons
    assert answers, f"{family.name} has no answer"
    return [a for a in answers if isinstance(a, Tactic)]


class _Memory:
    """The buffers of one run."""

    def __init__(self, *, at_end: bool) -> None:
        self.at_end = at_end
        self.buffers: list[GuardedBuffer] = []

    def hold(self, array: Array) -> View:
        """A contiguous array."""
        buffer = GuardedBuffer.holding(array, at_end=self.at_end, align=4)
        return self._view(buffer, array.shape, _contiguous(array.shape), array.dtype, (), 0)

    def reserve(self, size_bytes: int) -> View:
        buffer = GuardedBuffer(size_bytes, at_end=self.at_end)
        return self._view(buffer, (size_bytes,), (1,), np.dtype(np.uint8), (), 0)

    def place(
        self,
        array: Array,
        layout: Layout,
        halo: Halo,
        shape: tuple[Dim, ...],
        gap: int,
        margin: int = 0,
    ) -> View:
        """An array in a layout, zeros around it, ``gap`` channels (or columns) between lines.

        With a ``margin`` it is a window on a larger tensor, as the part of a concatenation is.
        """
        own = halo or ((0, 0),) * array.ndim
        pairs = tuple((before + margin, after + margin) for before, after in own)
        order = layout.axis_order(array.ndim)
        outer = [array.shape[a] + sum(pairs[a]) for a in order]
        if not outer:
            return self.hold(array)
        outer[-1] += gap
        memory = np.full(outer, np.nan, array.dtype) if array.dtype.kind == "f" else np.zeros(outer)
        inside = memory.astype(array.dtype)
        zero = tuple(slice(margin, margin + array.shape[a] + sum(own[a])) for a in order)
        inside[zero] = 0
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
    family: Family[CpuTarget],
    node: Node,
    tactic: Tactic,
    arrays: Sequence[Array | None],
    values: dict[str, int],
    spare: tuple[int, int],
) -> tuple[list[Launch], tuple[View, ...]]:
    """The launches of a tactic on memory of its own, and the outputs' views."""
    halos = tactic.halos or ((),) * len(arrays)
    inputs: list[View | None] = []
    for value, array, form, halo in zip(node.inputs, arrays, tactic.inputs, halos, strict=True):
        if form is None or array is None or value is None:
            inputs.append(None)
        else:
            shape = value.tensor.shape
            inputs.append(memory.place(array, form.layout, halo, shape, *spare))
    packed = tuple(memory.hold(c.array) for c in family.pack(node, tactic))
    outputs = _outputs(memory, node, tactic.outputs, values, spare)
    workspace = None
    if tactic.workspace_bytes != 0:
        workspace = memory.reserve(_known(tactic.workspace_bytes, values))
    operands = Operands(tuple(inputs), outputs, packed, workspace)
    steps = family.lower(node, tactic, operands)
    return [s for s in steps if isinstance(s, Launch)], outputs


def run_tactic(
    family: Family[CpuTarget],
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
) -> list[Array]:
    """The node's results by one tactic."""
    assert tactic.aliasing is Aliasing.NONE
    memory = _Memory(at_end=at_end)
    launches, outputs = _lower(memory, family, node, tactic, arrays, values or {}, (gap, margin))
    chosen = target or host_target()
    before = [memory.buffers[v.buffer].bytes.copy() for v in outputs]
    run_launches(
        lambda spec: _BACKEND.generate(spec, chosen),
        launches,
        memory.buffers,
        values=values,
        workers=workers,
        target=chosen,
    )
    results = [memory.buffers[v.buffer].view(v, values).copy() for v in outputs]
    for view, old in zip(outputs, before, strict=True):
        buffer = memory.buffers[view.buffer]
        buffer.view(view, values)[...] = 0
        assert np.array_equal(buffer.bytes, old), f"{tactic} writes beside its result"
    return results


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
        blank = np.zeros(shape, value.tensor.dtype.numpy)
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
    if mine.dtype.kind not in "fc":
        return float(not np.array_equal(mine, theirs)), 0.0
    finite = np.isfinite(theirs)
    assert np.array_equal(mine[~finite], theirs[~finite], equal_nan=True)
    a, b = mine[finite].astype(np.float64), theirs[finite].astype(np.float64)
    return float(np.max(np.abs(a - b), initial=0.0)), float(np.max(np.abs(b), initial=0.0))


def random(shape: Sequence[int], seed: int = 0) -> NDArray[np.float32]:
    """Normal float32."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(np.float32)
