"""Upper bounds of runtime symbols, for which a plan reserves memory.

Most runtime symbols have an upper bound within an optimization profile, and the plan has memory for
it. The number of iterations of a Loop has no useful bound, because a condition or a number that
only the run knows ends the loop. ``max_workspace_bytes`` limits these counts. Addresses are
reserved for that many iterations. On CPUs pages are mapped when they are touched, so memory use
follows the actual count; on GPUs the reserved memory is committed.
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
"""Largest iteration count for which an unbounded loop is tuned, because the actual count is
unknown.
"""


def bound_runtime_symbols(graph: Graph, profile: SymbolRanges, max_bytes: int) -> SymbolRanges:
    """Return the range of each runtime symbol within an optimization profile.

    ``max_bytes`` limits the total size of tensors that depend on unbounded loop counts.
    """
    ranges = {name: (b.low, b.high) for name, b in profile.items()}
    fixed_bytes = _dependent_bytes(graph, ranges, 0)
    trips = bisect_right(
        range(1, Limit.MAX_LOOP_TRIPS.most + 1),
        max_bytes,
        key=lambda trips: _dependent_bytes(graph, ranges, trips) - fixed_bytes,
    )
    largest = _maxima(graph, ranges, trips)
    best = _maxima(graph, ranges, min(trips, TUNED_LOOP_TRIPS))
    return {name: SymbolRange(0, best[name], high) for name, high in largest.items()}


def used_runtime_symbols(
    graph: Graph, profile: SymbolRanges, runtime_symbols: SymbolRanges
) -> SymbolRanges:
    """Return the runtime symbols on which an optimised graph depends.

    Raises:
        UnboundSymbolError: the graph depends on a symbol that is in neither set of ranges.
    """
    used = _symbols_in(graph)
    if unknown := sorted(used - profile.keys() - runtime_symbols.keys()):
        raise UnboundSymbolError(
            "extents that are known only at run time need upper bounds; set those of "
            f"{', '.join(unknown)} in symbol_bounds of the network's graph"
        )
    return {name: bounds for name, bounds in runtime_symbols.items() if name in used}


def _symbols_in(graph: Graph) -> frozenset[str]:
    """Return the symbols of a graph's values, without those of regions and removed nodes."""
    types = [value.type for value in graph.values() if isinstance(value.type, TensorType)]
    dims = (dim for value in graph.values() for dim in value.dims or ())
    return symbols_of(*(extent for type_ in types for extent in type_.shape), *dims)


def _dependent_bytes(graph: Graph, ranges: Mapping[str, tuple[int, int]], trips: int) -> int:
    """Return the total size of all tensors that depend on runtime symbols, in bytes.

    Every unbounded loop is assumed to run ``trips`` times. The sum is an upper bound of the memory
    in the arena and in the outputs.
    """
    runtime_symbols = {name: (0, high) for name, high in _maxima(graph, ranges, trips).items()}
    types = [value.type for value in graph.values() if isinstance(value.type, TensorType)]
    sizes = [element_count(type_.shape) * type_.dtype.size_bytes for type_ in types]
    dependent_sizes = [size for size in sizes if not symbols_of(size).isdisjoint(runtime_symbols)]
    return sum(bounds_of(size, {**ranges, **runtime_symbols})[1] for size in dependent_sizes)


def _maxima(graph: Graph, ranges: Mapping[str, tuple[int, int]], trips: int) -> dict[str, int]:
    """Return the largest value of each runtime symbol if unbounded loops run ``trips`` times."""
    unbounded = set(_loop_counts(graph))
    maxima: dict[str, int] = {}
    for name, bound in graph.symbol_bounds.items():
        known_ranges = {**ranges, **{symbol: (0, high) for symbol, high in maxima.items()}}
        if unknown := sorted(symbols_of(bound) - known_ranges.keys()):
            raise UnboundSymbolError(
                f"the bound of {name} is {bound}, but the network does not determine "
                f"{', '.join(unknown)}; correct symbol_bounds of the network's graph"
            )
        limit = trips if name in unbounded else MAX_EXTENT
        maxima[name] = min(max(bounds_of(bound, known_ranges)[1], 0), limit)
    return maxima


def _loop_counts(graph: Graph) -> Iterator[str]:
    """Yield the symbols that count the iterations of loops, including loops in regions."""
    for node in graph.nodes:
        if isinstance(node.op, Loop):
            yield node.op.count_symbol
        for region in node.op.regions:
            yield from _loop_counts(region)
