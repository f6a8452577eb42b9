"""Table of the supported layer types, and the set of those that are removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smelt import ops
from smelt.importers.caffe import _convolution_pooling as filters
from smelt.importers.caffe import _detection as detection
from smelt.importers.caffe import _elementwise as elementwise
from smelt.importers.caffe import _shapes as shapes

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
    refuse: Callable[[Layer], str | None] | None = None
    """Returns why parameters are not supported, as far as that is known without shapes."""


LAYERS: Final = {
    "AbsVal": Rule(elementwise.unary(ops.Abs)),
    "ArgMax": Rule(shapes.convert_arg_max, shapes.refuse_arg_max),
    "BNLL": Rule(elementwise.unary(ops.Softplus)),
    "BatchNorm": Rule(elementwise.convert_batch_norm, elementwise.refuse_batch_norm),
    "Bias": Rule(elementwise.convert_bias),
    "Concat": Rule(shapes.convert_concat),
    "Convolution": Rule(filters.convert_convolution, filters.refuse_convolution),
    "ConvolutionDepthwise": Rule(filters.convert_convolution, filters.refuse_convolution),
    "Crop": Rule(shapes.convert_crop),
    "Deconvolution": Rule(filters.convert_convolution, filters.refuse_convolution),
    "DetectionOutput": Rule(detection.convert_detection_output, detection.refuse_detection_output),
    "Dropout": Rule(shapes.convert_identity),
    "ELU": Rule(elementwise.convert_elu),
    "Eltwise": Rule(elementwise.convert_eltwise),
    "Embed": Rule(shapes.convert_embed),
    "Exp": Rule(elementwise.convert_exp),
    "Flatten": Rule(shapes.convert_flatten),
    "InnerProduct": Rule(filters.convert_inner_product),
    "Interp": Rule(detection.convert_interp),
    "LRN": Rule(filters.convert_lrn),
    "Log": Rule(elementwise.convert_log),
    "MVN": Rule(elementwise.convert_mvn),
    "Normalize": Rule(detection.convert_normalize),
    "PReLU": Rule(elementwise.convert_prelu),
    "Permute": Rule(shapes.convert_permute),
    "Pooling": Rule(filters.convert_pooling, filters.refuse_pooling),
    "Power": Rule(elementwise.convert_power),
    "PriorBox": Rule(detection.convert_prior_box, detection.refuse_prior_box),
    "ReLU": Rule(elementwise.convert_relu),
    "ReLU6": Rule(elementwise.convert_relu6),
    "Reduction": Rule(shapes.convert_reduction),
    "Reshape": Rule(shapes.convert_reshape),
    "Scale": Rule(elementwise.convert_scale),
    "ShuffleChannel": Rule(shapes.convert_shuffle_channel),
    "Sigmoid": Rule(elementwise.unary(ops.Sigmoid)),
    "Slice": Rule(shapes.convert_slice),
    "Softmax": Rule(shapes.convert_softmax),
    "Split": Rule(shapes.convert_identity),
    "TanH": Rule(elementwise.unary(ops.Tanh)),
    "Threshold": Rule(elementwise.convert_threshold),
    "Tile": Rule(shapes.convert_tile),
    "Upsample": Rule(detection.convert_upsample),
}

DROPPED: Final = frozenset(
    {
        "Accuracy",
        "ContrastiveLoss",
        "DetectionEvaluate",
        "EuclideanLoss",
        "HDF5Output",
        "HingeLoss",
        "InfogainLoss",
        "MultiBoxLoss",
        "MultinomialLogisticLoss",
        "SigmoidCrossEntropyLoss",
        "Silence",
        "SmoothL1Loss",
        "SoftmaxWithLoss",
    }
)
"""Layer types that are not needed for inference. Their bottoms become outputs, except those of
Silence.
"""
