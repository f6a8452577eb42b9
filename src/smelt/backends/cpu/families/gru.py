"""GRU: one kernel for the whole sequence; the state stays in first-level cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends import Family, Operands, Refusal, Tactic
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._emit import Reg, emitter_for, vector_type
from smelt.backends.cpu._scalars import Scalars
from smelt.backends.cpu.families._recurrent import (
    FLOAT_BYTES,
    B,
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
from smelt.ops import GRU
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Step
    from smelt.ir import Constant, Node

_GATES: Final = 3
_FLOAT: Final = TensorFormat(DType.FLOAT32, Layout.LINEAR)


class GruFamily(Family["CpuTarget"]):
    """Float32, constant weights, the default activations and no ragged sequences; both forms."""

    name: ClassVar[str] = "gru"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, GRU):
            return
        reason = why_not_recurrent(node, node.op)
        if reason or len(node.outputs) != 2:
            yield Refusal(self.name, reason or "both results are needed")
            return
        inputs = tuple(
            None if v is None or i in (W, R, B) else _FLOAT for i, v in enumerate(node.inputs)
        )
        lanes = target.vector_bits // 32
        yield Tactic(self.name, parameters(lanes=lanes), inputs, (_FLOAT, _FLOAT), cost_hint=1e-4)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        op, lanes = node.op, dict(tactic.parameters)["lanes"]
        if not isinstance(op, GRU) or not isinstance(lanes, int):
            raise InternalError(f"{node} is no GRU")
        hidden = int(op.hidden_size)
        parts = [constant_of(node, i) for i in (W, R)]
        if len(node.inputs) > B and node.inputs[B] is not None:
            both, half = constant_of(node, B), _GATES * hidden
            parts += [rows_of(both, 0, half), rows_of(both, half, 2 * half)]
        return tuple(gate_panels(part, _GATES, hidden, lanes) for part in parts)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op, x = node.op, operands.inputs[X]
        if not isinstance(op, GRU) or x is None:
            raise InternalError(f"{node} is no GRU of a sequence")
        start = operands.inputs[H] if len(operands.inputs) > H else None
        given = () if start is None else (start,)
        views = (x, *operands.packed, *given, *operands.outputs)
        time, batch = (1, 0) if op.layout else (0, 1)
        scalars = Scalars()
        everything, last = operands.outputs
        hidden, lanes = int(op.hidden_size), dict(tactic.parameters)["lanes"]
        spec = KernelSpec(
            self.name,
            parameters(
                hidden=hidden,
                linear=bool(op.linear_before_reset),
                width=scalars.json(x.shape[2]),
                time=scalars.json(x.shape[time]),
                batch=scalars.json(x.shape[batch]),
                reverse=op.direction == "reverse",
                bias=len(operands.packed) > 2,
                x=scalars.all_json((x.strides[time], 0, x.strides[batch])),
                start=tuple(scalars.all_json(state_strides(v, op.layout)) for v in given),
                y=scalars.all_json(sequence_strides(everything, op.layout)),
                last=scalars.all_json(state_strides(last, op.layout)),
            ),
        )
        chunks = (2 if op.direction == "bidirectional" else 1) * x.shape[batch]
        scratch = 2 * FLOAT_BYTES * (hidden + -hidden % int(str(lanes)))
        writes = (len(views) - 2, len(views) - 1)
        return (Launch(spec, views, writes, scalars.values, chunks, scratch),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        return _Gru(kernel, target.vector_bits // 32).module()


class _Gru:
    """Writes the kernel: chunk = one sequence in one direction."""

    def __init__(self, kernel: KernelSpec, lanes: int) -> None:
        self.k = kernel
        self.lanes = lanes
        self.vector = vector_type("float", lanes)
        self.weights = 2 + 2 * bool(kernel["bias"])
        self.count = 1 + self.weights + len(kernel["start"]) + 2
        self.e = emitter_for(kernel, self.count)
        self.hidden: int = kernel["hidden"]
        self.padded = -(-self.hidden // lanes) * lanes
        self.panel = _GATES * self.padded * FLOAT_BYTES

    def module(self) -> str:
        e = self.e
        batch = e.extent(self.k["batch"])
        with e.loop(e.begin, e.end) as chunks:
            direction, item = e.div(chunks.index, batch), e.mod(chunks.index, batch)
            self._sequence(e.i64(direction), e.i64(item))
        return e.module()

    def _sequence(self, direction: Reg, item: Reg) -> None:
        e, k = self.e, self.k
        time, width = e.extent(k["time"]), e.extent(k["width"])
        state = self._at(self.count - 1, k["last"], 0, direction, item)
        given = [self._at(1 + self.weights, s, 0, direction, item) for s in k["start"]]
        self._start(state, given[0] if given else None)
        rows: list[Int] = [e.mul(width, self.panel), self.hidden * self.panel]
        rows += [self.panel] * (self.weights - 2)
        panels = [e.at(e.pointer(1 + i), e.mul(direction, size)) for i, size in enumerate(rows)]
        backwards = e.constant(1, "i1") if k["reverse"] else e.compare("eq", direction, 1)
        with e.loop(0, time) as steps:
            mirrored = e.i64(e.sub(e.sub(time, 1), steps.index))
            moment = e.select(backwards, mirrored, steps.index)
            x = self._at(0, k["x"], moment, direction, item)
            y = self._at(self.count - 2, k["y"], moment, direction, item)
            if k["linear"]:
                self._linear_step(x, y, state, panels, width)
            else:
                self._step(x, y, state, panels, width)
            self._start(state, y)

    def _at(
        self, operand: int, strides: Sequence[Any], moment: Int, direction: Reg, item: Reg
    ) -> Reg:
        e = self.e
        offset: Int = 0
        for place, stride in zip((moment, direction, item), strides, strict=True):
            offset = e.add(offset, e.mul(place, e.mul(e.extent(stride), FLOAT_BYTES)))
        return e.at(e.pointer(operand), offset)

    def _start(self, state: Reg, given: Reg | None) -> None:
        """Make the state what is given, or zeros."""
        e = self.e
        with e.loop(0, self.hidden) as units:
            at = e.mul(units.index, FLOAT_BYTES)
            value = e.constant(0.0, "float") if given is None else e.load("float", e.at(given, at))
            e.store(value, e.at(state, at))

    def _linear_step(self, x: Reg, y: Reg, state: Reg, panels: Sequence[Reg], width: Int) -> None:
        """The reset gate acts on the product of the state: all gates in one pass."""
        e = self.e
        with e.loop(0, self.padded, self.lanes) as block:
            entering = self._sums(x, width, panels, 0, range(_GATES), block.index)
            recalled = self._sums(state, self.hidden, panels, 1, range(_GATES), block.index)
            update, reset = (
                m.sigmoid(e, e.binary("fadd", entering[g], recalled[g])) for g in (0, 1)
            )
            proposed = m.tanh(e, e.fma(reset, recalled[2], entering[2]))
            self._finish(update, proposed, state, y, block.index)

    def _step(self, x: Reg, y: Reg, state: Reg, panels: Sequence[Reg], width: Int) -> None:
        """The reset gate acts on the state: all of it first, kept in scratch beside the update."""
        e = self.e
        kept = e.at(e.scratch, self.padded * FLOAT_BYTES)
        with e.loop(0, self.padded, self.lanes) as block:
            entering = self._sums(x, width, panels, 0, (0, 1), block.index)
            recalled = self._sums(state, self.hidden, panels, 1, (0, 1), block.index)
            update, reset = (
                m.sigmoid(e, e.binary("fadd", entering[g], recalled[g])) for g in (0, 1)
            )
            at = e.mul(block.index, FLOAT_BYTES)
            held = e.load_masked(self.vector, e.at(state, at), self._mask(block.index))
            e.store(update, e.at(e.scratch, at))
            e.store(e.binary("fmul", reset, held), e.at(kept, at))
        with e.loop(0, self.padded, self.lanes) as block:
            entering = self._sums(x, width, panels, 0, (2,), block.index)
            recalled = self._sums(kept, self.hidden, panels, 1, (2,), block.index)
            proposed = m.tanh(e, e.binary("fadd", entering[0], recalled[0]))
            at = e.mul(block.index, FLOAT_BYTES)
            update = e.load(self.vector, e.at(e.scratch, at))
            self._finish(update, proposed, state, y, block.index)

    def _sums(
        self,
        source: Reg,
        extent: Int,
        panels: Sequence[Reg],
        which: int,
        gates: Sequence[int],
        unit: Reg,
    ) -> tuple[Reg, ...]:
        """The products of a vector with the weights of one block of units, and their bias."""
        e = self.e
        column = e.mul(unit, FLOAT_BYTES)
        first: tuple[Reg, ...] = (e.constant(0.0, self.vector),) * len(gates)
        if len(panels) > 2:
            first = self._panel(e.at(panels[2 + which], column), gates)
        with e.loop(0, extent, carried=first) as steps:
            one = e.load("float", e.at(source, e.mul(steps.index, FLOAT_BYTES)))
            wide = e.splat(one, self.lanes)
            row = e.at(panels[which], e.add(e.mul(steps.index, self.panel), column))
            weights = self._panel(row, gates)
            steps.carry = tuple(
                e.fma(wide, w, s) for w, s in zip(weights, steps.values, strict=True)
            )
        return steps.values

    def _panel(self, row: Reg, gates: Sequence[int]) -> tuple[Reg, ...]:
        e = self.e
        return tuple(e.load(self.vector, e.at(row, g * self.padded * FLOAT_BYTES)) for g in gates)

    def _mask(self, unit: Reg) -> Reg:
        return self.e.tail_mask(self.e.i64(self.e.sub(self.hidden, unit)), self.lanes)

    def _finish(self, update: Reg, proposed: Reg, state: Reg, y: Reg, unit: Reg) -> None:
        """``(1 - update) * proposed + update * state``."""
        e = self.e
        at, mask = e.mul(unit, FLOAT_BYTES), self._mask(unit)
        held = e.load_masked(self.vector, e.at(state, at), mask)
        change = e.binary("fsub", held, proposed)
        e.store_masked(e.fma(update, change, proposed), e.at(y, at), mask)
