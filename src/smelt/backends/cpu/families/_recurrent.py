"""Shared parts of the LSTM and GRU kernels: packed gates, input projection, loops over time steps.

The input projection of all time steps is one launch of its own. It depends on no state, so one load
of the weights serves several time steps. The time steps themselves follow in a second launch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from smelt.backends import Family, LaunchScalars, NodeRefusedError, Operands, Tactic, op_as
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu import _math as m
from smelt.backends.cpu._emit import FLOAT_BYTES, Emitter, Int, Reg, vector_type
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu.families._operand_packing import (
    LINEAR,
    constant_of,
    cut,
    named,
    pad_after,
    reshape,
    transpose,
)
from smelt.engine import KernelSpec, Launch, Parameters, Step, View, parameters
from smelt.errors import InternalError
from smelt.types import Dim, DType, fixed_shape, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Constant, Node
    from smelt.ops import GRU, LSTM

X, W, R, B, LENGTHS, H, C, PEEPHOLES = range(8)
"""The inputs of a recurrent op, in ONNX's order."""


def pack_gate_panels(source: Constant, gates: int, hidden: int, lanes: int) -> Constant:
    """Pack ``[directions, gates * hidden, ...]`` as ``[directions, blocks, ..., gates, lanes]``.

    A block is one vector of units. All gates of a block are adjacent, so that a time step reads the
    weights as one contiguous stream. The last block is padded with zeros.
    """
    directions, _, *inner = fixed_shape(source.type.shape)
    blocks, depth = -(-hidden // lanes), (inner or [1])[0]
    padded = pad_after(reshape(source, directions, gates, hidden, depth), 2, -hidden % lanes, 4)
    parted = reshape(padded, directions, gates, blocks, lanes, depth)
    return named(f"{source.name} in gate panels", transpose(parted, 0, 2, 4, 1, 3))


def recurrent_options(target: CpuTarget, gates: int) -> Parameters:
    """Return the vector width, and the time steps that share one load of the input weights.

    The accumulators of all gates and time steps, one vector of weights per gate and two further
    values fit into the registers.
    """
    registers = 32 if target.vector_bits == 512 or target.architecture == "aarch64" else 16
    steps = (registers - gates - 2) // gates
    return parameters(lanes=target.vector_bits // 32, steps=steps)


def input_projection_bytes(node: Node, op: GRU | LSTM, lanes: int) -> Dim:
    """Return the bytes of the input projection: every gate at every time step."""
    shape = required_input(node, X).tensor.shape
    time_steps = shape[0] * shape[1] * op.directions
    size = time_steps * (op.gates * -(-int(op.hidden_size) // lanes) * lanes * FLOAT_BYTES)
    return FLOAT_BYTES if size == 0 else size  # an empty sequence still needs an address


def input_projection_launch(
    family: str, op: GRU | LSTM, tactic: Tactic, operands: Operands, packed: Sequence[View]
) -> tuple[Launch, View]:
    """Return the launch that computes the input projection, and the view of its result.

    The projection is the inputs' share of every gate at every time step. It depends on no state, so
    that weights are loaded once for several time steps, and workers divide the units among
    themselves. ``packed`` holds the packed weights and, if there is one, the bias.
    """
    x, workspace, options = input_view(operands, X), operands.workspace, tactic.options
    if workspace is None:
        raise InternalError(f"{family} requires a workspace")
    lanes, hidden = options.integer("lanes"), int(op.hidden_size)
    time, batch = (1, 0) if op.layout else (0, 1)
    blocks, scalars = -(-hidden // lanes), LaunchScalars()
    size = x.shape[time] * x.shape[batch] * (op.directions * op.gates * blocks * lanes)
    sums = replace(workspace, dtype=DType.FLOAT32, shape=(size,), strides=(1,))
    spec = kernel_spec(
        family,
        kernel="input_projection",
        gates=op.gates,
        steps=options["steps"],
        blocks=blocks,
        width=scalars.json(x.shape[2]),
        time=scalars.json(x.shape[time]),
        batch=scalars.json(x.shape[batch]),
        bias=len(packed) > 1,
        x=scalars.all_json((x.strides[time], x.strides[batch])),
    )
    views = (x, *packed, sums)
    chunks = x.shape[batch] * (op.directions * blocks)
    return Launch(spec, views, (len(views) - 1,), scalars.values, chunks), sums


class _GateKernelWriter:
    """Base of the writers of recurrent kernels: units in blocks of one vector, gate by gate."""

    def __init__(self, kernel: KernelSpec, lanes: int, gates: int, operands: int) -> None:
        self.k = kernel
        self.e = Emitter(kernel.symbol, operands)
        self.lanes = lanes
        self.vector = vector_type("float", lanes)
        self.gates = gates
        self.cell_bytes = gates * lanes * FLOAT_BYTES
        """Bytes of one vector for each gate of a block."""

    def load_gates(self, cell: Reg, gates: Sequence[int]) -> tuple[Reg, ...]:
        """Load the vectors of some gates of a block."""
        e = self.e
        return tuple(e.load(self.vector, e.at(cell, g * self.lanes * FLOAT_BYTES)) for g in gates)

    def multiply(
        self,
        sources: Sequence[Reg],
        extent: Int,
        panels: Sequence[Reg],
        gates: Sequence[int],
        sums: Sequence[Reg],
    ) -> list[tuple[Reg, ...]]:
        """Return ``sums`` plus the product of every source vector with every panel.

        Args:
            sources: addresses of the vectors.
            extent: length of the vectors in elements.
            panels: addresses of the packed weights.
            gates: the gates to compute.
            sums: initial accumulators by source, panel and gate.

        Returns:
            For each source and panel, the sums of the gates.
        """
        e = self.e
        with e.loop(0, extent, carried=sums) as steps:
            offset = e.mul(steps.index, self.cell_bytes)
            weights = [w for p in panels for w in self.load_gates(e.at(p, offset), gates)]
            carry: list[Reg] = []
            for source in sources:
                element = e.load("float", e.at(source, e.mul(steps.index, FLOAT_BYTES)))
                broadcast, count = e.splat(element, self.lanes), len(carry)
                before = steps.values[count : count + len(weights)]
                carry += [
                    m.multiply_add(e, broadcast, w, s) for w, s in zip(weights, before, strict=True)
                ]
            steps.carry = tuple(carry)
        count = len(gates)
        return [steps.values[i : i + count] for i in range(0, len(steps.values), count)]


class InputProjectionWriter(_GateKernelWriter):
    """Writes the kernel of `input_projection_launch`; a chunk is a block of units of a sequence."""

    def __init__(self, kernel: KernelSpec, lanes: int) -> None:
        super().__init__(kernel, lanes, kernel["gates"], 3 + kernel["bias"])

    def write(self) -> str:
        """Write the loops over chunks and groups of time steps, and return the module."""
        e, k = self.e, self.k
        time, batch, blocks = e.extent(k["time"]), e.extent(k["batch"]), k["blocks"]
        stride, item_stride = (e.mul(e.extent(s), FLOAT_BYTES) for s in k["x"])
        with e.loop(e.begin, e.end) as chunk:
            block = e.mod(chunk.index, blocks)
            sequence = e.div(chunk.index, blocks)
            direction, item = e.div(sequence, batch), e.mod(sequence, batch)
            position = e.add(e.mul(direction, blocks), block)
            panel = e.at(
                e.pointer(1), e.mul(position, e.mul(e.extent(k["width"]), self.cell_bytes))
            )
            bias = e.at(e.pointer(2), e.mul(position, self.cell_bytes)) if k["bias"] else None
            row = blocks * self.cell_bytes
            projection = e.at(e.pointer(2 + k["bias"]), e.mul(sequence, e.mul(time, row)))
            projection = e.at(projection, e.mul(block, self.cell_bytes))
            x = e.at(e.pointer(0), e.mul(item, item_stride))
            for time_step, count in e.vector_steps(0, time, k["steps"]):
                time_steps = [e.add(time_step, i) for i in range(count)]
                sources = [e.at(x, e.mul(m, stride)) for m in time_steps]
                targets = [e.at(projection, e.mul(m, row)) for m in time_steps]
                self._write_time_steps(sources, targets, panel, bias)
        return e.module()

    def _write_time_steps(
        self, sources: Sequence[Reg], targets: Sequence[Reg], panel: Reg, bias: Reg | None
    ) -> None:
        """Write the projection of some time steps for one block of units."""
        e, gates = self.e, range(self.gates)
        start = (e.constant(0.0, self.vector),) * self.gates
        if bias is not None:
            start = self.load_gates(bias, gates)
        width = e.extent(self.k["width"])
        totals = self.multiply(sources, width, [panel], gates, start * len(sources))
        for target, sums in zip(targets, totals, strict=True):
            for gate, value in enumerate(sums):
                e.store(value, e.at(target, gate * self.lanes * FLOAT_BYTES))


class RecurrentWriter(_GateKernelWriter, ABC):
    """Writes the kernel of the time steps; a chunk is one sequence in one direction."""

    def __init__(self, kernel: KernelSpec, lanes: int, gates: int, operands: int) -> None:
        super().__init__(kernel, lanes, gates, operands)
        self.hidden: int = kernel["hidden"]
        self.blocks = -(-self.hidden // lanes)
        self.row_bytes = self.blocks * self.cell_bytes
        self.panel_bytes = self.hidden * self.cell_bytes
        """Bytes of a block's recurrent weights."""

    def write(self) -> str:
        """Write the loops over sequences and time steps, and return the module."""
        e, k = self.e, self.k
        time, batch = e.extent(k["time"]), e.extent(k["batch"])
        with e.loop(e.begin, e.end) as chunk:
            direction, item = e.i64(e.div(chunk.index, batch)), e.i64(e.mod(chunk.index, batch))
            self.begin(direction, item)
            input_projection = e.at(e.pointer(0), e.mul(chunk.index, e.mul(time, self.row_bytes)))
            runs_in_reverse = e.constant(1, "i1") if k["reverse"] else e.compare("eq", direction, 1)
            with e.loop(0, time) as steps:
                mirrored = e.i64(e.sub(e.sub(time, 1), steps.index))
                time_step = e.select(runs_in_reverse, mirrored, steps.index)
                projected = e.at(input_projection, e.mul(time_step, self.row_bytes))
                self.step(projected, time_step, direction, item)
        return e.module()

    @abstractmethod
    def begin(self, direction: Reg, item: Reg) -> None:
        """Write the states before the first time step."""

    @abstractmethod
    def step(self, input_projection: Reg, time_step: Reg, direction: Reg, item: Reg) -> None:
        """Write one time step whose input projection is at ``input_projection``."""

    def position(
        self, operand: int, strides: Sequence[Any], time_step: Int, direction: Reg, item: Reg
    ) -> Reg:
        """Return the address of a state or result for a time step, direction and batch item."""
        e = self.e
        pairs = zip((time_step, direction, item), strides, strict=True)
        offset = e.sum(e.mul(index, e.mul(e.extent(s), FLOAT_BYTES)) for index, s in pairs)
        return e.at(e.pointer(operand), offset)

    def mask(self, block: Int) -> Reg:
        """Return the mask of the lanes of a block that are units, not padding."""
        remaining = self.e.sub(self.hidden, self.e.mul(block, self.lanes))
        return self.e.tail_mask(remaining, self.lanes)

    def copy_state(self, state: Reg, source: Reg | None) -> None:
        """Write a copy of ``source`` to a state, or zeros if it is None."""
        e = self.e
        with e.loop(0, self.blocks) as block:
            at, mask = e.mul(block.index, self.lanes * FLOAT_BYTES), self.mask(block.index)
            value = e.constant(0.0, self.vector)
            if source is not None:
                value = e.load_masked(self.vector, e.at(source, at), mask)
            e.store_masked(value, e.at(state, at), mask)


def sequence_strides(view: View, layout: int) -> tuple[Dim, ...]:
    """Return the strides of all hidden states along time step, direction and batch."""
    return (view.strides[1], view.strides[2], view.strides[0]) if layout else view.strides[:3]


def state_strides(view: View, layout: int) -> tuple[Dim, ...]:
    """Return the strides of one state along time step (0), direction and batch."""
    return (0, view.strides[1], view.strides[0]) if layout else (0, *view.strides[:2])


class RecurrentFamily(Family["CpuTarget"], ABC):
    """Base of the LSTM and GRU families: float32, constant weights, sequences of equal length."""

    op_type: ClassVar[type[GRU | LSTM]]
    """The op that the family computes."""

    @abstractmethod
    def writer(self, kernel: KernelSpec, lanes: int) -> RecurrentWriter:
        """Return the writer of the kernel of the time steps."""

    @abstractmethod
    def combine_biases(
        self, input_bias: Constant, recurrent_bias: Constant
    ) -> tuple[Constant, ...]:
        """Return the biases that the kernels read: that of the projection, that of the steps."""

    @abstractmethod
    def step_parameters(
        self, op: GRU | LSTM, operands: Operands, scalars: LaunchScalars
    ) -> Parameters:
        """Return the parameters of the time steps that only this op has."""

    def scratch_bytes(self, hidden: int, lanes: int) -> int:
        """Return the bytes of scratch memory that a time step needs."""
        del hidden, lanes
        return 0

    def check(self, node: Node, op: GRU | LSTM) -> None:
        """Check that kernels can be generated for a node."""
        if any(v is not None and v.tensor.dtype is not DType.FLOAT32 for v in node.inputs):
            raise NodeRefusedError("an input is not float32, or sequence lengths are given")
        if not op.has_default_activations:
            raise NodeRefusedError("the activations are not the default ones, or clip is set")
        if any(v is not None and v.constant is None for v in node.inputs[W : B + 1]):
            raise NodeRefusedError("the weights are not constant")
        if len(node.outputs) != 1 + op.states:
            raise NodeRefusedError(f"an output is absent; all {1 + op.states} are required")

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        op = node.op
        if not isinstance(op, self.op_type):
            return
        self.check(node, op)
        inputs = tuple(
            None if v is None or i in (W, R, B) else LINEAR for i, v in enumerate(node.inputs)
        )
        yield Tactic(
            self.name,
            recurrent_options(target, op.gates),
            inputs,
            (LINEAR,) * len(node.outputs),
            workspace_bytes=input_projection_bytes(node, op, target.vector_bits // 32),
            estimated_seconds=1e-4,
        )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        op, lanes = op_as(self.op_type, node), tactic.options.integer("lanes")
        hidden = int(op.hidden_size)
        parts = [constant_of(node.inputs[i]) for i in (W, R)]
        if len(node.inputs) > B and node.inputs[B] is not None:
            both, half = constant_of(node.inputs[B]), op.gates * hidden
            parts += self.combine_biases(cut(both, 1, 0, half), cut(both, 1, half, 2 * half))
        return tuple(pack_gate_panels(part, op.gates, hidden, lanes) for part in parts)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op, x = op_as(self.op_type, node), input_view(operands, X)
        weights, recurrent, *biases = operands.packed
        input_projection, sums = input_projection_launch(
            self.name, op, tactic, operands, (weights, *biases[:1])
        )
        states = [v for v in initial_states(op, operands) if v is not None]
        views = (sums, recurrent, *biases[1:], *states, *operands.outputs)
        time, batch = (1, 0) if op.layout else (0, 1)
        hidden, scalars = int(op.hidden_size), LaunchScalars()
        spec = kernel_spec(
            self.name,
            kernel="steps",
            hidden=hidden,
            time=scalars.json(x.shape[time]),
            batch=scalars.json(x.shape[batch]),
            reverse=op.direction == "reverse",
            **dict(self.step_parameters(op, operands, scalars)),
        )
        writes = tuple(range(len(views) - len(operands.outputs), len(views)))
        chunks = x.shape[batch] * op.directions
        scratch = self.scratch_bytes(hidden, tactic.options.integer("lanes"))
        steps = Launch(spec, views, writes, scalars.values, chunks, scratch)
        return (input_projection, steps)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        lanes = target.vector_bits // 32
        if kernel["kernel"] == "input_projection":
            return InputProjectionWriter(kernel, lanes).write()
        return self.writer(kernel, lanes).write()


def initial_states(op: GRU | LSTM, operands: Operands) -> list[View | None]:
    """Return the initial states of a node, None for one that is zero."""
    inputs = operands.inputs
    return [inputs[i] if len(inputs) > i else None for i in range(H, H + op.states)]
