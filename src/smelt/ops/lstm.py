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
    """Long short-term memory (LSTM).

    Inputs are x, W, R, and optionally B, sequence_lens, initial_h, initial_c, P.
    The order of the gates is input, output, forget, cell, and that of the peepholes P is input,
    output, forget. Time steps beyond the length of a sequence are zero in the first result.

    Shapes: x ``[time, batch, width]``, W ``[directions, 4 * hidden, width]``, R ``[directions, 4 *
    hidden, hidden]``, B ``[directions, 8 * hidden]``, sequence_lens ``[batch]``, initial_h and
    initial_c ``[directions, batch, hidden]``, P ``[directions, 3 * hidden]``; results are all
    hidden states ``[time, directions, batch, hidden]``, the last one and the last cell
    ``[directions, batch, hidden]``. Layout 1 has the batch first in x and in all states.

    Dtypes: floating-point, one for all inputs except sequence_lens, which is int32.

    Raises ShapeError: when the shape of an input does not match the attributes, or an attribute has
    an unknown value.

    Source: ONNX LSTM-22.
    """

    name: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    states: ClassVar[int] = 2
    default_activations: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh", "Tanh")

    input_forget: int = 0
    """Whether the forget gate is 1 minus the input gate (coupled gates)."""

    @override
    def _step(
        self, projected: Array, states: Sequence[Array], parameters: DirectionWeights, /
    ) -> tuple[Array, ...]:
        hidden, cell = states
        gate_activation, cell_activation, output_activation = parameters.activations
        gates = projected + hidden @ parameters.recurrence.T + parameters.recurrence_bias
        gate_i, gate_o, gate_f, gate_c = np.split(gates, 4, axis=1)
        peepholes = parameters.peepholes
        peep_i, peep_o, peep_f = (None,) * 3 if peepholes is None else np.split(peepholes, 3)
        input_gate = gate_activation(_add_peephole(gate_i, peep_i, cell))
        forget_gate = (
            1 - input_gate
            if self.input_forget
            else gate_activation(_add_peephole(gate_f, peep_f, cell))
        )
        cell = forget_gate * cell + input_gate * cell_activation(gate_c)
        return gate_activation(_add_peephole(gate_o, peep_o, cell)) * output_activation(cell), cell

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from common_cases(cls)
        yield recurrent_case("peepholes", cls(4), 4, 2, 3, peepholes=True, initial=True)
        names = ("HardSigmoid", "Softsign", "ScaledTanh")
        op = cls(4, activations=names, activation_alpha=(0.3, 1.5), activation_beta=(0.4, 0.7))
        yield recurrent_case("other_activations", op, 4, 2, 3)
        yield recurrent_case("coupled_gates", cls(4, input_forget=1), 4, 2, 3)


def _add_peephole(gate: Array, peephole: Array | None, cell: Array) -> Array:
    """Add the peephole connection of the cell to a gate."""
    return gate if peephole is None else gate + peephole * cell
