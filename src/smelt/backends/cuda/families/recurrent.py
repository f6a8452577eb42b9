"""LSTM and GRU: one product for the inputs of all time steps, then one kernel for all time steps.

A program of the second kernel runs one sequence of the batch in one direction, and never leaves it.
Its hidden state lies in scratch memory, twice: a time step reads the one and writes the other, and
a
barrier stands between time steps. Blocks of the recurrent weights are multiplied with it and
summed in
registers.

Or a team of programs does (`_recurrent_cluster.py`), where their registers hold all the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda._cost_model import LAUNCH_SECONDS, guessed_extent, memory_seconds
from smelt.backends.cuda._kernel_source import CLUSTER, Source, cluster_of, operand_parameters
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.backends.cuda.families._gemm_operands import weights_of
from smelt.backends.cuda.families._recurrent_cluster import (
    RecurrentClusterWriter,
    cluster_sizes,
    exchange_count,
    pack_for_cluster,
)
from smelt.backends.cuda.families._recurrent_kernel import RecurrentWriter
from smelt.engine import KernelSpec, Launch, View, parameters
from smelt.ir import Constant
from smelt.ops import GRU, LSTM, Transpose
from smelt.types import DType, Layout, TensorFormat, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.engine import Json, Step
    from smelt.ir import Node
    from smelt.types import Dim

_FEW_TIME_STEPS: Final = 1024
_TILES: Final = {True: (16, 32, 64), False: (64, 64, 32)}
"""Of the first product: time steps, rows and steps; whether there are few time steps."""
_PROJECTION_RATES: Final = {"ieee": (4.5e-6, 1.2e13), "tf32x3": (2.0e-6, 3.5e13)}
"""How float32 is multiplied there: the least seconds, and FLOP a second."""
_STEP_SECONDS: Final = 8.0e-7
_FED: Final = 3.6e10
"""Bytes of weights a second that one program gets from the second-level cache."""
_INPUTS: Final = ("x", "w", "weights", "bias", "lengths", "hidden0", "cell0", "peepholes")
_WEIGHTS: Final = _INPUTS.index("weights")
_LENGTHS: Final = _INPUTS.index("lengths")
_RESULTS: Final = ("emits_every_step", "hidden", "cell")
_FLOAT_BYTES: Final = 4
_CLEARED: Final = 1024
"""Words of a program and turn."""


class RecurrentFamily(Family[CudaTarget]):
    """The default activations without clipping; any direction, lengths and layout.

    A length out of range is told of, and taken for the nearest that is in it.
    """

    name: ClassVar[str] = "recurrent"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        op = node.op
        if not isinstance(op, GRU | LSTM):
            return
        kind = required_input(node, 0).tensor
        if op.activations or op.clip or kind.dtype not in FLOATS:
            reason = "only the default activations without clipping, in float32 or narrower,"
            yield Refusal(self.name, f"{reason} are supported")
            return
        if required_input(node, _WEIGHTS).constant is None:
            yield Refusal(self.name, "the recurrent weights are not constant")
            return
        inputs = tuple(
            None if v is None or i == _WEIGHTS else TensorFormat(v.tensor.dtype, Layout.LINEAR)
            for i, v in enumerate(node.inputs)
        )
        results = tuple(TensorFormat(v.tensor.dtype, Layout.LINEAR) for v in node.outputs)
        time_steps = guessed_extent(kind.shape[op.layout])
        needed_bytes = _RecurrentWorkspace.of(node).total * _FLOAT_BYTES
        once = LAUNCH_SECONDS + memory_seconds(node, target)
        weights = op.gates * op.hidden_size**2 * kind.dtype.size_bytes
        alone = (parameters(num_warps=8), _STEP_SECONDS + weights / _FED)
        sequences = op.directions * guessed_extent(kind.shape[1 - op.layout])
        work = (
            2.0 * time_steps * sequences * op.gates * op.hidden_size * guessed_extent(kind.shape[2])
        )
        for way, (least, rate) in _PROJECTION_RATES.items():
            if way != "ieee" and not (target.has_tf32 and kind.dtype is DType.FLOAT32):
                continue
            for options, time_step in (alone, *cluster_sizes(op, sequences, target)):
                made = parameters(precision=way, **dict(options))
                seconds = once + least + work / rate + time_steps * time_step
                yield Tactic(
                    self.name,
                    made,
                    inputs,
                    results,
                    workspace_bytes=needed_bytes,
                    cost_hint=seconds,
                )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        """The recurrent weights, those of one element of the state beside each other."""
        weights = weights_of(node, _WEIGHTS)
        if CLUSTER in tactic.options:
            return (pack_for_cluster(weights, cast("GRU | LSTM", node.op)),)
        return (Constant.derive(f"{weights.name}.by_state", Transpose((0, 2, 1)), weights),)

    @override
    def reports_index_errors(self, node: Node) -> bool:
        return len(node.inputs) > _LENGTHS and node.inputs[_LENGTHS] is not None

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        lowering = _RecurrentLowering(node, tactic, operands)
        return (lowering.input_projection(), lowering.time_steps())

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        if kernel["part"] == "input_projection":
            return _write_input_projection(kernel)
        return (RecurrentClusterWriter if cluster_of(kernel) > 1 else RecurrentWriter)(
            kernel
        ).write()


@dataclass(frozen=True, slots=True)
class _RecurrentWorkspace:
    """Extents of scratch memory, in elements."""

    state: Dim
    """Of one state of all sequences and directions."""
    input_projection: Dim
    states: int

    @staticmethod
    def of(node: Node) -> _RecurrentWorkspace:
        op = cast("GRU | LSTM", node.op)
        first, second, _ = required_input(node, 0).tensor.shape
        batch = (second, first)[op.layout]
        hidden = op.directions * op.hidden_size
        return _RecurrentWorkspace(
            batch * hidden, first * second * (hidden * op.gates), 4 * exchange_count(op)
        )

    @property
    def total(self) -> Dim:
        """The hidden state twice, and a cell or the two gates of a GRU, or words; what enters.

        The words that a team exchanges are twice as wide as the states, and lie there twice.
        """
        return self.states * self.state + self.input_projection + 1


class _RecurrentLowering:
    def __init__(self, node: Node, tactic: Tactic, operands: Operands) -> None:
        self.node, self.options = node, tactic.options
        self.precision = self.options.pop("precision")
        self.is_team = CLUSTER in self.options
        self.op = cast("GRU | LSTM", node.op)
        self.inputs = dict(zip(_INPUTS, operands.inputs, strict=False))
        self.results = dict(zip(_RESULTS, operands.outputs, strict=False))
        self.x = input_view(operands, 0)
        self.errors = operands.errors
        self.weights = operands.packed[0]
        self.time, self.batch = self.x.shape[:2] if self.op.layout == 0 else self.x.shape[1::-1]
        workspace, memory = operands.workspace, _RecurrentWorkspace.of(node)
        assert workspace is not None  # noqa: S101  (the tactic wants it)
        states = memory.states * memory.state
        self.entered = _floats(workspace, states, memory.input_projection)
        self.states = _floats(workspace, 0, states)
        if self.is_team:
            words = ceil_div(states, 2)
            self.states = replace(self.states, dtype=DType.INT64, shape=(words,))

    def sequence(self, view: View) -> tuple[Dim, ...]:
        """Strides of time and batch in x."""
        return view.strides[:2] if self.op.layout == 0 else view.strides[1::-1]

    def input_projection(self) -> Launch:
        op, x, w = self.op, self.x, self.inputs["w"]
        assert w is not None  # noqa: S101  (inference wants it)
        bias = self.inputs.get("bias")
        views = [x, w, *([] if bias is None else [bias]), self.entered]
        written = [len(views) - 1]
        rows = op.gates * op.hidden_size
        is_late = isinstance(op, GRU) and op.linear_before_reset
        scalars = LaunchScalars()
        time_steps = self.time * self.batch
        cleared_words: Dim = 0
        if self.is_team:
            written.append(len(views))
            views.append(self.states)
            cleared_words = self.states.shape[0]
        bm, bn, _ = tile = _TILES[guessed_extent(time_steps) <= _FEW_TIME_STEPS]
        spec = KernelSpec(
            RecurrentFamily.name,
            parameters(
                part="input_projection",
                tile=tile,
                precision=self.precision,
                extents=scalars.all_json((time_steps, self.batch, rows, x.shape[2])),
                strides=scalars.all_json((*self.sequence(x), x.strides[2])),
                weights=scalars.all_json(w.strides),
                biases=() if bias is None else scalars.all_json(bias.strides),
                recurrent_biases=2 * op.hidden_size if is_late else rows,
                has_bias=bias is not None,
                cleared_words=scalars.json(cleared_words),
                num_warps=4,
                num_stages=2,
                **operand_parameters(views, len(scalars.values)),
            ),
        )
        chunks = op.directions * ceil_div(time_steps, bm) * ceil_div(rows, bn)
        return Launch(spec, tuple(views), tuple(written), scalars.values, chunks)

    def time_steps(self) -> Launch:
        op = self.op
        given = {"entered": self.entered, "states": self.states, "weights": self.weights}
        wanted = ("bias", "lengths", "hidden0", "cell0", "peepholes")
        given |= {n: v for n in wanted if (v := self.inputs.get(n)) is not None}
        given |= self.results
        if self.errors is not None:
            given["errors"] = self.errors
        places = {name: place for place, name in enumerate(given)}
        scalars = LaunchScalars()

        def strides(of: Callable[[View], tuple[Dim, ...]], *names: str) -> Json:
            return tuple((n, scalars.all_json(of(given[n]))) for n in names if n in given)

        spec = KernelSpec(
            RecurrentFamily.name,
            parameters(
                part="time_steps",
                op=op.name,
                places=tuple(places.items()),
                time=scalars.json(self.time),
                batch=scalars.json(self.batch),
                hidden=op.hidden_size,
                directions=op.directions,
                is_reverse=op.direction == "reverse",
                input_forget=isinstance(op, LSTM) and bool(op.input_forget),
                late_reset=isinstance(op, GRU) and bool(op.linear_before_reset),
                emits_every_step=scalars.all_json(self.step_strides(given["emits_every_step"])),
                states=strides(self.state_strides, "hidden0", "cell0", "hidden", "cell"),
                others=strides(lambda view: view.strides, "bias", "lengths", "peepholes"),
                num_stages=1,
                **self.options,
                **operand_parameters(tuple(given.values()), len(scalars.values)),
            ),
        )
        changed = ("states", *self.results, "errors")
        written = tuple(places[name] for name in changed if name in places)
        chunks = op.directions * self.batch * cluster_of(spec)
        return Launch(spec, tuple(given.values()), written, scalars.values, chunks)

    def step_strides(self, view: View) -> tuple[Dim, ...]:
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


def _write_input_projection(kernel: KernelSpec) -> str:
    """``x @ W^T`` of each direction, with both biases."""
    s = Source(kernel)
    time_steps, batch, rows, width = map(s.extent, kernel["extents"])
    along_time, along_batch, along = kernel["strides"]
    bm, bn, bk = kernel["tile"]
    across = f"(({rows} + {bn - 1}) // {bn})"
    down = f"(({time_steps} + {bm - 1}) // {bm})"
    s.line("program = tl.program_id(0).to(tl.int64)")
    s.line(f"column = (program % {across}) * {bn} + tl.arange(0, {bn})")
    s.line(f"m = ((program // {across}) % {down}) * {bm} + tl.arange(0, {bm})")
    s.line(f"way = program // ({across} * {down})")
    s.line(f"row_ok = (m < {time_steps})[:, None]")
    s.line(f"column_ok = (column < {rows})[None, :]")
    place = s.sum_of((f"m // {batch}", along_time), (f"m % {batch}", along_batch))
    s.line(f"line = ({place} + m * 0)[:, None]")
    s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
    with s.block(f"for start in range(0, {width}, {bk}):"):
        s.line(f"k = start + tl.arange(0, {bk})")
        step = s.sum_of(("k", along))
        s.line(f"ok = row_ok & (k < {width})[None, :]")
        s.line(f"a = tl.load(p0 + line + ({step})[None, :], mask=ok, other=0.0)")
        of_way, of_column, of_k = kernel["weights"]
        line = s.sum_of(("way", of_way), ("column", of_column))
        weights = f"({line} + column * 0)[None, :] + ({s.sum_of(('k', of_k))} + k * 0)[:, None]"
        s.line(f"ok = column_ok & (k < {width})[:, None]")
        s.line(f"b = tl.load(p1 + {weights}, mask=ok, other=0.0)")
        s.line(f'acc = tl.dot(a.to(b.dtype), b, acc, input_precision="{kernel["precision"]}")')
    entered = 3 if kernel["has_bias"] else 2
    if kernel["has_bias"]:
        _add_biases(s, kernel, rows)
    where = f"((way * {time_steps} + m) * {rows})[:, None] + column[None, :]"
    s.store(entered, where, "acc", "row_ok & column_ok")
    if kernel["cleared_words"]:
        _clear(s, entered + 1, s.extent(kernel["cleared_words"]))
    return s.text()


def _add_biases(s: Source, kernel: KernelSpec, rows: str) -> None:
    """Add the biases of the inputs, and those of the states that need no reset first."""
    of_way, of_column = kernel["biases"]
    line = s.sum_of(("way", of_way), ("column", of_column))
    at = f"({line} + column * 0)[None, :]"
    s.line(f"own = tl.load(p2 + {at}, mask=column_ok, other=0.0)")
    late = f"column_ok & (column < {kernel['recurrent_biases']})[None, :]"
    behind = s.sum_of((rows, of_column))
    s.line(f"other = tl.load(p2 + {at} + {behind}, mask={late}, other=0.0)")
    s.line("acc = acc + own.to(tl.float32) + other.to(tl.float32)")


def _clear(s: Source, operand: int, words: str) -> None:
    """Set words to zero, each program its share."""
    stretches = f"{words}, tl.num_programs(0) * {_CLEARED}"
    with s.block(f"for first in range(tl.program_id(0) * {_CLEARED}, {stretches}):"):
        s.line(f"i = first + tl.arange(0, {_CLEARED})")
        s.store(operand, "i", "i * 0", f"i < {words}")
