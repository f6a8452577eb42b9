"""Preprocessing of pictures into input arrays.

``smelt run --help`` documents the steps and their order.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.cli._option_types import number_from_text
from smelt.errors import SmeltError
from smelt.signal_errors import pass_on_handler_error, path_mode
from smelt.types import Limit, application_errors, counted, open_file, read_array

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from smelt.types import ArrayHeader

_PICTURES: Final = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Formats that are decoded. Others are not, because pillow would run Ghostscript for some."""

_BAND_ELEMENTS: Final = 1 << 18
"""Number of a picture's values that are converted to float64 at a time, to bound the memory."""

FloatArray = "NDArray[np.float32]"


@dataclass(frozen=True, slots=True)
class ImagePreprocessing:
    """Options of the preprocessing; see the options of ``smelt run``."""

    resize: str = "exact"
    crop: str = "auto"
    filter: str = "area"
    channel_order: str = "bgr"
    mean: str | None = None
    """A number, one for each channel, or the path of a mean image; None for no mean."""
    scale: tuple[float, ...] = (1.0,)
    layout: str = "auto"


@dataclass(frozen=True, slots=True)
class ImageInputFormat:
    """Picture format that an input expects; None for an extent that is not fixed."""

    channels: int
    height: int | None
    width: int | None
    channels_last: bool
    batched: bool


def image_to_array(
    path: str, shape: tuple[int | None, ...], dtype: np.dtype[Any], preparation: ImagePreprocessing
) -> NDArray[Any]:
    """Read a picture and convert it to an input array.

    Args:
        path: file of the picture.
        shape: shape of the input, (C, H, W), (H, W, C) or either with a batch of 1 in front; None
            for an extent that is not fixed.
        dtype: element type of the input; for integers, values are rounded and clipped, and NaN
            is 0.
        preparation: options of the preprocessing.

    Raises:
        SmeltError: the file is not a picture, or the picture does not fit the input.
    """
    image_format = image_format_of(shape, preparation.layout)
    picture = _decode(path, image_format.channels)
    picture = _crop(_resize(picture, image_format, preparation), image_format, preparation)
    pixels = np.asarray(picture, np.float32).reshape(picture.height, picture.width, -1)
    if image_format.channels == 3 and preparation.channel_order == "bgr":
        pixels = pixels[:, :, ::-1]
    if preparation.mean is not None:
        pixels = pixels - _mean(preparation.mean, pixels.shape)
    pixels = pixels * _channel_values(preparation.scale, image_format.channels, "--scale")
    if not image_format.channels_last:
        pixels = pixels.transpose(2, 0, 1)
    array = np.ascontiguousarray(pixels[None] if image_format.batched else pixels)
    return _to_dtype(array, dtype)


def describe_preprocessing(array: NDArray[Any], preparation: ImagePreprocessing) -> dict[str, str]:
    """Return the applied preprocessing steps of the input ``array`` by name, as text."""
    image_format = image_format_of(array.shape, preparation.layout)
    order = preparation.channel_order if image_format.channels == 3 else "grey"
    return {
        "resize": preparation.resize,
        "filter": preparation.filter,
        "crop": preparation.crop,
        "channels": order,
        "mean": preparation.mean or "0",
        "scale": ",".join(f"{factor:.6g}" for factor in preparation.scale),
        "array": f"{array.dtype}{list(array.shape)}",
    }


def image_format_of(shape: tuple[int | None, ...], layout: str) -> ImageInputFormat:
    """Return the picture format of an input.

    Args:
        shape: shape of the input; None for an extent that is not fixed.
        layout: "nchw", "nhwc" or "auto", which takes the axis of 1 or 3 elements as channels.

    Raises:
        SmeltError: the shape is not that of pictures.
    """
    if len(shape) not in (3, 4):
        raise SmeltError(
            f"an input of rank {len(shape)} cannot take a picture; give the input with --input "
            "NAME=file.npy"
        )
    *_, first, second, third = shape
    last = layout == "nhwc" or (layout == "auto" and third in (1, 3) and first not in (1, 3))
    height, width, channels = (first, second, third) if last else (second, third, first)
    if channels not in (1, 3):
        # With auto, the other layout does not have 1 or 3 channels either.
        other = {"nchw": third, "nhwc": first}.get(layout)
        advice = f"; --layout {layout} may be wrong: omit it" if other in (1, 3) else ""
        count = "a variable number of" if channels is None else channels
        raise SmeltError(
            f"the input has {count} channels, but a picture has 1 or 3; give the input with "
            f"--input NAME=file.npy{advice}"
        )
    return ImageInputFormat(channels, height, width, last, len(shape) == 4)


def _decode(path: str, channels: int) -> Image:
    """Decode a picture to 8-bit RGB or grey, turned upright as its EXIF data says."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    def damaged(reason: str) -> SmeltError:
        return SmeltError(f"{path} is a damaged picture: {reason}")

    with application_errors(damaged):  # pillow's decoders raise TypeError, struct.error and others
        try:
            with (
                open_file(path, Limit.MAX_IMAGE_BYTES) as data,
                # smelt checks the size with its own limits.
                warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
                Image.open(data, formats=_PICTURES) as file,
            ):
                _check_size(path, file.width, file.height)
                ImageOps.exif_transpose(file, in_place=True)  # otherwise it always makes a copy
                mode = "L" if channels == 1 else "RGB"
                if file.mode.startswith("I"):  # 16-bit grey, which pillow would clip
                    grey = file.convert("I").point(lambda grey: grey / 257 + 0.5)
                    return grey.convert("L").convert(mode)
                return file.convert(mode)
        except MemoryError as error:
            raise SmeltError(
                f"there is not enough memory to decode {path}; give a smaller picture"
            ) from error
        except UnidentifiedImageError as error:
            pass_on_handler_error(error)
            raise SmeltError(
                f"{path} is not a valid picture in one of the formats {', '.join(_PICTURES)}"
            ) from error
        except OSError as error:
            pass_on_handler_error(error)
            raise SmeltError(f"{path} cannot be read: {error.strerror or error}") from error


def _check_size(what: str, width: int, height: int) -> None:
    for limit, size in (
        (Limit.MAX_IMAGE_EXTENT, max(width, height)),
        (Limit.MAX_IMAGE_PIXELS, width * height),
    ):
        if size > limit.most:
            raise SmeltError(
                f"{what} is {width}x{height} pixels; the limit {limit.name} is {limit.most:,}, for "
                f"{limit.what}; give a smaller one"
            )


def _resize(
    picture: Image, image_format: ImageInputFormat, preparation: ImagePreprocessing
) -> Image:
    """Resize a picture as --resize and --filter say."""
    from PIL.Image import Resampling

    width, height = picture.size
    extents = _integers(preparation.resize)
    if len(extents) == 1:  # shorter:256
        factor = extents[0] / min(width, height)
        size = (max(1, round(width * factor)), max(1, round(height * factor)))
    elif extents:
        size = (extents[0], extents[1])
    elif preparation.resize == "exact":
        size = (image_format.width or width, image_format.height or height)
    else:
        size = picture.size
    if 0 in size:
        raise SmeltError(
            f"--resize {preparation.resize} gives an empty picture of {size[0]}x{size[1]}"
        )
    _check_size(f"the picture after --resize {preparation.resize}", *size)
    if size == picture.size:
        return picture
    if preparation.filter == "area":
        return _averaged(picture, size)
    return picture.resize(size, Resampling[preparation.filter.upper()])


def _integers(text: str) -> list[int]:
    """Return the numbers in a valid value of --resize or --crop."""
    return [int(digits) for digits in re.findall(r"\d+", text)]


def _averaged(picture: Image, size: tuple[int, int]) -> Image:
    """Resize by area averaging: each new pixel is the mean of the source area that it covers.

    A source pixel that is covered in part is weighted by its covered share, as in OpenCV's
    INTER_AREA. Pillow's box filter uses whole pixels only, which costs trained networks a few
    percent of accuracy.
    """
    from PIL import Image

    pixels = _averaged_rows(np.asarray(picture), size[1])
    pixels = _averaged_rows(pixels.swapaxes(0, 1), size[0]).swapaxes(0, 1)
    return Image.fromarray(np.rint(pixels).clip(0, 255).astype(np.uint8))


def _averaged_rows(pixels: NDArray[Any], count: int) -> NDArray[np.float32]:
    """Resize the first axis to ``count`` rows by area averaging.

    The rows are computed one at a time, so the temporary memory is that of one row's source area.
    A matrix product would need a matrix of new by old rows.
    """
    old_count = len(pixels)
    if count == old_count:
        return pixels.astype(np.float32)
    result = np.empty((count, *pixels.shape[1:]), np.float32)
    step = old_count / count
    for row in range(count):
        low, high = row * step, min((row + 1) * step, old_count)
        first, last = min(int(low), old_count - 1), max(math.ceil(high), int(low) + 1)
        covered = np.arange(first, min(last, old_count))
        shares = np.clip(np.minimum(high, covered + 1) - np.maximum(low, covered), 0, 1) / step
        result[row] = _weighted_sum(shares, pixels[first : first + len(covered)])
    return result


def _weighted_sum(shares: NDArray[np.float64], rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of rows weighted by their shares; a band of rows is converted at a time."""
    total = np.zeros(rows.shape[1:])
    step = max(1, _BAND_ELEMENTS // max(1, total.size))
    for start in range(0, len(rows), step):
        band = slice(start, start + step)
        total += np.tensordot(shares[band], rows[band], 1)
    return total


def _crop(picture: Image, image_format: ImageInputFormat, preparation: ImagePreprocessing) -> Image:
    """Crop a picture around its centre as --crop says, and check that its size fits the input."""
    width, height = image_format.width or picture.width, image_format.height or picture.height
    covers = width <= picture.width and height <= picture.height
    if extents := _integers(preparation.crop):
        width, height = extents[0], extents[-1]
    if preparation.crop != "none" and width <= picture.width and height <= picture.height:
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
    target_size = (image_format.width or picture.width, image_format.height or picture.height)
    if picture.size != target_size:
        advice = "use --resize exact, or a larger --resize shorter:N"
        if covers:
            advice = "omit --crop, or give the size of the input"
        raise SmeltError(
            f"the picture is {picture.width}x{picture.height} after --resize {preparation.resize} "
            f"--crop {preparation.crop}, but the input takes {target_size[0]}x{target_size[1]}; "
            f"{advice}"
        )
    return picture


def _mean(text: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the mean that is subtracted from pixels of shape (height, width, channels)."""
    try:
        numbers = tuple(number_from_text(part) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        return _mean_image(text, shape)
    return _channel_values(numbers, shape[2], "--mean")


def _channel_values(numbers: tuple[float, ...], channels: int, option: str) -> NDArray[np.float32]:
    _check_count(len(numbers), channels, option)
    return np.array(numbers, np.float32)


def _check_count(count: int, channels: int, what: str) -> None:
    if count not in (1, channels):
        raise SmeltError(
            f"{what} has {count} numbers; the input has {counted(channels, 'channel')}: give one "
            "number, or one for each channel"
        )


def _mean_image(path: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Read a mean image, and crop it around its centre to a shape (height, width, channels)."""
    height, width, channels = shape
    if path.endswith(".npy"):
        mean = read_array(path, partial(_check_mean, path, channels))
    else:
        mean = _read_binaryproto(path)
    file_shape = list(mean.shape)
    if mean.ndim == 4 and mean.shape[0] == 1:
        mean = mean[0]
    if mean.ndim == 3 and mean.shape[0] == channels:
        mean = mean.transpose(1, 2, 0)
    if mean.ndim == 1:
        return _channel_values(tuple(float(x) for x in mean), channels, "--mean")
    top, left = (mean.shape[0] - height) // 2, (mean.shape[1] - width) // 2
    if mean.ndim != 3 or mean.shape[2] != channels or top < 0 or left < 0:
        raise SmeltError(
            f"the mean {path} has shape {file_shape} and does not cover "
            f"a picture of {height}x{width}x{channels}"
        )
    return mean[top : top + height, left : left + width].astype(np.float32)


def _check_mean(path: str, channels: int, header: ArrayHeader) -> None:
    if header.dtype.kind not in "fiu" or not header.shape:
        kind = f"{header.dtype}{[*header.shape]}"
        raise SmeltError(
            f"the mean {path} is {kind}; it must be an array of real numbers with at least one axis"
        )
    if len(header.shape) == 1:
        _check_count(header.shape[0], channels, f"the mean {path}")
    if (count := math.prod(header.shape)) > 3 * Limit.MAX_IMAGE_PIXELS.most:
        raise SmeltError(f"the mean {path} has {Limit.MAX_IMAGE_PIXELS.excess(count // 3)}")


def _read_binaryproto(path: str) -> NDArray[Any]:
    if not path_mode(path, follow_symlinks=False):
        raise SmeltError(
            f"--mean {path!r} is neither a list of numbers (such as 104,117,123) nor an existing "
            "file (.npy, or Caffe's binaryproto)"
        )
    from smelt.importers.caffe import read_mean

    return read_mean(Path(path))


def _to_dtype(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        # As floats, the largest integers round up to a number that is out of range.
        rounded = np.rint(array.astype(np.float64))
        with np.errstate(invalid="ignore"):
            integers = rounded.astype(dtype)
        integers[rounded <= limits.min] = limits.min
        integers[rounded >= limits.max] = limits.max
        integers[np.isnan(rounded)] = 0
        return integers
    return array.astype(dtype)
