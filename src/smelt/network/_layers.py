"""``NetworkDefinition``: the layer methods of the documented API; layers are composed of ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt import ops
from smelt.errors import GraphError, ShapeError
from smelt.ir import Array, Constant, Op, Value
from smelt.network._caller_location import atomic
from smelt.network._definition import NetworkBase
from smelt.network._tensor import wrong_attributes
from smelt.types import (
    counted,
    is_float_dtype,
    require_array,
    require_choice,
    require_float,
    require_int,
    require_ints,
    require_list,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from smelt.network._tensor import Tensor
    from smelt.types import Dim, DType

Extents = int | tuple[int, ...]
"""One extent for all spatial axes, or one for each axis."""

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


class NetworkDefinition(NetworkBase):
    """A network under construction.

    With ``batch="implicit"``, shapes describe one image, and each engine determines the batch size.
    With ``batch="explicit"``, shapes are complete, and an extent may be symbolic, given by its
    name.
    """

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
        """Add a cross-correlation of ``x`` with ``count`` filters (the kernel is not flipped).

        Args:
            x: tensor of shape [C, H, W] without the batch, or with one or three spatial axes.
            count: number of filters, K.
            kernel: extents of a filter.
            weights: array of shape K x C / groups x R x S, or flat in this order.
            bias: K numbers, or None.
            stride: distance between windows, in elements.
            padding: number of zeros on either side of each spatial axis.
            dilation: distance between the elements of a window.
            groups: number of groups into which channels and filters are divided.
            name: name of the layer.

        Raises:
            ShapeError: the weights, groups or windows do not fit ``x``.
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
        """Add a transposed convolution of ``x``.

        The parameters are those of `add_convolution`, except that the weights have shape C x K /
        groups x R x S.

        Raises:
            ShapeError: the weights, groups or windows do not fit ``x``.
        """
        layer = self.begin(name, "deconvolution")
        value = self.value_of(x)
        count, groups = _counts(count, groups)
        op = ops.ConvTranspose(
            group=groups, **self._window(value, kernel, stride, padding, dilation)
        )
        channels = self._channels(value, 1)
        if count % groups:
            raise ShapeError(
                f"count is {count}; it must be a multiple of groups, {groups}", node=layer
            )
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
            x: tensor of any shape; for an image [C, H, W] the result is [K, 1, 1].
            count: number of results, K.
            weights: K rows, each with one number per element of an image, or flat in this order.
            bias: K numbers, or None.
            name: name of the layer.

        Raises:
            ShapeError: the weights do not fit ``x``.
        """
        layer, kind = self.begin(name, "fully_connected"), "fully_connected"
        value = self.value_of(x)
        count, _ = _counts(count, 1)
        rank = value.tensor.rank
        width = math.prod(_fixed(value.tensor.shape[1:], layer))
        matrix = self._weight(f"{layer}.weight", weights, (count, width), value.tensor.dtype)
        offset = self._optional(f"{layer}.bias", bias, (count,), value.tensor.dtype)
        if rank != 2:
            value = self.apply(layer, kind, ops.Flatten(axis=1), value, part="flatten")[0].value
        last = "product" if rank == 4 else ""
        product = self.apply(layer, kind, ops.Gemm(trans_b=True), value, matrix, offset, part=last)[
            0
        ]
        if rank != 4:
            return product
        shape = self.weight(Constant(f"{layer}.shape", np.array([0, count, 1, 1], np.int64)))
        return self.apply(layer, kind, ops.Reshape(), product.value, shape)[0]

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
            x: tensor of any shape.
            kind: name of the function.
            alpha: first parameter of the function, if it has parameters.
            beta: second parameter of the function, if it has two.
            name: name of the layer.

        Raises:
            GraphError: the function is unknown or does not have the parameter.
        """
        layer = self.begin(name, "activation")
        parameters = {"alpha": alpha, "beta": beta}
        attributes = {
            key: require_float(number, key, GraphError)
            for key, number in parameters.items()
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
        """Compute the maximum (``max``) or the mean (``average``) of each window.

        Args:
            x: tensor of shape [C, H, W] without the batch, or with one or three spatial axes.
            kind: ``max`` or ``average``.
            window: extents of a window.
            stride: distance between windows, in elements.
            padding: elements on either side; they never are the maximum, and the mean includes them
                only if ``count_include_pad`` is set.
            ceil_mode: whether a last window may extend beyond the padding.
            count_include_pad: whether the mean includes the padding.
            name: name of the layer.

        Raises:
            ShapeError: no window fits into ``x``.
            GraphError: the kind is unknown.
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

        With ``region="across_channels"`` the neighbours are channels and n is ``window``. With
        ``region="within_channel"`` they are the pixels of a square and n is their number.

        Raises:
            GraphError: a parameter is outside its documented range.
        """
        layer = self.begin(name, "lrn")
        limits = (("alpha", alpha, -1e20, 1e20), ("beta", beta, 0.01, 1e5), ("k", k, 1e-5, 1e10))
        refuse = partial(GraphError, node=layer)
        alpha, beta, k = (
            require_float(n, name, refuse, low, high) for name, n, low, high in limits
        )
        window = require_int(window, "window", refuse)
        if window not in range(1, 16, 2):
            raise refuse(f"window is {window}; it must be an odd number from 1 to 15")
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
        """Compute ``(x * scale + shift) ** power`` with constants; absent constants have no effect.

        Args:
            x: tensor of shape [C, H, W] without the batch, or of any other shape.
            mode: whether there is one number (``uniform``), one per channel (``channel``) or one
                per element (``elementwise``).
            shift: the numbers to add.
            scale: the numbers to multiply by.
            power: the exponents.
            name: name of the layer.

        Raises:
            ShapeError: the count of numbers does not match the mode.
        """
        layer = self.begin(name, "scale")
        value = self.value_of(x)
        shape = self._scale_shape(value, mode, layer)
        steps: list[tuple[str, Op, Value]] = []
        for part, operation, numbers in (
            ("scale", ops.Mul(), scale),
            ("shift", ops.Add(), shift),
            ("power", ops.Pow(), power),
        ):
            weight = self._optional(f"{layer}.{part}", numbers, shape, value.tensor.dtype)
            if weight is not None:
                steps.append((part, operation, weight))
        if not steps:
            return self.apply(layer, "scale", ops.Identity(), value)[0]
        for part, step, constant in steps[:-1]:
            value = self.apply(layer, "scale", step, value, constant, part=part)[0].value
        _, step, constant = steps[-1]
        return self.apply(layer, "scale", step, value, constant)[0]

    @atomic
    def add_softmax(self, x: Tensor, *, axis: int = 1, name: str | None = None) -> Tensor:
        """Normalise along ``axis`` by softmax; axis 0 is the batch, axis 1 the channels."""
        layer = self.begin(name, "softmax")
        return self.apply(layer, "softmax", ops.Softmax(axis=axis), self.value_of(x))[0]

    @atomic
    def add_concatenation(
        self, tensors: Sequence[Tensor], *, axis: int = 1, name: str | None = None
    ) -> Tensor:
        """Concatenate tensors along ``axis``; axis 0 is the batch, axis 1 the channels.

        Raises:
            ShapeError: the tensors differ in another extent.
        """
        layer = self.begin(name, "concatenation")
        operands = require_list(tensors, "tensors", GraphError)
        values = [self.value_of(tensor) for tensor in operands]
        return self.apply(layer, "concatenation", ops.Concat(axis=axis), *values)[0]

    @atomic
    def add_elementwise(
        self, a: Tensor, b: Tensor, operation: str = "sum", *, name: str | None = None
    ) -> Tensor:
        """Combine two tensors element by element: sum, prod, max, min, sub, div or pow.

        Raises:
            ShapeError: the shapes differ.
            GraphError: the operation is unknown.
        """
        layer = self.begin(name, "elementwise")
        op = _choose(ELEMENTWISE, operation, "elementwise operation", {})
        left, right = self.value_of(a), self.value_of(b)
        if left.tensor.shape != right.tensor.shape:
            raise ShapeError(
                f"{left.tensor} and {right.tensor} differ; the operands of an elementwise layer "
                "must have equal shapes",
                node=layer,
            )
        return self.apply(layer, "elementwise", op, left, right)[0]

    # ---- shared by several layers

    def _window(
        self, x: Value, kernel: Extents, stride: Extents, padding: Extents, dilation: Extents
    ) -> dict[str, Any]:
        """Return the window attributes of a convolution or pooling op.

        Raises:
            ShapeError: ``x`` has no spatial axes, or a parameter does not have one number per axis.
        """
        axes = x.tensor.rank - 2
        if axes < 1:
            raise ShapeError(
                f"{x.name} is {x.tensor}; windows require spatial axes, as in [C, H, W]"
            )
        attributes = {
            "kernel_shape": _each(kernel, axes, "kernel", 1),
            "strides": _each(stride, axes, "stride", 1),
            "pads": _each(padding, axes, "padding", 0) * 2,
        }
        dilations = _each(dilation, axes, "dilation", 1)
        return attributes if dilations == (1,) * axes else {**attributes, "dilations": dilations}

    def _channels(self, x: Value, groups: int) -> int:
        """Return the number of channels of one group.

        Raises:
            ShapeError: the channel count is symbolic or not a multiple of ``groups``.
        """
        channels = x.tensor.shape[1]
        if not isinstance(channels, int):
            raise ShapeError(
                f"the channel count of {x.name} is {channels}; it must be static, because the "
                "weights depend on it"
            )
        if channels % groups:
            raise ShapeError(
                f"the channel count of {x.name} is {channels}; it must be a multiple of the "
                f"number of groups, {groups}"
            )
        return channels // groups

    def _filter(
        self,
        layer: str,
        kind: str,
        op: ops.Conv | ops.ConvTranspose,
        x: Value,
        parameters: tuple[ArrayLike, ArrayLike | None],
        shape: tuple[int, int],
    ) -> Tensor:
        """Add the node of a convolution or deconvolution with its weights and bias.

        ``shape`` is that of the weights without the kernel extents.
        """
        weights, bias = parameters
        count = shape[0] if kind == "convolution" else shape[1] * op.group
        dtype = x.tensor.dtype
        matrix = self._weight(f"{layer}.weight", weights, (*shape, *op.kernel_shape), dtype)
        offset = self._optional(f"{layer}.bias", bias, (count,), dtype)
        return self.apply(layer, kind, op, x, matrix, offset)[0]

    def _optional(
        self, name: str, numbers: ArrayLike | None, shape: tuple[int, ...], dtype: DType
    ) -> Value | None:
        """Add numbers as by ``_weight``; return None if they are None or have no elements."""
        if numbers is None or not require_array(numbers, name, GraphError).size:
            return None
        return self._weight(name, numbers, shape, dtype)

    def _weight(self, name: str, numbers: object, shape: tuple[int, ...], dtype: DType) -> Value:
        """Add numbers of any real type as a constant of type ``dtype``; the array is not copied.

        Raises:
            GraphError: the elements are not real numbers.
            ShapeError: the array does not have shape ``shape`` and is not flat with as many
                elements.
        """
        array: Array = require_array(numbers, name, GraphError)
        if not (array.dtype.kind in "iu" or is_float_dtype(array.dtype)):
            raise GraphError(f"{name} has element type {array.dtype}; it must be a real type")
        if array.size != math.prod(shape) or (array.ndim > 1 and array.shape != shape):
            raise ShapeError(
                f"{name} has {counted(array.size, 'number')} in shape {list(array.shape)}; it must "
                f"have shape {list(shape)}, or one axis of {counted(math.prod(shape), 'element')}"
            )
        source = Constant(name, array.reshape(shape))
        if array.dtype == dtype.numpy:
            return self.weight(source)
        return self.weight(Constant.derive(f"{name}:{dtype.value}", ops.Cast(to=dtype), source))

    def _scale_shape(self, x: Value, mode: str, layer: str) -> tuple[int, ...]:
        """Return the shape in which the numbers of a scale layer broadcast to ``x``."""
        require_choice(mode, "mode", partial(GraphError, node=layer), SCALE_MODES)
        if mode == "uniform":
            return ()
        if mode == "elementwise":
            return _fixed(x.tensor.shape[1:], layer)
        return (*_fixed(x.tensor.shape[1:2], layer), *[1] * (x.tensor.rank - 2))


def _choose(table: dict[str, type[Op]], name: str, what: str, attributes: dict[str, Any]) -> Op:
    """Create the op called ``name`` of a table; ``what`` describes the table in errors."""
    cls = table[require_choice(name, what, GraphError, table)]
    try:
        return cls(**attributes)
    except TypeError as error:
        reason = wrong_attributes(f"{what} {name!r}", cls, attributes, error)
        raise GraphError(reason) from error


def _counts(count: object, groups: object) -> tuple[int, int]:
    """Check and return the number of filters (or results) and of groups."""
    numbers = (("count", count), ("groups", groups))
    filter_count, group_count = (require_int(n, name, ShapeError, minimum=1) for name, n in numbers)
    return filter_count, group_count


def _each(numbers: object, axes: int, what: str, minimum: int) -> tuple[int, ...]:
    """Return one number per axis; a single number applies to all axes."""
    per_axis = numbers if hasattr(numbers, "__iter__") else (numbers,) * axes
    return require_ints(per_axis, what, ShapeError, count=axes, minimum=minimum)


def _fixed(extents: Sequence[Dim], layer: str) -> tuple[int, ...]:
    """Return extents that must all be static.

    Raises:
        ShapeError: an extent is symbolic.
    """
    for extent in extents:
        if not isinstance(extent, int):
            raise ShapeError(
                f"the weights depend on the extent {extent}, which must be static", node=layer
            )
    return tuple(extent for extent in extents if isinstance(extent, int))
