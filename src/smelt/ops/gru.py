"""GRU: gated recurrent unit over a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from smelt.ops._recurrent import DirectionWeights, Recurrent
from smelt.ops._recurrent_conformance_cases import common_cases, recurrent_case
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Case


@dataclass(frozen=True)
class GRU(Recurrent):
    """Gated recurrent unit (GRU). Inputs are x, W, R, and optionally B, sequence_lens, initial_h.

    The order of the gates is update, reset, hidden. Time steps beyond
    the length of a sequence are zero in the first result.

    Shapes: x ``[time, batch, width]``, W ``[directions, 3 * hidden, width]``, R ``[directions, 3 *
    hidden, hidden]``, B ``[directions, 6 * hidden]``, sequence_lens ``[batch]``, initial_h
    ``[directions, batch, hidden]``; results are all hidden states ``[time, directions, batch,
    hidden]`` and the last ``[directions, batch, hidden]``. Layout 1 has the batch first in x and in
    all states.

    Dtypes: floating-point, one for all inputs except sequence_lens, which is int32.

    Raises ShapeError: when the shape of an input does not match the attributes, or an attribute has
    an unknown value.

    Source: ONNX GRU-22.
    """

    name: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    default_activations: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh")

    linear_before_reset: int = 0
    """Whether the reset gate multiplies the product of the hidden state instead of the state."""

    @override
    def _step(
        self, projected: Array, states: Sequence[Array], parameters: DirectionWeights, /
    ) -> tuple[Array, ...]:
        (hidden,) = states
        gate_activation, activation = parameters.activations
        size = self.hidden_size
        weights, bias = parameters.recurrence, parameters.recurrence_bias
        gates = gate_activation(
            projected[:, : 2 * size] + hidden @ weights[: 2 * size].T + bias[: 2 * size]
        )
        update, reset = gates[:, :size], gates[:, size:]
        if self.linear_before_reset:
            recurrent_term = reset * (hidden @ weights[2 * size :].T + bias[2 * size :])
        else:
            recurrent_term = (reset * hidden) @ weights[2 * size :].T + bias[2 * size :]
        candidate = activation(projected[:, 2 * size :] + recurrent_term)
        return ((1 - update) * candidate + update * hidden,)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from common_cases(cls)
        op = cls(4, linear_before_reset=1)
        yield recurrent_case("linear_before_reset", op, 4, 2, 3, initial=True)
        op = cls(4, "bidirectional", activations=("Sigmoid", "LeakyRelu", "HardSigmoid", "Tanh"))
        yield recurrent_case("other_activations", op, 4, 2, 3)
