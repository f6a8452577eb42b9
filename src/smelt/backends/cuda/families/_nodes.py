"""What families ask of a node and of its memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from smelt.backends.cuda._source import operand_parameters
from smelt.engine import Launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smelt.backends._scalars import Scalars
    from smelt.backends.cuda._product import ProductKernel
    from smelt.engine import View
    from smelt.types import Dim


def finished(
    kernel: ProductKernel, family: str, views: Sequence[View], scalars: Scalars, chunks: Dim
) -> Launch:
    """The launch of a product, once every scalar is known; the last view is the result."""
    operands = tuple(operand_parameters(views, len(scalars.values)).items())
    spec = dataclasses.replace(kernel, operands=operands).spec(family)
    return Launch(spec, tuple(views), (len(views) - 1,), scalars.values, chunks)
