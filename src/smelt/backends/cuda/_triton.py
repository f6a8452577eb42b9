"""Triton, loaded when it is first needed, and kernels through it: text to cubin, on any machine.

No GPU and no driver is needed, and torch is never imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import linecache
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from smelt.backends._code_cache import edition_of
from smelt.backends.cuda._source import TRITON_TYPES
from smelt.devices.cuda import ABI_VERSION, CudaKernel
from smelt.errors import BuildError, MissingExtraError
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.backends.cuda._target import CudaTarget
    from smelt.engine import KernelSpec

_LANES: Final = 32
_SCRATCH_WORDS: Final = 2
"""Pointers that Triton adds behind a kernel's arguments: global scratch and profile scratch."""
_lock: Final = threading.Lock()


def load_triton() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module("triton")
    except ModuleNotFoundError as error:
        raise MissingExtraError("triton", "cuda-build") from error


@functools.cache
def generator_edition() -> str:
    """What makes the code: Triton's version, the interface to the device, and our generators.

    Raises:
        MissingExtraError: Triton is not installed.
    """
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError("triton", "cuda-build") from error
    return edition_of(Path(__file__).parent, f"triton {version}, interface {ABI_VERSION}")


def function_of(text: str, symbol: str) -> Callable[..., None]:
    """Return the Python function that a kernel's text defines; Triton reads its lines again."""
    name = f"<{symbol}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[name] = (len(text), None, lines, name)
    names: dict[str, Any] = {
        "tl": importlib.import_module("triton.language"),
        "__name__": "smelt.generated",
    }
    exec(compile(text, name, "exec"), names)  # noqa: S102  (our own generator's text)
    function: Callable[..., None] = names["kernel"]
    return function


def compile_kernel(kernel: KernelSpec, text: str, target: CudaTarget) -> CudaKernel:
    """Compile one kernel for one architecture.

    Raises:
        BuildError: Triton refuses the text; the message has its reason.
        MissingExtraError: Triton is not installed.
    """
    triton = load_triton()
    jit = importlib.import_module("triton.runtime.jit")
    compiler = importlib.import_module("triton.compiler")
    targets = importlib.import_module("triton.backends.compiler")
    signature = {f"p{k}": f"*{TRITON_TYPES[DType(d)]}" for k, d in enumerate(kernel["dtypes"])}
    signature |= {f"s{k}": "i64" for k in range(kernel["scalars"])}
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, is_aligned in enumerate(kernel["aligned"])
        if is_aligned
    }
    options = {
        "num_warps": kernel["warps"],
        "num_stages": kernel["pipeline"],
        "enable_fp_fusion": True,
    }
    try:
        with _lock:  # the compiler keeps settings of one compilation in its module
            function = jit.JITFunction(function_of(text, kernel.symbol))
            source = compiler.ASTSource(function, signature, constexprs={}, attrs=aligned)
            goal = targets.GPUTarget("cuda", target.capability, _LANES)
            made = triton.compile(source, target=goal, options=options)
    except (triton.TritonError, RuntimeError, SyntaxError) as error:
        raise BuildError(f"kernel {kernel.symbol} does not compile: {error}") from error
    finally:
        linecache.cache.pop(f"<{kernel.symbol}>", None)
    facts = made.metadata
    return CudaKernel(
        entry=facts.name,
        cubin=made.asm["cubin"],
        threads=facts.num_warps * _LANES,
        dynamic_shared_bytes=facts.shared,
        scratch_words=_SCRATCH_WORDS,
    )
