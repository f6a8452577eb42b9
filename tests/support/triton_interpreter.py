"""GPU kernels on the host: Triton's interpreter runs a kernel's own text on numpy's memory.

It shows that the text computes the right thing, on every machine; not how fast, and not what the
compiler makes of it. Triton decides when it is first imported whether it interprets, so this runs
as a process of its own, which reads the names of ops and answers with what is wrong:
``TRITON_INTERPRET=1 python -m tests.support.triton_interpreter``.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from smelt.backends.cuda import CudaBackend, CudaTarget
from smelt.backends.cuda._kernel_source import (
    TRITON_TYPES,
    cluster_of,
    is_gluon,
    reverse_tile_order,
)
from smelt.backends.cuda._register_operand_kernel import MASK_PTX
from smelt.backends.cuda.families import window_reuse_conv
from smelt.backends.cuda.families._recurrent_cluster import WAIT_FOR_FLAG_PTX
from smelt.engine import Launch
from smelt.ops import ALL_OPS, Conv, FusedPair, Resize, RoundMantissa
from smelt.types import DType, evaluate_dim
from tests.support.fused_pair_cases import FUSED_PAIR, fused_pair_trials
from tests.support.gluon_emulation import gluon_of
from tests.support.hostile_indices import has_places, with_hostile_input, with_hostile_weights
from tests.support.interpreted_clusters import Cluster
from tests.support.launch_watch import LaunchWatch, watch_accesses
from tests.support.persistent_conv_cases import (
    PERSISTENT,
    check_persistent,
    open_persistent_trials,
    persistent_trials,
)
from tests.support.prefetch_gemm_cases import prefetch_trials
from tests.support.trial_memory import GUARD_BYTES, TrialMemory
from tests.support.trials import (
    HALF2,
    STRANGE,
    TF32,
    covering,
    difference,
    half2_trials,
    narrow_trials,
    sample,
    shuffled,
    strange_trials,
    tf32_trials,
    trials_of_cases,
)
from tests.support.window_reuse_cases import (
    WINDOW_REUSE,
    check_window_reuse,
    one_of_each,
    open_window_reuse_trials,
    window_reuse_trials,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smelt.engine import KernelSpec
    from smelt.ir import Case
    from smelt.ops import Op
    from tests.support.trials import Trial

TARGET = CudaTarget(90)


Array = np.ndarray[Any, Any]

REVERSED_TILES: Final = "reversed_tile_order"
"""Stands, in place of a storage, for trials whose launches begin with their last tiles."""
HOSTILE: Final = "hostile"
"""Stands, in place of a storage, for trials on indices, lengths and tables that lead nowhere."""
WATCH: Final = LaunchWatch()
"""Of the trial that runs."""
CLUSTERS: Final[list[Cluster]] = []
"""The one that runs, if the kernel's programs wait for each other."""


def interpret(
    backend: CudaBackend,
    kernel: KernelSpec,
    words: list[int],
    scalars: list[int],
    programs: int,
    *,
    late_copies: bool = False,
) -> None:
    """Run a kernel on addresses of the host; ``late_copies`` as `gluon_of` says."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    _patch(interpreter)
    text = backend.generate(kernel, TARGET)
    function = _function_of(text, kernel.symbol)
    if is_gluon(text):
        gluon = gluon_of(late_copies=late_copies)
        function.__globals__.update(gl=gluon.gl, hopper=gluon.hopper)
    arguments = [
        *(_pointer(interpreter, word, d) for word, d in zip(words, kernel["dtypes"], strict=True)),
        *map(interpreter._implicit_cvt, scalars),
    ]
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(programs, 1, 1)

    def run(number: int) -> None:
        builder.set_grid_idx(number, 0, 0)
        function(*arguments)

    with np.errstate(all="ignore"):
        _run_programs(run, programs, cluster_of(kernel))


@cache
def _function_of(text: str, name: str) -> Any:
    """What a kernel's text defines, as the interpreter runs it: what is assigned is a tensor."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    tree = interpreter.FunctionRewriter.ast_transformer.visit(ast.parse(text))
    names = dict(vars(interpreter))
    exec(compile(ast.fix_missing_locations(tree), name, "exec"), names)  # noqa: S102  (our text)
    return names["kernel"]


def _pointer(interpreter: Any, address: int, dtype: str) -> Any:
    """An address as the interpreter gives it to a kernel."""
    kind = interpreter.tl.str_to_ty(f"*{TRITON_TYPES[DType(dtype)]}", None)
    handle = interpreter.TensorHandle(np.array([address], np.uint64), kind)
    return interpreter.tl.core.tensor(handle, kind)


def _run_programs(run: Callable[[int], None], programs: int, size: int) -> None:
    """Run one program after another; those of a cluster of some ``size`` in turns."""
    if size == 1:
        for number in range(programs):
            run(number)
        return
    CLUSTERS[:] = [Cluster(size)]
    for first in range(0, programs, size):
        CLUSTERS[0].run(run, first)


def _patch(interpreter: Any) -> None:
    """Teach the interpreter what kernels need of a GPU, once."""
    if not hasattr(interpreter, "smelt_patched"):
        _skip_what_nothing_reads(interpreter)
        _remember_shapes(interpreter.tl)
        _let_tensors_bound_loops(interpreter)
        _compute_in_bfloat16(interpreter)
        _cut_off_for_tf32(interpreter)
        _prefer_numbers(interpreter)
        _divide_as_gpus_do(interpreter)
        _replace_assembly()
        _tell_of_programs(interpreter)
        watch_accesses(interpreter._interpreter, WATCH)
        _speak_only_to_it(interpreter)
        interpreter.smelt_patched = True


def _tell_of_programs(interpreter: Any) -> None:
    """Have each program begin, wait and let others start in sight of the watch."""
    builder, cuda = interpreter.InterpreterBuilder, interpreter.tl.extra.cuda
    move_to = builder.set_grid_idx

    def begin(self: Any, *place: int) -> None:
        WATCH.begin_program()
        move_to(self, *place)

    builder.set_grid_idx = begin
    cuda.gdc_wait, cuda.gdc_launch_dependents = WATCH.wait, WATCH.let_next_start


def _skip_what_nothing_reads(interpreter: Any) -> None:
    """Sums and products again in 64 bits, for an assertion that only a debugger sees."""
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)


def _remember_shapes(language: Any) -> None:
    """Each value has its type made anew, and wraps each extent of it: there are few types."""
    constant = language.constexpr

    def name_block(element: Any, shape: Any) -> object:
        return element.name, *(s.value if isinstance(s, constant) else s for s in shape)

    def name_tensor(_handle: Any, kind: Any) -> object:
        return kind.name

    _remember(language.block_type, name_block)
    _remember(language.tensor, name_tensor)
    made = language.tensor.__init__

    def make(self: Any, handle: Any, type: Any) -> None:  # noqa: A002  (Triton's name)
        made(self, handle, type)
        self.handle = handle

    language.tensor.__init__ = make


def _remember(kind: Any, name: Callable[..., object]) -> None:
    """Have a class make what has the same ``name`` once, and copy its attributes from then on."""
    make, known = kind.__init__, dict[object, dict[str, Any]]()

    def init(self: object, *arguments: Any) -> None:
        if (found := known.get(key := name(*arguments))) is not None:
            vars(self).update(found)
        else:
            make(self, *arguments)
            known[key] = vars(self).copy()

    kind.__init__ = init


def _speak_only_to_it(interpreter: Any) -> None:
    """Leave the language's words in the interpreter's hands: nothing is compiled here."""
    words = {"tl": interpreter.tl, "core": interpreter.tl.core}
    interpreter._patch_lang(SimpleNamespace(__globals__=words))

    def leave(_function: object) -> None:
        """It is done."""

    interpreter._patch_lang = leave


def _as_int(tensor: Any) -> int:
    return int(tensor.handle.data.item())


def _let_tensors_bound_loops(interpreter: Any) -> None:
    """A scalar is an array of one element there, which newer numpy makes no int of."""

    def patch(tensor: Any, scope: Any, original: Any = interpreter._patch_lang_tensor) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", _as_int)

    interpreter._patch_lang_tensor = patch


def _compute_in_bfloat16(interpreter: Any) -> None:
    """To the interpreter these are integers: give it numbers, and casts that round."""
    builder, bfloat16 = interpreter.InterpreterBuilder, interpreter.tl.bfloat16
    numbers, bits = np.dtype(importlib.import_module("ml_dtypes").bfloat16), np.dtype(np.uint16)
    memory, cast = interpreter._interpreter, builder.cast_impl
    dtype_of = cache(interpreter._get_np_dtype)  # it makes its table again for each call

    def load(addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        if dtype != numbers:
            return memory.load(addresses, mask, other, dtype)
        return memory.load(addresses, mask, other.view(bits), bits).view(numbers)

    def store(addresses: Any, values: Any, mask: Any) -> None:
        memory.store(addresses, values.view(bits) if values.dtype == numbers else values, mask)

    def known_dtype(kind: Any) -> Any:
        scalar = kind.scalar
        if scalar.is_ptr():
            return np.dtype(np.uint64)
        return numbers if scalar == bfloat16 else dtype_of(scalar)

    def cast_through_float32(self: Any, source: Any, kind: Any) -> Any:
        if bfloat16 not in {source.dtype.scalar, kind.scalar}:
            return cast(self, source, kind)
        with np.errstate(all="ignore"):
            data = source.data.astype(np.float32).astype(known_dtype(kind))
        return interpreter.TensorHandle(data, kind.scalar)

    interpreter._interpreter = SimpleNamespace(**vars(memory) | {"load": load, "store": store})
    interpreter._get_np_dtype = known_dtype
    builder.cast_impl = cast_through_float32


def _prefer_numbers(interpreter: Any) -> None:
    """A minimum or maximum with what is no number is the number on a GPU, unless told otherwise.

    Not every version of the interpreter knows.
    """
    builder, folds = interpreter.InterpreterBuilder, interpreter.ReduceOps

    def least(self: Any, a: Any, b: Any) -> Any:
        return self.binary_op(a, b, np.fmin)

    def most(self: Any, a: Any, b: Any) -> Any:
        return self.binary_op(a, b, np.fmax)

    builder.create_minnumf, builder.create_maxnumf = least, most
    strict = {np.min: np.fmin.reduce, np.nanmin: np.fmin.reduce}
    strict |= {np.max: np.fmax.reduce, np.nanmax: np.fmax.reduce}
    fold = folds.min_max

    def min_max(self: Any, data: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        return fold(self, data, strict.get(val_reduce_op, val_reduce_op), idx_reduce_op)

    folds.min_max = min_max


def _divide_as_gpus_do(interpreter: Any) -> None:
    """By float32 beyond 2 ** 126, but for the division that says how it rounds, comes out zero."""
    builder = interpreter.InterpreterBuilder

    def quotient(a: Any, b: Any) -> Any:
        inverse = np.where(np.abs(b) > _MAX_DIVISOR, 0, 1) if b.dtype == np.float32 else 1
        return (np.divide(a, b) * inverse).astype(a.dtype)

    def create_fdiv(self: Any, a: Any, b: Any) -> Any:
        return self.binary_op(a, b, quotient)

    builder.create_fdiv = create_fdiv


def _cut_off_for_tf32(interpreter: Any) -> None:
    """Products see ten bits of a float32 behind the first if so told, and bfloat16 in full."""
    builder, tf32 = interpreter.InterpreterBuilder, interpreter._ir.INPUT_PRECISION.TF32
    dot = builder.create_dot

    def seen(handle: Any, precision: Any) -> Any:
        data = handle.data
        if data.dtype == np.float32 and precision == tf32:
            data = (data.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        elif handle.dtype.scalar == interpreter.tl.bfloat16:
            data = data.astype(np.float32)
        else:
            return handle
        return interpreter.TensorHandle(data, interpreter.tl.float32)

    def create_dot(self: Any, a: Any, b: Any, total: Any, precision: Any, *others: Any) -> Any:
        return dot(self, seen(a, precision), seen(b, precision), total, precision, *others)

    builder.create_dot = create_dot


def run_trial(
    trial: Trial,
    backend: CudaBackend,
    inputs: list[Array] | None = None,
    *,
    late_copies: bool = False,
) -> TrialMemory:
    """Run a trial's plan on its inputs, or on others; what it leaves in memory.

    What is touched amiss, the watch has noted.
    """
    memory = TrialMemory(trial, inputs)
    WATCH.faults.clear()
    bases = [int(array.ctypes.data) for array in memory.arrays]
    for step in trial.plan.steps:
        assert isinstance(step, Launch), step
        scalars = [evaluate_dim(s, trial.values) for s in step.scalars]
        programs = evaluate_dim(step.chunks, trial.values)
        WATCH.follow(step, trial.plan, [base + GUARD_BYTES for base in bases], trial.values)
        words = memory.words(step, bases)
        interpret(backend, step.kernel, words, scalars, programs, late_copies=late_copies)
        WATCH.end_launch()
    return memory


def _replace_assembly() -> None:
    """Without prefetches, which only ask for time; rounding is done in numpy."""
    language: Any = importlib.import_module("triton.language")

    def assembly(text: str, _registers: str, operands: list[Any], **_options: object) -> Any:
        if text.startswith("prefetch."):
            return None
        if text == MASK_PTX:
            return _keep(*operands)
        if text == WAIT_FOR_FLAG_PTX:
            return language.core.tensor(_await_words(*operands), operands[1].type)
        assert text == "cvt.rna.tf32.f32 $0, $1;", text
        (handle,) = (operand.handle for operand in operands)
        (rounded,) = RoundMantissa().reference(handle.data)
        made = type(handle)(rounded, handle.dtype)
        return language.core.tensor(made, operands[0].type)

    language.inline_asm_elementwise = assembly


def _keep(values: Any, masks: Any) -> Any:
    """Elements of 16 bits where a mask has ones, else zeros."""
    data = np.broadcast_arrays(values.handle.data, masks.handle.data)
    kept = (data[0].view(np.int16) & data[1]).view(data[0].dtype)
    return type(values)(type(values.handle)(kept, values.handle.dtype), values.type)


def _await_words(places: Any, numbers: Any) -> Any:
    """The low halves of words, once their high halves are what they shall be."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    everywhere = np.ones(places.handle.data.shape, np.bool_)
    zeros = np.zeros(places.handle.data.shape, np.int64)
    addresses = places.handle.data.astype(np.uint64)
    while True:
        words = interpreter._interpreter.load(addresses, everywhere, zeros, np.dtype(np.int64))
        if (words >> 32 == numbers.handle.data).all():
            break
        CLUSTERS[0].let_others_go_on()
    CLUSTERS[0].go_on()
    return interpreter.TensorHandle(words.astype(np.int32), interpreter.tl.int32)


_MAX_DIVISOR: Final = 2.0**126
_WHOLE: Final = (None, "ieee")
_SAMPLED_CASES = 4
_MAX_SAMPLED = 6
_SAMPLED_TRIALS = {DType.FLOAT16.value: 4, DType.BFLOAT16.value: 1}
"""What bfloat16 adds to float16 is numbers alone: one trial of each family shows them."""


def _of_own_cases(how: str, backend: CudaBackend) -> list[Trial] | None:
    """The trials of families that have cases of their own; None of others."""
    if how == PERSISTENT:
        held = persistent_trials(backend, TARGET, DType.FLOAT16)
        check_persistent(held)
        return [*held, *open_persistent_trials(backend, TARGET), *prefetch_trials(backend, TARGET)]
    if how == FUSED_PAIR:
        return list(fused_pair_trials(backend, TARGET))
    if how == WINDOW_REUSE:
        slid = window_reuse_trials(backend, TARGET, DType.FLOAT16)
        check_window_reuse(slid)
        return [*one_of_each(slid), *open_window_reuse_trials(backend, TARGET)]
    return None


def _reversed_tile_trials(op: type[Op], backend: CudaBackend) -> list[Trial]:
    """Some trials of each family that knows both orders, in the other one."""
    found = _chosen(op, DType.FLOAT16.value, backend)
    own = {Conv.name: (PERSISTENT, WINDOW_REUSE), FusedPair.name: (FUSED_PAIR,)}
    for how in own.get(op.name, ()):
        found += sample(_chosen(op, how, backend), _SAMPLED_CASES)
    turned = ((_turned(trial, backend), trial) for trial in found)
    return [trial for trial, other in turned if trial.plan != other.plan]


def _turned(trial: Trial, backend: CudaBackend) -> Trial:
    """A trial whose launches begin with their last tiles; those of one order are as they were."""
    reversible = {f.name for f in backend.families if getattr(f, "supports_reversed_tiles", False)}
    steps = tuple(
        replace(step, kernel=reverse_tile_order(step.kernel))
        if isinstance(step, Launch) and step.kernel.family in reversible
        else step
        for step in trial.plan.steps
    )
    return replace(trial, assembled=replace(trial.assembled, plan=replace(trial.plan, steps=steps)))


def _may_be_narrow(case: Case) -> bool:
    """Whether kernels store any of a case's numbers in 16 bits: there are floats, and elements."""
    arrays = [array for array in case.inputs if array is not None]
    return all(a.size for a in arrays) and any(a.dtype == np.float32 for a in arrays)


def _chosen(op: type[Op], how: str, backend: CudaBackend) -> list[Trial]:
    """The trials of an op."""
    if how == REVERSED_TILES:
        return _reversed_tile_trials(op, backend)
    if (own := _of_own_cases(how, backend)) is not None:
        return [trial for trial in own if not trial.tactic.is_host_step]
    cases = list(op.cases())
    # Which windows end beside what is strange, and which numbers meet it, the case decides.
    if how not in {"all", "covering", HALF2, STRANGE}:
        narrow = how in {DType.FLOAT16.value, DType.BFLOAT16.value}
        cases = sample(list(filter(_may_be_narrow, cases)) if narrow else cases, _SAMPLED_CASES)
    found: Iterable[Trial]
    if how == HALF2:
        found = half2_trials(cases, backend, replace(TARGET, uses_half2=True))
    elif how == STRANGE:
        # To multiply in parts is the compiler's affair.
        tried = strange_trials(cases, backend, TARGET)
        found = (t for t in tried if dict(t.tactic.parameters).get("input_precision") in _WHOLE)
    elif how == TF32:
        found = tf32_trials(cases, backend, replace(TARGET, allows_tf32=True))
    elif how in {DType.FLOAT16.value, DType.BFLOAT16.value}:
        found = narrow_trials(cases, backend, TARGET, DType(how))
    else:
        found = trials_of_cases(cases, backend, TARGET)
    trials = [trial for trial in found if not trial.tactic.is_host_step]
    if how in {"all", STRANGE}:
        return trials
    if how == "covering":
        return covering(trials)
    count = _SAMPLED_TRIALS.get(how, _MAX_SAMPLED)
    return sample(trials, count, key=lambda trial: trial.tactic.family)


def check(op: type[Op], how: str) -> tuple[int, list[str]]:
    """How many trials of an op were run, and what was wrong with them.

    Args:
        op: whose cases.
        how: "all" of them, so many that all traits meet ("covering"), some ("sampled"), some with
            float32 stored as "float16" or "bfloat16", some with float32 multiplied as "tf32", all
            in "pairs" of images, all with "strange" numbers, by one tactic of each family; or,
            whatever the op, all of programs that hold their weights ("held") or do two products
            ("chained"), or some of every tile and case of windows in shared memory ("sliding").
            Of families whose launches may begin with their last tiles some do so ("backwards").
    """
    backend = CudaBackend()
    trials = _chosen(op, how, backend)
    wrong: list[str] = []
    for trial in trials:
        wrong += _faults(trial, backend, None, trial.wanted)
        if how == STRANGE:  # what is strange then meets other numbers
            wrong += _faults(trial, backend, *shuffled(trial))
    return len(trials), wrong


def _faults(
    trial: Trial, backend: CudaBackend, inputs: list[Array] | None, right: tuple[Array, ...]
) -> list[str]:
    """What is wrong with a trial on its inputs, or on others."""
    found: list[str] = []
    for late_copies in (False, True)[: 1 + (trial.tactic.family == WINDOW_REUSE)]:
        memory = run_trial(trial, backend, inputs, late_copies=late_copies)
        found += [*memory.damage(), *WATCH.faults]
        found += [
            f"a launch tells of an index out of range: {detail}" for detail in memory.detail()
        ]
        for mine, wanted in zip(memory.outputs(), right, strict=True):
            if reason := difference(mine, wanted, trial.case.tolerance, trial.step):
                found.append(reason)
    return [f"{trial}: {reason}" for reason in found]


def check_hostile(op: type[Op]) -> tuple[int, list[str]]:
    """The same with indices, lengths and tables that no honest model has: kernels stay inside.

    What is out of range they tell of, but for tables, which nobody but the builder writes.
    """
    backend, count = CudaBackend(), 0
    wrong: list[str] = []
    cases = [case for case in op.cases() if op is Resize or has_places(case)]
    every = trials_of_cases(cases, backend, TARGET)
    tried = [trial for trial in every if not trial.tactic.is_host_step]
    for trial in sample(tried, 0, key=lambda t: (t.case.op, len(t.tactic.parameters))):
        runs: list[tuple[Trial, list[Array] | None]]
        runs = [(hostile, None) for hostile in with_hostile_weights(trial)]
        if op is not Resize:
            runs = [(trial, inputs) for inputs in with_hostile_input(trial)]
        for hostile, inputs in runs:
            memory = run_trial(hostile, backend, inputs)
            found = [*memory.damage(), *WATCH.faults]
            if op is not Resize and not memory.detail():
                found.append("nothing is told of what is out of range")
            wrong += [f"{trial}: {reason}" for reason in found]
            count += 1
    return count, wrong


def _offer_gluon() -> None:
    """Offer kernels in Gluon whichever Triton there is: nothing is compiled here."""
    patched: Any = window_reuse_conv
    patched.gluon_unavailable_reason = lambda: None


def main() -> None:
    """Answer each line ``OP HOW``, as `check` takes them, with a line of JSON."""
    _offer_gluon()
    ops = {op.name: op for op in ALL_OPS}
    for line in sys.stdin:
        name, how = line.split()
        answer = check_hostile(ops[name]) if how == HOSTILE else check(ops[name], how)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
