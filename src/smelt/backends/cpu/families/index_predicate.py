"""OneHot and Trilu: elements chosen by a predicate on their index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from smelt.backends import (
    Family,
    LaunchScalars,
    NodeRefusedError,
    Operands,
    Tactic,
    linear_format,
    op_as,
)
from smelt.backends._iteration_space import iteration_axes
from smelt.backends._node_operands import constant_input, input_view, required_input
from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._loop_nest import LoopNest, write_loop_nest
from smelt.backends.cpu._refusals import check_indices
from smelt.engine import KernelSpec, Launch, Step, View
from smelt.ops import OneHot, Trilu
from smelt.types import Dim, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node


class IndexPredicateFamily(Family["CpuTarget"]):
    """OneHot and Trilu for any element type.

    The loop nest advances the element's index like the address of an operand: it is an operand with
    base address 0 and elements of one byte, so its address is the index.
    """

    name: ClassVar[str] = "index_predicate"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if not isinstance(node.op, OneHot | Trilu):
            return
        if isinstance(node.op, OneHot):
            check_indices(required_input(node, 0))
        elif any(v is not None and v.constant is None for v in node.inputs[1:]):
            raise NodeRefusedError("the diagonal is not constant")
        inputs = tuple(
            None if v is None or i == 1 else linear_format(v) for i, v in enumerate(node.inputs)
        )
        result = (linear_format(node.output),)
        yield Tactic(self.name, (), inputs, result, estimated_seconds=5e-6)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        source, result = input_view(operands, 0), operands.outputs[0]
        if isinstance(node.op, Trilu):
            k = constant_input(node, 1)
            rank = len(result.shape)
            # The index is the element's distance to the right of the main diagonal.
            element_index = (*((0,) * (rank - 2)), -1, 1)
            limit = 0 if k is None else int(k.item())
            views, upper = (source, result), node.op.upper
            return (_launch("triangle", views, source.strides, element_index, limit, upper),)
        values = input_view(operands, 2)
        axis = op_as(OneHot, node).axis % len(result.shape)
        strides = (*source.strides[:axis], 0, *source.strides[axis:])
        element_index = tuple(int(a == axis) for a in range(len(result.shape)))
        depth = result.shape[axis]
        return (_launch("one_hot", (source, values, result), strides, element_index, depth, 1),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        sizes = kernel["sizes"]
        e = Emitter(kernel.symbol, len(sizes))
        emit = _triangle if kernel["what"] == "triangle" else _one_hot

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            before = e.emit("i64", f"ptrtoint {starts[0]} to i64")
            with e.loop(first, last) as steps:
                element_index = e.i64(e.add(before, e.mul(steps.index, strides[0])))
                source = e.at(starts[1], e.mul(steps.index, e.mul(strides[1], sizes[0])))
                value = emit(e, kernel, element_index, source)
                e.store(value, e.at(starts[2], e.mul(steps.index, e.mul(strides[2], sizes[-1]))))

        pointers = [Reg("null", "ptr"), e.pointer(0), e.pointer(len(sizes) - 1)]
        return write_loop_nest(e, kernel["loop_nest"], [1, sizes[0], sizes[-1]], row, pointers)


def _launch(
    what: str,
    views: tuple[View, ...],
    source: tuple[Dim, ...],
    element_index: tuple[int, ...],
    limit: Dim,
    upper: int,
) -> Launch:
    """Return the launch; ``element_index`` holds the strides of the element's index."""
    result = views[-1]
    scalars = LaunchScalars()
    loop_nest = LoopNest.over(
        iteration_axes(result.shape, [element_index, source, result.strides], 2), 3
    )
    spec = kernel_spec(
        IndexPredicateFamily.name,
        what=what,
        sizes=tuple(v.dtype.size_bytes for v in views),
        stride=scalars.json(views[1].strides[0] if len(views) == 3 else 0),
        loop_nest=loop_nest.json(scalars),
        limit=scalars.json(limit),
        upper=upper,
    )
    return Launch(spec, views, (len(views) - 1,), scalars.values, loop_nest.chunks)


def _triangle(e: Emitter, kernel: KernelSpec, element_index: Reg, source: Reg) -> Reg:
    """Return the element if it is inside the triangle, else 0."""
    is_inside = e.compare(
        "sge" if kernel["upper"] else "sle", element_index, e.extent(kernel["limit"])
    )
    kind = f"i{8 * kernel['sizes'][0]}"
    return e.select(is_inside, e.load(kind, source), e.constant(0, kind))


def _one_hot(e: Emitter, kernel: KernelSpec, element_index: Reg, source: Reg) -> Reg:
    """Return the on-value if the index at ``source`` is the element's, else the off-value."""
    sizes = kernel["sizes"]
    index = e.load(f"i{8 * sizes[0]}", source)
    if index.type != "i64":
        index = e.convert("sext", index, "i64")
    wrapped = e.i64(e.add(index, e.extent(kernel["limit"])))
    index = e.select(e.compare("slt", index, 0), wrapped, index)
    kind = f"i{8 * sizes[2]}"
    off = e.load(kind, e.pointer(1))
    on = e.load(kind, e.at(e.pointer(1), e.mul(e.extent(kernel["stride"]), sizes[2])))
    return e.select(e.compare("eq", index, element_index), on, off)
