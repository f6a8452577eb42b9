"""The layers of the documented API, each made of ops."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from smelt import ops
from smelt.errors import GraphError, ShapeError
from smelt.ir import Constant
from smelt.network._caller_location import atomic
from smelt.types import (
    is_float_dtype,
    require_array,
    require_choice,
    require_float,
    require_int,
    require_ints,
    require_list,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from smelt.ir import Array, Op, Value
    from smelt.network._tensor import Tensor
    from smelt.types import Dim, DType

Extents = int | tuple[int, ...]
"""One number for all spatial axes, or one for each."""

ACTIVATIONS: Final[dict[str, type[Op]]] = {
    "relu": ops.Relu,
    "sigmoid": ops.Sigmoid,
    "tanh": ops.Tanh,
    "elu": ops.Elu,
    "gelu": ops.Gelu,
    "hard_sigmoid": ops.HardSigmoid,
    "hard_swish": ops.HardSwish,
    "leaky_relu": ops.LeakyRelu,
    "mish": ops.Mish,
    "selu": ops.Selu,
    "softplus": ops.Softplus,
    "softsign": ops.Softsign,
}
POOLINGS: Final[dict[str, type[Op]]] = {"max": ops.MaxPool, "average": ops.AveragePool}
ELEMENTWISE: Final[dict[str, type[Op]]] = {
    "sum": ops.Add,
    "prod": ops.Mul,
    "max": ops.Max,
    "min": ops.Min,
    "sub": ops.Sub,
    "div": ops.Div,
    "pow": ops.Pow,
}
SCALE_MODES: Final = ("uniform", "channel", "elementwise")


class LayerMethods(ABC):
    """``add_convolution`` and its kin, over what a network provides."""

    @abstractmethod
    def mark(self) -> int:
        """How many nodes there are."""

    @abstractmethod
    def roll_back(self, mark: int, /) -> None:
        """Remove the nodes behind the first ``mark``."""

    @abstractmethod
    def apply(
        self, layer: str, kind: str, op: Op, *inputs: Value | None, part: str = ""
    ) -> list[Tensor]:
        """Add a node to a layer; ``part`` names all but its last one."""

    @abstractmethod
    def begin(self, name: str | None, kind: str) -> str:
        """The name of a new layer. Raises GraphError: it is taken."""

    @abstractmethod
    def value_of(self, tensor: Tensor) -> Value:
        """The value of a tensor of this network. Raises GraphError."""

    @abstractmethod
    def weight(self, constant: Constant) -> Value:
        """A value that holds a weight."""

    @atomic
    def add_convolution(
        self,
        x: Tensor,
        count: int,
        kernel: Extents,
        weights: ArrayLike,
        bias: ArrayLike | None = None,
        *,
        stride: Extents = 1,
        padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        name: str | None = None,
    ) -> Tensor:
        """Correlate ``x`` with ``count`` filters (the kernel is not flipped).

        Args:
            x: [C, H, W] behind the batch; one or three spatial axes do too.
            count: number of filters, K.
            kernel: extents of a filter.
            weights: K x C / groups x R x S, of this shape or flat in this order.
            bias: K numbers, or none.
            stride: steps between windows.
            padding: zeros on either side.
            dilation: steps between the elements of a window.
            groups: parts into which channels and filters are divided.
            name: name of the layer.

        Raises ShapeError: weights, groups or windows do not fit.
        """
        layer = self.begin(name, "convolution")
        value = self.value_of(x)
        count, groups = _counts(count, groups)
        op = ops.Conv(group=groups, **self._window(value, kernel, stride, padding, dilation))
        rows = self._channels(value, groups)
        return self._filter(layer, "convolution", op, value, (weights, bias), (count, rows))

    @atomic
    def add_deconvolution(
        self,
        x: Tensor,
        count: int,
        kernel: Extents,
        weights: ArrayLike,
        bias: ArrayLike | None = None,
        *,
        stride: Extents = 1,
        padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        name: str | None = None,
    ) -> Tensor:
        """Spread ``x`` through filters: the transpose of a convolution.

        Parameters are those of `add_convolution`, but for the weights: C x K / groups x R x S.

        Raises ShapeError: weights, groups or windows do not fit.
        """
        layer = self.begin(name, "deconvolution")
        value = self.value_of(x)
        count, groups = _counts(count, groups)
        op = ops.ConvTranspose(
            group=groups, **self._window(value, kernel, stride, padding, dilation)
        )
        channels = self._channels(value, 1)
        if count % groups:
            raise ShapeError(f"{count} filters do not divide into {groups} groups", node=layer)
        shape = (channels, count // groups)
        return self._filter(layer, "deconvolution", op, value, (weights, bias), shape)

    @atomic
    def add_fully_connected(
        self,
        x: Tensor,
        count: int,
        weights: ArrayLike,
        bias: ArrayLike | None = None,
        *,
        name: str | None = None,
    ) -> Tensor:
        """Multiply each image, flattened, by a matrix.

        Args:
            x: any shape behind the batch; of an image [C, H, W] the result is [K, 1, 1].
            count: number of results, K.
            weights: K rows of as many numbers as an image has, or flat in this order.
            bias: K numbers, or none.
            name: name of the layer.

        Raises ShapeError: the weights do not fit.
        """
        layer, kind = self.begin(name, "fully_connected"), "fully_connected"
        value = self.value_of(x)
        count, _ = _counts(count, 1)
        rank = value.tensor.rank
        width = math.prod(_fixed(value.tensor.shape[1:], layer))
        matrix = self._weight(f"{layer}.weight", weights, (count, width), value.tensor.dtype)
        offset = self._bias(layer, bias, count, value.tensor.dtype)
        if rank != 2:
            value = self.apply(layer, kind, ops.Flatten(axis=1), value, part="flatten")[0].value
        last = "product" if rank == 4 else ""
        made = self.apply(layer, kind, ops.Gemm(trans_b=True), value, matrix, offset, part=last)[0]
        if rank != 4:
            return made
        shape = self.weight(Constant(f"{layer}.shape", np.array([0, count, 1, 1], np.int64)))
        return self.apply(layer, kind, ops.Reshape(), made.value, shape)[0]

    @atomic
    def add_activation(
        self,
        x: Tensor,
        kind: str = "relu",
        *,
        alpha: float | None = None,
        beta: float | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Apply a function to each element: relu, sigmoid, tanh and others (see ``ACTIVATIONS``).

        Args:
            x: any shape.
            kind: the function.
            alpha: its first parameter, where it has one.
            beta: its second parameter, where it has one.
            name: name of the layer.

        Raises GraphError: the function is unknown, or has no such parameter.
        """
        layer = self.begin(name, "activation")
        given = {"alpha": alpha, "beta": beta}
        attributes = {
            key: require_float(number, key, GraphError)
            for key, number in given.items()
            if number is not None
        }
        op = _choose(ACTIVATIONS, kind, "activation", attributes)
        return self.apply(layer, "activation", op, self.value_of(x))[0]

    @atomic
    def add_pooling(
        self,
        x: Tensor,
        kind: str,
        window: Extents,
        *,
        stride: Extents = 1,
        padding: Extents = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        name: str | None = None,
    ) -> Tensor:
        """Take the largest element (``max``) or the mean (``average``) of each window.

        Args:
            x: [C, H, W] behind the batch; one or three spatial axes do too.
            kind: ``max`` or ``average``.
            window: its extents.
            stride: steps between windows.
            padding: on either side; it never wins, and counts in a mean only on demand.
            ceil_mode: whether a last window may reach beyond the padding.
            count_include_pad: whether a mean is over the padding too.
            name: name of the layer.

        Raises ShapeError: no window fits. GraphError: the kind is unknown.
        """
        layer = self.begin(name, "pooling")
        value = self.value_of(x)
        attributes = dict(self._window(value, window, stride, padding, 1), ceil_mode=ceil_mode)
        if require_choice(kind, "pooling", GraphError, POOLINGS) == "average":
            attributes["count_include_pad"] = count_include_pad
        op = _choose(POOLINGS, kind, "pooling", attributes)
        return self.apply(layer, "pooling", op, value)[0]

    @atomic
    def add_lrn(
        self,
        x: Tensor,
        window: int,
        alpha: float,
        beta: float,
        k: float,
        *,
        region: str = "across_channels",
        name: str | None = None,
    ) -> Tensor:
        """Divide by ``(k + alpha / n * sum of squares) ** beta`` over ``window`` neighbours.

        ``region`` is ``across_channels``, where n is ``window``, or ``within_channel``, where the
        neighbours are those of a square and n is their number.

        Raises GraphError: a parameter is outside what is documented.
        """
        layer = self.begin(name, "lrn")
        limits = (("alpha", alpha, -1e20, 1e20), ("beta", beta, 0.01, 1e5), ("k", k, 1e-5, 1e10))
        refuse = partial(GraphError, node=layer)
        alpha, beta, k = (
            require_float(n, name, refuse, low, high) for name, n, low, high in limits
        )
        window = require_int(window, "window", refuse)
        if window not in range(1, 16, 2):
            raise refuse(f"window is {window}; it must be odd, 1 to 15")
        op = ops.LRN(size=window, alpha=alpha, beta=beta, bias=k, region=region)
        return self.apply(layer, "lrn", op, self.value_of(x))[0]

    @atomic
    def add_scale(
        self,
        x: Tensor,
        mode: str = "uniform",
        shift: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        power: ArrayLike | None = None,
        *,
        name: str | None = None,
    ) -> Tensor:
        """Compute ``(x * scale + shift) ** power`` with constants; what is absent changes nothing.

        Args:
            x: [C, H, W] behind the batch, or any other shape.
            mode: one number for all (``uniform``), for each channel, or for each element.
            shift: the numbers that are added.
            scale: the numbers by which is multiplied.
            power: the exponents.
            name: name of the layer.

        Raises ShapeError: there are more or fewer numbers than the mode asks for.
        """
        layer = self.begin(name, "scale")
        value = self.value_of(x)
        shape = self._scale_shape(value, mode, layer)
        steps: list[tuple[str, Op, Value]] = []
        for what, op, numbers in (
            ("scale", ops.Mul(), scale),
            ("shift", ops.Add(), shift),
            ("power", ops.Pow(), power),
        ):
            label = f"{layer}.{what}"
            if not _is_empty(numbers, label):
                steps.append((what, op, self._weight(label, numbers, shape, value.tensor.dtype)))
        if not steps:
            return self.apply(layer, "scale", ops.Identity(), value)[0]
        for what, step, constant in steps[:-1]:
            value = self.apply(layer, "scale", step, value, constant, part=what)[0].value
        _, step, constant = steps[-1]
        return self.apply(layer, "scale", step, value, constant)[0]

    @atomic
    def add_softmax(self, x: Tensor, *, axis: int = 1, name: str | None = None) -> Tensor:
        """Make the elements along the channels add up to one; ``axis`` counts the batch as 0."""
        layer = self.begin(name, "softmax")
        return self.apply(layer, "softmax", ops.Softmax(axis=axis), self.value_of(x))[0]

    @atomic
    def add_concatenation(
        self, tensors: Sequence[Tensor], *, axis: int = 1, name: str | None = None
    ) -> Tensor:
        """Put tensors one behind the other along the channels; ``axis`` counts the batch as 0.

        Raises ShapeError: another extent differs.
        """
        layer = self.begin(name, "concatenation")
        given = require_list(tensors, "tensors to concatenate", GraphError)
        values = [self.value_of(tensor) for tensor in given]
        return self.apply(layer, "concatenation", ops.Concat(axis=axis), *values)[0]

    @atomic
    def add_elementwise(
        self, a: Tensor, b: Tensor, operation: str = "sum", *, name: str | None = None
    ) -> Tensor:
        """Combine two tensors element by element: sum, prod, max, min, sub, div or pow.

        Raises ShapeError: they have not one shape. GraphError: the operation is unknown.
        """
        layer = self.begin(name, "elementwise")
        op = _choose(ELEMENTWISE, operation, "elementwise operation", {})
        left, right = self.value_of(a), self.value_of(b)
        if left.tensor.shape != right.tensor.shape:
            raise ShapeError(
                f"{left.tensor} and {right.tensor} differ; an elementwise layer takes equal shapes",
                node=layer,
            )
        return self.apply(layer, "elementwise", op, left, right)[0]

    # ---- what they share

    def _window(
        self, x: Value, kernel: Extents, stride: Extents, padding: Extents, dilation: Extents
    ) -> dict[str, Any]:
        axes = x.tensor.rank - 2
        if axes < 1:
            raise ShapeError(f"{x.name} is {x.tensor}; windows need spatial axes, as in [C, H, W]")
        attributes = {
            "kernel_shape": _each(kernel, axes, "kernel", 1),
            "strides": _each(stride, axes, "stride", 1),
            "pads": _each(padding, axes, "padding", 0) * 2,
        }
        dilations = _each(dilation, axes, "dilation", 1)
        return attributes if dilations == (1,) * axes else {**attributes, "dilations": dilations}

    def _channels(self, x: Value, groups: int) -> int:
        channels = x.tensor.shape[1]
        if not isinstance(channels, int) or channels % groups:
            raise ShapeError(f"{channels} channels of {x.name} do not divide into {groups} groups")
        return channels // groups

    def _filter(
        self,
        layer: str,
        kind: str,
        op: ops.Conv | ops.ConvTranspose,
        x: Value,
        numbers: tuple[ArrayLike, ArrayLike | None],
        shape: tuple[int, int],
    ) -> Tensor:
        weights, bias = numbers
        count = shape[0] if kind == "convolution" else shape[1] * op.group
        dtype = x.tensor.dtype
        matrix = self._weight(f"{layer}.weight", weights, (*shape, *op.kernel_shape), dtype)
        return self.apply(layer, kind, op, x, matrix, self._bias(layer, bias, count, dtype))[0]

    def _bias(self, layer: str, bias: ArrayLike | None, count: int, dtype: DType) -> Value | None:
        if _is_empty(bias, f"{layer}.bias"):
            return None
        return self._weight(f"{layer}.bias", bias, (count,), dtype)

    def _weight(self, name: str, numbers: object, shape: tuple[int, ...], dtype: DType) -> Value:
        """Numbers of any real type as a constant; the array itself is kept, never a copy."""
        array: Array = require_array(numbers, name, GraphError)
        if not (array.dtype.kind in "iu" or is_float_dtype(array.dtype)):
            raise GraphError(f"{name} has element type {array.dtype}; it must be real numbers")
        if array.size != math.prod(shape) or (array.ndim > 1 and array.shape != shape):
            raise ShapeError(
                f"{name} has {array.size} numbers in shape {list(array.shape)}; it must have "
                f"shape {list(shape)}, or be flat with as many numbers"
            )
        source = Constant(name, array.reshape(shape))
        if array.dtype == dtype.numpy:
            return self.weight(source)
        return self.weight(Constant.derive(f"{name}:{dtype.value}", ops.Cast(to=dtype), source))

    def _scale_shape(self, x: Value, mode: str, layer: str) -> tuple[int, ...]:
        """The shape in which the numbers of a scale broadcast onto ``x``."""
        require_choice(mode, "mode", partial(GraphError, node=layer), SCALE_MODES)
        if mode == "uniform":
            return ()
        if mode == "elementwise":
            return _fixed(x.tensor.shape[1:], layer)
        return (*_fixed(x.tensor.shape[1:2], layer), *[1] * (x.tensor.rank - 2))


def _choose(table: dict[str, type[Op]], name: str, what: str, attributes: dict[str, Any]) -> Op:
    cls = table[require_choice(name, what, GraphError, table)]
    try:
        return cls(**attributes)
    except TypeError as error:
        raise GraphError(f"{what} {name!r} has no such attribute: {error}") from error


def _counts(count: object, groups: object) -> tuple[int, int]:
    """How many filters or results there are, and into how many groups they are divided."""
    numbers = (("count", count), ("groups", groups))
    filters, parts = (require_int(n, name, ShapeError, least=1) for name, n in numbers)
    return filters, parts


def _each(given: object, axes: int, what: str, least: int) -> tuple[int, ...]:
    """Numbers for the axes; one number is for all of them."""
    listed = cast("object", given) if isinstance(given, Iterable) else (given,) * axes
    return require_ints(listed, what, ShapeError, count=axes, least=least)


def _is_empty(numbers: object, name: str) -> bool:
    """Whether the weights are empty: None, or none of them."""
    return numbers is None or not require_array(numbers, name, GraphError).size


def _fixed(extents: Sequence[Dim], layer: str) -> tuple[int, ...]:
    for extent in extents:
        if not isinstance(extent, int):
            raise ShapeError(
                f"the extent {extent} of its weights must be a number: fix it", node=layer
            )
    return tuple(extent for extent in extents if isinstance(extent, int))
