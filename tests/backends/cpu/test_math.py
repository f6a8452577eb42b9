"""The generated mathematics against numpy's in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from smelt import ops
from smelt.backends._fused_programs import op_as_json
from smelt.backends.cpu import host_target, target_named
from smelt.backends.cpu._elementwise import (
    emit_op,
    register_type,
    to_compute_type,
    to_storage_type,
    unsupported_op_reason,
)
from smelt.backends.cpu._emit import LLVM_TYPES, Emitter, Reg, vector_type
from smelt.ops import ALL_OPS
from smelt.types import DType
from tests.support.cpu_kernels import run_ir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from smelt.backends.cpu import CpuTarget
    from smelt.engine import Json
    from smelt.ir import Op

Array = np.ndarray[Any, Any]

NARROWER = {512: ("x86-64-v3", "x86-64"), 256: ("x86-64",), 128: ()}  # the last has no FMA
HOST = host_target()
TARGETS = [
    HOST,
    *(target_named(n) for n in NARROWER[HOST.vector_bits] if HOST.architecture == "x86_64"),
]


def elementwise(
    op: Json,
    arrays: Sequence[Array],
    result: DType,
    lanes: int = 16,
    target: CpuTarget | None = None,
) -> Array:
    """Compute an op by generated code: vectors, then a scalar tail."""
    count = arrays[0].size
    dtypes = [DType.from_numpy(a.dtype) for a in arrays]
    e = Emitter("elementwise", len(arrays) + 1)

    def block(index: Any, width: int) -> None:
        args: list[Reg] = []
        for position, dtype in enumerate(dtypes):
            at = e.at(e.pointer(position), e.mul(index, dtype.size_bytes))
            args.append(
                to_compute_type(e, e.load(vector_type(LLVM_TYPES[dtype], width), at), dtype)
            )
            assert args[-1].type == register_type(dtype, width)
        value = to_storage_type(e, emit_op(e, op, args, dtypes), result)
        e.store(value, e.at(e.pointer(len(arrays)), e.mul(index, result.size_bytes)))

    whole = count // lanes * lanes
    with e.loop(0, whole, lanes) as loop:
        block(loop.index, lanes)
    with e.loop(whole, count) as loop:
        block(loop.index, 1)
    out = np.zeros(count, result.numpy)
    return run_ir(e.module(), "elementwise", [*arrays, out], target=target)[-1]


def units_in_the_last_place(made: Array, wanted: Array) -> float:
    """The largest error in float32 units of the exact result; NaN and infinity must agree."""
    with np.errstate(over="ignore"):
        exact = wanted.astype(np.float32)
    assert np.array_equal(np.isnan(made), np.isnan(exact))
    finite = np.isfinite(exact) & np.isfinite(made)
    infinite = np.isinf(exact) != np.isinf(made)  # the largest float may round either way
    assert np.all(np.abs(wanted[infinite]) > 3.4028e38)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(exact[finite]), np.float32(2.0**-126)))
    return float(np.max(np.abs(made[finite] - wanted[finite]) / unit, initial=0.0))


def samples(low: float, high: float, *, specials: bool = True) -> Array:
    rng = np.random.default_rng(3)
    parts: list[Any] = [rng.uniform(low, high, 40_000), np.linspace(low, high, 5_001)]
    if specials:
        tiny = 10.0 ** rng.uniform(-38, 0, 2_000)
        parts += [tiny, -tiny, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3e38, -3e38]]
    return np.concatenate(parts).astype(np.float32)


def exact_erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x])


FUNCTIONS: list[tuple[str, Callable[[Array], Array], float, float, float]] = [
    ("exp", np.exp, -110, 95, 1.6),
    ("log", np.log, 0, 100, 2),
    ("tanh", np.tanh, -12, 12, 2),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), -80, 80, 3),
    ("softplus", lambda x: np.logaddexp(0, x), -80, 80, 3),
    ("erf", exact_erf, -5, 5, 2),
    ("sin", np.sin, -1000, 1000, 2),
    ("cos", np.cos, -1000, 1000, 2),
    ("tan", np.tan, -1000, 1000, 4),
    ("sin", np.sin, -3e38, 3e38, 2),
    ("cos", np.cos, -3e38, 3e38, 2),
    ("tan", np.tan, -3e38, 3e38, 4),
    ("asin", np.arcsin, -1.1, 1.1, 2.5),
    ("acos", np.arccos, -1.1, 1.1, 4),
    ("atan", np.arctan, -50, 50, 3),
    ("sinh", np.sinh, -89, 89, 5),
    ("cosh", np.cosh, -89, 89, 5),
    ("asinh", np.arcsinh, -50, 50, 4),
    ("acosh", np.arccosh, 0.9, 50, 4),
    ("atanh", np.arctanh, -1.1, 1.1, 4),
    ("floor", np.floor, -9, 9, 0),
    ("ceil", np.ceil, -9, 9, 0),
    ("round", np.rint, -9, 9, 0),
    ("sqrt", np.sqrt, -1, 1e6, 0.51),
    ("reciprocal", lambda x: 1 / x, -9, 9, 0.51),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("name", "function", "low", "high", "limit"),
    FUNCTIONS,
    ids=lambda f: f if isinstance(f, str) else "",
)
def test_functions_are_right_to_a_few_units_in_the_last_place(
    name: str,
    function: Callable[[Array], Array],
    low: float,
    high: float,
    limit: float,
    target: CpuTarget,
) -> None:
    x = samples(low, high)
    with np.errstate(all="ignore"):
        wanted = function(x.astype(np.float64))
    lanes = target.vector_bits // 32
    made = elementwise((name, ()), [x], DType.FLOAT32, lanes, target)
    assert units_in_the_last_place(made, wanted) <= limit
    zeros = np.isin(x, [0.0]) & (wanted == 0)
    assert np.array_equal(np.signbit(made[zeros]), np.signbit(wanted[zeros]))


def every_kind_of_float() -> Array:
    """A million floats, equally many of each magnitude, and all that lie about the borders."""
    rng = np.random.default_rng(7)
    borders = [0.0, 2.0**-126, 1e-4, 0.625, 1.0, 3.92, 4.0, 9.01, 10.06, 14.3, 88.72, 103.97, 104.0]
    bits = np.array(borders, np.float32).view(np.int32)[:, None] + np.arange(-300, 300)
    parts = [
        np.arange(0, 1 << 31, 4093),
        rng.integers(0x38000000, 0x43000000, 300_000),  # 3e-5 to 128
        np.maximum(bits, 0).ravel(),
        [0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x00000001, 0x007FFFFF],
    ]
    x = np.concatenate(parts).astype(np.int32).view(np.float32)
    return np.concatenate([x, -x])


def exact_gelu(x: Array) -> Array:
    upper = np.array([math.erfc(v) for v in -x / math.sqrt(2)])
    with np.errstate(invalid="ignore"):  # minus infinity times nothing
        return np.asarray(x * upper / 2)


DENSE: list[tuple[Op, Callable[[Array], Array], float, float]] = [
    (ops.Exp(), np.exp, 1.1, 1.1),
    (ops.Erf(), exact_erf, 1.4, 1.4),
    (ops.Tanh(), np.tanh, 1.6, 1.6),
    (ops.Sigmoid(), lambda x: 1 / (1 + np.exp(-x)), 2.5, 2.5),
    (ops.Gelu(), exact_gelu, 6.2, 70),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("op", "function", "limit", "without_fma"), DENSE, ids=[op.name for op, *_ in DENSE]
)
def test_exponentials_are_right_for_every_kind_of_float(
    op: Op,
    function: Callable[[Array], Array],
    limit: float,
    without_fma: float,
    target: CpuTarget,
) -> None:
    x = every_kind_of_float()
    with np.errstate(all="ignore"):
        wanted = function(x.astype(np.float64))
    made = elementwise(op_as_json(op), [x], DType.FLOAT32, target.vector_bits // 32, target)
    fused = target.has("fma") or target.architecture == "aarch64"
    assert units_in_the_last_place(made, wanted) <= (limit if fused else without_fma)
    zeros = np.isin(x, [0.0])
    assert np.array_equal(np.signbit(made[zeros]), np.signbit(wanted[zeros]))


def test_powers_follow_ieee_754() -> None:
    rng = np.random.default_rng(5)
    special = np.array([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan, 1e30])
    x, y = (v.ravel() for v in np.meshgrid(special, special))
    x = np.concatenate([x, rng.uniform(0, 9, 20_000), rng.uniform(-9, 9, 999)]).astype(np.float32)
    y = np.concatenate([y, rng.uniform(-40, 40, 20_000), rng.integers(-9, 9, 999)])
    y = y.astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), y.astype(np.float64))
    made = elementwise(("pow", ()), [x, y], DType.FLOAT32)
    assert units_in_the_last_place(made, wanted) <= 1.01
    zeros = wanted == 0
    assert np.array_equal(np.signbit(made[zeros]), np.signbit(wanted[zeros]))


def _cases() -> list[tuple[str, Op, tuple[Array, ...], float]]:
    found: list[tuple[str, Op, tuple[Array, ...], float]] = []
    for kind in ALL_OPS:
        if kind.name == "fused":
            continue
        for case in kind.cases():
            arrays = [a for a in case.inputs if a is not None]
            if not case.op.elementwise or len(arrays) != len(case.inputs) or not arrays:
                continue
            dtypes = [DType.from_numpy(a.dtype) for a in arrays]
            if unsupported_op_reason(case.op, dtypes) is None:
                name = f"{kind.name}-{case.name}"
                found.append((name, case.op, tuple(arrays), case.tolerance))
    return found


@pytest.mark.parametrize(
    ("op", "arrays", "tolerance"), [c[1:] for c in _cases()], ids=[c[0] for c in _cases()]
)
def test_every_elementwise_case_agrees_with_its_reference(
    op: Op, arrays: tuple[Array, ...], tolerance: float
) -> None:
    (wanted,) = op.reference(*arrays)
    flat = [np.ascontiguousarray(a).ravel() for a in np.broadcast_arrays(*arrays)]
    made = elementwise(op_as_json(op), flat, DType.from_numpy(wanted.dtype)).reshape(wanted.shape)
    if wanted.dtype.kind in "biu":
        assert np.array_equal(made, wanted)
    else:
        scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
        np.testing.assert_allclose(made, wanted, rtol=0, atol=tolerance * max(scale, 1e-30))


def test_division_never_traps() -> None:
    least = np.iinfo(np.int32).min
    x = np.array([5, -7, least, 9, 0] * 4, np.int32)
    y = np.array([0, 2, -1, -4, 0] * 4, np.int32)
    assert elementwise(("div", ()), [x, y], DType.INT32)[:5].tolist() == [0, -3, least, -2, 0]
    assert elementwise(("mod", ()), [x, y], DType.INT32)[:5].tolist() == [0, 1, 0, -3, 0]
