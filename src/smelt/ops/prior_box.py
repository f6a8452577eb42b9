"""PriorBox: prior (default) boxes of a feature map (Caffe SSD)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Op, Operand
from smelt.ops._conformance_data import floats
from smelt.ops._shape import input_type, require_inputs, require_rank
from smelt.ops._shape_operands import present
from smelt.types import DType, TensorType, assume_at_least, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.ir import Array
    from smelt.types import ValueType


@dataclass(frozen=True)
class PriorBox(Op):
    """Prior boxes around the cells of a feature map, as fractions of the image.

    Inputs are the feature map and the image, of which only the shapes are used. For each min_size,
    a cell has a square of that size, a square of the geometric mean of min_size and max_size, and
    one box for each other aspect ratio. The second row of the result holds the variances. Sizes are
    not rounded to pixels.

    Shapes: two tensors ``[N, C, H, W]`` give ``[1, 2, H * W * boxes * 4]``.

    Dtypes: any; the result is float32.

    Raises ShapeError: when the attributes are invalid or the feature map is empty.

    Source: Caffe (SSD) PriorBoxLayer.
    """

    name: ClassVar[str] = "prior_box"

    min_size: tuple[float, ...]
    """Side lengths of the squares in pixels."""
    max_size: tuple[float, ...] = ()
    """Side length in pixels for each min_size; empty for no second square."""
    aspect_ratio: tuple[float, ...] = ()
    """Ratios of width to height in addition to 1."""
    flip: bool = True
    """Whether the inverse of each ratio is added."""
    clip: bool = False
    """Whether boxes are clipped to the image."""
    variance: tuple[float, ...] = (0.1,)
    """One variance, or one for each of the four coordinates."""
    img_h: int = 0
    """Height of the image; 0 for that of the second input."""
    img_w: int = 0
    """Width of the image; 0 for that of the second input."""
    step_h: float = 0.0
    """Height of a cell in pixels; 0 for the image height divided by the feature map height."""
    step_w: float = 0.0
    """Width of a cell in pixels; 0 for the image width divided by the feature map width."""
    offset: float = 0.5
    """Position of the box centre in its cell, as a fraction of the cell."""

    @property
    def ratios(self) -> tuple[float, ...]:
        """All distinct aspect ratios, starting with 1."""
        ratios = [1.0]
        for ratio in self.aspect_ratio:
            if all(abs(ratio - other) > 1e-6 for other in ratios):
                ratios += [ratio, 1.0 / ratio] if self.flip else [ratio]
        return tuple(ratios)

    @property
    def sizes(self) -> tuple[tuple[float, float], ...]:
        """Width and height in pixels of each box of a cell."""
        sizes: list[tuple[float, float]] = []
        for index, edge in enumerate(self.min_size):
            sizes.append((edge, edge))
            if self.max_size:
                mean = math.sqrt(edge * self.max_size[index])
                sizes.append((mean, mean))
            roots = [math.sqrt(ratio) for ratio in self.ratios[1:]]
            sizes += [(edge * root, edge / root) for root in roots]
        return tuple(sizes)

    def _check_attributes(self) -> None:
        """Check sizes, ratios and variances. Raises ShapeError."""
        if not self.min_size or min(self.min_size) <= 0:
            raise ShapeError(
                f"min_size of prior_box is {self.min_size}; it must be positive numbers"
            )
        if self.max_size and len(self.max_size) != len(self.min_size):
            raise ShapeError(
                f"max_size is {self.max_size}; it must have as many numbers as min_size, or be "
                "empty"
            )
        if any(high <= low for low, high in zip(self.min_size, self.max_size, strict=False)):
            raise ShapeError(
                f"max_size is {self.max_size}; each number must exceed that of min_size, "
                f"{self.min_size}"
            )
        if min(self.aspect_ratio, default=1.0) <= 0:
            raise ShapeError(f"aspect_ratio is {self.aspect_ratio}; it must be positive")
        if len(self.variance) not in {1, 4}:
            raise ShapeError(f"variance is {self.variance}; it must have one number or four")

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        require_inputs(self, inputs, 2)
        self._check_attributes()
        feature, image = input_type(self, inputs, 0), input_type(self, inputs, 1)
        require_rank(feature, "the feature map of prior_box", 4)
        require_rank(image, "the image of prior_box", 4)
        height, width = feature.shape[2:]
        for axis, extent in enumerate((height, width), 2):
            if not assume_at_least(extent, 1, f"axis {axis} of input 0"):
                raise ShapeError(f"the feature map {feature} is empty, so it has no prior boxes")
        count = height * width * (len(self.sizes) * 4)
        return (TensorType(DType.FLOAT32, (1, 2, count)),)

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        height, width = (int(e) for e in present(inputs, 0).shape[2:])
        image_h, image_w = present(inputs, 1).shape[2:]
        image_h, image_w = self.img_h or image_h, self.img_w or image_w
        step_h = self.step_h or image_h / max(height, 1)
        step_w = self.step_w or image_w / max(width, 1)
        y: Array = (np.arange(height) + self.offset)[:, None, None] * step_h / image_h
        x: Array = (np.arange(width) + self.offset)[None, :, None] * step_w / image_w
        halves = np.array(self.sizes).T / 2
        half_w, half_h = halves[0] / image_w, halves[1] / image_h
        edges = np.broadcast_arrays(x - half_w, y - half_h, x + half_w, y + half_h)
        boxes = np.stack(edges, axis=-1).reshape(-1)
        if self.clip:
            boxes = np.clip(boxes, 0, 1)
        variances = self.variance if len(self.variance) == 4 else self.variance * 4
        rows = np.stack((boxes, np.tile(np.array(variances), boxes.size // 4)))
        return (rows[None].astype(np.float32),)

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        arrays = (floats(1, 3, 3, 5), floats(1, 3, 32, 48))
        yield Case("square", cls((10.0,)), arrays)
        four = (0.1, 0.1, 0.2, 0.2)
        yield Case("ssd", cls((30.0,), (60.0,), (2.0, 3.0), variance=four), arrays)
        op = cls((8.0, 12.5), (16.0, 20.0), (2.0, 1.0), flip=False, clip=True)
        yield Case("clipped", op, arrays)
        op = cls((10.0, 16.0, 24.0), step_h=8.0, step_w=10.0, offset=0.25)
        yield Case("given_steps", op, arrays)
        yield Case("given_image", cls((10.0,), img_h=100, img_w=80), arrays)
