"""Recurrent kernel of all time steps of an LSTM or GRU, one program per sequence."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from smelt.backends.cuda._cost_model import tile_extent
from smelt.backends.cuda._elementwise import sigmoid, tanh
from smelt.backends.cuda._kernel_source import KernelWriter
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from smelt.engine import KernelSpec

_SIDE: Final = 128
"""Rows and columns of the weights' blocks. Chosen without a measurement."""


class RecurrentWriter(KernelWriter):
    """Writer of the time steps; vectors are blocks of rows of the hidden state."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.places: dict[str, int] = dict(kernel["places"])
        self.strides: dict[str, Any] = dict(kernel["states"]) | dict(kernel["others"])
        self.hidden: int = kernel["hidden"]
        self.gates = {"lstm": 4, "gru": 3}[kernel["op"]]
        self.time, self.batch = (self.s.extent(kernel[name]) for name in ("time", "batch"))
        self.side = min(_SIDE, tile_extent(self.hidden))

    @override
    def write(self) -> str:
        s = self.s
        time, batch = self.time, self.batch
        s.line("program = tl.program_id(0).to(tl.int64)")
        s.line(f"way = program // {batch}")
        s.line(f"item = program % {batch}")
        size = f"({self.k['directions']} * {batch} * {self.hidden})"
        s.line(f"state = p{self.places['states']} + program * {self.hidden}")
        s.line(f"kept = state + 2 * {size}")
        self.find_length()
        with self.rows():
            self.begin()
        s.line("tl.debug_barrier()")
        with s.block("for step in range(0, length):"):
            s.line(f"t = {self.time_step('step')}")
            s.line(f"before = state + (step % 2) * {size}")
            s.line(f"after = state + (1 - step % 2) * {size}")
            gates = f"(way * {time} * {batch} + t * {batch} + item)"
            s.line(f"entered = p{self.places['entered']} + {gates} * {self.gates * self.hidden}")
            self.lstm() if self.k["op"] == "lstm" else self.gru(size)
            s.line("tl.debug_barrier()")
        self.write_late_steps()
        with self.rows():
            s.line(f"h = tl.load(state + (length % 2) * {size} + i, mask=ok, other=0.0)")
            self.write_state("hidden", "h")
            if "cell" in self.places:
                s.line("c = tl.load(kept + i, mask=ok, other=0.0)")
                self.write_state("cell", "c")
        return s.text()

    def write_late_steps(self) -> None:
        """Write zeros for the time steps after the end of the sequence."""
        with self.s.block(f"for late in range(length, {self.time}):"), self.rows():
            self.s.line("t = item * 0 + late")
            self.emit("i * 0.0")

    def emit(self, value: str) -> None:
        """Write the store of this time step's result."""
        time, way, item, element = self.k["emits_every_step"]
        at = self.s.sum_of(("t", time), ("way", way), ("item", item), ("i", element))
        self.s.store(self.places["emits_every_step"], at, value, "ok")

    def find_length(self) -> None:
        """Write the length of the sequence, checked against the number of time steps."""
        s, time = self.s, self.time
        s.line(f"length = {time}")
        if "lengths" in self.places:
            (along,) = self.strides["lengths"]
            at = s.sum_of(("item", along))
            s.line(f"given = tl.load(p{self.places['lengths']} + {at}).to(tl.int64)")
            s.line(f"length = tl.minimum(tl.maximum(given, 0), {time})")
            s.write_index_error(self.places["errors"], "given", time, "given != length")

    def time_step(self, step: str) -> str:
        """Return the time step of a loop step, in 64 bits like a sequence's number.

        The second direction runs backwards.
        """
        reversed_step = f"length - 1 - ({step})"
        if self.k["is_reverse"]:
            return f"(item * 0 + {reversed_step})"
        if self.k["directions"] == 2:
            return f"(item * 0 + tl.where(way == 1, {reversed_step}, {step}))"
        return f"(item * 0 + {step})"

    @contextmanager
    def rows(self) -> Generator[None]:
        """Write a loop over blocks of rows: ``i``, with the mask ``ok``."""
        with self.s.block(f"for first in range(0, {self.hidden}, {self.side}):"):
            self.s.line(f"i = first + tl.arange(0, {self.side})")
            self.s.line(f"ok = i < {self.hidden}")
            yield

    def begin(self) -> None:
        """Write the initial states."""
        for name, place in (("hidden0", "state"), ("cell0", "kept")):
            self.s.line(f"tl.store({place} + i, {self.initial_state(name, 'i', 'ok')}, mask=ok)")

    def initial_state(self, name: str, index: str, ok: str) -> str:
        """Return an expression of elements of an initial state, which is zero by default."""
        value = f"{index} * 0.0"
        if name in self.places:
            value = self.s.load(self.places[name], self.state_place(name, index), ok, "0.0")
        return f"({value}).to(tl.float32)"

    def lstm(self) -> None:
        """Write a time step of an LSTM."""
        s = self.s
        with self.rows():
            self.write_gates({"g0": 0, "g1": 1, "g2": 2, "g3": 3}, "before")
            s.line("c = tl.load(kept + i, mask=ok, other=0.0)")
            self.write_lstm_state()
            s.line("tl.store(kept + i, c, mask=ok)")
            self.store_state()

    def write_lstm_state(self) -> None:
        """Write an LSTM's next states."""
        s = self.s
        self.write_peephole("g0", 0)
        self.write_peephole("g2", 2)
        s.line(f"admitted = {sigmoid('g0')}")
        s.line("forget = " + ("1.0 - admitted" if self.k["input_forget"] else sigmoid("g2")))
        s.line(f"proposed = {tanh('g3')}")
        s.line("c = forget * c + admitted * proposed")
        self.write_peephole("g1", 1)
        s.line(f"h = {sigmoid('g1')} * {tanh('c')}")

    def gru(self, size: str) -> None:
        """Write a time step of a GRU. Without ``late_reset`` the whole reset gate comes first."""
        s = self.s
        with self.rows():
            self.write_gates({"g0": 0, "g1": 1}, "before")
            s.line(f"update = {sigmoid('g0')}")
            s.line(f"reset = {sigmoid('g1')}")
            s.line("h = tl.load(before + i, mask=ok, other=0.0)")
            if self.k["late_reset"]:
                self.write_gates({"recalled": 2}, "before", has_inputs=False)
                self.add_bias("recalled")
                s.line(f"g2 = tl.load(entered + {2 * self.hidden} + i, mask=ok, other=0.0)")
                self.write_gru_candidate("g2 + reset * recalled")
            else:
                s.line("tl.store(kept + i, reset * h, mask=ok)")
                s.line(f"tl.store(kept + {size} + i, update, mask=ok)")
        if self.k["late_reset"]:
            return
        s.line("tl.debug_barrier()")
        with self.rows():
            self.write_gates({"g2": 2}, "kept")
            s.line(f"update = tl.load(kept + {size} + i, mask=ok, other=0.0)")
            s.line("h = tl.load(before + i, mask=ok, other=0.0)")
            self.write_gru_candidate("g2")

    def write_gru_candidate(self, gate: str) -> None:
        """Write a GRU's next state from its hidden gate."""
        self.s.line(f"proposed = {tanh(gate)}")
        self.s.line("h = (1.0 - update) * proposed + update * h")
        self.store_state()

    def write_gates(self, gates: Mapping[str, int], state: str, *, has_inputs: bool = True) -> None:
        """Write named gates: the input projection plus the recurrent weights times a state."""
        s, hidden = self.s, self.hidden
        weights = self.places["weights"]
        for name, gate in gates.items():
            first = f"tl.load(entered + {gate * hidden} + i, mask=ok, other=0.0)"
            s.line(f"{name} = {first}" if has_inputs else f"{name} = i * 0.0")
        with s.block(f"for chunk in range(0, {hidden}, {self.side}):"):
            s.line(f"k = chunk + tl.arange(0, {self.side})")
            s.line(f"k_ok = k < {hidden}")
            s.line(f"known = tl.load({state} + k, mask=k_ok, other=0.0)")
            s.line("both = k_ok[:, None] & ok[None, :]")
            s.line(f"row = (way * {hidden} + k) * {self.gates * hidden}")
            for name, gate in gates.items():
                place = f"row[:, None] + ({gate * hidden} + i)[None, :]"
                loaded = s.load(weights, place, "both", "0.0")
                s.line(f"{name} = {name} + tl.sum({loaded} * known[:, None], axis=0)")

    def add_bias(self, name: str) -> None:
        """Write the recurrent bias of a GRU's last gate, if the input projection lacks it."""
        if "bias" in self.places:
            self.s.line(f"{name} = {name} + {self.row('bias', 5)}")

    def write_peephole(self, name: str, number: int) -> None:
        """Write the peephole connection of a gate, if the op has one."""
        if "peepholes" in self.places:
            self.s.line(f"{name} = {name} + {self.row('peepholes', number)} * c")

    def store_state(self) -> None:
        """Write the stores of the next hidden state and of this time step's result."""
        self.s.line("tl.store(after + i, h, mask=ok)")
        self.emit("h")

    def state_place(self, name: str, index: str = "i") -> str:
        """Return the offset of elements of an initial or final state."""
        way, item, element = self.strides[name]
        return self.s.sum_of(("way", way), ("item", item), (index, element))

    def row(self, name: str, number: int) -> str:
        """Return an expression that loads a direction's row of an operand, one of several."""
        way, element = self.strides[name]
        at = self.s.sum_of(("way", way), (f"({number * self.hidden} + i)", element))
        return self.s.load(self.places[name], f"{at} + i * 0", "ok", "0.0")

    def write_state(self, name: str, value: str) -> None:
        """Write the store of a final state, if it is a result."""
        if name in self.places:
            self.s.store(self.places[name], self.state_place(name), value, "ok")
