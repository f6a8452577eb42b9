"""Two ops of a chain, one after the other: what is between them lies in the workspace.

This is what the two would be without the chain; it is there for whatever `PanelwiseFamily` cannot
do or does no faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends import Family, Operands, Refusal, Stored, Tactic, store_as
from smelt.backends._fusion import root_of
from smelt.backends._links import links_in, links_of
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._arithmetic import arithmetic_for
from smelt.backends.cpu.families._operands import CHANNELS_LAST
from smelt.backends.cpu.families.conv import ConvFamily, halo_of
from smelt.backends.cpu.families.copy import clear_launch
from smelt.backends.cpu.families.depthwise import DepthwiseFamily
from smelt.backends.cpu.families.winograd import WinogradFamily
from smelt.engine import Launch, Space, View, parameters
from smelt.errors import InternalError
from smelt.ops.conv import Conv
from smelt.types import DType, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.backends._links import Links
    from smelt.engine import KernelSpec, Step
    from smelt.ir import Constant, Node
    from smelt.types import Dim

_FAMILIES: Final[dict[str, Family[CpuTarget]]] = {
    family.name: family for family in (ConvFamily(), WinogradFamily())
}
"""What runs the first of the two."""
_SECOND: Final = DepthwiseFamily()
_LINE_BYTES: Final = 64


def depthwise_links(node: Node) -> Links | None:
    """The nodes of a chain that ends in a depthwise convolution, and keeps nothing; or None."""
    links = links_of(node)
    if links is None or links.keeps:
        return None
    root = root_of(links.second)[0]
    return links if isinstance(root, Conv) and root.group > 1 else None


class ChainFamily(Family[CpuTarget]):
    """A convolution and a depthwise one, each with its own kernels."""

    name: ClassVar[str] = "chain"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        links = depthwise_links(node)
        if links is None:
            return
        answers = [a for f in _FAMILIES.values() for a in f.tactics(links.first, target)]
        others = list(_SECOND.tactics(links.second, target))
        first, second = _best(answers, 2), _best(others, 2)
        for answer in (*answers, *others):
            if isinstance(answer, Refusal) and not (first and second):
                yield replace(answer, family=self.name)
        for a in first:
            for b in second:
                yield self._both(links, a, b)

    def _both(self, links: Links, a: Tactic, b: Tactic) -> Tactic:
        halos = (*(a.halos or ((),) * len(a.inputs)), *(b.halos or ((),) * len(b.inputs))[1:])
        return Tactic(
            self.name,
            parameters(first=(a.family, a.parameters), second=(b.family, b.parameters)),
            (*a.inputs, *b.inputs[1:]),
            b.outputs,
            halos if any(map(any, halos)) else (),
            workspace_bytes=_between_bytes(links, DType.FLOAT32) + a.workspace_bytes,
            cost_hint=a.cost_hint + b.cost_hint,
        )

    @override
    def narrowed(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        """Narrow on both sides and in between."""
        links, made, a = links_in(node), store_as(dtype, node, tactic), _parts(tactic)[0]
        of_first, arithmetic = dict(a.parameters), arithmetic_for(dtype, target)
        read = made.inputs[0]
        if a.family == ConvFamily.name and read and read.dtype is arithmetic.factor:
            of_first["arithmetic"] = arithmetic.name
        own = tactic.workspace_bytes - _between_bytes(links, DType.FLOAT32)
        options = {**dict(made.parameters), "first": (a.family, parameters(**of_first))}
        return (
            replace(
                made,
                parameters=parameters(**options, between=dtype.value),
                workspace_bytes=_between_bytes(links, dtype) + own,
            ),
        )

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        links, (a, b) = links_in(node), _parts(tactic)
        return (*_FAMILIES[a.family].pack(links.first, a), *_SECOND.pack(links.second, b))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        links, (a, b) = links_in(node), _parts(tactic)
        workspace, count = operands.workspace, len(links.first.inputs)
        if workspace is None:
            raise InternalError(f"{node} has no workspace for what is between its ops")
        stored = DType(dict(tactic.parameters).get("between", DType.FLOAT32.value))
        between, used = _between_view(links, workspace, stored), _between_bytes(links, stored)
        rest = replace(
            workspace, offset=workspace.offset + used, shape=(workspace.shape[0] - used,)
        )
        own = len(_FAMILIES[a.family].pack(links.first, a))
        written = Operands(operands.inputs[:count], (between,), operands.packed[:own], rest)
        steps = list(_FAMILIES[a.family].lower(links.first, a, written))
        if between.halo:
            # The first kernel writes beside what is cleared, at the same time.
            steps[0] = replace(cast("Launch", steps[0]), waits=False)
            steps.insert(0, clear_launch(between))
        inputs = (between, *operands.inputs[count:])
        read = Operands(inputs, operands.outputs, operands.packed[own:])
        return (*steps, *_SECOND.lower(links.second, b, read))

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        raise InternalError("a chain of two kernels has no kernel of its own")


def _best(answers: Sequence[Tactic | Refusal], count: int) -> list[Tactic]:
    tactics = [a for a in answers if isinstance(a, Tactic)]
    return sorted(tactics, key=lambda t: t.cost_hint)[:count]


def _parts(tactic: Tactic) -> tuple[Tactic, Tactic]:
    """The two tactics, as far as lowering asks for them."""
    options: Any = dict(tactic.parameters)
    (first, of_first), (second, of_second) = options["first"], options["second"]
    return Tactic(first, of_first, (), ()), Tactic(second, of_second, (), ())


def _between(links: Links, dtype: DType) -> Stored:
    """The tensor between the two, with the zeros that the second reads."""
    root = cast("Conv", root_of(links.second)[0])
    value, halo = links.first.output, halo_of(links.second, root)
    form = replace(CHANNELS_LAST, dtype=dtype)
    return Stored(value.name, value.tensor, form, Space.ARENA, halo=halo)


def _between_bytes(links: Links, dtype: DType) -> Dim:
    """Its size, rounded up to cache lines."""
    return ceil_div(_between(links, dtype).geometry()[2], _LINE_BYTES) * _LINE_BYTES


def _between_view(links: Links, workspace: View, dtype: DType) -> View:
    """Its window on the workspace."""
    stored = _between(links, dtype)
    strides, offset, _ = stored.geometry()
    shape = stored.type.shape
    return View(workspace.buffer, workspace.offset + offset, dtype, shape, strides, stored.halo)
