"""The graph, and what an op is. No file format and no device is known here."""

from smelt.ir._graph import Constant, Graph, Node, Recipe, Value, infer_node
from smelt.ir._op import Array, Case, Op, Operand
from smelt.ir._parser import parse_graph
from smelt.ir._printer import collect_constants, print_graph
from smelt.ir._recipes import compute_untrusted
from smelt.ir._rewriter import (
    Change,
    FreshNames,
    Rewrite,
    apply_rewrite,
    can_substitute,
    clone,
    remove_dead,
    sole_user,
    substitute,
)
from smelt.ir._verifier import verify

__all__ = [
    "Array",
    "Case",
    "Change",
    "Constant",
    "FreshNames",
    "Graph",
    "Node",
    "Op",
    "Operand",
    "Recipe",
    "Rewrite",
    "Value",
    "apply_rewrite",
    "can_substitute",
    "clone",
    "collect_constants",
    "compute_untrusted",
    "infer_node",
    "parse_graph",
    "print_graph",
    "remove_dead",
    "sole_user",
    "substitute",
    "verify",
]
