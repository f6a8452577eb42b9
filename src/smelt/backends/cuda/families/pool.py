"""Pooling over windows of any rank; what lies outside of the image never counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from smelt.backends._base import Family, Operands, Refusal, Tactic
from smelt.backends._fusion import root_of
from smelt.backends._nodes import value_of, view_of
from smelt.backends._scalars import Scalars
from smelt.backends.cuda._costs import memory_seconds
from smelt.backends.cuda._elementwise import write_stages
from smelt.backends.cuda._source import Source, operand_parameters
from smelt.backends.cuda._target import CudaTarget
from smelt.backends.cuda.families._epilogue import (
    FLOATS,
    extra_views,
    plan_epilogue,
    planned_epilogue,
)
from smelt.engine import KernelSpec, Launch, parameters
from smelt.ops.average_pool import AveragePool
from smelt.ops.max_pool import MaxPool
from smelt.types import DType, Layout, TensorFormat, ceil_div, element_count, override

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine import Json, Step
    from smelt.ir import Node

_BLOCK: Final = 256
_LEAST: Final = {DType.INT8: "-128", DType.UINT8: "0"}


class PoolFamily(Family[CudaTarget]):
    """A block of results, channels fastest, each walking its own window."""

    name: ClassVar[str] = "pool"
    narrow: ClassVar[bool] = True

    @override
    def tactics(self, node: Node, target: CudaTarget) -> Iterator[Tactic | Refusal]:
        root, _ = root_of(node)
        if not isinstance(root, MaxPool | AveragePool):
            return
        kind = value_of(node, 0).tensor.dtype
        epilogue = plan_epilogue(node, Layout.CHANNELS_LAST)
        known = FLOATS if isinstance(root, AveragePool) else FLOATS | set(_LEAST)
        if isinstance(epilogue, str) or kind not in known:
            reason = epilogue if isinstance(epilogue, str) else f"{kind.value} is not generated"
            yield Refusal(self.name, reason)
            return
        image = TensorFormat(kind, Layout.CHANNELS_LAST)
        inputs = (image, *epilogue.formats)
        yield Tactic(self.name, (), inputs, (image,), cost_hint=memory_seconds(node))

    @override
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        root = cast("MaxPool | AveragePool", root_of(node)[0])
        x, out = view_of(operands, 0), operands.outputs[0]
        extras = extra_views(node, operands)
        views = [x, *(view for view, _ in extras), out]
        scalars = Scalars()
        rank = len(out.shape)
        strides = [strides for _, strides in extras] + [out.strides]
        axes = tuple(
            scalars.all_json((out.shape[a], x.strides[a], *(s[a] for s in strides)))
            for a in (0, *range(2, rank), 1)
        )
        windows = tuple(
            (
                root.kernel_shape[a],
                root.strides[a],
                root.dilations[a],
                *root.pad_pairs[a],
                *scalars.all_json((x.shape[2 + a], x.strides[2 + a])),
            )
            for a in range(rank - 2)
        )
        total = element_count(out.shape)
        spec = KernelSpec(
            self.name,
            parameters(
                axes=axes,
                windows=windows,
                total=scalars.json(total),
                is_mean=isinstance(root, AveragePool),
                include_pad=isinstance(root, AveragePool) and root.count_include_pad,
                stages=planned_epilogue(node, Layout.CHANNELS_LAST).stages,
                warps=4,
                pipeline=1,
                **operand_parameters(views, len(scalars.values)),
            ),
        )
        chunks = ceil_div(total, _BLOCK)
        return (Launch(spec, tuple(views), (len(views) - 1,), scalars.values, chunks),)

    @override
    def generate(self, kernel: KernelSpec, target: CudaTarget) -> str:
        del target
        return _Writer(kernel).write()


class _Writer:
    def __init__(self, kernel: KernelSpec) -> None:
        self.k = kernel
        self.s = Source(kernel)
        self.axes: Any = kernel["axes"]
        self.windows: Any = kernel["windows"]
        self.names = ["n", *(f"d{a}" for a in range(len(self.windows))), "c"]

    def write(self) -> str:
        s = self.s
        s.line(f"i = tl.program_id(0).to(tl.int64) * {_BLOCK} + tl.arange(0, {_BLOCK})")
        s.line(f"m = i < {s.extent(self.k['total'])}")
        s.unravel("i", [axis[0] for axis in self.axes], self.names)
        for a, (_, step, _, before, *_) in enumerate(self.windows):
            s.line(f"at{a} = d{a} * {step} - {before}")
        ends = [(self.names[0], self.axes[0][1]), ("c", self.axes[-1][1])]
        s.line(f"base = {s.sum_of(*ends)}")
        kind = s.dtypes[0]
        is_float = kind in FLOATS
        neutral = "0.0" if self.k["is_mean"] else _LEAST.get(kind, "float('-inf')")
        zeros = "tl.float32" if is_float else "tl.int32"
        s.line(f"acc = tl.full([{_BLOCK}], {neutral}, {zeros})")
        s.line(f"count = tl.zeros([{_BLOCK}], tl.int32)")
        with s.block(f"for tap in range(0, {math.prod(w[0] for w in self.windows)}):"):
            self.take_tap(neutral)
        s.line("v = acc / count" if self.k["is_mean"] else "v = acc")
        read = s.reading(1, self.place, "m")
        result = write_stages(s.line, self.k["stages"], read, ["v"])
        last = len(s.dtypes) - 1
        s.store(last, self.place(last), result, "m")
        return s.text()

    def take_tap(self, neutral: str) -> None:
        s = self.s
        taps = [f"t{a}" for a in range(len(self.windows))]
        s.unravel("tap", [w[0] for w in self.windows], taps)
        inside, counted, terms = ["m"], ["m"], list[tuple[str, "Json"]]()
        for a, (_, _, dilation, before, after, extent, stride) in enumerate(self.windows):
            end = s.extent(extent)
            s.line(f"h{a} = at{a} + t{a} * {dilation}")
            inside.append(f"(h{a} >= 0) & (h{a} < {end})")
            counted.append(f"(h{a} >= -{before}) & (h{a} < {end} + {after})")
            terms.append((f"h{a}", stride))
        s.line(f"ok = {' & '.join(inside)}")
        offset = f"base + {s.sum_of(*terms)}"
        if not self.k["is_mean"]:
            nan = ", propagate_nan=tl.PropagateNan.ALL" if s.dtypes[0] in FLOATS else ""
            s.line(f"acc = tl.maximum(acc, {s.load(0, offset, 'ok', neutral)}{nan})")
            return
        s.line(f"acc += {s.load(0, offset, 'ok', neutral)}")
        which = " & ".join(counted) if self.k["include_pad"] else "ok"
        s.line(f"count += ({which}).to(tl.int32)")

    def place(self, operand: int) -> str:
        return f"i * 0 + {self.s.offset(self.names, self.axes, operand)}"
