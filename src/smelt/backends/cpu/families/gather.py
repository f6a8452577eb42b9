"""Gather and GatherElements along one axis, with run-time or constant indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from smelt.backends import Family, Operands, Refusal, Tactic, with_storage_dtype
from smelt.backends._gather_axes import gather_axes, gather_elements_axes
from smelt.backends._iteration_space import coalesce_axes, sort_axes
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends.cpu._emit import Reg, emitter_for, vector_type
from smelt.backends.cpu._loop_nest import LoopNest, emit_loop_nest
from smelt.backends.cpu.families._index_reader import IndexReader
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import InternalError
from smelt.ops import Gather, GatherElements
from smelt.types import DType, Layout, TensorFormat, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends.cpu._emit import Int
    from smelt.backends.cpu._target import CpuTarget
    from smelt.engine import Step
    from smelt.ir import Node


class GatherFamily(Family["CpuTarget"]):
    """Gather and GatherElements for any element type.

    An index out of range is reported in the error buffer and never accesses memory outside the
    tensor.
    """

    name: ClassVar[str] = "gather"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(node.op, Gather | GatherElements):
            return
        data, indices = node.inputs[:2]
        if data is None or indices is None:
            raise InternalError(f"an input of {node} is missing")
        if indices.tensor.dtype not in (DType.INT32, DType.INT64):
            yield Refusal(self.name, f"indices of {indices.tensor.dtype.value} are not supported")
            return
        dtype = data.tensor.dtype
        inputs = (
            TensorFormat(dtype, Layout.LINEAR),
            TensorFormat(indices.tensor.dtype, Layout.LINEAR),
        )
        yield Tactic(self.name, (), inputs, (TensorFormat(dtype, Layout.LINEAR),), cost_hint=5e-6)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        del target
        return (with_storage_dtype(dtype, node, tactic, constants=True, outputs=True),)

    @override
    def reports_index_errors(self, node: Node) -> bool:
        return True

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        data, indices = operands.inputs[:2]
        (result,), errors = operands.outputs, operands.errors
        if data is None or indices is None or errors is None:
            raise InternalError(f"{node} has no error buffer, or one of its inputs is missing")
        if not isinstance(node.op, Gather | GatherElements):
            raise InternalError(f"{node} is not a gather")
        axis = node.op.axis % len(data.shape)
        make = gather_elements_axes if isinstance(node.op, GatherElements) else gather_axes
        axes = make(data, indices, result, axis)
        scalars = LaunchScalars()
        loop_nest = LoopNest.over(
            coalesce_axes(sort_axes([a for a in axes if a.extent != 1], 2)), 3
        )
        spec = KernelSpec(
            self.name,
            parameters(
                size=data.dtype.size_bytes,
                index_size=indices.dtype.size_bytes,
                extent=scalars.json(data.shape[axis]),
                stride=scalars.json(data.strides[axis]),
                loop_nest=loop_nest.json(scalars),
            ),
        )
        views = (data, indices, result, errors)
        return (Launch(spec, views, (2, 3), scalars.values, loop_nest.chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        e = emitter_for(kernel, 4)
        size, index_size, extent = kernel["size"], kernel["index_size"], e.extent(kernel["extent"])
        reader = IndexReader(e, index_size, e.pointer(3))
        along = e.mul(e.extent(kernel["stride"]), size)
        lanes = target.vector_bits // (8 * size)

        def row(starts: Sequence[Reg], first: Int, last: Int, strides: tuple[Int, ...]) -> None:
            data, indices, result = starts
            element = f"i{8 * size}"
            index = e.at(indices, e.mul(first, e.mul(strides[1], index_size)))
            last = reader.end(first, last, index, extent)
            if strides[1] == 0:  # one index selects the whole row
                picked = e.at(data, e.mul(reader.position(index, extent), along))
                full_end = first
                if strides[0] == 1 and strides[2] == 1:
                    full_end = e.add(first, e.mul(e.div(e.sub(last, first), lanes), lanes))
                    with e.loop(first, full_end, lanes) as steps:
                        at = e.mul(steps.index, size)
                        e.store(
                            e.load(vector_type(element, lanes), e.at(picked, at)), e.at(result, at)
                        )
                with e.loop(full_end, last) as steps:
                    value = e.load(
                        element, e.at(picked, e.mul(steps.index, e.mul(strides[0], size)))
                    )
                    e.store(value, e.at(result, e.mul(steps.index, e.mul(strides[2], size))))
                return
            with e.loop(first, last) as steps:
                position = e.at(indices, e.mul(steps.index, e.mul(strides[1], index_size)))
                picked = e.at(data, e.mul(reader.position(position, extent), along))
                value = e.load(element, e.at(picked, e.mul(steps.index, e.mul(strides[0], size))))
                e.store(value, e.at(result, e.mul(steps.index, e.mul(strides[2], size))))

        pointers = [e.pointer(k) for k in range(3)]
        emit_loop_nest(e, kernel["loop_nest"], pointers, [size, index_size, size], row)
        return e.module()
