"""Runs passes, checks the graph between them and keeps the record."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from smelt.errors import GraphError, IndexRangeError, InternalError, SmeltError
from smelt.ir import verify
from smelt.passes._base import Note, PassResult
from smelt.types import Relation, TensorType, symbols_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from smelt.ir import Graph, Value
    from smelt.passes._base import Pass
    from smelt.types import Guard, Shape

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did."""

    name: str
    options: dict[str, Any]
    modified: bool
    nodes_before: int
    nodes_after: int
    seconds: float
    notes: tuple[Note, ...]


@dataclass(slots=True)
class PassReport:
    """What a run of passes did, in order."""

    graph: str
    records: list[PassRecord] = field(default_factory=list[PassRecord])
    guards: tuple[Guard, ...] = ()
    """What the graph assumed before any pass and after each: a pass may replace a node, but not
    what its answer rests on."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of every pass."""
        return tuple(note for record in self.records for note in record.notes)

    def to_json(self) -> dict[str, Any]:
        """The report as values that JSON has."""
        return {"graph": self.graph, "passes": [_plain(asdict(r)) for r in self.records]}

    def __str__(self) -> str:
        lines = [f"passes over {self.graph}:"]
        for record in self.records:
            counts = f"{record.nodes_before} -> {record.nodes_after} nodes"
            lines.append(f"  {record.name}: {counts}, {record.seconds * 1e3:.1f} ms")
            lines.extend(f"    {note}" for note in record.notes)
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    listener: Callable[[PassRecord], None] | None = None,
) -> PassReport:
    """Run passes over a graph and its regions, in place.

    Args:
        graph: a well-formed graph; it is verified before the first pass and after every one.
        passes: what to run, in order.
        listener: told of each pass when it is done.

    Raises:
        GraphError: the graph is not well formed, not what a pass requires, or wrong at the values
            that a pass settles.
        IndexRangeError: an index among these values is out of range.
        InternalError: a pass broke the graph; names it and the passes that ran before it.
    """
    verify(graph)
    report = PassReport(graph.name)
    assumed: dict[Hashable, Guard] = {}
    _collect_guards(graph, assumed)
    for one in passes:
        one.requires(graph)
        before, start = _count(graph), time.perf_counter()
        result = _run(graph, one, report)
        seconds = time.perf_counter() - start
        options = {k: v for k, v in vars(one).items() if not k.startswith("_")}
        record = PassRecord(
            one.name, options, result.modified, before, _count(graph), seconds, result.notes
        )
        report.records.append(record)
        _collect_guards(graph, assumed)
        _LOG.debug("%s: %d -> %d nodes", one.name, record.nodes_before, record.nodes_after)
        if listener is not None:
            listener(record)
    known = symbols_of(*(d for value in graph.values() for d in _extents(value)))
    report.guards = tuple(guard for guard in assumed.values() if guard.symbols <= known)
    return report


def _collect_guards(graph: Graph, found: dict[Hashable, Guard]) -> None:
    """Note the guards of the graph and of what its outputs need, each condition once."""
    for guard in (*graph.guards, *(g for node in graph.live_nodes() for g in node.guards)):
        gap = guard.left - guard.right
        is_equality = guard.relation is Relation.EQUAL
        found.setdefault(frozenset((gap, -gap)) if is_equality else gap, guard)


def _extents(value: Value) -> Shape:
    return value.type.shape if isinstance(value.type, TensorType) else ()


def _run(graph: Graph, one: Pass, report: PassReport) -> PassResult:
    try:
        result = _apply(graph, one.started(graph))
        if result.modified:
            graph.infer()  # and with every node its regions
        one.ensures(graph)
    except SmeltError as error:
        if one.discovers_values and isinstance(error, GraphError | IndexRangeError):
            raise
        raise InternalError(f"pass {one.name} failed {_after(report)}: {error}") from error
    verify(graph, during=f"pass {one.name}, {_after(report)}")
    return result


def _apply(graph: Graph, one: Pass) -> PassResult:
    """Apply a pass to the regions first, so that their nodes know the final regions."""
    results = [_apply(region, one) for node in list(graph.nodes) for region in node.op.regions]
    results.append(one.apply(graph))
    notes = tuple(note for result in results for note in result.notes)
    return PassResult(any(result.modified for result in results), notes)


def _after(report: PassReport) -> str:
    names = [record.name for record in report.records]
    return f"after {', '.join(names)}" if names else "as the first pass"


def _count(graph: Graph) -> int:
    regions = (region for node in graph.nodes for region in node.op.regions)
    return len(graph.nodes) + sum(map(_count, regions))
