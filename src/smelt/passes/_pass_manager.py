"""The pass manager: runs passes, verifies the graph after each, and records the changes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from smelt.errors import DeviceError, GraphError, IndexRangeError, InternalError, SmeltError
from smelt.ir import Graph, Value, verify
from smelt.passes._base import Note, Pass, PassResult
from smelt.signal_errors import pass_on_handler_error
from smelt.types import Guard, Relation, Shape, TensorType, symbols_of

_LOG = logging.getLogger(__name__)
_DISCOVERED_ERRORS = (GraphError, IndexRangeError, DeviceError)
"""Errors that values cause, when a pass computes them at build time."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """Record of one run of one pass."""

    name: str
    options: dict[str, Any]
    modified: bool
    nodes_before: int
    nodes_after: int
    seconds: float
    notes: tuple[Note, ...]


@dataclass(slots=True)
class PassPipelineReport:
    """Records of a run of the pass pipeline, in order."""

    graph: str
    records: list[PassRecord] = field(default_factory=list[PassRecord])
    guards: tuple[Guard, ...] = ()
    """The guards of the graph before the first pass and after every pass. A pass may remove the
    node of a guard, but the result still depends on the condition.
    """

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of all passes."""
        return tuple(note for record in self.records for note in record.notes)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-serialisable values."""
        return {"graph": self.graph, "passes": [_plain(asdict(r)) for r in self.records]}

    def __str__(self) -> str:
        lines = [f"passes over {self.graph}:"]
        for record in self.records:
            counts = f"{record.nodes_before} -> {record.nodes_after} nodes"
            lines.append(f"  {record.name}: {counts}, {record.seconds * 1e3:.1f} ms")
            lines.extend(f"    {note}" for note in record.notes)
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Convert a value to JSON types; other types become strings."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def run_passes(
    graph: Graph, passes: Sequence[Pass], listener: Callable[[PassRecord], None] | None = None
) -> PassPipelineReport:
    """Run passes over a graph and its regions, in place.

    Args:
        graph: a well-formed graph; it is verified before the first pass and after every pass.
        passes: the passes, in order.
        listener: called with the record of each pass after it has run.

    Raises:
        GraphError: the graph is not well formed, does not meet a pass's preconditions, or is wrong
            for values that a pass determined.
        IndexRangeError: an index among these values is out of range.
        DeviceError: the process is out of memory for these values.
        InternalError: a pass produced an invalid graph; the message names it and its predecessors.
    """
    verify(graph)
    report = PassPipelineReport(graph.name)
    guards: dict[Hashable, Guard] = {}
    _collect_guards(graph, guards)
    for graph_pass in passes:
        graph_pass.requires(graph)
        before, start = _count(graph), time.perf_counter()
        result = _run(graph, graph_pass, report)
        seconds = time.perf_counter() - start
        options = {k: v for k, v in vars(graph_pass).items() if not k.startswith("_")}
        record = PassRecord(
            graph_pass.name, options, result.modified, before, _count(graph), seconds, result.notes
        )
        report.records.append(record)
        _collect_guards(graph, guards)
        _LOG.debug("pass %s: number of nodes %d -> %d", record.name, before, record.nodes_after)
        if listener is not None:
            listener(record)
    known = symbols_of(*(d for value in graph.values() for d in _extents(value)))
    report.guards = tuple(guard for guard in guards.values() if guard.symbols <= known)
    return report


def _collect_guards(graph: Graph, guards: dict[Hashable, Guard]) -> None:
    """Add the guards of the graph and of its live nodes, each condition once."""
    for guard in (*graph.guards, *(g for node in graph.live_nodes() for g in node.guards)):
        gap = guard.left - guard.right
        is_equality = guard.relation is Relation.EQUAL
        guards.setdefault(frozenset((gap, -gap)) if is_equality else gap, guard)


def _extents(value: Value) -> Shape:
    return value.type.shape if isinstance(value.type, TensorType) else ()


def _run(graph: Graph, graph_pass: Pass, report: PassPipelineReport) -> PassResult:
    """Run one pass with its checks, and verify the graph.

    Errors that the pass caused are raised as ``InternalError``.
    """
    try:
        result = _apply(graph, graph_pass.started(graph))
        if result.modified:
            graph.infer()  # infers the regions of the nodes, too
    except SmeltError as error:
        pass_on_handler_error(error)
        if graph_pass.discovers_values and isinstance(error, _DISCOVERED_ERRORS):
            raise
        raise InternalError(f"pass {graph_pass.name} failed {_after(report)}: {error}") from error
    verify(graph, during=f"pass {graph_pass.name}, {_after(report)}")
    return result


def _apply(graph: Graph, graph_pass: Pass) -> PassResult:
    """Apply a pass to the regions first, so that their nodes are inferred from final regions."""
    results = [
        _apply(region, graph_pass) for node in list(graph.nodes) for region in node.op.regions
    ]
    results.append(graph_pass.apply(graph))
    notes = tuple(note for result in results for note in result.notes)
    return PassResult(any(result.modified for result in results), notes)


def _after(report: PassPipelineReport) -> str:
    names = [record.name for record in report.records]
    return f"after {', '.join(names)}" if names else "as the first pass"


def _count(graph: Graph) -> int:
    regions = (region for node in graph.nodes for region in node.op.regions)
    return len(graph.nodes) + sum(map(_count, regions))
