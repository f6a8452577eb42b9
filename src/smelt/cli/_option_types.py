"""What the command line's texts mean: sizes in bytes, shapes, numbers for each channel."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import click

from smelt.cli._options import messages_as_options
from smelt.errors import SmeltError
from smelt.types import DeviceName, Limit, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.builder import ShapeSpec

RESIZE: Final = re.compile(r"exact|none|shorter:(\d{1,6})|(\d{1,6})x(\d{1,6})", re.ASCII)
"""How large a picture is made."""
CROP: Final = re.compile(r"auto|none|(0*[1-9]\d{0,5})(?:x(0*[1-9]\d{0,5}))?", re.ASCII)
"""What is kept of it."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(
    r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([kmgt]?)(?:i?b)?)", re.ASCII | re.IGNORECASE
)
_EXTENT: Final = re.compile(r"(\d+)(?:\.\.(\d+))?(?:\.\.(\d+))?", re.ASCII)

Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class ByteCount(click.ParamType[int]):
    """A number of bytes: ``1048576``, ``64MiB``, ``1.5g``; units are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The value of a text."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a size; write it as 64MiB, 1GiB or 1048576", param, ctx)
        return int(float(found[1]) * _UNITS[found[2].lower()])


class Effort(click.ParamType["str | float"]):
    """How long to tune: a word, or seconds."""

    name = "none|fast|full|SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | float:
        """The value of a text."""
        if value in ("none", "fast", "full"):
            return str(value)
        try:
            seconds = number_from_text(str(value))
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is not none, fast, full or a number of seconds", param, ctx)
        if not 0 <= seconds < 1e9:
            self.fail(f"{value!r} is not a valid number of seconds for tuning", param, ctx)
        return seconds


class DeviceText(click.ParamType[str]):
    """A device's name, with a target that there is; whether the device is here, a build tells."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        try:
            _check_target(DeviceName.from_text(value))
        except SmeltError as error:
            self.fail("\n".join((str(error), *messages_as_options(str(error)))), param, ctx)
        return str(value)


class Configuration(click.ParamType[str]):
    """The name of a configuration of NVDLA."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is."""
        from smelt.nvdla.hardware import find_configuration

        try:
            return find_configuration(value).name
        except SmeltError as error:
            self.fail(str(error), param, ctx)


class ChoiceOrNumbers(click.ParamType[str]):
    """A word of a few, some of them with numbers."""

    def __init__(self, name: str, pattern: re.Pattern[str], known: str) -> None:
        """What ``pattern`` matches, which is ``known``, in words."""
        self.name = name
        self._pattern = pattern
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        if self._pattern.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is not {self._known}", param, ctx)
        return str(value)


class NumberList(click.ParamType["tuple[float, ...]"]):
    """One number, or one for each channel, separated by commas; ``1/255`` is a number too."""

    name = "numbers"
    example = "104,117,123"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """The value of a text."""
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]  (click passes a default through)
        try:
            return tuple(number_from_text(part) for part in str(value).split(","))
        except (ValueError, ZeroDivisionError):
            self.fail(
                f"{value!r} is not a number or a list of numbers such as {self.example}", param, ctx
            )


class PeakRates(NumberList):
    """What a device does in a second: operations and bytes."""

    example = "790e12,4.3e12"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """The value of a text."""
        rates = super().convert(value, param, ctx)
        if len(rates) != 2 or min(rates) <= 0:
            self.fail(f"two rates are needed, FLOP/S,BYTES/S: {self.example}", param, ctx)
        return rates


class ShapeText(click.ParamType[str]):
    """An input's shape, with its name or without."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        text = str(value)
        _range(text.rpartition("=")[2], text)
        return text


class FiniteFloat(click.FloatRange):
    """A number from a least one on; what is infinite or not a number is none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The value of a text."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def _check_target(device: DeviceName) -> None:
    """Raise UnsupportedError: no code is made for what a device's name says."""
    if device.kind == "cuda" and device.target:
        from smelt.backends.cuda import target_named

        target_named(device.target)
    elif device.target not in ("", "native"):  # this machine is not a matter of the command line
        from smelt.backends.cpu import target_named as processor_named

        processor_named(device.target)


def number_from_text(text: str) -> float:
    """A finite number, or a fraction of two. Raises ValueError, ZeroDivisionError."""
    if not text.isascii():
        raise ValueError(f"{text} is not a number of decimal digits")
    above, slash, below = text.partition("/")
    number = float(above) / float(below) if slash else float(above)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


def shapes_from_texts(texts: Iterable[str], inputs: Iterable[str]) -> dict[str, ShapeSpec] | None:
    """The shapes of ``NAME=1x3x224x224``, ``NAME=1..8x3x224x224`` and ``NAME=1..4..8x…``.

    A name given several times gets one plan for each shape. A network with one input needs no name.

    Raises click.BadParameter: a text is not a shape.
    Raises SmeltError: it does not say of which of several inputs.
    """
    names = list(inputs)
    found: dict[str, list[Range]] = {}
    for text in texts:
        name, equals, extents = text.rpartition("=")
        if not equals:
            if len(names) != 1:
                raise SmeltError(
                    f"--shape {text} must say for which input: NAME={text}; they are "
                    f"{', '.join(names)}"
                )
            name = names[0]
        found.setdefault(name, []).append(_range(extents, text))
    return {name: _spec(name, ranges) for name, ranges in found.items()} or None


def _range(extents: str, text: str) -> Range:
    low: list[int] = []
    best: list[int] = []
    high: list[int] = []
    for part in extents.split("x") if extents else []:
        match = _EXTENT.fullmatch(part)
        if match is None:
            raise click.BadParameter(
                f"{text!r} is not a shape; write NAME=1x3x224x224, or NAME=1..8x3x224x224 for a "
                "range",
                param_hint="--shape",
            )
        numbers = [_extent(number, text) for number in match.groups() if number is not None]
        if numbers != sorted(numbers):
            raise click.BadParameter(
                f"{text!r}: {part} is not a range; write smallest..largest, or "
                "smallest..best..largest to tune for the second",
                param_hint="--shape",
            )
        low.append(numbers[0])
        high.append(numbers[-1])
        best.append(numbers[1] if len(numbers) > 1 else numbers[0])
    return tuple(low), tuple(best), tuple(high)


def _extent(digits: str, text: str) -> int:
    most = Limit.MAX_EXTENT
    # Python makes no number of some thousand digits.
    if len(digits.lstrip("0")) > len(str(most.most)) or int(digits) > most.most:
        raise click.BadParameter(
            f"{shown(text)}: an extent has {most.excess(shown(digits))}",
            param_hint="--shape",
        )
    return int(digits)


def _spec(name: str, ranges: list[Range]) -> ShapeSpec:
    for place, (low, _, high) in enumerate(ranges):
        if low == high and ranges[place] in ranges[:place]:
            extents = "x".join(map(str, low))
            raise click.BadParameter(
                f"{name} is given the shape {extents} twice", param_hint="--shape"
            )
    if len(ranges) == 1:
        low, best, high = ranges[0]
        return low if low == high else (low, best, high)
    if any(low != high for low, _, high in ranges):
        raise click.BadParameter(
            f"{name} is given several shapes, and one of them is a range; give either fixed "
            "shapes or one range",
            param_hint="--shape",
        )
    return [low for low, _, _ in ranges]


def pairs_from_texts(texts: Iterable[str]) -> Mapping[str, str]:
    """The pairs of ``NAME=VALUE``, as options of type `NamedSource` have them.

    Raises click.UsageError: a name stands twice.
    """
    pairs: dict[str, str] = {}
    for name, _, value in (text.partition("=") for text in texts):
        if name in pairs:
            raise click.UsageError(f"--input {name} is given twice; give each input once")
        pairs[name] = value
    return pairs
