"""Arrays for an engine's inputs: random ones, files, or a picture; and the shapes they take."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.cli._console import say
from smelt.cli._image_preprocessing import load_array
from smelt.errors import SmeltError, sanitize_name
from smelt.types import bounds_of, evaluate_dim, is_float_dtype, symbols_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from smelt.engine import Binding, Plan
    from smelt.runtime import Engine
    from smelt.types import ArrayHeader

_SEED: Final = 0
_PICTURES: Final = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"))


def symbol_values(engine: Engine) -> dict[str, int]:
    """Sizes to run at: the largest that the first plan takes."""
    return engine.header.plans[0].largest


def values_of_batch(
    engine: Engine, batch: int | None, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """The largest sizes of the first plan that takes a batch; None is the largest of all plans.

    Inputs that are given have ``shapes``, and plans that do not take them are none.
    """
    given = [(b, shapes[b.name]) for b in engine.inputs if b.name in shapes]
    fitting = [p for p in engine.header.plans if all(_takes(p, b, shape) for b, shape in given)]
    plans = fitting or list(engine.header.plans)
    first = plans[0].largest
    leading = [b.shape[0] for b in engine.inputs if b.shape]
    if batch is None:
        sizes_of = (plan.largest for plan in plans)
        return max(sizes_of, key=lambda v: max((evaluate_dim(d, v) for d in leading), default=1))
    named = _with_batch(engine, first, batch)
    sizes = {name: n for name, n in named.items() if n != first.get(name)}
    return next((p.largest | sizes for p in plans if _holds(p, sizes)), named)


def _holds(plan: Plan, sizes: Mapping[str, int]) -> bool:
    """Whether a plan takes these values of symbols."""
    return all(low <= sizes.get(name, high) <= high for name, low, high in plan.symbols)


def _with_batch(engine: Engine, values: dict[str, int], batch: int) -> dict[str, int]:
    """The values, that of the batch as it is asked for. Raises SmeltError: no plan takes it."""
    used = {s for b in engine.inputs for s in symbols_of(*b.shape)}
    if "batch" in used:
        return values | {"batch": _taken(engine, "batch", batch)}
    leading = {b.shape[0] for b in engine.inputs if b.shape}
    if all(extent == batch for extent in leading):
        return values
    named = [str(extent) for extent in leading if not isinstance(extent, int)]
    if len(named) == 1 and len(leading) == 1:
        return values | {named[0]: _taken(engine, named[0], batch)}
    raise SmeltError(
        f"the engine's batch is fixed at {', '.join(map(str, leading))}; where the model leaves it "
        f"open, one for {batch} is built with --shape NAME=1..{batch}x…"
    )


def _taken(engine: Engine, name: str, batch: int) -> int:
    """The batch, where a plan takes it: no memory is asked for one that none takes."""
    ranges = [(low, high) for p in engine.header.plans for s, low, high in p.symbols if s == name]
    if ranges and not any(low <= batch <= high for low, high in ranges):
        detail = " or ".join(f"{low}..{high}" for low, high in ranges)
        raise SmeltError(f"the engine takes a batch of {detail}, not {batch}")
    return batch


def shape_at(binding: Binding, values: Mapping[str, int]) -> tuple[int, ...]:
    """The binding's extents at these symbol values."""
    return tuple(evaluate_dim(dim, values) for dim in binding.shape)


def random_array(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int = _SEED) -> NDArray[Any]:
    """Normal floats, or zeros and ones: indices and masks of those are in range everywhere."""
    rng = np.random.default_rng(seed)
    if is_float_dtype(dtype):
        return rng.standard_normal(shape, np.float32).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def require_array(
    text: str, binding: Binding, values: Mapping[str, int], plans: Sequence[Plan]
) -> NDArray[Any]:
    """The array that ``random``, ``zeros`` or the name of a .npy file stands for."""
    dtype = binding.dtype.numpy
    if text == "random":
        return random_array(shape_at(binding, values), dtype)
    if text == "zeros":
        return np.zeros(shape_at(binding, values), dtype)
    if Path(text).suffix.lower() in _PICTURES:
        raise SmeltError(
            f"{text} is a picture: smelt run --image {text} prepares it. "
            "--input takes a .npy file, random or zeros"
        )
    array = load_array(text, partial(_check_header, text, binding, plans))
    # Only what a model could not tell apart is changed, and it is said.
    if array.dtype != dtype and _converts(array.dtype, dtype):
        say(
            f"{text} has {array.dtype}, which is converted: {sanitize_name(binding.name)} takes "
            f"{dtype}"
        )
        return array.astype(dtype)
    return array


def _converts(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether one type becomes another: floats do, and integers where none of them is lost."""
    if is_float_dtype(given) and is_float_dtype(wanted):
        return True
    return {given.kind, wanted.kind} <= {"i", "u"} and np.can_cast(given, wanted)


def _check_header(text: str, binding: Binding, plans: Sequence[Plan], header: ArrayHeader) -> None:
    """Refuse, before an element is read, what no plan can take. Raises SmeltError."""
    name, dtype = sanitize_name(binding.name), binding.dtype.numpy
    if not any(_takes(plan, binding, header.shape) for plan in plans):
        shapes = " or ".join(dict.fromkeys(_shape_with_ranges(plan, binding) for plan in plans))
        raise SmeltError(f"{text} has shape {[*header.shape]}, and {name} takes {shapes}")
    if header.dtype != dtype and not _converts(header.dtype, dtype):
        raise SmeltError(f"{text} holds {header.dtype}, and {name} takes {dtype}")


def _shape_with_ranges(plan: Plan, binding: Binding) -> str:
    """A binding's shape with what a plan takes of each open extent: ``[batch (1..8), 3]``."""
    ranges = {name: (low, high) for name, low, high in plan.symbols}
    detail: list[str] = []
    for dim in binding.shape:
        low, high = bounds_of(dim, ranges)
        detail.append(str(dim) if isinstance(dim, int) else f"{dim} ({low}..{high})")
    return f"[{', '.join(detail)}]"


def _takes(plan: Plan, binding: Binding, shape: tuple[int, ...]) -> bool:
    """Whether extents are within a plan's ranges; that they agree with others is for the run."""
    ranges = {name: (low, high) for name, low, high in plan.symbols}
    bounds = [bounds_of(dim, ranges) for dim in binding.shape]
    return len(bounds) == len(shape) and all(
        low <= extent <= high for (low, high), extent in zip(bounds, shape, strict=True)
    )
