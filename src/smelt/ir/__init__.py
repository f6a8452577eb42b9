"""The graph and the op interface, independent of file formats and devices."""

from smelt.ir._editing import FreshNames, can_substitute, clone, remove_dead, sole_user, substitute
from smelt.ir._graph import Constant, Graph, Node, Recipe, Value, fix_numbers, sources_first
from smelt.ir._op import (
    INTERPRETED_OPERATIONS,
    TEMPORARY_OPERATIONS,
    Array,
    Case,
    Op,
    Operand,
    count_excess,
    evaluate,
)
from smelt.ir._printer import collect_constants, print_graph
from smelt.ir._runtime_array_checks import check_array, check_guards, first_mismatch
from smelt.ir._untrusted_recipes import RecipeBudget, compute_untrusted
from smelt.ir._verifier import verify

__all__ = [
    "INTERPRETED_OPERATIONS",
    "TEMPORARY_OPERATIONS",
    "Array",
    "Case",
    "Constant",
    "FreshNames",
    "Graph",
    "Node",
    "Op",
    "Operand",
    "Recipe",
    "RecipeBudget",
    "Value",
    "can_substitute",
    "check_array",
    "check_guards",
    "clone",
    "collect_constants",
    "compute_untrusted",
    "count_excess",
    "evaluate",
    "first_mismatch",
    "fix_numbers",
    "print_graph",
    "remove_dead",
    "sole_user",
    "sources_first",
    "substitute",
    "verify",
]
