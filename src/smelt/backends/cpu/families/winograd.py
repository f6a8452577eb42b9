"""Convolution by Winograd's minimal filtering: fewer multiplications, more memory.

The image is cut into tiles of ``size`` x ``size`` results. A first launch transforms what each
tile reads into ``side ** 2`` planes, a second multiplies each plane by its transformed weights, a
third transforms back and runs the epilogue. With 3x3 windows and ``size`` 4 a result costs 2.25
multiplications instead of 9; errors are some ten times those of the direct sum, and still of the
order of 1e-5.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import numpy as np

from smelt.backends import Family, Refusal, Scalars, Tactic, root_of, store_as
from smelt.backends._nodes import value_of, view_of
from smelt.backends.cpu._emit import Emitter, Int, Reg
from smelt.backends.cpu._epilogue import Epilogue
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._arithmetic import ARITHMETICS, Arithmetic, arithmetic_for
from smelt.backends.cpu.families._image_tiles import fold_weights, write_tiles
from smelt.backends.cpu.families._minimal_filtering import Scheme, scheme_of, transformed
from smelt.backends.cpu.families._operands import (
    CHANNELS_LAST,
    arithmetic_of,
    constant_of,
    named,
    pack_bias,
    pack_extras,
    pack_panels,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._panels import write_panels
from smelt.backends.cpu.families._pixels import (
    CHANNEL_AXIS,
    Pixels,
    PixelWriter,
    formats,
    pixels_of,
    walk_of,
    why_no_pixels,
)
from smelt.backends.cpu.families._product import Product
from smelt.backends.cpu.families._product import Walk as ProductWalk
from smelt.backends.cpu.families._tile_rows import (
    LOCAL_COST,
    TileRows,
    choose_rows,
    join_launches,
    write_rows,
)
from smelt.backends.cpu.families._tiling import (
    MEMORY_BYTES_PER_SECOND,
    Problem,
    budgets,
    choose_tile,
    estimate_seconds,
)
from smelt.backends.cpu.families._vectors import load, unravel
from smelt.backends.cpu.families.conv import bias_of
from smelt.engine import KernelSpec, Launch, View, as_json, parameters
from smelt.errors import InternalError
from smelt.ir import Constant
from smelt.ops.conv import Conv
from smelt.ops.mat_mul import MatMul
from smelt.types import DType, ceil_div, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from smelt.backends import Operands
    from smelt.engine import Halo, Json, Step
    from smelt.ir import Node
    from smelt.types import Dim

_FLOAT_BYTES: Final = 4
_FEW_CHANNELS: Final = 16
_SMALL_EXTENT: Final = 11
_NARROW_SIZE: Final = 2
_NARROW_REACH: Final = 4
"""Sides of a filter's tiles whose matrices have only ones and halves: those of 6 lose 10 bits."""
_TILES: Final = 2
"""Register tiles to try."""
_GAP: Final = 16
"""Elements between planes: without them planes 4 KiB apart fight for the same cache lines."""

_SIZES: Final[dict[tuple[int, int], tuple[int, ...]]] = {
    (3, 1): (4, 2),
    (3, 2): (2, 4),
    (4, 1): (3,),
    (5, 1): (2,),
    (5, 2): (2,),
}
"""Sizes of tiles for each window and stride, those for large images first."""
_MOST_FOLDED: Final = 64
"""Channels of a folded pixel, at most."""
_FOLDED_TAPS: Final = 3
"""Folding adds zeros to windows: those of fewer taps afterwards are not worth it."""


class WinogradFamily(Family[CpuTarget]):
    """Convolution with small square windows in the Winograd domain."""

    name: ClassVar[str] = "winograd"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic | Refusal]:
        root = root_of(node)[0]
        if (
            not isinstance(root, Conv)
            or len(set(root.kernel_shape)) > 1
            or root.kernel_shape[0] < 3
        ):
            return
        reason = _why_not(node, root) or formats(node)[1]
        if reason:
            yield Refusal(self.name, reason)
            return
        fold = _fold_of(node)
        if fold > 1 and fold * cast("int", view_shape(node)[1]) > target.vector_bits // 32:
            yield Refusal(self.name, f"{fold} columns of channels do not fit into a vector")
            return
        for size in _choices(node):
            for tile in budgets(target)[:_TILES]:
                yield from self._offers(node, target, size, tile, ARITHMETICS["float32"])

    def _offers(
        self,
        node: Node,
        target: CpuTarget,
        size: int,
        tile: tuple[int, int],
        arithmetic: Arithmetic,
    ) -> Iterator[Tactic]:
        """Tiles of one size by register tiles of so many pixels and vectors."""
        count, scheme = root_of(node)[1], _scheme_of(node, size)
        seconds = _estimate_seconds(node, scheme, tile, target) / arithmetic.group
        options: dict[str, Json] = {"size": size, "pixels": tile[0], "vectors": tile[1]}
        if arithmetic.group > 1:
            options["arithmetic"] = arithmetic.name
        for rows in _Planes.of(node, scheme, arithmetic).row_choices:
            yield Tactic(
                self.name,
                parameters(lanes=target.vector_bits // 32, rows=rows, **options),
                (CHANNELS_LAST, *[None] * (count - 1), *formats(node)[0]),
                (CHANNELS_LAST,),
                (_halo(node, scheme), *[()] * (len(node.inputs) - 1)),
                workspace_bytes=_Planes.of(node, scheme, arithmetic, rows).bytes_needed,
                cost_hint=seconds * (LOCAL_COST if rows else 1.0),
            )

    @override
    def narrowed(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        """The tactic as it is, and planes that are narrow, too, where that rounds little."""
        made = [tactic]
        arithmetic = arithmetic_for(dtype, target)
        reach = _scheme_of(node, _NARROW_SIZE).reach
        if arithmetic.group > 1 and reach <= _NARROW_REACH:
            made += self._offers(node, target, _NARROW_SIZE, budgets(target)[0], arithmetic)
        return tuple(store_as(dtype, node, one) for one in made)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        options, bias = dict(tactic.parameters), bias_of(node)
        lanes, size = cast("int", options["lanes"]), cast("int", options["size"])
        weights = fold_weights(constant_of(node.inputs[1]), _fold_of(node))
        filters, channels = (cast("int", e) for e in weights.type.shape[:2])
        scheme = _scheme_of(node, size)
        factor = np.array(scheme.weights, np.float32)
        left = Constant.derive(weights.name, MatMul(), Constant("", factor), weights)
        both = Constant.derive(weights.name, MatMul(), left, Constant("", factor.T.copy()))
        planes = scheme.side**2
        turned = transpose(reshape(both, filters, channels, planes), 2, 0, 1)
        source = reshape(turned, planes * filters, channels)
        named(f"{weights.name}.winograd{size}", source)
        vectors = cast("int", options["vectors"])
        packed = [*pack_panels(source, planes, lanes, vectors, arithmetic_of(tactic))]
        if bias is not None:
            packed.append(pack_bias(constant_of(bias), 1, lanes))
        return (*packed, *pack_extras(node, CHANNEL_AXIS))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        options = dict(tactic.parameters)
        scheme, rows = _scheme_of(node, cast("int", options["size"])), options["rows"]
        planes = _Planes.of(node, scheme, arithmetic_of(tactic), cast("int", rows))
        lanes, vectors = cast("int", options["lanes"]), cast("int", options["vectors"])
        panels = int(planes.filters >= lanes * vectors) + int(
            planes.filters % (lanes * vectors) > 0
        )
        first, second = planes.windows(operands)
        products = planes.product().launch(
            self.name,
            parameters(**{**options, "split": "both"}),
            (first, *operands.packed[:panels], second),
        )
        launches = (
            self._transform_in(node, planes, operands, lanes),
            products,
            self._transform_out(node, planes, operands, operands.packed[panels:], lanes),
        )
        if not rows:
            return launches
        views = (view_of(operands, 0), *operands.packed[:panels], *launches[2].operands[1:])
        return (join_launches(launches, planes.tile_rows, views, planes.batch),)

    def _transform_in(self, node: Node, planes: _Planes, operands: Operands, lanes: int) -> Launch:
        x, scalars = view_of(operands, 0), Scalars()
        before = [pair[0] for pair in cast("Conv", root_of(node)[0]).pad_pairs]
        start = x.strides[2] * -before[0] + x.strides[3] * -before[1]
        kernel = KernelSpec(
            self.name,
            parameters(
                kernel="in",
                **planes.json(scalars, lanes),
                plane=planes.plane_in,
                stored=planes.stored.value,
                a=walk_of(x.strides, scalars, x.dtype).as_json(),
                start=scalars.json(start),
                channels=planes.channels,
                **({"fold": planes.fold} if planes.fold > 1 else {}),
            ),
        )
        views = (x, planes.windows(operands)[0])
        return Launch(kernel, views, (1,), scalars.values, planes.batch * planes.down)

    def _transform_out(
        self,
        node: Node,
        planes: _Planes,
        operands: Operands,
        packed: Sequence[View],
        lanes: int,
    ) -> Launch:
        scalars, has_bias = Scalars(), bias_of(node) is not None
        pixels, extras = pixels_of(node, operands, packed[has_bias:], scalars, lanes, 8)
        kernel = KernelSpec(
            self.name,
            parameters(
                kernel="out",
                **planes.json(scalars, lanes),
                plane=planes.plane_out,
                pixels=pixels.as_json(),
                bias=has_bias,
            ),
        )
        views = (planes.windows(operands)[1], *packed[:has_bias], *extras, operands.outputs[0])
        chunks = planes.batch * planes.down
        return Launch(kernel, views, (len(views) - 1,), scalars.values, chunks)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        if kernel["kernel"] == "rows":
            return write_rows(kernel, lambda part: self.generate(part, target))
        if kernel["kernel"] == "panels":
            return write_panels(kernel)
        return write_tiles(kernel) if kernel["kernel"] == "in" else _OutWriter(kernel).write()


def _why_not(node: Node, root: Conv) -> str | None:
    reason = why_no_pixels(node, (2,))
    if reason:
        return reason
    weights, bias = node.inputs[1], bias_of(node)
    if weights is None or weights.constant is None:
        return "the weights are not constant"
    if bias is not None and bias.constant is None:
        return f"the bias {bias.name} is not constant"
    if _shape_of(node) not in _SIZES or len(set(root.strides)) > 1:
        return f"windows of {root.kernel_shape} with strides {root.strides} are not transformed"
    if root.dilations != (1, 1) or root.group != 1:
        return "dilations and groups are not transformed"
    filters, channels = (cast("int", e) for e in weights.tensor.shape[:2])
    if filters < _FEW_CHANNELS or (channels < _FEW_CHANNELS and _fold_of(node) == 1):
        return f"{channels} channels and {filters} filters are too few to pay for transforms"
    if not np.isfinite(weights.constant.array).all():
        return "weights that are not finite would spread beyond their windows"
    if not all(isinstance(e, int) and e > 0 for e in node.output.tensor.shape[2:]):
        return "the image's extents are known only at run time"
    return None


def _shape_of(node: Node) -> tuple[int, int]:
    """Extent and stride of the window, of the folded one if it is folded."""
    root = cast("Conv", root_of(node)[0])
    window, stride = root.kernel_shape[0], root.strides[0]
    return (-(-window // stride), 1) if _fold_of(node) > 1 else (window, stride)


def _fold_of(node: Node) -> int:
    """The stride, where few channels are folded: those of a square of pixels become one's."""
    root = cast("Conv", root_of(node)[0])
    window, stride = root.kernel_shape[0], root.strides[0]
    channels = view_shape(node)[1]
    few = isinstance(channels, int) and channels * stride**2 < _MOST_FOLDED
    return stride if few and window >= _FOLDED_TAPS * stride - 1 else 1


def _scheme_of(node: Node, size: int) -> Scheme:
    return scheme_of(*_shape_of(node), size)


def _choices(node: Node) -> tuple[int, ...]:
    """Tile sizes: small images leave much of large tiles empty."""
    extents = [cast("int", e) for e in node.output.tensor.shape[2:]]
    first, *others = _SIZES[_shape_of(node)]
    if min(extents) <= _SMALL_EXTENT:
        return tuple(sorted((first, *others)))

    def products(size: int) -> int:
        return _scheme_of(node, size).side ** 2 * math.prod(-(-e // size) for e in extents)

    return (first, *(size for size in others if products(size) < products(first)))


def _halo(node: Node, scheme: Scheme) -> Halo:
    """Zeros that tiles read: padding, and what the last tiles have beyond the image."""
    pairs: list[tuple[int, int]] = [(0, 0), (0, 0)]
    shape, made = view_shape(node), node.output.tensor.shape
    root, fold = cast("Conv", root_of(node)[0]), _fold_of(node)
    for axis, (before, _) in enumerate(root.pad_pairs, 2):
        extent, count = cast("int", shape[axis]), cast("int", made[axis])
        read = fold * ((-(-count // scheme.size) - 1) * scheme.step + scheme.span)
        pairs.append((before, max(0, read - before - extent)))
    return tuple(pairs)


def view_shape(node: Node) -> tuple[Dim, ...]:
    """Shape of the input."""
    value = node.inputs[0]
    return () if value is None else value.tensor.shape


@dataclass(frozen=True, slots=True)
class _Planes:
    """The workspace: all planes of all images' transformed inputs, then those of the products."""

    scheme: Scheme
    batch: Dim
    down: int
    across: int
    channels: int
    filters: int
    arithmetic: Arithmetic
    fold: int
    """Rows and columns of pixels whose channels are one's; 1 unless there are few."""
    rows: int = 0
    """Rows of tiles that are worked on at once, in scratch memory; 0 for all, in the workspace."""

    @staticmethod
    def of(node: Node, scheme: Scheme, arithmetic: Arithmetic, rows: int = 0) -> _Planes:
        """The planes of a node."""
        batch, _, height, width = node.output.tensor.shape
        down, across = (-(-cast("int", e) // scheme.size) for e in (height, width))
        fold = _fold_of(node)
        # The weights say how many channels there are, where the image leaves it open.
        filters, channels = (cast("int", e) for e in value_of(node, 1).tensor.shape[:2])
        sizes = (channels * fold**2, filters)
        return _Planes(scheme, batch, down, across, *sizes, arithmetic, fold, rows)

    @property
    def stored(self) -> DType:
        """Elements of the transformed inputs; products are float32."""
        return self.arithmetic.factor

    @property
    def count(self) -> int:
        """Number of planes."""
        return self.scheme.side**2

    @property
    def tiles(self) -> int:
        """Tiles of an image that are worked on at once."""
        return (self.rows or self.down) * self.across

    @property
    def plane_in(self) -> int:
        """Elements from one plane of inputs to the next."""
        return self.tiles * self.channels + _GAP

    @property
    def plane_out(self) -> int:
        """Elements from one plane of products to the next."""
        return self.tiles * self.filters + _GAP

    @property
    def image_bytes(self) -> tuple[int, int]:
        """Size of all planes of one image's inputs, and of those of its products."""
        read, made = self.stored.size_bytes, _FLOAT_BYTES
        return self.count * self.plane_in * read, self.count * self.plane_out * made

    @property
    def bytes_needed(self) -> Dim:
        """Size of the workspace."""
        return 0 if self.rows else self.batch * sum(self.image_bytes)

    @property
    def row_choices(self) -> tuple[int, ...]:
        """What `rows` may be, best guess first."""
        weights = self.count * self.channels * self.filters * self.stored.size_bytes
        return choose_rows(self.down, weights, lambda n: sum(replace(self, rows=n).image_bytes))

    @property
    def tile_rows(self) -> TileRows:
        """Where planes of some rows of tiles lie in scratch memory."""
        read, made = self.channels * self.stored.size_bytes, self.filters * _FLOAT_BYTES
        steps = (self.across * read, self.across * made)
        return TileRows(self.rows, self.down, self.image_bytes, steps)

    def windows(self, operands: Operands) -> tuple[View, View]:
        """The two halves of the workspace; of scratch memory only their elements are known."""
        workspace = operands.workspace
        if workspace is None:
            if not self.rows:
                raise InternalError("winograd needs its workspace")
            nowhere = View(0, 0, DType.FLOAT32, (), ())
            return replace(nowhere, dtype=self.stored), nowhere
        sizes = [self.batch * size for size in self.image_bytes]
        first, second = (
            replace(workspace, dtype=dtype, shape=(ceil_div(size, dtype.size_bytes),), strides=(1,))
            for size, dtype in zip(sizes, (self.stored, DType.FLOAT32), strict=True)
        )
        return first, replace(second, offset=second.offset + sizes[0])

    def json(self, scalars: Scalars, lanes: int) -> dict[str, Any]:
        """What the transforms' specs hold."""
        return {
            "scheme": (self.scheme.window, self.scheme.stride, self.scheme.size),
            "batch": scalars.json(self.batch),
            "down": self.down,
            "across": self.across,
            "lanes": lanes,
        }

    def product(self) -> Product:
        """The multiplication of every plane by its weights."""
        images = (self.count, 1 if self.rows else self.batch)

        def walk(plane: int, width: int) -> ProductWalk:
            return ProductWalk((plane, self.count * plane), 0, 0, width)

        return Product(
            images=images,
            groups=1,
            height=1,
            width=self.tiles,
            filters=self.filters,
            taps=(1, 1, self.channels),
            a=walk(self.plane_in, self.channels),
            a_start=0,
            a_taps=(0, 0, 1),
            b_images=(1, 0),
            out=walk(self.plane_out, self.filters),
            extras=(),
            epilogue=Epilogue(),
            bias=False,
        )


def _estimate_seconds(
    node: Node, scheme: Scheme, tile: tuple[int, int], target: CpuTarget
) -> float:
    planes = _Planes.of(node, scheme, ARITHMETICS["float32"])
    batch = planes.batch if isinstance(planes.batch, int) else 1
    problem = Problem(planes.count * batch, 1, 1, planes.tiles, planes.filters, planes.channels)
    shape = choose_tile(problem, *tile)
    weights = planes.count * planes.channels * planes.filters
    moved = planes.count * batch * planes.tiles * (planes.channels + planes.filters) * 3
    seconds = estimate_seconds(problem, shape, tile[1], target)
    return seconds + (moved + 0.5 * weights) * _FLOAT_BYTES / (2 * MEMORY_BYTES_PER_SECOND)


# ---- the transform back


class _OutWriter:
    """Writes the transform of products. Operands: planes, bias if any, extras, result."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.p = Pixels.from_spec(kernel)
        self.scheme = scheme_of(*kernel["scheme"])
        first = 1 + kernel["bias"]
        self.e = Emitter(kernel.symbol, first + len(self.p.extras) + 1)
        self.w = PixelWriter(self.e, self.p, first)

    def write(self) -> str:
        e, k = self.e, self.k
        filters, across, plane = self.p.channels, k["across"], k["plane"]
        with e.loop(e.begin, e.end) as chunk:
            image, row = unravel(e, chunk.index, (as_json(k["batch"]), k["down"]))
            side = self.scheme.side
            line = e.at(e.pointer(0), e.mul(image, side * side * plane * _FLOAT_BYTES))
            line = e.at(line, e.mul(row, across * filters * _FLOAT_BYTES))
            with e.loop(0, across) as column:
                tile = e.at(line, e.mul(column.index, filters * _FLOAT_BYTES))
                place = (image, row, column.index)

                def vector(
                    channel: Int,
                    masks: list[Reg | None],
                    tile: Reg = tile,
                    place: tuple[Int, Int, Int] = place,
                ) -> None:
                    self.vector(tile, place, channel, masks[0])

                self.w.channels(1, vector)
        return e.module()

    def vector(
        self, tile: Reg, place: tuple[Int, Int, Int], channel: Int, mask: Reg | None
    ) -> None:
        e, k, kind = self.e, self.k, self.w.kind
        side = self.scheme.side
        here = e.at(tile, e.mul(channel, _FLOAT_BYTES))

        def read(i: int, j: int) -> Reg:
            return load(e, kind, e.at(here, (i * side + j) * k["plane"] * _FLOAT_BYTES), mask)

        values = transformed(e, self.scheme.output, read)
        if k["bias"]:
            bias = e.load(kind, e.at(e.pointer(1), e.mul(channel, _FLOAT_BYTES)))
            values = [[e.binary("fadd", v, bias) for v in line] for line in values]
        for i, line in enumerate(values):
            row, exists = self.inside(place[1], i, self.p.height)
            with exists:
                for j, value in enumerate(line):
                    column, exists = self.inside(place[2], j, self.p.width)
                    with exists:
                        self.w.finish(value, (place[0], row, column), channel, mask)

    def inside(
        self, tile: Int, ahead: int, extent: Any
    ) -> tuple[Int, AbstractContextManager[None]]:
        """The place that a tile's result has along an axis, and a block that runs if it exists."""
        e, size = self.e, self.scheme.size
        place = e.add(e.mul(tile, size), ahead)
        if extent % size == 0:
            return place, nullcontext()
        return place, e.when(e.compare("slt", place, extent))
