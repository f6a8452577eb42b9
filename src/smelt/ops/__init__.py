"""The ops: attributes, type inference, numpy reference and conformance cases of each.

Elementwise ops and reductions are in five family modules (``activations``, ``arithmetic``,
``logic``, ``math_functions``, ``reductions``). Every other op has a module named after it.
``ALL_OPS`` lists every op.
"""

from smelt.ir import Array, Case, Op, Operand
from smelt.ops._attribute_types import checked_op
from smelt.ops._constant_combining import combined_overflow_reason, derived_overflow_reason
from smelt.ops._op_json import op_from_json, op_to_json, recipe_from_json, recipe_to_json
from smelt.ops._quantized import invalid_scale_reason
from smelt.ops._registry import lookup_op, op_identity, register_op
from smelt.ops._shape import is_same_for_rows
from smelt.ops.activations import (
    Celu,
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    Relu,
    Selu,
    Shrink,
    Sigmoid,
    Softplus,
    Softsign,
    Swish,
    ThresholdedRelu,
)
from smelt.ops.arg_max import ArgMax
from smelt.ops.arg_min import ArgMin
from smelt.ops.arithmetic import Add, Div, Max, Mean, Min, Mod, Mul, Pow, Sub, Sum
from smelt.ops.attention import Attention
from smelt.ops.average_pool import AveragePool
from smelt.ops.batch_normalization import BatchNormalization
from smelt.ops.cast import Cast
from smelt.ops.clip import Clip
from smelt.ops.compress import Compress
from smelt.ops.concat import Concat
from smelt.ops.constant_of_shape import ConstantOfShape
from smelt.ops.conv import Conv
from smelt.ops.conv_integer import ConvInteger
from smelt.ops.conv_sum import ConvSum
from smelt.ops.conv_transpose import ConvTranspose
from smelt.ops.crop import Crop
from smelt.ops.cum_sum import CumSum
from smelt.ops.depth_to_space import DepthToSpace
from smelt.ops.dequantize_linear import DequantizeLinear
from smelt.ops.detection_output import DetectionOutput
from smelt.ops.dynamic_quantize_linear import DynamicQuantizeLinear
from smelt.ops.einsum import Einsum
from smelt.ops.expand import Expand
from smelt.ops.flatten import Flatten
from smelt.ops.fused import Fused, Stage
from smelt.ops.fused_pair import FusedPair
from smelt.ops.gather import Gather
from smelt.ops.gather_elements import GatherElements
from smelt.ops.gather_nd import GatherND
from smelt.ops.gemm import Gemm
from smelt.ops.global_average_pool import GlobalAveragePool
from smelt.ops.global_max_pool import GlobalMaxPool
from smelt.ops.group_normalization import GroupNormalization
from smelt.ops.gru import GRU
from smelt.ops.hardmax import Hardmax
from smelt.ops.identity import Identity
from smelt.ops.if_ import If
from smelt.ops.instance_normalization import InstanceNormalization
from smelt.ops.layer_normalization import LayerNormalization
from smelt.ops.log_softmax import LogSoftmax
from smelt.ops.logic import (
    And,
    BitShift,
    BitwiseNot,
    Equal,
    Greater,
    GreaterOrEqual,
    IsInf,
    IsNaN,
    Less,
    LessOrEqual,
    Not,
    Or,
    Xor,
)
from smelt.ops.loop import Loop
from smelt.ops.lp_normalization import LpNormalization
from smelt.ops.lp_pool import LpPool
from smelt.ops.lrn import LRN
from smelt.ops.lstm import LSTM
from smelt.ops.mat_mul import MatMul
from smelt.ops.mat_mul_integer import MatMulInteger
from smelt.ops.math_functions import (
    Abs,
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Ceil,
    Cos,
    Cosh,
    Erf,
    Exp,
    Floor,
    Log,
    Neg,
    Reciprocal,
    Round,
    RoundMantissa,
    Sign,
    Sin,
    Sinh,
    Sqrt,
    Tan,
    Tanh,
)
from smelt.ops.max_pool import MaxPool
from smelt.ops.non_max_suppression import NonMaxSuppression
from smelt.ops.non_zero import NonZero
from smelt.ops.normalize import Normalize
from smelt.ops.one_hot import OneHot
from smelt.ops.pad import Pad
from smelt.ops.prelu import PRelu
from smelt.ops.prior_box import PriorBox
from smelt.ops.quantize_linear import QuantizeLinear
from smelt.ops.range import Range
from smelt.ops.reductions import (
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
)
from smelt.ops.reshape import Reshape
from smelt.ops.resize import Resize
from smelt.ops.rms_normalization import RMSNormalization
from smelt.ops.rnn import RNN
from smelt.ops.scatter_elements import ScatterElements
from smelt.ops.scatter_nd import ScatterND
from smelt.ops.shape import Shape
from smelt.ops.size import Size
from smelt.ops.slice import Slice
from smelt.ops.softmax import Softmax
from smelt.ops.space_to_depth import SpaceToDepth
from smelt.ops.split import Split
from smelt.ops.squeeze import Squeeze
from smelt.ops.tile import Tile
from smelt.ops.top_k import TopK
from smelt.ops.transpose import Transpose
from smelt.ops.trilu import Trilu
from smelt.ops.unsqueeze import Unsqueeze
from smelt.ops.where import Where

__all__ = [
    "ALL_OPS",
    "GRU",
    "LRN",
    "LSTM",
    "RNN",
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "Array",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Attention",
    "AveragePool",
    "BatchNormalization",
    "BitShift",
    "BitwiseNot",
    "Case",
    "Cast",
    "Ceil",
    "Celu",
    "FusedPair",
    "Clip",
    "Compress",
    "Concat",
    "ConstantOfShape",
    "Conv",
    "ConvInteger",
    "ConvSum",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "Crop",
    "CumSum",
    "DepthToSpace",
    "DequantizeLinear",
    "DetectionOutput",
    "Div",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "Flatten",
    "Floor",
    "Fused",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Greater",
    "GreaterOrEqual",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "If",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "LogSoftmax",
    "Loop",
    "LpNormalization",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "NonMaxSuppression",
    "NonZero",
    "Normalize",
    "Not",
    "OneHot",
    "Op",
    "Operand",
    "Or",
    "PRelu",
    "Pad",
    "Pow",
    "PriorBox",
    "QuantizeLinear",
    "RMSNormalization",
    "Range",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Reshape",
    "Resize",
    "Round",
    "RoundMantissa",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Shape",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Size",
    "Slice",
    "Softmax",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "Split",
    "Sqrt",
    "Squeeze",
    "Stage",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Tile",
    "TopK",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
    "Xor",
    "checked_op",
    "is_same_for_rows",
    "lookup_op",
    "op_from_json",
    "op_identity",
    "op_to_json",
    "recipe_from_json",
    "recipe_to_json",
    "register_op",
    "invalid_scale_reason",
    "combined_overflow_reason",
    "derived_overflow_reason",
]

ALL_OPS: tuple[type[Op], ...] = (
    Abs,
    Acos,
    Acosh,
    Add,
    And,
    ArgMax,
    ArgMin,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Attention,
    AveragePool,
    BatchNormalization,
    BitShift,
    BitwiseNot,
    Cast,
    Ceil,
    Celu,
    Clip,
    Compress,
    Concat,
    ConstantOfShape,
    Conv,
    ConvInteger,
    ConvSum,
    ConvTranspose,
    Cos,
    Cosh,
    Crop,
    CumSum,
    DepthToSpace,
    DequantizeLinear,
    DetectionOutput,
    Div,
    DynamicQuantizeLinear,
    Einsum,
    Elu,
    Equal,
    Erf,
    Exp,
    Expand,
    Flatten,
    Floor,
    Fused,
    FusedPair,
    Gather,
    GatherElements,
    GatherND,
    Gelu,
    Gemm,
    GlobalAveragePool,
    GlobalMaxPool,
    Greater,
    GreaterOrEqual,
    GroupNormalization,
    GRU,
    Hardmax,
    HardSigmoid,
    HardSwish,
    Identity,
    If,
    InstanceNormalization,
    IsInf,
    IsNaN,
    LayerNormalization,
    LeakyRelu,
    Less,
    LessOrEqual,
    Log,
    LogSoftmax,
    Loop,
    LpNormalization,
    LpPool,
    LRN,
    LSTM,
    MatMul,
    MatMulInteger,
    Max,
    MaxPool,
    Mean,
    Min,
    Mish,
    Mod,
    Mul,
    Neg,
    NonMaxSuppression,
    NonZero,
    Normalize,
    Not,
    OneHot,
    Or,
    Pad,
    Pow,
    PRelu,
    PriorBox,
    QuantizeLinear,
    Range,
    Reciprocal,
    ReduceL1,
    ReduceL2,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
    Relu,
    Reshape,
    Resize,
    RMSNormalization,
    RNN,
    Round,
    RoundMantissa,
    ScatterElements,
    ScatterND,
    Selu,
    Shape,
    Shrink,
    Sigmoid,
    Sign,
    Sin,
    Sinh,
    Size,
    Slice,
    Softmax,
    Softplus,
    Softsign,
    SpaceToDepth,
    Split,
    Sqrt,
    Squeeze,
    Sub,
    Sum,
    Swish,
    Tan,
    Tanh,
    ThresholdedRelu,
    Tile,
    TopK,
    Transpose,
    Trilu,
    Unsqueeze,
    Where,
    Xor,
)
