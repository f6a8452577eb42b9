"""What statistics, indices and moves of elements assume of extents that symbols leave open."""

from __future__ import annotations

import numpy as np

from smelt import ops
from smelt.ir import Graph
from smelt.types import DType, TensorType
from tests.support.guard_cases import C, D, GuardCase, I, X

_U8 = DType.UINT8


def _loop() -> ops.Loop:
    """Hands its first capture on as the state."""
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    condition = body.add_input("condition", TensorType(DType.BOOL, ()))
    body.add_input("state", TensorType(DType.FLOAT32, (4,)))
    other = body.add_input("other", TensorType(DType.FLOAT32, (4,)))
    body.outputs = [condition, body.add(ops.Identity(), other, name="next").output]
    return ops.Loop(body, 1)


CASES = (
    GuardCase(
        "int32_most",
        ops.Cast(DType.INT32),
        (D("1073741824*c"),),
        {"c": (1, 2)},
        "an element of the result, which must fit into int32: 2147483647 must be at least "
        "2147483648 (1073741824*c)",
    ),
    GuardCase(
        "int32_least",
        ops.Cast(DType.INT32),
        (D("-1073741824*c"),),
        {"c": (2, 3)},
        "an element of the result, which must fit into int32: -3221225472 (-1073741824*c) must be "
        "at least -2147483648",
    ),
    GuardCase(
        "batch",
        ops.BatchNormalization(),
        (X(1, "c", 3), X("c"), X(4), X("c"), X("c")),
        {"c": (4, 1)},
        "axis 0 of the bias of batch_normalization: 4 must equal 1 (c)",
    ),
    GuardCase(
        "group_scale",
        ops.GroupNormalization(2),
        (X(1, "c", 3), X(4), X("c")),
        {"c": (4, 1)},
        "axis 0 of the scale of group_normalization: 4 must equal 1 (c)",
    ),
    GuardCase(
        "group_bias",
        ops.GroupNormalization(1),
        (X(1, "c", 3), X("c"), X(4)),
        {"c": (4, 1)},
        "axis 0 of the bias of group_normalization: 4 must equal 1 (c)",
    ),
    GuardCase(
        "groups",
        ops.GroupNormalization(2),
        (X(1, "c", 3), X("c"), X("c")),
        {"c": (4, 3)},
        "axis 1 of input 0, which must be a multiple of 2: 3 (c) must equal 2 (2*((c) // 2))",
    ),
    GuardCase(
        "instance_scale",
        ops.InstanceNormalization(),
        (X(1, "c", 3), X(4), X("c")),
        {"c": (4, 1)},
        "axis 0 of the scale of instance_normalization: 4 must equal 1 (c)",
    ),
    GuardCase(
        "instance_bias",
        ops.InstanceNormalization(),
        (X(1, "c", 3), X("c"), X(4)),
        {"c": (4, 1)},
        "axis 0 of the bias of instance_normalization: 4 must equal 1 (c)",
    ),
    GuardCase(
        "layer_scale",
        ops.LayerNormalization(),
        (X(2, "c"), X(4)),
        {"c": (4, 1)},
        "axis 0 of the scale of layer_normalization: 4 must equal 1 (c)",
    ),
    GuardCase(
        "layer_bias",
        ops.LayerNormalization(),
        (X(2, "c"), X("c"), X(4)),
        {"c": (4, 1)},
        "axis 0 of the bias of layer_normalization: 4 must equal 1 (c)",
    ),
    GuardCase(
        "rms",
        ops.RMSNormalization(),
        (X(2, "c"), X(4)),
        {"c": (4, 1)},
        "axis 0 of the scale of rms_normalization: 4 must equal 1 (c)",
        peers=False,
    ),
    GuardCase(
        "normalize",
        ops.Normalize(channel_shared=False),
        (X(1, "c", 3), X(4)),
        {"c": (4, 1)},
        "axis 0 of the scale of normalize: 4 must equal 1 (c)",
        peers=False,
    ),
    GuardCase(
        "quantize",
        ops.QuantizeLinear(),
        (X(1, "c"), X(4), X(4, dtype=_U8)),
        {"c": (4, 1)},
        "axis 0 of the scale: 4 must equal 1 (c)",
    ),
    GuardCase(
        "quantize_zero",
        ops.QuantizeLinear(),
        (X(1, 4), X(4), X("z", dtype=_U8)),
        {"z": (4, 1)},
        "axis 0 of the zero point: 1 (z) must equal 4",
    ),
    GuardCase(
        "quantize_one_zero",
        ops.QuantizeLinear(),
        (X(1, 4), X(1), X("z", dtype=_U8)),
        {"z": (1, 4)},
        "axis 0 of the zero point: 4 (z) must equal 1",
        peers=False,
    ),
    GuardCase(
        "dequantize",
        ops.DequantizeLinear(),
        (X(1, "c", dtype=_U8), X(4)),
        {"c": (4, 1)},
        "axis 0 of the scale: 4 must equal 1 (c)",
    ),
    GuardCase(
        "arg_max",
        ops.ArgMax(),
        (X("n", 2),),
        {"n": (1, 0)},
        "axis 0 of input 0: 0 (n) must be at least 1",
    ),
    GuardCase(
        "gather_elements",
        ops.GatherElements(0),
        (X(3, "n"), I(2, "m")),
        {"n": (3, 2), "m": (3, 3)},
        "axis 1 of inputs 0 and 1: 2 (n) must be at least 3 (m)",
    ),
    GuardCase(
        "scatter_elements",
        ops.ScatterElements(0),
        (X(3, "n"), I(1, "m"), X(1, "m")),
        {"n": (3, 2), "m": (3, 3)},
        "axis 1 of inputs 0 and 1: 2 (n) must be at least 3 (m)",
    ),
    GuardCase(
        "scatter_updates",
        ops.ScatterElements(0),
        (X(3, 4), I("k", 4), X(1, 4)),
        {"k": (1, 2)},
        "axis 0 of the update tensor of scatter_elements: 1 must equal 2 (k)",
    ),
    GuardCase(
        "scatter_nd",
        ops.ScatterND(),
        (X(3, "n"), I(1, 1), X(1, 4)),
        {"n": (4, 1)},
        "axis 1 of the update tensor of scatter_nd: 4 must equal 1 (n)",
    ),
    GuardCase(
        "gather_nd",
        ops.GatherND(1),
        (X("n", 3), I(2, 1)),
        {"n": (2, 1)},
        "axis 0 of inputs 0 and 1: 1 (n) must equal 2",
    ),
    GuardCase(
        "top_k",
        ops.TopK(),
        (X(2, "n"), C(3)),
        {"n": (3, 2)},
        "axis 1 of input 0 and k: 2 (n) must be at least 3",
    ),
    GuardCase(
        "one_hot",
        ops.OneHot(),
        (I(3), C(2), X("v")),
        {"v": (2, 3)},
        "axis 0 of the value tensor of one_hot: 3 (v) must equal 2",
    ),
    GuardCase(
        "compress",
        ops.Compress(0),
        (X("n"), X(3, dtype=DType.BOOL)),
        {"n": (3, 2)},
        "the element counts of axis 0 of input 0 and of the condition: 2 (n) must be at least 3",
    ),
    GuardCase(
        "nms_boxes",
        ops.NonMaxSuppression(),
        (X(1, 3, "k"), X(1, 1, 3)),
        {"k": (4, 5)},
        "axis 2 of the box tensor: 5 (k) must equal 4",
    ),
    GuardCase(
        "nms_scores",
        ops.NonMaxSuppression(),
        (X(1, "n", 4), X(1, 1, 3)),
        {"n": (3, 2)},
        "axis 2 of the score tensor: 3 must equal 2 (n)",
    ),
    GuardCase(
        "nms_limit",
        ops.NonMaxSuppression(),
        (X(1, 3, 4), X(1, 1, 3), I("k")),
        {"k": (1, 2)},
        "axis 0 of input 2 of non_max_suppression: 2 (k) must equal 1",
    ),
    GuardCase(
        "loop_state",
        _loop(),
        (C(1), None, X("n"), X(4)),
        {"n": (4, 1)},
        "axis 0 of loop-carried value 0 before and after a trip: 1 (n) must equal 4",
        peers=False,
    ),
    GuardCase(
        "detection_priors",
        ops.DetectionOutput(2),
        (X(1, 8), X(1, 4), X(1, "r", 8)),
        {"r": (2, 1)},
        "axis 1 of the prior tensor: 1 (r) must equal 2",
        peers=False,
    ),
    GuardCase(
        "detection_fours",
        ops.DetectionOutput(2),
        (X(1, "4*(p // 4)"), X(1, "2*(p // 4)"), X(1, 2, "p")),
        {"p": (8, 9)},
        "the number of coordinates in input 2, which must be a multiple of 4: 9 (p) must equal 8 "
        "(4*((p) // 4))",
        peers=False,
    ),
    GuardCase(
        "detection_images",
        ops.DetectionOutput(2),
        (X("n", 8), X(2, 4), X(1, 2, 8)),
        {"n": (2, 1)},
        "axis 0 of inputs 0 and 1: 1 (n) must equal 2",
        peers=False,
    ),
    GuardCase(
        "detection_extent",
        ops.DetectionOutput(2),
        (X(1, "k"), X(1, 4), X(1, 2, 8)),
        {"k": (8, 4)},
        "the number of locations for each image and the number that the prior boxes need: 4 (k) "
        "must equal 8",
        peers=False,
    ),
    GuardCase(
        "prior_box",
        ops.PriorBox((2.0,)),
        (X(1, 1, "h", 2), X(1, 1, 8, 8)),
        {"h": (1, 0)},
        "axis 2 of input 0: 0 (h) must be at least 1",
        peers=False,
    ),
    GuardCase(
        "concat",
        ops.Concat(1),
        (X(2, 1, "h"), X(2, 3, "2*(h // 2)")),
        {"h": (4, 5)},
        "axis 2 of inputs 0 and 1: 5 (h) must equal 4 (2*((h) // 2))",
    ),
    GuardCase(
        "crop",
        ops.Crop(1),
        (X(1, "h"), X(1, 3)),
        {"h": (3, 2)},
        "axis 1 of inputs 0 and 1: 2 (h) must be at least 3",
        peers=False,
    ),
    GuardCase(
        "depth_to_space",
        ops.DepthToSpace(2),
        (X(1, "c", 2, 2),),
        {"c": (4, 5)},
        "axis 1 of input 0, which must be a multiple of 4: 5 (c) must equal 4 (4*((c) // 4))",
    ),
    GuardCase(
        "space_to_depth",
        ops.SpaceToDepth(2),
        (X(1, 1, "h", 2),),
        {"h": (4, 5)},
        "axis 2 of input 0, which must be a multiple of 2: 5 (h) must equal 4 (2*((h) // 2))",
    ),
    GuardCase(
        "pad",
        ops.Pad("edge"),
        (X("n"), C(1, 1)),
        {"n": (1, 0)},
        "axis 0 of input 0, whose elements are repeated: 0 (n) must be at least 1",
    ),
    GuardCase(
        "pad_away",
        ops.Pad(),
        (X("n"), C(-2, 0)),
        {"n": (3, 1)},
        "axis 0 of result 0: -1 (n - 2) must be at least 0",
    ),
    GuardCase(
        "range",
        ops.Range(),
        (np.array(0), D("n - 3"), np.array(1)),
        {"n": (4, 2)},
        "axis 0 of result 0: -1 (n - 3) must be at least 0",
        peers=False,
    ),
    GuardCase(
        "filled",
        ops.ConstantOfShape(),
        (D("n - 3"),),
        {"n": (4, 2)},
        "axis 0 of result 0: -1 (n - 3) must be at least 0",
    ),
    GuardCase(
        "reshape",
        ops.Reshape(),
        (X("n", 6), C(4, 3)),
        {"n": (2, 3)},
        "the element counts of input 0 and of the result: 18 (6*n) must equal 12",
    ),
    GuardCase(
        "reshape_rest",
        ops.Reshape(),
        (X("n", 6), C(-1, 4)),
        {"n": (2, 3)},
        "the element counts of input 0 and of the result: 18 (6*n) must equal 16 (4*((6*n) // 4))",
    ),
    GuardCase(
        "reshape_to_symbol",
        ops.Reshape(),
        (X("n", "m"), D("n*m", 1)),
        {"n": (2, 2), "m": (3, 0)},
        "element 0 of the shape (0 would copy an extent of the input): 0 (m*n) must be at least 1",
    ),
    GuardCase(
        "reshape_by_symbol",
        ops.Reshape(1),
        (X("n*m", 2), D("n", -1)),
        {"n": (2, 0), "m": (3, 3)},
        "the product of the extents other than -1: 0 (n) must be at least 1",
        peers=False,
    ),
    GuardCase(
        "slice_start",
        ops.Slice(),
        (X("n"), C(1), C(2**62)),
        {"n": (1, 0)},
        "the upper limit of the start of the slice on axis 0: 0 (n) must be at least 1",
    ),
    GuardCase(
        "slice_to_int_max",
        ops.Slice(),
        (X("n", dtype=_U8), C(0), C(2**31 - 1)),
        {"n": (4, 2**31)},
        "the end of the slice on axis 0: 2147483647 must be at least 2147483648 (n)",
        peers=False,
    ),
    GuardCase(
        "slice_end",
        ops.Slice(),
        (X(4), C(0), D("n")),
        {"n": (4, 5)},
        "the upper limit of the end of the slice on axis 0: 4 must be at least 5 (n)",
    ),
    GuardCase(
        "slice_end_sign",
        ops.Slice(),
        (X("n"), C(0), D("n - 1")),
        {"n": (2, 0)},
        "the end of the slice on axis 0: -1 (n - 1) must be at least 0",
    ),
    GuardCase(
        "slice_negative",
        ops.Slice(),
        (X("n"), D("0 - n"), C(2**62)),
        {"n": (2, 0)},
        "the start of the slice on axis 0, which must be negative: -1 must be at least 0 (-1*n)",
    ),
    GuardCase(
        "slice_from_end",
        ops.Slice(),
        (X("n"), C(-1), C(2**62)),
        {"n": (2, 0)},
        "the start of the slice on axis 0: -1 (n - 1) must be at least 0",
    ),
    GuardCase(
        "split",
        ops.Split(0),
        (X("n"), C(1, 3)),
        {"n": (4, 3)},
        "axis 0 of input 0, and the sum of the lengths of its parts: 3 (n) must equal 4",
    ),
    GuardCase(
        "split_equally",
        ops.Split(0, 3),
        (X("n"),),
        {"n": (5, 1)},
        "axis 0 of result 2: -1 (-2*((n + 2) // 3) + n) must be at least 0",
    ),
    GuardCase(
        "split_evenly",
        ops.Split(0, 3, even=True),
        (X("n"),),
        {"n": (6, 5)},
        "the extent of the axis of split, which must be a multiple of 3: 5 (n) must equal 3 "
        "(3*((n) // 3))",
    ),
    GuardCase(
        "squeeze",
        ops.Squeeze(),
        (X("n", 3), C(0)),
        {"n": (1, 2)},
        "the removed axis 0 of input 0: 2 (n) must equal 1",
    ),
    GuardCase(
        "squeeze_ones",
        ops.Squeeze(),
        (X("n", 1),),
        {"n": (2, 1)},
        "axis 0 of input 0, which squeeze without axes keeps: 1 (n) must be at least 2",
    ),
    GuardCase(
        "tile",
        ops.Tile(),
        (X("n"), D("m - 1")),
        {"n": (2, 0), "m": (2, 0)},
        "the repeats of axis 0: -1 (m - 1) must be at least 0",
    ),
)
