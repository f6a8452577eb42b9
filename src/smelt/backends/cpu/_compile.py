"""Compiler from LLVM IR to a relocatable object, for one target."""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from typing import Any, Final

from smelt.backends.cpu._half_conversions import lower_half_conversions
from smelt.backends.cpu._target import CpuTarget, load_llvm, without_global_lock
from smelt.errors import BuildError, InternalError

_DEFINITION: Final = re.compile(r"^(define\b.*?)(\{\s*)$", re.MULTILINE)
"""Matches the head of a function definition in LLVM IR."""
_ATTRIBUTES: Final = '"no-builtins" '
"""Function attributes that keep LLVM from calling the C library."""
_LOCAL: Final = threading.local()
"""Target machines of each thread, because LLVM's are not thread-safe."""


def compile_ir(ir_text: str, target: CpuTarget) -> bytes:
    """Compile a module of LLVM IR to an ELF object of position-independent code.

    The module needs neither a triple nor a data layout. Loops are neither vectorised nor replaced
    by calls of ``memset`` or ``memcpy``.

    Raises:
        BuildError: the module is not valid LLVM IR.
    """
    llvm, machine = load_llvm(), _target_machine(target)
    # Without these attributes LLVM may replace a loop by a call of the C library.
    text = _DEFINITION.sub(lambda m: f"{m[1]}{_ATTRIBUTES}{m[2]}", ir_text)
    text = lower_half_conversions(text, target)
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(text, context=context)
        module.triple = target.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise BuildError(f"a kernel's LLVM IR is not valid: {error}") from error
    _optimise(module, machine)
    return _emit_object(module, machine)


def _optimise(module: Any, machine: Any) -> None:
    """Run LLVM's optimisations of level 2 without vectorisation, which the generators do."""
    llvm = load_llvm()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    without_global_lock("LLVMPY_RunNewModulePassManager")(
        builder.getModulePassManager(), module, builder
    )


def _emit_object(module: Any, machine: Any) -> bytes:
    """Return the object file of an optimised module."""
    llvm = load_llvm()
    with llvm.ffi.OutputString() as error:
        memory = without_global_lock("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
        if not memory:
            raise InternalError(f"LLVM emitted no machine code for a kernel: {error}")
    library = llvm.ffi.lib
    try:
        start, size = library.LLVMPY_GetBufferStart(memory), library.LLVMPY_GetBufferSize(memory)
        return ctypes.string_at(start, size)
    finally:
        library.LLVMPY_DisposeMemoryBuffer(memory)


@functools.cache
def _initialize() -> None:
    """Initialise LLVM's targets and assembly printers once per process."""
    llvm = load_llvm()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def _target_machine(target: CpuTarget) -> Any:
    """Return this thread's LLVM target machine for a target."""
    _initialize()
    machines: dict[CpuTarget, Any] = _LOCAL.__dict__.setdefault("machines", {})
    if target not in machines:
        triple = load_llvm().Target.from_triple(target.triple)
        machines[target] = triple.create_target_machine(
            cpu=target.cpu, features=target.llvm_features, opt=3, reloc="pic", codemodel="small"
        )
    return machines[target]
