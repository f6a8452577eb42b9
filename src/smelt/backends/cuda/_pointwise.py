"""One pass over an iteration space: the kernel under elementwise ops, copies and fills.

Axes that run on in every operand are joined. A program does a block of running indices; where
operands have strides of their own, indices are taken apart into coordinates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from smelt.backends._axes import Axis, broadcast_strides, common_axes
from smelt.backends._scalars import Scalars
from smelt.backends.cuda._elementwise import write_stages
from smelt.backends.cuda._source import Source, operand_parameters
from smelt.engine import KernelSpec, Launch, parameters
from smelt.types import ceil_div, element_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.engine import Json, View
    from smelt.types import Dim

_BLOCK: Final = 1024
_SMALL_BLOCK: Final = 256
_FEW: Final = 1 << 17
"""Below so many elements smaller blocks occupy more of the GPU."""


def pointwise_launch(family: str, views: Sequence[View], stages: Json) -> Launch:
    """The launch of a program whose operands are ``views``, the last of them the result."""
    output = views[-1]
    strides = [broadcast_strides(v, output.shape) for v in views]
    axes = common_axes(output.shape, strides, len(views) - 1)
    scalars = Scalars()
    count: Dim = element_count(tuple(a.extent for a in axes))
    block = _SMALL_BLOCK if isinstance(count, int) and count < _FEW else _BLOCK
    spaces = tuple(a.json(scalars) for a in axes or [Axis(1, (0,) * len(views))])
    spec = KernelSpec(
        family,
        parameters(
            axes=spaces,
            block=block,
            stages=stages,
            total=scalars.json(count),
            warps=block // 256 if block > _SMALL_BLOCK else 4,
            pipeline=1,
            **operand_parameters(views, len(scalars.values)),
        ),
    )
    return Launch(spec, tuple(views), (len(views) - 1,), scalars.values, ceil_div(count, block))


def write_pointwise(kernel: KernelSpec) -> str:
    """The kernel's text."""
    s = Source(kernel)
    axes: Any = kernel["axes"]
    block, total = kernel["block"], kernel["total"]
    s.line(f"i = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})")
    mask: str | None = None
    if not isinstance(total, int) or total % block:
        s.line(f"m = i < {s.extent(total)}")
        mask = "m"
    names = [f"c{k}" for k in range(len(axes))]
    s.unravel("i", [axis[0] for axis in axes], names)

    def offset(operand: int) -> str:
        at = s.offset(names, axes, operand)
        return at if at != "0" else "i * 0"

    read = s.reading(0, offset, mask)
    result = write_stages(s.line, kernel["stages"], read, [])
    last = len(s.dtypes) - 1
    s.store(last, offset(last), result, mask)
    return s.text()
