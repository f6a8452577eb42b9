"""GRU: input projection of all time steps in one launch, then the time steps one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, Operands, Refusal, Tactic
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cpu import _math as m
from smelt.backends.cpu.families._recurrent import (
    FLOAT_BYTES,
    B,
    H,
    InputProjectionWriter,
    R,
    RecurrentWriter,
    W,
    X,
    constant_of,
    input_projection_bytes,
    input_projection_launch,
    pack_gate_panels,
    recurrent_options,
    sequence_strides,
    slice_gates,
    state_strides,
    unsupported_recurrent_reason,
)
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import InternalError
from smelt.ops import GRU
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cpu._emit import Int, Reg
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Step
    from smelt.ir import Constant, Node

_GATES: Final = 3
"""Number of gates of a GRU: update, reset, candidate."""
_FLOAT: Final = TensorFormat(DType.FLOAT32, Layout.LINEAR)


class GruFamily(Family["CpuTarget"]):
    """GRU in float32 with constant weights, default activations and sequences of equal length.

    Both forms of the reset gate (``linear_before_reset``) are supported.
    """

    name: ClassVar[str] = "gru"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, GRU):
            return
        reason = unsupported_recurrent_reason(node, node.op)
        if reason or len(node.outputs) != 2:
            yield Refusal(self.name, reason or "both outputs are required")
            return
        inputs = tuple(
            None if v is None or i in (W, R, B) else _FLOAT for i, v in enumerate(node.inputs)
        )
        yield Tactic(
            self.name,
            recurrent_options(target, _GATES),
            inputs,
            (_FLOAT, _FLOAT),
            workspace_bytes=input_projection_bytes(node, node.op, target.vector_bits // 32),
            cost_hint=1e-4,
        )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        op, lanes = node.op, tactic.options["lanes"]
        if not isinstance(op, GRU) or not isinstance(lanes, int):
            raise InternalError(f"{node} is not a GRU")
        hidden = int(op.hidden_size)
        parts = [constant_of(node, i) for i in (W, R)]
        if len(node.inputs) > B and node.inputs[B] is not None:
            both, half = constant_of(node, B), _GATES * hidden
            parts += [slice_gates(both, 0, half), slice_gates(both, half, 2 * half)]
        return tuple(pack_gate_panels(part, _GATES, hidden, lanes) for part in parts)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op, x = node.op, operands.inputs[X]
        if not isinstance(op, GRU) or x is None:
            raise InternalError(f"{node} is not a GRU of a sequence")
        weights, recurrent, *biases = operands.packed
        input_projection, sums = input_projection_launch(
            self.name, op, tactic, operands, (weights, *biases[:1])
        )
        start = operands.inputs[H] if len(operands.inputs) > H else None
        initial_state = () if start is None else (start,)
        views = (sums, recurrent, *biases[1:], *initial_state, *operands.outputs)
        time, batch = (1, 0) if op.layout else (0, 1)
        scalars = LaunchScalars()
        all_states, last = operands.outputs
        hidden, lanes = int(op.hidden_size), tactic.options["lanes"]
        spec = KernelSpec(
            self.name,
            parameters(
                kernel="steps",
                hidden=hidden,
                linear=bool(op.linear_before_reset),
                time=scalars.json(x.shape[time]),
                batch=scalars.json(x.shape[batch]),
                reverse=op.direction == "reverse",
                bias=len(biases) > 0,
                start=tuple(scalars.all_json(state_strides(v, op.layout)) for v in initial_state),
                y=scalars.all_json(sequence_strides(all_states, op.layout)),
                last=scalars.all_json(state_strides(last, op.layout)),
            ),
        )
        scratch = 2 * FLOAT_BYTES * (hidden + -hidden % int(str(lanes)))
        writes, chunks = (len(views) - 2, len(views) - 1), x.shape[batch] * op.directions
        return (input_projection, Launch(spec, views, writes, scalars.values, chunks, scratch))

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        lanes = target.vector_bits // 32
        if kernel["kernel"] == "input_projection":
            return InputProjectionWriter(kernel, lanes).write()
        return _Gru(kernel, lanes).write()


class _Gru(RecurrentWriter):
    """Writes the time steps of a sequence.

    Operands: input projection, recurrent weights, recurrent bias (if any), initial state (if any),
    results.
    """

    def __init__(self, kernel: KernelSpec, lanes: int) -> None:
        self.first = 2 + kernel["bias"]
        self.count = self.first + len(kernel["start"]) + 2
        super().__init__(kernel, lanes, _GATES, self.count)

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
        e, gates = self.e, range(_GATES)
        with e.loop(0, self.blocks) as block:
            input_gates = self.load_gates(
                e.at(input_projection, e.mul(block.index, self.cell_bytes)), gates
            )
            recurrent_gates = self._recurrent_projection(state, weights, gates, block.index)
            update, reset = (
                m.sigmoid(e, e.binary("fadd", input_gates[g], recurrent_gates[g])) for g in (0, 1)
            )
            candidate = m.tanh(e, m.multiply_add(e, reset, recurrent_gates[2], input_gates[2]))
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
            input_gates = self.load_gates(
                e.at(input_projection, e.mul(block.index, self.cell_bytes)), (0, 1)
            )
            recurrent_gates = self._recurrent_projection(state, weights, (0, 1), block.index)
            update, reset = (
                m.sigmoid(e, e.binary("fadd", input_gates[g], recurrent_gates[g])) for g in (0, 1)
            )
            at = e.mul(block.index, self.lanes * FLOAT_BYTES)
            previous = e.load_masked(self.vector, e.at(state, at), self.mask(block.index))
            e.store(update, e.at(e.scratch, at))
            e.store(e.binary("fmul", reset, previous), e.at(scaled_state, at))
        with e.loop(0, self.blocks) as block:
            input_gates = self.load_gates(
                e.at(input_projection, e.mul(block.index, self.cell_bytes)), (2,)
            )
            recurrent_gates = self._recurrent_projection(scaled_state, weights, (2,), block.index)
            candidate = m.tanh(e, e.binary("fadd", input_gates[0], recurrent_gates[0]))
            update = e.load(
                self.vector, e.at(e.scratch, e.mul(block.index, self.lanes * FLOAT_BYTES))
            )
            self._finish(update, candidate, state, y, block.index)

    def _recurrent_projection(
        self, source: Reg, weights: Sequence[Reg], gates: Sequence[int], block: Int
    ) -> tuple[Reg, ...]:
        """Return the state's share of some gates of a block, with the bias added."""
        e, panel, *bias = self.e, *weights
        start: tuple[Reg, ...] = (e.constant(0.0, self.vector),) * len(gates)
        if bias:
            start = self.load_gates(e.at(bias[0], e.mul(block, self.cell_bytes)), gates)
        panels = [e.at(panel, e.mul(block, self.panel_bytes))]
        return self.multiply([source], self.hidden, panels, gates, start)[0]

    def _finish(self, update: Reg, candidate: Reg, state: Reg, y: Reg, block: Int) -> None:
        """Write the new state: ``(1 - update) * candidate + update * state``."""
        e = self.e
        at, mask = e.mul(block, self.lanes * FLOAT_BYTES), self.mask(block)
        previous = e.load_masked(self.vector, e.at(state, at), mask)
        change = e.binary("fsub", previous, candidate)
        e.store_masked(m.multiply_add(e, update, change, candidate), e.at(y, at), mask)
