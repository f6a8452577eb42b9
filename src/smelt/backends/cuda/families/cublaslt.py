"""Products that cuBLASLt does: a tactic for each algorithm that it proposes on this very GPU.

An algorithm is kept as the library gives it, with the library's version. It holds for one product
on operands without holes, of extents that are known; where a plan leaves an extent open there is no
such tactic. Nothing is known of an algorithm's speed but what a clock says: without one, none wins.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

import numpy as np

from smelt.backends._base import Family, Operands, Refusal, Tactic, store_as
from smelt.backends._fusion import format_beside, root_of
from smelt.backends._nodes import value_of
from smelt.backends._storage import contiguous_strides
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import FLOATS
from smelt.backends.cuda.families._nodes import as_factor
from smelt.devices.cuda import ALIGNED_BYTES, LIBRARY, WORKSPACE_ALIGNED_BYTES, LibraryCall
from smelt.engine import KernelSpec, Launch, as_json, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops.add import Add
from smelt.ops.cast import Cast
from smelt.ops.conv import Conv
from smelt.ops.fused import Fused
from smelt.ops.gelu import Gelu
from smelt.ops.gemm import Gemm
from smelt.ops.mat_mul import MatMul
from smelt.ops.relu import Relu
from smelt.ops.reshape import Reshape
from smelt.ops.transpose import Transpose
from smelt.types import DType, Layout, TensorFormat, TensorType, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.devices.cuda import CublasLt
    from smelt.engine import Parameters, Step, View
    from smelt.ir import Node, Value

_ASKED: Final = 8
"""Algorithms that the library is asked for, for each bound of its workspace."""
_WORKSPACES: Final = (32 << 20, 0)
"""The largest workspaces: what NVIDIA recommends for Hopper, and none."""
_BLOCK: Final = 128
"""Rows and columns that a block of the library's is taken to do, to tell large calls from small."""

_MOST_EXTENT: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _Match:
    """A node as a product; inputs by position."""

    shape: tuple[int, int, int, int]
    """Matrices of a stack, rows, columns, depth."""
    turned: tuple[bool, bool]
    layout: Layout
    """Of what is not packed."""
    alpha: float = 1.0
    bias: int | None = None
    added: int | None = None
    activation: str = ""


class CublasLtFamily(Family[CudaTarget]):
    """Matrix products, and convolutions of one tap, with what the library adds behind them."""

    name: ClassVar[str] = LIBRARY
    contiguous: ClassVar[bool] = True

    def __init__(self, cublaslt: CublasLt) -> None:
        self.cublaslt = cublaslt

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        if not isinstance(root_of(node)[0], Conv | Gemm | MatMul):
            return
        match = _match(node)
        if isinstance(match, str):
            yield Refusal(self.name, match)
            return
        stored = _stored(node, match, target.narrow)
        precisions = ["ieee"]
        if _factor_type(stored) is DType.FLOAT32 and target.allows_tf32:
            precisions.append("tf32")
        found = False
        for precision in precisions:
            asked = replace(stored, parameters=self._decision(precision))
            if reason := _why_not(asked, match):
                yield Refusal(self.name, reason)
                return
            for algorithm, room in self._algorithms(_call(node, match, asked)):
                found = True
                yield replace(
                    asked,
                    parameters=self._decision(precision, algorithm, room),
                    # The library wants it at a rounder address than buffers have.
                    workspace_bytes=room and room + WORKSPACE_ALIGNED_BYTES,
                )
        if not found:
            yield Refusal(self.name, "the library has no algorithm for it")

    def _decision(self, precision: str, algorithm: str = "", workspace: int = 0) -> Parameters:
        """What a tactic says."""
        return parameters(
            precision=precision,
            version=self.cublaslt.version,
            algorithm=algorithm,
            workspace=workspace,
        )

    def _algorithms(self, call: LibraryCall) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for room in _WORKSPACES:
            found += self.cublaslt.algorithms(call, count=_ASKED, most_workspace_bytes=room)
        return list(dict.fromkeys(found))

    @override
    def narrowed(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        return (tactic,)  # what is stored decides which algorithms there are

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        match = _matched(node)
        found: list[Constant] = []
        if (weights := value_of(node, 1).constant) is not None:
            found.append(as_factor(_columns(node, weights), _factor_type(tactic), tactic))
        if match.bias is not None:
            bias = cast("Constant", value_of(node, match.bias).constant)
            if bias.type.rank != 1:
                shape = Constant(f"{bias.name}.columns", np.array([-1], np.int64))
                bias = Constant.derive(f"{bias.name}.flat", Reshape(), bias, shape)
            if (dtype := tactic.outputs[0].dtype) is not bias.type.dtype:
                bias = Constant.derive(f"{bias.name}.{dtype.value}", Cast(dtype), bias)
            found.append(bias)
        return tuple(found)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        match = _matched(node)
        packed = list(operands.packed)
        second = packed.pop(0) if operands.inputs[1] is None else operands.inputs[1]
        added = None if match.added is None else operands.inputs[match.added]
        views = [operands.inputs[0], second, added, *packed, operands.outputs[0]]
        present = [view for view in views if view is not None]
        for view in present:
            _check_place(view, match.layout)
        written = [len(present) - 1]
        if operands.workspace is not None:
            present.append(operands.workspace)
            written.append(len(present) - 1)
        call = _call(node, match, tactic)
        spec = KernelSpec(
            self.name, parameters(**{k: as_json(v) for k, v in call.to_fields().items()})
        )
        blocks = match.shape[0] * ceil_div(call.rows, _BLOCK) * ceil_div(call.columns, _BLOCK)
        return (Launch(spec, tuple(present), tuple(written), chunks=blocks),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return json.dumps(dict(kernel.parameters), indent=1)


def library_call(kernel: KernelSpec) -> LibraryCall | None:
    """The call that stands for a kernel; None for a kernel that is compiled."""
    if kernel.family != LIBRARY:
        return None
    return LibraryCall.from_fields(dict(kernel.parameters))


# ---- which nodes are products


def _matched(node: Node) -> _Match:
    match = _match(node)
    if isinstance(match, str):
        raise InternalError(f"{node} has tactics, but {match}")
    return match


def _match(node: Node) -> _Match | str:
    """The node as a product, or why it is none that the library does."""
    root = root_of(node)[0]
    x, y = value_of(node, 0), value_of(node, 1)
    if x.tensor.dtype not in FLOATS:
        return f"computes in floating point, not {x.tensor.dtype.value}"
    if x.constant is not None:
        return f"the first factor, {x.name}, is constant"
    for value in (x, y, node.output):
        if not all(isinstance(extent, int) and extent > 0 for extent in value.tensor.shape):
            return f"the extents of {value.name} {value.tensor} are not all known and positive"
    if isinstance(root, Conv):
        match = _match_conv(root, x, y)
    elif isinstance(root, Gemm):
        match = _match_gemm(root, x, y)
    else:
        match = _match_stack(x, y)
    if isinstance(match, _Match) and max(match.shape) > _MOST_EXTENT:
        return f"an extent of the product, {max(match.shape)}, is beyond the library's integers"
    return match if isinstance(match, str) else _with_additions(node, match)


def _match_conv(root: Conv, x: Value, y: Value) -> _Match | str:
    if y.constant is None:
        return f"the weights {y.name} are not constant"
    one_tap = {*root.kernel_shape, *root.strides, root.group} == {1} and not any(root.pads)
    if not one_tap:
        return "only a convolution of one tap and one group that leaves out no pixel is a product"
    filters, depth = cast("tuple[int, ...]", y.tensor.shape)[:2]
    places = math.prod(cast("tuple[int, ...]", x.tensor.shape)) // depth
    return _Match((1, places, filters, depth), (False, True), Layout.CHANNELS_LAST)


def _match_gemm(root: Gemm, x: Value, y: Value) -> _Match:
    first, second = (cast("tuple[int, int]", value.tensor.shape) for value in (x, y))
    rows, depth = first[::-1] if root.trans_a else first
    columns = second[0] if root.trans_b else second[1]
    turned = (bool(root.trans_a), bool(root.trans_b) or y.constant is not None)
    return _Match((1, rows, columns, depth), turned, Layout.LINEAR, root.alpha)


def _match_stack(x: Value, y: Value) -> _Match | str:
    first, second = (cast("tuple[int, ...]", value.tensor.shape) for value in (x, y))
    if min(len(first), len(second)) < 2:
        return "a factor is a vector"
    *stack, rows, depth = first
    columns = second[-1]
    turned = (False, y.constant is not None)
    if len(second) == 2:
        shape = (1, math.prod(stack) * rows, columns, depth)
    elif y.constant is None and tuple(stack) == second[:-2]:
        shape = (math.prod(stack), rows, columns, depth)
    else:
        return "the stacks of the factors differ, or one is constant"
    return _Match(shape, turned, Layout.LINEAR)


def _with_additions(node: Node, match: _Match) -> _Match | str:
    """The product with its bias and epilogue, or what of them the library does not do."""
    root, count = root_of(node)
    found: _Match | str = match
    if count > 2 and node.inputs[2] is not None:
        if isinstance(root, Gemm) and root.beta != 1:
            return f"what is added is multiplied by {root.beta}"
        found = _with_added(node, match, 2)
    stages = node.op.stages if isinstance(node.op, Fused) else ()
    for number, stage in enumerate(stages, 1):
        if isinstance(found, str):
            return found
        others = [argument for argument in stage.arguments if argument != -number]
        if found.activation or len(others) + 1 != len(stage.arguments):
            return f"{stage.op.name} of the epilogue is more than the library does"
        if isinstance(stage.op, Add) and others and others[0] >= count:
            found = _with_added(node, found, others[0])
        elif isinstance(stage.op, Relu):
            found = replace(found, activation="relu")
        elif isinstance(stage.op, Gelu) and stage.op.approximate == "tanh":
            found = replace(found, activation="gelu")
        else:
            return f"{stage.op.name} of the epilogue is none that the library knows"
    return found


def _with_added(node: Node, match: _Match, position: int) -> _Match | str:
    """The product with one input more: a bias, or a tensor like the result."""
    value = value_of(node, position)
    shape, whole = value.tensor.shape, node.output.tensor.shape
    columns = match.shape[2]
    along = 1 if match.layout is Layout.CHANNELS_LAST and position >= root_of(node)[1] else -1
    if value.constant is not None and match.bias is None:
        lengthened = (1,) * (len(whole) - len(shape)) + shape
        others = [extent for axis, extent in enumerate(lengthened) if axis != along % len(whole)]
        is_row = math.prod(cast("list[int]", others)) == 1 and lengthened[along] == columns
        if is_row and value.tensor.dtype in FLOATS:
            return replace(match, bias=position)
    if value.constant is None and match.added is None and shape == whole:
        return replace(match, added=position)
    return f"{value.name} {value.tensor} is no bias, nor like the result"


# ---- how they are stored


def _stored(node: Node, match: _Match, narrow: DType) -> Tactic:
    """The formats of a node's operands: those of our own kernels, so that they compete everywhere.

    The bias is packed, too, where the library wants it in another type.
    """
    layout, whole = match.layout, node.output.tensor
    inputs = [
        None
        if value is None or (position == 1 and value.constant is not None)
        else format_beside(value, layout, whole.rank)
        for position, value in enumerate(node.inputs)
    ]
    output = TensorFormat(whole.dtype, layout)
    made = Tactic(LIBRARY, (), tuple(inputs), (output,), cost_hint=math.inf)
    return made if narrow is DType.FLOAT32 else store_as(narrow, node, made)


def _why_not(stored: Tactic, match: _Match) -> str | None:
    """Why the library cannot go by the types in which operands are stored, or None."""
    first, second = stored.inputs[:2]
    if second is not None and first is not None and first.dtype is not second.dtype:
        return f"the factors are stored as {first.dtype.value} and {second.dtype.value}"
    added = None if match.added is None else stored.inputs[match.added]
    result = stored.outputs[0].dtype
    if added is not None and added.dtype is not result:
        return f"what is added is stored as {added.dtype.value}, the result as {result.value}"
    return None


def _factor_type(tactic: Tactic) -> DType:
    return cast("TensorFormat", tactic.inputs[0]).dtype


def _columns(node: Node, weights: Constant) -> Constant:
    """A constant second factor, the elements of a column side by side."""
    root = root_of(node)[0]
    if isinstance(root, Conv):
        shape = Constant(f"{weights.name}.filters", np.array([weights.type.shape[0], -1], np.int64))
        return Constant.derive(f"{weights.name}.rows", Reshape(), weights, shape)
    if isinstance(root, Gemm) and root.trans_b:
        return weights
    return Constant.derive(f"{weights.name}.columns_first", Transpose((1, 0)), weights)


def _call(node: Node, match: _Match, tactic: Tactic) -> LibraryCall:
    options = dict(tactic.parameters)
    matrices, rows, columns, depth = match.shape
    return LibraryCall(
        version=cast("int", options["version"]),
        matrices=matrices,
        rows=rows,
        columns=columns,
        depth=depth,
        turned=match.turned,
        factors=_factor_type(tactic),
        result=tactic.outputs[0].dtype,
        precision=str(options["precision"]),
        alpha=float(match.alpha),
        adds=match.added is not None,
        bias=match.bias is not None,
        activation=match.activation,
        workspace_bytes=cast("int", options["workspace"]),
        algorithm=str(options["algorithm"]),
    )


def _check_place(view: View, layout: Layout) -> None:
    """Operands lie as the family asks for: from a round address on, and without holes."""
    kind = TensorType(view.dtype, view.shape)
    order = layout if kind.rank > 2 else Layout.LINEAR
    wanted = zip(view.shape, view.strides, contiguous_strides(kind, order), strict=True)
    whole = all(extent == 1 or stride == right for extent, stride, right in wanted)
    if not whole or not isinstance(view.offset, int) or view.offset % ALIGNED_BYTES:
        raise InternalError(f"an operand of a library call lies at {view}")
