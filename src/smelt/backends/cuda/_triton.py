"""Compilation of kernels by Triton: source text to cubin, on any machine.

Triton is imported on first use. No GPU and no driver is needed, and torch is never imported.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import linecache
import platform
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from smelt.backends._code_cache import codegen_version_of
from smelt.backends.cuda._cost_model import WARP_LANES
from smelt.backends.cuda._kernel_source import (
    REGISTERS,
    TRITON_TYPES,
    cluster_of,
    is_gluon,
    waits_for_dependencies,
)
from smelt.devices.cuda import ABI_VERSION, CudaKernel
from smelt.errors import DISTRIBUTION, Argument, BuildError, MissingExtraError
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec

_SCRATCH_WORDS: Final = 2
"""Number of pointers that Triton appends to a kernel's arguments: global and profile scratch."""
_WITH_GLUON: Final = ("3.6.", "3.7.")
"""Versions of Triton whose Gluon has shared-memory views with arbitrary row offsets."""
_lock: Final = threading.Lock()
"""Serialises compilations: Triton keeps the settings of a compilation in global state."""


def load_triton() -> Any:
    """Return the ``triton`` module.

    Raises:
        MissingExtraError: Triton is not installed.
    """
    try:
        return importlib.import_module("triton")
    except ModuleNotFoundError as error:
        raise _missing_triton() from error


@functools.cache
def generator_version() -> str:
    """Return the version hash of Triton, the device interface and smelt's generators.

    Raises:
        MissingExtraError: Triton is not installed.
    """
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing_triton() from error
    return codegen_version_of(Path(__file__).parent, f"triton {version}, interface {ABI_VERSION}")


def require_triton() -> None:
    """Raise MissingExtraError if Triton is not installed, without importing it."""
    try:
        spec = importlib.util.find_spec("triton")
    except ValueError:  # the module was removed from sys.modules
        spec = None
    if spec is None:
        raise _missing_triton()


def gluon_unavailable_reason() -> str | None:
    """Return why kernels cannot use Gluon, or None.

    Gluon must have shared-memory views with arbitrary row offsets. From 3.8 on it rejects views
    that are larger than the memory descriptor they are made from.
    """
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "triton is not installed"
    if version.startswith(_WITH_GLUON):
        return None
    return (
        f"triton {version} has no shared-memory views with arbitrary row offsets; versions 3.6 "
        "and 3.7 have them"
    )


def _missing_triton() -> MissingExtraError:
    """Return the error that says how to install Triton on this machine."""
    machine, example = platform.machine(), Argument("device", "cuda:sm_90")
    if sys.platform == "linux" and machine == "x86_64":
        advice = (
            "it is in smelt's extra 'cuda-build': run pip install "
            f"'{DISTRIBUTION}[cuda-build]'; for Hopper GPUs, add 'triton<3.8' to it"
        )
        return MissingExtraError("triton", "cuda-build", advice=advice)
    advice = (
        "smelt's extra 'cuda-build' provides triton for Linux on x86-64 only, and this machine "
        f"runs {platform.system()} on {machine}: build on an x86-64 Linux machine, for example "
        f"with {example} (no GPU is needed), and run the engine on this machine"
    )
    return MissingExtraError("triton", "cuda-build", advice=advice, arguments=[example])


def keep_compiled_in(folder: str) -> None:
    """Set Triton's cache folder, and let the cache hold only machine code.

    Other users may have written to the default folder, and Triton does not authenticate entries.
    """
    with suppress(ModuleNotFoundError):  # reported for the first kernel
        knobs = importlib.import_module("triton.knobs")
        knobs.cache.dir = folder
        knobs.compilation.store_binary_only = True


def function_of(text: str, name: str) -> Callable[..., None]:
    """Return the Python function that a kernel's text defines; Triton inspects its source.

    Args:
        text: text of the kernel.
        name: file name of the text in Python's messages.
    """
    name = f"<{name}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), None, lines, name)
    names: dict[str, Any] = {
        "tl": importlib.import_module("triton.language"),
        "__name__": "smelt.generated",
    }
    if is_gluon(text):
        gluon = "triton.experimental.gluon.language"
        names["gl"] = importlib.import_module(gluon)
        names["hopper"] = importlib.import_module(f"{gluon}.nvidia.hopper")
    exec(compile(text, name, "exec"), names)  # noqa: S102  (generated by smelt)
    function: Callable[..., None] = names["kernel"]
    return function


def compile_kernel(kernel: KernelSpec, text: str, target: CudaTarget) -> CudaKernel:
    """Compile one kernel for one architecture.

    Raises:
        BuildError: the kernel does not compile; the message has Triton's reason.
        MissingExtraError: Triton is not installed.
    """
    triton = load_triton()
    targets = importlib.import_module("triton.backends.compiler")
    signature = {f"p{k}": f"*{TRITON_TYPES[DType(d)]}" for k, d in enumerate(kernel["dtypes"])}
    signature |= {f"s{k}": "i64" for k in range(kernel["scalars"])}
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, is_aligned in enumerate(kernel["aligned"])
        if is_aligned
    }
    options = {
        "num_warps": kernel["num_warps"],
        "num_stages": kernel["num_stages"],
        "enable_fp_fusion": True,
        "maxnreg": kernel.options.integer(REGISTERS, 0) or None,
    }
    # Triton caches by text: the name in the binary must not depend on the kernel.
    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    try:
        with _compilation_settings():
            source = _source_of(text, name, signature, aligned)
            gpu_target = targets.GPUTarget("cuda", target.capability, WARP_LANES)
            compiled = triton.compile(source, target=gpu_target, options=options)
    except (triton.TritonError, RuntimeError, SyntaxError) as error:
        detail, *lines = str(error).splitlines() or [type(error).__name__]
        message = f"kernel {kernel.symbol} does not compile: {detail}"
        raise BuildError(message, lines=lines) from error
    finally:
        linecache.cache.pop(f"<{name}>", None)
    metadata = compiled.metadata
    _check_shared(kernel, metadata.shared, target)
    return CudaKernel(
        entry=metadata.name,
        cubin=compiled.asm["cubin"],
        threads=metadata.num_warps * WARP_LANES,
        dynamic_shared_bytes=metadata.shared,
        scratch_words=_SCRATCH_WORDS,
        supports_pdl=waits_for_dependencies(text),
        cluster=cluster_of(kernel),
    )


@contextmanager
def _compilation_settings() -> Generator[None]:
    """Compile without line tables; the settings of other compilations are unchanged.

    Line tables name files of the build machine, and are larger than the code.
    """
    knobs = importlib.import_module("triton.knobs").compilation
    # Triton keeps the settings of a compilation in its module and in the environment.
    with _lock, knobs.scope():
        knobs.disable_line_info = True
        yield


def _source_of(text: str, name: str, signature: dict[str, str], attributes: Any) -> Any:
    """Return Triton's source object of a kernel in Triton or in Gluon."""
    if is_gluon(text):
        gluon = importlib.import_module("triton.experimental.gluon._runtime")
        make_function, make_source = gluon.GluonJITFunction, gluon.GluonASTSource
    else:
        make_function = importlib.import_module("triton.runtime.jit").JITFunction
        make_source = importlib.import_module("triton.compiler").ASTSource
    function = make_function(function_of(text, name))
    return make_source(function, signature, constexprs={}, attrs=attributes)


def _check_shared(kernel: KernelSpec, needed_bytes: int, target: CudaTarget) -> None:
    """Raise BuildError if a block of the target cannot have the shared memory a kernel needs."""
    if needed_bytes > target.shared_bytes:
        raise BuildError(
            f"kernel {kernel.symbol} needs {needed_bytes} bytes of shared memory; a thread block "
            f"on {target.architecture} has at most {target.shared_bytes}"
        )
