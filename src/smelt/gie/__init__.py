"""The GPU Inference Engine (the first TensorRT) as its guide documents it, over smelt's own API.

Names are the documented ones in snake_case, numbers the documented numbers. A documented failure is
raised; what the guide returns as null or -1 is returned. Source: GIE User Guide.
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
