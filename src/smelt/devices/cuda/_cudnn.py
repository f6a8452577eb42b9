"""Convolutions by cuDNN: an execution plan as data, which is created again when it is loaded.

The computation is an *operation graph*: a convolution, then the addition of a residual, the
addition of a bias, and ReLU, each if it is present; only the result is written. The library
proposes *engines* for it, and for each engine a choice of *knobs*: a number and pairs of numbers,
which are valid for one version only. The plan is created from them once, when a call is prepared;
some engines compile code for it.

Source: cuDNN backend library reference, "Backend Descriptor Types"; numbers as in its headers.
"""

from __future__ import annotations

import weakref
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from smelt.devices.cuda._cublaslt import load_cublaslt
from smelt.devices.cuda._cudnn_api import (
    BOOLEAN,
    CORRELATION_MODE,
    CUDNN,
    DATA_TYPE,
    DESCRIPTOR,
    FLOAT,
    FUNCTIONS,
    HANDLE,
    HEURISTIC,
    INT64,
    KNOB,
    NUMERICS,
    POINTER,
    POINTWISE,
    CudnnRefusal,
    Descriptors,
    call_api,
)
from smelt.devices.cuda._vendor_libraries import (
    ALIGNED_BYTES,
    MAJOR_OF_EXTRA,
    LibraryCall,
    LoadedLibrary,
    aligned_workspace,
    cublas_package,
    cudnn_package,
    destroy_on,
    dotted_version,
    find_version,
    open_library,
    paths_to_try,
)
from smelt.errors import DeviceError, EngineMismatchError, MissingExtraError
from smelt.types import DType, ForkLock, override

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from smelt.devices.cuda._device import CudaDevice
    from smelt.devices.cuda._stream import CudaStream
    from smelt.devices.cuda._vendor_libraries import Launcher

_NAMES: Final = ("libcudnn.so.9",)
_FOLDERS: Final = ("cudnn/lib",)
_OLDEST_VERSION: Final = 90200
"""Older versions do not report an engine's workspace before a plan is created."""

_TYPES: Final = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 9}
_PRECISIONS: Final = ("ieee", "tf32")
_FLOAT32: Final = 0
_MAX_EXTENT: Final = (1 << 31) - 1
_MAX_KNOBS: Final = 64
_AXES: Final = (2, 3)
"""Possible numbers of axes of an image besides the batch and the channels."""

# Kinds of descriptors.
_OF_POINTWISE, _OF_CONVOLUTION, _ENGINE, _CONFIGURATION, _HEURISTICS, _PLAN = 0, 1, 2, 3, 4, 5
_CHOICE, _CONVOLUTION, _OPERATION, _GRAPH, _OPERANDS, _TENSOR = 7, 10, 13, 15, 16, 17

# Attributes, with their types.
_POINTWISE_MODE, _POINTWISE_TYPE = (0, POINTWISE), (1, DATA_TYPE)
_SUM_TYPE, _MODE, _RANK = (100, DATA_TYPE), (101, CORRELATION_MODE), (106, INT64)
_DILATIONS, _STRIDES, _PADS_AFTER, _PADS_BEFORE = ((n, INT64) for n in range(102, 106))
_WISH, _WISH_GRAPH, _PROPOSALS = (200, HEURISTIC), (201, DESCRIPTOR), (202, DESCRIPTOR)
_CONFIGURED, _CHOICES, _NEEDED_WORKSPACE = (300, DESCRIPTOR), (302, DESCRIPTOR), (303, INT64)
_PLAN_HANDLE, _PLAN_CONFIGURATION, _PLAN_WORKSPACE = (400, HANDLE), (401, DESCRIPTOR), (402, INT64)
_CHOSEN_KNOB, _CHOSEN_VALUE = (600, KNOB), (601, INT64)
_ALPHA, _BETA = (700, FLOAT), (701, FLOAT)
_WINDOW, _FILTERS, _IMAGE, _CONVOLVED = ((n, DESCRIPTOR) for n in range(702, 706))
_POINTWISE_OP, _POINTWISE_X, _POINTWISE_B, _POINTWISE_Y = ((n, DESCRIPTOR) for n in range(750, 754))
_GRAPH_HANDLE, _GRAPH_OPERATIONS = (800, HANDLE), (801, DESCRIPTOR)
_ALIGNMENT, _TYPE, _EXTENTS, _STEPS = (900, INT64), (901, DATA_TYPE), (902, INT64), (903, INT64)
_NUMBER, _IS_VIRTUAL = (906, INT64), (907, BOOLEAN)
_NUMBERS, _ADDRESSES, _WORKSPACE = (1000, INT64), (1001, POINTER), (1003, POINTER)
_ENGINE_GRAPH, _ENGINE_NUMBER = (1300, DESCRIPTOR), (1301, INT64)
_ENGINE_NUMERICS = (1303, NUMERICS)

_CORRELATION: Final = 1
_ADD, _RELU = 0, 100
_MODES: Final = ((3, 1), (2,))
"""Heuristic modes: those that predict fast engines, then the fallback for all supported engines."""
_TENSOR_CORE, _NARROWS_INPUTS, _NARROWS_SUMS, _VARIES = 0, 1, 2, 4
_MAX_NOTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCall(LibraryCall):
    """``relu(convolution of images with filters + residual + bias)``, channels last, contiguous.

    The argument words are the addresses of the images, the filters, the residual, the bias, the
    result and the workspace, each if it is present.
    """

    provider: ClassVar[str] = "cudnn"

    images: tuple[int, ...]
    """Number of images, their channels, their other extents."""
    filters: tuple[int, ...]
    """Number of filters, the channels of a group, their other extents."""
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Padding before each axis, then after each."""
    relu: bool
    engine: int = 0
    knobs: tuple[tuple[int, int], ...] = ()
    """Configuration of the engine: pairs of a knob's number and its value."""

    @override
    @staticmethod
    def tuples_from(data: Mapping[str, Any]) -> dict[str, Any]:
        lists: dict[str, Any] = {name: tuple(data[name]) for name in _LISTS}
        return {**lists, "knobs": tuple((knob, value) for knob, value in data["knobs"])}

    @override
    def check(self) -> None:
        axes = len(self.images) - 2
        if axes not in _AXES or len(self.filters) != axes + 2:
            raise ValueError(
                f"the shapes of images {self.images} and filters {self.filters} are invalid"
            )
        if [len(x) for x in (self.strides, self.dilations, self.pads)] != [axes, axes, 2 * axes]:
            raise ValueError(
                f"strides {self.strides}, dilations {self.dilations} and pads {self.pads} do not "
                f"fit {axes} spatial axes"
            )
        _check_extents((*self.images, *self.filters, *self.strides, *self.dilations), 1)
        _check_extents(self.pads, 0)
        _check_extents(self.shape, 1)
        if self.images[1] % self.filters[1] or self.filters[0] % self.groups:
            raise ValueError(
                "the number of channels or of filters is not divisible by the number of groups"
            )
        self.check_common_fields()
        known = (self.factors in _TYPES, self.result in _TYPES, self.input_precision in _PRECISIONS)
        if not all(known):
            raise ValueError("an element type or the precision is unknown")
        if any(type(x) is not bool for x in (self.adds, self.bias, self.relu)):
            raise ValueError("adds, bias and relu must each be true or false")
        _check_extents((self.engine, *(knob for knob, _ in self.knobs)), 0)
        _check_extents((value for _, value in self.knobs), -_MAX_EXTENT)
        if len(self.knobs) > _MAX_KNOBS:
            raise ValueError(f"there are {len(self.knobs)} knobs; at most {_MAX_KNOBS} are allowed")

    @property
    def groups(self) -> int:
        """Number of groups into which the channels are divided."""
        return self.images[1] // self.filters[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the result, in the order of those of the images."""
        axes = len(self.strides)
        counts = [
            (extent + before + after - dilation * (taps - 1) - 1) // stride + 1
            for extent, taps, stride, dilation, before, after in zip(
                self.images[2:], self.filters[2:], self.strides, self.dilations,
                self.pads[:axes], self.pads[axes:], strict=True,
            )
        ]  # fmt: skip
        return (self.images[0], self.filters[0], *counts)


_LISTS: Final = ("images", "filters", "strides", "dilations", "pads")


@dataclass(frozen=True, slots=True)
class CudnnEngine:
    """One way that the library proposes to perform a call."""

    number: int
    knobs: tuple[tuple[int, int], ...]
    """Configuration of the engine: pairs of a knob's number and its value."""
    workspace_bytes: int


class Cudnn(LoadedLibrary):
    """The library on one GPU."""

    provider: ClassVar[str] = ConvolutionCall.provider
    prefix: ClassVar[str] = "cudnn"

    def __init__(self, device: CudaDevice, api: Any) -> None:
        super().__init__(device, api)
        self.lock = ForkLock()
        """Only one thread at a time may use a handle, because it holds the stream."""

    @override
    def call(self, name: str, *arguments: Any) -> None:
        call_api(self.api, name, *arguments)

    def engines(self, call: ConvolutionCall, *, count: int) -> list[CudnnEngine]:
        """Return at most ``count`` engines that the library proposes for a call.

        The best guess comes first. The list is empty if the library cannot perform the call. It
        omits engines whose results vary, that round sums, or that do not multiply in the precision
        of the call.
        """
        with self._described(call) as (made, graph):
            if graph is None:
                return []
            for modes in _MODES:
                proposed = (e for mode in modes for e in self._proposals(made, graph, mode, call))
                if found := _first_of(proposed, count):
                    return found
        return []

    def _proposals(
        self, made: Descriptors, graph: int, mode: int, call: ConvolutionCall
    ) -> Iterator[CudnnEngine]:
        try:
            heuristics = made.new(_HEURISTICS, (_WISH_GRAPH, [graph]), (_WISH, [mode]))
        except CudnnRefusal:
            return
        for configuration in made.filled(heuristics, _PROPOSALS, _CONFIGURATION):
            (engine,) = made.filled(configuration, _CONFIGURED, _ENGINE)
            if _is_exact(call, made.read(engine, _ENGINE_NUMERICS, _MAX_NOTES)):
                choices = made.filled(configuration, _CHOICES, _CHOICE, most=_MAX_KNOBS)
                yield CudnnEngine(
                    made.read(engine, _ENGINE_NUMBER)[0],
                    tuple(
                        (made.read(x, _CHOSEN_KNOB)[0], made.read(x, _CHOSEN_VALUE)[0])
                        for x in choices
                    ),
                    made.read(configuration, _NEEDED_WORKSPACE)[0],
                )

    @override
    def prepare(self, call: ConvolutionCall, /) -> Launcher:
        """Create the plan of a call; the returned function queues it on its operands.

        Raises:
            EngineMismatchError: the engine of the call cannot compute this convolution on this GPU.
        """
        with self._described(call) as (made, graph):
            plan = None if graph is None else self._plan(made, graph, call)
            if plan is None or made.read(plan, _PLAN_WORKSPACE)[0] > call.workspace_bytes:
                raise EngineMismatchError(
                    "cuDNN does not support a convolution of this smelt engine on "
                    f"{self.device!r} with cuDNN engine {call.engine}; build the engine again here"
                )
            return _ExecutionPlan(self, call, plan, made.kept()).launch

    def _plan(self, made: Descriptors, graph: int, call: ConvolutionCall) -> int | None:
        try:
            engine = made.new(_ENGINE, (_ENGINE_GRAPH, [graph]), (_ENGINE_NUMBER, [call.engine]))
            choices = [
                made.new(_CHOICE, (_CHOSEN_KNOB, [k]), (_CHOSEN_VALUE, [v])) for k, v in call.knobs
            ]
            configured = [(_CONFIGURED, [engine])]
            if choices:
                configured.append((_CHOICES, choices))
            plan = (_PLAN_CONFIGURATION, [made.new(_CONFIGURATION, *configured)])
            return made.new(_PLAN, (_PLAN_HANDLE, [self.handle]), plan)
        except CudnnRefusal:
            return None

    @contextmanager
    def _described(self, call: ConvolutionCall) -> Generator[tuple[Descriptors, int | None]]:
        """Yield temporary descriptors, and the graph of a call or None if it is refused."""
        with self.lock, self.device.selected(), closing(Descriptors(self.api)) as made:
            graph: int | None = None
            with suppress(CudnnRefusal):
                graph = _graph(made, call, self.handle)
            yield made, graph


class _ExecutionPlan:
    """A call with its plan; the descriptors of the plan live as long as the object."""

    def __init__(
        self, library: Cudnn, call: ConvolutionCall, plan: int, descriptors: Descriptors
    ) -> None:
        self._library, self._call, self._plan = library, call, plan
        weakref.finalize(self, _drop, library, descriptors).atexit = False

    def launch(self, words: Sequence[int], stream: CudaStream) -> None:
        """Queue the call on its operands.

        Raises:
            CudnnError: the library refuses it.
        """
        library, call = self._library, self._call
        addresses = [int(word) for word in words]
        workspace = aligned_workspace(addresses.pop()) if call.workspace_bytes else 0
        with library.lock, library.device.selected(), closing(Descriptors(library.api)) as made:
            operands = made.new(
                _OPERANDS,
                (_NUMBERS, _operands(call)),
                (_ADDRESSES, addresses),
                (_WORKSPACE, [workspace]),
            )
            library.call("cudnnSetStream", library.handle, int(stream.handle))
            library.call("cudnnBackendExecute", library.handle, self._plan, operands)


def open_cudnn(device: CudaDevice, version: int | None = None) -> Cudnn:
    """Return the library on a GPU, of the given version or of the first that is found.

    Raises:
        MissingExtraError: the library is not installed, or a matching cuBLASLt is not.
        EngineMismatchError: the given version is not installed.
        DeviceError: the library or the driver is too old, the library is for another CUDA than the
            other libraries, or it cannot be started.
    """
    # cuDNN calls cuBLASLt, and ends the process if its own search does not find it. Any version
    # serves until cuDNN reports the version that it is for.
    load_cublaslt(device)
    paths = paths_to_try(_NAMES, _FOLDERS)
    opened = (open_library(path, FUNCTIONS, "cudnnGetVersion") for path in paths)
    package = cudnn_package(min(device.driver.version // 1000, MAJOR_OF_EXTRA))
    api = find_version(CUDNN, package, opened, Cudnn.version_of, version, oldest=_OLDEST_VERSION)
    made_for = int(api.cudnnGetCudartVersion()) // 1000
    try:
        load_cublaslt(device, major=made_for)
    except MissingExtraError as error:
        if cudnn_package(made_for) == package:
            raise
        found = f"{CUDNN} {dotted_version(Cudnn.version_of(api))} is installed for CUDA {made_for}"
        raise DeviceError(
            f"{found}, whose cuBLASLt is not installed; install both for one CUDA version: run "
            f"pip uninstall {cudnn_package(made_for)}, then pip install --force-reinstall "
            f"{package} (the two packages have the same files); or run pip install "
            f"{cublas_package(made_for)}"
        ) from error
    return Cudnn(device, api)


_IMAGES_NUMBER, _FILTERS_NUMBER, _RESIDUAL_NUMBER, _BIAS_NUMBER, _RESULT_NUMBER = range(1, 6)
"""Numbers of operands in a graph; the numbers of tensors between its operations follow."""


def _operands(call: ConvolutionCall) -> list[int]:
    """Return the numbers of the operands of a call, in the order of its argument words."""
    middle = [_RESIDUAL_NUMBER] * call.adds + [_BIAS_NUMBER] * call.bias
    return [_IMAGES_NUMBER, _FILTERS_NUMBER, *middle, _RESULT_NUMBER]


def _graph(made: Descriptors, call: ConvolutionCall, handle: int | None) -> int:
    """Return the operations of a call as a graph."""
    shape, types = call.shape, _TYPES
    kinds = {
        _IMAGES_NUMBER: (call.images, types[call.factors]),
        _FILTERS_NUMBER: (call.filters, types[call.factors]),
        _RESIDUAL_NUMBER: (shape, types[call.result]),
        _BIAS_NUMBER: ((1, shape[1], *[1] * len(call.strides)), types[call.result]),
        _RESULT_NUMBER: (shape, types[call.result]),
    }
    tensors = {number: _tensor(made, number, *kinds[number]) for number in _operands(call)}
    behind: list[tuple[int, int | None]] = []
    behind += [(_ADD, _RESIDUAL_NUMBER)] * call.adds + [(_ADD, _BIAS_NUMBER)] * call.bias
    behind += [(_RELU, None)] * call.relu
    between = [
        _tensor(made, _RESULT_NUMBER + 1 + place, shape, _FLOAT32, is_virtual=True)
        for place in range(len(behind))
    ]
    results = [*between, tensors[_RESULT_NUMBER]]
    operations = [_convolution(made, call, tensors, results[0])]
    for (mode, operand), before, after in zip(behind, results, results[1:], strict=False):
        other = None if operand is None else tensors[operand]
        operations.append(_pointwise(made, mode, before, other, after))
    return made.new(_GRAPH, (_GRAPH_HANDLE, [handle]), (_GRAPH_OPERATIONS, operations))


def _tensor(
    made: Descriptors, number: int, shape: Sequence[int], kind: int, *, is_virtual: bool = False
) -> int:
    """Return the descriptor of a tensor with channels last."""
    channels = shape[1]
    steps = [prod(shape[axis + 1 :]) * channels for axis in range(2, len(shape))]
    return made.new(
        _TENSOR,
        (_TYPE, [kind]),
        (_EXTENTS, shape),
        (_STEPS, [prod(shape[1:]), 1, *steps]),
        (_NUMBER, [number]),
        (_ALIGNMENT, [ALIGNED_BYTES]),
        (_IS_VIRTUAL, [is_virtual]),
    )


def _convolution(
    made: Descriptors, call: ConvolutionCall, tensors: Mapping[int, int], result: int
) -> int:
    axes = len(call.strides)
    window = made.new(
        _OF_CONVOLUTION,
        (_SUM_TYPE, [_FLOAT32]),
        (_MODE, [_CORRELATION]),
        (_RANK, [axes]),
        (_DILATIONS, call.dilations),
        (_STRIDES, call.strides),
        (_PADS_BEFORE, call.pads[:axes]),
        (_PADS_AFTER, call.pads[axes:]),
    )
    return made.new(
        _CONVOLUTION,
        (_ALPHA, [1.0]),
        (_BETA, [0.0]),
        (_WINDOW, [window]),
        (_IMAGE, [tensors[_IMAGES_NUMBER]]),
        (_FILTERS, [tensors[_FILTERS_NUMBER]]),
        (_CONVOLVED, [result]),
    )


def _pointwise(made: Descriptors, mode: int, before: int, other: int | None, after: int) -> int:
    """Return an operation on each element, with another tensor if there is one."""
    what = made.new(_OF_POINTWISE, (_POINTWISE_MODE, [mode]), (_POINTWISE_TYPE, [_FLOAT32]))
    operands = [(_POINTWISE_OP, what), (_POINTWISE_X, before), (_POINTWISE_Y, after)]
    operands += [] if other is None else [(_POINTWISE_B, other)]
    return made.new(_OPERATION, *((name, [place]) for name, place in operands))


def _first_of(engines: Iterator[CudnnEngine], count: int) -> list[CudnnEngine]:
    """Return the first ``count`` different engines."""
    found: dict[CudnnEngine, None] = {}
    for engine in engines:
        found[engine] = None
        if len(found) == count:
            break
    return list(found)


def _is_exact(call: ConvolutionCall, notes: Sequence[int]) -> bool:
    """Return whether an engine with these notes computes a call as specified, repeatably."""
    if not {_VARIES, _NARROWS_SUMS}.isdisjoint(notes):
        return False
    rounds = not {_TENSOR_CORE, _NARROWS_INPUTS}.isdisjoint(notes)
    return call.factors is not DType.FLOAT32 or rounds == (call.input_precision == "tf32")


def _check_extents(numbers: Iterable[Any], least: int) -> None:
    if any(type(x) is not int or not least <= x <= _MAX_EXTENT for x in numbers):
        raise ValueError("an extent, stride, dilation, pad, engine or knob is out of range")


def _drop(library: Cudnn, descriptors: Descriptors) -> None:
    with library.lock:
        destroy_on(library.device, lambda _: descriptors.close(), None)
