"""Types of option values: sizes in bytes, shapes, devices, numbers per channel."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import click

from smelt.cli._options import error_text
from smelt.devices import DeviceName
from smelt.errors import SmeltError
from smelt.types import Limit, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.builder import ShapeSpec

RESIZE: Final = re.compile(r"exact|none|shorter:(\d{1,6})|(\d{1,6})x(\d{1,6})", re.ASCII)
"""Values of --resize."""
CROP: Final = re.compile(r"auto|none|(0*[1-9]\d{0,5})(?:x(0*[1-9]\d{0,5}))?", re.ASCII)
"""Values of --crop."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(
    r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([kmgt]?)(?:i?b)?)", re.ASCII | re.IGNORECASE
)
_EXTENT: Final = re.compile(r"(\d+)(?:\.\.(\d+))?(?:\.\.(\d+))?", re.ASCII)

Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Smallest, best and largest shape."""


class ByteCount(click.ParamType[int]):
    """A number of bytes: ``1048576``, ``64MiB``, ``1.5g``; units are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert the text."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size; write it as 64MiB, 1GiB or 1048576", param, ctx)
        return int(float(match[1]) * _UNITS[match[2].lower()])


class Effort(click.ParamType["str | float"]):
    """Tuning effort: a word, or a number of seconds."""

    name = "none|fast|full|SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | float:
        """Convert the text."""
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
    """Name of a device with a known target; whether the device exists is checked by the build."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text and return it unchanged."""
        try:
            _check_target(DeviceName.from_text(value))
        except SmeltError as error:
            self.fail(error_text(error), param, ctx)
        return str(value)


class Configuration(click.ParamType[str]):
    """Name of a hardware configuration of NVDLA."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the name and return it."""
        from smelt.nvdla.hardware import find_configuration

        try:
            return find_configuration(value).name
        except SmeltError as error:
            self.fail(str(error), param, ctx)


class ChoiceOrNumbers(click.ParamType[str]):
    """One of a few words or patterns."""

    def __init__(self, name: str, pattern: re.Pattern[str], known: str) -> None:
        """Create the type.

        Args:
            name: name of the type in help texts.
            pattern: pattern of the accepted values.
            known: description of the accepted values, for messages.
        """
        self.name = name
        self._pattern = pattern
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text and return it unchanged."""
        if self._pattern.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is not {self._known}", param, ctx)
        return str(value)


class NumberList(click.ParamType["tuple[float, ...]"]):
    """One number, or one per channel separated by commas; fractions like ``1/255`` are allowed."""

    name = "numbers"
    example = "104,117,123"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Convert the text."""
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]  (click passes a default through)
        try:
            return tuple(number_from_text(part) for part in str(value).split(","))
        except (ValueError, ZeroDivisionError):
            self.fail(
                f"{value!r} is not a number or a list of numbers such as {self.example}", param, ctx
            )


class PeakRates(NumberList):
    """Peak rates of a device: FLOP/s and bytes/s."""

    example = "790e12,4.3e12"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Convert the text."""
        rates = super().convert(value, param, ctx)
        if len(rates) != 2 or min(rates) <= 0:
            self.fail(f"expected two positive rates FLOP/S,BYTES/S, as {self.example}", param, ctx)
        return rates


class ShapeText(click.ParamType[str]):
    """Shape of an input, with or without its name."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text and return it unchanged."""
        text = str(value)
        _range(text.rpartition("=")[2], text)
        return text


class FiniteFloat(click.FloatRange):
    """A finite number in a range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert the text."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def _check_target(device: DeviceName) -> None:
    """Check the target in a device's name.

    Raises:
        UnsupportedError: smelt has no such target.
    """
    if device.target not in ("", "native"):  # the build checks this machine's processor
        device.kind.load_part(device.kind.backend).target_named(device.target)


def number_from_text(text: str) -> float:
    """Convert a decimal number or a fraction of two to a finite float.

    Raises:
        ValueError: the text is not a finite number.
        ZeroDivisionError: the denominator is 0.
    """
    if not text.isascii():
        raise ValueError(f"{text} is not a number of decimal digits")
    numerator, slash, denominator = text.partition("/")
    number = float(numerator) / float(denominator) if slash else float(numerator)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number


def shapes_from_texts(texts: Iterable[str], inputs: Iterable[str]) -> dict[str, ShapeSpec] | None:
    """Convert the values of --shape to shapes by the input's name, as `build` takes them.

    A value is ``NAME=1x3x224x224``, ``NAME=1..8x3x224x224`` or ``NAME=1..4..8x…``. Several shapes
    of one input give one plan each. If the network has one input, the name may be omitted.

    Args:
        texts: values of the option.
        inputs: names of the network's inputs.

    Raises:
        click.BadParameter: a text is not a shape.
        SmeltError: the name is missing, and the network has several inputs.
    """
    names = list(inputs)
    ranges_by_name: dict[str, list[Range]] = {}
    for text in texts:
        name, equals, extents = text.rpartition("=")
        if not equals:
            if len(names) != 1:
                raise SmeltError(
                    f"--shape {text} must name its input, as --shape NAME={text}; the inputs are "
                    f"{', '.join(names)}"
                )
            name = names[0]
        ranges_by_name.setdefault(name, []).append(_range(extents, text))
    return {name: _spec(name, ranges) for name, ranges in ranges_by_name.items()} or None


def _range(extents: str, text: str) -> Range:
    """Convert the extents of a shape, such as ``1..8x3``; ``text`` is the option's value."""
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
    limit = Limit.MAX_EXTENT
    # int() refuses texts of several thousand digits.
    if len(digits.lstrip("0")) > len(str(limit.most)) or int(digits) > limit.most:
        raise click.BadParameter(
            f"{shown(text)}: an extent has {limit.excess(shown(digits))}",
            param_hint="--shape",
        )
    return int(digits)


def _spec(name: str, ranges: list[Range]) -> ShapeSpec:
    """Return the shapes of one input in the form that `build` takes."""
    for index, (low, _, high) in enumerate(ranges):
        if low == high and ranges[index] in ranges[:index]:
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
    """Return the values of --input options, which are of type `NamedSource`, by their names.

    Raises:
        click.UsageError: a name is given twice.
    """
    pairs: dict[str, str] = {}
    for name, _, value in (text.partition("=") for text in texts):
        if name in pairs:
            raise click.UsageError(f"--input {name} is given twice; give each input once")
        pairs[name] = value
    return pairs
