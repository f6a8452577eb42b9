"""Base of the families whose tactics are calls of a vendor library on the GPU that is present.

A library proposes algorithms for a call. A proposal is stored as the library describes it, with the
library's version. It is valid for one node on contiguous operands of known extents; symbolic
extents are not supported. The cost model does not know the speed of proposals, so without
measurements none is chosen.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast

from smelt.backends._base import NodeRefusedError, Operands, Tactic, refuse_if, with_storage_dtype
from smelt.backends._fused_programs import operand_format, root_of
from smelt.backends._node_operands import required_input
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda.families._epilogue import FLOAT_NAMES, FLOATS
from smelt.backends.cuda.families._product_operands import as_factor, factor_type, reshaped
from smelt.devices.cuda import (
    ALIGNED_BYTES,
    LIBRARIES,
    WORKSPACE_ALIGNED_BYTES,
    LibraryCall,
    LoadedLibrary,
)
from smelt.engine import KernelSpec, Launch, as_json, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Add, Cast, Fused
from smelt.types import DType, Layout, TensorFormat, TensorType, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import Json, Parameters, Step, View
    from smelt.ir import Node, Op

_BLOCK: Final = 128
"""Assumed rows and columns of a thread block of a library kernel, by which large launches are
recognised. Chosen without a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryOperation:
    """Operation of a library that computes a node; inputs by position."""

    fields: Mapping[str, Any]
    """Fields of the call that follow from the op and the shapes of its operands."""
    columns: int
    """Number of elements of a bias."""
    layout: Layout = Layout.LINEAR
    """Layout of operands that are not packed."""
    bias: int | None = None
    """Input that is added to each row."""
    addend: int | None = None
    """Input of the result's shape that is added."""
    activation: str = ""


CallT = TypeVar("CallT", bound=LibraryCall)
LibraryT = TypeVar("LibraryT", bound=LoadedLibrary)
Proposal = tuple["dict[str, Json]", int]
"""Parameters that describe a proposed algorithm, and its workspace in bytes."""


class LibraryFamily(CudaFamily, Generic[CallT, LibraryT]):
    """Family of products, with the bias, addend and activation that a library can fuse."""

    supports_reduced_precision: ClassVar[bool] = False  # proposals depend on the storage types
    requires_contiguous: ClassVar[bool] = True
    has_fixed_types: ClassVar[bool] = True
    roots: ClassVar[tuple[type[Op], ...]]
    """Ops that nodes may compute before their epilogue."""

    def __init__(self, library: LibraryT) -> None:
        self.loaded_library = library

    @abstractmethod
    def matched(self, node: Node) -> LibraryOperation:
        """Return the node without its epilogue in the library's terms.

        Raises:
            NodeRefusedError: the library cannot compute it.
        """

    @abstractmethod
    def activation(self, op: Op) -> str | None:
        """Return the library's name of an activation; None if it is unsupported."""

    @abstractmethod
    def call(self, operation: LibraryOperation, **fields: Any) -> CallT:
        """Return a call with the fields of its operands and its algorithm, and the activation."""

    @abstractmethod
    def proposals(self, call: CallT) -> Iterable[Proposal]:
        """Return the library's algorithms for a call, best guess first."""

    @abstractmethod
    def factor(self, node: Node, weights: Constant) -> Constant:
        """Return constant weights in the order that the library reads."""

    @abstractmethod
    def rows(self, call: CallT) -> tuple[int, int]:
        """Return the number of products of a call, and the rows of each."""

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic]:
        if not isinstance(root_of(node)[0], self.roots):
            return
        operation = self._match(node)
        stored = _stored(self.name, node, operation, target.narrow_dtype)
        precisions = ["ieee"]
        if factor_type(stored) is DType.FLOAT32 and target.allows_tf32:
            precisions.append("tf32")
        refuse_if(_unsupported_reason(stored, operation))
        has_proposals = False
        for precision in precisions:
            request = replace(stored, parameters=self._call_options(precision))
            for proposal, workspace_bytes in self.proposals(self._call_of(operation, request)):
                has_proposals = True
                yield replace(
                    request,
                    parameters=self._call_options(precision, workspace=workspace_bytes, **proposal),
                    # The library needs a larger alignment than buffers have.
                    workspace_bytes=workspace_bytes and workspace_bytes + WORKSPACE_ALIGNED_BYTES,
                )
        if not has_proposals:
            raise NodeRefusedError("the library has no algorithm for this problem")

    def _call_of(self, operation: LibraryOperation, tactic: Tactic) -> CallT:
        """Return the call of a tactic; without an algorithm if parameters have only a precision."""
        options = tactic.options
        return self.call(
            operation,
            factors=factor_type(tactic),
            result=tactic.output_formats[0].dtype,
            adds=operation.addend is not None,
            bias=operation.bias is not None,
            workspace_bytes=options.pop("workspace", 0),
            **options,
        )

    def _call_options(self, precision: str, **proposal: Json) -> Parameters:
        """Return the parameters of a tactic."""
        return parameters(
            input_precision=precision, version=self.loaded_library.version, **proposal
        )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        operation = self._match(node)
        packed: list[Constant] = []
        if (weights := required_input(node, 1).constant) is not None:
            packed.append(as_factor(self.factor(node, weights), factor_type(tactic), tactic))
        if operation.bias is not None:
            bias = cast("Constant", required_input(node, operation.bias).constant)
            if bias.type.rank != 1:
                bias = reshaped(bias, f"{bias.name}.flat", -1)
            if (dtype := tactic.output_formats[0].dtype) is not bias.type.dtype:
                bias = Constant.derive(f"{bias.name}.{dtype.value}", Cast(dtype), bias)
            packed.append(bias)
        return tuple(packed)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        operation = self._match(node)
        packed = list(operands.packed)
        second = packed.pop(0) if operands.inputs[1] is None else operands.inputs[1]
        addend = None if operation.addend is None else operands.inputs[operation.addend]
        views = [operands.inputs[0], second, addend, *packed, operands.outputs[0]]
        present = [view for view in views if view is not None]
        for view in present:
            _check_alignment(view, operation.layout)
        written = [len(present) - 1]
        if operands.workspace is not None:
            present.append(operands.workspace)
            written.append(len(present) - 1)
        call = self._call_of(operation, tactic)
        fields = {name: as_json(value) for name, value in call.to_fields().items()}
        spec = KernelSpec(self.name, parameters(**fields))
        count, rows = self.rows(call)
        blocks = count * ceil_div(rows, _BLOCK) * ceil_div(operation.columns, _BLOCK)
        return (Launch(spec, tuple(present), tuple(written), chunks=blocks),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        return json.dumps(kernel.options, indent=1)

    # ---- supported nodes

    def _match(self, node: Node) -> LibraryOperation:
        """Return the node in the library's terms. Raises NodeRefusedError: it is unsupported."""
        x = required_input(node, 0)
        if x.tensor.dtype not in FLOATS:
            raise NodeRefusedError(
                f"the input is {x.tensor.dtype.value}; only {FLOAT_NAMES} are supported"
            )
        if x.constant is not None:
            raise NodeRefusedError(f"the first operand {x.name!r} is constant")
        for value in (x, required_input(node, 1), node.output):
            if not all(isinstance(extent, int) and extent > 0 for extent in value.tensor.shape):
                raise NodeRefusedError(
                    f"{value.name!r} ({value.tensor}) has an extent that is symbolic or 0"
                )
        return self._with_additions(node, self.matched(node))

    def _with_additions(self, node: Node, operation: LibraryOperation) -> LibraryOperation:
        """Return the operation with bias and epilogue.

        Raises:
            NodeRefusedError: the library cannot fuse a part of them.
        """
        _, count = root_of(node)
        if count > 2 and node.inputs[2] is not None:
            operation = _with_addend(node, operation, 2)
        stages = node.op.stages if isinstance(node.op, Fused) else ()
        for number, stage in enumerate(stages, 1):
            others = [argument for argument in stage.arguments if argument != -number]
            if operation.activation or len(others) + 1 != len(stage.arguments):
                raise NodeRefusedError(f"the library cannot fuse the epilogue op {stage.op.name}")
            if isinstance(stage.op, Add) and others and others[0] >= count:
                operation = _with_addend(node, operation, others[0])
            elif name := self.activation(stage.op):
                operation = replace(operation, activation=name)
            else:
                raise NodeRefusedError(
                    f"the library has no fused activation for the epilogue op {stage.op.name}"
                )
        return operation


def library_call(kernel: KernelSpec) -> LibraryCall | None:
    """Return the call that a kernel spec describes; None for a kernel that is compiled."""
    library = LIBRARIES.get(kernel.family)
    return None if library is None else library.read(kernel.options)


def _with_addend(node: Node, operation: LibraryOperation, position: int) -> LibraryOperation:
    """Return the operation with one more input: a bias, or a tensor of the result's shape.

    Raises:
        NodeRefusedError: the input is neither.
    """
    value = required_input(node, position)
    shape, result_shape = value.tensor.shape, node.output.tensor.shape
    column_axis = (
        1 if operation.layout is Layout.CHANNELS_LAST and position >= root_of(node)[1] else -1
    )
    if value.constant is not None and operation.bias is None:
        padded_shape = (1,) * (len(result_shape) - len(shape)) + shape
        row_shape = [1] * len(result_shape)
        row_shape[column_axis] = operation.columns
        if list(padded_shape) == row_shape and value.tensor.dtype in FLOATS:
            return replace(operation, bias=position)
    if value.constant is None and operation.addend is None and shape == result_shape:
        return replace(operation, addend=position)
    raise NodeRefusedError(
        f"the library cannot add {value.name!r} ({value.tensor}); it adds at most one constant "
        "bias and one non-constant tensor of the result's shape"
    )


# ---- storage of operands


def _stored(family: str, node: Node, operation: LibraryOperation, narrow_dtype: DType) -> Tactic:
    """Return a tactic with the formats of a node's operands, those of generated kernels.

    A bias is packed, because the library may need it in another type.
    """
    layout, result_type = operation.layout, node.output.tensor
    inputs = [
        None
        if value is None or (position == 1 and value.constant is not None)
        else operand_format(value, layout, result_type.rank)
        for position, value in enumerate(node.inputs)
    ]
    output = TensorFormat(result_type.dtype, layout)
    tactic = Tactic(family, (), tuple(inputs), (output,), estimated_seconds=math.inf)
    return with_storage_dtype(
        narrow_dtype, node, tactic, narrows_all_outputs=bool(node.output.users)
    )


def _unsupported_reason(stored: Tactic, operation: LibraryOperation) -> str | None:
    """Return why the library does not support the stored types of the operands, or None."""
    first, second = stored.input_formats[:2]
    if second is not None and first is not None and first.dtype is not second.dtype:
        return f"the operands differ in type: {first.dtype.value} and {second.dtype.value}"
    addend = None if operation.addend is None else stored.input_formats[operation.addend]
    result = stored.output_formats[0].dtype
    if addend is not None and addend.dtype is not result:
        return (
            f"the addend differs from the result in type: {addend.dtype.value} and {result.value}"
        )
    return None


def _check_alignment(view: View, layout: Layout) -> None:
    """Raise InternalError unless an operand is contiguous and aligned."""
    kind = TensorType(view.dtype, view.shape)
    order = layout if kind.rank > 2 else Layout.LINEAR
    rows = zip(view.shape, view.strides, contiguous_strides(kind, order), strict=True)
    is_contiguous = all(extent == 1 or stride == contiguous for extent, stride, contiguous in rows)
    if not is_contiguous or not isinstance(view.offset, int) or view.offset % ALIGNED_BYTES:
        raise InternalError(f"an operand of a library call is not contiguous and aligned: {view}")
