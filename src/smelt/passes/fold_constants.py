"""Constant folding and shape propagation.

What follows from constants alone becomes a constant that keeps the recipe, so that new weights can
be pushed through. What follows from shapes alone (Shape, PriorBox, and what is computed from them)
becomes a constant as soon as the shapes are known, and a shape that is asked for in terms of a
symbol is written so that no node need compute it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt import ops
from smelt.errors import GraphError
from smelt.ir import Constant, FreshNames, Operand, remove_dead, sources_first
from smelt.passes._base import Note, Pass, PassResult
from smelt.types import Limit, TensorType, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Graph, Node, Value
    from smelt.types import Dim

_RANDOM = ("random", "multinomial", "bernoulli")
_OF_SHAPES_ALONE = ("shape", "size", "prior_box")


_MAX_STEPS: Final = 16
"""Constants that are made of weights may take so many times their room, all together."""

_MAX_ADDRESSED_BYTES: Final = 1 << 62
"""numpy has no larger arrays, not even of one element that stands for all."""


@dataclass(slots=True)
class _Budget:
    """What constants may still take."""

    left_bytes: int
    left_work: int = Limit.MAX_FOLDED_WORK.most

    @staticmethod
    def for_graph(graph: Graph, growth_bytes: int) -> _Budget:
        """What a graph and its regions may take: steps between weights and results stay, too."""
        weights = derived = 0
        for constant in sources_first(*_constants(graph)):
            kind = constant.type
            size = element_count(kind.shape) * kind.dtype.size_bytes
            if isinstance(size, int):
                weights += size if constant.recipe is None else 0
                derived += size if constant.recipe is not None else 0
        return _Budget(growth_bytes + _MAX_STEPS * weights - derived)

    def refusal(self, node: Node) -> str:
        """Why a node on constants is not computed; empty, and noted, where it is."""
        size = sum(_size_bytes(value) for value in node.outputs)
        if size > self.left_bytes:
            left = max(self.left_bytes, 0)
            return f"the constant would take {size >> 20} MiB, and {left >> 20} are left"
        operands = [None if value is None else value.operand for value in node.inputs]
        work = node.op.count_work(operands, [value.type for value in node.outputs])
        if not isinstance(work, int) or work > self.left_work:
            return f"it takes {Limit.MAX_FOLDED_WORK.excess(str(work))} for all constants"
        self.left_bytes -= size
        self.left_work -= work
        return ""


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Compute at build time what no input of the network changes."""

    name: ClassVar[str] = "fold-constants"
    discovers_values: ClassVar[bool] = True

    max_growth_bytes: int = 1 << 30
    """All constants together may take so much beside what weights allow for: a small hostile
    model could ask for more."""
    _budget: _Budget | None = field(default=None, compare=False, repr=False)

    @override
    def started(self, graph: Graph) -> Pass:
        return replace(self, _budget=_Budget.for_graph(graph, self.max_growth_bytes))

    @override
    def apply(self, graph: Graph) -> PassResult:
        notes: list[Note] = []
        names = FreshNames(graph)
        budget = self._budget or _Budget.for_graph(graph, self.max_growth_bytes)
        for node in list(graph.nodes):
            note = self._fold(graph, node, names, budget) or _settle_shape(graph, node, names)
            if note is not None:
                notes.append(note)
        return PassResult.of(notes)

    def _fold(self, graph: Graph, node: Node, names: FreshNames, budget: _Budget) -> Note | None:
        if not any(value.users for value in node.outputs) or not _is_pure(node):
            return None
        known = _vector(node, names) or self._inputs(node)
        if known is None:
            return None
        if isinstance(known, Constant):
            constants = [known]
        else:
            if reason := budget.refusal(node):
                return Note.refusal(node.layers, reason)
            constants = [
                Constant.derive(names.make(v.name), node.op, *known, output=i)
                for i, v in enumerate(node.outputs)
            ]
        inputs = list(node.inputs)
        stays = any(graph.is_output(value) for value in node.outputs)
        for value, constant in zip(node.outputs, constants, strict=False):
            if value.users:
                if not stays:
                    constant.name = value.name
                _replace_reads(graph, value, graph.add_constant(constant))
        if not stays:
            graph.remove(node)
            remove_dead(graph, inputs)
        return Note(node.layers, (), "computed at build time")

    def _inputs(self, node: Node) -> tuple[Constant | None, ...] | None:
        """The constants from which the node can be computed; None when it cannot."""
        if not all(isinstance(v.type, TensorType) and v.type.is_static for v in node.outputs):
            return None
        if node.op.name in _OF_SHAPES_ALONE:
            blanks = [None if v is None else _blank(v) for v in node.inputs]
            return None if None in blanks else tuple(blanks)
        constants = [None if v is None else v.constant for v in node.inputs]
        if any(v is not None and v.constant is None for v in node.inputs):
            return None
        return tuple(constants) if any(constants) else None


def _replace_reads(graph: Graph, old: Value, new: Value) -> None:
    """Let the nodes that read ``old`` read ``new``; an output of the graph stays what it is."""
    for user in list(old.users):
        for index, value in enumerate(user.inputs):
            if value is old:
                graph.set_input(user, index, new)


def _is_pure(node: Node) -> bool:
    return not node.op.regions and not node.op.name.startswith(_RANDOM)


def _blank(value: Value) -> Constant | None:
    """A constant of the value's shape that takes no memory: its elements do not matter."""
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        return None
    zero = np.zeros((), value.type.dtype.numpy)
    shape = tuple(d for d in value.type.shape if isinstance(d, int))
    if math.prod(max(extent, 1) for extent in shape) * zero.itemsize >= _MAX_ADDRESSED_BYTES:
        return None
    return Constant(f"shape of {value.name}", np.broadcast_to(zero, shape))


def _vector(node: Node, names: FreshNames) -> Constant | None:
    """The first result, where it is a vector of known dimensions and the only one in use."""
    value = node.outputs[0]
    if value.dims is None or any(other.users for other in node.outputs[1:]):
        return None
    dims = [d for d in value.dims if isinstance(d, int)]
    if len(dims) < len(value.dims) or not isinstance(value.type, TensorType):
        return None
    if value.type.rank > 1 or (node.inputs and _all_known(node)):
        return None
    array = np.asarray(dims, value.type.dtype.numpy)
    shape = () if value.type.rank == 0 else (len(dims),)
    return Constant(names.make(value.name), array.reshape(shape))


def _all_known(node: Node) -> bool:
    return all(v is None or v.constant is not None for v in node.inputs)


def _constants(graph: Graph) -> Iterator[Constant]:
    """The constants of a graph and its regions."""
    yield from graph.constants()
    for node in graph.nodes:
        for region in node.op.regions:
            yield from _constants(region)


def _size_bytes(value: Value) -> int:
    count = element_count(value.tensor.shape)
    return count * value.tensor.dtype.size_bytes if isinstance(count, int) else 0


def _settle_shape(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    """Give a Reshape to a shape of symbols an equal constant shape (0 copies, -1 infers)."""
    if not isinstance(node.op, ops.Reshape) or len(node.inputs) != 2:
        return None
    data, shape = node.inputs
    if data is None or shape is None or shape.constant is not None or shape.dims is None:
        return None
    for dims in _spellings(shape.dims, data.tensor.shape):
        array = np.asarray(dims, np.int64)
        operands = [data.operand, Operand.constant(array)]
        op = ops.Reshape()
        try:
            same = op.infer(operands) == (node.output.type,)
        except GraphError:
            continue
        if same:
            node.op = op
            graph.set_input(node, 1, graph.add_constant(array, names.make(f"{node.name}/shape")))
            remove_dead(graph, [shape])
            return Note(node.layers, node.layers, f"to the constant shape {list(dims)}")
    return None


def _spellings(wanted: tuple[Dim, ...], given: tuple[Dim, ...]) -> Iterator[tuple[int, ...]]:
    """Constant shapes that mean ``wanted``; the symbolic dims copied, one of them inferred."""
    copied = [
        0 if i < len(given) and given[i] == d and not isinstance(d, int) else d
        for i, d in enumerate(wanted)
    ]
    left = [d for d in copied if not isinstance(d, int)]
    if 0 in [d for d in wanted if isinstance(d, int)] or len(left) > 1:
        return
    yield tuple(d if isinstance(d, int) else -1 for d in copied)
