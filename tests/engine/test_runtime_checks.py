"""A run's conditions: they say of each set of values what the full verifier says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.backends import contiguous_strides
from smelt.engine import (
    Binding,
    Buffer,
    CachedRuntimeChecks,
    EngineHeader,
    Fingerprint,
    HostCall,
    KernelSpec,
    Launch,
    LayerInfo,
    Plan,
    RuntimeChecks,
    Space,
    View,
    verify_plan,
    verify_plan_at,
)
from smelt.errors import EngineFormatError, InternalError, ShapeError
from smelt.ops import NonZero, op_to_json
from smelt.types import (
    DimTable,
    DType,
    Guard,
    Layout,
    Relation,
    SymbolicDim,
    TensorType,
    bounds_of,
    evaluate_dim,
)
from tests.support.verdicts import ComparedVerdicts, DifferingVerdictsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from smelt.engine import Step
    from smelt.types import Dim

N, M = SymbolicDim.symbol("n"), SymbolicDim.symbol("m")
BOX = {"n": (0, 9), "m": (1, 7)}
KERNEL = KernelSpec("any", ())


def header_of(plan: Plan, *bindings: Binding) -> EngineHeader:
    fingerprint = Fingerprint("cpu", "any", (), "linux", 0, "0")
    layers = (LayerInfo("layer", "any", "any"),)
    return EngineHeader("plan", fingerprint, bindings, None, (plan,), layers, ())


def plan_of(
    steps: tuple[Step, ...], sizes: tuple[int, ...], guards: tuple[Guard, ...] = ()
) -> Plan:
    """A plan whose buffers lie one behind the other in the arena."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pairs = zip(starts, sizes, strict=True)
    buffers = tuple(Buffer(Space.ARENA, start, size) for start, size in pairs)
    symbols = tuple((name, *ends) for name, ends in BOX.items())
    return Plan(symbols, buffers, steps, sum(sizes), 0, guards)


def contiguous(buffer: int, *shape: Dim, offset: Dim = 0) -> View:
    """A tensor without holes."""
    kind = TensorType(DType.FLOAT32, shape)
    return View(buffer, offset, kind.dtype, shape, contiguous_strides(kind, Layout.LINEAR))


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    """An extent that may be largest anywhere in the box, and may be negative in a part of it."""
    a, b, c = (draw(st.integers(-2, 3)) for _ in range(3))
    made: Dim = a * N + b * M + c
    if draw(st.booleans()):
        made = made * draw(st.sampled_from([N, M, 7 - M, 9 - N]))
    return made // 2 if draw(st.booleans()) else made


@st.composite
def views(draw: st.DrawFn, buffer: int) -> View:
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(dims()) for _ in range(rank))
    if draw(st.booleans()):
        return contiguous(buffer, *shape, offset=draw(dims()) * 4)
    strides = tuple(draw(st.one_of(dims(), st.integers(-2, 4))) for _ in range(rank))
    halo = tuple(draw(st.sampled_from([(0, 0), (0, 1), (2, 1)])) for _ in range(rank))
    return View(buffer, draw(dims()), DType.FLOAT32, shape, strides, halo)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    operands = tuple(draw(views(draw(st.integers(0, 1)))) for _ in range(draw(st.integers(1, 3))))
    launch = Launch(KERNEL, operands, (0,), chunks=draw(dims()))
    sizes = tuple(draw(st.sampled_from([0, 64, 400, 4000])) for _ in range(2))
    sides = (draw(dims()), draw(dims()))
    relation = draw(st.sampled_from(Relation))
    guards = (Guard(sides[0], relation, sides[1], "two extents", "op 'x'"),)
    return plan_of((launch,), sizes, guards if draw(st.booleans()) else ())


@given(plans(), st.integers(0, 9), st.integers(1, 7))
def test_conditions_and_the_full_verifier_agree_at_every_value(plan: Plan, n: int, m: int) -> None:
    header, values = header_of(plan), {"n": n, "m": m}
    for guard in plan.guards:
        if not guard.holds(values):
            with pytest.raises(ShapeError, match="two extents"):
                RuntimeChecks(header, plan).check(values)
            return
    assert refusal(verify_plan_at, header, plan, values) == refusal(
        RuntimeChecks(header, plan).check, values
    )


def refusal(check: Callable[..., None], *args: object) -> str:
    """What an EngineFormatError of the check says, nothing when there is none."""
    try:
        check(*args)
    except EngineFormatError as error:
        return str(error)
    return ""


@given(dims(), st.integers(0, 9), st.integers(1, 7))
def test_bounds_hold_for_every_value_in_the_box(dim: Dim, n: int, m: int) -> None:
    value = evaluate_dim(dim, {"n": n, "m": m})
    low, high = bounds_of(dim, BOX)
    assert low <= value <= high
    table = DimTable([dim])
    least, most = table.bounds(BOX)
    assert least[0] <= value <= most[0]
    assert int(table.evaluate({"n": n, "m": m})[0]) == value


def test_a_view_that_is_largest_between_the_corners_is_checked_there() -> None:
    """[n, 9 - n] has no element at either end of the range and 20 in its middle."""
    view = contiguous(0, N, 9 - N)
    conditions = RuntimeChecks(
        header_of(plan := plan_of((Launch(KERNEL, (view,), (0,)),), (72,))), plan
    )
    conditions.check({"n": 9, "m": 1})
    conditions.check({"n": 2, "m": 1})
    with pytest.raises(EngineFormatError, match="bytes 0 to 80 of buffer 0, which has 72"):
        conditions.check({"n": 4, "m": 1})


def test_what_holds_in_the_whole_box_leaves_nothing_to_check() -> None:
    view = contiguous(0, N, M)
    plan = plan_of((Launch(KERNEL, (view,), (0,), chunks=N),), (9 * 7 * 4,))
    assert not RuntimeChecks(header_of(plan), plan).stages()


def test_a_decided_symbol_is_checked_after_the_step_that_decides_it() -> None:
    call = HostCall(op_to_json(NonZero("n")), (), (contiguous(0, N),), sizes=(("n", 0, 0),))
    launch = Launch(KERNEL, (contiguous(1, N),), (0,))
    guard = Guard(N, Relation.EQUAL, M, "both extents", "op 'x'")
    plan = plan_of((call, launch), (36, 20), (guard,))
    conditions = RuntimeChecks(header_of(plan), plan)
    assert conditions.stages() == {0}
    conditions.check({"m": 5})
    conditions.check({"n": 5, "m": 5}, 0)
    with pytest.raises(ShapeError, match=r"op 'x': both extents: 4 \(n\) must equal 5 \(m\)"):
        conditions.check({"n": 4, "m": 5}, 0)
    with pytest.raises(EngineFormatError, match="bytes 0 to 28 of buffer 1"):
        conditions.check({"n": 7, "m": 7}, 0)


def test_a_step_before_the_one_that_decides_its_symbol_is_refused() -> None:
    call = HostCall(op_to_json(NonZero("n")), (), (contiguous(0, N),), sizes=(("n", 0, 0),))
    plan = plan_of((Launch(KERNEL, (contiguous(1, N),), (0,)), call), (36, 36))
    with pytest.raises(
        EngineFormatError, match="step 0 depends on a symbol that only the later step 1 determines"
    ):
        verify_plan(header_of(plan), plan, weights_bytes=0)


def test_extents_without_a_64_bit_value_are_refused() -> None:
    huge = N * M * (1 << 62)
    plan = plan_of((Launch(KERNEL, (contiguous(0, N, huge),), (0,)),), (36,))
    with pytest.raises(EngineFormatError, match="fit into 64 bits"):
        verify_plan(header_of(plan), plan, weights_bytes=0)


def test_an_applications_array_has_room_for_the_extents_of_the_run() -> None:
    binding = Binding("x", is_input=True, dtype=DType.FLOAT32, shape=(N, M))
    view = contiguous(0, N, 7)
    plan = plan_of((Launch(KERNEL, (view,), ()),), (0,))
    plan = replace(plan, buffers=(Buffer(Space.INPUT, 0, 9 * 7 * 4),))
    conditions = RuntimeChecks(header_of(plan, binding), plan)
    conditions.check({"n": 9, "m": 7})
    with pytest.raises(EngineFormatError, match="which has 216"):
        conditions.check({"n": 9, "m": 6})


def test_buffers_that_share_bytes_while_both_are_in_use_are_refused_at_load() -> None:
    """No corner shows it: there one of the two has no elements."""
    first, second = contiguous(0, N * (9 - N)), contiguous(1, N * (9 - N))
    steps = (
        Launch(KERNEL, (first,), (0,)),
        Launch(KERNEL, (second,), (0,)),
        Launch(KERNEL, (contiguous(2, 1), first), (0,)),
    )
    plan = plan_of(steps, (80, 80, 4))
    verify_plan(header_of(plan), plan, weights_bytes=0)
    moved = list(plan.buffers)
    moved[1] = Buffer(Space.ARENA, 40, 80)
    shared = replace(plan, buffers=tuple(moved))
    with pytest.raises(EngineFormatError, match="step 1 uses buffer 1 while buffer 0"):
        verify_plan(header_of(shared), shared, weights_bytes=0)


def test_verdicts_are_kept_for_as_many_values_as_the_limit_says() -> None:
    """64 sets of values are asked about once each; what comes beyond them takes their places."""
    view = contiguous(0, N, 99 - N)
    plan = plan_of((Launch(KERNEL, (view,), (0,)),), (4 * 50 * 49,))
    plan = replace(plan, symbols=(("n", 0, 99), ("m", 1, 7)))
    conditions, asked = RuntimeChecks(header_of(plan), plan), list[int]()
    verdicts = CachedRuntimeChecks(conditions)
    real = conditions.check

    def counted(values: dict[str, int], stage: int = -1) -> None:
        asked.append(values["n"])
        real(values, stage)

    conditions.check = counted  # type: ignore[method-assign, assignment]  # counts the calls
    for _ in range(3):
        for n in range(64):
            verdicts.check({"n": n, "m": 1})
    assert asked == list(range(64))
    verdicts.check({"n": 64, "m": 1})
    asked.clear()
    for n in range(65):
        verdicts.check({"n": n, "m": 1})
    assert asked, "65 verdicts are kept"


def test_a_refusal_is_not_kept() -> None:
    view = contiguous(0, N, 9 - N)
    plan = plan_of((Launch(KERNEL, (view,), (0,)),), (72,))
    verdicts = CachedRuntimeChecks(RuntimeChecks(header_of(plan), plan))
    for _ in range(2):
        with pytest.raises(EngineFormatError, match="which has 72"):
            verdicts.check({"n": 4, "m": 1})


@pytest.mark.parametrize(
    ("chunks", "right", "wrong"),
    [(N - 4, 4, 3), (N * (1 << 29), 3, 4), (M * N - 20, 9, 6)],
    ids=["negative", "too many", "of two symbols"],
)
def test_a_number_of_chunks_is_checked_at_the_values_of_a_run(
    chunks: Dim, right: int, wrong: int
) -> None:
    """Everything else about the launch holds in the whole box."""
    launch = Launch(KERNEL, (contiguous(0, 1),), (0,), chunks=chunks)
    plan = plan_of((launch,), (4,))
    conditions = RuntimeChecks(header_of(plan), plan)
    conditions.check({"n": right, "m": 3})
    with pytest.raises(EngineFormatError, match="chunks"):
        conditions.check({"n": wrong, "m": 3})


@pytest.mark.parametrize("writes", [(0,), (1,)])
def test_windows_that_only_some_values_let_overlap_are_checked_at_a_run(
    writes: tuple[int, ...],
) -> None:
    """Both windows lie in their buffer in the whole box; from n = 5 on they share bytes."""
    windows = (contiguous(0, N), contiguous(0, N, offset=16))
    plan = plan_of((Launch(KERNEL, windows, writes),), (52,))
    conditions = RuntimeChecks(header_of(plan), plan)
    conditions.check({"n": 4, "m": 1})
    with pytest.raises(EngineFormatError, match="0 and 1 overlap, and the step writes one of them"):
        conditions.check({"n": 5, "m": 1})


def test_windows_that_interleave_are_told_apart_byte_by_byte() -> None:
    """Rows of m and of 2 elements, side by side in rows of 7, as parts of a concatenation lie."""
    left = View(0, 0, DType.FLOAT32, (N, M), (7, 1))
    right = View(0, 20, DType.FLOAT32, (N, 2), (7, 1))
    plan = plan_of((Launch(KERNEL, (left, right), (0,)),), (9 * 7 * 4,))
    conditions = RuntimeChecks(header_of(plan), plan)
    conditions.check({"n": 9, "m": 5})
    with pytest.raises(EngineFormatError, match="operands 0 and 1 overlap"):
        conditions.check({"n": 9, "m": 6})


def test_windows_that_overlap_and_are_only_read_are_allowed() -> None:
    windows = (contiguous(0, N), contiguous(0, N, offset=16), contiguous(1, 1))
    plan = plan_of((Launch(KERNEL, windows, (2,)),), (52, 4))
    RuntimeChecks(header_of(plan), plan).check({"n": 9, "m": 1})


@pytest.mark.parametrize("way", ["passes", "refuses", "has no words"])
def test_verdicts_that_the_full_verifier_does_not_share_are_noticed(way: str) -> None:
    view = contiguous(0, N, 9 - N)
    plan = plan_of((Launch(KERNEL, (view,), (0,)),), (72,))
    header, values = header_of(plan), {"n": 4 if way == "passes" else 2, "m": 1}
    conditions = RuntimeChecks(header, plan)

    def wrong(values: dict[str, int], stage: int = -1) -> None:
        if way == "refuses":
            raise EngineFormatError(f"{values} at {stage}")
        if way == "has no words":
            raise InternalError("a run's conditions and the plan verifier disagree")

    ComparedVerdicts(header, plan, conditions).check({"n": 2, "m": 1})
    with pytest.raises(EngineFormatError, match="which has 72"):
        ComparedVerdicts(header, plan, conditions).check({"n": 4, "m": 1})
    conditions.check = wrong  # type: ignore[method-assign, assignment]  # a defect
    with pytest.raises(DifferingVerdictsError, match=f"n = {values['n']}"):
        ComparedVerdicts(header, plan, conditions).check(values)


def test_bounds_that_rounding_could_make_wrong_prove_nothing() -> None:
    """In float64 both terms of the offset are equal, and the bytes before the buffer are lost."""
    offset = N * (1 << 54) - (N * ((1 << 55) + 1) + 3) // 2
    assert evaluate_dim(offset, {"n": 1}) == -2
    plan = plan_of((Launch(KERNEL, (contiguous(0, 1, offset=offset),), (0,)),), (36,))
    with pytest.raises(EngineFormatError, match="does not fit into 64 bits"):
        RuntimeChecks(header_of(plan), plan)


def test_a_step_that_determines_an_unknown_symbol_is_refused() -> None:
    call = HostCall(op_to_json(NonZero("n")), (), (contiguous(0, N),), sizes=(("ghost", 0, 0),))
    plan = plan_of((call,), (36,))
    with pytest.raises(EngineFormatError, match="determines the undefined symbol 'ghost'"):
        verify_plan(header_of(plan), plan, weights_bytes=0)
