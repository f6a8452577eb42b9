"""Family of transposed convolutions: each output position gathers the taps that reach it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from smelt.backends._base import Operands, Refusal, Tactic
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view
from smelt.backends.cuda._cost_model import count_of
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import operand_parameters
from smelt.backends.cuda._product_costs import deconvolution_seconds
from smelt.backends.cuda._window_writer import WindowWriter, axes_of, windows_of
from smelt.backends.cuda.families._conv_problem import ImageProblem
from smelt.backends.cuda.families._gemm_operands import as_factor, factor_type, weights_of
from smelt.engine import KernelSpec, Launch, parameters
from smelt.ir import Constant
from smelt.ops import ConvTranspose, Reshape, Transpose
from smelt.types import ceil_div, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Step
    from smelt.ir import Node

_ROWS: Final = 64
"""Rows of a tile. Chosen without a measurement."""
_SIDES: Final = (16, 32)
"""Columns and reduction steps of tiles, for small extents and for others. Chosen without a
measurement."""


class _DeconvProblem(ImageProblem):
    """A transposed convolution, whose weights have the input's channels first."""

    @override
    def unsupported_reason(self) -> str | None:
        is_empty = 0 in self.filter_shape
        return super().unsupported_reason() or ("the reduction is empty" if is_empty else None)


class DeconvFamily(CudaFamily):
    """Rows are output positions, columns output channels; strides exclude most taps."""

    name: ClassVar[str] = "deconv"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root = root_of(node)[0]
        if not isinstance(root, ConvTranspose):
            return
        problem = _DeconvProblem(node)
        if problem.reason:
            yield Refusal(self.name, problem.reason)
            return
        depth, _, *window = problem.filter_shape
        products = count_of(node.output) * depth // root.group * prod(window)
        seconds = deconvolution_seconds(node, products, target)
        inputs, output = problem.formats
        yield Tactic(self.name, (), inputs, (output,), cost_hint=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = weights_of(node)
        depth, columns, *window = _DeconvProblem(node).filter_shape
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
        problem = _DeconvProblem(node)
        x, out = input_view(operands, 0), operands.outputs[0]
        extras = problem.extras(operands)
        views = [x, operands.packed[0], *(view for view, _ in extras), out]
        strides = [strides for _, strides in extras] + [out.strides]
        scalars = LaunchScalars()
        depth, columns, *_ = problem.filter_shape
        positions = element_count((out.shape[0], *out.shape[2:]))
        sides = [_SIDES[e > _SIDES[0]] for e in (columns, depth // root.group)]
        spec = KernelSpec(
            self.name,
            parameters(
                axes=axes_of(x, out, strides, scalars),
                windows=windows_of(root, x, scalars, pads=1),
                group=root.group,
                depth=depth // root.group,
                columns=columns,
                places=scalars.json(positions),
                tile=(_ROWS, *sides),
                **problem.epilogue_fields(),
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


class _DeconvWriter(WindowWriter):
    """Writer of the kernel of one spec."""

    weights: ClassVar[int] = 1

    def write(self) -> str:
        """Return the text of the kernel."""
        s, k = self.s, self.k
        self.find_tile()
        s.line(f"acc = tl.zeros([{self.rows}, {self.columns}], tl.float32)")
        with s.block(f"for tap in range(0, {prod(w[0] for w in self.windows)}):"):
            self.take_tap()
        value = "acc"
        read = self.extra_reader()
        if k["bias"]:
            s.line(f"v = acc + {read(0)}")
            value = "v"
        return self.finish(read, value)

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
        depth, steps = k["depth"], k["tile"][2]
        with s.block(f"for begin in range(0, {depth}, {steps}):"):
            s.line(f"q = begin + tl.arange(0, {steps})")
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
