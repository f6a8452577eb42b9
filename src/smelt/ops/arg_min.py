"""ArgMin: index of the smallest element along an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.ops._arg_extreme import ArgExtreme, arg_cases
from smelt.types import override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.ir import Array, Case


@dataclass(frozen=True)
class ArgMin(ArgExtreme):
    """The index of the smallest element along an axis.

    Of equal elements it is the first one, or the last one with ``select_last_index``.

    Shapes: the input's with ``axis`` of extent 1, or removed without ``keepdims``.

    Dtypes: numbers -> int64; the first NaN counts as the smallest.

    Raises ShapeError: when ``axis`` is outside the rank or has no elements.

    Source: ONNX ArgMin-13.
    """

    name: ClassVar[str] = "arg_min"

    @override
    def pick(self, data: Array) -> Array:
        return np.asarray(np.argmin(data, self.axis))

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        yield from arg_cases(cls)
