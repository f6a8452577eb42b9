"""Ops on extents that symbols leave open: each assumption that inference makes, kept and broken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from smelt import ops
from smelt.ir import Case, Graph
from smelt.types import (
    DType,
    Symbol,
    SymbolicDim,
    TensorType,
    dim_from_text,
    evaluate_dim,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smelt.ir import Array, Op, Value
    from smelt.types import Dim, Shape


@dataclass(frozen=True)
class Tensor:
    """An input with extents that are numbers or polynomials, as ``"2*h"``."""

    extents: tuple[int | str, ...]
    dtype: DType = DType.FLOAT32

    @property
    def shape(self) -> Shape:
        return tuple(dim_from_text(extent) for extent in self.extents)

    def array(self, symbols: Mapping[str, int]) -> Array:
        """Elements that differ and are above zero; indices are 0."""
        shape = tuple(evaluate_dim(extent, symbols) for extent in self.shape)
        count = int(np.prod(shape))
        if self.dtype in {DType.INT32, DType.INT64}:
            return np.zeros(shape, self.dtype.numpy)
        if self.dtype is DType.BOOL:
            return np.ones(shape, np.bool_)
        if count >= 1 << 31:
            return np.broadcast_to(np.ones((), self.dtype.numpy), shape)
        return (np.arange(count) % 7 + 1).reshape(shape).astype(self.dtype.numpy)


@dataclass(frozen=True)
class Dims:
    """An input that holds dimensions: a vector, computed from the shapes of others."""

    elements: tuple[int | str, ...]

    def compute(self, graph: Graph, sizes: Value, symbols: list[str]) -> Value:
        parts = [
            _compute(graph, dim_from_text(element), sizes, symbols) for element in self.elements
        ]
        return graph.add(ops.Concat(0), *parts, name=f"dims {len(graph.nodes)}").output

    def array(self, symbols: Mapping[str, int]) -> Array:
        return np.array([evaluate_dim(dim_from_text(e), symbols) for e in self.elements], np.int64)


def X(*extents: int | str, dtype: DType = DType.FLOAT32) -> Tensor:  # noqa: N802  (as in formulas)
    """A tensor."""
    return Tensor(extents, dtype)


def D(*elements: int | str) -> Dims:  # noqa: N802
    """A vector of dimensions."""
    return Dims(elements)


def C(*elements: int) -> Array:  # noqa: N802
    """A constant vector."""
    return np.array(elements, np.int64)


def I(*extents: int | str) -> Tensor:  # noqa: N802, E743
    """A tensor of indices."""
    return Tensor(extents, DType.INT64)


def _compute(graph: Graph, dim: Dim, sizes: Value, symbols: list[str]) -> Value:
    """A vector of one element, the dimension, made of the extents of ``sizes``."""

    def add(op: Op, *inputs: Value) -> Value:
        return graph.add(op, *inputs, name=f"{op.name} {len(graph.nodes)}").output

    def number(value: int) -> Value:
        return graph.add_constant(np.array([value], np.int64))

    if isinstance(dim, int):
        return add(ops.Identity(), number(dim))
    total = number(0)
    for monomial, coefficient in dim.terms:
        product = number(coefficient)
        for atom in monomial:
            assert isinstance(atom, Symbol)
            place = symbols.index(atom.name)
            product = add(ops.Mul(), product, add(ops.Shape(place, place + 1), sizes))
        total = add(ops.Add(), total, product)
    return total


@dataclass(frozen=True, eq=False)
class GuardCase:
    """An op, symbol values under which it is legal, and others under which it is not."""

    label: str
    op: Op
    inputs: tuple[Tensor | Dims | Array | None, ...]
    values: dict[str, tuple[int, int]]
    """For each symbol a value under which the op is legal, and one under which it is not."""
    message: str
    """What is said of the bad values, after the op's name and the node's."""
    peers: bool = field(default=True, kw_only=True)
    """Whether ONNX Runtime has the op and takes the good values."""

    @property
    def good(self) -> dict[str, int]:
        """Values under which the op is legal."""
        return {name: good for name, (good, _) in self.values.items()}

    @property
    def bad(self) -> dict[str, int]:
        """Values under which it is not."""
        return {name: bad for name, (_, bad) in self.values.items()}

    def graph(self) -> Graph:
        """The op in a node called ``node``; the input ``sizes`` binds every symbol."""
        graph = Graph(self.label)
        symbols = sorted(self.values)
        shape = tuple(SymbolicDim.symbol(name) for name in symbols)
        sizes = graph.add_input("sizes", TensorType(DType.FLOAT32, shape))
        values: list[Value | None] = []
        for index, given in enumerate(self.inputs):
            if isinstance(given, Tensor):
                kind = TensorType(given.dtype, given.shape)
                values.append(graph.add_input(f"x{index}", kind))
            elif isinstance(given, Dims):
                values.append(given.compute(graph, sizes, symbols))
            else:
                values.append(None if given is None else graph.add_constant(given, f"c{index}"))
        node = graph.add(self.op, *values, name="node")
        graph.outputs = list(node.outputs)
        return graph

    def arrays(self, symbols: Mapping[str, int]) -> list[Array | None]:
        """The node's operands at values of the symbols."""
        return [g.array(symbols) if isinstance(g, Tensor | Dims) else g for g in self.inputs]

    def feeds(self, symbols: Mapping[str, int]) -> dict[str, Array]:
        """The graph's inputs at values of the symbols."""
        sizes = np.zeros([symbols[name] for name in sorted(self.values)], np.float32)
        arrays = self.arrays(symbols)
        given = {
            f"x{index}": array
            for index, (array, entry) in enumerate(zip(arrays, self.inputs, strict=True))
            if isinstance(entry, Tensor) and array is not None
        }
        return {"sizes": sizes, **given}

    def case(self) -> Case:
        """The op on the arrays of the good values."""
        fixed = [i for i, given in enumerate(self.inputs) if not isinstance(given, Tensor)]
        return Case(self.label, self.op, tuple(self.arrays(self.good)), constants=frozenset(fixed))
