"""LSTM: long short-term memory over a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._recurrent import DirectionWeights, Recurrent
from smelt.ops._recurrent_conformance_cases import common_cases, recurrent_case
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array, Case


@dataclass(frozen=True)
class LSTM(Recurrent):
    """Run a long short-term memory.

    Inputs are x, W, R, and optionally B, sequence_lens, initial_h, initial_c, P.
    The gates lie in the order input, output, forget, cell; the peepholes P in the order input,
    output, forget. A place beyond the length of its sequence is zero in the first result.

    Shapes: x ``[time, batch, width]``, W ``[directions, 4 * hidden, width]``, R ``[directions, 4 *
    hidden, hidden]``, B ``[directions, 8 * hidden]``, sequence_lens ``[batch]``, initial_h and
    initial_c ``[directions, batch, hidden]``, P ``[directions, 3 * hidden]``; results are all
    hidden states ``[time, directions, batch, hidden]``, the last one and the last cell
    ``[directions, batch, hidden]``. Layout 1 has the batch first in x and in all states.

    Dtypes: floating-point, one for all but sequence_lens, which is int32.

    Raises ShapeError: when an input does not fit the sizes or an attribute is unknown.

    Source: ONNX LSTM-22.
    """

    name: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    states: ClassVar[int] = 2
    default_activations: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh", "Tanh")

    input_forget: int = 0
    """Whether the forget gate is one less the input gate."""

    @override
    def _step(
        self, projected: Array, states: Sequence[Array], parameters: DirectionWeights, /
    ) -> tuple[Array, ...]:
        hidden, cell = states
        sigma, squash, show = parameters.activations
        entering = projected + hidden @ parameters.recurrence.T + parameters.recurrence_bias
        gate_i, gate_o, gate_f, gate_c = np.split(entering, 4, axis=1)
        peepholes = parameters.peepholes
        peep_i, peep_o, peep_f = (None,) * 3 if peepholes is None else np.split(peepholes, 3)
        admitted = sigma(_peeped(gate_i, peep_i, cell))
        kept = 1 - admitted if self.input_forget else sigma(_peeped(gate_f, peep_f, cell))
        cell = kept * cell + admitted * squash(gate_c)
        return sigma(_peeped(gate_o, peep_o, cell)) * show(cell), cell

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from common_cases(cls)
        yield recurrent_case("peepholes", cls(4), 4, 2, 3, peepholes=True, initial=True)
        names = ("HardSigmoid", "Softsign", "ScaledTanh")
        op = cls(4, activations=names, activation_alpha=(0.3, 1.5), activation_beta=(0.4, 0.7))
        yield recurrent_case("other_activations", op, 4, 2, 3)
        yield recurrent_case("coupled_gates", cls(4, input_forget=1), 4, 2, 3)


def _peeped(gate: Array, peephole: Array | None, cell: Array) -> Array:
    """A gate with what it sees of the cell."""
    return gate if peephole is None else gate + peephole * cell
