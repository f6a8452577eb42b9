"""LSTM and GRU: the inputs' share of all moments in one product, then all moments in one kernel.

A program of the second kernel runs one sequence of the batch in one direction, and never leaves it.
Its hidden state lies in scratch memory, twice: a moment reads the one and writes the other, and a
barrier stands between moments. Blocks of the recurrent weights are multiplied with it and summed in
registers.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._nodes import value_of, view_of
from smelt.backends._scalars import Scalars
from smelt.backends.cuda._costs import LAUNCH_SECONDS, guess, memory_seconds
from smelt.backends.cuda._elementwise import sigmoid, tanh
from smelt.backends.cuda._source import Source, operand_parameters
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.engine import KernelSpec, Launch, View, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import GRU, LSTM, Transpose
from smelt.types import DType, Layout, TensorFormat, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from smelt.engine import Step
    from smelt.ir import Node
    from smelt.types import Dim

_SIDE: Final = 128
"""Rows and columns of the weights' blocks."""
_LEAST: Final = 16
_ENTERING_TILE: Final = (32, 64, 32)
_STEP_SECONDS: Final = 2.5e-6
_INPUTS: Final = ("x", "w", "weights", "bias", "lengths", "hidden0", "cell0", "peepholes")
_WEIGHTS: Final = _INPUTS.index("weights")
_RESULTS: Final = ("every", "hidden", "cell")
_FLOAT_BYTES: Final = 4


class RecurrentFamily(Family[CudaTarget]):
    """The default activations without clipping; any direction, lengths and layout."""

    name: ClassVar[str] = "recurrent"
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        op = node.op
        if not isinstance(op, GRU | LSTM):
            return
        kind = value_of(node, 0).tensor
        if op.activations or op.clip or kind.dtype not in FLOATS:
            reason = "only the default activations, without clipping, of floats up to 32 bits"
            yield Refusal(self.name, f"{reason} are generated")
            return
        if value_of(node, _WEIGHTS).constant is None:
            yield Refusal(self.name, "the recurrent weights are not constant")
            return
        inputs = tuple(
            None if v is None or i == _WEIGHTS else TensorFormat(v.tensor.dtype, Layout.LINEAR)
            for i, v in enumerate(node.inputs)
        )
        results = tuple(TensorFormat(v.tensor.dtype, Layout.LINEAR) for v in node.outputs)
        moments = guess(kind.shape[op.layout])
        yield Tactic(
            self.name,
            (),
            inputs,
            results,
            workspace_bytes=_Memory.of(node).total * _FLOAT_BYTES,
            cost_hint=LAUNCH_SECONDS + memory_seconds(node, target) + moments * _STEP_SECONDS,
        )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        """The recurrent weights, those of one element of the state beside each other."""
        weights = value_of(node, _WEIGHTS).constant
        if weights is None:
            raise InternalError(f"{node} has tactics, but its weights are not constant")
        return (Constant.derive(f"{weights.name}.by_state", Transpose((0, 2, 1)), weights),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        lowering = _Lowering(node, operands)
        return (lowering.entering(), lowering.moments())

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return _write_entering(kernel) if kernel["part"] == "entering" else _Writer(kernel).write()


@dataclass(frozen=True, slots=True)
class _Memory:
    """Extents of scratch memory, in elements."""

    entering: Dim
    state: Dim
    """Of one state of all sequences and directions."""

    @staticmethod
    def of(node: Node) -> _Memory:
        op = cast("GRU | LSTM", node.op)
        first, second, _ = value_of(node, 0).tensor.shape
        batch = (second, first)[op.layout]
        hidden = op.directions * op.hidden_size
        return _Memory(first * second * (hidden * op.gates), batch * hidden)

    @property
    def total(self) -> Dim:
        """The inputs' share, the hidden state twice, and a cell or the two gates of a GRU."""
        return self.entering + 4 * self.state + 1


class _Lowering:
    def __init__(self, node: Node, operands: Operands) -> None:
        self.node = node
        self.op = cast("GRU | LSTM", node.op)
        self.inputs = dict(zip(_INPUTS, operands.inputs, strict=False))
        self.results = dict(zip(_RESULTS, operands.outputs, strict=False))
        self.x = view_of(operands, 0)
        self.weights = operands.packed[0]
        self.time, self.batch = self.x.shape[:2] if self.op.layout == 0 else self.x.shape[1::-1]
        workspace, memory = operands.workspace, _Memory.of(node)
        assert workspace is not None  # noqa: S101  (the tactic wants it)
        self.entered = _floats(workspace, 0, memory.entering)
        self.states = _floats(workspace, memory.entering, 4 * memory.state)

    def sequence(self, view: View) -> tuple[Dim, ...]:
        """Strides of time and batch in x."""
        return view.strides[:2] if self.op.layout == 0 else view.strides[1::-1]

    def entering(self) -> Launch:
        op, x, w = self.op, self.x, self.inputs["w"]
        assert w is not None  # noqa: S101  (inference wants it)
        bias = self.inputs.get("bias")
        views = [x, w, *([] if bias is None else [bias]), self.entered]
        rows = op.gates * op.hidden_size
        is_late = isinstance(op, GRU) and op.linear_before_reset
        scalars = Scalars()
        moments = self.time * self.batch
        bm, bn, _ = _ENTERING_TILE
        spec = KernelSpec(
            RecurrentFamily.name,
            parameters(
                part="entering",
                extents=scalars.all_json((moments, self.batch, rows, x.shape[2])),
                strides=scalars.all_json((*self.sequence(x), x.strides[2])),
                recurrent_biases=2 * op.hidden_size if is_late else rows,
                warps=4,
                pipeline=2,
                **operand_parameters(views, len(scalars.values)),
            ),
        )
        chunks = op.directions * ceil_div(moments, bm) * ceil_div(rows, bn)
        return Launch(spec, tuple(views), (len(views) - 1,), scalars.values, chunks)

    def moments(self) -> Launch:
        op = self.op
        given = {"entered": self.entered, "states": self.states, "weights": self.weights}
        wanted = ("bias", "lengths", "hidden0", "cell0", "peepholes")
        given |= {n: v for n in wanted if (v := self.inputs.get(n)) is not None}
        given |= self.results
        places = {name: place for place, name in enumerate(given)}
        scalars = Scalars()
        json = scalars.all_json
        every = self.results["every"]
        spec = KernelSpec(
            RecurrentFamily.name,
            parameters(
                part="moments",
                op=op.name,
                places=tuple(places.items()),
                time=scalars.json(self.time),
                batch=scalars.json(self.batch),
                hidden=op.hidden_size,
                directions=op.directions,
                is_reverse=op.direction == "reverse",
                input_forget=isinstance(op, LSTM) and bool(op.input_forget),
                late_reset=isinstance(op, GRU) and bool(op.linear_before_reset),
                every=json(self.place_strides(every)),
                states=tuple(
                    (name, json(self.state_strides(given[name])))
                    for name in ("hidden0", "cell0", "hidden", "cell")
                    if name in given
                ),
                warps=8,
                pipeline=1,
                **operand_parameters(tuple(given.values()), len(scalars.values)),
            ),
        )
        written = tuple(places[name] for name in ("states", *self.results))
        chunks = op.directions * self.batch
        return Launch(spec, tuple(given.values()), written, scalars.values, chunks)

    def place_strides(self, view: View) -> tuple[Dim, ...]:
        """Of time, direction, batch and element."""
        order = (0, 1, 2, 3) if self.op.layout == 0 else (1, 2, 0, 3)
        return tuple(view.strides[axis] for axis in order)

    def state_strides(self, view: View) -> tuple[Dim, ...]:
        """Of direction, batch and element."""
        order = (0, 1, 2) if self.op.layout == 0 else (1, 0, 2)
        return tuple(view.strides[axis] for axis in order)


def _floats(workspace: View, first: Dim, count: Dim) -> View:
    """Part of the workspace as floats."""
    offset = workspace.offset + first * _FLOAT_BYTES
    return replace(
        workspace, offset=offset, dtype=DType.FLOAT32, shape=(count,), strides=(1,), halo=()
    )


def _write_entering(kernel: KernelSpec) -> str:
    """``x @ W^T`` of each direction, with both biases."""
    s = Source(kernel)
    moments, batch, rows, width = map(s.extent, kernel["extents"])
    along_time, along_batch, along = kernel["strides"]
    bm, bn, bk = _ENTERING_TILE
    across = f"(({rows} + {bn - 1}) // {bn})"
    down = f"(({moments} + {bm - 1}) // {bm})"
    s.line("program = tl.program_id(0).to(tl.int64)")
    s.line(f"column = (program % {across}) * {bn} + tl.arange(0, {bn})")
    s.line(f"m = ((program // {across}) % {down}) * {bm} + tl.arange(0, {bm})")
    s.line(f"way = program // ({across} * {down})")
    s.line(f"row_ok = (m < {moments})[:, None]")
    s.line(f"column_ok = (column < {rows})[None, :]")
    place = s.sum_of((f"m // {batch}", along_time), (f"m % {batch}", along_batch))
    s.line(f"line = ({place} + m * 0)[:, None]")
    s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
    with s.block(f"for start in range(0, {width}, {bk}):"):
        s.line(f"k = start + tl.arange(0, {bk})")
        step = s.sum_of(("k", along))
        s.line(f"ok = row_ok & (k < {width})[None, :]")
        s.line(f"a = tl.load(p0 + line + ({step})[None, :], mask=ok, other=0.0)")
        weights = f"((way * {rows} + column) * {width})[None, :] + k[:, None]"
        s.line(f"ok = column_ok & (k < {width})[:, None]")
        s.line(f"b = tl.load(p1 + {weights}, mask=ok, other=0.0)")
        s.line('acc = tl.dot(a.to(b.dtype), b, acc, input_precision="ieee")')
    last = len(s.dtypes) - 1
    if last == 3:
        at = f"(way * 2 * {rows} + column)[None, :]"
        s.line(f"own = tl.load(p2 + {at}, mask=column_ok, other=0.0)")
        late = f"column_ok & (column < {kernel['recurrent_biases']})[None, :]"
        s.line(f"other = tl.load(p2 + {at} + {rows}, mask={late}, other=0.0)")
        s.line("acc = acc + own.to(tl.float32) + other.to(tl.float32)")
    where = f"((way * {moments} + m) * {rows})[:, None] + column[None, :]"
    s.store(last, where, "acc", "row_ok & column_ok")
    return s.text()


class _Writer:
    """Writes the kernel of all moments; vectors are of a block of rows of the hidden state."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.places: dict[str, int] = dict(kernel["places"])
        self.strides: dict[str, Any] = dict(kernel["states"])
        self.hidden: int = kernel["hidden"]
        self.gates = {"lstm": 4, "gru": 3}[kernel["op"]]
        self.side = min(_SIDE, max(_LEAST, 1 << (self.hidden - 1).bit_length()))

    def write(self) -> str:
        s = self.s
        time, batch = s.extent(self.k["time"]), s.extent(self.k["batch"])
        s.line("program = tl.program_id(0).to(tl.int64)")
        s.line(f"way = program // {batch}")
        s.line(f"item = program % {batch}")
        size = f"({self.k['directions']} * {batch} * {self.hidden})"
        s.line(f"state = p{self.places['states']} + program * {self.hidden}")
        s.line(f"kept = state + 2 * {size}")
        s.line(f"length = {time}")
        if "lengths" in self.places:
            loaded = f"tl.load(p{self.places['lengths']} + item).to(tl.int64)"
            s.line(f"length = tl.minimum(tl.maximum({loaded}, 0), {time})")
        with self.rows():
            self.begin()
        s.line("tl.debug_barrier()")
        with s.block("for step in range(0, length):"):
            s.line("turned = length - 1 - step")
            s.line(f"t = item * 0 + {self.moment()}")  # in 64 bits, as an item's number is
            s.line(f"before = state + (step % 2) * {size}")
            s.line(f"after = state + (1 - step % 2) * {size}")
            gates = f"(way * {time} * {batch} + t * {batch} + item)"
            s.line(f"entered = p{self.places['entered']} + {gates} * {self.gates * self.hidden}")
            self.lstm() if self.k["op"] == "lstm" else self.gru(size)
            s.line("tl.debug_barrier()")
        with s.block(f"for late in range(length, {time}):"), self.rows():
            s.line("t = item * 0 + late")
            s.store(self.places["every"], self.every(), "i * 0.0", "ok")
        with self.rows():
            s.line(f"h = tl.load(state + (length % 2) * {size} + i, mask=ok, other=0.0)")
            self.write_state("hidden", "h")
            if "cell" in self.places:
                s.line("c = tl.load(kept + i, mask=ok, other=0.0)")
                self.write_state("cell", "c")
        return s.text()

    def moment(self) -> str:
        """Which moment a step is of: the second direction walks back."""
        if self.k["is_reverse"]:
            return "turned"
        return "tl.where(way == 1, turned, step)" if self.k["directions"] == 2 else "step"

    @contextmanager
    def rows(self) -> Generator[None]:
        """A loop over blocks of rows: ``i``, of which those that are there are ``ok``."""
        with self.s.block(f"for first in range(0, {self.hidden}, {self.side}):"):
            self.s.line(f"i = first + tl.arange(0, {self.side})")
            self.s.line(f"ok = i < {self.hidden}")
            yield

    def begin(self) -> None:
        s = self.s
        for name, place in (("hidden0", "state"), ("cell0", "kept")):
            value = "i * 0.0"
            if name in self.places:
                value = s.load(self.places[name], self.state_place(name), "ok", "0.0")
            s.line(f"tl.store({place} + i, ({value}).to(tl.float32), mask=ok)")

    def lstm(self) -> None:
        s = self.s
        with self.rows():
            self.recall(("g0", "g1", "g2", "g3"), range(4), "before")
            s.line("c = tl.load(kept + i, mask=ok, other=0.0)")
            self.peep("g0", 0)
            self.peep("g2", 2)
            s.line(f"admitted = {sigmoid('g0')}")
            s.line("forget = " + ("1.0 - admitted" if self.k["input_forget"] else sigmoid("g2")))
            s.line(f"proposed = {tanh('g3')}")
            s.line("c = forget * c + admitted * proposed")
            self.peep("g1", 1)
            s.line(f"h = {sigmoid('g1')} * {tanh('c')}")
            s.line("tl.store(kept + i, c, mask=ok)")
            self.hand_on()

    def gru(self, size: str) -> None:
        """Without ``late_reset`` the hidden gate's product needs all of the reset gate before."""
        s = self.s
        with self.rows():
            self.recall(("g0", "g1"), range(2), "before")
            s.line(f"update = {sigmoid('g0')}")
            s.line(f"reset = {sigmoid('g1')}")
            s.line("h = tl.load(before + i, mask=ok, other=0.0)")
            if self.k["late_reset"]:
                self.recall(("recalled",), (2,), "before", entering=False)
                self.add_bias("recalled")
                s.line(f"g2 = tl.load(entered + {2 * self.hidden} + i, mask=ok, other=0.0)")
                self.propose("g2 + reset * recalled")
            else:
                s.line("tl.store(kept + i, reset * h, mask=ok)")
                s.line(f"tl.store(kept + {size} + i, update, mask=ok)")
        if self.k["late_reset"]:
            return
        s.line("tl.debug_barrier()")
        with self.rows():
            self.recall(("g2",), (2,), "kept")
            s.line(f"update = tl.load(kept + {size} + i, mask=ok, other=0.0)")
            s.line("h = tl.load(before + i, mask=ok, other=0.0)")
            self.propose("g2")

    def propose(self, gate: str) -> None:
        self.s.line(f"proposed = {tanh(gate)}")
        self.s.line("h = (1.0 - update) * proposed + update * h")
        self.hand_on()

    def recall(
        self, names: Sequence[str], gates: Sequence[int], state: str, *, entering: bool = True
    ) -> None:
        """Write gates: what entered, and the recurrent weights' rows times a state."""
        s, hidden = self.s, self.hidden
        weights = self.places["weights"]
        for name, gate in zip(names, gates, strict=True):
            first = f"tl.load(entered + {gate * hidden} + i, mask=ok, other=0.0)"
            s.line(f"{name} = {first}" if entering else f"{name} = i * 0.0")
        with s.block(f"for chunk in range(0, {hidden}, {self.side}):"):
            s.line(f"k = chunk + tl.arange(0, {self.side})")
            s.line(f"k_ok = k < {hidden}")
            s.line(f"known = tl.load({state} + k, mask=k_ok, other=0.0)")
            s.line("both = k_ok[:, None] & ok[None, :]")
            s.line(f"row = (way * {hidden} + k) * {self.gates * hidden}")
            for name, gate in zip(names, gates, strict=True):
                place = f"row[:, None] + ({gate * hidden} + i)[None, :]"
                loaded = s.load(weights, place, "both", "0.0")
                s.line(f"{name} = {name} + tl.sum({loaded} * known[:, None], axis=0)")

    def add_bias(self, name: str) -> None:
        """The recurrent bias of a GRU's last gate, where it was not added with what entered."""
        if "bias" not in self.places:
            return
        at = f"way * {6 * self.hidden} + {5 * self.hidden} + i"
        self.s.line(f"{name} = {name} + {self.s.load(self.places['bias'], at, 'ok', '0.0')}")

    def peep(self, name: str, number: int) -> None:
        if "peepholes" not in self.places:
            return
        at = f"way * {3 * self.hidden} + {number * self.hidden} + i"
        peephole = self.s.load(self.places["peepholes"], at, "ok", "0.0")
        self.s.line(f"{name} = {name} + {peephole} * c")

    def hand_on(self) -> None:
        """Write the next hidden state, and this moment's result."""
        self.s.line("tl.store(after + i, h, mask=ok)")
        self.s.store(self.places["every"], self.every(), "h", "ok")

    def every(self) -> str:
        time, way, item, element = self.k["every"]
        return self.s.sum_of(("t", time), ("way", way), ("item", item), ("i", element))

    def state_place(self, name: str) -> str:
        way, item, element = self.strides[name]
        return self.s.sum_of(("way", way), ("item", item), ("i", element))

    def write_state(self, name: str, value: str) -> None:
        if name in self.places:
            self.s.store(self.places[name], self.state_place(name), value, "ok")
