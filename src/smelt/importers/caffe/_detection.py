"""Converters of detection and resizing layers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from smelt import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.importers.caffe._layer_context import LayerContext
    from smelt.ir import Value

MAXIMUM_EXTENT: Final = 1 << 16
"""Largest spatial extent of a resized image."""
MAXIMUM_CLASSES: Final = 1 << 20
"""Largest number of classes of a DetectionOutput."""
_CODES: Final = {1: "CORNER", 2: "CENTER_SIZE", 3: "CORNER_SIZE"}


def convert_interp(step: LayerContext) -> list[Value]:
    """Add a bilinear resize with aligned corners, to a size or by a factor."""
    p = step.parameters
    if p.pad_beg or p.pad_end:
        raise step.shape_error(
            f"pad_beg {p.pad_beg} and pad_end {p.pad_end} are not supported; set both to 0, and "
            "crop the input with a Crop layer before this one"
        )
    height, width = _image(step)
    if p.height > 0 and p.width > 0:
        size = (p.height, p.width)
    else:
        shrunk = [(d - 1) // max(p.shrink_factor, 1) + 1 for d in (height, width)]
        size = tuple(d + (d - 1) * (max(p.zoom_factor, 1) - 1) for d in shrunk)
    return [_resize(step, size, "linear", "align_corners")]


def convert_upsample(step: LayerContext) -> list[Value]:
    """Add a resize that repeats each element along both spatial axes."""
    scale = int(step.parameters.scale)
    height, width = _image(step)
    return [_resize(step, (height * scale, width * scale), "nearest", "asymmetric")]


def _image(step: LayerContext) -> tuple[int, int]:
    match step.shape:
        case (_, _, int(height), int(width)):
            return height, width
        case _:
            raise step.shape_error(
                f"the input is {step.x.tensor}; it must have rank 4 ([N, C, H, W]) and a static "
                "height and width"
            )


def _resize(step: LayerContext, size: Sequence[int], mode: str, corners: str) -> Value:
    """Add a Resize of the spatial axes to ``size``, after checking the size."""
    if any(not 1 <= extent <= MAXIMUM_EXTENT for extent in size):
        raise step.shape_error(
            f"the height and width of the result are {list(size)}; both must be from 1 to "
            f"{MAXIMUM_EXTENT}"
        )
    sizes = step.integers(size, "sizes")
    op = ops.Resize(
        mode=mode, coordinate_transformation_mode=corners, nearest_mode="floor", axes=(2, 3)
    )
    return step.add(op, step.x, None, None, sizes)


def convert_normalize(step: LayerContext) -> list[Value]:
    """Divide each pixel, or each image, by its Euclidean norm, and scale it."""
    p = step.parameters
    channels = 1 if p.channel_shared else step.shape[step.axis(1)]
    if not isinstance(channels, int):
        raise step.shape_error(f"the channel count of the input is {channels}; it must be static")
    op = ops.Normalize(bool(p.across_spatial), bool(p.channel_shared), float(p.eps))
    return [step.add(op, step.x, step.weight(0, (channels,), "scale"))]


def refuse_prior_box(p: Any) -> str | None:
    """Return why the parameters of a PriorBox are not supported, or None."""
    if p.step and (p.step_h or p.step_w):
        return "step is given together with step_h or step_w; remove one of the two"
    if p.img_size and (p.img_h or p.img_w):
        return "img_size is given together with img_h or img_w; remove one of the two"
    if not p.min_size or any(size <= 0 for size in p.min_size):
        return (
            f"min_size is {list(p.min_size)}; it must have at least one number, and all must be "
            "positive"
        )
    return None


def convert_prior_box(step: LayerContext) -> list[Value]:
    """Add the default boxes of a feature map."""
    p = step.parameters
    op = ops.PriorBox(
        min_size=tuple(p.min_size),
        max_size=tuple(p.max_size),
        aspect_ratio=tuple(p.aspect_ratio),
        flip=bool(p.flip),
        clip=bool(p.clip),
        variance=tuple(p.variance) or (0.1,),
        img_h=int(p.img_size or p.img_h),
        img_w=int(p.img_size or p.img_w),
        step_h=float(p.step or p.step_h),
        step_w=float(p.step or p.step_w),
        offset=float(p.offset),
    )
    return [step.add(op, *step.inputs)]


def refuse_detection_output(p: Any) -> str | None:
    """Return why the parameters of a DetectionOutput are not supported, or None."""
    if not p.normalized_bbox:
        return "normalized_bbox: false (boxes in pixels) is not supported"
    if not 1 <= p.num_classes <= MAXIMUM_CLASSES:
        return f"num_classes is {p.num_classes}; it must be from 1 to {MAXIMUM_CLASSES}"
    return None


def convert_detection_output(step: LayerContext) -> list[Value]:
    """Add the detections of all images; their number is known only at run time."""
    p = step.parameters
    symbol = _count_symbol(step)
    op = ops.DetectionOutput(
        num_classes=int(p.num_classes),
        share_location=bool(p.share_location),
        background_label_id=int(p.background_label_id),
        nms_threshold=float(p.nms_param.nms_threshold),
        top_k=int(p.nms_param.top_k),
        eta=float(p.nms_param.eta),
        code_type=_CODES[p.code_type],
        variance_encoded_in_target=bool(p.variance_encoded_in_target),
        keep_top_k=int(p.keep_top_k),
        count_symbol=symbol,
        confidence_threshold=float(p.confidence_threshold),
    )
    inputs = step.inputs[:3]
    result = step.add(op, *inputs)
    step.graph.symbol_bounds[symbol] = op.count_bound([value.operand for value in inputs])
    return [result]


def _count_symbol(step: LayerContext) -> str:
    """Return an unused symbol for the number of detections."""
    layer = re.sub(r"\W", "_", step.layer.name, flags=re.ASCII)
    taken = step.graph.symbol_bounds
    name = f"count_of_{layer}"
    return name if name not in taken else f"count_{len(taken)}_of_{layer}"
