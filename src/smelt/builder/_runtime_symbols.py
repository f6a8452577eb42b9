"""How large the symbols may be that a run itself determines: what a plan has memory for.

Most have an upper bound over the box, and the plan has memory for that. How often a Loop goes round
has none that memory could be taken for: a condition ends it, or a number of trips that only the run
knows. Such counts get what ``max_workspace_bytes`` has room for. Addresses are kept for as many;
a processor's pages come when they are touched, so that memory follows the value, while a GPU has to
give what is reserved.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from smelt.builder._optimization_profiles import SymbolRange
from smelt.engine import MAX_EXTENT
from smelt.errors import UnboundSymbolError
from smelt.ops import Loop
from smelt.types import Limit, TensorType, bounds_of, element_count, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from smelt.builder._optimization_profiles import SymbolRanges
    from smelt.ir import Graph

TUNED_LOOP_TRIPS: Final = 4096
"""What a count without a bound is tuned for, at most: nothing tells what it will be."""


def bound_runtime_symbols(graph: Graph, box: SymbolRanges, most_bytes: int) -> SymbolRanges:
    """The values in a box of each symbol that a run itself determines.

    ``most_bytes`` bounds what all tensors together need for counts that have no bound.
    """
    ranges = {name: (b.low, b.high) for name, b in box.items()}
    least = _bytes(graph, ranges, 0)
    trips = bisect_right(
        range(1, Limit.MAX_LOOP_TRIPS.most + 1),
        most_bytes,
        key=lambda trips: _bytes(graph, ranges, trips) - least,
    )
    largest = _largest(graph, ranges, trips)
    best = _largest(graph, ranges, min(trips, TUNED_LOOP_TRIPS))
    return {name: SymbolRange(0, best[name], high) for name, high in largest.items()}


def used_runtime_symbols(
    graph: Graph, box: SymbolRanges, runtime_symbols: SymbolRanges
) -> SymbolRanges:
    """Those of the counts on which an optimised graph depends.

    Raises UnboundSymbolError: it depends on another symbol than these and the box's.
    """
    used = _symbols_in(graph)
    if unknown := sorted(used - box.keys() - runtime_symbols.keys()):
        raise UnboundSymbolError(
            f"{', '.join(unknown)} is known only at run time and has no upper bound; give one in "
            "symbol_bounds of the network's graph"
        )
    return {name: bounds for name, bounds in runtime_symbols.items() if name in used}


def _symbols_in(graph: Graph) -> frozenset[str]:
    """The symbols of a graph's own values; what only a region or a removed node has is none."""
    kinds = [value.type for value in graph.values() if isinstance(value.type, TensorType)]
    dims = (dim for value in graph.values() for dim in value.dims or ())
    return symbols_of(*(extent for kind in kinds for extent in kind.shape), *dims)


def _bytes(graph: Graph, ranges: Mapping[str, tuple[int, int]], trips: int) -> int:
    """What the tensors need of whose extents a run determines some, where Loops go round so often.

    No more is ever needed at once, in the arena and for the outputs.
    """
    runtime_symbols = {name: (0, high) for name, high in _largest(graph, ranges, trips).items()}
    kinds = [value.type for value in graph.values() if isinstance(value.type, TensorType)]
    sizes = [element_count(kind.shape) * kind.dtype.size_bytes for kind in kinds]
    open_ = [size for size in sizes if not symbols_of(size).isdisjoint(runtime_symbols)]
    return sum(bounds_of(size, {**ranges, **runtime_symbols})[1] for size in open_)


def _largest(graph: Graph, ranges: Mapping[str, tuple[int, int]], trips: int) -> dict[str, int]:
    """The largest value of each symbol that a run itself determines."""
    unbounded = set(_loop_counts(graph))
    found: dict[str, int] = {}
    for name, bound in graph.symbol_bounds.items():
        known = {**ranges, **{counted: (0, most) for counted, most in found.items()}}
        most = trips if name in unbounded else MAX_EXTENT
        found[name] = min(max(bounds_of(bound, known)[1], 0), most)
    return found


def _loop_counts(graph: Graph) -> Iterator[str]:
    """The symbols that say how often Loops go round, those in regions too."""
    for node in graph.nodes:
        if isinstance(node.op, Loop):
            yield node.op.count_symbol
        for region in node.op.regions:
            yield from _loop_counts(region)
