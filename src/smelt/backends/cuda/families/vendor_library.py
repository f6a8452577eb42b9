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
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar, cast

import numpy as np

from smelt.backends._base import Operands, Refusal, Tactic, with_storage_dtype
from smelt.backends._fused_programs import operand_format, root_of
from smelt.backends._node_operands import required_input
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._family import CudaFamily
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.backends.cuda.families._gemm_operands import as_factor, factor_type
from smelt.devices.cuda import ALIGNED_BYTES, LIBRARIES, WORKSPACE_ALIGNED_BYTES
from smelt.engine import KernelSpec, Launch, as_json, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops import Add, Cast, Fused, Reshape
from smelt.types import DType, Layout, TensorFormat, TensorType, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.devices.cuda import LibraryCall, LoadedLibrary
    from smelt.engine import Json, Parameters, Step, View
    from smelt.ir import Node, Op

_BLOCK: Final = 128
"""Assumed rows and columns of a thread block of a library kernel, by which large launches are
recognised. Chosen without a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A node in the terms of a library; inputs by position."""

    columns: int
    """Number of elements of a bias."""
    layout: Layout
    """Layout of operands that are not packed."""
    bias: int | None = None
    added: int | None = None
    activation: str = ""


MatchT = TypeVar("MatchT", bound=Match)
Proposal = tuple["dict[str, Json]", int]
"""Parameters that describe a proposed algorithm, and its workspace in bytes."""


class LibraryFamily(CudaFamily, Generic[MatchT]):
    """Family of products, with the bias, addend and activation that a library can fuse."""

    requires_contiguous: ClassVar[bool] = True
    has_fixed_types: ClassVar[bool] = True
    roots: ClassVar[tuple[type[Op], ...]]
    """Ops that nodes may compute before their epilogue."""

    def __init__(self, library: LoadedLibrary) -> None:
        self._opened = library

    @abstractmethod
    def matched(self, node: Node) -> MatchT | str:
        """Return the node without its epilogue in the library's terms, or why it is unsupported."""

    @abstractmethod
    def activation(self, op: Op) -> str | None:
        """Return the library's name of an activation; None if it is unsupported."""

    @abstractmethod
    def call(self, node: Node, match: MatchT, tactic: Tactic) -> LibraryCall:
        """Return the call of a tactic; without an algorithm if parameters have only a precision."""

    @abstractmethod
    def proposals(self, call: LibraryCall) -> Iterable[Proposal]:
        """Return the library's algorithms for a call, best guess first."""

    @abstractmethod
    def factor(self, node: Node, weights: Constant) -> Constant:
        """Return constant weights in the order that the library reads."""

    @abstractmethod
    def rows(self, call: LibraryCall) -> tuple[int, int]:
        """Return the number of products of a call, and the rows of each."""

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(root_of(node)[0], self.roots):
            return
        match = self._match(node)
        if isinstance(match, str):
            yield Refusal(self.name, match)
            return
        stored = _stored(self.name, node, match, target.narrow_dtype)
        precisions = ["ieee"]
        if factor_type(stored) is DType.FLOAT32 and target.allows_tf32:
            precisions.append("tf32")
        if reason := _unsupported_reason(stored, match):
            yield Refusal(self.name, reason)
            return
        has_proposals = False
        for precision in precisions:
            request = replace(stored, parameters=self._call_options(precision))
            for proposal, workspace_bytes in self.proposals(self.call(node, match, request)):
                has_proposals = True
                yield replace(
                    request,
                    parameters=self._call_options(precision, workspace=workspace_bytes, **proposal),
                    # The library needs a larger alignment than buffers have.
                    workspace_bytes=workspace_bytes and workspace_bytes + WORKSPACE_ALIGNED_BYTES,
                )
        if not has_proposals:
            yield Refusal(self.name, "the library has no algorithm for this problem")

    def _call_options(self, precision: str, **proposal: Json) -> Parameters:
        """Return the parameters of a tactic."""
        return parameters(precision=precision, version=self._opened.version, **proposal)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        return (tactic,)  # proposals depend on the storage types

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        match = self._require_match(node)
        packed: list[Constant] = []
        if (weights := required_input(node, 1).constant) is not None:
            packed.append(as_factor(self.factor(node, weights), factor_type(tactic), tactic))
        if match.bias is not None:
            bias = cast("Constant", required_input(node, match.bias).constant)
            if bias.type.rank != 1:
                shape = Constant(f"{bias.name}.columns", np.array([-1], np.int64))
                bias = Constant.derive(f"{bias.name}.flat", Reshape(), bias, shape)
            if (dtype := tactic.outputs[0].dtype) is not bias.type.dtype:
                bias = Constant.derive(f"{bias.name}.{dtype.value}", Cast(dtype), bias)
            packed.append(bias)
        return tuple(packed)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        match = self._require_match(node)
        packed = list(operands.packed)
        second = packed.pop(0) if operands.inputs[1] is None else operands.inputs[1]
        added = None if match.added is None else operands.inputs[match.added]
        views = [operands.inputs[0], second, added, *packed, operands.outputs[0]]
        present = [view for view in views if view is not None]
        for view in present:
            _check_alignment(view, match.layout)
        written = [len(present) - 1]
        if operands.workspace is not None:
            present.append(operands.workspace)
            written.append(len(present) - 1)
        call = self.call(node, match, tactic)
        spec = KernelSpec(
            self.name, parameters(**{k: as_json(v) for k, v in call.to_fields().items()})
        )
        count, rows = self.rows(call)
        blocks = count * ceil_div(rows, _BLOCK) * ceil_div(match.columns, _BLOCK)
        return (Launch(spec, tuple(present), tuple(written), chunks=blocks),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return json.dumps(kernel.options, indent=1)

    # ---- supported nodes

    def _require_match(self, node: Node) -> MatchT:
        """Return the match of a node that has tactics."""
        match = self._match(node)
        if isinstance(match, str):
            raise InternalError(f"{node} has tactics, but {match}")
        return match

    def _match(self, node: Node) -> MatchT | str:
        """Return the node in the library's terms, or why it is unsupported."""
        x = required_input(node, 0)
        if x.tensor.dtype not in FLOATS:
            return f"supports floating-point types only, not {x.tensor.dtype.value}"
        if x.constant is not None:
            return f"the first operand, {x.name}, is constant"
        for value in (x, required_input(node, 1), node.output):
            if not all(isinstance(extent, int) and extent > 0 for extent in value.tensor.shape):
                return f"the extents of {value.name} {value.tensor} are not all known and positive"
        match = self.matched(node)
        return match if isinstance(match, str) else self._with_additions(node, match)

    def _with_additions(self, node: Node, match: MatchT) -> MatchT | str:
        """Return the match with bias and epilogue, or what of them the library cannot fuse."""
        _, count = root_of(node)
        extended: MatchT | str = match
        if count > 2 and node.inputs[2] is not None:
            extended = _with_added(node, match, 2)
        stages = node.op.stages if isinstance(node.op, Fused) else ()
        for number, stage in enumerate(stages, 1):
            if isinstance(extended, str):
                return extended
            others = [argument for argument in stage.arguments if argument != -number]
            if extended.activation or len(others) + 1 != len(stage.arguments):
                return f"{stage.op.name} of the epilogue exceeds what the library can fuse"
            if isinstance(stage.op, Add) and others and others[0] >= count:
                extended = _with_added(node, extended, others[0])
            elif name := self.activation(stage.op):
                extended = replace(extended, activation=name)
            else:
                return f"{stage.op.name} of the epilogue is not an activation of the library"
        return extended


def library_call(kernel: KernelSpec) -> LibraryCall | None:
    """Return the call that a kernel spec describes; None for a kernel that is compiled."""
    library = LIBRARIES.get(kernel.family)
    return None if library is None else library.read(kernel.options)


def _with_added(node: Node, match: MatchT, position: int) -> MatchT | str:
    """Return the match with one more input: a bias, or a tensor of the result's shape."""
    value = required_input(node, position)
    shape, result_shape = value.tensor.shape, node.output.tensor.shape
    column_axis = 1 if match.layout is Layout.CHANNELS_LAST and position >= root_of(node)[1] else -1
    if value.constant is not None and match.bias is None:
        padded_shape = (1,) * (len(result_shape) - len(shape)) + shape
        others = [
            extent
            for axis, extent in enumerate(padded_shape)
            if axis != column_axis % len(result_shape)
        ]
        is_row = (
            math.prod(cast("list[int]", others)) == 1 and padded_shape[column_axis] == match.columns
        )
        if is_row and value.tensor.dtype in FLOATS:
            return replace(match, bias=position)
    if value.constant is None and match.added is None and shape == result_shape:
        return replace(match, added=position)
    return f"{value.name} {value.tensor} is neither a bias nor a tensor of the result's shape"


# ---- storage of operands


def _stored(family: str, node: Node, match: Match, narrow_dtype: DType) -> Tactic:
    """Return a tactic with the formats of a node's operands, those of generated kernels.

    A bias is packed, because the library may need it in another type.
    """
    layout, result_type = match.layout, node.output.tensor
    inputs = [
        None
        if value is None or (position == 1 and value.constant is not None)
        else operand_format(value, layout, result_type.rank)
        for position, value in enumerate(node.inputs)
    ]
    output = TensorFormat(result_type.dtype, layout)
    tactic = Tactic(family, (), tuple(inputs), (output,), cost_hint=math.inf)
    return (
        tactic if narrow_dtype is DType.FLOAT32 else with_storage_dtype(narrow_dtype, node, tactic)
    )


def _unsupported_reason(stored: Tactic, match: Match) -> str | None:
    """Return why the library does not support the stored types of the operands, or None."""
    first, second = stored.inputs[:2]
    if second is not None and first is not None and first.dtype is not second.dtype:
        return f"the operands are stored as {first.dtype.value} and {second.dtype.value}"
    added = None if match.added is None else stored.inputs[match.added]
    result = stored.outputs[0].dtype
    if added is not None and added.dtype is not result:
        return f"the addend is stored as {added.dtype.value}, the result as {result.value}"
    return None


def _check_alignment(view: View, layout: Layout) -> None:
    """Raise InternalError unless an operand is contiguous and aligned."""
    kind = TensorType(view.dtype, view.shape)
    order = layout if kind.rank > 2 else Layout.LINEAR
    rows = zip(view.shape, view.strides, contiguous_strides(kind, order), strict=True)
    is_contiguous = all(extent == 1 or stride == contiguous for extent, stride, contiguous in rows)
    if not is_contiguous or not isinstance(view.offset, int) or view.offset % ALIGNED_BYTES:
        raise InternalError(f"an operand of a library call is not contiguous: {view}")
