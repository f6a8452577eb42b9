"""One kernel for GPUs on random views, as Triton's interpreter runs its text on the host.

It is `kernel_views` with other kernels: buffers lie between the host's guard pages, inputs are
write-protected, what belongs to no view is poison, and beside that every access is looked at: it
must lie in the bytes of one operand, which a launch writes only if it says so. Numbers are stored
as float32 or float16.

usage: TRITON_INTERPRET=1 python -m tests.property.gpu_kernel_views --count 2000 --seed 1
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Final

from smelt import ops
from smelt.backends.cuda import CudaBackend
from smelt.engine import Buffer, Plan, Space
from smelt.types import DType, evaluate_dim
from tests.fuzz.build_trial import FindingError
from tests.fuzz.campaign import Campaign, main
from tests.property.kernel_views import Bench, case_of, input_of, try_case
from tests.support.cuda_op_coverage import WITHOUT_KERNELS
from tests.support.triton_interpreter import TARGET, WATCH, interpret

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from smelt.engine import Launch
    from tests.support.cpu_kernels import GuardedBuffer

_BACKEND: Final = CudaBackend()
_OFTEN: Final[tuple[type[ops.Op], ...]] = (
    *(ops.Conv, ops.Conv, ops.Conv, ops.ConvSum, ops.ConvTranspose, ops.FusedPair, ops.Gemm),
    *(
        ops.MatMul,
        ops.Attention,
        ops.GRU,
        ops.LSTM,
        ops.GRU,
        ops.LSTM,
        ops.Gather,
        ops.GatherElements,
        ops.Resize,
    ),
    *(ops.MaxPool, ops.LRN, ops.Softmax, ops.Transpose, ops.Pad),
) * 3
"""Most other ops are of one family."""
_KINDS: Final[tuple[type[ops.Op], ...]] = (
    *(op for op in ops.ALL_OPS if op.name not in WITHOUT_KERNELS),
    *_OFTEN,
)


def trial_of(seed: int, number: int) -> tuple[bytes, str]:
    """One case; every op that has kernels has its turn."""
    return input_of(seed, number, _KINDS)


def try_kernel(data: bytes, recipe: str, note: Callable[[str], None]) -> Counter[str]:
    """Run one case by one tactic on random views.

    Raises:
        FindingError: a kernel leaves its operands, a result depends on what is around, or is wrong.
    """
    chance = random.Random(recipe)  # noqa: S311  (no secret)
    storage = chance.choice((DType.FLOAT32, DType.FLOAT32, DType.FLOAT16))
    bench = Bench(_BACKEND, TARGET, _run, storage, is_strict=True)
    return try_case(case_of(data), chance, bench, note)


def _run(
    launches: Sequence[Launch],
    buffers: Sequence[GuardedBuffer],
    *,
    values: dict[str, int],
    fill: int,
) -> None:
    """Interpret launches, and look at every access."""
    del fill
    # When a launch may read what, conformance looks at; weights it may read at any time.
    kept = tuple(Buffer(Space.WEIGHTS, 0, buffer.size_bytes) for buffer in buffers)
    plan = Plan((), kept, tuple(launches), 0, 0, ())
    written = {launch.operands[k].buffer for launch in launches for k in launch.writes}
    for number, buffer in enumerate(buffers):
        buffer.seal(sealed=number not in written)
    WATCH.faults.clear()
    bases = [buffer.address for buffer in buffers]
    for launch in launches:
        words = [bases[v.buffer] + evaluate_dim(v.offset, values) for v in launch.operands]
        scalars = [evaluate_dim(scalar, values) for scalar in launch.scalars]
        WATCH.follow(launch, plan, bases, values)
        programs = evaluate_dim(launch.chunks, values)
        interpret(_BACKEND, launch.kernel, words, scalars, programs)
        WATCH.end_launch()
        if WATCH.faults:
            raise FindingError("leaves its operands", launch.kernel.family, str(WATCH.faults))
    for buffer in buffers:
        buffer.seal(sealed=False)


GPU_KERNEL_VIEWS: Final = Campaign("tests.property.gpu_kernel_views", trial_of, try_kernel)

if __name__ == "__main__":
    sys.exit(main(GPU_KERNEL_VIEWS, __doc__ or ""))
