"""Types of option values: sizes in bytes, shapes, devices, numbers per channel."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from smelt.cli._options import error_text
from smelt.devices import DeviceName
from smelt.errors import SmeltError
from smelt.types import Limit, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from smelt.builder import ShapeSpec

_RESIZE: Final = re.compile(r"exact|none|shorter:(\d{1,6})|(\d{1,6})x(\d{1,6})", re.ASCII)
"""Values of --resize."""
_CROP: Final = re.compile(r"auto|none|(0*[1-9]\d{0,5})(?:x(0*[1-9]\d{0,5}))?", re.ASCII)
"""Values of --crop."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(
    r"(\d{1,18}(?:\.\d{1,18})?)\s*(?:([kmgt]?)(?:i?b)?)", re.ASCII | re.IGNORECASE
)
_EXTENT: Final = re.compile(r"(\d+)(?:\.\.(\d+))?(?:\.\.(\d+))?", re.ASCII)

Range = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Smallest, best and largest shape."""


def byte_count(value: object) -> int:
    """Convert a number of bytes: ``1048576``, ``64MiB``, ``1.5g``; units are powers of 1024."""
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size; write it as 64MiB, 1GiB or 1048576")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def tuning_effort(text: str) -> str | float:
    """Convert a tuning effort: a word, or a number of seconds."""
    if text in ("none", "fast", "full"):
        return text
    try:
        seconds = number_from_text(text)
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(
            f"{text!r} is not valid; it must be none, fast, full or a number of seconds"
        ) from None
    if not 0 <= seconds < 1e9:
        raise click.BadParameter(f"{text!r} is not a number of seconds from 0 to 1e9")
    return seconds


def device_text(text: str) -> str:
    """Return the name of a device with a known target; the build checks whether it exists."""
    try:
        device = DeviceName.from_text(text)
        if device.target not in ("", "native"):  # the build checks this machine's processor
            device.kind.load_part(device.kind.backend).target_named(device.target)
    except SmeltError as error:
        raise click.BadParameter(error_text(error)) from error
    return text


def nvdla_configuration(text: str) -> str:
    """Return the name of a hardware configuration of NVDLA, if it exists."""
    from smelt.nvdla.hardware import find_configuration

    try:
        return find_configuration(text).name
    except SmeltError as error:
        raise click.BadParameter(str(error)) from error


configuration_option = partial(
    click.option, "--configuration", metavar="NAME", type=nvdla_configuration
)


def resize_text(text: str) -> str:
    """Return a value of --resize, if it is valid."""
    return _matching(text, _RESIZE, "exact, none, shorter:N (such as shorter:256) or WIDTHxHEIGHT")


def crop_text(text: str) -> str:
    """Return a value of --crop, if it is valid."""
    return _matching(text, _CROP, "auto, none, a size such as 224, or WIDTHxHEIGHT")


def _matching(text: str, pattern: re.Pattern[str], known: str) -> str:
    if pattern.fullmatch(text) is None:
        raise click.BadParameter(f"{text!r} is not valid; it must be {known}")
    return text


def numbers(text: str, example: str = "104,117,123") -> tuple[float, ...]:
    """Convert one number, or one per channel separated by commas; ``1/255`` is allowed."""
    try:
        return tuple(number_from_text(part) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(
            f"{text!r} is not a number or a list of numbers such as {example}"
        ) from None


def peak_rates(text: str) -> tuple[float, ...]:
    """Convert the peak rates of a device: FLOP/s and bytes/s."""
    example = "790e12,4.3e12"
    rates = numbers(text, example)
    if len(rates) != 2 or min(rates) <= 0:
        raise click.BadParameter(
            f"{text!r} is not valid; it must be two positive rates FLOP/S,BYTES/S, as in {example}"
        )
    return rates


def shape_text(text: str) -> str:
    """Return the shape of an input, with or without its name, if it is valid."""
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


def number_from_text(text: str) -> float:
    """Convert a decimal number or a fraction of two to a finite float.

    Raises:
        ValueError: the text is not a finite number.
        ZeroDivisionError: the denominator is 0.
    """
    if not text.isascii():
        raise ValueError(f"{text} contains characters that are not ASCII")
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
                    f"--shape {text} does not name an input; write --shape NAME={text}, where NAME "
                    f"is one of {', '.join(names)}"
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
            raise _bad_shape(
                f"{text!r} is not a shape; write NAME=1x3x224x224, or NAME=1..8x3x224x224 for a "
                "range"
            )
        bounds = [_extent(number, text) for number in match.groups() if number is not None]
        if bounds != sorted(bounds):
            raise _bad_shape(
                f"{text!r}: {part} is not a range; write smallest..largest, or "
                "smallest..best..largest to tune for the second"
            )
        low.append(bounds[0])
        high.append(bounds[-1])
        best.append(bounds[1] if len(bounds) > 1 else bounds[0])
    return tuple(low), tuple(best), tuple(high)


def _bad_shape(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--shape")


def _extent(digits: str, text: str) -> int:
    limit = Limit.MAX_EXTENT
    # int() refuses texts of several thousand digits.
    if len(digits.lstrip("0")) > len(str(limit.most)) or int(digits) > limit.most:
        raise _bad_shape(f"{shown(text)}: an extent has {limit.excess(shown(digits))}")
    return int(digits)


def _spec(name: str, ranges: list[Range]) -> ShapeSpec:
    """Return the shapes of one input in the form that `build` takes."""
    for index, (low, _, high) in enumerate(ranges):
        if low == high and ranges[index] in ranges[:index]:
            extents = "x".join(map(str, low))
            raise _bad_shape(f"{name} is given the shape {extents} twice")
    if len(ranges) == 1:
        low, best, high = ranges[0]
        return low if low == high else (low, best, high)
    if any(low != high for low, _, high in ranges):
        raise _bad_shape(
            f"{name} is given several shapes, and one of them is a range; give either fixed "
            "shapes or one range"
        )
    return [low for low, _, _ in ranges]


def pairs_from_texts(texts: Iterable[str]) -> Mapping[str, str]:
    """Return the values of --input options, which are of type `NamedInput`, by their names.

    Raises:
        click.UsageError: a name is given twice.
    """
    pairs: dict[str, str] = {}
    for name, _, value in (text.partition("=") for text in texts):
        if name in pairs:
            raise click.UsageError(f"--input {name} is given twice; give each input once")
        pairs[name] = value
    return pairs
