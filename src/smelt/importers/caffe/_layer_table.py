"""Table of the supported layer types, and the set of those that are removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt import ops
from smelt.importers.caffe import _convolution_pooling as filters
from smelt.importers.caffe import _data_movement as movement
from smelt.importers.caffe import _detection as detection
from smelt.importers.caffe import _elementwise as elementwise
from smelt.importers.caffe._elementwise import one_op

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.importers.caffe._layer_context import LayerContext
    from smelt.importers.caffe._prototxt import Layer
    from smelt.ir import Value


@dataclass(frozen=True, slots=True)
class Rule:
    """The import rule of a layer type."""

    convert: Callable[[LayerContext], list[Value]]
    """Adds the nodes of a layer, and returns the value of each top."""
    field: str | None = None
    """Name of the layer's field that has the parameters; None for a type without parameters."""
    bottoms: tuple[int, int] | None = (1, 1)
    """Fewest and most bottoms; None if ``convert`` takes any number or checks it."""
    refuse: Callable[[Any], str | None] = lambda _: None
    """Returns why parameters are not supported, as far as that is known without shapes."""

    def parameters(self, layer: Layer) -> Any:
        """Return the parameters of a layer; None for a type without parameters."""
        return None if self.field is None else layer.parameters(self.field)


_CONVOLUTION: Final = Rule(
    filters.convert_convolution, "convolution_param", None, filters.refuse_convolution
)

LAYERS: Final = {
    "AbsVal": Rule(one_op(lambda _: ops.Abs())),
    "ArgMax": Rule(movement.convert_arg_max, "argmax_param", refuse=movement.refuse_arg_max),
    "BNLL": Rule(one_op(lambda _: ops.Softplus())),
    "BatchNorm": Rule(
        elementwise.convert_batch_norm, "batch_norm_param", refuse=elementwise.refuse_batch_norm
    ),
    "Bias": Rule(elementwise.convert_bias, "bias_param", bottoms=(1, 2)),
    "Concat": Rule(movement.convert_concat, "concat_param", bottoms=None),
    "Convolution": _CONVOLUTION,
    "ConvolutionDepthwise": _CONVOLUTION,
    "Crop": Rule(movement.convert_crop, "crop_param", bottoms=(2, 2)),
    "Deconvolution": _CONVOLUTION,
    "DetectionOutput": Rule(
        detection.convert_detection_output,
        "detection_output_param",
        (3, 4),
        detection.refuse_detection_output,
    ),
    "Dropout": Rule(movement.convert_identity),
    "ELU": Rule(one_op(lambda step: ops.Elu(step.parameters.alpha)), "elu_param"),
    "Eltwise": Rule(elementwise.convert_eltwise, "eltwise_param", bottoms=None),
    "Embed": Rule(movement.convert_embed, "embed_param"),
    "Exp": Rule(elementwise.convert_exp, "exp_param"),
    "Flatten": Rule(movement.convert_flatten, "flatten_param"),
    "InnerProduct": Rule(filters.convert_inner_product, "inner_product_param"),
    "Interp": Rule(detection.convert_interp, "interp_param"),
    "LRN": Rule(filters.convert_lrn, "lrn_param"),
    "Log": Rule(elementwise.convert_log, "log_param"),
    "MVN": Rule(elementwise.convert_mvn, "mvn_param"),
    "Normalize": Rule(detection.convert_normalize, "norm_param"),
    "PReLU": Rule(elementwise.convert_prelu, "prelu_param"),
    "Permute": Rule(movement.convert_permute, "permute_param"),
    "Pooling": Rule(filters.convert_pooling, "pooling_param", refuse=filters.refuse_pooling),
    "Power": Rule(elementwise.convert_power, "power_param"),
    "PriorBox": Rule(
        detection.convert_prior_box, "prior_box_param", (2, 2), detection.refuse_prior_box
    ),
    "ReLU": Rule(one_op(elementwise.relu), "relu_param"),
    "ReLU6": Rule(elementwise.convert_relu6),
    "Reduction": Rule(movement.convert_reduction, "reduction_param"),
    "Reshape": Rule(movement.convert_reshape, "reshape_param"),
    "Scale": Rule(elementwise.convert_scale, "scale_param", bottoms=(1, 2)),
    "ShuffleChannel": Rule(movement.convert_shuffle_channel, "shuffle_channel_param"),
    "Sigmoid": Rule(one_op(lambda _: ops.Sigmoid())),
    "Slice": Rule(movement.convert_slice, "slice_param"),
    "Softmax": Rule(
        one_op(lambda step: ops.Softmax(step.axis(step.parameters.axis))), "softmax_param"
    ),
    "Split": Rule(movement.convert_identity),
    "TanH": Rule(one_op(lambda _: ops.Tanh())),
    "Threshold": Rule(elementwise.convert_threshold, "threshold_param"),
    "Tile": Rule(movement.convert_tile, "tile_param"),
    "Upsample": Rule(detection.convert_upsample, "upsample_param"),
}

DROPPED: Final = frozenset((
    "Accuracy", "ContrastiveLoss", "DetectionEvaluate", "EuclideanLoss", "HDF5Output",
    "HingeLoss", "InfogainLoss", "MultiBoxLoss", "MultinomialLogisticLoss",
    "SigmoidCrossEntropyLoss", "Silence", "SmoothL1Loss", "SoftmaxWithLoss",
))  # fmt: skip
"""Layer types that are not needed for inference. Their bottoms become outputs, except those of
Silence.
"""
