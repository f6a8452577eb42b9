"""The build report of a plan, for the inspector: graphs, formats, candidates and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.backends import ReferenceFamily, stored_type
from smelt.errors import ShapeError
from smelt.ir import Operand
from smelt.ops import Fused, FusedPair

if TYPE_CHECKING:
    from smelt.backends import Tactic
    from smelt.builder._tactic_selection import PlanBuildState
    from smelt.ir import Graph, Node, Op
    from smelt.tuner import TacticChoice


def describe_plan(source: Graph, plan: PlanBuildState) -> dict[str, object]:
    """Return the build report of one plan, which is assembled, as JSON-serialisable values.

    ``source`` is the network before optimisation.
    """
    choice, assembled = plan.choice, plan.assembled
    assert choice is not None  # noqa: S101
    assert assembled is not None  # noqa: S101  (both are set by earlier stages)
    nodes = plan.graph.nodes
    return {
        **plan.report,
        "source": [{"name": n.name, "op": n.op.name} for n in source.nodes],
        "nodes": [_describe_node(n, choice.tactics[n]) for n in nodes],
        "candidates": choice.times,
        "formats": {n.name: detail for n in nodes if (detail := _formats(n, choice))},
        "in_network": choice.in_network_times,
        "refusals": {name: list(reasons) for name, reasons in plan.refusals.items() if reasons},
        "storage": assembled.notes,
        "lower_bound_bytes": assembled.lower_bound_bytes,
        "memory": assembled.live_ranges,
        "workspace_bytes": plan.workspace_bytes,
    }


def _op_text(op: Op) -> str:
    if isinstance(op, FusedPair):
        return f"{_op_text(op.first)} -> {_op_text(op.second)}"
    if isinstance(op, Fused):
        return " | ".join((op.root.name, *(stage.op.name for stage in op.stages)))
    return op.name


def _flop(node: Node) -> str | None:
    """Return the flop of a node as text (a dimension), or None if it depends on values."""
    # Only the types are passed on: the elements of a constant may not have been computed yet.
    operands = [None if v is None else Operand(v.type, None, v.dims) for v in node.inputs]
    try:
        return str(node.op.count_flop(operands))
    except ShapeError:
        return None


def _formats(node: Node, choice: TacticChoice) -> list[tuple[list[str | None], list[str]]]:
    """Return the formats of each candidate of a node; nothing if all have the same formats."""
    tactics = [tactic for tactic, _ in choice.candidate_times.get(node, ())]
    if len({(t.input_formats, t.output_formats) for t in tactics if not t.is_host_step}) < 2:
        return []
    return [(_input_formats(tactic), list(map(str, tactic.output_formats))) for tactic in tactics]


def _input_formats(tactic: Tactic) -> list[str | None]:
    return [None if f is None else str(f) for f in tactic.input_formats]


def _describe_node(node: Node, tactic: Tactic) -> dict[str, object]:
    """Return the entry of a node in the build report."""
    names = [None if v is None or v.constant is not None else v.name for v in node.inputs]
    return {
        "name": node.name,
        "op": _op_text(node.op),
        "layers": list(node.layers),
        "inputs": names,
        "outputs": [v.name for v in node.outputs],
        "types": list(map(stored_type, node.outputs, tactic.output_formats)),
        "flop": _flop(node),
        "input_formats": _input_formats(tactic),
        "output_formats": [str(f) for f in tactic.output_formats],
        "tactic": str(tactic),
        "is_reference": tactic.family == ReferenceFamily.name,
        "aliasing": tactic.aliasing.value,
    }
