"""Storage of each tensor of a graph: its memory, its format and the copies that are needed.

Every value has a *home*: the tensor as its producer writes it. A home owns memory, is a window on
the tensor that it is concatenated into, or (for a reshape or slice) is a window on the tensor that
it was made from. A reader that needs another format, or a halo that the home cannot have, gets a
copy, which all readers with the same requirements share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from smelt.backends._base import Aliasing, Tactic
from smelt.engine import Space, View
from smelt.errors import InternalError
from smelt.types import DType, Layout, TensorFormat, TensorType, bounds_of, symbols_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from smelt.backends._base import Backend
    from smelt.engine import Halo
    from smelt.ir import Constant, Graph, Node, Value
    from smelt.types import Dim


@dataclass(eq=False, slots=True)
class StoredTensor:
    """One tensor in memory."""

    name: str
    type: TensorType
    format: TensorFormat
    space: Space
    binding: int = -1
    constant: Constant | None = None
    halo: Halo = ()
    halo_value: int | None = None
    """Value of the elements in the halo once a reader needs one; the owner of the memory has it."""
    parent: StoredTensor | None = None
    window: Callable[[View], View] | None = None
    """Function from the parent's view to this tensor's view, if there is a parent."""
    is_concat_part: bool = False
    """Whether the parent is the tensor that this one is concatenated into. The producer of this
    tensor then writes into the parent."""
    must_be_contiguous: bool = False
    """Whether a reader or writer requires contiguous bytes."""
    covers_parent: bool = False
    """Whether the window covers all of the parent and is contiguous whenever the parent is."""
    buffer: int = -1

    @property
    def root(self) -> StoredTensor:
        """Tensor that owns the memory."""
        return self if self.parent is None else self.parent.root

    def view(self) -> View:
        """Return the view of the tensor. Raises InternalError before buffers are numbered."""
        if self.parent is not None and self.window is not None:
            return self.window(self.parent.view())
        if self.buffer < 0:
            raise InternalError(f"the tensor {self.name} has no buffer yet")
        strides, offset, _ = self.geometry()
        shape = self.format.layout.stored_shape(self.type.shape)
        return View(self.buffer, offset, self.format.dtype, shape, strides, self.halo)

    def geometry(self) -> tuple[tuple[Dim, ...], Dim, Dim]:
        """Return the strides in elements, the offset of the first element and the size in bytes."""
        shape = self.format.layout.stored_shape(self.type.shape)
        halo = self.halo or ((0, 0),) * len(shape)
        extents = [extent + sum(pads) for extent, pads in zip(shape, halo, strict=True)]
        strides, count = packed_strides(extents, self.format.layout)
        size = self.format.dtype.size_bytes
        offset: Dim = 0
        for stride, (before, _) in zip(strides, halo, strict=True):
            offset = offset + stride * before * size
        return strides, offset, count * size


@dataclass(frozen=True, slots=True)
class ComputeAction:
    """Action: run a node."""

    node: Node
    tactic: Tactic
    inputs: tuple[StoredTensor | None, ...]
    outputs: tuple[StoredTensor, ...]
    workspace: StoredTensor | None


@dataclass(frozen=True, slots=True)
class CopyAction:
    """Action: copy a tensor into another format or memory."""

    source: StoredTensor
    destination: StoredTensor


Action = ComputeAction | CopyAction


@dataclass(slots=True)
class StoragePlan:
    """Actions of a plan in order, and all its tensors."""

    actions: list[Action] = field(default_factory=list[Action])
    tensors: list[StoredTensor] = field(default_factory=list[StoredTensor])
    notes: list[str] = field(default_factory=list[str])
    """Which copies were avoided and which were not, for the build log."""


class StoragePlanner:
    """Decides where the tensors of a graph with chosen tactics are stored, and which are copied."""

    def __init__(self, graph: Graph, tactics: Mapping[Node, Tactic], backend: Backend[Any]) -> None:
        self.graph = graph
        self.tactics = tactics
        self.backend = backend
        self.plan = StoragePlan()
        self.homes: dict[Value, StoredTensor] = {}
        self.copies: dict[tuple[Value, TensorFormat, int], StoredTensor] = {}
        self.constants: dict[tuple[Value, TensorFormat], StoredTensor] = {}
        self.output_of = {v: i for i, v in reversed(list(enumerate(graph.outputs)))}
        """First graph output of each value."""
        self.input_symbols = symbols_of(*(d for value in graph.inputs for d in value.tensor.shape))
        """Symbols in the shapes of the graph's inputs."""

    def run(self) -> StoragePlan:
        """Plan the storage of the whole graph."""
        for index, value in enumerate(self.graph.inputs):
            self.homes[value] = self._new(value, linear_format(value), Space.INPUT, binding=index)
        for node in self.graph.nodes:
            self._plan_node(node, self.tactics[node])
        for index, value in enumerate(self.graph.outputs):
            self._finish_output(index, value)
        self._propagate_halos()
        return self.plan

    # ---- one node

    def _plan_node(self, node: Node, tactic: Tactic) -> None:
        """Plan the inputs, the outputs and the workspace of a node."""
        if tactic.aliasing in (Aliasing.VIEW, Aliasing.SQUEEZE, Aliasing.RESHAPE):
            self._plan_view(node, tactic)
            return
        halos = tactic.halos or ((),) * len(node.inputs)
        requires_contiguous = self.backend.family(tactic.family).requires_contiguous
        inputs: list[StoredTensor | None] = []
        for value, wanted, halo in zip(node.inputs, tactic.input_formats, halos, strict=True):
            if tactic.aliasing is Aliasing.CONCAT or value is None or wanted is None:
                inputs.append(None)
            else:
                halo_and_value = (halo, tactic.halo_value)
                inputs.append(
                    self._read(
                        value, wanted, halo_and_value, requires_contiguous=requires_contiguous
                    )
                )
        outputs = [
            self._new_home(v, f) for v, f in zip(node.outputs, tactic.output_formats, strict=True)
        ]
        for home in outputs:
            home.must_be_contiguous = home.must_be_contiguous or requires_contiguous
        if tactic.aliasing is Aliasing.CONCAT:
            self._plan_concat(node, tactic, outputs[0])
            return
        workspace = self._workspace(node, tactic)
        self.plan.actions.append(
            ComputeAction(node, tactic, tuple(inputs), tuple(outputs), workspace)
        )

    def _workspace(self, node: Node, tactic: Tactic) -> StoredTensor | None:
        """Return the scratch tensor of a node, or None."""
        if tactic.workspace_bytes == 0:
            return None
        kind = TensorType(DType.UINT8, (tactic.workspace_bytes,))
        stored = StoredTensor(
            f"{node.name} workspace", kind, TensorFormat(DType.UINT8), Space.ARENA
        )
        self.plan.tensors.append(stored)
        return stored

    def _new_home(self, value: Value, wanted: TensorFormat) -> StoredTensor:
        """Create the home of a value; in the binding itself if the formats allow."""
        index = self.output_of.get(value)
        direct = index is not None and is_same_memory_order(
            value.tensor, wanted, linear_format(value)
        )
        if direct and index is not None:
            home = self._new(value, wanted, Space.OUTPUT, binding=len(self.graph.inputs) + index)
            home.must_be_contiguous = True
        else:
            home = self._new(value, wanted, Space.ARENA)
        self.homes[value] = home
        return home

    def _plan_view(self, node: Node, tactic: Tactic) -> None:
        """Make the outputs of a view op windows on its input."""
        source_value, wanted = node.inputs[0], tactic.input_formats[0]
        if source_value is None or wanted is None:
            raise InternalError(f"{node}: the first input of a view op is missing")
        requires_contiguous = tactic.aliasing is Aliasing.RESHAPE
        source = self._read(source_value, wanted, ((), 0), requires_contiguous=requires_contiguous)
        windows = self._windows(node, tactic, len(node.outputs))
        for value, fmt, window in zip(node.outputs, tactic.output_formats, windows, strict=True):
            stored = self._new(value, fmt, source.space)
            stored.parent, stored.window = source, window
            stored.covers_parent = tactic.aliasing is not Aliasing.VIEW
            self.homes[value] = stored

    def _windows(self, node: Node, tactic: Tactic, count: int) -> list[Callable[[View], View]]:
        """Return the functions from the view of a whole tensor to the windows of a view op."""
        family = self.backend.family(tactic.family)
        views = lru_cache(1)(partial(family.views, node, tactic))  # computed once for all windows

        def window_at(index: int) -> Callable[[View], View]:
            return lambda view: views(view)[index]

        return [window_at(index) for index in range(count)]

    def _plan_concat(self, node: Node, tactic: Tactic, result: StoredTensor) -> None:
        """Make the inputs of a concatenation windows on its output, or copy them into it."""
        windows = self._windows(node, tactic, len(node.inputs))
        written_in_place: set[Value] = set()
        runtime_symbols = (
            symbols_of(*(d for v in node.inputs if v for d in v.tensor.shape)) - self.input_symbols
        )
        for index, (value, window) in enumerate(zip(node.inputs, windows, strict=True)):
            if value is None:
                raise InternalError(f"{node}: input {index} is missing")
            home = self.homes.get(value)
            # The offset of a part depends on the extents of all parts. If an extent is a runtime
            # symbol of another part, it may be unknown when this part is written.
            is_known = runtime_symbols <= symbols_of(*value.tensor.shape)
            is_free = is_known and value not in written_in_place
            if home is not None and is_free and self._can_concat_in_place(home, result):
                result.halo_value = (
                    home.halo_value if result.halo_value is None else result.halo_value
                )
                home.parent, home.window, home.is_concat_part = result, window, True
                written_in_place.add(value)
                self.plan.notes.append(f"{node.name}: {value.name} is written in place")
                continue
            part = self._new(value, result.format, result.space)
            part.parent, part.window, part.is_concat_part = result, window, True
            self.plan.actions.append(CopyAction(home or self._constant(value, result.format), part))
            self.plan.notes.append(f"{node.name}: {value.name} is copied")

    @staticmethod
    def _can_concat_in_place(home: StoredTensor, result: StoredTensor) -> bool:
        """Return whether a producer can write its result directly into the concatenation."""
        owns_memory = (
            home.parent is None and home.space is Space.ARENA and not home.must_be_contiguous
        )
        if not _can_hold_halo(home, result, home.halo):
            return False
        if (
            None not in (home.halo_value, result.halo_value)
            and home.halo_value != result.halo_value
        ):
            return False
        if home.format.layout is Layout.STRIDED:
            return owns_memory and not home.halo and home.format.dtype is result.format.dtype
        return (
            owns_memory
            and home.format == result.format
            and not (result.must_be_contiguous and home.halo)
        )

    # ---- reading

    def _read(
        self,
        value: Value,
        wanted: TensorFormat,
        halo_and_value: tuple[Halo, int],
        *,
        requires_contiguous: bool = False,
    ) -> StoredTensor:
        """Return the tensor that a reader uses: the home, a reinterpretation of it or a copy."""
        halo, fill_value = halo_and_value
        home = self.homes.get(value) or self._constant(value, wanted)
        has_halo = any(before or after for before, after in halo)
        is_usable = satisfies_format(home.format, wanted) and (
            not has_halo or self._may_have_halo(home, halo, fill_value)
        )
        if is_usable and (not requires_contiguous or self._is_contiguous(home)):
            home.halo = _halo_union(home.halo, halo if has_halo else ())
            if has_halo:
                home.root.halo_value = fill_value
            if requires_contiguous:
                _keep_contiguous(home)
            return home
        if (
            not has_halo
            and self._is_contiguous(home)
            and is_same_memory_order(value.tensor, home.format, wanted)
        ):
            return self._reinterpret(value, home, wanted)
        key = (value, wanted, fill_value)
        if requires_contiguous or key not in self.copies:
            copy = self._new(value, wanted, Space.ARENA)
            copy.name += f" as {wanted}"
            copy.must_be_contiguous = requires_contiguous
            self.plan.actions.append(CopyAction(home, copy))
            if requires_contiguous:
                return copy
            self.copies[key] = copy
        copy = self.copies[key]
        copy.halo = _halo_union(copy.halo, halo if has_halo else ())
        copy.halo_value = fill_value
        return copy

    def _reinterpret(self, value: Value, home: StoredTensor, wanted: TensorFormat) -> StoredTensor:
        """Return a view of the home in a format with the same bytes: one channel or one pixel."""
        strides = contiguous_strides(value.tensor, wanted.layout)
        reinterpreted = self._new(value, wanted, home.space)
        reinterpreted.parent, reinterpreted.covers_parent = home, True
        reinterpreted.window = lambda view: replace(view, strides=strides)
        _keep_contiguous(home)
        return reinterpreted

    @staticmethod
    def _may_have_halo(home: StoredTensor, halo: Halo, fill_value: int) -> bool:
        """Return whether all tensors that share the home's memory permit the halo."""
        root = home.root
        if root.halo_value not in (None, fill_value):
            return False
        stored: StoredTensor | None = home
        while stored is not None:
            if stored.space is not Space.ARENA or stored.must_be_contiguous:
                return False
            if stored.parent is not None and not (
                stored.is_concat_part and _can_hold_halo(stored, stored.parent, halo)
            ):
                return False
            stored = stored.parent
        return True

    def _is_contiguous(self, home: StoredTensor) -> bool:
        """Return whether the bytes of a tensor are contiguous."""
        if home.parent is not None:
            return home.covers_parent and self._is_contiguous(home.parent)
        return not any(b or a for b, a in home.halo)

    def _constant(self, value: Value, wanted: TensorFormat) -> StoredTensor:
        """Return the constant in the weights, converted at build time to the wanted format."""
        if value.constant is None:
            raise InternalError(f"{value.name} is read before it is written")
        key = (value, wanted)
        if key not in self.constants:
            self.constants[key] = self._new(value, wanted, Space.WEIGHTS)
            self.constants[key].constant = value.constant
        return self.constants[key]

    def _finish_output(self, index: int, value: Value) -> None:
        """Make a graph output's memory a binding, or copy the value to the binding."""
        home = self.homes.get(value) or self._constant(value, linear_format(value))
        binding = len(self.graph.inputs) + index
        if home.space is Space.OUTPUT and home.parent is None and home.binding == binding:
            return
        if self._may_be_output(value, home):
            home.root.space, home.root.binding = Space.OUTPUT, binding
            return
        output = self._new(value, linear_format(value), Space.OUTPUT, binding=binding)
        self.plan.actions.append(CopyAction(home, output))

    def _may_be_output(self, value: Value, home: StoredTensor) -> bool:
        """Return whether the memory of a tensor may be a binding of the application."""
        root = home.root
        is_own = root.space is Space.ARENA and root.halo_value is None
        in_order = is_same_memory_order(value.tensor, home.format, linear_format(value))
        return is_own and in_order and self._is_contiguous(home)

    def _new(
        self, value: Value, fmt: TensorFormat, space: Space, *, binding: int = -1
    ) -> StoredTensor:
        """Create a tensor and add it to the plan."""
        stored = StoredTensor(value.name, value.tensor, fmt, space, binding)
        self.plan.tensors.append(stored)
        return stored

    def _propagate_halos(self) -> None:
        """Extend the halos of concatenations by those of their parts, which share their strides."""
        # A concatenation comes after its parts, so one pass reaches the outermost tensor.
        for stored in self.plan.tensors:
            if stored.is_concat_part and stored.parent is not None:
                stored.parent.halo = _halo_union(stored.parent.halo, stored.halo)


def _can_hold_halo(part: StoredTensor, result: StoredTensor, halo: Halo) -> bool:
    """Return whether a part may have a halo: not along the joined axis, next to other parts."""
    shapes = (s.format.layout.stored_shape(s.type.shape) for s in (part, result))
    pads_by_axis = halo or ((0, 0),) * len(part.type.shape)
    return all(
        sum(pads) == 0 or part_extent == result_extent
        for pads, part_extent, result_extent in zip(pads_by_axis, *shapes, strict=False)
    )


def _keep_contiguous(home: StoredTensor) -> None:
    """Require contiguous bytes of a tensor and of all tensors that it is a window on."""
    stored: StoredTensor | None = home
    while stored is not None:
        stored.must_be_contiguous = True
        stored = stored.parent


def satisfies_format(made: TensorFormat, wanted: TensorFormat) -> bool:
    """Return whether a reader of format ``wanted`` accepts a tensor stored as ``made``."""
    return made == wanted or (wanted.layout is Layout.STRIDED and made.dtype is wanted.dtype)


def is_same_memory_order(kind: TensorType, a: TensorFormat, b: TensorFormat) -> bool:
    """Return whether two formats of a tensor have the same bytes, apart from axes of extent 1."""
    orders = (fmt.layout.axis_order(kind.rank) for fmt in (a, b))
    first, second = ([x for x in order if kind.shape[x] != 1] for order in orders)
    if a != b and {a.layout, b.layout} & {Layout.STRIDED, Layout.PAIRED}:
        return False
    return a.dtype is b.dtype and first == second


def contiguous_strides(kind: TensorType, layout: Layout) -> tuple[Dim, ...]:
    """Return the strides in elements of a contiguous tensor."""
    return packed_strides(kind.shape, layout)[0]


def packed_strides(extents: Sequence[Dim], layout: Layout) -> tuple[tuple[Dim, ...], Dim]:
    """Return the strides of a tensor without gaps, and its number of elements."""
    strides: list[Dim] = [0] * len(extents)
    step: Dim = 1
    for axis in reversed(layout.axis_order(len(extents))):
        strides[axis] = step
        step = step * extents[axis]
    return tuple(strides), step


def linear_format(value: Value) -> TensorFormat:
    """Return the format of bindings: the model's dtype and axis order."""
    return TensorFormat(value.tensor.dtype, Layout.LINEAR)


def _halo_union(a: Halo, b: Halo) -> Halo:
    """Return the smallest halo that contains both."""
    if not a or not b:
        return a or b
    return tuple((max(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))


def size_bytes(stored: StoredTensor, symbol_ranges: Mapping[str, tuple[int, int]]) -> int:
    """Return the maximum size of a tensor's own memory in bytes over ranges of symbol values."""
    return bounds_of(stored.geometry()[2], symbol_ranges)[1]
