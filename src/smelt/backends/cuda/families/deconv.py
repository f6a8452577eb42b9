"""Family of transposed convolutions: each output position gathers the taps that reach it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends._base import Operands, Tactic, refuse_if
from smelt.backends._fused_programs import root_as, root_of
from smelt.backends._node_operands import input_view
from smelt.backends.cuda._cost_model import count_of
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import KernelWriter, kernel_launch
from smelt.backends.cuda._product_costs import deconvolution_seconds
from smelt.backends.cuda._window_writer import WindowWriter, axes_of, windows_of
from smelt.backends.cuda.families._conv_problem import ImageProblem
from smelt.backends.cuda.families._product_operands import (
    as_factor,
    factor_type,
    reshaped,
    weights_of,
)
from smelt.ir import Constant
from smelt.ops import ConvTranspose, Transpose
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
        return super().unsupported_reason() or ("the weights are empty" if is_empty else None)


class _DeconvWriter(WindowWriter):
    """Writer of a transposed convolution."""

    weights: ClassVar[int] = 1

    @override
    def write(self) -> str:
        s, k = self.s, self.k
        self.find_tile()
        s.line(f"acc = tl.zeros([{self.rows}, {self.columns}], tl.float32)")
        with s.block(f"for tap in range(0, {self.taps}):"):
            self.take_tap()
        if k["bias"]:
            s.line(f"v = acc + {self.read(0)}")
        return self.finish("v" if k["bias"] else "acc")

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
        s.coordinates("tap", self.windows, "t")
        inside, terms = ["i_ok"], [("n", self.axes[0][1])]
        for a, (_, window_stride, dilation, pad_before, extent, stride) in enumerate(self.windows):
            s.line(f"u{a} = d{a} + {pad_before} - t{a} * {dilation}")
            s.line(f"h{a} = u{a} // {window_stride}")
            inside += [f"(u{a} >= 0)", f"(u{a} % {window_stride} == 0)"]
            inside.append(f"(h{a} < {s.extent(extent)})")
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
            row = f"((group * {self.taps} + tap) * {depth} + q)[:, None] * {k['columns']}"
            ok = "q_ok[:, None] & j_ok[None, :]"
            s.line(f"w = tl.load(p1 + ({row} + j[None, :]), mask={ok}, other=0.0)")
            s.line("acc = tl.dot(x, w, acc, input_precision='ieee')")


class DeconvFamily(CudaFamily):
    """Rows are output positions, columns output channels; strides exclude most taps."""

    name: ClassVar[str] = "deconv"
    writer: ClassVar[type[KernelWriter]] = _DeconvWriter

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        root = root_of(node)[0]
        if not isinstance(root, ConvTranspose):
            return
        problem = _DeconvProblem(node)
        refuse_if(problem.reason)
        depth, _, *window = problem.filter_shape
        products = count_of(node.output) * depth // root.group * prod(window)
        seconds = deconvolution_seconds(node, products, target)
        inputs, output = problem.formats
        yield Tactic(self.name, (), inputs, (output,), estimated_seconds=seconds)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        weights = weights_of(node)
        depth, columns, *window = _DeconvProblem(node).filter_shape
        group = root_as(ConvTranspose, node).group
        shape = (group, depth // group, columns, prod(window))
        packed = reshaped(weights, f"{weights.name}.groups", *shape)
        packed = Constant.derive(f"{weights.name}.taps_first", Transpose((0, 3, 1, 2)), packed)
        return (as_factor(packed, factor_type(tactic), tactic),)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = root_as(ConvTranspose, node)
        problem = _DeconvProblem(node)
        x, out = input_view(operands, 0), operands.outputs[0]
        extras = problem.extras(operands)
        depth, columns, *_ = problem.filter_shape
        positions = element_count((out.shape[0], *out.shape[2:]))
        sides = [_SIDES[e > _SIDES[0]] for e in (columns, depth // root.group)]
        launch = kernel_launch(
            self.name,
            [x, operands.packed[0], *(view for view, _ in extras), out],
            root.group * ceil_div(columns, sides[0]) * ceil_div(positions, _ROWS),
            axes=axes_of(x, out, extras),
            windows=windows_of(root, x, pads_per_axis=1),
            group=root.group,
            depth=depth // root.group,
            columns=columns,
            places=positions,
            tile=(_ROWS, *sides),
            num_stages=2,
            **problem.epilogue_fields(),
        )
        return (launch,)
