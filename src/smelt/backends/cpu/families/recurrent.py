"""LSTM and GRU: input projection of all time steps in one launch, then one time step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import NodeRefusedError
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._emit import FLOAT_BYTES, Int, Reg
from smelt.backends.cpu.families._recurrent import (
    PEEPHOLES,
    RecurrentFamily,
    RecurrentWriter,
    initial_states,
    sequence_strides,
    state_strides,
)
from smelt.engine import KernelSpec, Parameters, parameters
from smelt.ir import Constant, Node
from smelt.ops import GRU, LSTM, Add
from smelt.types import override

if TYPE_CHECKING:
    from smelt.backends import Operands
    from smelt.backends._launch_scalars import LaunchScalars


_LSTM_GATES: Final = 4
"""Number of gates of an LSTM: input, output, forget, cell."""


class _LstmWriter(RecurrentWriter):
    """Writes the time steps of an LSTM.

    Operands: input projection, recurrent weights, initial states (if any), results.
    """

    def __init__(self, kernel: KernelSpec, lanes: int) -> None:
        self.initial_count = sum(kernel["initial"])
        super().__init__(kernel, lanes, _LSTM_GATES, 2 + self.initial_count + 3)
        self.pair = 2 - self.blocks % 2
        """Blocks computed together: the accumulators of one block would wait for each other."""

    @override
    def begin(self, direction: Reg, item: Reg) -> None:
        count, states = self.initial_count, self.k["states"]
        starts = [self.position(2 + i, states[i], 0, direction, item) for i in range(count)]
        for state, is_given in enumerate(self.k["initial"]):
            at = self.position(3 + count + state, states[count + state], 0, direction, item)
            self.copy_state(at, starts.pop(0) if is_given else None)

    @override
    def step(self, input_projection: Reg, time_step: Reg, direction: Reg, item: Reg) -> None:
        e, count, states = self.e, self.initial_count, self.k["states"]
        y = self.position(2 + count, self.k["y"], time_step, direction, item)
        state = self.position(3 + count, states[count], 0, direction, item)
        cell = self.position(4 + count, states[count + 1], 0, direction, item)
        weights = e.at(e.pointer(1), e.mul(direction, self.blocks * self.panel_bytes))
        with e.loop(0, self.blocks, self.pair) as pair:
            blocks = [e.add(pair.index, i) for i in range(self.pair)]
            cells = [e.at(input_projection, e.mul(b, self.cell_bytes)) for b in blocks]
            panels = [e.at(weights, e.mul(b, self.panel_bytes)) for b in blocks]
            gates = range(_LSTM_GATES)
            sums = [s for c in cells for s in self.load_gates(c, gates)]
            totals = self.multiply([state], self.hidden, panels, gates, sums)
            for block, values in zip(blocks, totals, strict=True):
                self._unit(values, y, cell, block)
        self.copy_state(state, y)

    def _unit(self, sums: Sequence[Reg], y: Reg, cell: Reg, block: Int) -> None:
        """Write the new states of a block from its gates (input, output, forget, cell)."""
        e = self.e
        gate_i, gate_o, gate_f = (m.sigmoid(e, s) for s in sums[:3])
        candidate, mask = m.tanh(e, sums[3]), self.mask(block)
        at = e.mul(block, self.lanes * FLOAT_BYTES)
        before = e.load_masked(self.vector, e.at(cell, at), mask)
        after = m.multiply_add(e, gate_i, candidate, e.binary("fmul", gate_f, before))
        e.store_masked(after, e.at(cell, at), mask)
        e.store_masked(e.binary("fmul", gate_o, m.tanh(e, after)), e.at(y, at), mask)


class LstmFamily(RecurrentFamily):
    """LSTM in float32 with constant weights, default activations and sequences of equal length.

    Peepholes are not supported.
    """

    name: ClassVar[str] = "lstm"
    op_type = LSTM

    @override
    def writer(self, kernel: KernelSpec, lanes: int) -> RecurrentWriter:
        return _LstmWriter(kernel, lanes)

    @override
    def check(self, node: Node, op: GRU | LSTM) -> None:
        if len(node.inputs) > PEEPHOLES and node.inputs[PEEPHOLES] is not None:
            raise NodeRefusedError("peepholes are not supported")
        if isinstance(op, LSTM) and op.input_forget:
            raise NodeRefusedError(
                "coupled input and forget gates (input_forget) are not supported"
            )
        super().check(node, op)

    @override
    def combine_biases(
        self, input_bias: Constant, recurrent_bias: Constant
    ) -> tuple[Constant, ...]:
        name = f"{input_bias.name} summed"
        return (Constant.derive(name, Add(), input_bias, recurrent_bias),)

    @override
    def step_parameters(
        self, op: GRU | LSTM, operands: Operands, scalars: LaunchScalars
    ) -> Parameters:
        initial = initial_states(op, operands)
        all_states, *last_states = operands.outputs
        states = (*(v for v in initial if v is not None), *last_states)
        return parameters(
            initial=tuple(v is not None for v in initial),
            y=scalars.all_json(sequence_strides(all_states, op.layout)),
            states=tuple(scalars.all_json(state_strides(v, op.layout)) for v in states),
        )


_GRU_GATES: Final = 3
"""Number of gates of a GRU: update, reset, candidate."""


class _GruWriter(RecurrentWriter):
    """Writes the time steps of a GRU.

    Operands: input projection, recurrent weights, recurrent bias (if any), initial state (if any),
    results.
    """

    def __init__(self, kernel: KernelSpec, lanes: int) -> None:
        self.first = 2 + kernel["bias"]
        self.count = self.first + len(kernel["start"]) + 2
        super().__init__(kernel, lanes, _GRU_GATES, self.count)

    @override
    def begin(self, direction: Reg, item: Reg) -> None:
        initial_states = [self.position(self.first, s, 0, direction, item) for s in self.k["start"]]
        self.copy_state(self._state(direction, item), initial_states[0] if initial_states else None)

    def _state(self, direction: Reg, item: Reg) -> Reg:
        """Return the address of the state, which is the output of the last hidden state."""
        return self.position(self.count - 1, self.k["last"], 0, direction, item)

    @override
    def step(self, input_projection: Reg, time_step: Reg, direction: Reg, item: Reg) -> None:
        e, state = self.e, self._state(direction, item)
        y = self.position(self.count - 2, self.k["y"], time_step, direction, item)
        weights = [e.at(e.pointer(1), e.mul(direction, self.blocks * self.panel_bytes))]
        if self.k["bias"]:
            weights.append(e.at(e.pointer(2), e.mul(direction, self.row_bytes)))
        if self.k["linear"]:
            self._linear_step(input_projection, y, state, weights)
        else:
            self._step(input_projection, y, state, weights)
        self.copy_state(state, y)

    def _linear_step(
        self, input_projection: Reg, y: Reg, state: Reg, weights: Sequence[Reg]
    ) -> None:
        """Write a time step whose reset gate scales the recurrent projection.

        All gates need one pass over the recurrent weights.
        """
        e = self.e
        with e.loop(0, self.blocks) as block:
            sources = (input_projection, state)
            shares = self._shares(sources, weights, range(_GRU_GATES), block.index)
            *gates, (from_input, from_state) = shares
            update, reset = (m.sigmoid(e, e.binary("fadd", *share)) for share in gates)
            candidate = m.tanh(e, m.multiply_add(e, reset, from_state, from_input))
            self._finish(update, candidate, state, y, block.index)

    def _step(self, input_projection: Reg, y: Reg, state: Reg, weights: Sequence[Reg]) -> None:
        """Write a time step whose reset gate scales the state.

        The candidate needs the whole scaled state, so a first pass over the blocks computes the
        update gate and the scaled state into scratch memory, and a second pass computes the
        candidate.
        """
        e = self.e
        scaled_state = e.at(e.scratch, self.blocks * self.lanes * FLOAT_BYTES)
        with e.loop(0, self.blocks) as block:
            shares = self._shares((input_projection, state), weights, (0, 1), block.index)
            update, reset = (m.sigmoid(e, e.binary("fadd", *share)) for share in shares)
            at = e.mul(block.index, self.lanes * FLOAT_BYTES)
            previous = e.load_masked(self.vector, e.at(state, at), self.mask(block.index))
            e.store(update, e.at(e.scratch, at))
            e.store(e.binary("fmul", reset, previous), e.at(scaled_state, at))
        with e.loop(0, self.blocks) as block:
            sources = (input_projection, scaled_state)
            (share,) = self._shares(sources, weights, (2,), block.index)
            candidate = m.tanh(e, e.binary("fadd", *share))
            update = e.load(
                self.vector, e.at(e.scratch, e.mul(block.index, self.lanes * FLOAT_BYTES))
            )
            self._finish(update, candidate, state, y, block.index)

    def _shares(
        self, sources: tuple[Reg, Reg], weights: Sequence[Reg], gates: Sequence[int], block: Int
    ) -> list[tuple[Reg, Reg]]:
        """Return the shares of the input and of the state in some gates of a block.

        ``sources`` are the addresses of the input projection and the state. The state's share
        includes the bias.
        """
        e, panel, *bias = self.e, *weights
        cell = e.at(sources[0], e.mul(block, self.cell_bytes))
        from_input = self.load_gates(cell, gates)
        start: tuple[Reg, ...] = (e.constant(0.0, self.vector),) * len(gates)
        if bias:
            start = self.load_gates(e.at(bias[0], e.mul(block, self.cell_bytes)), gates)
        panels = [e.at(panel, e.mul(block, self.panel_bytes))]
        (from_state,) = self.multiply([sources[1]], self.hidden, panels, gates, start)
        return list(zip(from_input, from_state, strict=True))

    def _finish(self, update: Reg, candidate: Reg, state: Reg, y: Reg, block: Int) -> None:
        """Write the new state: ``(1 - update) * candidate + update * state``."""
        e = self.e
        at, mask = e.mul(block, self.lanes * FLOAT_BYTES), self.mask(block)
        previous = e.load_masked(self.vector, e.at(state, at), mask)
        change = e.binary("fsub", previous, candidate)
        e.store_masked(m.multiply_add(e, update, change, candidate), e.at(y, at), mask)


class GruFamily(RecurrentFamily):
    """GRU in float32 with constant weights, default activations and sequences of equal length.

    Both forms of the reset gate (``linear_before_reset``) are supported.
    """

    name: ClassVar[str] = "gru"
    op_type = GRU

    @override
    def writer(self, kernel: KernelSpec, lanes: int) -> RecurrentWriter:
        return _GruWriter(kernel, lanes)

    @override
    def combine_biases(
        self, input_bias: Constant, recurrent_bias: Constant
    ) -> tuple[Constant, ...]:
        return input_bias, recurrent_bias

    @override
    def step_parameters(
        self, op: GRU | LSTM, operands: Operands, scalars: LaunchScalars
    ) -> Parameters:
        all_states, last = operands.outputs
        states = [v for v in initial_states(op, operands) if v is not None]
        return parameters(
            linear=isinstance(op, GRU) and bool(op.linear_before_reset),
            bias=len(operands.packed) > 2,
            start=tuple(scalars.all_json(state_strides(v, op.layout)) for v in states),
            y=scalars.all_json(sequence_strides(all_states, op.layout)),
            last=scalars.all_json(state_strides(last, op.layout)),
        )

    @override
    def scratch_bytes(self, hidden: int, lanes: int) -> int:
        return 2 * FLOAT_BYTES * (hidden + -hidden % lanes)
