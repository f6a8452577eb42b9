"""Recurrent kernel with a thread block cluster per sequence that holds all recurrent weights.

Each program computes some units of the state and holds their weights in registers for all time
steps. In each time step it needs the whole state, most of which other programs computed. Each
program therefore writes its units to memory as 64-bit words that contain the number of the time
step, and reads the words of the others until they have that number. A word is written atomically,
so no other synchronisation is needed.

Consecutive time steps use different words. The warps of a program synchronise before they write a
time step, after all of them have read the one before. A program that sees another program's word of
time step n therefore knows that all warps of that program have read time step n - 1. Words are
reused only after such words of all programs were seen. A program without units would not be waited
for, so it does not take part.

Programs that wait for each other must run at the same time; the programs of a cluster do. The
preceding launch sets all words to zero, so that no word of an earlier run has a valid number.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from smelt.backends.cuda._cost_model import WARP_LANES, next_power_of_two
from smelt.backends.cuda._elementwise import sigmoid
from smelt.backends.cuda._kernel_source import CLUSTER
from smelt.backends.cuda.families._product_operands import reshaped
from smelt.backends.cuda.families._recurrent_kernel import RecurrentWriter
from smelt.engine import parameters
from smelt.ir import Constant
from smelt.ops import GRU, Transpose
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec, Parameters
    from smelt.ops import LSTM

WAIT_FOR_FLAG_PTX: Final = (
    "{ .reg .pred late; .reg .b32 number; .reg .b64 word; "
    "AGAIN: ld.relaxed.gpu.global.b64 word, [$1]; mov.b64 {$0, number}, word; "
    "setp.ne.b32 late, number, $2; @late bra AGAIN; }"
)
"""PTX that loads the low half of a word once its high half is a given number."""
_GATES: Final = 4
"""Columns per unit; the last column of a GRU is unused."""
_FIRST_WITH_CLUSTERS: Final = 90
"""Compute capability (times ten) from which clusters are supported."""
_CLUSTER_SIZES: Final = (8, 4)
"""Cluster sizes to try. Chosen without a measurement."""
_WARPS: Final = (4, 8)
"""Numbers of warps to try. An LSTM of 128 units takes 110 µs with four warps and 165 with eight on
an H200 (docs/lab/other-kernels-on-gpus.md)."""
_MAX_HELD: Final = 128
"""Maximum number of weights per thread. Chosen without a measurement."""
_EXCHANGE_SECONDS: Final = 5.5e-7
"""Time of an exchange of the state among the programs, in seconds. No measurement is recorded."""
_WEIGHT_SECONDS: Final = 8.0e-9
"""Time of a time step per weight of a thread, with one program per multiprocessor, in seconds. No
measurement is recorded."""


def cluster_sizes(
    op: GRU | LSTM, sequences: float, target: CudaTarget
) -> Iterator[tuple[Parameters, float]]:
    """Yield the parameters of possible clusters, and the estimated seconds of a time step.

    Args:
        op: recurrent op.
        sequences: number of sequences, in both directions together.
        target: GPU.
    """
    if target.capability < _FIRST_WITH_CLUSTERS:
        return
    for cluster_size in _CLUSTER_SIZES:
        weights = next_power_of_two(op.hidden_size) * _GATES * _units(op.hidden_size, cluster_size)
        programs_per_sm = max(1.0, sequences * cluster_size / target.multiprocessors)
        for num_warps in _WARPS:
            if (weights_per_thread := weights / (num_warps * WARP_LANES)) <= _MAX_HELD:
                seconds = exchange_count(op) * (
                    _EXCHANGE_SECONDS + weights_per_thread * _WEIGHT_SECONDS * programs_per_sm
                )
                yield parameters(**{CLUSTER: cluster_size, "num_warps": num_warps}), seconds
                break


def exchange_count(op: GRU | LSTM) -> int:
    """Return the number of vectors that programs exchange in a time step."""
    return 2 if isinstance(op, GRU) and not op.linear_before_reset else 1


def pack_for_cluster(weights: Constant, op: GRU | LSTM) -> Constant:
    """Return the recurrent weights by element of the state, then by unit, then by gate."""
    name, hidden = weights.name, op.hidden_size
    by_gate = reshaped(weights, f"{name}.by_gate", op.directions, op.gates, hidden, hidden)
    return Constant.derive(f"{name}.by_unit", Transpose((0, 3, 2, 1)), by_gate)


def _units(hidden: int, cluster_size: int) -> int:
    """Return the units of a program."""
    return next_power_of_two(-(-hidden // cluster_size))


class RecurrentClusterWriter(RecurrentWriter):
    """Writer of the time steps; ``i`` are a program's units, ``k`` the elements of the state."""

    def __init__(self, kernel: KernelSpec) -> None:
        super().__init__(kernel)
        self.cluster_size: int = kernel[CLUSTER]
        self.units = _units(self.hidden, self.cluster_size)

    @override
    def write(self) -> str:
        s, batch = self.s, self.batch
        s.line("program = tl.program_id(0).to(tl.int64)")
        s.line(f"part = (program % {self.cluster_size}).to(tl.int32)")
        s.line(f"sequence = program // {self.cluster_size}")
        s.line(f"way = sequence // {batch}")
        s.line(f"item = sequence % {batch}")
        s.line(f"i = part * {self.units} + tl.arange(0, {self.units})")
        s.line(f"ok = i < {self.hidden}")
        self.load_weights()
        s.wait()
        s.line(f"size = {self.k['directions']} * {batch} * {self.hidden}")
        s.line(f"words = p{self.places['states']} + sequence * {self.hidden}")
        self.find_length()
        if self.units * (self.cluster_size - 1) >= self.hidden:
            s.line(f"length = tl.where(part * {self.units} < {self.hidden}, length, 0)")
        self.begin()
        s.line(f"entered = p{self.places['entered']} + ({self.projection_offset()})")
        self.load_projection("0")
        with s.block("for step in range(0, length):"):
            s.line(f"t = {self.time_step('step')}")
            s.line("number = (k * 0 + step + 1).to(tl.int32)")
            self.gate("e", "e")
            self.multiply()
            self.lstm() if self.k["op"] == "lstm" else self.gru("size")
        self.write_late_steps()
        self.write_state("hidden", "h")
        self.write_state("cell", "c")
        return s.text()

    def load_weights(self) -> None:
        """Write the loads of the weights of all gates of the program's units."""
        s, gates = self.s, self.gates
        s.line(f"k = tl.arange(0, {next_power_of_two(self.hidden)})")
        s.line(f"k_ok = k < {self.hidden}")
        s.line(f"column = tl.arange(0, {_GATES * self.units})")
        s.line(f"unit = part * {self.units} + column // {_GATES}")
        s.line(f"column_ok = (unit < {self.hidden}) & (column % {_GATES} < {gates})")
        s.line(f"row = (way * {self.hidden} + k) * {gates * self.hidden}")
        place = f"row[:, None] + (unit * {gates} + column % {_GATES})[None, :]"
        both = "k_ok[:, None] & column_ok[None, :]"
        s.line(f"held = {s.load(self.places['weights'], place, both, '0.0')}")

    @override
    @contextmanager
    def rows(self) -> Generator[None]:
        yield  # a program has all its units at once

    @override
    def begin(self) -> None:
        self.s.line(f"known = {self.initial_state('hidden0', 'k', 'k_ok')}")
        self.s.line(f"h = {self.initial_state('hidden0', 'i', 'ok')}")
        self.s.line(f"c = {self.initial_state('cell0', 'i', 'ok')}")

    def projection_offset(self) -> str:
        """Return the offset of the program's columns in the input projection."""
        first = f"(way * {self.time} * {self.batch} + item) * {self.gates * self.hidden}"
        return f"{first} + (column % {_GATES}) * {self.hidden} + unit"

    def load_projection(self, step: str) -> None:
        """Write the load of a step's input projection, if there is such a step."""
        stride = f"({self.batch} * {self.gates * self.hidden})"
        place = f"entered + {self.time_step(step)} * {stride}"
        is_there = f"column_ok & (column * 0 + {step} < length)"
        self.s.line(f"e = tl.load({place}, mask={is_there}, other=0.0)")

    def gate(self, name: str, columns: str) -> None:
        """Write the split of columns into gates, named ``name`` and the gate's number."""
        s = self.s
        s.line(f"even, odd = tl.split(tl.reshape({columns}, [{self.units}, 2, 2]))")
        s.line(f"{name}0, {name}2 = tl.split(even)")
        s.line(f"{name}1, {name}3 = tl.split(odd)")

    def multiply(self) -> None:
        """Write the products of all gates with the current state."""
        self.s.line("product = tl.sum(held * known[:, None], axis=0)")
        self.gate("r", "product")

    @override
    def lstm(self) -> None:
        for gate in range(self.gates):
            self.s.line(f"g{gate} = e{gate} + r{gate}")
        self.write_lstm_state()
        self.store_state()

    @override
    def gru(self, size: str) -> None:
        s = self.s
        s.line(f"update = {sigmoid('e0 + r0')}")
        s.line(f"reset = {sigmoid('e1 + r1')}")
        if self.k["late_reset"]:
            self.add_bias("r2")
            s.line("g2 = e2 + reset * r2")
        else:
            self.exchange("reset * h", f"(2 + step % 2) * {size}")
            self.multiply()
            s.line("g2 = e2 + r2")
        self.write_gru_candidate("g2")

    @override
    def store_state(self) -> None:
        self.exchange("h", "(step % 2) * size")

    def exchange(self, value: str, slot: str) -> None:
        """Write the exchange of a vector: store the units' part, then wait for all of it.

        Independent work is done between the two.
        """
        s = self.s
        bits = f"({value}).to(tl.int32, bitcast=True).to(tl.int64) & {0xFFFFFFFF}"
        s.line(f"word = ({bits}) | ((i * 0 + step + 1).to(tl.int64) << 32)")
        s.line("tl.debug_barrier()  # all warps have read what others will write over")
        s.line(f"tl.store(words + {slot} + i, word, mask=ok)")
        if value == "h":
            self.emit("h")
            self.load_projection("step + 1")
        s.line(f"place = (words + {slot} + tl.minimum(k, {self.hidden - 1})).to(tl.int64)")
        options = "dtype=tl.int32, is_pure=False, pack=1"
        s.line(
            f'bits = tl.inline_asm_elementwise("{WAIT_FOR_FLAG_PTX}", "=r,l,r", '
            f"[place, number], {options})"
        )
        s.line("known = tl.where(k_ok, bits.to(tl.float32, bitcast=True), 0.0)")
        # The identity, but through shared memory: otherwise Triton 3.6 lets each thread wait for
        # all the words that it multiplies, one after another.
        s.line("known = tl.gather(known, k, 0)")
