"""A picture becomes an input, step by step, as `smelt run --help` says."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.cli._option_types import CROP, RESIZE, number_from_text
from smelt.errors import SmeltError
from smelt.types import Limit, counted, open_file, read_array

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray
    from PIL.Image import Image

    from smelt.types import ArrayHeader

_PICTURES: Final = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What is decoded: pillow would run Ghostscript for others."""

_BAND_ELEMENTS: Final = 1 << 18
"""So many of a picture's values are float64 at a time."""

FloatArray = "NDArray[np.float32]"


@dataclass(frozen=True, slots=True)
class ImagePreprocessing:
    """How pixels become numbers."""

    resize: str = "exact"
    crop: str = "auto"
    filter: str = "area"
    channel_order: str = "bgr"
    mean: str | None = None
    """Numbers for channels, or the path of a mean image."""
    scale: tuple[float, ...] = (1.0,)
    layout: str = "auto"


@dataclass(frozen=True, slots=True)
class ImageTarget:
    """What the input wants: channels, and extents where they are fixed."""

    channels: int
    height: int | None
    width: int | None
    channels_last: bool
    batched: bool


def image_to_array(
    path: str, shape: tuple[int | None, ...], dtype: np.dtype[Any], preparation: ImagePreprocessing
) -> NDArray[Any]:
    """The array for an input of this shape (None where an extent is open).

    Raises SmeltError: the file is not a picture, or it does not fit.
    """
    image_target = image_target_of(shape, preparation.layout)
    picture = _decode(path, image_target.channels)
    picture = _crop(_resize(picture, image_target, preparation), image_target, preparation)
    pixels = np.asarray(picture, np.float32).reshape(picture.height, picture.width, -1)
    if image_target.channels == 3 and preparation.channel_order == "bgr":
        pixels = pixels[:, :, ::-1]
    if preparation.mean is not None:
        pixels = pixels - _mean(preparation.mean, pixels.shape)
    pixels = pixels * _channel_values(preparation.scale, image_target.channels, "--scale")
    if not image_target.channels_last:
        pixels = pixels.transpose(2, 0, 1)
    array = np.ascontiguousarray(pixels[None] if image_target.batched else pixels)
    return _to_dtype(array, dtype)


def describe_preprocessing(array: NDArray[Any], preparation: ImagePreprocessing) -> dict[str, str]:
    """What was done to a picture that has become ``array``, step by step, in words."""
    image_target = image_target_of(array.shape, preparation.layout)
    order = preparation.channel_order if image_target.channels == 3 else "grey"
    return {
        "resize": preparation.resize,
        "filter": preparation.filter,
        "crop": preparation.crop,
        "channels": order,
        "mean": preparation.mean or "0",
        "scale": ",".join(f"{factor:.6g}" for factor in preparation.scale),
        "array": f"{array.dtype}{list(array.shape)}",
    }


def image_target_of(shape: tuple[int | None, ...], layout: str) -> ImageTarget:
    """Where channels, height and width stand in a shape.

    Raises SmeltError: it is not a picture's.
    """
    if len(shape) not in (3, 4):
        raise SmeltError(
            f"an input of rank {len(shape)} cannot take a picture; give it with --input "
            "NAME=file.npy"
        )
    *_, first, second, third = shape
    last = layout == "nhwc" or (layout == "auto" and third in (1, 3) and first not in (1, 3))
    height, width, channels = (first, second, third) if last else (second, third, first)
    if channels not in (1, 3):
        # With auto, no other layout has 1 or 3 either.
        other = {"nchw": third, "nhwc": first}.get(layout)
        advice = f"; --layout {layout} may be wrong: omit it" if other in (1, 3) else ""
        raise SmeltError(
            f"the input has {'an open number of' if channels is None else channels} channels, and "
            f"a picture has 1 or 3; give it with --input NAME=file.npy{advice}"
        )
    return ImageTarget(channels, height, width, last, len(shape) == 4)


def _decode(path: str, channels: int) -> Image:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with (
            open_file(path, Limit.MAX_IMAGE_BYTES) as data,
            _without_pixel_limit(),
            Image.open(data, formats=_PICTURES) as file,
        ):
            _check_size(path, file.width, file.height)
            upright = ImageOps.exif_transpose(file)
            if upright.mode.startswith("I"):  # 16 bits of grey, of which pillow would clip
                upright = upright.convert("I").point(lambda grey: grey / 257 + 0.5).convert("L")
            return upright.convert("L" if channels == 1 else "RGB")
    except UnidentifiedImageError as error:
        raise SmeltError(f"{path} is not a picture that pillow can read") from error
    except OSError as error:
        raise SmeltError(f"{path} cannot be read: {error.strerror or error}") from error
    except (SmeltError, MemoryError):
        raise
    except Exception as error:  # pillow's decoders raise TypeError, struct.error and others
        reason = str(error) or type(error).__name__
        raise SmeltError(f"{path} is a damaged picture: {reason}") from error


@contextlib.contextmanager
def _without_pixel_limit() -> Generator[None]:
    """Let smelt's own limits say which pictures are too large: pillow warns of what they allow."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _check_size(what: str, width: int, height: int) -> None:
    for limit, found in (
        (Limit.MAX_IMAGE_EXTENT, max(width, height)),
        (Limit.MAX_IMAGE_PIXELS, width * height),
    ):
        if found > limit.most:
            raise SmeltError(f"{what} has {limit.excess(f'{width}x{height}')}")


def _resize(picture: Image, image_target: ImageTarget, preparation: ImagePreprocessing) -> Image:
    match = RESIZE.fullmatch(preparation.resize)
    if match is None:
        raise SmeltError(
            f"--resize {preparation.resize!r} is not exact, none, shorter:256 or WIDTHxHEIGHT"
        )
    width, height = picture.size
    if match[1]:
        factor = int(match[1]) / min(width, height)
        size = (max(1, round(width * factor)), max(1, round(height * factor)))
    elif match[2]:
        size = (int(match[2]), int(match[3]))
    elif preparation.resize == "exact":
        size = (image_target.width or width, image_target.height or height)
    else:
        size = picture.size
    if 0 in size:
        raise SmeltError(f"--resize {preparation.resize} makes a picture of {size[0]}x{size[1]}")
    _check_size(f"the picture after --resize {preparation.resize}", *size)
    if size == picture.size:
        return picture
    if preparation.filter == "area":
        return _averaged(picture, size)
    return picture.resize(size, _filter(preparation.filter))


def _filter(name: str) -> Any:
    from PIL.Image import Resampling

    return {
        "bilinear": Resampling.BILINEAR,
        "bicubic": Resampling.BICUBIC,
        "nearest": Resampling.NEAREST,
    }[name]


def _averaged(picture: Image, size: tuple[int, int]) -> Image:
    """Each new pixel as the mean of the area that it covers, pixels cut by its edge in part.

    Pillow's box filter takes or leaves whole pixels, which costs trained networks a few percent;
    this is what OpenCV calls INTER_AREA.
    """
    from PIL import Image

    pixels = _averaged_rows(np.asarray(picture), size[1])
    pixels = _averaged_rows(pixels.swapaxes(0, 1), size[0]).swapaxes(0, 1)
    return Image.fromarray(np.rint(pixels).clip(0, 255).astype(np.uint8))


def _averaged_rows(pixels: NDArray[Any], after: int) -> NDArray[np.float32]:
    """The means of areas along the first axis, of which there are ``after``.

    Works on the rows of one area at a time: what it takes beside the result is one area of the
    picture and not a matrix of the rows before and after.
    """
    before = len(pixels)
    if after == before:
        return pixels.astype(np.float32)
    result = np.empty((after, *pixels.shape[1:]), np.float32)
    step = before / after
    for row in range(after):
        low, high = row * step, min((row + 1) * step, before)
        first, last = min(int(low), before - 1), max(math.ceil(high), int(low) + 1)
        covered = np.arange(first, min(last, before))
        shares = np.clip(np.minimum(high, covered + 1) - np.maximum(low, covered), 0, 1) / step
        result[row] = _weighted_sum(shares, pixels[first : first + len(covered)])
    return result


def _weighted_sum(shares: NDArray[np.float64], rows: NDArray[Any]) -> NDArray[np.float64]:
    """The sum of rows, each times its share; few rows become floats at a time."""
    total = np.zeros(rows.shape[1:])
    step = max(1, _BAND_ELEMENTS // max(1, total.size))
    for start in range(0, len(rows), step):
        band = slice(start, start + step)
        total += np.tensordot(shares[band], rows[band], 1)
    return total


def _crop(picture: Image, image_target: ImageTarget, preparation: ImagePreprocessing) -> Image:
    match = CROP.fullmatch(preparation.crop)
    if match is None:
        raise SmeltError(f"--crop {preparation.crop!r} is not auto, none, 224 or WIDTHxHEIGHT")
    width, height = image_target.width or picture.width, image_target.height or picture.height
    covers = width <= picture.width and height <= picture.height
    if match[1]:
        width, height = int(match[1]), int(match[2] or match[1])
    if preparation.crop != "none" and width <= picture.width and height <= picture.height:
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
    wanted = (image_target.width or picture.width, image_target.height or picture.height)
    if picture.size != wanted:
        advice = "use --resize exact, or a larger --resize shorter:N"
        if covers:
            advice = "omit --crop, or give the size of the input"
        raise SmeltError(
            f"the picture is {picture.width}x{picture.height} after --resize {preparation.resize} "
            f"--crop {preparation.crop}, and the input takes {wanted[0]}x{wanted[1]}; "
            f"{advice}"
        )
    return picture


def _mean(text: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The mean, ready to be subtracted from pixels of shape (height, width, channel)."""
    try:
        numbers = tuple(number_from_text(part) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        return _mean_image(text, shape)
    return _channel_values(numbers, shape[2], "--mean")


def _channel_values(numbers: tuple[float, ...], channels: int, option: str) -> NDArray[np.float32]:
    if len(numbers) not in (1, channels):
        raise SmeltError(
            f"{option} has {len(numbers)} numbers; the input has {counted(channels, 'channel')}: "
            "give one number, or one for each"
        )
    return np.array(numbers, np.float32)


def _mean_image(path: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    height, width, channels = shape
    if path.endswith(".npy"):
        mean = load_array(path, partial(_check_mean, path, channels))
    else:
        mean = _read_binaryproto(path)
    shape_told = list(mean.shape)
    if mean.ndim == 4 and mean.shape[0] == 1:
        mean = mean[0]
    if mean.ndim == 3 and mean.shape[0] == channels:
        mean = mean.transpose(1, 2, 0)
    if mean.ndim == 1:
        return _channel_values(tuple(float(x) for x in mean), channels, "--mean")
    top, left = (mean.shape[0] - height) // 2, (mean.shape[1] - width) // 2
    if mean.ndim != 3 or mean.shape[2] != channels or top < 0 or left < 0:
        raise SmeltError(
            f"the mean {path} has shape {shape_told} and does not cover "
            f"a picture of {height}x{width}x{channels}"
        )
    return mean[top : top + height, left : left + width].astype(np.float32)


def _check_mean(path: str, channels: int, header: ArrayHeader) -> None:
    if header.dtype.kind not in "fiu" or not header.shape:
        detail = f"{header.dtype}{[*header.shape]}"
        raise SmeltError(f"the mean {path} is {detail}; real numbers are needed")
    if len(header.shape) == 1 and header.shape[0] not in (1, channels):
        raise SmeltError(
            f"the mean {path} has {header.shape[0]} numbers; the input has "
            f"{counted(channels, 'channel')}: give one number, or one for each"
        )
    if (count := math.prod(header.shape)) > 3 * Limit.MAX_IMAGE_PIXELS.most:
        raise SmeltError(f"the mean {path} has {Limit.MAX_IMAGE_PIXELS.excess(count // 3)}")


def _read_binaryproto(path: str) -> NDArray[Any]:
    if not os.path.lexists(path):
        raise SmeltError(
            f"--mean {path!r} is neither numbers (as 104,117,123) nor an existing file (.npy, or "
            "Caffe's binaryproto)"
        )
    from smelt.importers.caffe import read_mean

    return read_mean(Path(path))


def load_array(path: str, check: Callable[[ArrayHeader], None]) -> NDArray[Any]:
    """The array of a ``.npy`` file whose header ``check`` does not refuse; see `read_array`.

    Raises SmeltError: it is none; objects are not read.
    """
    try:
        return read_array(path, check)
    except (OSError, ValueError) as error:
        detail = error.strerror if isinstance(error, OSError) else None
        reason = detail or f"{error}; numpy.save writes them"
        raise SmeltError(f"{path} cannot be read as a .npy array: {reason}") from error


def _to_dtype(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        array = np.clip(np.rint(array), limits.min, limits.max)
    return array.astype(dtype)
