"""Family of transposed convolutions: each output position gathers the taps that reach it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda._cost_model import count_of, memory_seconds
from smelt.backends.cuda._elementwise import write_stages
from smelt.backends.cuda._kernel_source import Source, operand_parameters
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import (
    FLOATS,
    extra_views,
    plan_epilogue,
    planned_epilogue,
)
from smelt.backends.cuda.families._gemm_operands import as_factor, factor_type, weights_of
from smelt.engine import KernelSpec, Launch, parameters
from smelt.ir import Constant
from smelt.ops import ConvTranspose, Reshape, Transpose
from smelt.types import Layout, TensorFormat, ceil_div, element_count, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import Json, Step, View
    from smelt.ir import Node
    from smelt.types import Dim

_ROWS: Final = 64
"""Rows of a tile. Chosen without a measurement."""
_SIDES: Final = (16, 32)
"""Columns and reduction steps of tiles, for small extents and for others. Chosen without a
measurement."""
_FLOPS: Final = 1.0e13
"""Assumed flop/s of the kernel. Chosen without a measurement."""


class DeconvFamily(Family[CudaTarget]):
    """Rows are output positions, columns output channels; strides exclude most taps."""

    name: ClassVar[str] = "deconv"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, count = root_of(node)
        if not isinstance(root, ConvTranspose):
            return
        epilogue = plan_epilogue(node, Layout.CHANNELS_LAST, _bias_count(node))
        reason = _unsupported_reason(node) or (epilogue if isinstance(epilogue, str) else None)
        if reason or isinstance(epilogue, str):
            yield Refusal(self.name, str(reason))
            return
        kind = required_input(node, 0).tensor.dtype
        image = TensorFormat(kind, Layout.CHANNELS_LAST)
        bias = [TensorFormat(kind, Layout.LINEAR) if _bias_count(node) else None][: count - 2]
        depth, _, *window = _extents(node)
        flops = 2.0 * count_of(node.output) * depth // root.group * prod(window)
        seconds = memory_seconds(node, target) + flops / _FLOPS
        yield Tactic(
            self.name, (), (image, None, *bias, *epilogue.formats), (image,), cost_hint=seconds
        )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = weights_of(node)
        depth, columns, *window = _extents(node)
        group = root_as(ConvTranspose, node).group
        shape = np.array([group, depth // group, columns, prod(window)], np.int64)
        packed = Constant.derive(
            f"{weights.name}.groups", Reshape(), weights, Constant(f"{weights.name}.shape", shape)
        )
        packed = Constant.derive(f"{weights.name}.taps_first", Transpose((0, 3, 1, 2)), packed)
        return (as_factor(packed, factor_type(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(ConvTranspose, node)
        x, out = input_view(operands, 0), operands.outputs[0]
        extras = _extras(node, operands)
        views = [x, operands.packed[0], *(view for view, _ in extras), out]
        strides = [strides for _, strides in extras] + [out.strides]
        scalars = LaunchScalars()
        depth, columns, *_ = _extents(node)
        order = (0, *range(2, len(out.shape)), 1)
        positions = element_count(tuple(out.shape[a] for a in order[:-1]))
        sides = [_SIDES[e > _SIDES[0]] for e in (columns, depth // root.group)]
        spec = KernelSpec(
            self.name,
            parameters(
                axes=tuple(
                    scalars.all_json((out.shape[a], x.strides[a], *(s[a] for s in strides)))
                    for a in order
                ),
                windows=_windows(root, x, scalars),
                group=root.group,
                depth=depth // root.group,
                columns=columns,
                places=scalars.json(positions),
                tile=(_ROWS, *sides),
                bias=bool(_bias_count(node)),
                stages=planned_epilogue(node, Layout.CHANNELS_LAST, _bias_count(node)).stages,
                num_warps=4,
                num_stages=2,
                **operand_parameters(views, len(scalars.values)),
            ),
        )
        chunks = root.group * ceil_div(columns, sides[0]) * ceil_div(positions, _ROWS)
        return (Launch(spec, tuple(views), (len(views) - 1,), scalars.values, chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return _DeconvWriter(kernel).write()


def _windows(root: ConvTranspose, x: View, scalars: LaunchScalars) -> tuple[Json, ...]:
    """Return, per axis: taps, stride, dilation, padding before, input extent and stride."""
    return tuple(
        (
            root.kernel_shape[a],
            root.strides[a],
            root.dilations[a],
            root.pad_pairs[a][0],
            *scalars.all_json((x.shape[2 + a], x.strides[2 + a])),
        )
        for a in range(len(root.kernel_shape))
    )


def _bias_count(node: Node) -> int:
    """Return the number of epilogue operands that are the bias: 0 or 1."""
    return int(root_of(node)[1] > 2 and node.inputs[2] is not None)


def _extents(node: Node) -> tuple[int, ...]:
    """Return input channels, output channels of a group, and the window."""
    return fixed_shape(required_input(node, 1).tensor.shape)


def _unsupported_reason(node: Node) -> str | None:
    """Return why the family cannot run a node, or None."""
    kind = required_input(node, 0).tensor.dtype
    if kind not in FLOATS:
        return f"supports floating-point types only, not {kind.value}"
    if required_input(node, 1).constant is None:
        return f"the weights {required_input(node, 1).name} are not constant"
    return "the reduction is empty" if 0 in _extents(node) else None


def _extras(node: Node, operands: Operands) -> list[tuple[View, tuple[Dim, ...]]]:
    """Return the bias and the epilogue operands, with strides along the result."""
    extras = extra_views(node, operands)
    if _bias_count(node):
        bias, rank = input_view(operands, 2), len(operands.outputs[0].shape)
        strides = tuple(bias.strides[0] if axis == 1 else 0 for axis in range(rank))
        extras.insert(0, (bias, strides))
    return extras


class _DeconvWriter:
    """Writer of the kernel of one spec."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.axes: Any = kernel["axes"]
        self.windows: Any = kernel["windows"]
        self.rows, self.columns, self.steps = kernel["tile"]
        self.names = ["n", *(f"d{a}" for a in range(len(self.windows)))]

    def write(self) -> str:
        """Return the text of the kernel."""
        s, k = self.s, self.k
        self.find_tile()
        s.line(f"acc = tl.zeros([{self.rows}, {self.columns}], tl.float32)")
        with s.block(f"for tap in range(0, {prod(w[0] for w in self.windows)}):"):
            self.take_tap()
        value = "acc"
        read = s.extra_reader(2, self.place, "m")
        if k["bias"]:
            s.line(f"v = acc + {read(0)}")
            value = "v"
        result = write_stages(s.line, k["stages"], read, [value])
        last = len(s.dtypes) - 1
        s.store(last, self.place(last), result, "m")
        return s.text()

    def find_tile(self) -> None:
        """Write the coordinates of the program's positions and channels."""
        s, k = self.s, self.k
        column_tiles = -(-k["columns"] // self.columns)
        s.line("program = tl.program_id(0).to(tl.int64)")
        s.line(f"j = (program % {column_tiles}) * {self.columns} + tl.arange(0, {self.columns})")
        s.line(f"group = (program // {column_tiles}) % {k['group']}")
        first = f"(program // {column_tiles * k['group']}) * {self.rows}"
        s.line(f"i = {first} + tl.arange(0, {self.rows})")
        s.line(f"j_ok = j < {k['columns']}")
        s.line(f"i_ok = i < {s.extent(k['places'])}")
        s.line("m = i_ok[:, None] & j_ok[None, :]")
        s.unravel("i", [axis[0] for axis in self.axes[:-1]], self.names)
        s.line(f"c = group * {k['columns']} + j")

    def take_tap(self) -> None:
        """Write the accumulation of one tap."""
        s, k = self.s, self.k
        taps = [f"t{a}" for a in range(len(self.windows))]
        s.unravel("tap", [w[0] for w in self.windows], taps)
        inside, terms = ["i_ok"], [("n", self.axes[0][1])]
        for a, (_, window_stride, dilation, pad_before, extent, stride) in enumerate(self.windows):
            s.line(f"u{a} = d{a} + {pad_before} - t{a} * {dilation}")
            s.line(f"h{a} = u{a} // {window_stride}")
            inside += [
                f"(u{a} >= 0)",
                f"(u{a} % {window_stride} == 0)",
                f"(h{a} < {s.extent(extent)})",
            ]
            terms.append((f"h{a}", stride))
        s.line(f"ok = {' & '.join(inside)}")
        s.line(f"base = {s.sum_of(*terms)}")
        depth = k["depth"]
        with s.block(f"for begin in range(0, {depth}, {self.steps}):"):
            s.line(f"q = begin + tl.arange(0, {self.steps})")
            s.line(f"q_ok = q < {depth}")
            channel = s.sum_of((f"group * {depth} + q", self.axes[-1][1]))
            x = f"base[:, None] + ({channel})[None, :]"
            s.line(f"x = tl.load(p0 + ({x}), mask=ok[:, None] & q_ok[None, :], other=0.0)")
            count = prod(w[0] for w in self.windows)
            row = f"((group * {count} + tap) * {depth} + q)[:, None] * {k['columns']}"
            s.line(
                f"w = tl.load(p1 + ({row} + j[None, :]), "
                "mask=q_ok[:, None] & j_ok[None, :], other=0.0)"
            )
            s.line("acc = tl.dot(x, w, acc, input_precision='ieee')")

    def place(self, operand: int) -> str:
        """Return the offsets of an operand's elements."""
        # Axes have no stride for the weights (operand 1): later operands are one place earlier.
        number = operand - 1
        row_offset = f"i * 0 + {self.s.offset(self.names, self.axes[:-1], number)}"
        column_offset = f"c * 0 + {self.s.sum_of(('c', self.axes[-1][1 + number]))}"
        return f"({row_offset})[:, None] + ({column_offset})[None, :]"
