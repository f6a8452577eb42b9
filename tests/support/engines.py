"""Small engines made by hand, from kernels written by hand: y = (x * a) + b, row by row."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.backends.cpu import CpuTarget, compile_ir, host_target, link
from smelt.backends.cpu._native_runtime import runtime_image
from smelt.devices.cpu import abi
from smelt.engine import (
    VERSION,
    Binding,
    Buffer,
    EngineHeader,
    Fingerprint,
    HostCall,
    KernelSpec,
    Launch,
    LayerInfo,
    Plan,
    Space,
    Step,
    View,
    Weight,
    detect_host,
    parameters,
)
from smelt.ops import NonZero, Relu, op_to_json
from smelt.runtime import Engine
from smelt.types import DType, SymbolicDim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smelt.types import Dim

COLUMNS = 24
MAX_BATCH = 6
BATCH: Dim = SymbolicDim.symbol("batch")


def rowwise_ir(symbol: str, operation: str) -> str:
    """``out[r, j] = x[r, j] (operation) w[j]``; one chunk a row; the scalar is the row's length."""
    return f"""
define void @{symbol}(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
entry:
 %x = load ptr, ptr %args
 %wp = getelementptr i8, ptr %args, i64 8
 %w = load ptr, ptr %wp
 %op = getelementptr i8, ptr %args, i64 16
 %out = load ptr, ptr %op
 %cp = getelementptr i8, ptr %args, i64 24
 %columns = load i64, ptr %cp
 %first = mul i64 %begin, %columns
 %last = mul i64 %end, %columns
 br label %head
head:
 %i = phi i64 [%first, %entry], [%next, %body]
 %more = icmp slt i64 %i, %last
 br i1 %more, label %body, label %done
body:
 %j = urem i64 %i, %columns
 %xi = getelementptr float, ptr %x, i64 %i
 %wj = getelementptr float, ptr %w, i64 %j
 %oi = getelementptr float, ptr %out, i64 %i
 %a = load float, ptr %xi
 %b = load float, ptr %wj
 %r = {operation} float %a, %b
 store float %r, ptr %oi
 %next = add i64 %i, 1
 br label %head
done:
 ret void
}}"""


MULTIPLY = KernelSpec("rowwise", parameters(operation="fmul"))
ADD = KernelSpec("rowwise", parameters(operation="fadd"))


@functools.cache
def code_image(target: CpuTarget | None = None) -> tuple[bytes, tuple[tuple[str, int], ...]]:
    """Both kernels, linked."""
    chosen = target or host_target()
    texts = [rowwise_ir(spec.symbol, spec["operation"]) for spec in (MULTIPLY, ADD)]
    return link([compile_ir(text, chosen) for text in texts])


def runtime_bytes() -> bytes:
    """The native runtime for this machine."""
    return runtime_image(detect_host().architecture)[0]


def view(buffer: int, *shape: Dim, offset: int = 0) -> View:
    """A contiguous float32 view."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step = step * extent
    return View(buffer, offset, DType.FLOAT32, shape, tuple(strides))


def affine_steps() -> tuple[Step, ...]:
    """T = x * a, then y = t + b; buffers: x, a, b, t, y."""
    return (
        Launch(
            MULTIPLY,
            (view(0, BATCH, COLUMNS), view(1, COLUMNS), view(3, BATCH, COLUMNS)),
            writes=(2,),
            scalars=(COLUMNS,),
            chunks=BATCH,
            scratch_bytes=64,
        ),
        Launch(
            ADD,
            (view(3, BATCH, COLUMNS), view(2, COLUMNS), view(4, BATCH, COLUMNS)),
            writes=(2,),
            scalars=(COLUMNS,),
            chunks=BATCH,
            layer=1,
        ),
    )


def affine_header(**changes: Any) -> EngineHeader:
    """The header of the engine ``y = x * a + b`` for batches up to `MAX_BATCH`."""
    row = COLUMNS * 4
    plan = Plan(
        symbols=(("batch", 1, MAX_BATCH),),
        buffers=(
            Buffer(Space.INPUT, 0, MAX_BATCH * row),
            Buffer(Space.WEIGHTS, 0, row),
            Buffer(Space.WEIGHTS, 128, row),
            Buffer(Space.ARENA, 64, MAX_BATCH * row),
            Buffer(Space.OUTPUT, 1, MAX_BATCH * row),
        ),
        steps=affine_steps(),
        arena_bytes=1024,
        scratch_bytes=64,
    )
    host = detect_host()
    header = EngineHeader(
        name="affine",
        fingerprint=Fingerprint(
            "cpu", host.architecture, (), host.system, abi.ABI_VERSION, VERSION
        ),
        bindings=(
            Binding("x", True, DType.FLOAT32, (BATCH, COLUMNS)),  # noqa: FBT003
            Binding("y", False, DType.FLOAT32, (BATCH, COLUMNS)),  # noqa: FBT003
        ),
        max_batch_size=MAX_BATCH,
        plans=(plan,),
        layers=(
            LayerInfo("scale1 + relu1", "mul", "rowwise"),
            LayerInfo("shift1", "add", "rowwise"),
        ),
        weights=(
            Weight("a", DType.FLOAT32, (COLUMNS,), 0, ("recipe", (("source", "a"),))),
            Weight("b", DType.FLOAT32, (COLUMNS,), 128, ("recipe", (("source", "b"),))),
        ),
        symbols=code_image()[1],
        runtime_symbols=runtime_image(detect_host().architecture)[1],
    )
    return replace(header, **changes)


def affine_weights() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A and b."""
    random = np.random.default_rng(7)
    return random.random(COLUMNS, np.float32), random.random(COLUMNS, np.float32)


def affine_data() -> bytes:
    """The packed weights."""
    a, b = affine_weights()
    return a.tobytes().ljust(128, b"\0") + b.tobytes()


def affine_engine(**changes: Any) -> Engine:
    """The engine itself."""
    return Engine.create(
        affine_header(**changes),
        affine_data(),
        code_image()[0],
        runtime_image(detect_host().architecture)[0],
    )


def affine(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the engine computes, in its order of rounding."""
    a, b = affine_weights()
    return x * a + b


def batch_of(rows: int, seed: int = 0) -> NDArray[np.float32]:
    """Some input."""
    return np.random.default_rng(seed).standard_normal((rows, COLUMNS)).astype(np.float32)


def host_header() -> EngineHeader:
    """T = x * a; u = relu(t), by its reference; y = u + b."""
    header = affine_header()
    (plan,) = header.plans
    relu = HostCall(
        op_to_json(Relu()), (view(3, BATCH, COLUMNS),), (view(5, BATCH, COLUMNS),), layer=1
    )
    first, second = plan.steps
    assert isinstance(second, Launch)
    second = replace(second, operands=(view(5, BATCH, COLUMNS), *second.operands[1:]))
    buffers = (*plan.buffers, Buffer(Space.ARENA, 1024, MAX_BATCH * COLUMNS * 4))
    steps = (first, relu, second)
    return replace(header, plans=(replace(plan, buffers=buffers, steps=steps, arena_bytes=2048),))


def counting_header() -> EngineHeader:
    """Y = the indices of x's non-zero elements: as many columns as there are."""
    count = SymbolicDim.symbol("count")
    call = HostCall(
        op_to_json(NonZero()),
        (replace(view(0, BATCH, 4), dtype=DType.FLOAT32),),
        (replace(view(1, 2, count), dtype=DType.INT64),),
        sizes=(("count", 0, 1),),
    )
    plan = Plan(
        (("batch", 1, 6), ("count", 0, 20)),
        (Buffer(Space.INPUT, 0, 96), Buffer(Space.OUTPUT, 1, 320)),
        (call,),
        0,
        0,
    )
    bindings = (
        Binding("x", is_input=True, dtype=DType.FLOAT32, shape=(BATCH, 4)),
        Binding("y", is_input=False, dtype=DType.INT64, shape=(2, count)),
    )
    return replace(affine_header(), plans=(plan,), bindings=bindings, weights=())
