"""Where each tensor of a graph lies, in which format, and which copies that takes.

Every value has a *home*: the tensor as its producer writes it. A home is its own stretch of memory,
a window on the tensor that it is concatenated into, or (for a reshape or slice) a window on the
tensor it was made from. A reader that wants another format, or zeros around a tensor that cannot
have them, gets a copy, made once for all readers alike.
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
    from collections.abc import Callable, Mapping

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
    """What the elements of halos hold, once somebody reads them; the owner of the memory says."""
    parent: StoredTensor | None = None
    window: Callable[[View], View] | None = None
    """With a parent: the tensor as a window on the parent's view."""
    is_concat_part: bool = False
    """Whether the parent is what this tensor is concatenated into (its producer then writes the
    parent)."""
    must_be_contiguous: bool = False
    """Whether someone relies on the bytes lying contiguously."""
    covers_parent: bool = False
    """Whether the window is all of the parent, and contiguous where that is."""
    buffer: int = -1
    first_step: int = -1
    last_step: int = -1

    @property
    def root(self) -> StoredTensor:
        """The tensor that owns the memory."""
        return self if self.parent is None else self.parent.root

    def view(self) -> View:
        """The window, once buffers are numbered."""
        if self.parent is not None and self.window is not None:
            return self.window(self.parent.view())
        if self.buffer < 0:
            raise InternalError(f"{self.name} has no buffer yet")
        strides, offset, _ = self.geometry()
        shape = self.format.layout.stored_shape(self.type.shape)
        return View(self.buffer, offset, self.format.dtype, shape, strides, self.halo)

    def geometry(self) -> tuple[tuple[Dim, ...], Dim, Dim]:
        """Strides in elements, then offset of the first element and whole size in bytes."""
        shape = self.format.layout.stored_shape(self.type.shape)
        rank = len(shape)
        halo = self.halo or ((0, 0),) * rank
        strides: list[Dim] = [0] * rank
        step: Dim = 1
        for axis in reversed(self.format.layout.axis_order(rank)):
            strides[axis] = step
            step = step * (shape[axis] + sum(halo[axis]))
        size = self.format.dtype.size_bytes
        offset: Dim = 0
        for axis, (before, _) in enumerate(halo):
            offset = offset + strides[axis] * before * size
        return tuple(strides), offset, step * size


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a node."""

    node: Node
    tactic: Tactic
    inputs: tuple[StoredTensor | None, ...]
    outputs: tuple[StoredTensor, ...]
    workspace: StoredTensor | None


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy a tensor into another format or place."""

    source: StoredTensor
    destination: StoredTensor


Action = Compute | Copy


@dataclass(slots=True)
class StoragePlan:
    """What to do, in order, and every tensor there is."""

    actions: list[Action] = field(default_factory=list[Action])
    tensors: list[StoredTensor] = field(default_factory=list[StoredTensor])
    notes: list[str] = field(default_factory=list[str])
    """What was elided, and what could not be, for the build log."""


class StoragePlanner:
    """Decides homes and copies for a graph whose tactics are chosen."""

    def __init__(self, graph: Graph, tactics: Mapping[Node, Tactic], backend: Backend[Any]) -> None:
        self.graph = graph
        self.tactics = tactics
        self.backend = backend
        self.plan = StoragePlan()
        self.homes: dict[Value, StoredTensor] = {}
        self.copies: dict[tuple[Value, TensorFormat, int], StoredTensor] = {}
        self.constants: dict[tuple[Value, TensorFormat], StoredTensor] = {}
        self.output_of = {v: i for i, v in reversed(list(enumerate(graph.outputs)))}
        self.given = symbols_of(*(d for value in graph.inputs for d in value.tensor.shape))

    def run(self) -> StoragePlan:
        """Plan the whole graph."""
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
        if tactic.aliasing in (Aliasing.VIEW, Aliasing.SQUEEZE, Aliasing.RESHAPE):
            self._plan_view(node, tactic)
            return
        halos = tactic.halos or ((),) * len(node.inputs)
        requires_contiguous = self.backend.family(tactic.family).requires_contiguous
        inputs: list[StoredTensor | None] = []
        for value, wanted, halo in zip(node.inputs, tactic.inputs, halos, strict=True):
            if tactic.aliasing is Aliasing.CONCAT or value is None or wanted is None:
                inputs.append(None)
            else:
                around = (halo, tactic.halo_value)
                inputs.append(
                    self._read(value, wanted, around, requires_contiguous=requires_contiguous)
                )
        outputs = [self._new_home(v, f) for v, f in zip(node.outputs, tactic.outputs, strict=True)]
        for home in outputs:
            home.must_be_contiguous = home.must_be_contiguous or requires_contiguous
        if tactic.aliasing is Aliasing.CONCAT:
            self._plan_concat(node, tactic, outputs[0])
            return
        workspace = self._workspace(node, tactic)
        self.plan.actions.append(Compute(node, tactic, tuple(inputs), tuple(outputs), workspace))

    def _workspace(self, node: Node, tactic: Tactic) -> StoredTensor | None:
        if tactic.workspace_bytes == 0:
            return None
        kind = TensorType(DType.UINT8, (tactic.workspace_bytes,))
        stored = StoredTensor(
            f"{node.name} workspace", kind, TensorFormat(DType.UINT8), Space.ARENA
        )
        self.plan.tensors.append(stored)
        return stored

    def _new_home(self, value: Value, wanted: TensorFormat) -> StoredTensor:
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
        source_value, wanted = node.inputs[0], tactic.inputs[0]
        if source_value is None or wanted is None:
            raise InternalError(f"{node}: a view needs its first input")
        requires_contiguous = tactic.aliasing is Aliasing.RESHAPE
        source = self._read(source_value, wanted, ((), 0), requires_contiguous=requires_contiguous)
        family = self.backend.family(tactic.family)
        views = lru_cache(1)(partial(family.views, node, tactic))  # of all results at once
        for index, (value, fmt) in enumerate(zip(node.outputs, tactic.outputs, strict=True)):

            def window(view: View, index: int = index) -> View:
                return views(view)[index]

            stored = self._new(value, fmt, source.space)
            stored.parent, stored.window = source, window
            stored.covers_parent = tactic.aliasing is not Aliasing.VIEW
            self.homes[value] = stored

    def _plan_concat(self, node: Node, tactic: Tactic, whole: StoredTensor) -> None:
        family = self.backend.family(tactic.family)
        views = lru_cache(1)(partial(family.views, node, tactic))  # of all parts at once
        taken: set[Value] = set()
        counts = symbols_of(*(d for v in node.inputs if v for d in v.tensor.shape)) - self.given
        for index, value in enumerate(node.inputs):
            if value is None:
                raise InternalError(f"{node}: input {index} is missing")

            def window(view: View, index: int = index) -> View:
                return views(view)[index]

            home = self.homes.get(value)
            # Where a part lies follows from the extents of all: a run may not know them yet when it
            # writes the part.
            is_known = counts <= symbols_of(*value.tensor.shape)
            is_free = is_known and value not in taken
            if home is not None and is_free and self._can_concat_in_place(home, whole):
                whole.halo_value = home.halo_value if whole.halo_value is None else whole.halo_value
                home.parent, home.window, home.is_concat_part = whole, window, True
                taken.add(value)
                self.plan.notes.append(f"{node.name}: {value.name} is written in place")
                continue
            part = self._new(value, whole.format, whole.space)
            part.parent, part.window, part.is_concat_part = whole, window, True
            self.plan.actions.append(Copy(home or self._constant(value, whole.format), part))
            self.plan.notes.append(f"{node.name}: {value.name} is copied")

    @staticmethod
    def _can_concat_in_place(home: StoredTensor, whole: StoredTensor) -> bool:
        owned = home.parent is None and home.space is Space.ARENA and not home.must_be_contiguous
        if not _can_hold_halo(home, whole, home.halo):
            return False
        if None not in (home.halo_value, whole.halo_value) and home.halo_value != whole.halo_value:
            return False
        if home.format.layout is Layout.STRIDED:
            return owned and not home.halo and home.format.dtype is whole.format.dtype
        return (
            owned and home.format == whole.format and not (whole.must_be_contiguous and home.halo)
        )

    # ---- reading

    def _read(
        self,
        value: Value,
        wanted: TensorFormat,
        around: tuple[Halo, int],
        *,
        requires_contiguous: bool = False,
    ) -> StoredTensor:
        halo, fill_value = around
        home = self.homes.get(value) or self._constant(value, wanted)
        has_halo = any(before or after for before, after in halo)
        suits = satisfies_format(home.format, wanted) and (
            not has_halo or self._may_have_halo(home, halo, fill_value)
        )
        if suits and (not requires_contiguous or self._is_contiguous(home)):
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
            return self._reinterpreted(value, home, wanted)
        key = (value, wanted, fill_value)
        if requires_contiguous or key not in self.copies:
            copy = self._new(value, wanted, Space.ARENA)
            copy.name += f" as {wanted}"
            copy.must_be_contiguous = requires_contiguous
            self.plan.actions.append(Copy(home, copy))
            if requires_contiguous:
                return copy
            self.copies[key] = copy
        copy = self.copies[key]
        copy.halo = _halo_union(copy.halo, halo if has_halo else ())
        copy.halo_value = fill_value
        return copy

    def _reinterpreted(
        self, value: Value, home: StoredTensor, wanted: TensorFormat
    ) -> StoredTensor:
        """The home in a format that has the same bytes: one channel, or one pixel."""
        strides = contiguous_strides(value.tensor, wanted.layout)
        renamed = self._new(value, wanted, home.space)
        renamed.parent, renamed.covers_parent = home, True
        renamed.window = lambda view: replace(view, strides=strides)
        _keep_contiguous(home)
        return renamed

    @staticmethod
    def _may_have_halo(home: StoredTensor, halo: Halo, fill_value: int) -> bool:
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
        if home.parent is not None:
            return home.covers_parent and self._is_contiguous(home.parent)
        return not any(b or a for b, a in home.halo)

    def _constant(self, value: Value, wanted: TensorFormat) -> StoredTensor:
        """The constant in the weights, laid out as wanted: packing it costs nothing at run time."""
        if value.constant is None:
            raise InternalError(f"{value.name} is read before it is written")
        key = (value, wanted)
        if key not in self.constants:
            self.constants[key] = self._new(value, wanted, Space.WEIGHTS)
            self.constants[key].constant = value.constant
        return self.constants[key]

    def _finish_output(self, index: int, value: Value) -> None:
        home = self.homes.get(value) or self._constant(value, linear_format(value))
        binding = len(self.graph.inputs) + index
        if home.space is Space.OUTPUT and home.parent is None and home.binding == binding:
            return
        if self._may_be_output(value, home):
            home.root.space, home.root.binding = Space.OUTPUT, binding
            return
        output = self._new(value, linear_format(value), Space.OUTPUT, binding=binding)
        self.plan.actions.append(Copy(home, output))

    def _may_be_output(self, value: Value, home: StoredTensor) -> bool:
        """Whether the memory that a tensor is all of may be the application's."""
        root = home.root
        is_own = root.space is Space.ARENA and root.halo_value is None
        in_order = is_same_memory_order(value.tensor, home.format, linear_format(value))
        return is_own and in_order and self._is_contiguous(home)

    def _new(
        self, value: Value, fmt: TensorFormat, space: Space, *, binding: int = -1
    ) -> StoredTensor:
        stored = StoredTensor(value.name, value.tensor, fmt, space, binding)
        self.plan.tensors.append(stored)
        return stored

    def _propagate_halos(self) -> None:
        """A window that readers pad makes the whole tensor padded: they share strides."""
        for (
            stored
        ) in self.plan.tensors:  # a whole comes after its parts, so one sweep reaches the outermost
            if stored.is_concat_part and stored.parent is not None:
                stored.parent.halo = _halo_union(stored.parent.halo, stored.halo)


def _can_hold_halo(part: StoredTensor, whole: StoredTensor, halo: Halo) -> bool:
    """Whether a part may have a halo in the whole: along the joined axis lie its neighbours."""
    shapes = (s.format.layout.stored_shape(s.type.shape) for s in (part, whole))
    around = halo or ((0, 0),) * len(part.type.shape)
    return all(
        sum(pads) == 0 or mine == theirs
        for pads, mine, theirs in zip(around, *shapes, strict=False)
    )


def _keep_contiguous(home: StoredTensor) -> None:
    """Let the bytes lie contiguously for good: those of all that the home is a window on, too."""
    stored: StoredTensor | None = home
    while stored is not None:
        stored.must_be_contiguous = True
        stored = stored.parent


def satisfies_format(made: TensorFormat, wanted: TensorFormat) -> bool:
    """Whether a reader of one format takes a tensor that is stored in the other as it is."""
    return made == wanted or (wanted.layout is Layout.STRIDED and made.dtype is wanted.dtype)


def is_same_memory_order(kind: TensorType, a: TensorFormat, b: TensorFormat) -> bool:
    """Whether two formats of a tensor have the same bytes: only axes of extent 1 lie elsewhere."""
    orders = (fmt.layout.axis_order(kind.rank) for fmt in (a, b))
    first, second = ([x for x in order if kind.shape[x] != 1] for order in orders)
    if a != b and {a.layout, b.layout} & {Layout.STRIDED, Layout.PAIRED}:
        return False
    return a.dtype is b.dtype and first == second


def contiguous_strides(kind: TensorType, layout: Layout) -> tuple[Dim, ...]:
    """Strides, in elements, of a tensor without holes."""
    strides: list[Dim] = [0] * kind.rank
    step: Dim = 1
    for axis in reversed(layout.axis_order(kind.rank)):
        strides[axis] = step
        step = step * kind.shape[axis]
    return tuple(strides)


def linear_format(value: Value) -> TensorFormat:
    """The format that bindings have: the model's dtype and axis order."""
    return TensorFormat(value.tensor.dtype, Layout.LINEAR)


def _halo_union(a: Halo, b: Halo) -> Halo:
    if not a or not b:
        return a or b
    return tuple((max(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))


def size_bytes(stored: StoredTensor, symbol_ranges: Mapping[str, tuple[int, int]]) -> int:
    """Bytes that a tensor's own memory needs at most, for symbol values in a box."""
    return bounds_of(stored.geometry()[2], symbol_ranges)[1]
