"""Kernels for GPUs become machine code on any machine, and say what their launches need."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest

from smelt.backends import CodeCache, Refusal, WeightStore, build_plan
from smelt.backends.cuda import (
    CompilerPool,
    CudaBackend,
    CudaTarget,
    compile_kernel,
    gluon_unavailable_reason,
    target_named,
)
from smelt.devices.cuda import CudaKernel, matching_architecture
from smelt.engine import KernelSpec, Launch, parameters
from smelt.errors import BuildError, EngineFormatError, MissingExtraError, UnsupportedError
from smelt.ir import Graph
from smelt.ops import (
    GRU,
    LRN,
    Attention,
    Conv,
    ConvSum,
    ConvTranspose,
    Expand,
    Fused,
    FusedPair,
    Gather,
    Gemm,
    MaxPool,
    Relu,
    Resize,
    Softmax,
    Stage,
)
from smelt.types import DType, TensorType
from tests.support.persistent_conv_cases import conv_case
from tests.support.precision import candidates_in
from tests.support.trials import graph_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from smelt.backends import Tactic
    from smelt.backends._base import Target
    from smelt.ir import Case, Node, Op

_HOPPER = CudaTarget(90)
_PADDED = Conv((3, 3), pads=(1, 1, 1, 1))
_CASES: Final[Mapping[str, Callable[[], Iterable[Case]]]] = {
    "prefetch": ConvSum.cases,
    "attention": Attention.cases,
    "fused_pair": FusedPair.cases,
    "conv": Conv.cases,
    "conv_sum": ConvSum.cases,
    "deconv": ConvTranspose.cases,
    "depthwise": Conv.cases,
    "elementwise": Relu.cases,
    "gather": Gather.cases,
    "gemm": Gemm.cases,
    "persistent": lambda: [conv_case("pixels", Conv((1, 1)), (2, 64, 9, 8), 128)],
    "lrn": LRN.cases,
    "data_movement": Expand.cases,
    "half2": Conv.cases,
    "pool": MaxPool.cases,
    "recurrent": GRU.cases,
    "resample": Resize.cases,
    "row_reductions": Softmax.cases,
    "window_reuse": lambda: [conv_case("windows", _PADDED, (2, 64, 9, 8), 64)],
    "stem": Conv.cases,
    "stem_direct": Conv.cases,
    "fused_stem_pool": FusedPair.cases,
}
"""For each family some that it computes: kernels of the first are compiled."""
_FAMILIES: Final = [
    family.name
    for family in CudaBackend(jobs=1).families
    if family.name not in {"partition", "reference", "view"}  # these have no kernels
]
_ALSO_FOR_OLDER: Final = ("conv", "depthwise", "elementwise", "pool", "row_reductions")


def _node(op: Op, dtype: DType = DType.FLOAT16) -> tuple[Graph, Node]:
    """A graph of one node on an image; a convolution has 32 filters."""
    graph = Graph("one")
    x = graph.add_input("x", TensorType(dtype, (1, 64, 14, 14)))
    weights = []
    if isinstance(op, Conv):
        array = np.random.default_rng(0).standard_normal((32, 64, *op.kernel_shape))
        weights = [graph.add_constant(array.astype(dtype.numpy), "w")]
    node = graph.add(op, x, *weights, name="node")
    graph.outputs += node.outputs
    return graph, node


def _kernels(backend: CudaBackend, op: Op) -> list[KernelSpec]:
    graph, node = _node(op)
    return _launched(graph, backend.candidates(node, _HOPPER)[0][0], backend)


def _launched(graph: Graph, tactic: Tactic, backend: CudaBackend) -> list[KernelSpec]:
    """The kernels of a graph of one node, copies around it included."""
    plan = build_plan(graph, {graph.nodes[0]: tactic}, backend, WeightStore()).plan
    return [step.kernel for step in plan.steps if isinstance(step, Launch)]


def _kernels_of_family(backend: CudaBackend, family: str, target: CudaTarget) -> list[KernelSpec]:
    """The kernels of its first tactic for its first case in float16.

    The GPU is so small that few places are enough for programs that do several tiles.
    """
    small = replace(target, multiprocessors=1, uses_half2=family == "half2")
    graph, tactic = next(
        (graph, tactic)
        for graph in map(graph_of, _CASES[family]())
        for tactic in candidates_in(DType.FLOAT16, backend, graph.nodes[0], small)[0]
        if tactic.family == family
    )
    return _launched(graph, tactic, backend)


@pytest.fixture
def triton() -> None:
    pytest.importorskip("triton", reason="not installed: the extra cuda-build")


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("family", "capability"),
    [*((name, 90) for name in _FAMILIES), *((name, 80) for name in _ALSO_FOR_OLDER)],
)
def test_each_family_compiles_without_a_gpu(
    family: str, capability: int, compilers: CompilerPool
) -> None:
    assert family in _CASES, f"give {family} a case above: its kernels are compiled nowhere else"
    if family == "window_reuse" and (reason := gluon_unavailable_reason()):
        pytest.skip(reason)
    backend = CudaBackend(pool=compilers)
    kernels = _kernels_of_family(backend, family, CudaTarget(capability))
    assert family in {*(kernel.family for kernel in kernels), "data_movement"}, (
        "it has copies alone"
    )
    image = backend.compile(kernels, CudaTarget(capability))
    assert {symbol for symbol, _ in image.symbols} == {kernel.symbol for kernel in kernels}
    for _, offset in image.symbols:
        kernel = CudaKernel.from_bytes(image.code, offset)
        assert kernel.cubin.startswith(b"\x7fELF")
        assert b".py" not in kernel.cubin, "it names files of the machine that compiled it"
        assert kernel.threads in {32, 64, 128, 256}
        assert kernel.supports_pdl == (capability >= 90)
    assert "torch" not in sys.modules


@pytest.mark.usefixtures("triton")
def test_to_compile_in_this_process_changes_nothing_for_kernels_of_others() -> None:
    knobs = importlib.import_module("triton.knobs").compilation
    before = "TRITON_DISABLE_LINE_INFO" in os.environ, knobs.disable_line_info
    backend = CudaBackend()
    kernel, *_ = _kernels(backend, Relu())
    made = compile_kernel(kernel, backend.generate(kernel, _HOPPER), _HOPPER)
    assert b".py" not in made.cubin
    assert ("TRITON_DISABLE_LINE_INFO" in os.environ, knobs.disable_line_info) == before


def test_pixels_of_either_of_two_images_are_said_to_be_whole_vectors() -> None:
    graph = Graph("sum")
    x = graph.add_input("x", TensorType(DType.FLOAT16, (1, 64, 7, 7)))
    y = graph.add_input("y", TensorType(DType.FLOAT16, (1, 128, 14, 14)))
    shapes = (("v", (64, 64, 1, 1)), ("w", (64, 128, 1, 1)))
    v, w = (graph.add_constant(np.zeros(shape, np.float16), name) for name, shape in shapes)
    op = ConvSum(Conv((1, 1)), Conv((1, 1), (2, 2)))
    node = graph.add(op, x, v, y, w, name="node")
    graph.outputs += node.outputs
    backend = CudaBackend(jobs=1)
    tactics = [t for t in backend.candidates(node, _HOPPER)[0] if t.family == "conv_sum"]
    plan = build_plan(graph, {node: tactics[0]}, backend, WeightStore()).plan
    (kernel,) = (
        step.kernel
        for step in plan.steps
        if isinstance(step, Launch) and step.kernel.family == "conv_sum"
    )
    # Without that Triton 3.9 loads them one by one.
    assert "tl.multiple_of(tl.where(is_second" in backend.generate(kernel, _HOPPER)


@pytest.mark.usefixtures("triton")
def test_the_same_kernel_is_compiled_once_and_kept(compilers: CompilerPool) -> None:
    class Cache(CodeCache):
        def __init__(self) -> None:
            self.kept: dict[str, bytes] = {}

        def get(self, kernel: KernelSpec, target: Target, /) -> bytes | None:
            return self.kept.get(f"{kernel.symbol} {target.name}")

        def put(self, kernel: KernelSpec, target: Target, content: bytes, /) -> None:
            assert f"{kernel.symbol} {target.name}" not in self.kept
            self.kept[f"{kernel.symbol} {target.name}"] = content

    backend = CudaBackend(Cache(), pool=compilers)
    kernels = _kernels(backend, Relu())
    assert backend.compile(kernels * 2, _HOPPER) == backend.compile(kernels, _HOPPER)


@pytest.mark.usefixtures("triton")
def test_text_that_does_not_compile_names_its_kernel(
    monkeypatch: pytest.MonkeyPatch, compilers: CompilerPool
) -> None:
    backend = CudaBackend(pool=compilers)
    (kernel, *_) = _kernels(backend, Relu())
    text = "def kernel(p0, p1):\n    nonsense(p0)\n"

    def write(*_arguments: object) -> str:
        return text

    monkeypatch.setattr(CudaBackend, "generate", write)
    with pytest.raises(BuildError, match=f"kernel {kernel.symbol} does not compile"):
        backend.compile([kernel], _HOPPER)


def test_without_the_compiler_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtraError, match=r"^triton is .*'smelt-engine\[cuda-build\]'"):
        CudaBackend().compile(_kernels(CudaBackend(), Relu()), _HOPPER)


@pytest.mark.parametrize("name", ["sm_60", "hopper", "sm_9", ""])
def test_targets_that_do_not_exist_are_refused_with_an_example(name: str) -> None:
    with pytest.raises(UnsupportedError, match="cuda:sm_90"):
        target_named(name)
    assert target_named("sm_90a") == _HOPPER


def test_what_a_family_cannot_run_is_refused_with_its_reason() -> None:
    _, node = _node(MaxPool((2, 2)), DType.FLOAT64)
    tactics, refusals = CudaBackend().candidates(node, _HOPPER)
    assert all(tactic.is_host_step for tactic in tactics)
    assert [str(refusal) for refusal in refusals] == ["pool: max_pool of float64 is not supported"]
    assert all(isinstance(refusal, Refusal) for refusal in refusals)


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.INT32])
def test_what_is_no_float_of_up_to_32_bits_is_picked_by_itself(dtype: DType) -> None:
    graph = Graph("one")
    table = graph.add_input("table", TensorType(dtype, (5, 4)))
    places = graph.add_input("places", TensorType(DType.INT64, (3,)))
    rectified = Fused(Gather(), 2, (Stage(Relu(), (-1,)),))
    for op, is_offered in ((Gather(), True), (rectified, False)):
        tactics, _ = CudaBackend().candidates(graph.add(op, table, places, name=op.name), _HOPPER)
        assert ("gather" in {tactic.family for tactic in tactics}) is is_offered


@pytest.mark.usefixtures("triton")
def test_a_kernel_that_needs_more_shared_memory_than_there_is_does_not_compile(
    compilers: CompilerPool,
) -> None:
    backend = CudaBackend(pool=compilers)
    graph, node = _node(_PADDED)
    tactics, _ = backend.candidates(node, _HOPPER)
    some = next(t for t in tactics if not t.is_host_step)
    options = {**dict(some.parameters), "tile": (64, 64, 128), "num_stages": 6, "split_k": 1}
    largest = replace(some, parameters=parameters(**options))
    kernels = _launched(graph, largest, backend)
    backend.compile(kernels, _HOPPER)
    with pytest.raises(BuildError, match=r"needs \d+ bytes of .* sm_86 has at most 101376"):
        backend.compile(kernels, CudaTarget(86))


def test_several_architectures_are_a_target_that_holds_to_the_least_of_them() -> None:
    both = target_named("sm_90,sm_86")
    assert both.architecture == "sm_86,sm_90"
    assert both.capability == 86
    assert both.shared_bytes == CudaTarget(86).shared_bytes < _HOPPER.shared_bytes
    assert both.parts == (CudaTarget(86), CudaTarget(90))


@pytest.mark.usefixtures("triton")
def test_code_for_several_architectures_has_a_record_for_each(compilers: CompilerPool) -> None:
    kernels = _kernels(CudaBackend(), Relu())[:1]
    image = CudaBackend(pool=compilers).compile(kernels, target_named("sm_80,sm_90"))
    (_, offset), *_ = image.symbols
    for place, target in enumerate((CudaTarget(80), _HOPPER)):
        alone = CudaBackend(pool=compilers).compile(kernels, target)
        wanted = CudaKernel.from_bytes(alone.code, 0)
        assert CudaKernel.from_bytes(image.code, offset, place) == wanted


# ---- records

_RECORD = CudaKernel("kernel", b"\x7fELF...", 128, 4096, 2)


def test_a_record_survives_the_way_through_bytes() -> None:
    code = bytes(48) + _RECORD.to_bytes() + bytes(16)
    assert CudaKernel.from_bytes(code, 48) == _RECORD


@pytest.mark.parametrize("size", [1, 5, 16, 31])
def test_records_follow_one_another(size: int) -> None:
    second = CudaKernel("other", bytes(range(size)), 256, 0)
    code = bytes(32) + _RECORD.to_bytes() + second.to_bytes() + _RECORD.to_bytes()
    assert CudaKernel.from_bytes(code, 32, 1) == second
    assert CudaKernel.from_bytes(code, 32, 2) == _RECORD
    with pytest.raises(EngineFormatError):
        CudaKernel.from_bytes(code, 32, 3)


@pytest.mark.parametrize(
    ("built_for", "capability", "place"),
    [
        (["sm_80", "sm_90"], (9, 0), 1),
        (["sm_80", "sm_86"], (8, 9), 1),
        (["sm_80", "sm_86"], (8, 0), 0),
        (["sm_86"], (8, 0), None),
        (["sm_90"], (9, 1), None),
        (["sm_100"], (10, 3), None),
        (["sm_75", "nonsense", "sm_"], (7, 5), 0),
    ],
)
def test_a_gpu_takes_the_newest_code_that_it_runs(
    built_for: list[str], capability: tuple[int, int], place: int | None
) -> None:
    assert matching_architecture(built_for, capability) == place


_DAMAGES: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda b: b[:20], "beyond the engine's code"),
    (lambda b: b[:4], "malformed"),
    (
        lambda b: b.replace(b'"threads": 128', b'"threads":9999'),
        "it has 9999 threads in a block",
    ),
    (lambda b: b.replace(b'"threads": 128', b'"threads": 1e9'), "is not an integer"),
    (lambda b: b.replace(b'"threads"', b'"thrEads"'), "malformed"),
    (lambda b: b.replace(b"{", b"["), "malformed"),
    (lambda b: b.replace(b": 4096", b": -409"), "shared memory"),
    (lambda b: b.replace(b'words": 2', b'words": 9'), "words for scratch addresses"),
]


@pytest.mark.parametrize(("change", "message"), _DAMAGES)
def test_a_damaged_record_is_refused(change: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(EngineFormatError, match=message):
        CudaKernel.from_bytes(change(_RECORD.to_bytes()), 0)


def test_records_with_negative_offsets_are_refused() -> None:
    with pytest.raises(EngineFormatError):
        CudaKernel.from_bytes(_RECORD.to_bytes(), -4)
    with pytest.raises(EngineFormatError):
        CudaKernel.from_bytes(_RECORD.to_bytes(), 1 << 40)


def test_parameters_of_a_kernel_are_data() -> None:
    (kernel, *_) = _kernels(CudaBackend(), Relu())
    again = KernelSpec(kernel.family, parameters(**dict(kernel.parameters)))
    assert again.symbol == kernel.symbol
