"""Shape specifications and optimization profiles: one profile of symbol ranges per plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from smelt.errors import Argument, BuildError, EngineFormatError, ShapeError, UnboundSymbolError
from smelt.types import (
    Limit,
    Symbol,
    SymbolicDim,
    counted,
    evaluate_dim,
    is_integer,
    is_json_object,
    items_of,
    require_dict,
    require_int,
    require_ints,
    require_list,
    shown,
    symbols_of,
)

if TYPE_CHECKING:
    from smelt.ir import Graph, Value
    from smelt.types import Dim

BATCH = "batch"
"""Name of the symbolic dimension that stands for an implicit batch."""
_SHAPES: Final = Argument("shapes")

Extents = Sequence[int]
ShapeSpec = Extents | Sequence[Extents]
"""A shape; a list of shapes (one plan each); or a tuple (smallest, best, largest) of shapes."""


@dataclass(frozen=True, slots=True)
class SymbolRange:
    """The smallest and largest value of a symbol, and the value to tune for."""

    low: int
    best: int
    high: int

    def __str__(self) -> str:
        """Return the distinct values as in messages: 8, 1..8 or 1..4..8."""
        ends = (self.low, self.best, self.high)
        return "..".join(str(value) for value in dict.fromkeys(ends))


SymbolRanges = dict[str, SymbolRange]


def optimization_profiles_of(
    graph: Graph, shapes: Mapping[str, ShapeSpec] | None, max_batch_size: int
) -> list[SymbolRanges]:
    """Return the optimization profile of each plan.

    Args:
        graph: the network.
        shapes: shapes for some or all inputs, as for `build`.
        max_batch_size: largest implicit batch.

    Raises:
        BuildError: shapes are given for an unknown input, or in different numbers.
        ShapeError: a shape contradicts the network.
        UnboundSymbolError: a symbol of the network has no value.
    """
    max_batch_size = require_int(max_batch_size, "max_batch_size", BuildError, minimum=1)
    inputs = {value.name: value for value in graph.inputs}
    shapes = {} if shapes is None else require_dict(shapes, "shapes", BuildError)
    for name in shapes:
        if name not in inputs:
            raise BuildError(
                f"{_SHAPES} names {name!r}; the inputs are: {', '.join(inputs)}",
                arguments=[_SHAPES],
            )
    ranges = {name: _ranges(name, spec) for name, spec in shapes.items()}
    counts = {len(r) for r in ranges.values() if len(r) > 1}
    if len(counts) > 1:
        raise BuildError(
            f"{_SHAPES} gives {' and '.join(map(str, sorted(counts)))} shapes for different "
            "inputs; give every input the same number of shapes",
            arguments=[_SHAPES],
        )
    count = max(counts, default=1)
    Limit.MAX_PLANS.check(count, "shapes= gives", BuildError)
    return [
        _profile(
            inputs, {n: r[min(i, len(r) - 1)] for n, r in ranges.items()}, graph, max_batch_size
        )
        for i in range(count)
    ]


def _check_extents(name: str, spec: object) -> None:
    """Check that no extent of a specification exceeds the limit.

    This comes first, because larger extents may not fit into 64 bits either.
    """
    shapes = [spec, *items_of(spec)]
    for item in chain.from_iterable(map(items_of, shapes)):
        if is_integer(item) and item > Limit.MAX_EXTENT.most:
            detail = Limit.MAX_EXTENT.excess(int(item))
            raise ShapeError(
                f"{_SHAPES} gives an extent of {detail}", node=name, arguments=[_SHAPES]
            )


def _ranges(name: str, spec: ShapeSpec) -> list[tuple[Extents, Extents, Extents]]:
    """Return (smallest, best, largest) shapes of an input for each plan."""
    _check_extents(name, spec)
    with suppress(BuildError):
        fixed = require_ints(spec, name, BuildError)
        return [(fixed, fixed, fixed)]

    def spec_error(_: str) -> BuildError:
        return BuildError(
            f"the shapes of {name!r} are {shown(spec)}; expected a shape such as (1, 3, 224, 224), "
            "a list of shapes (one plan each), or a tuple (smallest, best, largest) of shapes"
        )

    shapes = [
        require_ints(shape, name, spec_error) for shape in require_list(spec, name, spec_error)
    ]
    if any(len(s) != len(shapes[0]) for s in shapes):
        raise BuildError(f"the shapes of {name!r} differ in rank: {shapes}")
    if isinstance(spec, list):
        return [(s, s, s) for s in shapes]
    if len(shapes) != 3:
        raise BuildError(
            f"the shapes of {name!r} are {spec}: a tuple must be (smallest, best, largest); a "
            "list has one shape per plan"
        )
    low, best, high = shapes
    if not all(a <= b <= c for a, b, c in zip(low, best, high, strict=True)):
        raise BuildError(f"the shapes of {name!r} must be smallest <= best <= largest, not {spec}")
    return [(low, best, high)]


def _profile(
    inputs: Mapping[str, Value],
    shapes_by_input: Mapping[str, tuple[Extents, Extents, Extents]],
    graph: Graph,
    max_batch_size: int,
) -> SymbolRanges:
    """Return the profile that shapes for some or all inputs define."""
    profile: SymbolRanges = {}
    for name, (low, best, high) in shapes_by_input.items():
        shape = inputs[name].tensor.shape
        if len(low) == len(shape) - 1 and shape[:1] == (SymbolicDim.symbol(BATCH),):
            shape = shape[1:]
        if len(low) != len(shape):
            given = counted(len(low), "extent")
            raise _misfit(name, shape, f"gives {given}, where the network has {len(shape)}")
        for axis, (extent, *values) in enumerate(zip(shape, low, best, high, strict=True)):
            bounds = SymbolRange(*values)
            if isinstance(extent, int) and (bounds.low, bounds.high) != (extent, extent):
                raise _misfit(
                    name,
                    shape,
                    f"gives {bounds} for axis {axis}, where the network has {extent}: "
                    f"the input's shape is [{', '.join(map(str, shape))}]",
                )
            _bind(profile, name, extent, bounds)
    unbound = {s for v in inputs.values() for s in symbols_of(*v.tensor.shape)} - set(profile)
    if BATCH in unbound:
        unbound.discard(BATCH)
        profile[BATCH] = SymbolRange(1, max_batch_size, max_batch_size)
    if unbound - set(graph.symbol_bounds):
        names = ", ".join(sorted(unbound))
        example = Argument("shapes", _example_shapes(inputs))
        raise UnboundSymbolError(
            f"the inputs have symbolic extents without a value: {names}; give shapes, for example "
            f"{example} (max_batch_size sets only an extent that is named batch)",
            arguments=[example],
        )
    _check_sizes(inputs, profile)
    return profile


def _check_sizes(inputs: Mapping[str, Value], profile: SymbolRanges) -> None:
    """Check that the largest inputs do not exceed the size limit of tensors."""
    highs = {symbol: bounds.high for symbol, bounds in profile.items()}
    for name, value in inputs.items():
        type_ = value.tensor
        if symbols_of(*type_.shape) <= highs.keys():
            shape = [evaluate_dim(extent, highs) for extent in type_.shape]
            size = math.prod(shape) * type_.dtype.size_bytes
            if size > Limit.MAX_TENSOR_BYTES.most:
                raise ShapeError(
                    f"the largest shape is {shape}, which does not fit into memory: "
                    f"{Limit.MAX_TENSOR_BYTES.excess(size)}; build for smaller shapes",
                    node=name,
                )


def _misfit(name: str, shape: Sequence[Dim], problem: str) -> ShapeError:
    """Return the error for a shape that an input does not accept, with one that it accepts."""
    fitting = tuple(extent if isinstance(extent, int) else 1 for extent in shape)
    example = Argument("shapes", {name: fitting})
    return ShapeError(
        f"{_SHAPES} {problem}; a shape that fits is {example}", node=name, arguments=[example]
    )


def _example_shapes(inputs: Mapping[str, Value]) -> dict[str, tuple[int, ...]]:
    """Return example shapes for all inputs with symbols: a batch of 1, images of 224 x 224."""
    sizes: dict[str, int] = {}
    symbolic = {n: v.tensor.shape for n, v in inputs.items() if symbols_of(*v.tensor.shape)}
    for shape in symbolic.values():
        for axis, extent in enumerate(shape):
            for symbol in symbols_of(extent):
                sizes.setdefault(symbol, 1 if axis == 0 else 224 if len(shape) == 4 else 16)
    return {n: tuple(evaluate_dim(d, sizes) for d in shape) for n, shape in symbolic.items()}


def _bind(profile: SymbolRanges, name: str, extent: Dim, bounds: SymbolRange) -> None:
    """Record the range of the symbol that an extent is.

    Raises:
        ShapeError: the extent is not a single symbol, or the symbol has another range already.
    """
    if bounds.low < 0:
        raise ShapeError(f"the extent {bounds.low} is negative; it must be at least 0", node=name)
    if isinstance(extent, int):
        return
    monomial = extent.terms[0][0] if len(extent.terms) == 1 else ()
    if len(monomial) != 1 or not isinstance(monomial[0], Symbol) or extent.terms[0][1] != 1:
        raise ShapeError(
            f"the extent {extent} is a formula and cannot be set; set its symbols", node=name
        )
    symbol = monomial[0].name
    if profile.setdefault(symbol, bounds) != bounds:
        raise ShapeError(
            f"{_SHAPES} gives the extent {symbol} two different values or ranges, "
            f"{profile[symbol]} and {bounds}; give one for all inputs",
            node=name,
            arguments=[_SHAPES],
        )


# ---- as JSON, which does not distinguish tuples from lists


def shapes_to_data(shapes: Mapping[str, ShapeSpec] | None) -> Any:
    """Return shape specifications as JSON-serialisable values."""
    return {name: _spec_to_data(spec) for name, spec in (shapes or {}).items()}


def _spec_to_data(spec: ShapeSpec) -> list[Any]:
    with suppress(BuildError):
        return ["one", list(require_ints(spec, "shapes", BuildError))]
    kind = "each" if isinstance(spec, list) else "range"
    return [kind, [list(require_ints(shape, "shapes", BuildError)) for shape in spec]]


def shapes_from_data(data: Any) -> dict[str, ShapeSpec] | None:
    """Return the specifications that `shapes_to_data` wrote.

    Raises:
        EngineFormatError: the data is malformed.
    """
    if not is_json_object(data):
        raise EngineFormatError("the shapes in the build options are malformed")
    return {name: _spec_from_data(spec) for name, spec in data.items()} or None


def _spec_from_data(data: Any) -> ShapeSpec:
    """Return the specification that `_spec_to_data` wrote."""
    match data:
        case ["one", extents]:
            return _extents(extents)
        case ["each", [*shapes]]:
            return [_extents(shape) for shape in shapes]
        case ["range", [*shapes]]:
            return tuple(_extents(shape) for shape in shapes)
        case _:
            raise EngineFormatError("a shape in the build options is malformed")


def _extents(data: Any) -> Extents:
    match data:
        case [*extents] if all(type(e) is int and 0 <= e <= Limit.MAX_EXTENT.most for e in extents):
            return tuple(extents)
        case _:
            raise EngineFormatError("a shape in the build options is not a list of extents")
