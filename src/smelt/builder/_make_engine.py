"""The last build stage: assembles plans, code and weights into an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt.engine import EngineHeader, GivenArray, Weight, check_header
from smelt.errors import BuildError, EngineFormatError, sanitize_name
from smelt.ir import sources_first
from smelt.ops import DequantizeLinear, QuantizeLinear, recipe_to_json
from smelt.runtime import Engine
from smelt.types import DType, evaluate_dim, shared_formula_limit

if TYPE_CHECKING:
    from smelt.backends import CodeImage, WeightStore
    from smelt.builder._embedded_network import EmbeddedNetwork
    from smelt.engine import Binding, EngineFile, Fingerprint, LayerInfo, Plan
    from smelt.ir import Constant, Graph

_QUANTIZED: Final = (QuantizeLinear, DequantizeLinear)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """All parts of an engine."""

    name: str
    fingerprint: Fingerprint
    bindings: tuple[Binding, ...]
    max_batch_size: int | None
    plans: tuple[Plan, ...]
    layers: tuple[LayerInfo, ...]
    weights: WeightStore
    model: Graph
    """The network before optimisation; its constants are what a refit may replace."""
    image: CodeImage
    runtime: CodeImage
    report: str
    program: str
    embedded_network: EmbeddedNetwork
    partitions: tuple[EngineFile, ...] = ()
    device: str | None = None
    """Device to run on, if the machine may have several of the kind."""


def make_engine(parts: EngineParts) -> Engine:
    """Return the engine, ready to run.

    Raises:
        BuildError: the engine exceeds a limit of the engine format.
    """
    sources = _Sources(parts.model)
    with shared_formula_limit():
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
            parts.partitions,
            device=parts.device,
        )
    except EngineFormatError as error:
        raise BuildError(
            f"{sanitize_name(parts.name)} cannot be built as an engine: {error}"
        ) from error


class _Sources:
    """The arrays of a model to which recipes refer by name."""

    def __init__(self, model: Graph) -> None:
        self._all = {s for c in model.constants() for s in c.sources()}
        self.used: dict[Constant, GivenArray] = {}
        """The arrays that at least one recipe uses."""

    def name(self, source: Constant) -> str | None:
        """Return the name by which recipes refer to an array; None if it cannot be refitted."""
        if source not in self._all or source.is_fixed:
            return None
        dtype, shape = DType.from_numpy(source.array.dtype), source.array.shape
        self.used[source] = GivenArray(source.name, dtype, shape)
        return source.name


def _scales(model: Graph) -> list[Constant]:
    """Return the constants that inference requires to be valid quantization scales.

    They include scales whose quantisation an importer has already computed.
    """
    values = [node.inputs[1] for node in model.nodes if isinstance(node.op, _QUANTIZED)]
    constants = [None if value is None else value.constant for value in values]
    recipes = [part.recipe for part in sources_first(*model.constants())]
    constants += [r.inputs[1] for r in recipes if r is not None and isinstance(r.op, _QUANTIZED)]
    return list(dict.fromkeys(constant for constant in constants if constant is not None))


def _weight(constant: Constant, offset: int, sources: _Sources) -> Weight:
    recipe = recipe_to_json(constant, sources.name)
    type_ = constant.type
    shape = tuple(evaluate_dim(extent, {}) for extent in type_.shape)
    return Weight(constant.name, type_.dtype, shape, offset, recipe)
