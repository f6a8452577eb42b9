"""Bindings of an engine from the graphs of its plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.engine import Binding
from smelt.errors import BuildError
from smelt.types import substitute_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.builder._tactic_selection import PlanBuildState
    from smelt.ir import Graph


def bindings_of(original: Graph, plans: Sequence[PlanBuildState]) -> tuple[Binding, ...]:
    """Return the bindings of the inputs and outputs.

    An extent is an integer if it has the same value in all plans, and symbolic otherwise.
    """
    fixed = dict(plans[0].fixed)
    for plan in plans[1:]:
        fixed = {n: v for n, v in fixed.items() if plan.fixed.get(n) == v}
    pairs = [(True, v, [p.graph.inputs[i] for p in plans]) for i, v in enumerate(original.inputs)]
    outputs = enumerate(original.outputs)
    pairs += [(False, v, [p.graph.outputs[i] for p in plans]) for i, v in outputs]
    bindings: list[Binding] = []
    for is_input, value, plan_values in pairs:
        tensors = [plan_value.tensor for plan_value in plan_values]
        dtype, rank = tensors[0].dtype, tensors[0].rank
        if any(tensor.rank != rank for tensor in tensors):
            ranks = " or ".join(map(str, tensors))
            raise BuildError(
                f"the rank of {value.name} depends on the input shapes: the tensor is {ranks}; "
                "build one engine for each shape, or set the axes of the op that removes axes "
                "(Squeeze)"
            )
        # A Squeeze without axes may remove more axes once the symbols have values.
        network_shape = (value.tensor if value.tensor.rank == rank else tensors[0]).shape
        axes = zip(network_shape, *(tensor.shape for tensor in tensors), strict=True)
        # The shape in the plans is more specific: passes may have resolved symbols.
        shape = (
            plan_dims[0] if len({*plan_dims}) == 1 else substitute_dim(dim, fixed)
            for dim, *plan_dims in axes
        )
        bindings.append(Binding(value.name, is_input, dtype, tuple(shape)))
    return tuple(bindings)
