"""The last stage: plans, code and weights become an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.engine import EngineHeader, GivenArray, Weight, check_header
from smelt.errors import BuildError, EngineFormatError, sanitize_name
from smelt.ir import sources_first
from smelt.ops import DequantizeLinear, QuantizeLinear, recipe_to_json
from smelt.runtime import Engine
from smelt.types import DType, evaluate_dim, one_file_of_formulas

if TYPE_CHECKING:
    from smelt.backends import CodeImage, WeightStore
    from smelt.builder._embedded_network import EmbeddedNetwork
    from smelt.engine import Binding, Fingerprint, LayerInfo, Plan
    from smelt.ir import Constant, Graph

_QUANTIZED: Final = (QuantizeLinear, DequantizeLinear)


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
    embedded_network: EmbeddedNetwork
    device: str | None = None
    """Where it shall run, if that is one of several of its kind."""


def make_engine(parts: EngineParts) -> Engine:
    """The engine, ready to run. Raises BuildError: it is beyond a limit of engines."""
    sources = _Sources(parts.model)
    with one_file_of_formulas():
        weights = tuple(_weight(c, offset, sources) for c, offset in parts.weights.entries)
        scales = tuple(recipe_to_json(c, sources.name) for c in _scales(parts.model))
    header = EngineHeader(
        name=parts.name,
        fingerprint=parts.fingerprint,
        bindings=parts.bindings,
        max_batch_size=parts.max_batch_size,
        plans=parts.plans,
        layers=parts.layers,
        weights=weights,
        symbols=parts.image.symbols,
        runtime_symbols=parts.runtime.symbols,
        report=parts.report,
        program=parts.program,
        network=parts.embedded_network.text,
        sources=parts.embedded_network.sources,
        scales=scales,
        given=tuple(sources.used.values()),
    )
    try:
        check_header(header)
        return Engine.create(
            header,
            parts.weights.data(),
            parts.image.code,
            parts.runtime.code,
            parts.embedded_network.data,
            device=parts.device,
        )
    except EngineFormatError as error:
        raise BuildError(
            f"no engine can be made from {sanitize_name(parts.name)}: {error}"
        ) from error


class _Sources:
    """The arrays of a model, by which recipes name what they start from."""

    def __init__(self, model: Graph) -> None:
        self._all = {s for c in model.constants() for s in c.sources()}
        self.used: dict[Constant, GivenArray] = {}
        """Those that a recipe names."""

    def name(self, source: Constant) -> str | None:
        if source not in self._all or source.is_fixed:
            return None
        dtype, shape = DType.from_numpy(source.array.dtype), source.array.shape
        self.used[source] = GivenArray(source.name, dtype, shape)
        return source.name


def _scales(model: Graph) -> list[Constant]:
    """The constants of which inference demands that they are sizes of steps.

    An importer may have computed what they quantise.
    """
    values = [node.inputs[1] for node in model.nodes if isinstance(node.op, _QUANTIZED)]
    found = [None if value is None else value.constant for value in values]
    recipes = [part.recipe for part in sources_first(*model.constants())]
    found += [r.inputs[1] for r in recipes if r is not None and isinstance(r.op, _QUANTIZED)]
    return list(dict.fromkeys(constant for constant in found if constant is not None))


def _weight(constant: Constant, offset: int, sources: _Sources) -> Weight:
    recipe = recipe_to_json(constant, sources.name)
    kind = constant.type
    shape = tuple(evaluate_dim(extent, {}) for extent in kind.shape)
    return Weight(constant.name, kind.dtype, shape, offset, recipe)
