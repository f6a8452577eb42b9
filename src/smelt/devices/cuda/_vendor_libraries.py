"""What NVIDIA's libraries have in common: where one lies, which version it is, how it refuses.

A library is opened when an engine or a build asks for it, through ctypes: no package binds it. A
call of it is data. What that keeps of the library's decisions means something to one version alone,
so the version is part of the call.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from smelt import config
from smelt.errors import DISTRIBUTION, DeviceError, EngineMismatchError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream

EXTRA: Final = "cuda-libraries"
MAJOR_OF_EXTRA: Final = 13
"""The CUDA that the packages of the extra are for."""
ALIGNED_BYTES: Final = 16
"""At what multiples operands begin; libraries are asked for what can do with that."""
WORKSPACE_ALIGNED_BYTES: Final = 256
_MAX_WORKSPACE_BYTES: Final = 1 << 40
_LAST_VERSION: Final = (1 << 31) - 1


Launcher = Callable[[Sequence[int], "CudaStream"], None]
"""Queues a call that a library has looked at, on one GPU; the numbers are its argument words:
addresses of its operands, in the call's own order, and of its workspace. Raises LibraryError."""


class LibraryError(DeviceError):
    """A library refused a call; ``status`` is its number."""

    def __init__(self, title: str, what: str, status: int, name: str) -> None:
        super().__init__(
            f"{what}: {title} reports {name} ({status}); build the engine without libraries=True "
            "to do without it"
        )
        self.status = status


def cublas_package(major: int) -> str:
    """What brings cuBLASLt for a CUDA; since the thirteenth the name says no number."""
    return "nvidia-cublas" if major >= MAJOR_OF_EXTRA else f"nvidia-cublas-cu{major}"


def cudnn_package(major: int) -> str:
    """What brings cuDNN for a CUDA."""
    return f"nvidia-cudnn-cu{major}"


def paths_to_try(names: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    """Where a library may be: paths of files that exist, then names for the system's loader.

    A folder that the user names comes first, then NVIDIA's packages.

    Args:
        names: the library's file names, the best first.
        folders: where it lies in the package ``nvidia``.
    """
    named = config.cuda_libraries()
    places = [named] if named is not None else []
    try:
        package = importlib.util.find_spec("nvidia")
    except ValueError:  # it was taken out of this process
        package = None
    for base in (package and package.submodule_search_locations) or ():
        places += [Path(base) / folder for folder in folders]
    yield from (str(p / name) for p in places for name in names if os.path.isfile(p / name))
    yield from names


def open_library(path: str, functions: Mapping[str, Sequence[Any]], version: str) -> Any:
    """Return a library's functions; None where it is not, or is too old.

    Args:
        path: a file, or a name for the system's loader.
        functions: the arguments of those that return a status.
        version: the function that tells the library's version.
    """
    try:
        api = ctypes.CDLL(path)
        for name, kinds in functions.items():
            getattr(api, name).argtypes = list(kinds)
        getattr(api, version).restype = ctypes.c_size_t
    except (OSError, AttributeError):
        return None
    return api


def find_version(
    title: str, package: str, opened: Iterable[Any], version_of: Callable[[Any], int],
    wanted: int | None, *, oldest: int = 0,
) -> Any:  # fmt: skip
    """Return the first of some libraries' functions that are of a version, or of any.

    Args:
        title: the library as people call it.
        package: what brings it.
        opened: functions of libraries, None for those that are not there.
        version_of: tells a library's version.
        wanted: the version; None if any will do.
        oldest: the first version that will do.

    Raises:
        MissingExtraError: there is none.
        DeviceError: it is too old.
        EngineMismatchError: there is none of this version.
    """
    found: list[int] = []
    for api in opened:
        if api is None:
            continue
        found.append(version_of(api))
        if found[-1] >= oldest and wanted in {None, found[-1]}:
            return api
    if not found:
        advice = (
            f"{title} is part of it, and it is in smelt's extra {EXTRA!r}: run pip install "
            f"'{DISTRIBUTION}[{EXTRA}]'; or set SMELT_CUDA_LIBRARIES to its folder"
        )
        raise MissingExtraError(package, EXTRA, advice=advice)
    if wanted is None or wanted in found:
        known = dotted_version(wanted or max(found))
        raise DeviceError(
            f"{title} {known} is too old: {dotted_version(oldest)} or newer is needed; install a "
            f"newer {package}, or set SMELT_CUDA_LIBRARIES to its folder"
        )
    dotted = dotted_version(wanted)
    raise EngineMismatchError(
        f"this engine requires {title} {dotted}, and version {dotted_version(found[0])} is "
        f"installed; install {package}=={dotted}.*, or set SMELT_CUDA_LIBRARIES to its folder, or "
        "build the engine again here (without libraries=True the engine needs no library)"
    )


def dotted_version(version: int) -> str:
    """Return a version number of a library as major.minor.patch."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def check_workspace(required_bytes: Any) -> None:
    """Raise ValueError if no call takes that much memory."""
    if type(required_bytes) is not int or not 0 <= required_bytes < _MAX_WORKSPACE_BYTES:
        raise ValueError(f"the workspace size of {required_bytes} bytes is invalid")


def check_version(version: Any) -> None:
    """Raise ValueError if this is not a version number of a library."""
    if type(version) is not int or not 0 < version <= _LAST_VERSION:
        raise ValueError("the library version number is invalid")


def aligned_workspace(address: int) -> int:
    """The first address from there on at which a workspace may begin."""
    return -(-address // WORKSPACE_ALIGNED_BYTES) * WORKSPACE_ALIGNED_BYTES


def destroy_on(device: CudaDevice, destroy: Callable[[Any], Any], handle: Any) -> None:
    """Give a library's handle back while its GPU is selected."""
    try:
        previous = device.select()
    except DeviceError:  # at the interpreter's end; the GPU's memory goes with it
        return
    try:
        destroy(handle)
    finally:
        device.restore(previous)
