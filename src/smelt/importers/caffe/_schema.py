"""Caffe's messages as a protobuf schema that is built at import.

The table below lists the names, numbers, types and defaults of the format, one message per entry. A
field is ``name number type``, followed by ``*`` if it is repeated (``!`` if it is repeated and
packed) and by ``=default`` if the default is not zero. Capitalised types are messages or
enumerations of this table. Layers of later forks (such as SSD) are included if there is an importer
for them. Their numbers differ between forks, so weights are only read from fields on which all
forks agree (see ``_protobuf_wire``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from google.protobuf.message import Message

_PACKAGE: Final = "smelt.caffe"

V1_TYPES: Final = {
    "NONE": (0, ""),
    "ACCURACY": (1, "Accuracy"),
    "BNLL": (2, "BNLL"),
    "CONCAT": (3, "Concat"),
    "CONVOLUTION": (4, "Convolution"),
    "DATA": (5, "Data"),
    "DROPOUT": (6, "Dropout"),
    "EUCLIDEAN_LOSS": (7, "EuclideanLoss"),
    "FLATTEN": (8, "Flatten"),
    "HDF5_DATA": (9, "HDF5Data"),
    "HDF5_OUTPUT": (10, "HDF5Output"),
    "IM2COL": (11, "Im2col"),
    "IMAGE_DATA": (12, "ImageData"),
    "INFOGAIN_LOSS": (13, "InfogainLoss"),
    "INNER_PRODUCT": (14, "InnerProduct"),
    "LRN": (15, "LRN"),
    "MULTINOMIAL_LOGISTIC_LOSS": (16, "MultinomialLogisticLoss"),
    "POOLING": (17, "Pooling"),
    "RELU": (18, "ReLU"),
    "SIGMOID": (19, "Sigmoid"),
    "SOFTMAX": (20, "Softmax"),
    "SOFTMAX_LOSS": (21, "SoftmaxWithLoss"),
    "SPLIT": (22, "Split"),
    "TANH": (23, "TanH"),
    "WINDOW_DATA": (24, "WindowData"),
    "ELTWISE": (25, "Eltwise"),
    "POWER": (26, "Power"),
    "SIGMOID_CROSS_ENTROPY_LOSS": (27, "SigmoidCrossEntropyLoss"),
    "HINGE_LOSS": (28, "HingeLoss"),
    "MEMORY_DATA": (29, "MemoryData"),
    "ARGMAX": (30, "ArgMax"),
    "THRESHOLD": (31, "Threshold"),
    "DUMMY_DATA": (32, "DummyData"),
    "SLICE": (33, "Slice"),
    "MVN": (34, "MVN"),
    "ABSVAL": (35, "AbsVal"),
    "SILENCE": (36, "Silence"),
    "CONTRASTIVE_LOSS": (37, "ContrastiveLoss"),
    "EXP": (38, "Exp"),
    "DECONVOLUTION": (39, "Deconvolution"),
}
"""Layer types of the V1 format: their numbers, and their names in the current format."""

_ENUMS: Final = {
    "Phase": "TRAIN 0 TEST 1",
    "V1Type": " ".join(f"{name} {number}" for name, (number, _) in V1_TYPES.items()),
    "Engine": "DEFAULT 0 CAFFE 1 CUDNN 2",
    "PoolMethod": "MAX 0 AVE 1 STOCHASTIC 2",
    "RoundMode": "CEIL 0 FLOOR 1",
    "EltwiseOp": "PROD 0 SUM 1 MAX 2",
    "NormRegion": "ACROSS_CHANNELS 0 WITHIN_CHANNEL 1",
    "ReductionOp": "SUM 1 ASUM 2 SUMSQ 3 MEAN 4",
    "CodeType": "CORNER 1 CENTER_SIZE 2 CORNER_SIZE 3",
    "VarianceNorm": "FAN_IN 0 FAN_OUT 1 AVERAGE 2",
    "RawType": "DOUBLE 0 FLOAT 1 FLOAT16 2 INT 3 UINT 4",
    "CheckMode": "STRICT 0 PERMISSIVE 1",
    "Database": "LEVELDB 0 LMDB 1",
}

_MESSAGES: Final = {
    "BlobShape": "dim 1 int64!",
    "BlobProto": (
        "num 1 int32 channels 2 int32 height 3 int32 width 4 int32 data 5 float! "
        "diff 6 float! shape 7 BlobShape double_data 8 double! double_diff 9 double! "
        "raw_data_type 10 RawType raw_data 12 bytes"
    ),
    "FillerParameter": (
        "type 1 string=constant value 2 float min 3 float max 4 float=1 mean 5 float "
        "std 6 float=1 sparse 7 int32=-1 variance_norm 8 VarianceNorm"
    ),
    "NetState": "phase 1 Phase=TEST level 2 int32 stage 3 string*",
    "NetStateRule": (
        "phase 1 Phase min_level 2 int32 max_level 3 int32 stage 4 string* not_stage 5 string*"
    ),
    "ParamSpec": "name 1 string share_mode 2 CheckMode lr_mult 3 float=1 decay_mult 4 float=1",
    "TransformationParameter": (
        "scale 1 float=1 mirror 2 bool crop_size 3 uint32 mean_file 4 string "
        "mean_value 5 float* force_color 6 bool force_gray 7 bool"
    ),
    "AccuracyParameter": "top_k 1 uint32=1 axis 2 int32=1 ignore_label 3 int32",
    "ArgMaxParameter": "out_max_val 1 bool top_k 2 uint32=1 axis 3 int32",
    "BatchNormParameter": (
        "use_global_stats 1 bool moving_average_fraction 2 float=0.999 eps 3 float=1e-5 "
        "scale_bias 7 bool"
    ),
    "BiasParameter": "axis 1 int32=1 num_axes 2 int32=1 filler 3 FillerParameter",
    "ConcatParameter": "concat_dim 1 uint32=1 axis 2 int32=1",
    "ConvolutionParameter": (
        "num_output 1 uint32 bias_term 2 bool=true pad 3 uint32* kernel_size 4 uint32* "
        "group 5 uint32=1 stride 6 uint32* weight_filler 7 FillerParameter "
        "bias_filler 8 FillerParameter pad_h 9 uint32 pad_w 10 uint32 kernel_h 11 uint32 "
        "kernel_w 12 uint32 stride_h 13 uint32 stride_w 14 uint32 engine 15 Engine "
        "axis 16 int32=1 force_nd_im2col 17 bool dilation 18 uint32*"
    ),
    "CropParameter": "axis 1 int32=2 offset 2 uint32*",
    "DataParameter": (
        "source 1 string scale 2 float=1 mean_file 3 string batch_size 4 uint32 "
        "crop_size 5 uint32 mirror 6 bool rand_skip 7 uint32 backend 8 Database "
        "force_encoded_color 9 bool prefetch 10 uint32=4"
    ),
    "NmsParameter": "nms_threshold 1 float=0.3 top_k 2 int32 eta 3 float=1",
    "SaveOutputParameter": (
        "output_directory 1 string output_name_prefix 2 string output_format 3 string "
        "label_map_file 4 string name_size_file 5 string num_test_image 6 uint32"
    ),
    "DetectionOutputParameter": (
        "num_classes 1 uint32 share_location 2 bool=true background_label_id 3 int32 "
        "nms_param 4 NmsParameter save_output_param 5 SaveOutputParameter "
        "code_type 6 CodeType keep_top_k 7 int32=-1 variance_encoded_in_target 8 bool "
        "confidence_threshold 9 float normalized_bbox 10 bool=true"
    ),
    "DropoutParameter": "dropout_ratio 1 float=0.5 scale_train 2 bool=true",
    "DummyDataParameter": (
        "data_filler 1 FillerParameter* num 2 uint32* channels 3 uint32* height 4 uint32* "
        "width 5 uint32* shape 6 BlobShape*"
    ),
    "EltwiseParameter": "operation 1 EltwiseOp=SUM coeff 2 float* stable_prod_grad 3 bool=true",
    "ELUParameter": "alpha 1 float=1",
    "EmbedParameter": (
        "num_output 1 uint32 input_dim 2 uint32 bias_term 3 bool=true "
        "weight_filler 4 FillerParameter bias_filler 5 FillerParameter"
    ),
    "ExpParameter": "base 1 float=-1 scale 2 float=1 shift 3 float",
    "FlattenParameter": "axis 1 int32=1 end_axis 2 int32=-1",
    "ImageDataParameter": (
        "source 1 string scale 2 float=1 mean_file 3 string batch_size 4 uint32=1 "
        "crop_size 5 uint32 mirror 6 bool rand_skip 7 uint32 shuffle 8 bool "
        "new_height 9 uint32 new_width 10 uint32 is_color 11 bool=true "
        "root_folder 12 string"
    ),
    "InnerProductParameter": (
        "num_output 1 uint32 bias_term 2 bool=true weight_filler 3 FillerParameter "
        "bias_filler 4 FillerParameter axis 5 int32=1 transpose 6 bool"
    ),
    "InputParameter": "shape 1 BlobShape*",
    "InterpParameter": (
        "height 1 int32 width 2 int32 zoom_factor 3 int32=1 shrink_factor 4 int32=1 "
        "pad_beg 5 int32 pad_end 6 int32"
    ),
    "LogParameter": "base 1 float=-1 scale 2 float=1 shift 3 float",
    "LRNParameter": (
        "local_size 1 uint32=5 alpha 2 float=1 beta 3 float=0.75 norm_region 4 NormRegion "
        "k 5 float=1 engine 6 Engine"
    ),
    "MemoryDataParameter": "batch_size 1 uint32 channels 2 uint32 height 3 uint32 width 4 uint32",
    "MVNParameter": "normalize_variance 1 bool=true across_channels 2 bool eps 3 float=1e-9",
    "NormalizeParameter": (
        "across_spatial 1 bool=true scale_filler 2 FillerParameter "
        "channel_shared 3 bool=true eps 4 float=1e-10"
    ),
    "PermuteParameter": "order 1 uint32*",
    "PoolingParameter": (
        "pool 1 PoolMethod kernel_size 2 uint32* stride 3 uint32* pad 4 uint32* "
        "kernel_h 5 uint32 kernel_w 6 uint32 stride_h 7 uint32 stride_w 8 uint32 "
        "pad_h 9 uint32 pad_w 10 uint32 engine 11 Engine global_pooling 12 bool "
        "ceil_mode 13 bool=true round_mode 14 RoundMode"
    ),
    "PowerParameter": "power 1 float=1 scale 2 float=1 shift 3 float",
    "PReLUParameter": "filler 1 FillerParameter channel_shared 2 bool",
    "PriorBoxParameter": (
        "min_size 1 float* max_size 2 float* aspect_ratio 3 float* flip 4 bool=true "
        "clip 5 bool variance 6 float* img_size 7 uint32 img_h 8 uint32 img_w 9 uint32 "
        "step 10 float step_h 11 float step_w 12 float offset 13 float=0.5"
    ),
    "ReductionParameter": "operation 1 ReductionOp=SUM axis 2 int32 coeff 3 float=1",
    "ReLUParameter": "negative_slope 1 float engine 2 Engine",
    "ReshapeParameter": "shape 1 BlobShape axis 2 int32 num_axes 3 int32=-1",
    "ScaleParameter": (
        "axis 1 int32=1 num_axes 2 int32=1 filler 3 FillerParameter bias_term 4 bool "
        "bias_filler 5 FillerParameter"
    ),
    "ShuffleChannelParameter": "group 1 uint32=1",
    "SigmoidParameter": "engine 1 Engine",
    "SliceParameter": "slice_dim 1 uint32=1 slice_point 2 uint32* axis 3 int32=1",
    "SoftmaxParameter": "engine 1 Engine axis 2 int32=1",
    "TanHParameter": "engine 1 Engine",
    "ThresholdParameter": "threshold 1 float",
    "TileParameter": "axis 1 int32=1 tiles 2 int32",
    "UpsampleParameter": "scale 1 int32=1",
    "V0LayerParameter": "name 1 string type 2 string",
    "V1LayerParameter": (
        "layer 1 V0LayerParameter bottom 2 string* top 3 string* name 4 string "
        "type 5 V1Type blobs 6 BlobProto* blobs_lr 7 float* weight_decay 8 float* "
        "concat_param 9 ConcatParameter convolution_param 10 ConvolutionParameter "
        "data_param 11 DataParameter dropout_param 12 DropoutParameter "
        "image_data_param 15 ImageDataParameter "
        "inner_product_param 17 InnerProductParameter lrn_param 18 LRNParameter "
        "pooling_param 19 PoolingParameter power_param 21 PowerParameter "
        "memory_data_param 22 MemoryDataParameter argmax_param 23 ArgMaxParameter "
        "eltwise_param 24 EltwiseParameter threshold_param 25 ThresholdParameter "
        "dummy_data_param 26 DummyDataParameter accuracy_param 27 AccuracyParameter "
        "relu_param 30 ReLUParameter slice_param 31 SliceParameter "
        "include 32 NetStateRule* exclude 33 NetStateRule* mvn_param 34 MVNParameter "
        "loss_weight 35 float* transform_param 36 TransformationParameter "
        "tanh_param 37 TanHParameter sigmoid_param 38 SigmoidParameter "
        "softmax_param 39 SoftmaxParameter exp_param 41 ExpParameter param 1001 string* "
        "blob_share_mode 1002 CheckMode*"
    ),
    "LayerParameter": (
        "name 1 string type 2 string bottom 3 string* top 4 string* loss_weight 5 float* "
        "param 6 ParamSpec* blobs 7 BlobProto* include 8 NetStateRule* "
        "exclude 9 NetStateRule* phase 10 Phase propagate_down 11 bool* "
        "transform_param 100 TransformationParameter accuracy_param 102 AccuracyParameter "
        "argmax_param 103 ArgMaxParameter concat_param 104 ConcatParameter "
        "convolution_param 106 ConvolutionParameter data_param 107 DataParameter "
        "dropout_param 108 DropoutParameter dummy_data_param 109 DummyDataParameter "
        "eltwise_param 110 EltwiseParameter exp_param 111 ExpParameter "
        "image_data_param 115 ImageDataParameter "
        "inner_product_param 117 InnerProductParameter lrn_param 118 LRNParameter "
        "memory_data_param 119 MemoryDataParameter mvn_param 120 MVNParameter "
        "pooling_param 121 PoolingParameter power_param 122 PowerParameter "
        "relu_param 123 ReLUParameter sigmoid_param 124 SigmoidParameter "
        "softmax_param 125 SoftmaxParameter slice_param 126 SliceParameter "
        "tanh_param 127 TanHParameter threshold_param 128 ThresholdParameter "
        "prelu_param 131 PReLUParameter reshape_param 133 ReshapeParameter "
        "log_param 134 LogParameter flatten_param 135 FlattenParameter "
        "reduction_param 136 ReductionParameter embed_param 137 EmbedParameter "
        "tile_param 138 TileParameter batch_norm_param 139 BatchNormParameter "
        "elu_param 140 ELUParameter bias_param 141 BiasParameter "
        "scale_param 142 ScaleParameter input_param 143 InputParameter "
        "crop_param 144 CropParameter permute_param 202 PermuteParameter "
        "prior_box_param 203 PriorBoxParameter "
        "detection_output_param 204 DetectionOutputParameter "
        "norm_param 206 NormalizeParameter "
        "shuffle_channel_param 164 ShuffleChannelParameter "
        "upsample_param 301 UpsampleParameter interp_param 302 InterpParameter"
    ),
    "NetParameter": (
        "name 1 string layers 2 V1LayerParameter* input 3 string* input_dim 4 int32* "
        "force_backward 5 bool state 6 NetState debug_info 7 bool input_shape 8 BlobShape* "
        "layer 100 LayerParameter*"
    ),
}

_Field = descriptor_pb2.FieldDescriptorProto


def _field(name: str, number: str, kind: str) -> descriptor_pb2.FieldDescriptorProto:
    """Return the descriptor of a field from its entry in the table."""
    kind, _, default = kind.partition("=")
    field = _Field(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind[-1] in "*!":
        field.label = _Field.LABEL_REPEATED
        field.options.packed = kind.endswith("!")
        kind = kind[:-1]
    if kind[0].isupper():
        field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
        field.type_name = (
            f".{_PACKAGE}.{kind}Scope.{kind}" if kind in _ENUMS else f".{_PACKAGE}.{kind}"
        )
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    if default:
        field.default_value = default
    return field


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Return the file descriptor of all messages and enumerations."""
    file = descriptor_pb2.FileDescriptorProto(name="smelt/caffe", package=_PACKAGE, syntax="proto2")
    for name, text in _ENUMS.items():
        # The values of an enumeration are siblings of its name, so each has a message around it.
        words = text.split()
        enum = file.message_type.add(name=f"{name}Scope").enum_type.add(name=name)
        for label, number in zip(words[::2], words[1::2], strict=True):
            enum.value.add(name=label, number=int(number))
    for name, text in _MESSAGES.items():
        message = file.message_type.add(name=name)
        words = text.split()
        for start in range(0, len(words), 3):
            message.field.append(_field(*words[start : start + 3]))
    return file


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def new_message(name: str) -> Any:
    """Return an empty message of the schema, such as ``NetParameter`` or ``BlobProto``."""
    kind: type[Message] = message_factory.GetMessageClass(
        _POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    )
    return kind()
