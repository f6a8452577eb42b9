"""The last build stage: records how the packed weights follow from the model's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from smelt.engine import RefittableArray, Weight
from smelt.ir import sources_first
from smelt.ops import DequantizeLinear, QuantizeLinear, recipe_to_json
from smelt.types import DType, evaluate_dim, shared_formula_limit

if TYPE_CHECKING:
    from smelt.backends import WeightStore
    from smelt.engine import EngineHeader
    from smelt.ir import Constant, Graph

_QUANTIZED: Final = (QuantizeLinear, DequantizeLinear)


@shared_formula_limit
def with_recipes(header: EngineHeader, model: Graph, packed: WeightStore) -> EngineHeader:
    """Return a header with the packed weights, their recipes, and the arrays that these use.

    Args:
        header: header of the engine.
        model: the network before optimisation; its constants are what a refit may replace.
        packed: the packed weights.
    """
    sources = _RecipeSources(model)
    weights = tuple(_weight(c, offset, sources) for c, offset in packed.entries)
    scales = tuple(recipe_to_json(c, sources.name) for c in _scales(model))
    given = tuple(sources.used.values())
    return replace(header, weights=weights, scales=scales, given=given)


class _RecipeSources:
    """The arrays of a model to which recipes refer by name."""

    def __init__(self, model: Graph) -> None:
        self._all = {s for c in model.constants() for s in c.sources()}
        self.used: dict[Constant, RefittableArray] = {}
        """The arrays that at least one recipe uses."""

    def name(self, source: Constant) -> str | None:
        """Return the name by which recipes refer to an array; None if it cannot be refitted."""
        if source not in self._all or source.is_fixed:
            return None
        dtype, shape = DType.from_numpy(source.array.dtype), source.array.shape
        self.used[source] = RefittableArray(source.name, dtype, shape)
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


def _weight(constant: Constant, offset: int, sources: _RecipeSources) -> Weight:
    """Return a packed weight, without a recipe if a refit can replace none of its sources.

    Such a recipe would be of no use, and has the elements of its sources as text.
    """
    names = [sources.name(source) for source in constant.sources()]
    recipe = recipe_to_json(constant, sources.name) if any(n is not None for n in names) else None
    type_ = constant.type
    shape = tuple(evaluate_dim(extent, {}) for extent in type_.shape)
    return Weight(constant.name, type_.dtype, shape, offset, recipe)
