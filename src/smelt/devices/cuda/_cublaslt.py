"""Matrix products by cuBLASLt: a library call as data, which is checked when it is loaded.

A call is self-contained. It includes the library's algorithm: 64 bytes that are valid for one
version only.

Matrices are row-major here and column-major in the library, so the library computes the transposed
result from the factors in reverse order.

Source: cuBLAS library reference, "Using the cuBLASLt API".
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from smelt.devices.cuda._driver import dotted_cuda
from smelt.devices.cuda._vendor_libraries import (
    ALIGNED_BYTES,
    EXTRA,
    LIBRARIES_ARGUMENT,
    MAJOR_OF_EXTRA,
    LibraryCall,
    LibraryError,
    LoadedLibrary,
    aligned_workspace,
    cublas_package,
    cudnn_package,
    find_version,
    open_library,
    paths_to_try,
)
from smelt.errors import DeviceError, EngineMismatchError, MissingExtraError
from smelt.types import DType, override, shown

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream
    from smelt.devices.cuda._vendor_libraries import Launcher

_TITLE: Final = "cuBLASLt"
_FOLDERS: Final = ("cu13/lib", "cublas/lib")
_OLDEST_MAJOR: Final = 12
_TYPES: Final = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14}
_COMPUTE: Final = {"ieee": 68, "tf32": 77}
"""Sums are float32; the library may round float32 factors to the named precision."""
_ACTIVATIONS: Final = {"": 0, "relu": 2, "gelu": 32}
"""The library's gelu uses the hyperbolic tangent."""
_DEFAULT_EPILOGUE, _BIAS_EPILOGUE = 1, 4
_FLOAT32: Final = 0
LARGEST_ALPHA: Final = float(np.finfo(np.float32).max)
"""Largest factor of a product."""
_DESC_TRANSPOSES: Final = (3, 4)
_DESC_EPILOGUE, _DESC_BIAS = 7, 8
_LAYOUT_BATCH_COUNT, _LAYOUT_BATCH_STRIDE = 5, 6
_PREFER_WORKSPACE, _PREFER_REDUCTIONS = 1, 3
_PREFER_ALIGNMENTS: Final = (5, 6, 7, 8)
_SUMS_IN_FLOAT32: Final = 2
"""The only reduction scheme for partial sums that does not round them."""
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
"""Statuses by which the library refuses a product, as opposed to reporting an error of its own."""

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
"""Argument types of each function; each returns a status."""


class CublasError(LibraryError):
    """cuBLASLt refused a call."""

    def __init__(self, what: str, status: int) -> None:
        name = _STATUSES.get(status, "an undocumented status")
        super().__init__(_TITLE, what, status, name)


class _HeuristicResult(ctypes.Structure):
    """The library's description of an algorithm: cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint8 * _ALGORITHM_BYTES),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulCall(LibraryCall):
    """``activation(alpha * first @ second + added + bias)``, on stacks of contiguous matrices.

    The argument words are the addresses of the first factor, the second factor, the added tensor,
    the bias, the result and the workspace, each if it is present.
    """

    provider: ClassVar[str] = "cublaslt"

    matrices: int
    """Number of matrices of each stack."""
    rows: int
    columns: int
    depth: int
    transposed: tuple[bool, bool]
    """Whether each factor is stored transposed: the first as (depth, rows), the second as
    (columns, depth)."""
    alpha: float
    activation: str
    """"", "relu" or "gelu" (with the hyperbolic tangent)."""
    algorithm: str = ""
    """The library's encoded algorithm in hexadecimal, without zeros at its end."""

    @override
    @staticmethod
    def tuples_from(data: Mapping[str, Any]) -> dict[str, Any]:
        first, second = data["transposed"]
        return {"transposed": (bool(first), bool(second))}

    @override
    def check(self) -> None:
        sizes = (self.matrices, self.rows, self.columns, self.depth)
        if any(type(size) is not int or not 0 < size < 1 << 31 for size in sizes):
            raise ValueError(f"the extents {sizes} of the matrices are invalid")
        self.check_common_fields()
        known = (
            self.factors in _TYPES and self.result in _TYPES
            and self.input_precision in _COMPUTE and self.activation in _ACTIVATIONS
        )  # fmt: skip
        if not known:
            raise ValueError("an element type, the precision or the activation is unknown")
        if (type(self.adds), type(self.bias)) != (bool, bool):
            raise ValueError("adds and bias must each be true or false")
        # The comparison is false for NaN, too.
        if type(self.alpha) is not float or not abs(self.alpha) <= LARGEST_ALPHA:
            raise ValueError(
                f"alpha is {shown(self.alpha)}; it must be a float within the range of float32"
            )
        if len(bytes.fromhex(self.algorithm)) > _ALGORITHM_BYTES:
            raise ValueError(f"the algorithm has more than {_ALGORITHM_BYTES} bytes")


class CublasLt(LoadedLibrary):
    """The library on one GPU."""

    provider: ClassVar[str] = MatmulCall.provider
    prefix: ClassVar[str] = "cublasLt"

    @override
    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.api, name)(*arguments)
        if status:
            raise CublasError(name, status)

    def algorithms(
        self, call: MatmulCall, *, count: int, max_workspace_bytes: int
    ) -> list[tuple[str, int]]:
        """Return the algorithms that the library proposes for a call, with their workspaces.

        The best guess comes first. The list is empty if the library cannot perform the call.
        """
        found = (_HeuristicResult * count)()
        number = ctypes.c_int()
        with (
            self._described(call, ALIGNED_BYTES) as described,
            self._made("MatmulPreference") as wishes,
        ):
            wish = partial(self._set, "MatmulPreference", wishes)
            wish(_PREFER_WORKSPACE, ctypes.c_uint64(max_workspace_bytes))
            wish(_PREFER_REDUCTIONS, ctypes.c_uint32(_SUMS_IN_FLOAT32))
            for kind in _PREFER_ALIGNMENTS:
                wish(kind, ctypes.c_uint32(ALIGNED_BYTES))
            addresses = ctypes.addressof(found), ctypes.addressof(number)
            try:
                self.call(
                    "cublasLtMatmulAlgoGetHeuristic",
                    self.handle, *described, wishes, count, *addresses,
                )  # fmt: skip
            except CublasError as error:
                if error.status in _NOT_SUPPORTED:
                    return []
                raise
            proposals: list[tuple[str, int]] = []
            for result in found[: number.value]:
                # For some algorithms the library reports a larger workspace than in its proposal.
                required = self._required_workspace_bytes(described, ctypes.addressof(result))
                if not result.state and required is not None and required <= max_workspace_bytes:
                    algorithm = bytes(result.algorithm).rstrip(b"\0").hex()
                    proposals.append((algorithm, max(required, int(result.workspace_bytes))))
        return proposals

    def _required_workspace_bytes(self, described: Sequence[int], algorithm: int) -> int | None:
        """Return an algorithm's workspace; None if it cannot compute the described product."""
        result = _HeuristicResult()
        status = self.api.cublasLtMatmulAlgoCheck(
            self.handle, *described, algorithm, ctypes.addressof(result)
        )
        return None if status or result.state else int(result.workspace_bytes)

    @override
    def prepare(self, call: MatmulCall, /) -> Launcher:
        """Prepare a call; the returned function queues it on its operands.

        Raises:
            EngineMismatchError: the algorithm of the call cannot compute this product on this GPU.
        """
        algorithm = _algorithm(call)
        with self._described(call, ALIGNED_BYTES) as described:
            required_bytes = self._required_workspace_bytes(described, ctypes.addressof(algorithm))
        if required_bytes is None or required_bytes > call.workspace_bytes:
            raise EngineMismatchError(
                f"cuBLASLt does not support a GEMM of this engine on {self.device!r}; build the "
                "engine again here"
            )
        return partial(self._launch, call)

    def _launch(self, call: MatmulCall, words: Sequence[int], stream: CudaStream) -> None:
        addresses = iter(map(int, words))
        first, second = next(addresses), next(addresses)
        added = next(addresses) if call.adds else None
        bias = next(addresses) if call.bias else 0
        result = next(addresses)
        workspace = aligned_workspace(next(addresses, 0))
        alpha, beta = ctypes.c_float(call.alpha), ctypes.c_float(call.adds)
        algorithm = _algorithm(call)
        with self._described(call, bias) as (what, *layouts):
            self.call(
                "cublasLtMatmul", self.handle, what, ctypes.addressof(alpha),
                second, layouts[0], first, layouts[1], ctypes.addressof(beta),
                result if added is None else added, layouts[2], result, layouts[3],
                ctypes.addressof(algorithm), workspace, call.workspace_bytes, int(stream.handle),
            )  # fmt: skip

    # ---- descriptors

    @contextmanager
    def _described(self, call: MatmulCall, bias: int) -> Generator[tuple[int, ...]]:
        """Yield descriptors of the computation, the factors, the added tensor and the result."""
        first, second = call.transposed
        factors, result = _TYPES[call.factors], _TYPES[call.result]
        shapes = [(call.columns, call.depth), (call.depth, call.rows)]
        shapes = [s[::-1] if t else s for s, t in zip(shapes, (second, first), strict=True)]
        layouts = [(factors, height, width) for height, width in shapes]
        layouts += [(result, call.columns, call.rows)] * 2
        epilogue = _ACTIVATIONS[call.activation] | _BIAS_EPILOGUE * call.bias
        with self.device.selected(), ExitStack() as stack:
            compute = _COMPUTE[call.input_precision]
            what = stack.enter_context(self._made("MatmulDesc", compute, _FLOAT32))
            describe = partial(self._set, "MatmulDesc", what)
            for kind, transposed in zip(_DESC_TRANSPOSES, (second, first), strict=True):
                describe(kind, ctypes.c_int32(int(transposed)))
            describe(_DESC_EPILOGUE, ctypes.c_uint32(epilogue or _DEFAULT_EPILOGUE))
            if call.bias:
                describe(_DESC_BIAS, ctypes.c_uint64(bias))
            made = [stack.enter_context(self._layout(x, call.matrices)) for x in layouts]
            yield (what, *made)

    @contextmanager
    def _made(self, kind: str, *arguments: int) -> Generator[int]:
        """Create a "MatmulDesc", a "MatmulPreference" or a "MatrixLayout" of the library."""
        descriptor = ctypes.c_void_p()
        self.call(f"cublasLt{kind}Create", ctypes.addressof(descriptor), *arguments)
        try:
            yield descriptor.value or 0
        finally:
            self.call(f"cublasLt{kind}Destroy", descriptor.value)

    def _set(self, kind: str, descriptor: int, attribute: int, value: Any) -> None:
        content = ctypes.addressof(value), ctypes.sizeof(value)
        self.call(f"cublasLt{kind}SetAttribute", descriptor, attribute, *content)

    @contextmanager
    def _layout(self, matrix: tuple[int, int, int], matrices: int) -> Generator[int]:
        kind, height, width = matrix
        with self._made("MatrixLayout", kind, height, width, height) as layout:
            if matrices > 1:
                count, stride = ctypes.c_int32(matrices), ctypes.c_int64(height * width)
                self._set("MatrixLayout", layout, _LAYOUT_BATCH_COUNT, count)
                self._set("MatrixLayout", layout, _LAYOUT_BATCH_STRIDE, stride)
            yield layout


def open_cublaslt(device: CudaDevice, version: int | None = None) -> CublasLt:
    """Return the library on a GPU. Raises as `load_cublaslt`."""
    return CublasLt(device, load_cublaslt(device, version))


def load_cublaslt(device: CudaDevice, version: int | None = None, major: int | None = None) -> Any:
    """Return the library's functions, of the given version or of the first that is found.

    If a folder has several versions, the newest one that the driver supports comes first.

    Args:
        device: GPU to use.
        version: version number in the library's own format.
        major: major version of the CUDA that the library is for.

    Raises:
        MissingExtraError: the library is not installed.
        EngineMismatchError: the given version is not installed.
        DeviceError: the driver is too old for the library, or for the packages of the extra.
    """
    newest = device.driver.version // 1000
    wanted = version // 10000 if version is not None else major
    if wanted is not None and wanted > newest:
        raise _driver_is_too_old(device, f"{_TITLE} {wanted}")
    majors = range(newest, _OLDEST_MAJOR - 1, -1) if major is None else (major,)
    paths = paths_to_try([f"libcublasLt.so.{number}" for number in majors], _FOLDERS)
    opened = (open_library(path, _FUNCTIONS, "cublasLtGetVersion") for path in paths)
    title = _TITLE if major is None else f"{_TITLE} {major}"
    try:
        return find_version(
            title, cublas_package(wanted or MAJOR_OF_EXTRA), opened, CublasLt.version_of, version
        )
    except MissingExtraError as error:
        if newest >= MAJOR_OF_EXTRA:
            raise
        raise _driver_is_too_old(device, f"the libraries of smelt's extra {EXTRA!r}") from error


def _driver_is_too_old(device: CudaDevice, what: str) -> DeviceError:
    newest = device.driver.version // 1000
    return DeviceError(
        f"the NVIDIA driver supports CUDA {dotted_cuda(device.driver.version)}, which is too old "
        f"for {what}; update the driver to CUDA {MAJOR_OF_EXTRA}.0 or newer, or install "
        f"{cublas_package(newest)} and {cudnn_package(newest)} instead of the extra and build the "
        f"engine again here, or build it without {LIBRARIES_ARGUMENT}",
        arguments=[LIBRARIES_ARGUMENT],
    )


def _algorithm(call: MatmulCall) -> Any:
    content = bytes.fromhex(call.algorithm)
    return (ctypes.c_uint64 * (_ALGORITHM_BYTES // 8)).from_buffer_copy(
        content.ljust(_ALGORITHM_BYTES, b"\0")
    )
