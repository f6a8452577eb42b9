"""One file per op: attributes, inference, numpy reference, cases."""

from smelt.ir import Array, Case, Op, Operand
from smelt.ops._attribute_types import checked_op
from smelt.ops._constant_combining import combined_overflow_reason, derived_overflow_reason
from smelt.ops._op_json import op_from_json, op_to_json, recipe_from_json, recipe_to_json
from smelt.ops._quantized import why_no_scale
from smelt.ops._registry import lookup_op, op_identity, register_op
from smelt.ops._shape import is_same_for_rows
from smelt.ops.abs import Abs
from smelt.ops.acos import Acos
from smelt.ops.acosh import Acosh
from smelt.ops.add import Add
from smelt.ops.and_ import And
from smelt.ops.arg_max import ArgMax
from smelt.ops.arg_min import ArgMin
from smelt.ops.asin import Asin
from smelt.ops.asinh import Asinh
from smelt.ops.atan import Atan
from smelt.ops.atanh import Atanh
from smelt.ops.attention import Attention
from smelt.ops.average_pool import AveragePool
from smelt.ops.batch_normalization import BatchNormalization
from smelt.ops.bit_shift import BitShift
from smelt.ops.bitwise_not import BitwiseNot
from smelt.ops.cast import Cast
from smelt.ops.ceil import Ceil
from smelt.ops.celu import Celu
from smelt.ops.clip import Clip
from smelt.ops.compress import Compress
from smelt.ops.concat import Concat
from smelt.ops.constant_of_shape import ConstantOfShape
from smelt.ops.conv import Conv
from smelt.ops.conv_integer import ConvInteger
from smelt.ops.conv_sum import ConvSum
from smelt.ops.conv_transpose import ConvTranspose
from smelt.ops.cos import Cos
from smelt.ops.cosh import Cosh
from smelt.ops.crop import Crop
from smelt.ops.cum_sum import CumSum
from smelt.ops.depth_to_space import DepthToSpace
from smelt.ops.dequantize_linear import DequantizeLinear
from smelt.ops.detection_output import DetectionOutput
from smelt.ops.div import Div
from smelt.ops.dynamic_quantize_linear import DynamicQuantizeLinear
from smelt.ops.einsum import Einsum
from smelt.ops.elu import Elu
from smelt.ops.equal import Equal
from smelt.ops.erf import Erf
from smelt.ops.exp import Exp
from smelt.ops.expand import Expand
from smelt.ops.flatten import Flatten
from smelt.ops.floor import Floor
from smelt.ops.fused import Fused, Stage
from smelt.ops.fused_pair import FusedPair
from smelt.ops.gather import Gather
from smelt.ops.gather_elements import GatherElements
from smelt.ops.gather_nd import GatherND
from smelt.ops.gelu import Gelu
from smelt.ops.gemm import Gemm
from smelt.ops.global_average_pool import GlobalAveragePool
from smelt.ops.global_max_pool import GlobalMaxPool
from smelt.ops.greater import Greater
from smelt.ops.greater_or_equal import GreaterOrEqual
from smelt.ops.group_normalization import GroupNormalization
from smelt.ops.gru import GRU
from smelt.ops.hard_sigmoid import HardSigmoid
from smelt.ops.hard_swish import HardSwish
from smelt.ops.hardmax import Hardmax
from smelt.ops.identity import Identity
from smelt.ops.if_ import If
from smelt.ops.instance_normalization import InstanceNormalization
from smelt.ops.is_inf import IsInf
from smelt.ops.is_nan import IsNaN
from smelt.ops.layer_normalization import LayerNormalization
from smelt.ops.leaky_relu import LeakyRelu
from smelt.ops.less import Less
from smelt.ops.less_or_equal import LessOrEqual
from smelt.ops.log import Log
from smelt.ops.log_softmax import LogSoftmax
from smelt.ops.loop import Loop
from smelt.ops.lp_normalization import LpNormalization
from smelt.ops.lp_pool import LpPool
from smelt.ops.lrn import LRN
from smelt.ops.lstm import LSTM
from smelt.ops.mat_mul import MatMul
from smelt.ops.mat_mul_integer import MatMulInteger
from smelt.ops.max import Max
from smelt.ops.max_pool import MaxPool
from smelt.ops.mean import Mean
from smelt.ops.min import Min
from smelt.ops.mish import Mish
from smelt.ops.mod import Mod
from smelt.ops.mul import Mul
from smelt.ops.neg import Neg
from smelt.ops.non_max_suppression import NonMaxSuppression
from smelt.ops.non_zero import NonZero
from smelt.ops.normalize import Normalize
from smelt.ops.not_ import Not
from smelt.ops.one_hot import OneHot
from smelt.ops.or_ import Or
from smelt.ops.pad import Pad
from smelt.ops.pow import Pow
from smelt.ops.prelu import PRelu
from smelt.ops.prior_box import PriorBox
from smelt.ops.quantize_linear import QuantizeLinear
from smelt.ops.range import Range
from smelt.ops.reciprocal import Reciprocal
from smelt.ops.reduce_l1 import ReduceL1
from smelt.ops.reduce_l2 import ReduceL2
from smelt.ops.reduce_log_sum import ReduceLogSum
from smelt.ops.reduce_log_sum_exp import ReduceLogSumExp
from smelt.ops.reduce_max import ReduceMax
from smelt.ops.reduce_mean import ReduceMean
from smelt.ops.reduce_min import ReduceMin
from smelt.ops.reduce_prod import ReduceProd
from smelt.ops.reduce_sum import ReduceSum
from smelt.ops.reduce_sum_square import ReduceSumSquare
from smelt.ops.relu import Relu
from smelt.ops.reshape import Reshape
from smelt.ops.resize import Resize
from smelt.ops.rms_normalization import RMSNormalization
from smelt.ops.rnn import RNN
from smelt.ops.round import Round
from smelt.ops.round_mantissa import RoundMantissa
from smelt.ops.scatter_elements import ScatterElements
from smelt.ops.scatter_nd import ScatterND
from smelt.ops.selu import Selu
from smelt.ops.shape import Shape
from smelt.ops.shrink import Shrink
from smelt.ops.sigmoid import Sigmoid
from smelt.ops.sign import Sign
from smelt.ops.sin import Sin
from smelt.ops.sinh import Sinh
from smelt.ops.size import Size
from smelt.ops.slice import Slice
from smelt.ops.softmax import Softmax
from smelt.ops.softplus import Softplus
from smelt.ops.softsign import Softsign
from smelt.ops.space_to_depth import SpaceToDepth
from smelt.ops.split import Split
from smelt.ops.sqrt import Sqrt
from smelt.ops.squeeze import Squeeze
from smelt.ops.sub import Sub
from smelt.ops.sum import Sum
from smelt.ops.swish import Swish
from smelt.ops.tan import Tan
from smelt.ops.tanh import Tanh
from smelt.ops.thresholded_relu import ThresholdedRelu
from smelt.ops.tile import Tile
from smelt.ops.top_k import TopK
from smelt.ops.transpose import Transpose
from smelt.ops.trilu import Trilu
from smelt.ops.unsqueeze import Unsqueeze
from smelt.ops.where import Where
from smelt.ops.xor import Xor

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
    "why_no_scale",
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
