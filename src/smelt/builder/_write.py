"""The last stage: plans, code and weights become an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.engine import EngineHeader, Weight, check_header
from smelt.errors import BuildError, EngineFormatError, masked
from smelt.ops import recipe_to_json
from smelt.runtime import Engine
from smelt.types import evaluate_dim

if TYPE_CHECKING:
    from smelt.backends import CodeImage, WeightStore
    from smelt.builder._kept import KeptNetwork
    from smelt.engine import Binding, Fingerprint, LayerInfo, Plan
    from smelt.ir import Constant, Graph


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Everything that an engine is made of."""

    name: str
    fingerprint: Fingerprint
    bindings: tuple[Binding, ...]
    max_batch_size: int | None
    plans: tuple[Plan, ...]
    layers: tuple[LayerInfo, ...]
    weights: WeightStore
    model: Graph
    """The network as it was given: its constants are what a refit may replace."""
    image: CodeImage
    runtime: CodeImage
    report: str
    program: str
    kept: KeptNetwork
    device: str | None = None
    """Where it shall run, if that is one of several of its kind."""


def make_engine(parts: EngineParts) -> Engine:
    """The engine, ready to run. Raises BuildError: it is beyond a limit of engines."""
    named = {s: s.name for c in parts.model.constants() for s in c.sources()}
    header = EngineHeader(
        name=parts.name,
        fingerprint=parts.fingerprint,
        bindings=parts.bindings,
        max_batch_size=parts.max_batch_size,
        plans=parts.plans,
        layers=parts.layers,
        weights=tuple(_weight(c, offset, named) for c, offset in parts.weights.entries),
        symbols=parts.image.symbols,
        runtime_symbols=parts.runtime.symbols,
        report=parts.report,
        program=parts.program,
        network=parts.kept.text,
        sources=parts.kept.sources,
    )
    try:
        check_header(header)
        return Engine.create(
            header,
            parts.weights.data(),
            parts.image.code,
            parts.runtime.code,
            parts.kept.data,
            device=parts.device,
        )
    except EngineFormatError as error:
        raise BuildError(f"no engine can be made of {masked(parts.name)}: {error}") from error


def _weight(constant: Constant, offset: int, named: dict[Constant, str]) -> Weight:
    recipe = recipe_to_json(constant, lambda source: named.get(source))
    kind = constant.type
    shape = tuple(evaluate_dim(extent, {}) for extent in kind.shape)
    return Weight(constant.name, kind.dtype, shape, offset, recipe)
