"""The graph, and what an op is. No file format and no device is known here."""

from smelt.ir._graph import Constant, Graph, Node, Recipe, Value, infer_node
from smelt.ir._op import Array, Case, Op, Operand

__all__ = [
    "Array",
    "Case",
    "Constant",
    "Graph",
    "Node",
    "Op",
    "Operand",
    "Recipe",
    "Value",
    "infer_node",
]
