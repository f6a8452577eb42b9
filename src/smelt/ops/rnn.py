"""RNN: a simple recurrent layer over a sequence."""

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
class RNN(Recurrent):
    """Simple recurrent layer, ``h' = f(W x + R h + B)``.

    Inputs are x, W, R, and optionally B, sequence_lens, initial_h.
    Time steps beyond the length of a sequence are zero in the first result.

    Shapes: x ``[time, batch, width]``, W ``[directions, hidden, width]``, R ``[directions, hidden,
    hidden]``, B ``[directions, 2 * hidden]``, sequence_lens ``[batch]``, initial_h ``[directions,
    batch, hidden]``; results are all hidden states ``[time, directions, batch, hidden]`` and the
    last ``[directions, batch, hidden]``. Layout 1 has the batch first in x and in all states.

    Dtypes: floating-point, one for all inputs except sequence_lens, which is int32.

    Raises ShapeError: when the shape of an input does not match the attributes, or an attribute has
    an unknown value.

    Source: ONNX RNN-22.
    """

    name: ClassVar[str] = "rnn"
    gates: ClassVar[int] = 1
    default_activations: ClassVar[tuple[str, ...]] = ("Tanh",)

    @override
    def _step(
        self, projected: Array, states: Sequence[Array], parameters: DirectionWeights, /
    ) -> tuple[Array, ...]:
        (hidden,) = states
        (activation,) = parameters.activations
        total = projected + hidden @ parameters.recurrence.T + parameters.recurrence_bias
        return (activation(total),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from common_cases(cls)
        yield recurrent_case("relu", cls(4, activations=("Relu",)), 4, 2, 3)
        op = cls(4, activations=("Affine",), activation_alpha=(0.5,), activation_beta=(0.1,))
        yield recurrent_case("affine", op, 4, 2, 3)
