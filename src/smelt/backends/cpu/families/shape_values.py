"""Integer tensors that are known as dimensions: shapes, and values computed from them.

The elements of such a tensor are polynomials in the plan's symbols, which every run evaluates
anyway. The kernel writes their values, whatever op produced them, and reads none of the op's
inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from smelt.backends import Family, LaunchScalars, NodeRefusedError, Operands, Tactic, linear_format
from smelt.backends.cpu._emit import Emitter
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.engine import KernelSpec, Launch, Step
from smelt.errors import InternalError
from smelt.types import DType, override

if TYPE_CHECKING:
    from smelt.backends.cpu._target import CpuTarget
    from smelt.ir import Node

_MAX_ELEMENTS: Final = 64
"""Largest number of elements that are passed as scalars of a launch. Chosen without a
measurement."""


class ShapeValuesFamily(Family["CpuTarget"]):
    """Writes extents of tensors, and sums and products of them, as integers."""

    name: ClassVar[str] = "shape_values"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        if len(node.outputs) != 1 or node.output.dims is None:
            return
        kind = node.output.tensor
        if kind.rank > 1 or kind.dtype not in (DType.INT64, DType.INT32):
            return
        if (count := len(node.output.dims)) > _MAX_ELEMENTS:
            raise NodeRefusedError(
                f"the result has {count} elements; at most {_MAX_ELEMENTS} are computed"
            )
        form = linear_format(node.output)
        yield Tactic(self.name, (), (None,) * len(node.inputs), (form,), estimated_seconds=1e-7)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        (view,) = operands.outputs
        if node.output.dims is None:
            raise InternalError(f"the elements of {node.output.name} have no symbolic expressions")
        scalars = LaunchScalars()
        spec = kernel_spec(
            self.name,
            size=view.dtype.size_bytes,
            stride=scalars.json(view.strides[0] if view.strides else 1),
            elements=scalars.all_json(node.output.dims),
        )
        return (Launch(spec, (view,), (0,), scalars.values),)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        e = Emitter(kernel.symbol, 1)
        size, stride = kernel["size"], e.extent(kernel["stride"])
        for position, element in enumerate(kernel["elements"]):
            value = e.i64(e.extent(element))
            if size == 4:
                value = e.emit("i32", f"trunc {value} to i32")
            e.store(value, e.at(e.pointer(0), e.mul(e.mul(stride, size), position)))
        return e.module()
