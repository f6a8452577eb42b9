"""Roofline model: work of each layer and its least time on a device.

The bound of a layer is the larger of two times: its multiplications and additions at the peak
arithmetic rate, and the transfer of every operand of its steps once at the peak memory bandwidth.
Data in caches can be faster than the second.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
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

_MAX_COUNT: Final = 1 << 62
"""Limit of plausible byte and operation counts; larger ones, from damaged engines, are unknown."""
_GATHERING_FAMILIES: Final = ("gather",)
"""Families whose kernels read no more bytes of an input than they write."""


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
"""Peak rates of an H200. The bandwidth and the 16-bit rates were measured on random data. The tf32
rate is the vendor's, scaled by the ratio of measured to specified 16-bit rate; the float32 rate is
nine tenths of the vendor's."""
_KNOWN_PEAKS: Final = {"sm_90": H200}
"""Peak rates by architecture. An engine does not name the GPU model, only the architecture."""


def known_peaks(architectures: str) -> Peaks | None:
    """Return the peak rates of the first known one of comma-separated architectures, or None."""
    known = (_KNOWN_PEAKS.get(architecture) for architecture in architectures.split(","))
    return next((peaks for peaks in known if peaks is not None), None)


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured times of an engine's layers."""

    seconds: Mapping[str, float]
    """Time in one run by the layer's name."""
    sizes: Mapping[str, int]
    """Values of the symbols in these runs; symbols that are missing have their largest value."""

    def fits(self, plan: Plan) -> bool:
        """Return whether the sizes are within the ranges of a plan."""
        return all(low <= self.sizes.get(name, low) <= high for name, low, high in plan.symbols)


@dataclass(frozen=True, slots=True)
class RooflineModel:
    """Sizes, peak rates and measured times from which the work of a plan's layers is computed."""

    sizes: Mapping[str, int]
    """Values of all symbols."""
    peaks: Peaks | None
    profile: Profile | None

    def launches(self, steps: Sequence[Step]) -> tuple[LaunchReport, ...]:
        """Return the launches among a layer's steps."""
        return tuple(
            LaunchReport(step.kernel.symbol, self._value(step.chunks), self.moved_bytes(step))
            for step in steps
            if isinstance(step, Launch)
        )

    def work(self, name: str, flop: object, steps: Sequence[Step]) -> WorkReport | None:
        """Return the work of a layer; None for a layer without steps.

        Args:
            name: name of the layer.
            flop: formula of its multiplications and additions in the build report; not validated.
            steps: steps of the layer.
        """
        if not steps:
            return None
        counts = [self.moved_bytes(step) for step in steps]
        moved = None if None in counts else sum(n for n in counts if n is not None)
        amount, kind = self._flop(flop), self._factors(steps)
        bound = self._bound(amount, moved, kind)
        measured = None if self.profile is None else self.profile.seconds.get(name)
        return _work_report(amount, moved, kind if amount else "", bound, measured)

    def _factors(self, steps: Sequence[Step]) -> str:
        """Return the type in which a layer multiplies: the fastest one among its launches."""
        kinds = [_factors(step) for step in steps if isinstance(step, Launch)]
        order = self.peaks or H200
        rates = {kind: (order.flop_of(kind) or 0.0, H200.flop_of(kind) or 0.0) for kind in kinds}
        return max(rates, key=lambda kind: rates[kind], default="")

    def _bound(self, flop: float | None, moved: int | None, kind: str) -> tuple[float | None, str]:
        """Return the least time in seconds and its limiting resource; (None, "") if unknown."""
        if self.peaks is None or flop is None or moved is None or not kind:
            return None, ""
        rate = self.peaks.flop_of(kind) if flop else math.inf
        if rate is None:
            return None, ""
        sides = {"arithmetic": flop / rate, "memory": moved / self.peaks.bytes_per_second}
        by = max(sides, key=lambda side: sides[side])
        return sides[by], by

    def _flop(self, formula: object) -> float | None:
        """Return the value of a formula of the build report; None if it is invalid."""
        if not isinstance(formula, str):
            return None
        try:
            count = evaluate_dim(dim_from_text(formula), self.sizes)
        except (ValueError, ArithmeticError, SmeltError):
            return None
        return float(count) if 0 <= count < _MAX_COUNT else None

    def _value(self, dim: Any) -> int | None:
        try:
            return evaluate_dim(dim, self.sizes)
        except SmeltError:
            return None

    def moved_bytes(self, step: Step) -> int | None:
        """Return the bytes of all operands of a step, each counted once; None if unknown."""
        if isinstance(step, Launch):
            positions = frozenset(step.writes)
            read = [v for n, v in enumerate(step.operands) if n not in positions]
            written = [v for n, v in enumerate(step.operands) if n in positions]
            if step.kernel.family in LIBRARIES:  # a library may leave its workspace unused
                written = [v for v in written if v.dtype is not DType.UINT8]
            is_gather = step.kernel.family in _GATHERING_FAMILIES
            limit = sum(map(self._bytes, written)) if is_gather else _MAX_COUNT
        else:
            read, written = [v for v in step.inputs if v is not None], [*step.outputs]
            limit = _MAX_COUNT
        total = sum(min(self._bytes(v), limit) for v in dict.fromkeys(read))
        total += sum(map(self._bytes, written))
        return total if total < _MAX_COUNT else None

    def _bytes(self, view: View) -> int:
        """Return the bytes of a view's distinct elements; an axis of stride 0 counts once."""
        extents = (
            self._value(extent)
            for extent, stride in zip(view.shape, view.strides, strict=False)
            if stride != 0
        )
        count = math.prod(_MAX_COUNT if n is None else max(n, 0) for n in extents)
        return count * view.dtype.size_bytes


def _factors(launch: Launch) -> str:
    """Return the type of a launch's first operand, or its rounding of float32, such as tf32."""
    dtype = launch.operands[0].dtype if launch.operands else DType.FLOAT32
    rounding = dict(launch.kernel.parameters).get("input_precision")
    if dtype is DType.FLOAT32 and rounding in ("tf32", "tf32x3"):
        return str(rounding)
    return dtype.value


def work_of_kernels(layers: Iterable[LayerReport]) -> dict[str, WorkReport]:
    """Return the total work of each kernel's layers by the kernel's symbol.

    Kernels that share a layer with another kernel are omitted, because times are those of layers.
    """
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
    """Return the total work of layers that run one after another.

    A total is None if it is unknown for one of the layers.
    """
    flop = _sum([part.flop for part in parts])
    moved = _sum([part.moved_bytes for part in parts])
    bound = _sum([part.bound_seconds for part in parts])
    measured = _sum([part.measured_seconds for part in parts])
    return _work_report(flop, None if moved is None else int(moved), "", (bound, ""), measured)


def _work_report(
    flop: float | None,
    moved: int | None,
    factors: str,
    bound: tuple[float | None, str],
    measured: float | None,
) -> WorkReport:
    """Return a report with the ratios of its numbers; ``bound`` is a time and what limits it."""
    seconds, by = bound
    return WorkReport(
        flop=flop,
        moved_bytes=moved,
        flop_per_byte=flop / moved if flop is not None and moved else None,
        factors=factors,
        bound_seconds=seconds,
        bound_by=by,
        measured_seconds=measured,
        share_of_bound=seconds / measured if seconds is not None and measured else None,
    )


def _sum(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
