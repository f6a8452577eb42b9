"""Constant folding and shape propagation.

A value that depends on constants alone becomes a constant that keeps its recipe, so that it can be
refitted. A value that depends on shapes alone (Shape, PriorBox and values computed from them)
becomes a constant once the shapes are known. A Reshape to a symbolic shape gets an equivalent
constant shape, so that no node has to compute it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from smelt import ops
from smelt.errors import GraphError
from smelt.ir import Constant, FreshNames, Graph, Node, Operand, Value, remove_dead, sources_first
from smelt.passes._base import NodePass, Note, Pass
from smelt.types import Dim, Limit, TensorType, element_count, fixed_shape, override

_RANDOM_OP_PREFIXES = ("random", "multinomial", "bernoulli")
_SHAPE_OPS = ("shape", "size", "prior_box")
"""Names of ops whose results depend on the shapes of their inputs alone."""


_MAX_DERIVED_RATIO: Final = 16
"""Largest total size of derived constants as a multiple of the size of the model's weights. Chosen
without a measurement."""

_MAX_ADDRESSED_BYTES: Final = 1 << 62
"""Size in bytes from which numpy refuses an array, even one that repeats a single element."""


@dataclass(slots=True)
class _Budget:
    """Memory and work that constant folding may still use."""

    left_bytes: int
    taken_names: frozenset[str]
    """Names of the constants before folding."""
    left_work: int = Limit.MAX_FOLDED_WORK.most

    @staticmethod
    def for_graph(graph: Graph, growth_bytes: int) -> _Budget:
        """Return the budget of a graph and its regions.

        All constants of a recipe are counted, because the steps between weights and results stay in
        memory. ``growth_bytes`` is allowed in addition to the multiple of the weights' size.
        """
        weights = derived = 0
        constants = list(_constants(graph))
        for constant in sources_first(*constants):
            if constant.recipe is None:
                weights += _size_bytes(constant.type)
            else:
                derived += _size_bytes(constant.type)
        left_bytes = growth_bytes + _MAX_DERIVED_RATIO * weights - derived
        return _Budget(left_bytes, frozenset(constant.name for constant in constants))

    def refusal(self, node: Node) -> str:
        """Return why a node is not folded; if it may be, charge the budget and return ""."""
        size = sum(_size_bytes(value.tensor) for value in node.outputs)
        if size > self.left_bytes:
            left = max(self.left_bytes, 0)
            return (
                f"the constant would take {size >> 20} MiB, but only {left >> 20} MiB of the limit "
                "for constants computed at build time are left"
            )
        operands = [None if value is None else value.operand for value in node.inputs]
        work = node.op.count_work(operands, [value.type for value in node.outputs])
        if not isinstance(work, int) or work > self.left_work:
            excess = Limit.MAX_FOLDED_WORK.excess(str(work))
            return f"folding the node takes {excess} for all constants together"
        self.left_bytes -= size
        self.left_work -= work
        return ""


@dataclass(frozen=True)
class FoldConstants(NodePass):
    """Compute everything at build time that does not depend on the network's inputs."""

    discovers_values: ClassVar[bool] = True

    max_growth_bytes: int = 1 << 30
    """Bytes that folded constants may take in addition to a multiple of the size of the weights.
    The limit protects against small models that expand to huge constants.
    """
    _budget: _Budget | None = field(default=None, compare=False, repr=False)
    """What is left for the graph that the pass was started for."""

    @override
    def started(self, graph: Graph) -> Pass:
        return replace(self, _budget=_Budget.for_graph(graph, self.max_growth_bytes))

    @override
    def rewrite(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        return self._fold(graph, node, names) or _fix_reshape_shape(graph, node, names)

    def _fold(self, graph: Graph, node: Node, names: FreshNames) -> Note | None:
        """Replace the results of one node by constants, if they are known and the budget allows.

        A constant takes the name of the result unless another constant has it.
        """
        if not any(value.users for value in node.outputs) or not _is_pure(node):
            return None
        operands = _vector(node, names) or self._inputs(node)
        if operands is None:
            return None
        if isinstance(operands, Constant):
            constants = {node.outputs[0]: operands}
        else:
            if self._budget is not None and (reason := self._budget.refusal(node)):
                return Note.refusal(node.layers, reason)
            constants = {
                v: Constant.derive(names.make(v.name), node.op, *operands, output=i)
                for i, v in enumerate(node.outputs)
                if v.users
            }
        inputs = list(node.inputs)
        is_output = any(graph.is_output(value) for value in node.outputs)
        taken = frozenset[str]() if self._budget is None else self._budget.taken_names
        for value, constant in constants.items():
            if not is_output and value.name not in taken:
                constant.name = value.name
            graph.replace_reads(value, graph.add_constant(constant))
        if not is_output:
            graph.remove(node)
            remove_dead(graph, inputs)
        return Note(node.layers, (), "computed at build time")

    def _inputs(self, node: Node) -> tuple[Constant | None, ...] | None:
        """Return the constants from which a node can be computed, or None."""
        if not all(isinstance(v.type, TensorType) and v.type.is_static for v in node.outputs):
            return None
        if node.op.name in _SHAPE_OPS:
            blanks = [None if v is None else _blank(v) for v in node.inputs]
            return None if None in blanks else tuple(blanks)
        constants = tuple(None if v is None else v.constant for v in node.inputs)
        return constants if _all_known(node) and any(constants) else None


def _is_pure(node: Node) -> bool:
    """Return whether a node has no regions and no random results."""
    return not node.op.regions and not node.op.name.startswith(_RANDOM_OP_PREFIXES)


def _blank(value: Value) -> Constant | None:
    """Return a constant of the value's shape whose elements do not matter and take no memory."""
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        return None
    zero = np.zeros((), value.type.dtype.numpy)
    shape = fixed_shape(value.type.shape)
    if math.prod(max(extent, 1) for extent in shape) * zero.itemsize >= _MAX_ADDRESSED_BYTES:
        return None
    return Constant(f"shape of {value.name}", np.broadcast_to(zero, shape))


def _vector(node: Node, names: FreshNames) -> Constant | None:
    """Return the node's first result as a constant if its elements are known dimensions.

    The result must be a scalar or vector, and the only result in use.
    """
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
    """Yield the constants of a graph and its regions."""
    yield from graph.constants()
    for node in graph.nodes:
        for region in node.op.regions:
            yield from _constants(region)


def _size_bytes(kind: TensorType) -> int:
    count = element_count(kind.shape)
    return count * kind.dtype.size_bytes if isinstance(count, int) else 0


def _fix_reshape_shape(graph: Graph, node: Node, names: FreshNames) -> Note | None:
    """Give a Reshape to a symbolic shape an equivalent constant shape, if there is one.

    In a Reshape's shape, 0 copies an extent and -1 is inferred.
    """
    if not isinstance(node.op, ops.Reshape) or len(node.inputs) != 2:
        return None
    data, shape = node.inputs
    if data is None or shape is None or shape.constant is not None or shape.dims is None:
        return None
    for dims in _constant_shapes(shape.dims, data.tensor.shape):
        array = np.asarray(dims, np.int64)
        operands = [data.operand, Operand.constant(array)]
        op = ops.Reshape()
        try:
            is_equivalent = op.infer(operands) == (node.output.type,)
        except GraphError:
            continue
        if is_equivalent:
            node.op = op
            graph.set_input(node, 1, graph.add_constant(array, names.make(f"{node.name}/shape")))
            remove_dead(graph, [shape])
            return Note(node.layers, node.layers, f"reshapes to the constant shape {list(dims)}")
    return None


def _constant_shapes(
    target: tuple[Dim, ...], data_shape: tuple[Dim, ...]
) -> Iterator[tuple[int, ...]]:
    """Yield constant Reshape shapes that may mean ``target`` for data of ``data_shape``.

    Symbolic extents are copied where they stay in place; one other is inferred.
    """
    copied = [
        0 if i < len(data_shape) and data_shape[i] == d and not isinstance(d, int) else d
        for i, d in enumerate(target)
    ]
    inferred = [d for d in copied if not isinstance(d, int)]
    if 0 in [d for d in target if isinstance(d, int)] or len(inferred) > 1:
        return
    yield tuple(d if isinstance(d, int) else -1 for d in copied)
