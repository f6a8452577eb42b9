"""Common code of NVIDIA's libraries: search paths, versions and refusals.

A library is opened through ctypes when an engine or a build requires it; no binding package is
needed. A call of a library is data. The library's decisions in it are valid for one version only,
so the version is part of the call.
"""

from __future__ import annotations

import ctypes
import importlib.util
import stat
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt import config
from smelt.errors import (
    DISTRIBUTION,
    Argument,
    DeviceError,
    EngineFormatError,
    EngineMismatchError,
    MissingExtraError,
)
from smelt.signal_errors import pass_on_handler_error, path_mode
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Self

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream

LIBRARIES_ARGUMENT: Final = Argument("libraries", value=True)
EXTRA: Final = "cuda-libraries"
MAJOR_OF_EXTRA: Final = 13
"""Major version of the CUDA that the packages of the extra are for."""
ALIGNED_BYTES: Final = 16
"""Alignment of operands in bytes, for which algorithms are requested."""
WORKSPACE_ALIGNED_BYTES: Final = 256
_MAX_WORKSPACE_BYTES: Final = 1 << 40
_LAST_VERSION: Final = (1 << 31) - 1


Launcher = Callable[[Sequence[int], "CudaStream"], None]
"""Queues a prepared call on one GPU. The numbers are its argument words: the addresses of its
operands, in the order of the call, and of its workspace. Raises LibraryError."""


class LibraryError(DeviceError):
    """A library refused a call; ``status`` is the number of the error."""

    def __init__(self, title: str, what: str, status: int, name: str) -> None:
        super().__init__(
            f"{what}: {title} reports {name} ({status}); an engine that is built "
            f"without {LIBRARIES_ARGUMENT} does not call {title}",
            arguments=[LIBRARIES_ARGUMENT],
        )
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall(ABC):
    """One call as data. Its argument words are the addresses of its operands and its workspace."""

    provider: ClassVar[str]
    """Name of the library in engines."""

    version: int
    """Version number in the library's own format."""
    factors: DType
    """Type of the two factors; those of a convolution are the images and the filters."""
    result: DType
    """Type of the result, the added tensor and the bias."""
    input_precision: str
    """How float32 is multiplied: "ieee" or "tf32"."""
    adds: bool
    """Whether a tensor of the result's shape is added."""
    bias: bool
    """Whether there is a bias, one number for each column or filter."""
    workspace_bytes: int = 0

    @classmethod
    def from_fields(cls, data: Mapping[str, Any]) -> Self:
        """Return the call that a record or a kernel's parameters describe.

        Raises:
            EngineFormatError: they do not describe a call.
        """
        try:
            given = {**data, **cls.tuples_from(data)}
            given |= {name: DType(data[name]) for name in ("factors", "result")}
            made = cls(**given)
            made.check()
        except (ValueError, TypeError, KeyError) as error:
            raise EngineFormatError(
                f"a library call is malformed: {error}; the engine is damaged: build it again"
            ) from error
        return made

    def to_fields(self) -> dict[str, Any]:
        """Return the call as fields of a record or a kernel's parameters."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "factors": self.factors.value, "result": self.result.value}

    @staticmethod
    @abstractmethod
    def tuples_from(data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are tuples from the lists of a record."""

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError if such a call cannot exist."""

    def check_common_fields(self) -> None:
        """Raise ValueError if the workspace or the version cannot exist."""
        size, version = self.workspace_bytes, self.version
        if type(size) is not int or not 0 <= size < _MAX_WORKSPACE_BYTES:
            raise ValueError(f"the workspace size of {size} bytes is invalid")
        if type(version) is not int or not 0 < version <= _LAST_VERSION:
            raise ValueError("the library version number is invalid")

    @property
    def words(self) -> int:
        """Number of argument words."""
        return 3 + self.adds + self.bias + (self.workspace_bytes > 0)


class LoadedLibrary(ABC):
    """A library on one GPU; it is closed when the object is garbage-collected."""

    provider: ClassVar[str]
    """Name of the library in engines."""
    prefix: ClassVar[str]
    """Start of the names of the library's functions."""

    def __init__(self, device: CudaDevice, api: Any) -> None:
        """Initialise the library; ``api`` has its functions by name.

        Raises:
            LibraryError: the library cannot be started.
        """
        self.device, self.api = device, api
        self.version = self.version_of(api)
        """Version number in the library's own format."""
        handle = ctypes.c_void_p()
        with device.selected():
            self.call(f"{self.prefix}Create", ctypes.addressof(handle))
        self.handle = handle.value
        destroy = getattr(api, f"{self.prefix}Destroy")
        weakref.finalize(self, destroy_on, device, destroy, handle.value).atexit = False

    @classmethod
    def version_of(cls, api: Any) -> int:
        """Return the version number that the functions of a library report."""
        return int(getattr(api, f"{cls.prefix}GetVersion")())

    @abstractmethod
    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library. Raises LibraryError: it refuses the call."""

    @abstractmethod
    def prepare(self, call: Any, /) -> Launcher:
        """Prepare one call of the library; the returned function queues it on its operands.

        Raises:
            EngineMismatchError: the library cannot perform this call on this GPU.
        """


def cublas_package(major: int) -> str:
    """Return the package that contains cuBLASLt for a CUDA; from 13 on its name has no number."""
    return "nvidia-cublas" if major >= MAJOR_OF_EXTRA else f"nvidia-cublas-cu{major}"


def cudnn_package(major: int) -> str:
    """Return the package that contains cuDNN for a CUDA."""
    return f"nvidia-cudnn-cu{major}"


def paths_to_try(names: Sequence[str], folders: Sequence[str]) -> Iterator[str]:
    """Return where a library may be: paths of existing files, then names for the system's loader.

    The folder that the user names comes first, then NVIDIA's packages.

    Args:
        names: file names of the library, the preferred one first.
        folders: folders of the library in the package ``nvidia``.
    """
    named = config.cuda_libraries()
    places = [named] if named is not None else []
    try:
        package = importlib.util.find_spec("nvidia")
    except ValueError:  # it was removed from this process
        package = None
    for base in (package and package.submodule_search_locations) or ():
        places += [Path(base) / folder for folder in folders]
    yield from (
        str(p / name) for p in places for name in names if stat.S_ISREG(path_mode(p / name))
    )
    yield from names


def open_library(path: str, functions: Mapping[str, Sequence[Any]], version: str) -> Any:
    """Return the functions of a library; None if it is missing or too old.

    Args:
        path: a file, or a name for the system's loader.
        functions: argument types of the functions that return a status.
        version: function that returns the library's version.
    """
    try:
        api = ctypes.CDLL(path)
        for name, kinds in functions.items():
            getattr(api, name).argtypes = list(kinds)
        getattr(api, version).restype = ctypes.c_size_t
    except (OSError, AttributeError) as error:
        pass_on_handler_error(error)
        return None
    return api


def find_version(
    title: str, package: str, opened: Iterable[Any], version_of: Callable[[Any], int],
    wanted: int | None, *, oldest: int = 0,
) -> Any:  # fmt: skip
    """Return the functions of the first library that has the wanted version, or any version.

    Args:
        title: name of the library for messages.
        package: package that contains it.
        opened: functions of libraries; None for missing libraries.
        version_of: returns the version of a library.
        wanted: required version; None accepts any version.
        oldest: oldest supported version.

    Raises:
        MissingExtraError: the library is not installed.
        DeviceError: the library is too old.
        EngineMismatchError: the wanted version is not installed.
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
            f"it contains {title} and is in smelt's extra {EXTRA!r}: run pip install "
            f"'{DISTRIBUTION}[{EXTRA}]'; or set SMELT_CUDA_LIBRARIES to the folder of {title}"
        )
        raise MissingExtraError(package, EXTRA, advice=advice)
    if wanted is None or wanted in found:
        known = dotted_version(wanted or max(found))
        raise DeviceError(
            f"{title} {known} is too old: {dotted_version(oldest)} or newer is needed; install a "
            f"newer {package}, or set SMELT_CUDA_LIBRARIES to the folder of a newer {title}"
        )
    dotted = dotted_version(wanted)
    raise EngineMismatchError(
        f"this engine requires {title} {dotted}, but version {dotted_version(found[0])} is "
        f"installed; install {package}=={dotted}.*, or set SMELT_CUDA_LIBRARIES to the folder of "
        f"{title} {dotted}, or "
        f"build the engine again here (without {LIBRARIES_ARGUMENT} the engine needs no library)",
        arguments=[LIBRARIES_ARGUMENT],
    )


def dotted_version(version: int) -> str:
    """Return a version number of a library as major.minor.patch."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def aligned_workspace(address: int) -> int:
    """Return the first address at or after the given one at which a workspace may begin."""
    return -(-address // WORKSPACE_ALIGNED_BYTES) * WORKSPACE_ALIGNED_BYTES


def destroy_on(device: CudaDevice, destroy: Callable[[Any], Any], handle: Any) -> None:
    """Destroy a library's handle while its GPU is selected."""
    try:
        previous = device.select()
    except DeviceError:  # at interpreter exit the GPU's memory is released anyway
        return
    try:
        destroy(handle)
    finally:
        device.restore(previous)
