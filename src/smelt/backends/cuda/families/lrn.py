"""Family of local response normalisation, in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends import op_as
from smelt.backends._base import NodeRefusedError, Operands, Tactic
from smelt.backends._fused_programs import layouts_of
from smelt.backends._node_operands import input_view
from smelt.backends.cuda._cost_model import memory_seconds
from smelt.backends.cuda._elementwise import literal
from smelt.backends.cuda._elementwise_kernel import element_launch, write_element_offsets
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import KernelWriter
from smelt.backends.cuda.families._epilogue import FLOAT_NAMES, FLOATS
from smelt.ops import LRN
from smelt.types import TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Step
    from smelt.ir import Node

_MAX_NEIGHBOURS: Final = 256
"""Maximum number of neighbours of an element. Chosen without a measurement."""


class _LrnWriter(KernelWriter):
    """Writer of a local response normalisation."""

    @override
    def write(self) -> str:
        s, k = self.s, self.k
        axes: Any = k["axes"]
        size = k["size"]
        pad_before = (size - 1) // 2
        places = write_element_offsets(s, axes, k["tile"], k["places"])
        s.line(f"at = {s.offset(places, axes, 0)}")
        region_axes = [(p, axis) for p, axis in zip(places, axes, strict=True) if axis[3]]
        taps = [f"t{n}" for n in range(len(region_axes))]
        s.line(f"acc = tl.zeros([{k['tile'][0]}, {k['tile'][1]}], tl.float32)")
        with s.block(f"for tap in tl.static_range(0, {size ** len(region_axes)}):"):
            s.unravel("tap", [size] * len(region_axes), taps)
            inside = ["m"]
            for tap, (place, (extent, *_)) in zip(taps, region_axes, strict=True):
                coordinate = f"({place} + {tap} - {pad_before})"
                inside += [f"({coordinate} >= 0)", f"({coordinate} < {s.extent(extent)})"]
            steps = [f"{tap} - {pad_before}" for tap in taps]
            s.line(f"shift = {s.offset(steps, [axis for _, axis in region_axes], 0)}")
            s.line(f"x = {s.load(0, 'at + shift', ' & '.join(inside))}")
            s.line("acc += x * x")
        s.line(f"base = {literal(k['bias'])} + {literal(k['scale'])} * acc")
        s.line(f"v = {s.load(0, 'at', 'm')} * tl.exp2({literal(k['power'])} * tl.log2(base))")
        s.store(1, s.offset(places, axes, 1), "v", "m")
        return s.text()


class LrnFamily(CudaFamily):
    """Family of LRN; each element loads all its neighbours, which are in the L1 cache."""

    name: ClassVar[str] = "lrn"
    writer: ClassVar[type[KernelWriter]] = _LrnWriter

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, LRN):
            return
        kind = node.output.tensor
        if kind.dtype not in FLOATS:
            raise NodeRefusedError(
                f"the result is {kind.dtype.value}; only {FLOAT_NAMES} are supported"
            )
        if _neighbours(node.op) > _MAX_NEIGHBOURS:
            raise NodeRefusedError(
                f"the window has {_neighbours(node.op)} elements; at most {_MAX_NEIGHBOURS} are "
                "supported"
            )
        seconds = memory_seconds(node, target)
        for layout in layouts_of(kind.rank):
            fmt = TensorFormat(kind.dtype, layout)
            yield Tactic(self.name, (), (fmt,), (fmt,), estimated_seconds=seconds)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op = op_as(LRN, node)
        x, out = input_view(operands, 0), operands.outputs[0]
        launch = element_launch(
            tactic,
            (x, out),
            [axis in _region(op) for axis in range(len(out.shape))],
            size=op.size,
            scale=op.alpha / _neighbours(op),
            power=-op.beta,
            bias=op.bias,
        )
        return (launch,)


def _region(op: LRN) -> tuple[int, ...]:
    """Return the axes along which neighbours lie."""
    return (2, 3) if op.region == "within_channel" else (1,)


def _neighbours(op: LRN) -> int:
    """Return the number of neighbours of an element."""
    return int(op.size ** len(_region(op)))
