"""Family of local response normalisation, in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fused_programs import layouts_of
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view
from smelt.backends.cuda._cost_model import guessed_extent, memory_seconds
from smelt.backends.cuda._elementwise import literal
from smelt.backends.cuda._kernel_source import Source, operand_parameters
from smelt.backends.cuda._pointwise import tile_side, write_element_offsets
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.engine import KernelSpec, Launch, parameters
from smelt.ops import LRN
from smelt.types import TensorFormat, ceil_div, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import Step
    from smelt.ir import Node

_ELEMENTS: Final = 1024
"""Elements of the result per program. Chosen without a measurement."""
_MAX_NEIGHBOURS: Final = 256
"""Maximum number of neighbours of an element. Chosen without a measurement."""


class LrnFamily(Family[CudaTarget]):
    """Family of LRN; each element loads all its neighbours, which are in the L1 cache."""

    name: ClassVar[str] = "lrn"
    supports_reduced_precision: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, LRN):
            return
        kind = node.output.tensor
        if kind.dtype not in FLOATS:
            yield Refusal(self.name, f"{kind.dtype.value} is not supported")
            return
        if _neighbours(node.op) > _MAX_NEIGHBOURS:
            yield Refusal(self.name, f"more than {_MAX_NEIGHBOURS} neighbours")
            return
        for layout in layouts_of(kind.rank):
            fmt = TensorFormat(kind.dtype, layout)
            yield Tactic(self.name, (), (fmt,), (fmt,), cost_hint=memory_seconds(node, target))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        op = node.op
        assert isinstance(op, LRN)  # noqa: S101  (it has tactics)
        x, out = input_view(operands, 0), operands.outputs[0]
        order = tactic.outputs[0].layout.axis_order(len(out.shape))
        scalars = LaunchScalars()
        column_tile = tile_side(guessed_extent(out.shape[order[-1]]), _ELEMENTS)
        row_tile = _ELEMENTS // column_tile
        places = element_count(tuple(out.shape[a] for a in order[:-1]))
        axes = tuple(
            (*scalars.all_json((out.shape[a], x.strides[a], out.strides[a])), a in _region(op))
            for a in order
        )
        spec = KernelSpec(
            self.name,
            parameters(
                axes=axes,
                size=op.size,
                scale=op.alpha / _neighbours(op),
                power=-op.beta,
                bias=op.bias,
                places=scalars.json(places),
                tile=(row_tile, column_tile),
                num_warps=4,
                num_stages=1,
                **operand_parameters((x, out), len(scalars.values)),
            ),
        )
        chunks = ceil_div(places, row_tile) * ceil_div(out.shape[order[-1]], column_tile)
        return (Launch(spec, (x, out), (1,), scalars.values, chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return _write(kernel)


def _region(op: LRN) -> tuple[int, ...]:
    """Return the axes along which neighbours lie."""
    return (2, 3) if op.region == "within_channel" else (1,)


def _neighbours(op: LRN) -> int:
    """Return the number of neighbours of an element."""
    return int(op.size ** len(_region(op)))


def _write(kernel: KernelSpec) -> str:
    """Return the text of the kernel."""
    s = Source(kernel)
    axes: Any = kernel["axes"]
    size = kernel["size"]
    pad_before = (size - 1) // 2
    places = write_element_offsets(s, axes, kernel["tile"], kernel["places"])
    s.line(f"at = {s.sum_of(*((p, axis[1]) for p, axis in zip(places, axes, strict=True)))}")
    region_axes = [(p, axis) for p, axis in zip(places, axes, strict=True) if axis[3]]
    taps = [f"t{n}" for n in range(len(region_axes))]
    s.line(f"acc = tl.zeros([{kernel['tile'][0]}, {kernel['tile'][1]}], tl.float32)")
    with s.block(f"for tap in tl.static_range(0, {size ** len(region_axes)}):"):
        s.unravel("tap", [size] * len(region_axes), taps)
        inside = ["m"]
        for tap, (place, (extent, *_)) in zip(taps, region_axes, strict=True):
            coordinate = f"({place} + {tap} - {pad_before})"
            inside += [f"({coordinate} >= 0)", f"({coordinate} < {s.extent(extent)})"]
        steps = (
            (f"{t} - {pad_before}", axis[1]) for t, (_, axis) in zip(taps, region_axes, strict=True)
        )
        s.line(f"shift = {s.sum_of(*steps)}")
        s.line(f"x = {s.load(0, 'at + shift', ' & '.join(inside))}")
        s.line("acc += x * x")
    s.line(f"base = {literal(kernel['bias'])} + {literal(kernel['scale'])} * acc")
    s.line(f"v = {s.load(0, 'at', 'm')} * tl.exp2({literal(kernel['power'])} * tl.log2(base))")
    s.store(1, s.sum_of(*((p, axis[2]) for p, axis in zip(places, axes, strict=True))), "v", "m")
    return s.text()
