"""GRU: gated recurrent units over a sequence."""

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
    """Run gated recurrent units: x, W, R, and optionally B, sequence_lens, initial_h.

    The gates lie in the order update, reset, hidden. A place beyond the length of its sequence is
    zero in the first result.

    Shapes: x ``[time, batch, width]``, W ``[directions, 3 * hidden, width]``, R ``[directions, 3 *
    hidden, hidden]``, B ``[directions, 6 * hidden]``, sequence_lens ``[batch]``, initial_h
    ``[directions, batch, hidden]``; results are all hidden states ``[time, directions, batch,
    hidden]`` and the last ``[directions, batch, hidden]``. Layout 1 has the batch first in x and in
    all states.

    Dtypes: floating-point, one for all but sequence_lens, which is int32.

    Raises ShapeError: when an input does not fit the sizes or an attribute is unknown.

    Source: ONNX GRU-22.
    """

    name: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    default_activations: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh")

    linear_before_reset: int = 0
    """Whether the reset gate acts on the hidden state's product instead of on the state."""

    @override
    def _step(
        self, projected: Array, states: Sequence[Array], parameters: DirectionWeights, /
    ) -> tuple[Array, ...]:
        (hidden,) = states
        sigma, squash = parameters.activations
        size = self.hidden_size
        weights, bias = parameters.recurrence, parameters.recurrence_bias
        gates = sigma(projected[:, : 2 * size] + hidden @ weights[: 2 * size].T + bias[: 2 * size])
        update, reset = gates[:, :size], gates[:, size:]
        if self.linear_before_reset:
            recalled = reset * (hidden @ weights[2 * size :].T + bias[2 * size :])
        else:
            recalled = (reset * hidden) @ weights[2 * size :].T + bias[2 * size :]
        proposed = squash(projected[:, 2 * size :] + recalled)
        return ((1 - update) * proposed + update * hidden,)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from common_cases(cls)
        op = cls(4, linear_before_reset=1)
        yield recurrent_case("linear_before_reset", op, 4, 2, 3, initial=True)
        op = cls(4, "bidirectional", activations=("Sigmoid", "LeakyRelu", "HardSigmoid", "Tanh"))
        yield recurrent_case("other_activations", op, 4, 2, 3)
