"""Products of matrices by cuBLASLt: a library call as data, checked when it is loaded.

The library is opened when an engine or a build asks for it, through ctypes: no package binds it. A
call says everything itself, the library's algorithm included; that is 64 bytes which mean something
to one version alone, so the version is part of the call.

Matrices lie row by row here and column by column there: the library is told to compute the
transposed result, of the factors in the other order.

Source: cuBLAS library reference, "Using the cuBLASLt API".
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from smelt import config
from smelt.errors import DeviceError, EngineFormatError, EngineMismatchError, MissingExtraError
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream

LIBRARY: Final = "cublaslt"
EXTRA: Final = "cuda-libraries"
_ADVICE: Final = (
    f"cuBLASLt is part of it, and smelt's extra {EXTRA!r} brings it: run pip install "
    f"'.[{EXTRA}]' in smelt's clone; or name the folder of libcublasLt in SMELT_CUDA_LIBRARIES"
)
ALIGNED_BYTES: Final = 16
"""At what multiples operands begin; algorithms are asked for that can do with that."""
WORKSPACE_ALIGNED_BYTES: Final = 256
_OLDEST_MAJOR: Final = 12
_TYPES: Final = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14}
_COMPUTE: Final = {"ieee": 68, "tf32": 77}
"""Sums are float32; factors of float32 may be rounded on their way in."""
_ACTIVATIONS: Final = {"": 0, "relu": 2, "gelu": 32}
"""The library's gelu goes by the hyperbolic tangent."""
_DEFAULT_EPILOGUE, _BIAS_EPILOGUE = 1, 4
_FLOAT32: Final = 0
_DESC_TRANSPOSES: Final = (3, 4)
_DESC_EPILOGUE, _DESC_BIAS = 7, 8
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_STRIDE = 5, 6
_PREFER_WORKSPACE, _PREFER_REDUCTIONS = 1, 3
_PREFER_ALIGNMENTS: Final = (5, 6, 7, 8)
_SUMS_IN_FLOAT32: Final = 2
"""The one way to add the pieces of a sum that rounds none of them."""
_MOST_WORKSPACE_BYTES: Final = 1 << 40
_ALGORITHM_BYTES: Final = 64
_STATUSES: Final = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
}
_NOT_SUPPORTED: Final = frozenset({7, 8, 15})
"""Statuses by which the library says of a product, not of itself, that it cannot be."""

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_FUNCTIONS: Final[Mapping[str, Sequence[Any]]] = {
    "cublasLtCreate": (_POINTER,),
    "cublasLtDestroy": (_POINTER,),
    "cublasLtMatmulDescCreate": (_POINTER, _INT, _INT),
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatmulDescSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "cublasLtMatrixLayoutCreate": (
        _POINTER, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64,
    ),
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatrixLayoutSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "cublasLtMatmulPreferenceCreate": (_POINTER,),
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": (_POINTER, _INT, _POINTER, _SIZE),
    "cublasLtMatmulAlgoGetHeuristic": (*[_POINTER] * 7, _INT, _POINTER, _POINTER),
    "cublasLtMatmulAlgoCheck": (_POINTER,) * 8,
    "cublasLtMatmul": (*[_POINTER] * 14, _SIZE, _POINTER),
}  # fmt: skip
"""Each returns a status."""


class CublasError(DeviceError):
    """The library refused a call; ``status`` is its number."""

    def __init__(self, what: str, status: int) -> None:
        name = _STATUSES.get(status, "a status that is not documented")
        super().__init__(
            f"{what}: cuBLASLt reports {name} ({status}); an engine that is built without "
            "libraries=True does without it"
        )
        self.status = status


class _Result(ctypes.Structure):
    """What the library says of an algorithm: cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint8 * _ALGORITHM_BYTES),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """``activation(alpha * first @ second + added + bias)``, on stacks of matrices without holes.

    Its argument words are the addresses of the first factor, the second, what is added, the bias,
    the result and the workspace, as far as there are any.
    """

    version: int
    """The library's own number of its version."""
    matrices: int
    """Of each stack."""
    rows: int
    columns: int
    depth: int
    turned: tuple[bool, bool]
    """Whether each factor lies transposed: the first (depth, rows), the second
    (columns, depth)."""
    factors: DType
    result: DType
    """What is added and the bias have this type, too."""
    precision: str
    """How float32 is multiplied: "ieee" or "tf32"."""
    alpha: float
    adds: bool
    bias: bool
    """One number for each column."""
    activation: str
    """"", "relu" or "gelu" (by the hyperbolic tangent)."""
    workspace_bytes: int = 0
    algorithm: str = ""
    """What the library keeps its decision in, in hexadecimal; zeros at its end are left out."""

    @staticmethod
    def from_fields(data: Mapping[str, Any]) -> LibraryCall:
        """The call that a record or a kernel's parameters describe.

        Raises:
            EngineFormatError: they describe none.
        """
        try:
            first, second = data["turned"]
            given: dict[str, Any] = {**data, "turned": (bool(first), bool(second))}
            given |= {name: DType(data[name]) for name in ("factors", "result")}
            made = LibraryCall(**given)
            made.check()
        except (ValueError, TypeError, KeyError) as error:
            raise EngineFormatError(f"a library call is malformed: {error}") from error
        return made

    def to_fields(self) -> dict[str, Any]:
        """The call as a record or a kernel's parameters hold it."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "factors": self.factors.value, "result": self.result.value}

    def check(self) -> None:
        """Raise ValueError if there can be no such call."""
        sizes = (self.matrices, self.rows, self.columns, self.depth)
        if any(type(size) is not int or not 0 < size < 1 << 31 for size in sizes):
            raise ValueError(f"matrices of the extents {sizes}")
        room = self.workspace_bytes
        if type(room) is not int or not 0 <= room < _MOST_WORKSPACE_BYTES:
            raise ValueError(f"a workspace of {room} bytes")
        known = (
            self.factors in _TYPES and self.result in _TYPES
            and self.precision in _COMPUTE and self.activation in _ACTIVATIONS
        )  # fmt: skip
        if not known:
            raise ValueError("a type, a precision or an activation that there is not")
        kinds = [type(x) for x in (self.version, self.alpha, self.adds, self.bias)]
        if kinds != [int, float, bool, bool]:
            raise ValueError("a version, a factor or a choice of another type")
        if len(bytes.fromhex(self.algorithm)) > _ALGORITHM_BYTES:
            raise ValueError("an algorithm that is too long")

    @property
    def words(self) -> int:
        """How many argument words it takes."""
        return 3 + self.adds + self.bias + (self.workspace_bytes > 0)


class CublasLt:
    """The library on one GPU; closed when it is forgotten."""

    def __init__(self, device: CudaDevice, api: Any) -> None:
        """Take ``api``, the library's functions by name, into use.

        Raises:
            CublasError: the library cannot be started.
        """
        self.device, self._api = device, api
        self.version = int(api.cublasLtGetVersion())
        handle = ctypes.c_void_p()
        previous = device.select()
        try:
            self._call("cublasLtCreate", ctypes.addressof(handle))
        finally:
            device.restore(previous)
        self._handle = handle.value
        self._finalizer = weakref.finalize(self, _destroy, device, api, handle.value)
        self._finalizer.atexit = False

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._api, name)(*arguments)
        if status:
            raise CublasError(name, status)

    def algorithms(
        self, call: LibraryCall, *, count: int, most_workspace_bytes: int
    ) -> list[tuple[str, int]]:
        """What the library proposes for a call: algorithms and the workspaces that they need.

        The best guess comes first; none, if it cannot do the call at all.
        """
        found = (_Result * count)()
        number = ctypes.c_int()
        with self._described(call, ALIGNED_BYTES) as described, self._made("Preference") as wishes:
            self._set(
                "Preference", wishes, _PREFER_WORKSPACE, ctypes.c_uint64(most_workspace_bytes)
            )
            self._set("Preference", wishes, _PREFER_REDUCTIONS, ctypes.c_uint32(_SUMS_IN_FLOAT32))
            for kind in _PREFER_ALIGNMENTS:
                self._set("Preference", wishes, kind, ctypes.c_uint32(ALIGNED_BYTES))
            places = ctypes.addressof(found), ctypes.addressof(number)
            try:
                self._call(
                    "cublasLtMatmulAlgoGetHeuristic",
                    self._handle, *described, wishes, count, *places,
                )  # fmt: skip
            except CublasError as error:
                if error.status in _NOT_SUPPORTED:
                    return []
                raise
        return [
            (bytes(result.algorithm).rstrip(b"\0").hex(), int(result.workspace_bytes))
            for result in found[: number.value]
            if not result.state
        ]

    def check(self, call: LibraryCall) -> None:
        """Let the library look at a call.

        Raises:
            EngineMismatchError: its algorithm cannot do this product on this GPU.
        """
        result = _Result()
        algorithm = _algorithm(call)
        with self._described(call, ALIGNED_BYTES) as described:
            places = ctypes.addressof(algorithm), ctypes.addressof(result)
            status = self._api.cublasLtMatmulAlgoCheck(self._handle, *described, *places)
        if status or result.state or result.workspace_bytes > call.workspace_bytes:
            raise EngineMismatchError(
                f"cuBLASLt cannot do a product of this engine on {self.device!r} as it was built "
                f"(status {status or result.state}); build the engine again here"
            )

    def launch(self, call: LibraryCall, words: Sequence[int], stream: CudaStream) -> None:
        """Queue a call on its operands.

        Raises:
            CublasError: the library refuses it.
        """
        places = iter(map(int, words))
        first, second = next(places), next(places)
        added = next(places) if call.adds else None
        bias = next(places) if call.bias else 0
        result = next(places)
        workspace = -(-next(places, 0) // WORKSPACE_ALIGNED_BYTES) * WORKSPACE_ALIGNED_BYTES
        alpha, beta = ctypes.c_float(call.alpha), ctypes.c_float(call.adds)
        algorithm = _algorithm(call)
        with self._described(call, bias) as (what, *layouts):
            self._call(
                "cublasLtMatmul", self._handle, what, ctypes.addressof(alpha),
                second, layouts[0], first, layouts[1], ctypes.addressof(beta),
                result if added is None else added, layouts[2], result, layouts[3],
                ctypes.addressof(algorithm), workspace, call.workspace_bytes, int(stream.handle),
            )  # fmt: skip

    # ---- descriptors

    @contextmanager
    def _described(self, call: LibraryCall, bias: int) -> Generator[tuple[int, ...]]:
        """What is computed, then the layouts of both factors, of what is added, of the result."""
        first, second = call.turned
        factors, result = _TYPES[call.factors], _TYPES[call.result]
        shapes = [(call.columns, call.depth), (call.depth, call.rows)]
        shapes = [s[::-1] if t else s for s, t in zip(shapes, (second, first), strict=True)]
        layouts = [(factors, height, width) for height, width in shapes]
        layouts += [(result, call.columns, call.rows)] * 2
        epilogue = _ACTIVATIONS[call.activation] | _BIAS_EPILOGUE * call.bias
        previous = self.device.select()
        try:
            with ExitStack() as stack:
                compute = _COMPUTE[call.precision]
                what = stack.enter_context(self._made("Desc", compute, _FLOAT32))
                for kind, turned in zip(_DESC_TRANSPOSES, (second, first), strict=True):
                    self._set("Desc", what, kind, ctypes.c_int32(int(turned)))
                self._set(
                    "Desc", what, _DESC_EPILOGUE, ctypes.c_uint32(epilogue or _DEFAULT_EPILOGUE)
                )
                if call.bias:
                    self._set("Desc", what, _DESC_BIAS, ctypes.c_uint64(bias))
                made = [stack.enter_context(self._layout(x, call.matrices)) for x in layouts]
                yield (what, *made)
        finally:
            self.device.restore(previous)

    @contextmanager
    def _made(self, kind: str, *arguments: int) -> Generator[int]:
        """A descriptor or a preference of the library."""
        place = ctypes.c_void_p()
        self._call(f"cublasLtMatmul{kind}Create", ctypes.addressof(place), *arguments)
        try:
            yield cast("int", place.value)
        finally:
            self._call(f"cublasLtMatmul{kind}Destroy", place.value)

    def _set(self, kind: str, place: int, attribute: int, value: Any) -> None:
        content = ctypes.addressof(value), ctypes.sizeof(value)
        self._call(f"cublasLtMatmul{kind}SetAttribute", place, attribute, *content)

    @contextmanager
    def _layout(self, matrix: tuple[int, int, int], matrices: int) -> Generator[int]:
        kind, height, width = matrix
        place = ctypes.c_void_p()
        where = ctypes.addressof(place)
        self._call("cublasLtMatrixLayoutCreate", where, kind, height, width, height)
        try:
            if matrices > 1:
                for attribute, value in (
                    (_LAYOUT_BATCH_COUNT, ctypes.c_int32(matrices)),
                    (_LAYOUT_BATCH_STRIDE, ctypes.c_int64(height * width)),
                ):
                    content = ctypes.addressof(value), ctypes.sizeof(value)
                    name = "cublasLtMatrixLayoutSetAttribute"
                    self._call(name, place.value, attribute, *content)
            yield cast("int", place.value)
        finally:
            self._call("cublasLtMatrixLayoutDestroy", place.value)


def open_cublaslt(device: CudaDevice, version: int | None = None) -> CublasLt:
    """Return the library on a GPU: of this version, or whichever is found first.

    A folder that the user names comes first, then the package ``nvidia-cublas``, then what the
    system's loader finds; of several, what the driver is newest for.

    Raises:
        MissingExtraError: there is none.
        EngineMismatchError: there is none of this version.
    """
    found: list[int] = []
    for path in paths_to_try(device.driver.version // 1000):
        api = open_library(path)
        if api is None:
            continue
        found.append(int(api.cublasLtGetVersion()))
        if version in {None, found[-1]}:
            return CublasLt(device, api)
    if not found:
        raise MissingExtraError("nvidia-cublas", EXTRA, advice=_ADVICE)
    wanted = dotted_version(version or 0)
    raise EngineMismatchError(
        f"this engine calls cuBLASLt {wanted}, and here is {dotted_version(found[0])}; install "
        f"nvidia-cublas=={wanted}.*, or name its folder in SMELT_CUDA_LIBRARIES, or build the "
        "engine again here (without libraries=True it needs none)"
    )


def paths_to_try(newest_major: int) -> Iterator[str]:
    """Where the library may be: paths of files that exist, then names for the loader."""
    named = config.cuda_libraries()
    folders = [named] if named is not None else []
    try:
        package = importlib.util.find_spec("nvidia")
    except ValueError:  # it was taken out of this process
        package = None
    for base in (package and package.submodule_search_locations) or ():
        folders += [Path(base) / "cu13" / "lib", Path(base) / "cublas" / "lib"]
    names = [f"libcublasLt.so.{n}" for n in range(newest_major, _OLDEST_MAJOR - 1, -1)]
    yield from (str(f / name) for f in folders for name in names if (f / name).is_file())
    yield from names


def open_library(path: str) -> Any:
    """Return the library's functions; None where it is not, or is too old."""
    try:
        api = ctypes.CDLL(path)
        for name, kinds in _FUNCTIONS.items():
            getattr(api, name).argtypes = list(kinds)
        api.cublasLtGetVersion.restype = ctypes.c_size_t
    except (OSError, AttributeError):
        return None
    return api


def dotted_version(version: int) -> str:
    """The library's number of its version as people write it."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _algorithm(call: LibraryCall) -> Any:
    content = bytes.fromhex(call.algorithm)
    return (ctypes.c_uint64 * (_ALGORITHM_BYTES // 8)).from_buffer_copy(
        content.ljust(_ALGORITHM_BYTES, b"\0")
    )


def _destroy(device: CudaDevice, api: Any, handle: int | None) -> None:
    try:
        previous = device.select()
    except DeviceError:  # at the interpreter's end; the GPU's memory goes with it
        return
    try:
        api.cublasLtDestroy(handle)
    finally:
        device.restore(previous)
