"""LSTM: one kernel for the whole sequence; the states stay in first-level cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends import Family, Operands, Refusal, Tactic
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._emit import Reg, emitter_for, vector_type
from smelt.backends.cpu._scalars import Scalars
from smelt.backends.cpu.families._recurrent import (
    FLOAT_BYTES,
    PEEPHOLES,
    B,
    C,
    H,
    R,
    W,
    X,
    constant_of,
    gate_panels,
    rows_of,
    sequence_strides,
    state_strides,
    why_not_recurrent,
)
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import LSTM, Add
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Step
    from smelt.ir import Node

_GATES: Final = 4
_FLOAT: Final = TensorFormat(DType.FLOAT32, Layout.LINEAR)


class LstmFamily(Family["CpuTarget"]):
    """Float32, constant weights, the default activations, no peepholes and no ragged sequences."""

    name: ClassVar[str] = "lstm"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, LSTM):
            return
        if reason := _why_not(node, node.op):
            yield Refusal(self.name, reason)
            return
        packed = (W, R, B)
        inputs = tuple(
            None if v is None or i in packed else _FLOAT for i, v in enumerate(node.inputs)
        )
        lanes = target.vector_bits // 32
        results = (_FLOAT,) * len(node.outputs)
        yield Tactic(self.name, parameters(lanes=lanes), inputs, results, cost_hint=1e-4)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        op, lanes = node.op, dict(tactic.parameters)["lanes"]
        if not isinstance(op, LSTM) or not isinstance(lanes, int):
            raise InternalError(f"{node} is no LSTM")
        hidden = int(op.hidden_size)
        weights = [gate_panels(constant_of(node, i), _GATES, hidden, lanes) for i in (W, R)]
        if len(node.inputs) <= B or node.inputs[B] is None:
            return tuple(weights)
        both = constant_of(node, B)
        halves = [rows_of(both, k * _GATES * hidden, (k + 1) * _GATES * hidden) for k in (0, 1)]
        bias = Constant.derive(f"{both.name} summed", Add(), *halves)
        return (*weights, gate_panels(bias, _GATES, hidden, lanes))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op = node.op
        if not isinstance(op, LSTM):
            raise InternalError(f"{node} is no LSTM")
        x = operands.inputs[X]
        if x is None:
            raise InternalError(f"{node} has no sequence")
        states = [operands.inputs[i] if len(operands.inputs) > i else None for i in (H, C)]
        views = [x, *operands.packed, *(v for v in states if v is not None), *operands.outputs]
        time, batch = (1, 0) if op.layout else (0, 1)
        scalars = Scalars()
        everything, hidden, cell = operands.outputs
        directions = 2 if op.direction == "bidirectional" else 1
        spec = KernelSpec(
            self.name,
            parameters(
                hidden=int(op.hidden_size),
                width=scalars.json(x.shape[2]),
                time=scalars.json(x.shape[time]),
                batch=scalars.json(x.shape[batch]),
                reverse=op.direction == "reverse",
                bias=len(operands.packed) > 2,
                initial=tuple(v is not None for v in states),
                x=scalars.all_json((x.strides[time], 0, x.strides[batch])),
                y=scalars.all_json(sequence_strides(everything, op.layout)),
                states=tuple(
                    scalars.all_json(state_strides(v, op.layout))
                    for v in (*(s for s in states if s is not None), hidden, cell)
                ),
            ),
        )
        count = len(views)
        chunks = directions * x.shape[batch]
        return (Launch(spec, tuple(views), tuple(range(count - 3, count)), scalars.values, chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return _Lstm(kernel, target.vector_bits // 32).module()


def _why_not(node: Node, op: LSTM) -> str | None:
    if len(node.inputs) > PEEPHOLES and node.inputs[PEEPHOLES] is not None:
        return "peepholes are not generated"
    if op.input_forget:
        return "coupled gates are not generated"
    if len(node.outputs) != 3:
        return "all three results are needed"
    return why_not_recurrent(node, op)


class _Lstm:
    """Writes the kernel: chunk = one sequence in one direction."""

    def __init__(self, kernel: KernelSpec, lanes: int) -> None:
        self.k = kernel
        self.lanes = lanes
        self.vector = vector_type("float", lanes)
        given = sum(kernel["initial"])
        self.e = emitter_for(kernel, 3 + bool(kernel["bias"]) + given + 3)
        self.hidden: int = kernel["hidden"]
        self.padded = -(-self.hidden // lanes) * lanes
        self.panel = _GATES * self.padded * FLOAT_BYTES
        self.first_state = 3 + bool(kernel["bias"])

    def module(self) -> str:
        e, k = self.e, self.k
        batch = e.extent(k["batch"])
        with e.loop(e.begin, e.end) as chunks:
            direction = e.div(chunks.index, batch)
            item = e.mod(chunks.index, batch)
            self._sequence(e.i64(direction), e.i64(item))
        return e.module()

    def _sequence(self, direction: Reg, item: Reg) -> None:
        e, k = self.e, self.k
        time = e.extent(k["time"])
        width = e.extent(k["width"])
        given = list(k["initial"])
        count = sum(given)
        first = self.first_state
        starts = [self._at(first + i, k["states"][i], 0, direction, item) for i in range(count)]
        last_h = self._at(first + count + 1, k["states"][count], 0, direction, item)
        last_c = self._at(first + count + 2, k["states"][count + 1], 0, direction, item)
        self._start(last_h, starts.pop(0) if given[0] else None)
        self._start(last_c, starts.pop(0) if given[1] else None)
        weights = e.at(e.pointer(1), e.mul(direction, e.mul(width, self.panel)))
        recurrent = e.at(e.pointer(2), e.mul(direction, self.hidden * self.panel))
        bias = e.at(e.pointer(3), e.mul(direction, self.panel)) if k["bias"] else None
        backwards = e.constant(1, "i1") if k["reverse"] else e.compare("eq", direction, 1)
        with e.loop(0, time) as steps:
            mirrored = e.i64(e.sub(e.sub(time, 1), steps.index))
            moment = e.select(backwards, mirrored, steps.index)
            x = self._at(0, k["x"], moment, direction, item)
            y = self._at(first + count, k["y"], moment, direction, item)
            with e.loop(0, self.padded, self.lanes) as block:
                column = e.mul(block.index, FLOAT_BYTES)
                sums = self._gates(x, width, last_h, (weights, recurrent, bias), column)
                self._unit(sums, y, last_c, block.index)
            self._copy(y, last_h)

    def _at(
        self, operand: int, strides: Sequence[Any], moment: Int, direction: Reg, item: Reg
    ) -> Reg:
        e = self.e
        offset: Int = 0
        for place, stride in zip((moment, direction, item), strides, strict=True):
            offset = e.add(offset, e.mul(place, e.mul(e.extent(stride), FLOAT_BYTES)))
        return e.at(e.pointer(operand), offset)

    def _start(self, state: Reg, given: Reg | None) -> None:
        """Begin with the given state, or zeros."""
        e = self.e
        with e.loop(0, self.hidden) as units:
            at = e.mul(units.index, FLOAT_BYTES)
            value = e.constant(0.0, "float") if given is None else e.load("float", e.at(given, at))
            e.store(value, e.at(state, at))

    def _copy(self, source: Reg, destination: Reg) -> None:
        e = self.e
        with e.loop(0, self.hidden) as units:
            at = e.mul(units.index, FLOAT_BYTES)
            e.store(e.load("float", e.at(source, at)), e.at(destination, at))

    def _gates(
        self, x: Reg, width: Int, hidden: Reg, weights: tuple[Reg, Reg, Reg | None], column: Int
    ) -> tuple[Reg, ...]:
        """Input, output, forget and cell sums of one block of units."""
        e = self.e
        entering, recurrent, bias = weights
        sums: tuple[Reg, ...] = (e.constant(0.0, self.vector),) * _GATES
        if bias is not None:
            sums = self._panel(e.at(bias, column))
        for source, extent, panel in ((x, width, entering), (hidden, self.hidden, recurrent)):
            with e.loop(0, extent, carried=sums) as steps:
                one = e.load("float", e.at(source, e.mul(steps.index, FLOAT_BYTES)))
                wide = e.splat(one, self.lanes)
                row = e.at(panel, e.add(e.mul(steps.index, self.panel), column))
                steps.carry = tuple(
                    e.fma(wide, w, s) for w, s in zip(self._panel(row), steps.values, strict=True)
                )
            sums = steps.values
        return sums

    def _panel(self, row: Reg) -> tuple[Reg, ...]:
        e = self.e
        return tuple(
            e.load(self.vector, e.at(row, g * self.padded * FLOAT_BYTES)) for g in range(_GATES)
        )

    def _unit(self, sums: Sequence[Reg], y: Reg, cell: Reg, unit: Reg) -> None:
        e = self.e
        gate_i, gate_o, gate_f = (m.sigmoid(e, s) for s in sums[:3])
        candidate = m.tanh(e, sums[3])
        mask = e.tail_mask(e.i64(e.sub(self.hidden, unit)), self.lanes)
        at = e.mul(unit, FLOAT_BYTES)
        before = e.load_masked(self.vector, e.at(cell, at), mask)
        kept = e.binary("fmul", gate_f, before)
        after = e.fma(gate_i, candidate, kept)
        e.store_masked(after, e.at(cell, at), mask)
        e.store_masked(e.binary("fmul", gate_o, m.tanh(e, after)), e.at(y, at), mask)
