"""LSTM, GRU and RNN: directions, layouts, sequence lengths, activations and test cases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from smelt.errors import IndexRangeError, ShapeError
from smelt.ir import INTERPRETED_OPERATIONS, TEMPORARY_OPERATIONS, Array, Case, Operand
from smelt.ops._base import BuiltinOp
from smelt.ops._conformance_data import HALF_TOLERANCE, floats
from smelt.ops._reference_numerics import narrow, softplus, widen
from smelt.ops._shape import (
    FLOATS,
    input_type,
    input_types,
    optional_type,
    require_choice,
    require_dtype,
    require_rank,
    require_same_dtype,
    require_shape,
)
from smelt.ops._shape_operands import present
from smelt.types import Dim, DType, TensorType, ValueType, counted, element_count, override

Activation = Callable[[Any], Any]

_STEP_TRIPS: Final = 4
"""Trips of simple loops in the time of one time step: some 40 us."""

_ACTIVATIONS: dict[str, tuple[float | None, float | None, Callable[[Array, Any, Any], Any]]] = {
    "affine": (1.0, 0.0, lambda x, alpha, beta: alpha * x + beta),
    "elu": (
        1.0,
        None,
        lambda x, alpha, _beta: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    ),
    "hardsigmoid": (0.2, 0.5, lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
    "leakyrelu": (0.01, None, lambda x, alpha, _beta: np.where(x < 0, alpha * x, x)),
    "relu": (None, None, lambda x, _alpha, _beta: np.maximum(x, 0)),
    "scaledtanh": (1.0, 1.0, lambda x, alpha, beta: alpha * np.tanh(beta * x)),
    "sigmoid": (None, None, lambda x, _alpha, _beta: (1 + np.tanh(x / 2)) / 2),
    "softplus": (None, None, lambda x, _alpha, _beta: softplus(x)),
    "softsign": (None, None, lambda x, _alpha, _beta: x / (1 + np.abs(x))),
    "tanh": (None, None, lambda x, _alpha, _beta: np.tanh(x)),
    "thresholdedrelu": (1.0, None, lambda x, alpha, _beta: np.where(x > alpha, x, x.dtype.type(0))),
}
"""Default alpha and beta of each activation, None for a parameter that it does not have, and its
function of x, alpha and beta in the dtype of x."""
_GATE_ACTIVATIONS = 2
"""Number of activations of a direction that compute gates; a third one is applied to the cell."""


def _clipped(name: str, alpha: float, beta: float, bound: float | None) -> Activation:
    """Return an activation whose input is limited to ``-bound`` to ``bound``."""
    *_, function = _ACTIVATIONS[name]

    def activation(x: Array) -> Any:
        limited = x if bound is None else np.clip(x, -bound, bound)
        return function(limited, x.dtype.type(alpha), x.dtype.type(beta))

    return activation


@dataclass(frozen=True)
class DirectionWeights:
    """Weights and activations of one direction."""

    recurrence: Array
    """``[gates * hidden, hidden]``"""
    recurrence_bias: Array
    """``[gates * hidden]``"""
    peepholes: Array | None
    """``[3 * hidden]``, or None. Zeros would not be equivalent: 0 times an infinite cell is NaN."""
    activations: Sequence[Activation]


class Recurrent(BuiltinOp):
    """Recurrent layer: attributes, inference and the loop over time steps."""

    gates: ClassVar[int]
    """Number of gates."""
    states: ClassVar[int] = 1
    """Number of states that a step passes on: 1 (h) or 2 (h and c)."""
    default_activations: ClassVar[tuple[str, ...]]
    """Default activations of one direction."""

    hidden_size: int
    """Extent of the hidden state."""
    direction: str = "forward"
    """"forward", "reverse" or "bidirectional"."""
    layout: int = 0
    """0: the first axis is time; 1: the first axis is the batch."""
    clip: float | None = None
    """Maximum magnitude of the input of an activation; None for no limit."""
    activations: tuple[str, ...] = ()
    """Names, those of the second direction after those of the first; empty for the default."""
    activation_alpha: tuple[float, ...] = ()
    """Parameters of the activations that take an alpha, in order."""
    activation_beta: tuple[float, ...] = ()
    """Parameters of the activations that take a beta, in order."""

    @abstractmethod
    def _step(
        self, projected: Array, states: Sequence[Array], parameters: DirectionWeights, /
    ) -> tuple[Array, ...]:
        """Return the next states ``[batch, hidden]`` from the projected input ``[batch, rows]``."""

    @property
    def directions(self) -> int:
        """Number of directions."""
        return 2 if self.direction == "bidirectional" else 1

    @property
    def has_default_activations(self) -> bool:
        """Whether the activations are the default ones, named or not, and are not clipped."""
        names = tuple(name.capitalize() for name in self.activations)
        return self.clip is None and names in ((), self.default_activations * self.directions)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        x, *_ = input_types(self, inputs, 3, 6 if self.states == 1 else 8)
        self._check_attributes()
        require_dtype(x, FLOATS, f"the input of {self.name}")
        require_rank(x, f"the input of {self.name}", 3)
        time, batch = x.shape[:2] if self.layout == 0 else x.shape[1::-1]
        directions, hidden, rows = self.directions, self.hidden_size, self.gates * self.hidden_size
        state = self._state_shape(batch)
        shapes = (
            (directions, rows, x.shape[2]),
            (directions, rows, hidden),
            (directions, 2 * rows),
            (batch,),
        )
        names = ("W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
        wanted = (*shapes, state, state, (directions, 3 * hidden))
        for index, (name, shape) in enumerate(zip(names, wanted, strict=True), 1):
            kind = optional_type(self, inputs, index)
            require_shape(kind, shape, f"{name} of {self.name}")
            if kind is not None and name == "sequence_lens":
                require_dtype(kind, {DType.INT32}, "sequence_lens")
            else:
                require_same_dtype(x, kind)
        hidden_states = (time, *state) if self.layout == 0 else (batch, time, *state[1:])
        return (TensorType(x.dtype, hidden_states), *[TensorType(x.dtype, state)] * self.states)

    @override
    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        x, *weights = (input_type(self, inputs, index).shape for index in range(3))
        return 2 * element_count(x[:2]) * sum(map(element_count, weights))

    @override
    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        x, weights = (input_type(self, inputs, index).shape for index in range(2))
        steps = x[self.layout] * self.directions
        gates = TEMPORARY_OPERATIONS * element_count((*x[:2], *weights[:2]))
        return self.count_flop(inputs) + gates + steps * (_STEP_TRIPS * INTERPRETED_OPERATIONS)

    def _state_shape(self, batch: Dim) -> tuple[Dim, ...]:
        directions, hidden = self.directions, self.hidden_size
        return (directions, batch, hidden) if self.layout == 0 else (batch, directions, hidden)

    def _check_attributes(self) -> None:
        """Check the attributes that all recurrent ops have. Raises ShapeError."""
        require_choice(self.direction, ("forward", "reverse", "bidirectional"), "direction")
        if self.hidden_size < 1 or self.layout not in {0, 1}:
            raise ShapeError(
                f"hidden_size is {self.hidden_size} and layout is {self.layout}; hidden_size must "
                "be positive and layout 0 or 1"
            )
        count = self.directions * len(self.default_activations)
        if self.activations and len(self.activations) != count:
            raise ShapeError(
                f"{self.name} has {counted(len(self.activations), 'activation')}; it must have "
                f"{count}"
            )
        # A threshold of 0 would make every gate constant; ONNX Runtime refuses it, too.
        if self.clip is not None and not self.clip > 0:
            raise ShapeError(f"clip of {self.name} is {self.clip}; it must be positive")
        for name in self.activations:
            if name.lower() not in _ACTIVATIONS:
                raise ShapeError(
                    f"activation {name!r} of {self.name} is unknown; the activations are "
                    f"{', '.join(_ACTIVATIONS)}"
                )

    def _functions(self) -> list[Activation]:
        """Return the activation functions of all directions."""
        names = self.activations or self.default_activations * self.directions
        alphas, betas = iter(self.activation_alpha), iter(self.activation_beta)
        functions: list[Activation] = []
        for position, name in enumerate(n.lower() for n in names):
            alpha, beta, _ = _ACTIVATIONS[name]
            alpha = 0.0 if alpha is None else next(alphas, alpha)
            beta = 0.0 if beta is None else next(betas, beta)
            # The threshold applies to gates. ONNX Runtime does not clip the cell of an LSTM.
            is_gate = position % len(self.default_activations) < _GATE_ACTIVATIONS
            functions.append(_clipped(name, alpha, beta, self.clip if is_gate else None))
        return functions

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        padded_inputs = (*inputs, *[None] * (8 - len(inputs)))
        arrays = [a if i == 4 or a is None else widen(a) for i, a in enumerate(padded_inputs)]
        x = present(arrays, 0) if self.layout == 0 else present(arrays, 0).swapaxes(0, 1)
        lengths = np.full(x.shape[1], x.shape[0]) if arrays[4] is None else arrays[4]
        outside = (lengths < 0) | (lengths > x.shape[0])
        if bool(outside.any()):
            raise IndexRangeError(
                f"sequence_lens contains {lengths[outside][0]}; each length must be from 0 to "
                f"{x.shape[0]}, the number of time steps"
            )
        results = [self._run(x, direction, lengths, arrays) for direction in range(self.directions)]
        dtype = present(inputs, 0).dtype
        hidden_states, *last_states = (np.stack(r) for r in zip(*results, strict=True))
        order = (1, 0, 2, 3) if self.layout == 0 else (2, 1, 0, 3)
        hidden_states = hidden_states.transpose(order)
        if self.layout == 1:
            last_states = [state.swapaxes(0, 1) for state in last_states]
        return tuple(narrow(array, dtype) for array in (hidden_states, *last_states))

    def _run(
        self, x: Array, direction: int, lengths: Array, arrays: Sequence[Array | None]
    ) -> tuple[Array, ...]:
        """Return hidden states ``[time, batch, hidden]`` of a direction, and the last states."""
        time, batch, _ = x.shape
        rows, hidden = self.gates * self.hidden_size, self.hidden_size
        bias = np.zeros(2 * rows, x.dtype) if arrays[3] is None else arrays[3][direction]
        peepholes = None if arrays[7] is None else arrays[7][direction]
        count = len(self.default_activations)
        functions = self._functions()[direction * count : (direction + 1) * count]
        weights = present(arrays, 2)[direction]
        parameters = DirectionWeights(weights, bias[rows:], peepholes, functions)
        steps: Array = np.arange(int(time))[:, None]
        order: Array = np.broadcast_to(steps, (time, batch))
        if self.direction == "reverse" or direction == 1:
            # Each sequence is reversed within its own length.
            order = np.where(steps < lengths, lengths - 1 - steps, steps)
        batch_index: Array = np.arange(int(batch))
        projected = x[order, batch_index] @ present(arrays, 1)[direction].T + bias[:rows]
        states = list(self._initial_states(direction, batch, arrays, x.dtype))
        hidden_states = np.zeros((time, batch, hidden), x.dtype)
        for step in range(time):
            is_active = (step < lengths)[:, None]
            next_states = self._step(projected[step], states, parameters)
            pairs = zip(next_states, states, strict=True)
            states = [np.where(is_active, new, old) for new, old in pairs]
            hidden_states[order[step], batch_index] = np.where(is_active, states[0], 0)
        return (hidden_states, *states)

    def _initial_states(
        self, direction: int, batch: int, arrays: Sequence[Array | None], dtype: np.dtype[Any]
    ) -> Iterator[Array]:
        for array in arrays[5 : 5 + self.states]:
            if array is None:
                yield np.zeros((batch, self.hidden_size), dtype)
            else:
                yield array[direction] if self.layout == 0 else array[:, direction]


def recurrent_case(
    name: str,
    op: Recurrent,
    time: int,
    batch: int,
    width: int,
    *,
    bias: bool = True,
    lengths: tuple[int, ...] = (),
    initial: bool = False,
    peepholes: bool = False,
    dtype: type[np.floating[Any]] = np.float32,
) -> Case:
    """Return a case whose weights are small enough that the states do not saturate."""
    directions, hidden = op.directions, op.hidden_size
    rows = op.gates * hidden

    def weights(*shape: int, seed: int) -> Array:
        return floats(*shape, dtype=dtype, low=-0.7, high=0.7, seed=seed)

    state = (directions, batch, hidden) if op.layout == 0 else (batch, directions, hidden)
    arrays: list[Array | None] = [
        weights(*((time, batch) if op.layout == 0 else (batch, time)), width, seed=0),
        weights(directions, rows, width, seed=1),
        weights(directions, rows, hidden, seed=2),
        weights(directions, 2 * rows, seed=3) if bias else None,
        np.array(lengths, np.int32) if lengths else None,
        weights(*state, seed=5) if initial else None,
    ]
    if op.states == 2:
        arrays.append(weights(*state, seed=6) if initial else None)
        arrays.append(weights(directions, 3 * hidden, seed=7) if peepholes else None)
    tolerance = HALF_TOLERANCE if dtype is np.float16 else 1e-4
    return Case(name, op, tuple(arrays), tolerance, frozenset({1, 2, 3, 7}))


def common_cases(cls: type[Recurrent]) -> Iterator[Case]:
    """Yield the cases that all recurrent ops have."""
    yield recurrent_case("forward", cls(5), 4, 3, 7)
    yield recurrent_case("no_bias", cls(3), 3, 1, 2, bias=False)
    yield recurrent_case("reverse", cls(17, "reverse"), 3, 2, 3, initial=True)
    yield recurrent_case("bidirectional", cls(4, "bidirectional"), 5, 2, 3, initial=True)
    lengths = (3, 5, 1)
    yield recurrent_case("lengths", cls(4), 5, 3, 2, lengths=lengths, initial=True)
    op = cls(4, "bidirectional")
    yield recurrent_case("lengths_both_ways", op, 5, 3, 2, lengths=lengths)
    yield recurrent_case("batch_first", cls(4, layout=1), 5, 3, 2, initial=True)
    yield recurrent_case("clipped", cls(4, clip=0.2), 4, 2, 3)
    yield recurrent_case("one_step", cls(33), 1, 1, 17)
    yield recurrent_case("many_moments", cls(20), 15, 2, 9)
    yield recurrent_case("float16", cls(5), 3, 2, 4, dtype=np.float16)


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
        total = projected[:, : 2 * size] + hidden @ weights[: 2 * size].T + bias[: 2 * size]
        gates = gate_activation(total)
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
        forget_gate = 1 - input_gate
        if not self.input_forget:
            forget_gate = gate_activation(_add_peephole(gate_f, peep_f, cell))
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
