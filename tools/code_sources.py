"""What the manifest of generated code is made of: the one file of it that knows smelt.

Whoever renames or rearranges smelt changes the calls in here, and neither the keys that it gives
(ops, cases, modes, targets, models) nor `code_digests` or `code_manifest`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import os
import tempfile
import warnings
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np

from smelt.backends import WeightStore, build_plan, with_storage_dtype
from smelt.backends.cpu import CpuBackend, compile_ir, compile_runtime
from smelt.backends.cpu import target_named as cpu_target_named
from smelt.backends.cuda import CudaBackend, gluon_unavailable_reason
from smelt.backends.cuda import target_named as cuda_target_named
from smelt.devices.cuda import CudaKernel
from smelt.engine import Launch
from smelt.errors import BuildError, ShapeError
from smelt.ops import ALL_OPS, FusedPair
from smelt.passes import pipeline, run_passes
from smelt.types import DType, TensorType
from tests.support import (
    fused_pair_cases,
    persistent_conv_cases,
    prefetch_gemm_cases,
    window_reuse_cases,
)
from tests.support.dense_cases import DENSE_CASES
from tests.support.precision import candidates_in
from tests.support.trials import bound_symbols, check_range, graph_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smelt.backends import Tactic
    from smelt.engine import KernelSpec
    from smelt.ir import Case, Graph, Node, Op
    from smelt.runtime import Engine

ROOT: Final = Path(__file__).resolve().parent.parent

RICHEST: Final = "x86-64-v4+vnni+bf16"
"""No named level of x86-64 has the instructions for bytes and bfloat16; this target has both."""
CPU_TARGETS: Final = ("x86-64-v3", "x86-64-v4", RICHEST, "aarch64")
CUDA_TARGETS: Final = ("sm_90",)
CPU_NETWORK_TARGETS: Final = ("x86-64", "x86-64-v2", *CPU_TARGETS)
CUDA_NETWORK_TARGETS: Final = ("sm_80", "sm_90", "sm_120")

_MORE_FEATURES: Final = ("avx512bf16", "avx512vnni")
_NOT_OF_THE_NODE: Final = frozenset({"reformat", "halo"})
"""Kinds of layers that stand between nodes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The text of one kernel, and what else decides its machine code."""

    language: str
    """Of the text: "llvm" or "triton"."""
    text: str
    options: tuple[str, ...]
    target: str
    spec: KernelSpec = field(repr=False)

    @property
    def identity(self) -> object:
        """Equal for kernels whose text and options are equal, found without comparing texts."""
        return (self.target, self.spec)


Candidate = tuple[Kernel | None, ...]
"""The steps that compute a node, in order; None is one that runs the reference in Python."""


@dataclass(frozen=True, slots=True)
class Request:
    """One node that a backend is asked to run, and every way that it offers."""

    mode: str
    case: int
    label: str
    """For messages alone."""
    candidates: tuple[Candidate, ...]
    copies: tuple[Kernel, ...]
    """What brings operands into the formats of candidates, and results out of them."""


@dataclass(frozen=True, slots=True)
class BuiltNetwork:
    """The generated code of one engine."""

    code: tuple[bytes, ...]
    """The linked image, or one after another each kernel's parts for the digest."""
    cubins: tuple[bytes, ...]
    """Cubins among them; () for processors."""
    kernels: tuple[Kernel, ...]
    """In the order of their first use."""


def versions() -> dict[str, str]:
    """The versions of the compilers, on which machine code depends."""
    return {name: importlib.metadata.version(name) for name in ("llvmlite", "triton")}


def use_private_home(folder: str) -> None:
    """Keep the user's caches, keys and settings out of this process."""
    for name in [name for name in os.environ if name.startswith("SMELT_")]:
        if name != "SMELT_SHARED":
            del os.environ[name]
    os.environ["HOME"] = folder


# ---- conformance: what is asked for


def unit_names(target: str) -> list[str]:
    """What requests are grouped by: every op, and cases beside those of ops."""
    groups = ["sizes of networks", *(_CUDA_GROUPS if target in CUDA_TARGETS else ())]
    return [*(op.name for op in ALL_OPS), *groups]


def requests_of(target: str, unit: str) -> Iterator[Request]:
    """Every request of a unit, the same ones in the same order in every process."""
    cases = cases_of(unit)
    with warnings.catch_warnings(), np.errstate(all="ignore"), _every_language():
        warnings.simplefilter("ignore")
        for mode in _modes_of(target, unit):
            for (number, case), is_open in itertools.product(enumerate(cases), (False, True)):
                if (made := _request(mode, number, case, is_open=is_open)) is not None:
                    yield made


def families_of(target: str, unit: str) -> Iterator[tuple[Op, frozenset[str], bool]]:
    """The op of each case of a unit, and the families of kernels that compute it in any mode.

    The families compute the op itself if the last item is true, else what passes make of it. A case
    without elements is left out: it always runs the reference.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"), _every_language():
        warnings.simplefilter("ignore")
        modes = [mode for mode in _modes_of(target, unit) if not mode.turns]
        for case in cases_of(unit):
            graph = graph_of(case)
            (node,) = graph.nodes
            values = [v for v in (*node.inputs, *node.outputs) if v and v.constant is None]
            if any(isinstance(v.type, TensorType) and 0 in v.type.shape for v in values):
                continue
            found = frozenset[str]().union(*(_kernel_families(node, mode) for mode in modes))
            yield case.op, found or _families_after_passes(graph, modes[0]), bool(found)


def _kernel_families(node: Node, mode: _Mode) -> set[str]:
    tactics = candidates_in(mode.storage, _backend(mode.target_name), node, mode.target)[0]
    return {tactic.family for tactic in tactics if not tactic.is_host_step}


def _families_after_passes(graph: Graph, mode: _Mode) -> frozenset[str]:
    """The families that compute a graph after the passes; none if a node has no kernel."""
    backend = _backend(mode.target_name)
    run_passes(
        graph,
        pipeline(
            non_fusable_ops=backend.non_fusable_ops,
            supported_composite_ops=backend.supported_composite_ops,
        ),
    )
    found = [_kernel_families(node, mode) for node in graph.nodes]
    return frozenset[str]().union(*found) if all(found) else frozenset()


def _every_language() -> Any:
    """Text in Triton's lower language is written whether or not this Triton compiles it."""
    return mock.patch(
        "smelt.backends.cuda.families.window_reuse_conv.gluon_unavailable_reason", return_value=None
    )


_CUDA_GROUPS: Final = {
    "persistent convolutions": (persistent_conv_cases, ("_CASES", "_STEMS", "_half")),
    "prefetched products": (prefetch_gemm_cases, ("_CASES", "_half")),
    "sliding windows": (window_reuse_cases, ("_CASES", "_half")),
    "fused pairs": (fused_pair_cases, ("_half", "_pooled_half")),
}
"""Cases that the tests add for kernels which the ops' own small cases do not reach."""


def cases_of(unit: str) -> Sequence[Case]:
    """The cases of a unit, in the order of their numbers."""
    if unit == "sizes of networks":
        return DENSE_CASES
    if unit not in _CUDA_GROUPS:
        return list({op.name: op for op in ALL_OPS}[unit].cases())
    module, names = _CUDA_GROUPS[unit]
    found: list[Case] = []
    if unit == "fused pairs":
        found += FusedPair.cases()
    for name in names:
        given: Any = getattr(module, name)
        found += [given()] if name.islower() else given  # a function's name is lower case
    return found


@dataclass(frozen=True, slots=True)
class _Mode:
    """How tensors of float32 are stored and multiplied, and on which target."""

    name: str
    target_name: str
    target: Any
    storage: DType = DType.FLOAT32
    plain: Any = None
    """The target without what the mode is about: candidates that it has too are not repeated."""
    turns: bool = False
    """Whether kernels begin with their last tiles."""


def _modes_of(target: str, unit: str) -> Iterator[_Mode]:
    if target not in CUDA_TARGETS:
        goal = cpu_target(target)
        yield _Mode("float32", target, goal)
        for dtype in (DType.FLOAT16, DType.BFLOAT16):
            if goal.storage(dtype) is dtype:
                yield _Mode(dtype.value, target, goal, dtype)
        return
    whole = cuda_target_named(target)
    yield from _cuda_modes("", target, whole)
    if unit in _CUDA_GROUPS:
        # On so small a GPU each program has several tiles, and other loops are written.
        yield from _cuda_modes(" on a small GPU", target, replace(whole, multiprocessors=1))


def _cuda_modes(suffix: str, name: str, target: Any) -> Iterator[_Mode]:
    half = DType.FLOAT16
    yield _Mode(f"float32{suffix}", name, target)
    yield _Mode(f"tf32{suffix}", name, replace(target, allows_tf32=True), plain=target)
    yield _Mode(f"float16{suffix}", name, target, half)
    yield _Mode(f"bfloat16{suffix}", name, target, DType.BFLOAT16)
    yield _Mode(f"half2{suffix}", name, replace(target, uses_half2=True), half, plain=target)
    yield _Mode(f"float16 reversed{suffix}", name, target, half, turns=True)


# ---- conformance: what is offered


def _request(mode: _Mode, number: int, case: Case, *, is_open: bool) -> Request | None:
    """The request; None where the case has no such batch, or nothing is offered in the mode."""
    try:
        graph, symbols = _graph_of(case, is_open=is_open)
    except ShapeError:
        return None
    (node,) = graph.nodes
    made = [_lowered(mode, graph, symbols, tactic) for tactic in _tactics(mode, node)]
    if mode.turns:
        forwards = replace(mode, turns=False)
        plain = [_lowered(forwards, graph, symbols, t)[0] for t in _tactics(forwards, node)]
        made = [pair for pair, other in zip(made, plain, strict=True) if pair[0] != other]
    candidates = tuple(candidate for candidate, _ in made)
    if not candidates:
        return None
    copies = {kernel.identity: kernel for _, found in made for kernel in found}
    name = f"{mode.name}, any batch" if is_open else mode.name
    return Request(name, number, case.name, candidates, tuple(copies.values()))


def _graph_of(case: Case, *, is_open: bool) -> tuple[Graph, tuple[tuple[str, int, int], ...]]:
    graph = graph_of(case, symbolic=is_open)
    symbols: tuple[tuple[str, int, int], ...] = ()
    if is_open:
        batches = {
            array.shape[0]
            for index, array in enumerate(case.inputs)
            if array is not None and array.ndim > 1 and index not in case.constants
        }
        symbols = (("batch", 1, max(batches) + 2),)
        check_range(graph, symbols)
    return graph, (*symbols, *bound_symbols(graph, case.op.reference(*case.inputs)))


def _tactics(mode: _Mode, node: Node) -> list[Tactic]:
    """What the backend offers in a mode, best guess first, without what it offers anyway."""
    backend = _backend(mode.target_name)
    offered = candidates_in(mode.storage, backend, node, mode.target)[0]
    known: list[Tactic] = []
    if mode.plain is not None:
        known = candidates_in(mode.storage, backend, node, mode.plain)[0]
    elif mode.storage is not DType.FLOAT32:
        known = candidates_in(DType.FLOAT32, backend, node, mode.target)[0]
    own = [tactic for tactic in offered if tactic not in known]
    if mode.storage is not DType.FLOAT32:
        # Else results, which nothing but a binding takes here, would stay float32.
        own = [
            with_storage_dtype(mode.storage, node, tactic, narrows_all_outputs=True)
            for tactic in own
        ]
    if mode.turns:
        own = [replace(tactic, reversed_tile_order=True) for tactic in own]
    return own


def _lowered(
    mode: _Mode, graph: Graph, symbols: tuple[tuple[str, int, int], ...], tactic: Tactic
) -> tuple[Candidate, list[Kernel]]:
    """The steps of the node itself, and the kernels around it."""
    backend = _backend(mode.target_name)
    chosen = {graph.nodes[0]: tactic}
    made = build_plan(graph, chosen, backend, WeightStore(), symbols=symbols)
    own: list[Kernel | None] = []
    copies: list[Kernel] = []
    for step in made.plan.steps:
        kernel = _kernel(mode.target_name, step.kernel) if isinstance(step, Launch) else None
        if made.layers[step.layer].kind not in _NOT_OF_THE_NODE:
            own.append(kernel)
        elif kernel is not None:
            copies.append(kernel)
    return tuple(own), copies


@cache
def _kernel(target: str, spec: KernelSpec) -> Kernel:
    if target.startswith("sm_"):
        text = _backend(target).generate(spec, cuda_target_named(target))
        return Kernel("triton", text, _triton_options(spec), target, spec)
    return Kernel("llvm", _backend(target).generate(spec, cpu_target(target)), (), target, spec)


_OPTIONS: Final = ("dtypes", "aligned", "scalars", "num_warps", "num_stages")
_MORE_OPTIONS: Final = (("registers", 0), ("cluster", 1))
"""What not every kernel says, and what is meant then."""


def _triton_options(spec: KernelSpec) -> tuple[str, ...]:
    """What Triton is told beside the text, by position: names may change.

    Raises KeyError: a parameter that every kernel has is called otherwise by now.
    """
    known = dict(spec.parameters)
    always = (known[name] for name in _OPTIONS)
    return tuple(map(repr, (*always, *(known.get(name, other) for name, other in _MORE_OPTIONS))))


# ---- compilers


@cache
def _backend(target: str) -> Any:
    return CudaBackend(jobs=1) if target.startswith("sm_") else CpuBackend(jobs=1)


def forget() -> None:
    """Free the kernels of the unit before: no other has many of them."""
    _kernel.cache_clear()


def cpu_target(name: str) -> Any:
    """The processor that a name stands for."""
    if name != RICHEST:
        return cpu_target_named(name)
    base = cpu_target_named("x86-64-v4")
    return replace(base, features=tuple(sorted((*base.features, *_MORE_FEATURES))))


def compiled(kernel: Kernel) -> tuple[bytes, tuple[str, ...]] | None:
    """The object or cubin of a kernel, and how it is launched; None where it is not compiled.

    That is so for what the compiler refuses, and for Triton's lower language in versions that do
    not know enough of it.
    """
    if kernel.language == "llvm":
        return compile_ir(kernel.text, cpu_target(kernel.target)), ()
    if "gl." in kernel.text and gluon_unavailable_reason():
        return None
    try:
        record = _backend(kernel.target).records(kernel.spec, cuda_target_named(kernel.target))
    except BuildError:
        return None
    return _cubin(CudaKernel.from_bytes(record, 0))


def _cubin(kernel: CudaKernel) -> tuple[bytes, tuple[str, ...]]:
    facts = (
        kernel.threads, kernel.dynamic_shared_bytes, kernel.scratch_words,
        kernel.supports_pdl, kernel.cluster,
    )  # fmt: skip
    return kernel.cubin, tuple(map(repr, facts))


# ---- networks


OWN: Final = "our LeNet"


def network_names() -> list[str]:
    """Every reference network, small ones first."""
    models = importlib.import_module("tests.support.real_models").ALL_MODELS
    return [OWN, *(model.name for model in models), *_BUILT]


_BUILT: Final = ("googlenet", "mobilenetv2", "resnet50", "squeezenet", "minilm (random weights)")
"""Topologies that a script beside the reference models builds."""


def why_absent(name: str) -> str | None:
    """Why a network is not here; None where it is."""
    try:
        for file in _files_of(name):
            if not file.is_file():
                return f"{file.name} is not there; SMELT_SHARED names the folder of the models"
    except (SystemExit, ImportError) as error:
        return str(error)
    return None


def _shared() -> Path:
    named = os.environ.get("SMELT_SHARED")
    return Path(named) if named else ROOT.parent / "shared"


@cache
def _files_of(name: str) -> tuple[Path, ...]:
    if name == OWN:
        return (ROOT / "examples" / "01_mnist" / "mnist.onnx",)
    if name in _BUILT:
        models = importlib.import_module("benchmarks.support.models")
        script = _shared() / "models" / "build_topologies.py"
        return (models.build_topology(name.partition(" ")[0], script, 1),)
    outcomes = importlib.import_module("_pytest.outcomes")
    model = importlib.import_module("tests.support.real_models").model_named(name)
    try:
        files: tuple[Path, ...] = model.files(_shared())
    except outcomes.Skipped as error:
        raise SystemExit(str(error)) from error
    return files


def built_network(name: str, target: str, precision: str) -> BuiltNetwork:
    """Build an engine by estimates alone, as it is built on a machine without the target."""
    import smelt

    shapes: Mapping[str, Any] | None = None
    if name == OWN or name in _BUILT:
        network = smelt.network_from_onnx(_files_of(name)[0])
    else:
        model = importlib.import_module("tests.support.real_models").model_named(name)
        network, shapes = model.network(_shared()), model.shapes
    kind = "cuda" if target.startswith("sm_") else "cpu"
    home = "smelt.builder._cpu_toolchain.target_named"
    with mock.patch(home, cpu_target), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = smelt.build(
            network,
            f"{kind}:{target}",
            precision,
            tune="none",
            shapes=shapes,
            max_rounding_error=None,
        )
    with engine:
        return _generated(engine, target)


def _generated(engine: Engine, target: str) -> BuiltNetwork:
    steps = (step for plan in engine.header.plans for step in plan.steps)
    specs = list(dict.fromkeys(step.kernel for step in steps if isinstance(step, Launch)))
    kernels = tuple(_kernel(target, spec) for spec in specs)
    if not target.startswith("sm_"):
        return BuiltNetwork((engine.code,), (), kernels)
    places = dict(engine.header.symbols)
    found = [_cubin(CudaKernel.from_bytes(engine.code, places[spec.symbol])) for spec in specs]
    facts = tuple(" ".join(facts).encode() for _, facts in found)
    return BuiltNetwork(facts, tuple(cubin for cubin, _ in found), kernels)


def run_loop(target: str) -> bytes:
    """The code that runs launches, which every engine for the target's architecture carries."""
    return bytes(compile_runtime(cpu_target(target)).code)


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """A home for one process."""
    return tempfile.TemporaryDirectory(prefix="manifest-")
