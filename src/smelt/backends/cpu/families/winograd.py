"""Convolution with Winograd's minimal filtering: fewer multiplications, more memory traffic.

The result is cut into tiles of ``size`` x ``size`` pixels. A first launch transforms the input of
each tile into ``side ** 2`` planes, a second multiplies each plane by its transformed weights, and
a third transforms back and applies the epilogue. With 3x3 windows and ``size`` 4 a result costs
2.25 multiplications instead of 9. Rounding errors are about ten times those of direct convolution,
around 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.backends import (
    Family,
    LaunchScalars,
    NodeRefusedError,
    Tactic,
    root_as,
    root_of,
    with_storage_dtype,
)
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cpu._emit import FLOAT_BYTES
from smelt.backends.cpu._kernel_spec import kernel_spec
from smelt.backends.cpu._target import CpuTarget
from smelt.backends.cpu.families._dot_product import DOT_PRODUCTS, DotProduct, dot_product_for
from smelt.backends.cpu.families._implicit_gemm import GemmStrides as PlaneStrides
from smelt.backends.cpu.families._implicit_gemm import ImplicitGemm
from smelt.backends.cpu.families._microkernel import write_microkernel
from smelt.backends.cpu.families._operand_packing import (
    constant_of,
    dot_product_of,
    named,
    pack_bias,
    pack_epilogue_constants,
    pack_panels,
    packed_tactic,
    panel_count,
    reshape,
    transpose,
)
from smelt.backends.cpu.families._pixel_loops import (
    CHANNEL_AXIS,
    check_float_images,
    pixel_loop_of,
    pixel_strides_of,
)
from smelt.backends.cpu.families._tiling import (
    MEMORY_BYTES_PER_SECOND,
    TilingProblem,
    choose_tile,
    estimate_seconds,
    register_tiles,
)
from smelt.backends.cpu.families._winograd_matrices import WinogradScheme, winograd_scheme
from smelt.backends.cpu.families._winograd_tiles import (
    FUSED_COST_RATIO,
    InputTransformWriter,
    OutputTransformWriter,
    TileRowLayout,
    choose_fused_rows,
    fuse_launches,
    space_to_depth_weights,
    write_fused_kernel,
)
from smelt.backends.cpu.families.conv import bias_of, check_constant_weights
from smelt.engine import Halo, Json, KernelSpec, Launch, Step, View, parameters
from smelt.errors import InternalError
from smelt.ir import Constant, Node
from smelt.ops import Conv, MatMul
from smelt.types import Dim, DType, ceil_div, fixed_extent, fixed_shape, override

if TYPE_CHECKING:
    from smelt.backends import Operands

_FEW_CHANNELS: Final = 16
"""Fewest channels and filters for which Winograd is offered. At 16 SqueezeNet gains 10 % over a
limit of 32 (docs/lab/convolutions.md)."""
_SMALL_EXTENT: Final = 11
"""Side in pixels, the smaller of height and width, up to which all tile sizes are offered.
Candidates cost build time; the number is chosen without a measurement."""
_NARROW_SIZE: Final = 2
"""Tile size of the variant with planes in bfloat16."""
_NARROW_REACH: Final = 4
"""Largest `WinogradScheme.reach` for planes in bfloat16. Up to this reach the matrices hold only
ones and halves; those of reach 6 lose 10 bits."""
_TILES: Final = 2
"""Number of register tiles that are offered. Register tiles of 8 x 2 vectors make ResNet-50 2 %
faster than 14 x 2, so both are offered (docs/lab/convolutions.md)."""
_GAP: Final = 16
"""Elements between planes, so that planes a multiple of 4 KiB long do not map to the same cache
sets. Without it a prototype transformed 14x14 images with 256 channels in 0.86 instead of 0.06
ms."""

_SIZES: Final[dict[tuple[int, int], tuple[int, ...]]] = {
    (3, 1): (4, 2),
    (3, 2): (2, 4),
    (4, 1): (3,),
    (5, 1): (2,),
    (5, 2): (2,),
}
"""Tile sizes for each (window, stride), the best guess for large images first. Tiles of 3x3 for
14x14 images are slower than tiles of 4x4 (docs/lab/convolutions.md)."""
_MAX_S2D_CHANNELS: Final = 64
"""Upper bound, exclusive, on the channels of a pixel after space-to-depth. AlexNet's first layer
has 48; the bound is chosen without a measurement."""
_MIN_S2D_TAPS: Final = 3
"""Fewest taps per axis after space-to-depth. Space-to-depth pads windows with zeros, which is not
worth it for smaller windows. Chosen without a measurement."""


class WinogradFamily(Family[CpuTarget]):
    """Convolution with small square windows in the Winograd domain."""

    name: ClassVar[str] = "winograd"

    @override
    def tactics(self, node: Node, target: CpuTarget) -> Iterator[Tactic]:
        root = root_of(node)[0]
        if (
            not isinstance(root, Conv)
            or len(set(root.kernel_shape)) > 1
            or root.kernel_shape[0] < 3
        ):
            return
        _check(node, root)
        lanes, s2d_block = target.vector_bits // 32, _s2d_block_of(node)
        elements = s2d_block * fixed_extent(required_input(node, 1).tensor.shape[1])
        if s2d_block > 1 and elements > lanes:
            raise NodeRefusedError(
                f"a row of a space-to-depth block has {elements} elements, which do not fit into "
                f"a vector of {lanes} elements"
            )
        for size in _choices(node):
            for tile in register_tiles(target)[:_TILES]:
                yield from self._tactics_of_size(node, target, size, tile, DOT_PRODUCTS["float32"])

    def _tactics_of_size(
        self,
        node: Node,
        target: CpuTarget,
        size: int,
        tile: tuple[int, int],
        dot_product: DotProduct,
    ) -> Iterator[Tactic]:
        """Yield the tactics for one size of tiles and one register tile (pixels, vectors)."""
        scheme = _scheme_of(node, size)
        seconds = _estimate_seconds(node, scheme, tile, target) / dot_product.group
        options: dict[str, Json] = {"size": size, "pixels": tile[0], "vectors": tile[1]}
        if dot_product.group > 1:
            options["dot_product"] = dot_product.name
        for fused_rows in _Planes.of(node, scheme, dot_product).row_choices:
            cost = seconds * (FUSED_COST_RATIO if fused_rows else 1.0)
            own = parameters(lanes=target.vector_bits // 32, fused_rows=fused_rows, **options)
            tactic = packed_tactic(self.name, node, own, cost, halo=_halo(node, scheme))
            planes = _Planes.of(node, scheme, dot_product, fused_rows)
            yield replace(tactic, workspace_bytes=planes.bytes_needed)

    @override
    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: CpuTarget
    ) -> tuple[Tactic, ...]:
        """Return the tactic with float32 planes, and one with narrow planes if that rounds little.

        Both store the operands as ``dtype``.
        """
        tactics = [tactic]
        dot_product = dot_product_for(dtype, target)
        reach = _scheme_of(node, _NARROW_SIZE).reach
        if dot_product.group > 1 and reach <= _NARROW_REACH:
            tactics += self._tactics_of_size(
                node, target, _NARROW_SIZE, register_tiles(target)[0], dot_product
            )
        return tuple(with_storage_dtype(dtype, node, candidate) for candidate in tactics)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        options, bias = tactic.options, bias_of(node)
        lanes, size = options.integer("lanes"), options.integer("size")
        weights = space_to_depth_weights(constant_of(node.inputs[1]), _s2d_block_of(node))
        filters, channels = fixed_shape(weights.type.shape[:2])
        scheme = _scheme_of(node, size)
        factor = np.array(scheme.weights, np.float32)
        half_transformed = Constant.derive(weights.name, MatMul(), Constant("", factor), weights)
        transformed_weights = Constant.derive(
            weights.name, MatMul(), half_transformed, Constant("", factor.T.copy())
        )
        planes = scheme.side**2
        permuted = transpose(reshape(transformed_weights, filters, channels, planes), 2, 0, 1)
        source = reshape(permuted, planes * filters, channels)
        named(f"{weights.name}.winograd{size}", source)
        vectors = options.integer("vectors")
        packed = [*pack_panels(source, planes, lanes, vectors, dot_product_of(tactic))]
        if bias is not None:
            packed.append(pack_bias(constant_of(bias), 1, lanes))
        return (*packed, *pack_epilogue_constants(node, CHANNEL_AXIS))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        options = tactic.options
        scheme = _scheme_of(node, options.integer("size"))
        planes = _Planes.of(node, scheme, dot_product_of(tactic), options.integer("fused_rows"))
        lanes, vectors = options.integer("lanes"), options.integer("vectors")
        panels = panel_count(planes.filters, lanes * vectors)
        first, second = planes.windows(operands)
        weights, others = operands.packed[:panels], operands.packed[panels:]
        product_options = parameters(**{**options, "parallel_split": "both"})
        launches = (
            self._transform_in(node, planes, operands, lanes),
            planes.product().launch(self.name, product_options, (first, *weights, second)),
            self._transform_out(node, planes, operands, others, lanes),
        )
        if not options.integer("fused_rows"):
            return launches
        views = (input_view(operands, 0), *weights, *launches[2].operands[1:])
        return (fuse_launches(launches, planes.tile_rows, views, planes.batch),)

    def _transform_in(self, node: Node, planes: _Planes, operands: Operands, lanes: int) -> Launch:
        """Return the launch that transforms the input into planes; a chunk is a row of tiles."""
        x, scalars = input_view(operands, 0), LaunchScalars()
        before = [pair[0] for pair in root_as(Conv, node).pad_pairs]
        start = x.strides[2] * -before[0] + x.strides[3] * -before[1]
        kernel = kernel_spec(
            self.name,
            kernel="in",
            **planes.json(scalars, lanes),
            plane=planes.plane_in,
            stored=planes.stored.value,
            a=pixel_strides_of(x.strides, scalars, x.dtype).as_json(),
            start=scalars.json(start),
            channels=planes.channels,
            **({"s2d_block": planes.s2d_block} if planes.s2d_block > 1 else {}),
        )
        views = (x, planes.windows(operands)[0])
        return Launch(kernel, views, (1,), scalars.values, planes.batch * planes.down)

    def _transform_out(
        self, node: Node, planes: _Planes, operands: Operands, packed: Sequence[View], lanes: int
    ) -> Launch:
        """Return the launch that transforms products back; a chunk is a row of tiles."""
        scalars, has_bias = LaunchScalars(), bias_of(node) is not None
        pixels, extras = pixel_loop_of(node, operands, packed[has_bias:], scalars, lanes, 8)
        kernel = kernel_spec(
            self.name,
            kernel="out",
            **planes.json(scalars, lanes),
            plane=planes.plane_out,
            pixels=pixels.as_json(),
            bias=has_bias,
        )
        views = (planes.windows(operands)[1], *packed[:has_bias], *extras, operands.outputs[0])
        chunks = planes.batch * planes.down
        return Launch(kernel, views, (len(views) - 1,), scalars.values, chunks)

    @override
    def generate(self, kernel: KernelSpec, target: CpuTarget) -> str:
        if kernel["kernel"] == "fused_rows":
            return write_fused_kernel(kernel, lambda part: self.generate(part, target))
        if kernel["kernel"] == "panels":
            return write_microkernel(kernel)
        writer = InputTransformWriter if kernel["kernel"] == "in" else OutputTransformWriter
        return writer(kernel).write()


def _check(node: Node, root: Conv) -> None:
    """Check that Winograd supports a convolution."""
    check_float_images(node, (2,))
    check_constant_weights(node)
    weights = constant_of(node.inputs[1])
    if _shape_of(node) not in _SIZES or len(set(root.strides)) > 1:
        raise NodeRefusedError(
            f"windows of {root.kernel_shape} with strides {root.strides} have no Winograd transform"
        )
    if root.dilations != (1, 1) or root.group != 1:
        raise NodeRefusedError("the convolution is dilated or grouped")
    filters, channels = fixed_shape(weights.type.shape[:2])
    if filters < _FEW_CHANNELS or (channels < _FEW_CHANNELS and _s2d_block_of(node) == 1):
        raise NodeRefusedError(
            f"the channel count {channels} or the filter count {filters} is less than "
            f"{_FEW_CHANNELS}, too small to amortise the Winograd transforms"
        )
    if not np.isfinite(weights.array).all():
        raise NodeRefusedError(
            "a weight is non-finite, and the transform would spread it over the tile"
        )
    if not all(isinstance(e, int) and e > 0 for e in node.output.tensor.shape[2:]):
        raise NodeRefusedError("the image's height or width is not known at build time")


def _shape_of(node: Node) -> tuple[int, int]:
    """Return the window's extent and stride, after space-to-depth if that applies."""
    root = root_as(Conv, node)
    window, stride = root.kernel_shape[0], root.strides[0]
    return (-(-window // stride), 1) if _s2d_block_of(node) > 1 else (window, stride)


def _s2d_block_of(node: Node) -> int:
    """Return the block of space-to-depth, which is the stride, or 1 if it does not apply.

    Space-to-depth turns the channels of a square of pixels into the channels of one pixel. It
    applies to few channels, whose vectors would be mostly empty.
    """
    root = root_as(Conv, node)
    window, stride = root.kernel_shape[0], root.strides[0]
    channels = required_input(node, 0).tensor.shape[1]
    few = isinstance(channels, int) and channels * stride**2 < _MAX_S2D_CHANNELS
    return stride if few and window >= _MIN_S2D_TAPS * stride - 1 else 1


def _scheme_of(node: Node, size: int) -> WinogradScheme:
    """Return the Winograd scheme of a node for a tile size."""
    return winograd_scheme(*_shape_of(node), size)


def _choices(node: Node) -> tuple[int, ...]:
    """Return the tile sizes to offer, best guess first.

    Large tiles of small images extend far beyond the image, so small images try small tiles first.
    For other images a further size is offered only if it needs fewer multiplications, with the
    partial tiles at the borders counted in full.
    """
    extents = list(fixed_shape(node.output.tensor.shape[2:]))
    first, *others = _SIZES[_shape_of(node)]
    if min(extents) <= _SMALL_EXTENT:
        return tuple(sorted((first, *others)))

    def products(size: int) -> int:
        return _scheme_of(node, size).side ** 2 * math.prod(-(-e // size) for e in extents)

    return (first, *(size for size in others if products(size) < products(first)))


def _halo(node: Node, scheme: WinogradScheme) -> Halo:
    """Return the halo of zeros: the padding, and what the last tiles read beyond the image."""
    pairs: list[tuple[int, int]] = [(0, 0), (0, 0)]
    shape, result_shape = required_input(node, 0).tensor.shape, node.output.tensor.shape
    root, s2d_block = root_as(Conv, node), _s2d_block_of(node)
    for axis, (before, _) in enumerate(root.pad_pairs, 2):
        extent, count = fixed_extent(shape[axis]), fixed_extent(result_shape[axis])
        read = s2d_block * ((-(-count // scheme.size) - 1) * scheme.step + scheme.span)
        pairs.append((before, max(0, read - before - extent)))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class _Planes:
    """The workspace: planes of transformed inputs of all images, then planes of products.

    Each multiplication of a tile has a plane of its own, with the tiles as rows and the channels
    innermost, so that the products are one matrix product per plane.
    """

    scheme: WinogradScheme
    batch: Dim
    """Number of images."""
    down: int
    """Rows of tiles of an image."""
    across: int
    """Columns of tiles of an image."""
    channels: int
    filters: int
    dot_product: DotProduct
    s2d_block: int
    """Block of space-to-depth in rows and columns; 1 if it does not apply."""
    fused_rows: int = 0
    """Rows of tiles that the fused kernel handles at once in scratch memory; 0 if three launches
    handle all rows in the workspace."""

    @staticmethod
    def of(
        node: Node, scheme: WinogradScheme, dot_product: DotProduct, fused_rows: int = 0
    ) -> _Planes:
        """Return the planes of a node."""
        batch, _, height, width = node.output.tensor.shape
        down, across = (-(-fixed_extent(e) // scheme.size) for e in (height, width))
        s2d_block = _s2d_block_of(node)
        # The image's number of channels may be symbolic; that of the weights is a constant.
        filters, channels = fixed_shape(required_input(node, 1).tensor.shape[:2])
        sizes = (channels * s2d_block**2, filters)
        return _Planes(scheme, batch, down, across, *sizes, dot_product, s2d_block, fused_rows)

    @property
    def stored(self) -> DType:
        """Element type of the transformed inputs; products are float32."""
        return self.dot_product.factor

    @property
    def count(self) -> int:
        """Number of planes."""
        return self.scheme.side**2

    @property
    def tiles(self) -> int:
        """Number of tiles of an image that are in memory at once."""
        return (self.fused_rows or self.down) * self.across

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
        """Size in bytes of an image's planes of inputs, and of its planes of products."""
        input_bytes = self.count * self.plane_in * self.stored.size_bytes
        return input_bytes, self.count * self.plane_out * FLOAT_BYTES

    @property
    def bytes_needed(self) -> Dim:
        """Size of the workspace in bytes."""
        return 0 if self.fused_rows else self.batch * sum(self.image_bytes)

    @property
    def row_choices(self) -> tuple[int, ...]:
        """Values of `fused_rows` to offer, best guess first."""
        weights = self.count * self.channels * self.filters * self.stored.size_bytes
        return choose_fused_rows(
            self.down, weights, lambda n: sum(replace(self, fused_rows=n).image_bytes)
        )

    @property
    def tile_rows(self) -> TileRowLayout:
        """Layout of the planes of some rows of tiles in scratch memory."""
        input_bytes = self.channels * self.stored.size_bytes
        steps = (self.across * input_bytes, self.across * self.filters * FLOAT_BYTES)
        return TileRowLayout(self.fused_rows, self.down, self.image_bytes, steps)

    def windows(self, operands: Operands) -> tuple[View, View]:
        """Return views of the planes of inputs and of the planes of products.

        For planes in scratch memory only the element type of a view is meaningful.
        """
        workspace = operands.workspace
        if workspace is None:
            if not self.fused_rows:
                raise InternalError("the Winograd kernel has no workspace")
            scratch_view = View(0, 0, DType.FLOAT32, (), ())
            return replace(scratch_view, dtype=self.stored), scratch_view
        sizes = [self.batch * size for size in self.image_bytes]
        first, second = (
            replace(workspace, dtype=dtype, shape=(ceil_div(size, dtype.size_bytes),), strides=(1,))
            for size, dtype in zip(sizes, (self.stored, DType.FLOAT32), strict=True)
        )
        return first, replace(second, offset=second.offset + sizes[0])

    def json(self, scalars: LaunchScalars, lanes: int) -> dict[str, Any]:
        """Return the parameters that the specs of both transforms share."""
        return {
            "scheme": (self.scheme.window, self.scheme.stride, self.scheme.size),
            "batch": scalars.json(self.batch),
            "down": self.down,
            "across": self.across,
            "lanes": lanes,
        }

    def product(self) -> ImplicitGemm:
        """Return the product of every plane with its transformed weights."""
        images = (self.count, 1 if self.fused_rows else self.batch)

        def walk(plane: int, width: int) -> PlaneStrides:
            return PlaneStrides((plane, self.count * plane), 0, 0, width)

        return ImplicitGemm(
            images=images,
            width=self.tiles,
            filters=self.filters,
            taps=(1, 1, self.channels),
            a=walk(self.plane_in, self.channels),
            a_taps=(0, 0, 1),
            b_images=(1, 0),
            out=walk(self.plane_out, self.filters),
        )


def _estimate_seconds(
    node: Node, scheme: WinogradScheme, tile: tuple[int, int], target: CpuTarget
) -> float:
    """Return the estimated seconds: the products, and the traffic of planes and weights."""
    planes = _Planes.of(node, scheme, DOT_PRODUCTS["float32"])
    batch = planes.batch if isinstance(planes.batch, int) else 1
    problem = TilingProblem(
        planes.count * batch, 1, 1, planes.tiles, planes.filters, planes.channels
    )
    shape = choose_tile(problem, *tile)
    weights = planes.count * planes.channels * planes.filters
    plane_elements = planes.count * batch * planes.tiles * (planes.channels + planes.filters) * 3
    seconds = estimate_seconds(problem, shape, tile[1], target)
    return seconds + (plane_elements + 0.5 * weights) * FLOAT_BYTES / (2 * MEMORY_BYTES_PER_SECOND)
