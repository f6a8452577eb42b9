"""How much work each layer is, and the least time that a device could take for it.

A layer takes at least as long as its multiplications and additions take where they are fastest, and
at least as long as it takes to move every operand of its steps once to or from memory: the two
sides of the roofline. What a cache holds may be faster than the second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from smelt.devices.cuda import LIBRARIES
from smelt.engine import Launch
from smelt.errors import SmeltError
from smelt.inspect._report import LaunchReport, Peaks, WorkReport
from smelt.types import DType, dim_from_text, evaluate_dim

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from smelt.engine import Plan, Step, View
    from smelt.inspect._report import LayerReport

_MOST: Final = 1 << 62
"""More bytes than these are no real tensor's."""
_PICKING: Final = ("gather",)
"""Families whose kernels read of a table no more than they write."""


H200: Final = Peaks(
    "H200",
    4.3e12,
    (
        ("bfloat16", 790e12),
        ("float16", 790e12),
        ("float32", 60e12),
        ("tf32", 395e12),
        ("tf32x3", 395e12 / 3),
    ),
)
"""Products in 16 bits and copies as they were measured on random data; of tf32 the vendor's rate in
the same proportion, of float32 nine tenths of it."""
_KNOWN_PEAKS: Final = {"sm_90": H200}
"""By architecture. An engine does not say for which of an architecture's GPUs it was made."""


def known_peaks(architectures: str) -> Peaks | None:
    """Those of the first of an engine's architectures, parted by commas, that is known."""
    known = (_KNOWN_PEAKS.get(architecture) for architecture in architectures.split(","))
    return next((peaks for peaks in known if peaks is not None), None)


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured times of an engine's layers."""

    seconds: Mapping[str, float]
    """Of one run, by the layer's name."""
    sizes: Mapping[str, int]
    """The symbol values of these runs; what is not among them is at its largest."""

    def fits(self, plan: Plan) -> bool:
        """Whether such a run is the plan's."""
        return all(low <= self.sizes.get(name, low) <= high for name, low, high in plan.symbols)


@dataclass(frozen=True, slots=True)
class WorkModel:
    """By what a plan's layers are judged."""

    sizes: Mapping[str, int]
    """Every symbol's value."""
    peaks: Peaks | None
    profile: Profile | None

    def launches(self, steps: Sequence[Step]) -> tuple[LaunchReport, ...]:
        """The launches among a layer's steps."""
        found: list[LaunchReport] = []
        for step in steps:
            if isinstance(step, Launch):
                blocks = self._value(step.chunks)
                found.append(LaunchReport(step.kernel.symbol, blocks, self.moved_bytes(step)))
        return tuple(found)

    def work(self, name: str, flop: object, steps: Sequence[Step]) -> WorkReport | None:
        """A layer's work; None for one that takes no steps.

        Args:
            name: the layer's.
            flop: what the build report says, with suspicion.
            steps: the layer's.
        """
        if not steps:
            return None
        counts = [self.moved_bytes(step) for step in steps]
        moved = None if None in counts else sum(n for n in counts if n is not None)
        amount, kind = self._flop(flop), self._factors(steps)
        bound, by = self._bound(amount, moved, kind)
        taken = None if self.profile is None else self.profile.seconds.get(name)
        return WorkReport(
            flop=amount,
            moved_bytes=moved,
            flop_per_byte=amount / moved if amount is not None and moved else None,
            factors=kind if amount else "",
            bound_seconds=bound,
            bound_by=by,
            measured_seconds=taken,
            share_of_bound=bound / taken if bound is not None and taken else None,
        )

    def _factors(self, steps: Sequence[Step]) -> str:
        """What a layer multiplies: of its launches' kinds, the one that is multiplied fastest."""
        kinds = [_factors(step) for step in steps if isinstance(step, Launch)]
        order = self.peaks or H200
        rates = {kind: (order.flop_of(kind) or 0.0, H200.flop_of(kind) or 0.0) for kind in kinds}
        return max(rates, key=lambda kind: rates[kind], default="")

    def _bound(self, flop: float | None, moved: int | None, kind: str) -> tuple[float | None, str]:
        """The least seconds and what asks for them; None where they are not known."""
        if self.peaks is None or flop is None or moved is None or not kind:
            return None, ""
        rate = self.peaks.flop_of(kind) if flop else math.inf
        if rate is None:
            return None, ""
        sides = {"arithmetic": flop / rate, "memory": moved / self.peaks.bytes_per_second}
        by = max(sides, key=lambda side: sides[side])
        return sides[by], by

    def _flop(self, detail: object) -> float | None:
        if not isinstance(detail, str):
            return None
        try:
            count = evaluate_dim(dim_from_text(detail), self.sizes)
        except (ValueError, ArithmeticError, SmeltError):
            return None
        return float(count) if 0 <= count < _MOST else None

    def _value(self, dim: Any) -> int | None:
        try:
            return evaluate_dim(dim, self.sizes)
        except SmeltError:
            return None

    def moved_bytes(self, step: Step) -> int | None:
        """Bytes of all operands of a step, each once; None where they cannot be told."""
        if isinstance(step, Launch):
            positions = frozenset(step.writes)
            read = [v for n, v in enumerate(step.operands) if n not in positions]
            written = [v for n, v in enumerate(step.operands) if n in positions]
            if step.kernel.family in LIBRARIES:  # which need not use its workspace
                written = [v for v in written if v.dtype is not DType.UINT8]
            most = sum(map(self._bytes, written)) if step.kernel.family in _PICKING else _MOST
        else:
            read, written, most = [v for v in step.inputs if v is not None], [*step.outputs], _MOST
        total = sum(min(self._bytes(v), most) for v in dict.fromkeys(read))
        total += sum(map(self._bytes, written))
        return total if total < _MOST else None

    def _bytes(self, view: View) -> int:
        """Bytes of a window's elements; an axis along which nothing moves counts once."""
        extents = (
            self._value(extent)
            for extent, stride in zip(view.shape, view.strides, strict=False)
            if stride != 0
        )
        count = math.prod(_MOST if n is None else max(n, 0) for n in extents)
        return count * view.dtype.size_bytes


def _factors(launch: Launch) -> str:
    """The type of what a launch reads first, or how it rounds float32."""
    dtype = launch.operands[0].dtype if launch.operands else DType.FLOAT32
    rounding = dict(launch.kernel.parameters).get("precision")
    if dtype is DType.FLOAT32 and rounding in ("tf32", "tf32x3"):
        return str(rounding)
    return dtype.value


def work_of_kernels(layers: Iterable[LayerReport]) -> dict[str, WorkReport]:
    """By symbol, the work of a run's layers of each kernel that shares its layers with no other."""
    parts: dict[str, list[WorkReport]] = {}
    shared: set[str] = set()
    for layer in layers:
        kernels = {launch.kernel for launch in layer.launches}
        if len(kernels) > 1:
            shared |= kernels
        for kernel in kernels:
            parts.setdefault(kernel, []).extend([layer.work] if layer.work is not None else [])
    return {kernel: total_work(works) for kernel, works in parts.items() if kernel not in shared}


def total_work(parts: Sequence[WorkReport]) -> WorkReport:
    """The work of layers that run one after the other; what one of them lacks is not known."""
    flop = _sum([part.flop for part in parts])
    moved = _sum([part.moved_bytes for part in parts])
    bound = _sum([part.bound_seconds for part in parts])
    taken = _sum([part.measured_seconds for part in parts])
    return WorkReport(
        flop=flop,
        moved_bytes=None if moved is None else int(moved),
        flop_per_byte=flop / moved if flop is not None and moved else None,
        factors="",
        bound_seconds=bound,
        bound_by="",
        measured_seconds=taken,
        share_of_bound=bound / taken if bound is not None and taken else None,
    )


def _sum(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
