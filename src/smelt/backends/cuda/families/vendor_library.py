"""What families have in common whose tactics are calls of a library: proposals of this very GPU's.

A proposal is kept as the library gives it, with the library's version. It holds for one node on
operands without holes, of extents that are known; where a plan leaves an extent open there is no
such tactic. Nothing is known of a proposal's speed but what a clock says: without one, none wins.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar, cast

import numpy as np

from smelt.backends._base import Family, Operands, Refusal, Tactic, with_storage_dtype
from smelt.backends._fused_programs import operand_format, root_of
from smelt.backends._node_operands import required_input
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.backends.cuda.families._gemm_operands import as_factor, factor_type
from smelt.devices.cuda import ALIGNED_BYTES, LIBRARIES, WORKSPACE_ALIGNED_BYTES
from smelt.engine import KernelSpec, Launch, as_json, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops.add import Add
from smelt.ops.cast import Cast
from smelt.ops.fused import Fused
from smelt.ops.reshape import Reshape
from smelt.types import DType, Layout, TensorFormat, TensorType, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from smelt.devices.cuda import LibraryCall, LoadedLibrary
    from smelt.engine import Json, Parameters, Step, View
    from smelt.ir import Node, Op

_BLOCK: Final = 128
"""Rows and columns that a block of a library's is taken to do, to tell large calls from small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A node as what a library computes; inputs by position."""

    columns: int
    """Numbers of a bias."""
    layout: Layout
    """Of what is not packed."""
    bias: int | None = None
    added: int | None = None
    activation: str = ""


MatchT = TypeVar("MatchT", bound=Match)
Proposal = tuple["dict[str, Json]", int]
"""What a tactic says of how the library does a call, and the workspace that this takes."""


class LibraryFamily(Family[CudaTarget], Generic[MatchT]):
    """Products of a constant or another factor, with what the library adds behind them."""

    requires_contiguous: ClassVar[bool] = True
    roots: ClassVar[tuple[type[Op], ...]]
    """What nodes may compute before their epilogue."""

    def __init__(self, library: LoadedLibrary) -> None:
        self._opened = library

    @abstractmethod
    def matched(self, node: Node) -> MatchT | str:
        """The node as what the library computes, its epilogue left out, or why it is none."""

    @abstractmethod
    def activation(self, op: Op) -> str | None:
        """The library's name of an activation; None if it does not know it."""

    @abstractmethod
    def call(self, node: Node, match: MatchT, tactic: Tactic) -> LibraryCall:
        """The call that a tactic stands for; one that says only a precision leaves it open how."""

    @abstractmethod
    def proposals(self, call: LibraryCall) -> Iterable[Proposal]:
        """How the library would do a call, the best guess first."""

    @abstractmethod
    def factor(self, node: Node, weights: Constant) -> Constant:
        """Constant weights as the library reads them."""

    @abstractmethod
    def rows(self, call: LibraryCall) -> tuple[int, int]:
        """How many products a call does, and how many rows each has."""

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
        found = False
        for precision in precisions:
            asked = replace(stored, parameters=self._call_options(precision))
            for proposal, room in self.proposals(self.call(node, match, asked)):
                found = True
                yield replace(
                    asked,
                    parameters=self._call_options(precision, workspace=room, **proposal),
                    # The library wants it at a rounder address than buffers have.
                    workspace_bytes=room and room + WORKSPACE_ALIGNED_BYTES,
                )
        if not found:
            yield Refusal(self.name, "the library has no algorithm for this problem")

    def _call_options(self, precision: str, **proposal: Json) -> Parameters:
        """What a tactic says."""
        return parameters(precision=precision, version=self._opened.version, **proposal)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        return (tactic,)  # what is stored decides what the library proposes

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        match = self._known(node)
        found: list[Constant] = []
        if (weights := required_input(node, 1).constant) is not None:
            found.append(as_factor(self.factor(node, weights), factor_type(tactic), tactic))
        if match.bias is not None:
            bias = cast("Constant", required_input(node, match.bias).constant)
            if bias.type.rank != 1:
                shape = Constant(f"{bias.name}.columns", np.array([-1], np.int64))
                bias = Constant.derive(f"{bias.name}.flat", Reshape(), bias, shape)
            if (dtype := tactic.outputs[0].dtype) is not bias.type.dtype:
                bias = Constant.derive(f"{bias.name}.{dtype.value}", Cast(dtype), bias)
            found.append(bias)
        return tuple(found)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        match = self._known(node)
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

    # ---- which nodes the library does

    def _known(self, node: Node) -> MatchT:
        match = self._match(node)
        if isinstance(match, str):
            raise InternalError(f"{node} has tactics, but {match}")
        return match

    def _match(self, node: Node) -> MatchT | str:
        """The node as what the library computes, or why it is none."""
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
        """The match with its bias and epilogue, or what of them the library does not do."""
        _, count = root_of(node)
        found: MatchT | str = match
        if count > 2 and node.inputs[2] is not None:
            found = _with_added(node, match, 2)
        stages = node.op.stages if isinstance(node.op, Fused) else ()
        for number, stage in enumerate(stages, 1):
            if isinstance(found, str):
                return found
            others = [argument for argument in stage.arguments if argument != -number]
            if found.activation or len(others) + 1 != len(stage.arguments):
                return f"{stage.op.name} of the epilogue exceeds what the library can fuse"
            if isinstance(stage.op, Add) and others and others[0] >= count:
                found = _with_added(node, found, others[0])
            elif name := self.activation(stage.op):
                found = replace(found, activation=name)
            else:
                return f"{stage.op.name} of the epilogue is not an activation of the library"
        return found


def library_call(kernel: KernelSpec) -> LibraryCall | None:
    """The call that stands for a kernel; None for a kernel that is compiled."""
    library = LIBRARIES.get(kernel.family)
    return None if library is None else library.read(kernel.options)


def _with_added(node: Node, match: MatchT, position: int) -> MatchT | str:
    """The match with one input more: a bias, or a tensor like the result."""
    value = required_input(node, position)
    shape, whole = value.tensor.shape, node.output.tensor.shape
    along = 1 if match.layout is Layout.CHANNELS_LAST and position >= root_of(node)[1] else -1
    if value.constant is not None and match.bias is None:
        lengthened = (1,) * (len(whole) - len(shape)) + shape
        others = [extent for axis, extent in enumerate(lengthened) if axis != along % len(whole)]
        is_row = math.prod(cast("list[int]", others)) == 1 and lengthened[along] == match.columns
        if is_row and value.tensor.dtype in FLOATS:
            return replace(match, bias=position)
    if value.constant is None and match.added is None and shape == whole:
        return replace(match, added=position)
    return f"{value.name} {value.tensor} is neither a bias nor a tensor of the result's shape"


# ---- how they are stored


def _stored(family: str, node: Node, match: Match, narrow_dtype: DType) -> Tactic:
    """The formats of a node's operands: those of our own kernels, so that they compete everywhere.

    The bias is packed, too, where the library wants it in another type.
    """
    layout, whole = match.layout, node.output.tensor
    inputs = [
        None
        if value is None or (position == 1 and value.constant is not None)
        else operand_format(value, layout, whole.rank)
        for position, value in enumerate(node.inputs)
    ]
    output = TensorFormat(whole.dtype, layout)
    made = Tactic(family, (), tuple(inputs), (output,), cost_hint=math.inf)
    return made if narrow_dtype is DType.FLOAT32 else with_storage_dtype(narrow_dtype, node, made)


def _unsupported_reason(stored: Tactic, match: Match) -> str | None:
    """Why the library cannot go by the types in which operands are stored, or None."""
    first, second = stored.inputs[:2]
    if second is not None and first is not None and first.dtype is not second.dtype:
        return f"the operands are stored as {first.dtype.value} and {second.dtype.value}"
    added = None if match.added is None else stored.inputs[match.added]
    result = stored.outputs[0].dtype
    if added is not None and added.dtype is not result:
        return f"the addend is stored as {added.dtype.value}, the result as {result.value}"
    return None


def _check_alignment(view: View, layout: Layout) -> None:
    """Operands lie as the family asks for: from a round address on, and without holes."""
    kind = TensorType(view.dtype, view.shape)
    order = layout if kind.rank > 2 else Layout.LINEAR
    wanted = zip(view.shape, view.strides, contiguous_strides(kind, order), strict=True)
    whole = all(extent == 1 or stride == right for extent, stride, right in wanted)
    if not whole or not isinstance(view.offset, int) or view.offset % ALIGNED_BYTES:
        raise InternalError(f"an operand of a library call is not contiguous: {view}")
