"""Family of Gather and GatherElements along one axis, by run-time or constant indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import NodeRefusedError, Operands, Tactic
from smelt.backends._fused_programs import root_of
from smelt.backends._iteration_space import (
    Axis,
    coalesce_axes,
    gather_axes,
    gather_elements_axes,
    sort_axes,
)
from smelt.backends._node_operands import error_words_of, input_view, required_input
from smelt.backends.cuda._cost_model import LAUNCH_SECONDS, count_of
from smelt.backends.cuda._elementwise import write_stages
from smelt.backends.cuda._elementwise_kernel import fields_of, tile_side
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda._kernel_source import KernelWriter, kernel_launch
from smelt.backends.cuda.families._epilogue import FLOATS, extra_views, plan_epilogue
from smelt.ops import Gather, GatherElements
from smelt.types import (
    DType,
    Layout,
    TensorFormat,
    ceil_div,
    element_count,
    guessed_extent,
    override,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Step
    from smelt.ir import Node
    from smelt.types import Dim

_ELEMENTS: Final = 1024
"""Elements of the result per program. Chosen without a measurement."""
_SECONDS_PER_BYTE: Final = 1e-12
"""Assumed time per byte of the result, in seconds. Chosen without a measurement."""


class _GatherWriter(KernelWriter):
    """Writer of a gather."""

    @override
    def write(self) -> str:
        s, k = self.s, self.k
        last = self.last - 1
        """Number of the result's operand; the error words follow."""
        axes: Any = k["axes"]
        width, extent = s.extent(axes[-1][0]), s.extent(k["extent"])
        s.find_tile("j", width, k["tile"])
        s.line(f"i_ok = i < {s.extent(k['lines'])}")
        s.line(f"m = i_ok[:, None] & (j < {width})[None, :]")
        names = s.coordinates("i", axes[:-1], "c")
        line = [f"({s.offset(names, axes[:-1], n)} + i * 0)[:, None]" for n in range(last + 1)]
        item = [f"({s.offset(['j'], axes[-1:], n)} + j * 0)[None, :]" for n in range(last + 1)]
        index_offset, index_mask = f"{line[1]} + {item[1]}", "m"
        if axes[-1][2] == 0:  # all elements of a line have the same index
            index_offset, index_mask = line[1], "i_ok[:, None]"
        s.line(f"given = tl.load(p1 + {index_offset}, mask={index_mask}, other=0).to(tl.int64)")
        s.line(f"index = tl.where(given < 0, given + {extent}, given)")
        s.line(f"inside = (index >= 0) & (index < {extent})")
        s.write_index_error(self.last, "given", extent, f"{index_mask} & (inside == 0)")
        data_offset = f"{s.sum_of(('index', k['stride']))} + {line[0]} + {item[0]}"
        s.line(f"x = tl.load(p0 + ({data_offset}), mask=m & inside, other=0)")
        offsets = [" + ".join(parts) for parts in zip(line, item, strict=True)]
        result = "x"
        if k["stages"]:
            s.line("x = x.to(tl.float32)")
            read = s.extra_reader(2, lambda operand: s.load(operand, offsets[operand], "m"))
            result = write_stages(s.line, k["stages"], read, ["x"])
        s.store(last, offsets[last], result, "m")
        return s.text()


class GatherFamily(CudaFamily):
    """Family of gathers of any element type, with a fused epilogue.

    An index out of range is reported, and its element is not read.
    """

    name: ClassVar[str] = "gather"
    writer: ClassVar[type[KernelWriter]] = _GatherWriter

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(root_of(node)[0], Gather | GatherElements):
            return
        data, indices = required_input(node, 0).tensor, required_input(node, 1).tensor
        if indices.dtype not in (DType.INT32, DType.INT64):
            raise NodeRefusedError(
                f"the indices are {indices.dtype.value}; only int32 and int64 are supported"
            )
        epilogue = plan_epilogue(node, Layout.LINEAR)
        if epilogue.stages and data.dtype not in FLOATS:
            raise NodeRefusedError(
                f"an epilogue is computed in float32; {data.dtype.value} data is not supported"
            )
        data_format, index_format = (TensorFormat(k.dtype, Layout.LINEAR) for k in (data, indices))
        result_bytes = count_of(node.output) * data.dtype.size_bytes
        seconds = LAUNCH_SECONDS + result_bytes * _SECONDS_PER_BYTE
        inputs = (data_format, index_format, *epilogue.formats)
        yield Tactic(self.name, (), inputs, (data_format,), estimated_seconds=seconds)

    @override
    def reports_index_errors(self, node: Node) -> bool:
        return True

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        data, indices, out = input_view(operands, 0), input_view(operands, 1), operands.outputs[0]
        root, extras = root_of(node)[0], extra_views(node, operands)
        axis = getattr(root, "axis", 0) % required_input(node, 0).tensor.rank
        make_axes = gather_elements_axes if isinstance(root, GatherElements) else gather_axes
        axes = _with_extras(make_axes(data, indices, out, axis), [strides for _, strides in extras])
        views = (data, indices, *(view for view, _ in extras), out, error_words_of(node, operands))
        column_tile = tile_side(guessed_extent(axes[-1].extent), _ELEMENTS)
        lines = element_count(tuple(a.extent for a in axes[:-1]))
        row_tile = min(_ELEMENTS // column_tile, tile_side(guessed_extent(lines), _ELEMENTS))
        launch = kernel_launch(
            self.name,
            views,
            ceil_div(lines, row_tile) * ceil_div(axes[-1].extent, column_tile),
            (len(views) - 2, len(views) - 1),
            axes=fields_of(axes),
            extent=data.shape[axis],
            stride=data.strides[axis],
            lines=lines,
            tile=(row_tile, column_tile),
            stages=plan_epilogue(node, Layout.LINEAR).stages,
        )
        return (launch,)


def _with_extras(axes: list[Axis], extras: Sequence[tuple[Dim, ...]]) -> list[Axis]:
    """Return the coalesced axes with the strides of epilogue operands before the result's."""
    extended = [
        Axis(axis.extent, (*axis.strides[:2], *(e[number] for e in extras), axis.strides[2]))
        for number, axis in enumerate(axes)
    ]
    unit_axis = Axis(1, (0,) * (3 + len(extras)))
    coalesced = coalesce_axes(sort_axes([a for a in extended if a.extent != 1], -1)) or [unit_axis]
    return [unit_axis, *coalesced] if len(coalesced) == 1 else coalesced
