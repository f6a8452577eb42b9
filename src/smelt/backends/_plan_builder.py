"""Build a plan from a graph with chosen tactics: storage, steps, live ranges and arena."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends._arena import ALIGNMENT_BYTES, LiveRange, assign_offsets, lower_bound
from smelt.backends._base import Operands
from smelt.backends._plan_passes import UnallocatedPlan
from smelt.backends._storage import ComputeAction, StoragePlanner, contiguous_strides, size_bytes
from smelt.devices.cpu import CpuMemory
from smelt.engine import ERROR_BYTES, Buffer, Launch, LayerInfo, Plan, Space, View
from smelt.ir import Constant, sources_first
from smelt.ops import Cast, Transpose
from smelt.types import DType, Layout, TensorType, element_count, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from smelt.backends._base import Backend, Tactic
    from smelt.backends._storage import Action, CopyAction, StoragePlan, StoredTensor
    from smelt.engine import Step
    from smelt.ir import Graph, Node, Value
    from smelt.types import Guard, Shape, TensorFormat


_INLINE_BYTES: Final = 256
"""Maximum size of constants that are deduplicated by name and contents, in bytes."""


def constant_bytes(constant: Constant) -> int:
    """Return the size of the constant's elements in bytes, without computing them."""
    kind = constant.type
    return evaluate_dim(element_count(kind.shape), {}) * kind.dtype.size_bytes


class WeightStore:
    """Packed weights of an engine, stored once even if several plans and layers read them.

    Two constants are equal if they are derived from the same sources by the same transforms. No
    constant has to be computed to be compared.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Constant, int]] = []
        """Packed constants and their byte offsets, in the order of first use."""
        self.size_bytes = 0
        self._offsets: dict[int, int] = {}
        self._keys: dict[Constant, int] = {}
        self._numbers: dict[object, int] = {}

    def declare_distinct(self, constant: Constant) -> None:
        """Never merge the constant with another one: its elements are placeholders."""
        self._record(constant, ("source", constant))

    def key(self, constant: Constant) -> int:
        """Return a number that is the same for equal constants and only for those."""
        for part in sources_first(constant, is_known=lambda c: c in self._keys):
            self._record(part, self._contents(part))
        return self._keys[constant]

    def _record(self, constant: Constant, contents: object) -> None:
        """Record the number of a constant's contents."""
        number = self._numbers.setdefault(contents, len(self._numbers))
        self._keys[constant] = number

    def _contents(self, constant: Constant) -> object:
        """Return a hashable value that identifies the elements of a constant."""
        recipe = constant.recipe
        if recipe is not None:
            inputs = tuple(None if c is None else self._keys[c] for c in recipe.inputs)
            return (recipe.op, recipe.output, inputs)
        array = constant.array
        if array.nbytes <= _INLINE_BYTES:
            # The name is part of the key: an equal constant of another name may be refitted
            # differently.
            return (constant.name, array.dtype.str, array.shape, array.tobytes())
        return ("source", constant)

    def place(self, constant: Constant) -> int:
        """Return the byte offset of the constant in the weights, allocating it on first use."""
        key = self.key(constant)
        if key not in self._offsets:
            self._offsets[key] = self.size_bytes
            self.entries.append((constant, self.size_bytes))
            nbytes = constant_bytes(constant)
            self.size_bytes += -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return self._offsets[key]

    def data(self) -> NDArray[np.uint8]:
        """Return the bytes of the weights, aligned so that engines can use them without a copy."""
        memory = CpuMemory().allocate(self.size_bytes, "weights").bytes
        memory[:] = 0
        for constant, offset in self.entries:
            array = np.ascontiguousarray(constant.array, constant.type.dtype.numpy)
            memory[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
            constant.forget()  # frees the intermediate results of its derivation
        return memory


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A plan and the data that the inspector reports about it."""

    plan: Plan
    layers: tuple[LayerInfo, ...]
    notes: tuple[str, ...]
    lower_bound_bytes: int
    """Size of the largest live set in bytes: no arena can be smaller."""
    live_ranges: tuple[tuple[str, int, int, int, int], ...]
    """(tensor, offset, bytes, first step, last step) of every tensor in the arena."""


@dataclass(slots=True)
class _PlanBuilder:
    """State while the actions of a storage plan are lowered to the steps of a plan."""

    storage: StoragePlan
    backend: Backend[Any]
    weights: WeightStore
    symbols: tuple[tuple[str, int, int], ...]
    guards: tuple[Guard, ...]
    outputs: tuple[Shape, ...]
    first_layer: int
    unallocated: UnallocatedPlan = field(init=False)
    arena_tensors: dict[int, StoredTensor] = field(default_factory=dict[int, "StoredTensor"])
    """The tensor of each buffer in the arena, by the buffer's number."""
    cleared: set[int] = field(default_factory=set[int])
    """Buffers whose halos are filled."""
    layers: list[LayerInfo] = field(default_factory=list[LayerInfo])
    layer_names: set[str] = field(default_factory=set[str])
    suffix_counts: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Number of layers of each name and kind whose names needed a suffix."""
    packed: dict[int, int] = field(default_factory=dict[int, int])
    """Buffer of each packed constant, by its offset in the weights."""

    def __post_init__(self) -> None:
        self.unallocated = UnallocatedPlan({name: high for name, _, high in self.symbols})

    def run(self) -> BuiltPlan:
        """Number the buffers, emit the steps, run the passes and assign arena offsets."""
        symbol_ranges = {name: (low, high) for name, low, high in self.symbols}
        for stored in self.storage.tensors:
            if stored.parent is None:
                self._create_buffer(stored, symbol_ranges)
        for action in self.storage.actions:
            self._emit(action)
        unallocated = self.unallocated
        for plan_pass in self.backend.plan_passes:
            plan_pass(unallocated)
        used_by = unallocated.live_ranges()
        arena = {n: tensor for n, tensor in self.arena_tensors.items() if n in used_by}
        live_ranges = [LiveRange(unallocated.buffers[n].size_bytes, *used_by[n]) for n in arena]
        offsets, arena_bytes = assign_offsets(live_ranges, unallocated.complete_before_step)
        for number, offset in zip(arena, offsets, strict=True):
            unallocated.buffers[number] = replace(unallocated.buffers[number], start=offset)
        buffers, steps = tuple(unallocated.buffers), tuple(unallocated.steps)
        scratch = max((s.scratch_bytes for s in steps if isinstance(s, Launch)), default=0)
        plan = Plan(self.symbols, buffers, steps, arena_bytes, scratch, self.guards, self.outputs)
        names = tuple(
            (tensor.name, offset, life.size_bytes, life.first_step, life.last_step)
            for tensor, offset, life in zip(arena.values(), offsets, live_ranges, strict=True)
        )
        bound = lower_bound(live_ranges, unallocated.complete_before_step)
        return BuiltPlan(plan, tuple(self.layers), tuple(self.storage.notes), bound, names)

    # ---- buffers

    def _create_buffer(
        self, stored: StoredTensor, symbol_ranges: Mapping[str, tuple[int, int]]
    ) -> None:
        """Create the buffer of a tensor that owns memory."""
        size = max(size_bytes(stored, symbol_ranges), 0)
        start = stored.binding
        if stored.space is Space.WEIGHTS and stored.constant is not None:
            start = self.weights.place(_constant_in_format(stored))
        elif stored.space is Space.ARENA:
            start = 0
            self.arena_tensors[len(self.unallocated.buffers)] = stored
        stored.buffer = self._buffer(Buffer(stored.space, start, size))

    def _buffer(self, buffer: Buffer) -> int:
        """Append a buffer and return its number."""
        self.unallocated.buffers.append(buffer)
        return len(self.unallocated.buffers) - 1

    # ---- steps

    def _emit(self, action: Action) -> None:
        """Append the steps of an action."""
        if not isinstance(action, ComputeAction):
            is_cleared = self._clear([action.destination])
            self._append(*self._copy(action), None, after_clearing=is_cleared)
            return
        written = [*action.outputs, *filter(None, [action.workspace])]
        # The offset of a halo may depend on a runtime symbol that the reference determines: the
        # halo is filled after it.
        is_late = action.tactic.is_host_step
        is_cleared = not is_late and self._clear(written)
        self._append(*self._compute(action), action.tactic, after_clearing=is_cleared)
        if is_late:
            self._clear(written)

    def _clear(self, written: Iterable[StoredTensor]) -> bool:
        """Fill the halos of tensors before their first write; their writers need not wait.

        Returns whether there was a halo to fill.
        """
        count = len(self.unallocated.steps)
        for root in (stored.root for stored in written):
            if root.buffer not in self.cleared and any(b or a for b, a in root.halo):
                steps = self.backend.clear_halo(root.view(), root.halo_value or 0)
                self._append(steps, LayerInfo(f"halo of {root.name}", "halo", "clear"), None)
                self.cleared.add(root.buffer)
        return len(self.unallocated.steps) > count

    def _append(
        self,
        steps: tuple[Step, ...],
        info: LayerInfo,
        tactic: Tactic | None,
        *,
        after_clearing: bool = False,
    ) -> None:
        """Append the steps of one layer. After a halo fill, the first launch need not wait."""
        unallocated, layer = self.unallocated, self.first_layer + len(self.layers)
        self.layers.append(replace(info, name=self._unique_name(info)))
        for position, step in enumerate(steps):
            complete = len(unallocated.steps)
            layer_step = replace(step, layer=layer)
            if after_clearing and position == 0 and isinstance(layer_step, Launch):
                layer_step = replace(layer_step, waits=False)
            if isinstance(layer_step, Launch) and not layer_step.waits and unallocated.steps:
                complete = unallocated.complete_before_step[-1]
            unallocated.append(layer_step, tactic, complete)

    def _unique_name(self, info: LayerInfo) -> str:
        """Return a unique layer name; repeated names get the layer's kind as a suffix."""
        name, name_key = info.name, (info.name, info.kind)
        while name in self.layer_names:
            # Counting continues from the last suffix: thousands of layers may share a name.
            number = self.suffix_counts[name_key] = self.suffix_counts.get(name_key, 0) + 1
            name = f"{info.name} ({info.kind}{'' if number == 1 else f' {number}'})"
        self.layer_names.add(name)
        return name

    def _copy(self, action: CopyAction) -> tuple[tuple[Step, ...], LayerInfo]:
        """Return the steps and the layer info of a format conversion."""
        source, destination = action.source, action.destination
        name = f"{source.name} to {destination.format.layout.value}"
        if source.format.dtype is not destination.format.dtype:
            name = f"{source.name} to {destination.format}"
        steps = self.backend.reformat(source.view(), destination.view())
        return steps, LayerInfo(name, "reformat", str(destination.format))

    def _compute(self, action: ComputeAction) -> tuple[tuple[Step, ...], LayerInfo]:
        """Return the steps and the layer info of a node."""
        node, tactic = action.node, action.tactic
        family = self.backend.family(tactic.family)
        errors = self._error_words() if family.reports_index_errors(node) else None
        packed = tuple(self._packed(c) for c in family.pack(node, tactic))
        operands = Operands(
            tuple(None if s is None else s.view() for s in action.inputs),
            tuple(s.view() for s in action.outputs),
            packed,
            None if action.workspace is None else action.workspace.view(),
            errors,
        )
        return family.lower(node, tactic, operands), _layer_info(node, tactic)

    def _error_words(self) -> View:
        """Return a view of the error words of the current layer."""
        layer = self.first_layer + len(self.layers)
        return error_view(self._buffer(Buffer(Space.ERRORS, layer * ERROR_BYTES, ERROR_BYTES)))

    def _packed(self, constant: Constant) -> View:
        """Return a view of a packed constant in the weights."""
        kind = constant.type
        offset = self.weights.place(constant)
        if offset not in self.packed:
            size = constant_bytes(constant)
            self.packed[offset] = self._buffer(Buffer(Space.WEIGHTS, offset, size))
        strides = contiguous_strides(kind, Layout.LINEAR)
        return View(self.packed[offset], 0, kind.dtype, kind.shape, strides)


def build_plan(
    graph: Graph,
    tactics: Mapping[Node, Tactic],
    backend: Backend[Any],
    weights: WeightStore,
    *,
    symbols: tuple[tuple[str, int, int], ...] = (),
    guards_before_passes: Iterable[Guard] = (),
    first_layer: int = 0,
) -> BuiltPlan:
    """Build the plan of a graph.

    Args:
        graph: optimised graph with inferred types.
        tactics: chosen tactic of each node.
        backend: backend whose families lower the nodes.
        weights: store of packed constants, shared by the plans of an engine.
        symbols: (name, smallest, largest) of every symbol in the graph.
        guards_before_passes: conditions assumed before the graph was optimised; the graph's own are
            added.
        first_layer: index of the plan's first layer among the engine's layers.

    Raises:
        ShapeError: a guard fails for the fixed symbols.
    """
    storage = StoragePlanner(graph, tactics, backend).run()
    graph_guards = (g for node in graph.nodes for g in (*node.guards, *backend.shape_guards(node)))
    open_guards = _open_guards((*guards_before_passes, *graph_guards), symbols)
    outputs = tuple(value.tensor.shape for value in graph.outputs)
    return _PlanBuilder(storage, backend, weights, symbols, open_guards, outputs, first_layer).run()


def _open_guards(
    guards: Iterable[Guard], symbols: tuple[tuple[str, int, int], ...]
) -> tuple[Guard, ...]:
    """Return the guards that depend on symbols without a fixed value, each condition once.

    Raises ShapeError if the fixed symbols determine a guard and it fails.
    """
    fixed = {name: low for name, low, high in symbols if low == high}
    conditions: dict[object, Guard] = {}
    for guard in guards:
        bound = guard.at(fixed)
        if bound.symbols:
            conditions.setdefault((bound.left, bound.relation, bound.right), bound)
        elif not bound.holds({}):
            raise guard.violation(fixed)
    return tuple(conditions.values())


def error_view(buffer: int) -> View:
    """Return a view of a node's error words."""
    return View(buffer, 0, DType.INT64, (ERROR_BYTES // DType.INT64.size_bytes,), (1,))


def _constant_in_format(stored: StoredTensor) -> Constant:
    """Return the constant derived by the transpose and cast that its format needs."""
    constant = stored.constant
    assert constant is not None  # noqa: S101  (called only for constants)
    order = stored.format.layout.axis_order(stored.type.rank)
    name = f"{constant.name} as {stored.format}"
    if order != tuple(range(stored.type.rank)):
        constant = Constant.derive(name, Transpose(order), constant)
    if stored.format.dtype is not stored.type.dtype:
        constant = Constant.derive(name, Cast(stored.format.dtype), constant)
    return constant


def stored_type(value: Value, stored: TensorFormat | None) -> str:
    """Return the type of a value as stored in memory; its own type if a kernel packs it."""
    kind = value.type
    if stored is None or not isinstance(kind, TensorType):
        return str(kind)
    return str(TensorType(stored.dtype, kind.shape))


def _layer_info(node: Node, tactic: Tactic) -> LayerInfo:
    """Return the inspector's record of a node and its tactic."""
    inputs = tuple(
        "-" if v is None else stored_type(v, f)
        for v, f in zip(node.inputs, tactic.input_formats, strict=True)
    )
    outputs = tuple(map(stored_type, node.outputs, tactic.output_formats))
    details = (("inputs", inputs), ("node", node.name), ("outputs", outputs))
    return LayerInfo(" + ".join(node.layers) or node.name, node.op.name, str(tactic), details)
