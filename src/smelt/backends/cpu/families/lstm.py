"""LSTM: input projection of all time steps in one launch, then the time steps one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, Operands, Refusal, Tactic
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cpu import _math as m
from smelt.backends.cpu.families._recurrent import (
    FLOAT_BYTES,
    PEEPHOLES,
    B,
    C,
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
from smelt.ir import Constant
from smelt.ops import LSTM, Add
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cpu._emit import Int, Reg
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Step
    from smelt.ir import Node

_GATES: Final = 4
"""Number of gates of an LSTM: input, output, forget, cell."""
_FLOAT: Final = TensorFormat(DType.FLOAT32, Layout.LINEAR)


class LstmFamily(Family["CpuTarget"]):
    """LSTM in float32 with constant weights, default activations and sequences of equal length.

    Peepholes are not supported.
    """

    name: ClassVar[str] = "lstm"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, LSTM):
            return
        if reason := _unsupported_reason(node, node.op):
            yield Refusal(self.name, reason)
            return
        packed = (W, R, B)
        inputs = tuple(
            None if v is None or i in packed else _FLOAT for i, v in enumerate(node.inputs)
        )
        yield Tactic(
            self.name,
            recurrent_options(target, _GATES),
            inputs,
            (_FLOAT,) * len(node.outputs),
            workspace_bytes=input_projection_bytes(node, node.op, target.vector_bits // 32),
            cost_hint=1e-4,
        )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        op, lanes = node.op, tactic.options["lanes"]
        if not isinstance(op, LSTM) or not isinstance(lanes, int):
            raise InternalError(f"{node} is not an LSTM")
        hidden = int(op.hidden_size)
        weights = [pack_gate_panels(constant_of(node, i), _GATES, hidden, lanes) for i in (W, R)]
        if len(node.inputs) <= B or node.inputs[B] is None:
            return tuple(weights)
        both = constant_of(node, B)
        halves = [slice_gates(both, k * _GATES * hidden, (k + 1) * _GATES * hidden) for k in (0, 1)]
        bias = Constant.derive(f"{both.name} summed", Add(), *halves)
        return (*weights, pack_gate_panels(bias, _GATES, hidden, lanes))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op = node.op
        if not isinstance(op, LSTM):
            raise InternalError(f"{node} is not an LSTM")
        x = operands.inputs[X]
        if x is None:
            raise InternalError(f"{node} has no sequence input")
        recurrent, *inner = operands.packed[1:]
        input_projection, sums = input_projection_launch(
            self.name, op, tactic, operands, (operands.packed[0], *inner)
        )
        states = [operands.inputs[i] if len(operands.inputs) > i else None for i in (H, C)]
        initial_states = [v for v in states if v is not None]
        views = (sums, recurrent, *initial_states, *operands.outputs)
        time, batch = (1, 0) if op.layout else (0, 1)
        scalars = LaunchScalars()
        all_states, hidden, cell = operands.outputs
        spec = KernelSpec(
            self.name,
            parameters(
                kernel="steps",
                hidden=int(op.hidden_size),
                time=scalars.json(x.shape[time]),
                batch=scalars.json(x.shape[batch]),
                reverse=op.direction == "reverse",
                initial=tuple(v is not None for v in states),
                y=scalars.all_json(sequence_strides(all_states, op.layout)),
                states=tuple(
                    scalars.all_json(state_strides(v, op.layout))
                    for v in (*initial_states, hidden, cell)
                ),
            ),
        )
        count, chunks = len(views), x.shape[batch] * op.directions
        writes = tuple(range(count - 3, count))
        return (input_projection, Launch(spec, views, writes, scalars.values, chunks))

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        lanes = target.vector_bits // 32
        if kernel["kernel"] == "input_projection":
            return InputProjectionWriter(kernel, lanes).write()
        return _Lstm(kernel, lanes).write()


def _unsupported_reason(node: Node, op: LSTM) -> str | None:
    """Return why no kernel is generated for an LSTM, or None if one is."""
    if len(node.inputs) > PEEPHOLES and node.inputs[PEEPHOLES] is not None:
        return "peepholes are not supported"
    if op.input_forget:
        return "coupled gates are not supported"
    if len(node.outputs) != 3:
        return "all three outputs are required"
    return unsupported_recurrent_reason(node, op)


class _Lstm(RecurrentWriter):
    """Writes the time steps of a sequence.

    Operands: input projection, recurrent weights, initial states (if any), results.
    """

    def __init__(self, kernel: KernelSpec, lanes: int) -> None:
        self.initial_count = sum(kernel["initial"])
        super().__init__(kernel, lanes, _GATES, 2 + self.initial_count + 3)
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
            gates = range(_GATES)
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
