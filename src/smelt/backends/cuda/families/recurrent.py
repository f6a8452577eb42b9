"""Family of LSTM and GRU: one product for the inputs of all time steps, then one recurrent kernel.

A program of the second kernel computes one sequence of the batch in one direction. Its hidden state
is double-buffered in scratch memory: a time step reads one buffer and writes the other, with a
barrier between time steps. Blocks of the recurrent weights are multiplied with the state and summed
in registers.

Alternatively a thread block cluster computes a sequence (`_recurrent_cluster.py`), if its registers
hold all recurrent weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

from smelt.backends._base import NodeRefusedError, Operands, Tactic
from smelt.backends._node_operands import input_view, required_input, workspace_of
from smelt.backends.cuda._cost_model import LAUNCH_SECONDS, memory_seconds
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import CLUSTER, KernelWriter, cluster_of, kernel_launch
from smelt.backends.cuda.families._epilogue import FLOAT_NAMES, FLOATS
from smelt.backends.cuda.families._product_operands import weights_of
from smelt.backends.cuda.families._recurrent_cluster import (
    RecurrentClusterWriter,
    cluster_sizes,
    exchange_count,
    pack_for_cluster,
)
from smelt.backends.cuda.families._recurrent_kernel import RecurrentWriter
from smelt.engine import View, parameters
from smelt.ir import Constant
from smelt.ops import GRU, LSTM, Transpose
from smelt.types import DType, Layout, TensorFormat, ceil_div, guessed_extent, override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from smelt.backends.cuda._kernel_source import KernelField
    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec, Launch, Step
    from smelt.ir import Node
    from smelt.types import Dim

_FEW_TIME_STEPS: Final = 1024
"""Number of time steps of all sequences up to which the input projection has small tiles. With
`_TILES` the projection takes 3.0 µs instead of 11.7, and 13.9 instead of 75.7 at batch 32, on an
H200 (docs/lab/other-kernels-on-gpus.md)."""
_TILES: Final = {True: (16, 32, 64), False: (64, 64, 32)}
"""Tiles of the input projection (time steps, rows, reduction step), by whether there are few time
steps. `_FEW_TIME_STEPS` names the measurement."""
_PROJECTION_RATES: Final = {"ieee": (4.5e-6, 1.2e13), "tf32x3": (2.0e-6, 3.5e13)}
"""Precisions of the input projection: minimum seconds, and flop/s. No measurement is recorded."""
_TIME_STEP_SECONDS: Final = 8.0e-7
"""Fixed time of a time step by one program, in seconds. No measurement is recorded."""
_WEIGHT_BYTES_PER_SECOND: Final = 3.6e10
"""Rate at which one program reads weights from the L2 cache, in bytes per second. No measurement is
recorded."""
_INPUTS: Final = ("x", "w", "weights", "bias", "lengths", "hidden0", "cell0", "peepholes")
"""Names of the ops' inputs by position."""
_WEIGHTS: Final = _INPUTS.index("weights")
"""Position of the recurrent weights."""
_LENGTHS: Final = _INPUTS.index("lengths")
"""Position of the sequence lengths."""
_RESULTS: Final = ("emits_every_step", "hidden", "cell")
"""Names of the ops' results by position."""
_FLOAT_BYTES: Final = 4
"""Size of a float32 element in bytes."""
_CLEARED_WORDS: Final = 1024
"""Words that a program clears per iteration. Chosen without a measurement."""


class RecurrentFamily(CudaFamily):
    """Family of LSTM and GRU with default activations, of any direction, lengths and layout.

    A sequence length out of range is reported, and clamped to the range.
    """

    name: ClassVar[str] = "recurrent"

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        op = node.op
        if not isinstance(op, GRU | LSTM):
            return
        kind = required_input(node, 0).tensor
        if not op.has_default_activations:
            raise NodeRefusedError("the activations are not the default ones, or clip is set")
        if kind.dtype not in FLOATS:
            raise NodeRefusedError(
                f"the input is {kind.dtype.value}; only {FLOAT_NAMES} are supported"
            )
        if required_input(node, _WEIGHTS).constant is None:
            raise NodeRefusedError("the recurrent weights are not constant")
        inputs = tuple(
            None if v is None or i == _WEIGHTS else TensorFormat(v.tensor.dtype, Layout.LINEAR)
            for i, v in enumerate(node.inputs)
        )
        results = tuple(TensorFormat(v.tensor.dtype, Layout.LINEAR) for v in node.outputs)
        time_steps = guessed_extent(kind.shape[op.layout])
        states, input_projection = _workspace_elements(node)
        workspace = (states + input_projection + 1) * _FLOAT_BYTES
        fixed_seconds = LAUNCH_SECONDS + memory_seconds(node, target)
        weights = op.gates * op.hidden_size**2 * kind.dtype.size_bytes
        step_seconds = _TIME_STEP_SECONDS + weights / _WEIGHT_BYTES_PER_SECOND
        single_program = (parameters(num_warps=8), step_seconds)
        sequences = op.directions * guessed_extent(kind.shape[1 - op.layout])
        products = sequences * op.gates * op.hidden_size * guessed_extent(kind.shape[2])
        flops = 2.0 * time_steps * products
        for precision, (min_seconds, rate) in _PROJECTION_RATES.items():
            if precision != "ieee" and not (target.has_tf32 and kind.dtype is DType.FLOAT32):
                continue
            clusters = cluster_sizes(op, sequences, target)
            for launch_options, time_step in (single_program, *clusters):
                options = parameters(input_precision=precision, **dict(launch_options))
                seconds = fixed_seconds + min_seconds + flops / rate + time_steps * time_step
                tactic = Tactic(self.name, options, inputs, results, estimated_seconds=seconds)
                yield replace(tactic, workspace_bytes=workspace)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        """Return the recurrent weights with those of one state element contiguous."""
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
    def writer_of(self, kernel: KernelSpec) -> type[KernelWriter]:
        if kernel["part"] == "input_projection":
            return _InputProjectionWriter
        return RecurrentClusterWriter if cluster_of(kernel) > 1 else RecurrentWriter


def _workspace_elements(node: Node) -> tuple[Dim, Dim]:
    """Return the float32 elements of all states, and of the input projection.

    There are two hidden states, and the cell or the two gates of a GRU. The words that a cluster
    exchanges are twice as wide as states, and double-buffered.
    """
    op = cast("GRU | LSTM", node.op)
    first, second, _ = required_input(node, 0).tensor.shape
    batch = (second, first)[op.layout]
    hidden = op.directions * op.hidden_size
    states = 4 * exchange_count(op) * (batch * hidden)
    return states, first * second * (hidden * op.gates)


class _RecurrentLowering:
    """Lowering of a node to its two launches."""

    def __init__(self, node: Node, tactic: Tactic, operands: Operands) -> None:
        self.node, self.options = node, tactic.options
        self.input_precision = self.options.pop("input_precision")
        self.is_cluster = CLUSTER in self.options
        self.op = cast("GRU | LSTM", node.op)
        self.inputs = dict(zip(_INPUTS, operands.inputs, strict=False))
        self.results = dict(zip(_RESULTS, operands.outputs, strict=False))
        self.x = input_view(operands, 0)
        self.errors = operands.errors
        self.weights = operands.packed[0]
        self.time, self.batch = self.batch_second(self.x.shape)[:2]
        workspace = workspace_of(node, operands)
        states, input_projection = _workspace_elements(node)
        self.entered = _floats(workspace, states, input_projection)
        self.states = _floats(workspace, 0, states)
        if self.is_cluster:
            words = ceil_div(states, 2)
            self.states = replace(self.states, dtype=DType.INT64, shape=(words,))

    def input_projection(self) -> Launch:
        """Return the launch of the input projection."""
        op, x, w = self.op, self.x, self.inputs["w"]
        assert w is not None  # noqa: S101  (inference requires it)
        bias = self.inputs.get("bias")
        sources = [x, w, *([] if bias is None else [bias])]
        written = [self.entered, *([self.states] if self.is_cluster else [])]
        rows = op.gates * op.hidden_size
        is_late = isinstance(op, GRU) and op.linear_before_reset
        time_steps = self.time * self.batch
        bm, bn, _ = tile = _TILES[guessed_extent(time_steps) <= _FEW_TIME_STEPS]
        return kernel_launch(
            RecurrentFamily.name,
            [*sources, *written],
            op.directions * ceil_div(time_steps, bm) * ceil_div(rows, bn),
            range(len(sources), len(sources) + len(written)),
            part="input_projection",
            tile=tile,
            input_precision=self.input_precision,
            extents=(time_steps, self.batch, rows, x.shape[2]),
            strides=self.batch_second(x.strides),
            weights=w.strides,
            biases=() if bias is None else bias.strides,
            recurrent_biases=2 * op.hidden_size if is_late else rows,
            has_bias=bias is not None,
            cleared_words=self.states.shape[0] if self.is_cluster else 0,
            num_stages=2,
        )

    def time_steps(self) -> Launch:
        """Return the launch of all time steps."""
        op = self.op
        operands = {"entered": self.entered, "states": self.states, "weights": self.weights}
        optional = ("bias", "lengths", "hidden0", "cell0", "peepholes")
        operands |= {n: v for n in optional if (v := self.inputs.get(n)) is not None}
        operands |= self.results
        if self.errors is not None:
            operands["errors"] = self.errors
        places = {name: place for place, name in enumerate(operands)}

        def strides(of: Callable[[tuple[Dim, ...]], tuple[Dim, ...]], *names: str) -> KernelField:
            return tuple((n, of(operands[n].strides)) for n in names if n in operands)

        written_names = ("states", *self.results, "errors")
        every_step = operands["emits_every_step"].strides
        order = (0, 1, 2, 3) if op.layout == 0 else (1, 2, 0, 3)
        return kernel_launch(
            RecurrentFamily.name,
            tuple(operands.values()),
            op.directions * self.batch * self.options.integer(CLUSTER, 1),
            [places[name] for name in written_names if name in places],
            part="time_steps",
            op=op.name,
            places=tuple(places.items()),
            time=self.time,
            batch=self.batch,
            hidden=op.hidden_size,
            directions=op.directions,
            is_reverse=op.direction == "reverse",
            input_forget=isinstance(op, LSTM) and bool(op.input_forget),
            late_reset=isinstance(op, GRU) and bool(op.linear_before_reset),
            # Of time, direction, batch and element.
            emits_every_step=tuple(every_step[axis] for axis in order),
            # Of direction, batch and element.
            states=strides(self.batch_second, "hidden0", "cell0", "hidden", "cell"),
            others=strides(tuple, "bias", "lengths", "peepholes"),
            **self.options,
        )

    def batch_second(self, of_axes: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return what belongs to three axes, with the batch second in either layout of the op."""
        first, second, third = of_axes
        return of_axes if self.op.layout == 0 else (second, first, third)


def _floats(workspace: View, first: Dim, count: Dim) -> View:
    """Return a part of the workspace as float32."""
    offset = workspace.offset + first * _FLOAT_BYTES
    return View(workspace.buffer, offset, DType.FLOAT32, (count,), (1,))


class _InputProjectionWriter(KernelWriter):
    """Writer of ``x @ W^T`` of each direction, with both biases."""

    @override
    def write(self) -> str:
        s, k = self.s, self.k
        time_steps, batch, rows, width = map(s.extent, k["extents"])
        along_time, along_batch, along = k["strides"]
        bm, bn, bk = k["tile"]
        column_tiles = f"(({rows} + {bn - 1}) // {bn})"
        row_tiles = f"(({time_steps} + {bm - 1}) // {bm})"
        s.line("program = tl.program_id(0).to(tl.int64)")
        s.line(f"column = (program % {column_tiles}) * {bn} + tl.arange(0, {bn})")
        s.line(f"m = ((program // {column_tiles}) % {row_tiles}) * {bm} + tl.arange(0, {bm})")
        s.line(f"way = program // ({column_tiles} * {row_tiles})")
        s.line(f"row_ok = (m < {time_steps})[:, None]")
        s.line(f"column_ok = (column < {rows})[None, :]")
        row_offset = s.sum_of((f"m // {batch}", along_time), (f"m % {batch}", along_batch))
        s.line(f"line = ({row_offset} + m * 0)[:, None]")
        s.line(f"acc = tl.zeros([{bm}, {bn}], tl.float32)")
        of_way, of_column, of_k = k["weights"]
        with s.block(f"for start in range(0, {width}, {bk}):"):
            s.line(f"k = start + tl.arange(0, {bk})")
            s.line(f"ok = row_ok & (k < {width})[None, :]")
            step = s.sum_of(("k", along))
            s.line(f"a = tl.load(p0 + line + ({step})[None, :], mask=ok, other=0.0)")
            line = s.sum_of(("way", of_way), ("column", of_column))
            weights = f"({line} + column * 0)[None, :] + ({s.sum_of(('k', of_k))} + k * 0)[:, None]"
            s.line(f"ok = column_ok & (k < {width})[:, None]")
            s.line(f"b = tl.load(p1 + {weights}, mask=ok, other=0.0)")
            s.line(f'acc = tl.dot(a.to(b.dtype), b, acc, input_precision="{k["input_precision"]}")')
        if k["has_bias"]:
            self.add_biases(rows)
        entered = 2 + k["has_bias"]
        result_offset = f"((way * {time_steps} + m) * {rows})[:, None] + column[None, :]"
        s.store(entered, result_offset, "acc", "row_ok & column_ok")
        if k["cleared_words"]:
            self.clear(s.extent(k["cleared_words"]))
        return s.text()

    def add_biases(self, rows: str) -> None:
        """Write the sum of the input biases and the recurrent ones that no reset gate precedes."""
        s, (of_way, of_column) = self.s, self.k["biases"]
        line = s.sum_of(("way", of_way), ("column", of_column))
        at = f"({line} + column * 0)[None, :]"
        s.line(f"own = tl.load(p2 + {at}, mask=column_ok, other=0.0)")
        recurrent_mask = f"column_ok & (column < {self.k['recurrent_biases']})[None, :]"
        recurrent_offset = s.sum_of((rows, of_column))
        s.line(f"other = tl.load(p2 + {at} + {recurrent_offset}, mask={recurrent_mask}, other=0.0)")
        s.line("acc = acc + own.to(tl.float32) + other.to(tl.float32)")

    def clear(self, words: str) -> None:
        """Write a loop that sets the words of the last operand to zero, divided among programs."""
        s, stop_and_step = self.s, f"{words}, tl.num_programs(0) * {_CLEARED_WORDS}"
        with s.block(f"for first in range(tl.program_id(0) * {_CLEARED_WORDS}, {stop_and_step}):"):
            s.line(f"i = first + tl.arange(0, {_CLEARED_WORDS})")
            s.store(self.last, "i", "i * 0", f"i < {words}")
