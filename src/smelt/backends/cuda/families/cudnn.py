"""Family of cuDNN convolutions: one tactic for each engine that the library proposes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, cast

import numpy as np

from smelt.backends._fused_programs import root_as
from smelt.backends._node_operands import required_input
from smelt.backends.cuda.families._gemm_operands import factor_type, taps_in_rows
from smelt.backends.cuda.families.vendor_library import LibraryFamily, Match, Proposal
from smelt.devices.cuda import ConvolutionCall, Cudnn
from smelt.ops import Conv, Relu
from smelt.types import Layout, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.backends._base import Tactic
    from smelt.devices.cuda import LibraryCall
    from smelt.ir import Constant, Node, Op

_REQUESTED_ENGINES: Final = 12
"""Number of engines requested from the library. In 45 measured layers the best of the first twelve
is within 1.3 % of the best of all (docs/lab/libraries-on-gpus.md)."""
_MIN_AXES: Final = 2
"""Minimum number of spatial axes; images of fewer get leading axes of extent 1."""
_MAX_AXES: Final = 3
"""Maximum number of spatial axes."""


class CudnnFamily(LibraryFamily[Match]):
    """Convolutions with or without groups, with a fused residual, bias and ReLU."""

    name: ClassVar[str] = ConvolutionCall.provider
    roots: ClassVar[tuple[type[Op], ...]] = (Conv,)
    uses_int32_offsets: ClassVar[bool] = True

    def __init__(self, library: Cudnn) -> None:
        super().__init__(library)
        self.cudnn = library

    @override
    def matched(self, node: Node) -> Match | str:
        root, weights = root_as(Conv, node), required_input(node, 1)
        if weights.constant is None:
            return f"the weights {weights.name} are not constant"
        if not 0 < len(root.kernel_shape) <= _MAX_AXES:
            return f"images of {len(root.kernel_shape)} spatial axes are not supported"
        return Match(columns=fixed_extent(weights.tensor.shape[0]), layout=Layout.CHANNELS_LAST)

    @override
    def activation(self, op: Op) -> str | None:
        return "relu" if isinstance(op, Relu) else None

    @override
    def call(self, node: Node, match: Match, tactic: Tactic) -> ConvolutionCall:
        root, options = root_as(Conv, node), tactic.options
        axes = len(root.kernel_shape)
        images, filters = (
            fixed_shape(required_input(node, position).tensor.shape) for position in (0, 1)
        )
        ones, zeros = (1,) * max(0, _MIN_AXES - axes), (0,) * max(0, _MIN_AXES - axes)
        return ConvolutionCall(
            version=options.integer("version"),
            images=(*images[:2], *ones, *images[2:]),
            filters=(*filters[:2], *ones, *filters[2:]),
            strides=(*ones, *root.strides),
            dilations=(*ones, *root.dilations),
            pads=(*zeros, *root.pads[:axes], *zeros, *root.pads[axes:]),
            factors=factor_type(tactic),
            result=tactic.outputs[0].dtype,
            precision=str(options["precision"]),
            adds=match.added is not None,
            bias=match.bias is not None,
            relu=match.activation == "relu",
            workspace_bytes=options.integer("workspace", 0),
            engine=options.integer("engine", 0),
            knobs=cast("tuple[tuple[int, int], ...]", options.get("knobs", ())),
        )

    @override
    def proposals(self, call: LibraryCall) -> Iterable[Proposal]:
        engines = self.cudnn.engines(cast("ConvolutionCall", call), count=_REQUESTED_ENGINES)
        return [({"engine": e.number, "knobs": e.knobs}, e.workspace_bytes) for e in engines]

    @override
    def factor(self, node: Node, weights: Constant) -> Constant:
        return taps_in_rows(weights)

    @override
    def rows(self, call: LibraryCall) -> tuple[int, int]:
        count, _, *extents = cast("ConvolutionCall", call).shape
        return 1, count * int(np.prod(extents))
