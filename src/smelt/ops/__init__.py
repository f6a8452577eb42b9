"""One file per op: attributes, inference, numpy reference, cases."""

from smelt.ir import Array, Case, Op, Operand
from smelt.ops.abs import Abs
from smelt.ops.acos import Acos
from smelt.ops.acosh import Acosh
from smelt.ops.asin import Asin
from smelt.ops.asinh import Asinh
from smelt.ops.atan import Atan
from smelt.ops.atanh import Atanh
from smelt.ops.average_pool import AveragePool
from smelt.ops.batch_normalization import BatchNormalization
from smelt.ops.bitwise_not import BitwiseNot
from smelt.ops.ceil import Ceil
from smelt.ops.celu import Celu
from smelt.ops.clip import Clip
from smelt.ops.conv import Conv
from smelt.ops.conv_transpose import ConvTranspose
from smelt.ops.cos import Cos
from smelt.ops.cosh import Cosh
from smelt.ops.elu import Elu
from smelt.ops.erf import Erf
from smelt.ops.exp import Exp
from smelt.ops.floor import Floor
from smelt.ops.fused import Fused, Stage
from smelt.ops.gelu import Gelu
from smelt.ops.gemm import Gemm
from smelt.ops.global_average_pool import GlobalAveragePool
from smelt.ops.global_max_pool import GlobalMaxPool
from smelt.ops.group_normalization import GroupNormalization
from smelt.ops.hard_sigmoid import HardSigmoid
from smelt.ops.hard_swish import HardSwish
from smelt.ops.hardmax import Hardmax
from smelt.ops.instance_normalization import InstanceNormalization
from smelt.ops.is_inf import IsInf
from smelt.ops.is_nan import IsNaN
from smelt.ops.layer_normalization import LayerNormalization
from smelt.ops.leaky_relu import LeakyRelu
from smelt.ops.log import Log
from smelt.ops.log_softmax import LogSoftmax
from smelt.ops.lp_normalization import LpNormalization
from smelt.ops.lp_pool import LpPool
from smelt.ops.lrn import LRN
from smelt.ops.mat_mul import MatMul
from smelt.ops.max_pool import MaxPool
from smelt.ops.mish import Mish
from smelt.ops.neg import Neg
from smelt.ops.not_ import Not
from smelt.ops.prelu import PRelu
from smelt.ops.reciprocal import Reciprocal
from smelt.ops.relu import Relu
from smelt.ops.rms_normalization import RMSNormalization
from smelt.ops.round import Round
from smelt.ops.selu import Selu
from smelt.ops.shrink import Shrink
from smelt.ops.sigmoid import Sigmoid
from smelt.ops.sign import Sign
from smelt.ops.sin import Sin
from smelt.ops.sinh import Sinh
from smelt.ops.softmax import Softmax
from smelt.ops.softplus import Softplus
from smelt.ops.softsign import Softsign
from smelt.ops.sqrt import Sqrt
from smelt.ops.swish import Swish
from smelt.ops.tan import Tan
from smelt.ops.tanh import Tanh
from smelt.ops.thresholded_relu import ThresholdedRelu

__all__ = [
    "ALL_OPS",
    "Abs",
    "Acos",
    "Acosh",
    "Array",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "AveragePool",
    "BatchNormalization",
    "BitwiseNot",
    "Case",
    "Ceil",
    "Celu",
    "Clip",
    "Conv",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Fused",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNormalization",
    "Hardmax",
    "HardSigmoid",
    "HardSwish",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "LpPool",
    "LRN",
    "MatMul",
    "MaxPool",
    "Mish",
    "Neg",
    "Not",
    "Op",
    "Operand",
    "PRelu",
    "Reciprocal",
    "Relu",
    "RMSNormalization",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Stage",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
]

ALL_OPS: tuple[type[Op], ...] = (
    Abs,
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    AveragePool,
    BatchNormalization,
    BitwiseNot,
    Ceil,
    Celu,
    Clip,
    Conv,
    ConvTranspose,
    Cos,
    Cosh,
    Elu,
    Erf,
    Exp,
    Floor,
    Fused,
    Gelu,
    Gemm,
    GlobalAveragePool,
    GlobalMaxPool,
    GroupNormalization,
    Hardmax,
    HardSigmoid,
    HardSwish,
    InstanceNormalization,
    IsInf,
    IsNaN,
    LayerNormalization,
    LeakyRelu,
    Log,
    LogSoftmax,
    LpNormalization,
    LpPool,
    LRN,
    MatMul,
    MaxPool,
    Mish,
    Neg,
    Not,
    PRelu,
    Reciprocal,
    Relu,
    RMSNormalization,
    Round,
    Selu,
    Shrink,
    Sigmoid,
    Sign,
    Sin,
    Sinh,
    Softmax,
    Softplus,
    Softsign,
    Sqrt,
    Swish,
    Tan,
    Tanh,
    ThresholdedRelu,
)
