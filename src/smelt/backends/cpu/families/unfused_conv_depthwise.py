"""A fused pair as two sets of launches, with the intermediate tensor in the workspace.

The launches are those of the two nodes without fusion. The family exists for pairs that
`FusedConvDepthwiseFamily` does not support or does not run faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends import (
    Family,
    NodeRefusedError,
    Operands,
    StoredTensor,
    Tactic,
    root_as,
    with_storage_dtype,
)
from smelt.backends._base import refuse_if
from smelt.backends._fused_programs import root_of
from smelt.backends._node_operands import workspace_of
from smelt.backends._pair_nodes import PairNodes, pair_nodes_of
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._dot_product import dot_product_for
from smelt.backends.cpu.families._operand_packing import CHANNELS_LAST
from smelt.backends.cpu.families.conv import ConvFamily, halo_of
from smelt.backends.cpu.families.depthwise import DepthwiseFamily
from smelt.backends.cpu.families.reformat import clear_launch
from smelt.backends.cpu.families.winograd import WinogradFamily
from smelt.engine import Launch, Space, Step, View, parameters
from smelt.ops import Conv, FusedPair
from smelt.types import Dim, DType, ceil_div, override

if TYPE_CHECKING:
    from smelt.engine import Parameters
    from smelt.ir import Constant, Node

_FAMILIES: Final[dict[str, ConvFamily | WinogradFamily]] = {
    family.name: family for family in (ConvFamily(), WinogradFamily())
}
"""Families that can run the first convolution, by name."""
_SECOND: Final = DepthwiseFamily()
"""Family that runs the depthwise convolution."""
_LINE_BYTES: Final = 64
"""Size in bytes of a cache line, to which the intermediate tensor is rounded up."""


def conv_depthwise_pair(node: Node) -> PairNodes | None:
    """Return the nodes of a pair that ends in a depthwise convolution, or None.

    Pairs that also return the intermediate tensor are not accepted.
    """
    if not isinstance(node.op, FusedPair) or node.op.returns_intermediate:
        return None
    pair_nodes = pair_nodes_of(node)
    root = root_of(pair_nodes.second)[0]
    return pair_nodes if isinstance(root, Conv) and root.group > 1 else None


def joined_tactic(family: str, options: Parameters, a: Tactic, b: Tactic, seconds: float) -> Tactic:
    """Return the tactic of a pair, with the operands of a tactic of each of its nodes."""
    halos = (
        *(a.halos or ((),) * len(a.input_formats)),
        *(b.halos or ((),) * len(b.input_formats))[1:],
    )
    inputs, has_halos = (*a.input_formats, *b.input_formats[1:]), any(map(any, halos))
    tactic = Tactic(family, options, inputs, b.output_formats, estimated_seconds=seconds)
    return replace(tactic, halos=halos) if has_halos else tactic


class UnfusedConvDepthwiseFamily(Family[CpuTarget]):
    """A convolution and a depthwise convolution, each with its own kernels."""

    name: ClassVar[str] = "unfused_conv_depthwise"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        pair_nodes = conv_depthwise_pair(node)
        if pair_nodes is None:
            return
        first: list[Tactic] = []
        second: list[Tactic] = []
        reasons: list[str] = []
        parts = [(first, family, pair_nodes.first) for family in _FAMILIES.values()]
        for tactics, family, part in (*parts, (second, _SECOND, pair_nodes.second)):
            try:
                tactics += family.tactics(part, target)
            except NodeRefusedError as error:
                reasons.append(error.reason)
        refuse_if("; ".join(dict.fromkeys(reasons)) if not (first and second) else None)
        for a in _best(first):
            for b in _best(second):
                yield self._both(pair_nodes, a, b)

    def _both(self, pair_nodes: PairNodes, a: Tactic, b: Tactic) -> Tactic:
        """Return the tactic that combines a tactic of each convolution."""
        options = parameters(first=(a.family, a.parameters), second=(b.family, b.parameters))
        tactic = joined_tactic(self.name, options, a, b, a.estimated_seconds + b.estimated_seconds)
        size = _intermediate_bytes(pair_nodes, DType.FLOAT32) + a.workspace_bytes
        return replace(tactic, workspace_bytes=size)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        """Return the tactic with narrow input, intermediate and result."""
        pair_nodes, (a, _) = pair_nodes_of(node), _parts(tactic)
        narrow = with_storage_dtype(dtype, node, tactic)
        of_first, dot_product = dict(a.parameters), dot_product_for(dtype, target)
        input_format = narrow.input_formats[0]
        stored = input_format.dtype if input_format else None
        if a.family == ConvFamily.name and stored is dot_product.factor:
            of_first["dot_product"] = dot_product.name
        first_workspace = tactic.workspace_bytes - _intermediate_bytes(pair_nodes, DType.FLOAT32)
        options = {**dict(narrow.parameters), "first": (a.family, parameters(**of_first))}
        own = parameters(**options, intermediate=dtype.value)
        size = _intermediate_bytes(pair_nodes, dtype) + first_workspace
        return (replace(narrow, parameters=own, workspace_bytes=size),)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        pair_nodes, (a, b) = pair_nodes_of(node), _parts(tactic)
        return (*_FAMILIES[a.family].pack(pair_nodes.first, a), *_SECOND.pack(pair_nodes.second, b))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        pair_nodes, (a, b) = pair_nodes_of(node), _parts(tactic)
        workspace, count = workspace_of(node, operands), len(pair_nodes.first.inputs)
        stored = DType(tactic.options.get("intermediate", DType.FLOAT32.value))
        intermediate = _intermediate_view(pair_nodes, workspace, stored)
        used = _intermediate_bytes(pair_nodes, stored)
        free_workspace = replace(
            workspace, offset=workspace.offset + used, shape=(workspace.shape[0] - used,)
        )
        first_packed = len(_FAMILIES[a.family].pack(pair_nodes.first, a))
        first_operands = Operands(
            operands.inputs[:count], (intermediate,), operands.packed[:first_packed], free_workspace
        )
        steps = list(_FAMILIES[a.family].lower(pair_nodes.first, a, first_operands))
        if intermediate.halo:
            # The first kernel and the clearing write different bytes, so they may run together.
            steps[0] = replace(cast("Launch", steps[0]), waits=False)
            steps.insert(0, clear_launch(intermediate))
        inputs = (intermediate, *operands.inputs[count:])
        second_operands = Operands(inputs, operands.outputs, operands.packed[first_packed:])
        return (*steps, *_SECOND.lower(pair_nodes.second, b, second_operands))


def _best(tactics: Sequence[Tactic]) -> list[Tactic]:
    """Return the two tactics with the least estimated cost."""
    return sorted(tactics, key=lambda t: t.estimated_seconds)[:2]


def _parts(tactic: Tactic) -> tuple[Tactic, Tactic]:
    """Return the two tactics with the fields that packing and lowering use."""
    options: Any = tactic.options
    (first, of_first), (second, of_second) = options["first"], options["second"]
    return Tactic(first, of_first, (), ()), Tactic(second, of_second, (), ())


def _intermediate_tensor(pair_nodes: PairNodes, dtype: DType) -> StoredTensor:
    """Return the intermediate tensor with the halo that the depthwise convolution reads."""
    root = root_as(Conv, pair_nodes.second)
    value, halo = pair_nodes.first.output, halo_of(pair_nodes.second, root)
    form = replace(CHANNELS_LAST, dtype=dtype)
    return StoredTensor(value.name, value.tensor, form, Space.ARENA, halo=halo)


def _intermediate_bytes(pair_nodes: PairNodes, dtype: DType) -> Dim:
    """Return the size of the intermediate tensor in bytes, rounded up to cache lines."""
    *_, size = _intermediate_tensor(pair_nodes, dtype).geometry()
    return ceil_div(size, _LINE_BYTES) * _LINE_BYTES


def _intermediate_view(pair_nodes: PairNodes, workspace: View, dtype: DType) -> View:
    """Return the view of the intermediate tensor in the workspace."""
    stored = _intermediate_tensor(pair_nodes, dtype)
    strides, offset, _ = stored.geometry()
    shape = stored.type.shape
    return View(workspace.buffer, workspace.offset + offset, dtype, shape, strides, stored.halo)
