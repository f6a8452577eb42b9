"""Input arrays of an engine (random, zeros or from files), and the sizes to run at."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.cli._console import say
from smelt.errors import SmeltError, sanitize_name
from smelt.types import (
    bounds_of,
    evaluate_dim,
    is_float_dtype,
    random_array,
    read_array,
    symbols_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine import Binding, Plan
    from smelt.runtime import Engine
    from smelt.types import ArrayHeader

_SEED: Final = 0
"""Seed of random inputs."""
_PICTURES: Final = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"))


def values_of_batch(
    engine: Engine, batch: int | None, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the values of the symbols to run at, for a batch size.

    They are the largest sizes of the first plan that accepts the batch and the given shapes.

    Args:
        engine: the engine.
        batch: batch size; None for the largest batch of all plans.
        shapes: shapes of arrays from files, by the input's name.

    Raises:
        SmeltError: no plan accepts the batch.
    """
    fixed = [(b, shapes[b.name]) for b in engine.inputs if b.name in shapes]
    fitting = [p for p in engine.header.plans if all(_takes(p, b, shape) for b, shape in fixed)]
    plans = fitting or list(engine.header.plans)
    first = plans[0].largest
    leading = [b.shape[0] for b in engine.inputs if b.shape]
    if batch is None:
        sizes_of = (plan.largest for plan in plans)
        return max(sizes_of, key=lambda v: max((evaluate_dim(d, v) for d in leading), default=1))
    values = _with_batch(engine, first, batch)
    sizes = {name: n for name, n in values.items() if n != first.get(name)}
    return next((p.largest | sizes for p in plans if _accepts(p, sizes)), values)


def _accepts(plan: Plan, sizes: Mapping[str, int]) -> bool:
    """Return whether values of symbols are within a plan's ranges."""
    return all(low <= sizes.get(name, high) <= high for name, low, high in plan.symbols)


def _with_batch(engine: Engine, values: dict[str, int], batch: int) -> dict[str, int]:
    """Return values of symbols with another batch.

    The batch is the symbol ``batch`` or, without it, the only symbol that is the first extent of
    all inputs.

    Raises:
        SmeltError: no plan accepts the batch.
    """
    used = {s for b in engine.inputs for s in symbols_of(*b.shape)}
    if "batch" in used:
        return values | {"batch": _checked_batch(engine, "batch", batch)}
    leading = {b.shape[0] for b in engine.inputs if b.shape}
    if all(extent == batch for extent in leading):
        return values
    symbols = [str(extent) for extent in leading if not isinstance(extent, int)]
    if len(symbols) == 1 and len(leading) == 1:
        return values | {symbols[0]: _checked_batch(engine, symbols[0], batch)}
    raise SmeltError(
        f"the engine's batch is fixed at {', '.join(map(str, leading))}; if the model has a "
        f"dynamic batch, build an engine for a batch of {batch} with --shape NAME=1..{batch}x…"
    )


def _checked_batch(engine: Engine, name: str, batch: int) -> int:
    """Return the batch if a plan accepts it; check before memory is allocated for it."""
    ranges = [(low, high) for p in engine.header.plans for s, low, high in p.symbols if s == name]
    if ranges and not any(low <= batch <= high for low, high in ranges):
        accepted = " or ".join(f"{low}..{high}" for low, high in ranges)
        raise SmeltError(f"the engine takes a batch of {accepted}, not {batch}")
    return batch


def shape_at(binding: Binding, values: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a binding at given values of the symbols."""
    return tuple(evaluate_dim(dim, values) for dim in binding.shape)


def require_array(
    text: str, binding: Binding, values: Mapping[str, int], plans: Sequence[Plan]
) -> NDArray[Any]:
    """Return the array of an input.

    Args:
        text: ``random``, ``zeros`` or the name of a .npy file.
        binding: the input.
        values: values of the symbols, for the shapes of ``random`` and ``zeros``.
        plans: the engine's plans, one of which must accept the shape of a file's array.

    Raises:
        SmeltError: the file cannot be read, or its array does not fit the input.
    """
    dtype = binding.dtype.numpy
    if text == "random":
        return random_array(dtype, shape_at(binding, values), np.random.default_rng(_SEED))
    if text == "zeros":
        return np.zeros(shape_at(binding, values), dtype)
    if Path(text).suffix.lower() in _PICTURES:
        raise SmeltError(
            f"{text} is a picture, but --input takes a .npy file, random or zeros; give the "
            f"picture with `smelt run --image {text}`"
        )
    array = read_array(text, partial(_check_header, text, binding, plans))
    # Only lossless or float conversions are made, and they are reported.
    if array.dtype != dtype and _converts(array.dtype, dtype):
        say(
            f"{text} is converted from {array.dtype} to {dtype}, the type of input "
            f"{sanitize_name(binding.name)}"
        )
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    return array


def _converts(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether arrays are converted: floats to floats, integers if no value is lost."""
    if is_float_dtype(source) and is_float_dtype(target):
        return True
    return {source.kind, target.kind} <= {"i", "u"} and np.can_cast(source, target)


def _check_header(text: str, binding: Binding, plans: Sequence[Plan], header: ArrayHeader) -> None:
    """Check shape and type of a file's array before its elements are read.

    Raises:
        SmeltError: no plan accepts the shape, or the type does not convert to that of the input.
    """
    name, dtype = sanitize_name(binding.name), binding.dtype.numpy
    if not any(_takes(plan, binding, header.shape) for plan in plans):
        shapes = " or ".join(dict.fromkeys(_shape_with_ranges(plan, binding) for plan in plans))
        raise SmeltError(f"{text} has shape {[*header.shape]}, but input {name} takes {shapes}")
    if header.dtype != dtype and not _converts(header.dtype, dtype):
        raise SmeltError(f"{text} has type {header.dtype}, but input {name} takes {dtype}")


def _shape_with_ranges(plan: Plan, binding: Binding) -> str:
    """Return a binding's shape with a plan's range of each open extent: ``[batch (1..8), 3]``."""
    ranges = {name: (low, high) for name, low, high in plan.symbols}
    extents: list[str] = []
    for dim in binding.shape:
        low, high = bounds_of(dim, ranges)
        extents.append(str(dim) if isinstance(dim, int) else f"{dim} ({low}..{high})")
    return f"[{', '.join(extents)}]"


def _takes(plan: Plan, binding: Binding, shape: tuple[int, ...]) -> bool:
    """Return whether a shape is within a plan's ranges for a binding.

    Whether inputs agree on the values of shared symbols is checked by the run.
    """
    ranges = {name: (low, high) for name, low, high in plan.symbols}
    bounds = [bounds_of(dim, ranges) for dim in binding.shape]
    return len(bounds) == len(shape) and all(
        low <= extent <= high for (low, high), extent in zip(bounds, shape, strict=True)
    )
