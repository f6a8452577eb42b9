"""User-mode driver: loading networks onto devices, binding tensors to memory and inference."""

from smelt.nvdla.runtime._array_conversion import array_from_tensor, dtype_of_tensor, write_tensor
from smelt.nvdla.runtime._dimg import DlaImage, ImageFormat, image_from_tensor
from smelt.nvdla.runtime._enums import (
    ActivationType,
    BatchNormMode,
    BiasMode,
    ElementwiseOperation,
    LayerType,
    PixelFormat,
    PixelMapping,
    PoolingType,
    ScaleMode,
)
from smelt.nvdla.runtime._runtime import Runtime, create_runtime, destroy_runtime
from smelt.nvdla.runtime._tensor import Dims4, NvDlaTensor

__all__ = [
    "ActivationType",
    "BatchNormMode",
    "BiasMode",
    "Dims4",
    "DlaImage",
    "ElementwiseOperation",
    "ImageFormat",
    "LayerType",
    "NvDlaTensor",
    "PixelFormat",
    "PixelMapping",
    "PoolingType",
    "Runtime",
    "ScaleMode",
    "array_from_tensor",
    "create_runtime",
    "destroy_runtime",
    "dtype_of_tensor",
    "image_from_tensor",
    "write_tensor",
]
