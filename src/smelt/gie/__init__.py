"""API of the GPU Inference Engine (GIE, the first TensorRT), implemented with smelt's own API.

Names are those of the GIE User Guide in snake_case; enumerations have the documented numbers. A
call that fails raises an error. A look-up whose documented result is null or -1 returns None or -1.

Source: GIE User Guide.
"""

from smelt.gie._builder import InferBuilder, create_infer_builder
from smelt.gie._enums import (
    ActivationType,
    DataType,
    ElementWiseOperation,
    LayerType,
    PoolingType,
    ScaleMode,
)
from smelt.gie._network import InferLayer, InferNetwork
from smelt.gie._output_dimensions import OutputDimensionsFormula
from smelt.gie._parser import (
    BinaryProtoBlob,
    BlobNameToTensor,
    CaffeParser,
    create_caffe_parser,
    shutdown_protobuf_library,
)
from smelt.gie._runtime import CudaEngine, InferContext, InferRuntime, create_infer_runtime
from smelt.logger import Logger, Severity

__all__ = [
    "ActivationType",
    "BinaryProtoBlob",
    "BlobNameToTensor",
    "CaffeParser",
    "CudaEngine",
    "DataType",
    "ElementWiseOperation",
    "InferBuilder",
    "InferContext",
    "InferLayer",
    "InferNetwork",
    "InferRuntime",
    "LayerType",
    "Logger",
    "OutputDimensionsFormula",
    "PoolingType",
    "ScaleMode",
    "Severity",
    "create_caffe_parser",
    "create_infer_builder",
    "create_infer_runtime",
    "shutdown_protobuf_library",
]
