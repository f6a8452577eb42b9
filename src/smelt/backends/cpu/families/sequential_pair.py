"""A fused pair as two sets of launches, with the intermediate tensor in the workspace.

The launches are those of the two nodes without fusion. The family exists for pairs that
`FusedConvDepthwiseFamily` does not support or does not run faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends import (
    Family,
    Operands,
    Refusal,
    StoredTensor,
    Tactic,
    root_as,
    with_storage_dtype,
)
from smelt.backends._fused_programs import root_of
from smelt.backends._pair_nodes import find_pair_nodes, pair_nodes_of
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._dot_product import dot_product_for
from smelt.backends.cpu.families._operand_packing import CHANNELS_LAST
from smelt.backends.cpu.families.conv import ConvFamily, halo_of
from smelt.backends.cpu.families.copy import clear_launch
from smelt.backends.cpu.families.depthwise import DepthwiseFamily
from smelt.backends.cpu.families.winograd import WinogradFamily
from smelt.engine import Launch, Space, View, parameters
from smelt.errors import InternalError
from smelt.ops import Conv
from smelt.types import DType, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends._pair_nodes import PairNodes
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node
    from smelt.types import Dim

_FAMILIES: Final[dict[str, Family[CpuTarget]]] = {
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
    pair_nodes = find_pair_nodes(node)
    if pair_nodes is None or pair_nodes.returns_intermediate:
        return None
    root = root_of(pair_nodes.second)[0]
    return pair_nodes if isinstance(root, Conv) and root.group > 1 else None


class SequentialPairFamily(Family[CpuTarget]):
    """A convolution and a depthwise convolution, each with its own kernels."""

    name: ClassVar[str] = "sequential_pair"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        pair_nodes = conv_depthwise_pair(node)
        if pair_nodes is None:
            return
        answers = [a for f in _FAMILIES.values() for a in f.tactics(pair_nodes.first, target)]
        others = list(_SECOND.tactics(pair_nodes.second, target))
        first, second = _best(answers, 2), _best(others, 2)
        for answer in (*answers, *others):
            if isinstance(answer, Refusal) and not (first and second):
                yield replace(answer, family=self.name)
        for a in first:
            for b in second:
                yield self._both(pair_nodes, a, b)

    def _both(self, pair_nodes: PairNodes, a: Tactic, b: Tactic) -> Tactic:
        """Return the tactic that combines a tactic of each convolution."""
        halos = (*(a.halos or ((),) * len(a.inputs)), *(b.halos or ((),) * len(b.inputs))[1:])
        return Tactic(
            self.name,
            parameters(first=(a.family, a.parameters), second=(b.family, b.parameters)),
            (*a.inputs, *b.inputs[1:]),
            b.outputs,
            halos if any(map(any, halos)) else (),
            workspace_bytes=_intermediate_bytes(pair_nodes, DType.FLOAT32) + a.workspace_bytes,
            cost_hint=a.cost_hint + b.cost_hint,
        )

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        """Return the tactic with narrow input, intermediate and result."""
        pair_nodes, narrow, a = (
            pair_nodes_of(node),
            with_storage_dtype(dtype, node, tactic),
            _parts(tactic)[0],
        )
        of_first, dot_product = dict(a.parameters), dot_product_for(dtype, target)
        input_format = narrow.inputs[0]
        if (
            a.family == ConvFamily.name
            and input_format
            and input_format.dtype is dot_product.factor
        ):
            of_first["dot_product"] = dot_product.name
        first_workspace = tactic.workspace_bytes - _intermediate_bytes(pair_nodes, DType.FLOAT32)
        options = {**dict(narrow.parameters), "first": (a.family, parameters(**of_first))}
        return (
            replace(
                narrow,
                parameters=parameters(**options, intermediate=dtype.value),
                workspace_bytes=_intermediate_bytes(pair_nodes, dtype) + first_workspace,
            ),
        )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        pair_nodes, (a, b) = pair_nodes_of(node), _parts(tactic)
        return (*_FAMILIES[a.family].pack(pair_nodes.first, a), *_SECOND.pack(pair_nodes.second, b))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        pair_nodes, (a, b) = pair_nodes_of(node), _parts(tactic)
        workspace, count = operands.workspace, len(pair_nodes.first.inputs)
        if workspace is None:
            raise InternalError(f"{node} has no workspace for its intermediate tensor")
        stored = DType(tactic.options.get("intermediate", DType.FLOAT32.value))
        intermediate, used = (
            _intermediate_view(pair_nodes, workspace, stored),
            _intermediate_bytes(pair_nodes, stored),
        )
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

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        raise InternalError("a sequential pair has no kernel of its own")


def _best(answers: Sequence[Tactic | Refusal], count: int) -> list[Tactic]:
    """Return the ``count`` tactics with the least estimated cost."""
    tactics = [a for a in answers if isinstance(a, Tactic)]
    return sorted(tactics, key=lambda t: t.cost_hint)[:count]


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
    return (
        ceil_div(_intermediate_tensor(pair_nodes, dtype).geometry()[2], _LINE_BYTES) * _LINE_BYTES
    )


def _intermediate_view(pair_nodes: PairNodes, workspace: View, dtype: DType) -> View:
    """Return the view of the intermediate tensor in the workspace."""
    stored = _intermediate_tensor(pair_nodes, dtype)
    strides, offset, _ = stored.geometry()
    shape = stored.type.shape
    return View(workspace.buffer, workspace.offset + offset, dtype, shape, strides, stored.halo)
