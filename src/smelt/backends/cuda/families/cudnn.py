"""Family of cuDNN convolutions: one tactic for each engine that the library proposes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.backends._base import NodeRefusedError, refuse_if
from smelt.backends._fused_programs import root_as
from smelt.backends._node_operands import required_input
from smelt.backends.cuda.families._product_operands import taps_in_rows, variable_weights_reason
from smelt.backends.cuda.families.vendor_library import LibraryFamily, LibraryOperation, Proposal
from smelt.devices.cuda import ConvolutionCall, Cudnn
from smelt.ops import Conv, Relu
from smelt.types import Layout, fixed_shape, override

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smelt.ir import Constant, Node, Op

_REQUESTED_ENGINES: Final = 12
"""Number of engines requested from the library. In 45 measured layers the best of the first twelve
is within 1.3 % of the best of all (docs/lab/libraries-on-gpus.md)."""
_MIN_AXES: Final = 2
"""Minimum number of spatial axes; images of fewer get leading axes of extent 1."""
_MAX_AXES: Final = 3
"""Maximum number of spatial axes."""


class CudnnFamily(LibraryFamily[ConvolutionCall, Cudnn]):
    """Convolutions with or without groups, with a fused residual, bias and ReLU."""

    name: ClassVar[str] = ConvolutionCall.provider
    roots: ClassVar[tuple[type[Op], ...]] = (Conv,)
    uses_int32_offsets: ClassVar[bool] = True

    @override
    def matched(self, node: Node) -> LibraryOperation:
        root = root_as(Conv, node)
        refuse_if(variable_weights_reason(required_input(node, 1)))
        axes = len(root.kernel_shape)
        if not 0 < axes <= _MAX_AXES:
            raise NodeRefusedError(
                f"the number of spatial axes is {axes}; it must be 1 to {_MAX_AXES}"
            )
        images, filters = (fixed_shape(required_input(node, n).tensor.shape) for n in (0, 1))
        ones, zeros = (1,) * max(0, _MIN_AXES - axes), (0,) * max(0, _MIN_AXES - axes)
        fields = {
            "images": (*images[:2], *ones, *images[2:]),
            "filters": (*filters[:2], *ones, *filters[2:]),
            "strides": (*ones, *root.strides),
            "dilations": (*ones, *root.dilations),
            "pads": (*zeros, *root.pads[:axes], *zeros, *root.pads[axes:]),
        }
        return LibraryOperation(fields=fields, columns=filters[0], layout=Layout.CHANNELS_LAST)

    @override
    def activation(self, op: Op) -> str | None:
        return "relu" if isinstance(op, Relu) else None

    @override
    def call(self, operation: LibraryOperation, **fields: Any) -> ConvolutionCall:
        is_relu = operation.activation == "relu"
        return ConvolutionCall(relu=is_relu, **operation.fields, **fields)

    @override
    def proposals(self, call: ConvolutionCall) -> Iterable[Proposal]:
        engines = self.loaded_library.engines(call, count=_REQUESTED_ENGINES)
        return [({"engine": e.number, "knobs": e.knobs}, e.workspace_bytes) for e in engines]

    @override
    def factor(self, node: Node, weights: Constant) -> Constant:
        return taps_in_rows(weights)

    @override
    def rows(self, call: ConvolutionCall) -> tuple[int, int]:
        count, _, *extents = call.shape
        return 1, count * prod(extents)
