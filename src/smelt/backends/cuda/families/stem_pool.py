"""A stem and the maxima of windows of its result, in one launch behind the copy to pixels.

What a stem makes is the largest tensor of many networks; pooling reads it again, and leaves a
quarter of it. Here it is never stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._links import links_in, links_of
from smelt.backends._nodes import value_of, view_of
from smelt.backends._scalars import Scalars
from smelt.backends.cuda._costs import LAUNCH_SECONDS, count_of, guess, pass_seconds
from smelt.backends.cuda._fragments import FRAGMENT, ROWS
from smelt.backends.cuda._source import operand_parameters
from smelt.backends.cuda._strip import STRIP, write_strip
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._grid import is_far
from smelt.backends.cuda.families.conv import bias_count, formats_of, reason_against
from smelt.backends.cuda.families.stem import (
    factors_of,
    padded_shape,
    pixels_of,
    row_of,
    stem_shape,
    why_no_stem,
)
from smelt.backends.cuda.families.stem_direct import (
    COLUMNS,
    COPIED_BYTES,
    StemDirectFamily,
    in_vectors,
    why_not_direct,
    window_length,
)
from smelt.engine import KernelSpec, Launch, parameters
from smelt.ops import Fused, Relu, Stage
from smelt.ops.conv import Conv
from smelt.ops.max_pool import MaxPool
from smelt.types import DType, Layout, TensorFormat, ceil_div, element_count, override, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._links import Links
    from smelt.engine import Step
    from smelt.ir import Constant, Node
    from smelt.types import Dim

_WIDEST_BYTES: Final = 4
"""Of an element of the pixels, whatever it becomes."""
_BESIDE: Final = 3
"""Programs of a multiprocessor."""
_REGISTERS: Final = 168
"""What that leaves a thread."""
_WAVES: Final = (1, 2, 4)
"""In which the programs may come."""
_FEWER: Final = (1, 4, 8)
"""Where the number of images is guessed, and more may come, programs do so many times as much."""
_LENGTH: Final = 224
"""Elements of a window where the next two were measured; of shorter ones half of it is guessed to
stay."""
_ALONE_SECONDS: Final = 4.5e-7
"""Of one of the stem's tiles."""
_MORE_SECONDS: Final = 2.8e-7
"""For each program that does one at the same time."""


class StemPoolFamily(Family[CudaTarget]):
    """Stems of 16 bits on Hopper and its like, rectified or plain, and maxima over two axes."""

    name: ClassVar[str] = STRIP
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        links = links_of(node)
        if links is None or not may_pool(links.first, links.second):
            return
        if reason := _why_not(links, target):
            yield Refusal(self.name, reason)
            return
        strip = _Strip(links)
        (_, *others), output = formats_of(links.first)
        image = TensorFormat(output.dtype, Layout.LINEAR)
        room = element_count(padded_shape(links.first, strip.root)) * _WIDEST_BYTES
        most = _BESIDE * target.multiprocessors
        open_batch = symbols_of(strip.images)
        programs = [most // fewer for fewer in _FEWER] if open_batch else [most * n for n in _WAVES]
        for below in dict.fromkeys(strip.below(count) for count in programs):
            options = parameters(
                tile=(ROWS, strip.columns, FRAGMENT),
                below=below,
                registers=_REGISTERS,
                warps=4,
                pipeline=1,
            )
            hint = strip.seconds(below, target)
            made = Tactic(self.name, options, (image, *others), (output,), cost_hint=hint)
            yield replace(made, workspace_bytes=room)

    @override
    def narrowed(
        self, node: Node, tactic: Tactic, dtype: DType, target: CudaTarget
    ) -> tuple[Tactic, ...]:
        return StemDirectFamily().narrowed(node, tactic, dtype, target)

    @override
    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        return StemDirectFamily().pack(links_in(node).first, tactic)

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        return _Strip(links_in(node)).launches(tactic, operands)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return write_strip(kernel)


def may_pool(first: Node, second: Node) -> bool:
    """Whether two nodes are a stem, and maxima of windows of its result."""
    root = root_of(first)[0]
    if not isinstance(second.op, MaxPool) or not isinstance(root, Conv):
        return False
    return not reason_against(first) and not why_no_stem(first, root)


def _why_not(links: Links, target: CudaTarget) -> str | None:
    first, pool = links.first, cast("MaxPool", links.second.op)
    root = cast("Conv", root_of(first)[0])
    if reason := why_not_direct(first, root, stem_shape(first, root, target), target):
        return reason
    if target.pairs:
        return "images go in pairs"
    if links.keeps:
        return "somebody else reads what the stem makes"
    if _stages(first) not in {(), (Stage(Relu(), (-1,)),)}:
        return "the stem's epilogue is more than a bias and a rectifier"
    extents = (*value_of(first, 0).tensor.shape[2:], *first.output.tensor.shape[2:])
    if len(extents) != 4 or not all(isinstance(extent, int) for extent in extents):
        return "its images have no two axes of known extents"
    if {*root.dilations, *pool.dilations} != {1}:
        return "taps do not lie side by side"
    windows = list(zip(pool.kernel_shape, pool.strides, pool.pad_pairs, strict=True))
    if any(max(pair) >= taps for taps, _, pair in windows):
        return "a window may have nothing but padding"
    if not all(0 <= taps - step <= 1 for taps, step, _ in windows):
        return "neighbouring windows have more than one place in common, or leave some out"
    return None


def _stages(node: Node) -> tuple[Stage, ...]:
    """What of a node comes behind its root."""
    return node.op.stages if isinstance(node.op, Fused) else ()


class _Strip:
    """A stem and its pooling."""

    def __init__(self, links: Links) -> None:
        self.first = links.first
        self.pool, root = cast("MaxPool", links.second.op), cast("Conv", root_of(self.first)[0])
        self.images = links.second.output.tensor.shape[0]
        self.pooled = cast("tuple[int, int]", links.second.output.tensor.shape[2:])
        self.stem = cast("tuple[int, int]", self.first.output.tensor.shape[2:])
        befores = (before for before, _ in self.pool.pad_pairs)
        self.windows = tuple(zip(self.pool.kernel_shape, self.pool.strides, befores, strict=True))
        """Of both axes: taps, step and padding before."""
        self.root = replace(root, pads=self._pads(root))
        """With so much padding that all rows can be read of which a window has any."""
        self.filters = cast("int", value_of(self.first, 1).tensor.shape[0])
        self.columns = next(n for n in COLUMNS if self.filters % n == 0)

    def _pads(self, root: Conv) -> tuple[int, ...]:
        (taps, step, above), _ = self.windows
        below = (self.pooled[0] - 1) * step + taps - above - self.stem[0]
        top, left, bottom, right = root.pads
        lines = root.strides[0]
        return (top + above * lines, left, bottom + max(0, below) * lines, right)

    @property
    def strips(self) -> Dim:
        """Strips of all images, each as high as one."""
        return ceil_div(self.images * self.pooled[1], ROWS) * (self.filters // self.columns)

    def below(self, programs: int) -> int:
        """How many pooled rows a program does, if there are to be so many programs at most."""
        parts = max(1, programs // max(1, guess(self.strips)))
        return -(-self.pooled[0] // parts)

    def seconds(self, below: int, target: CudaTarget) -> float:
        """What both launches take."""
        (taps, step, _), (across, _, _) = self.windows
        carried = taps > step
        tiles = (below * (taps - carried) + carried) * across
        programs = guess(self.strips) * -(-self.pooled[0] // below)
        turns, rest = divmod(-(-programs // target.multiprocessors), _BESIDE)
        busy = turns * (_ALONE_SECONDS + _BESIDE * _MORE_SECONDS)
        busy += _ALONE_SECONDS + rest * _MORE_SECONDS if rest else 0.0
        shorter = (1 + window_length(self.first, self.root) / _LENGTH) / 2
        copied = pass_seconds(count_of(value_of(self.first, 0)) * COPIED_BYTES, target)
        return LAUNCH_SECONDS + copied + tiles * shorter * busy

    def launches(self, tactic: Tactic, operands: Operands) -> tuple[Launch, ...]:
        """The copy to pixels, and the strips."""
        first, root, options = self.first, self.root, dict[str, Any](tactic.parameters)
        width, run = row_of(first, root)
        copy, runs = pixels_of(first, root, factors_of(tactic), operands, in_vectors(run))
        bias = [view_of(operands, 2)] if bias_count(first) else []
        out = operands.outputs[0]
        views = (runs, operands.packed[0], *bias, out)
        scalars = Scalars()
        facts = parameters(
            images=scalars.all_json((self.images, runs.strides[0])),
            line=cast("int", runs.strides[2]),
            lines=root.strides[0],
            pixel=width * root.strides[1],
            taps=root.kernel_shape[0],
            run=run,
            depth=window_length(first, root),
            stem=self.stem,
            pooled=self.pooled,
            pool=self.windows,
            filters=self.filters,
            strides=scalars.all_json((out.strides[0], *out.strides[2:])),
            bias=bool(bias),
            rectifies=bool(_stages(first)),
            far=(is_far(runs), is_far(out)),
            **{name: value for name, value in options.items() if name != "factors"},
            **operand_parameters(views, len(scalars.values)),
        )
        chunks = self.strips * -(-self.pooled[0] // options["below"])
        kernel = KernelSpec(tactic.family, facts)
        return (copy, Launch(kernel, views, (len(views) - 1,), scalars.values, chunks))
