"""The plan verifier: it accepts what is sound, and names what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.engine import (
    ERROR_BYTES,
    Buffer,
    HostCall,
    Launch,
    Plan,
    Space,
    Step,
    View,
    verify_plan,
    verify_plans,
)
from smelt.engine import Weight as PackedWeight
from smelt.errors import EngineFormatError
from smelt.types import DType, SymbolicDim
from tests.support.engines import (
    ADD,
    BATCH,
    COLUMNS,
    MULTIPLY,
    affine_data,
    affine_header,
    code_image,
    view,
)

ROW = COLUMNS * 4
HEADER = affine_header()
PLAN = HEADER.plans[0]
FIRST, SECOND = (step for step in PLAN.steps if isinstance(step, Launch))


def verify(plan: Plan, **changes: Any) -> None:
    header = replace(HEADER, plans=(plan,), **changes)
    verify_plan(header, plan, weights_bytes=len(affine_data()))


def refuse(plan: Plan, words: str, **changes: Any) -> None:
    with pytest.raises(EngineFormatError, match=words):
        verify(plan, **changes)


def with_first(**changes: Any) -> Plan:
    return replace(PLAN, steps=(replace(FIRST, **changes), SECOND))


def with_buffer(index: int, buffer: Buffer) -> Plan:
    buffers = list(PLAN.buffers)
    buffers[index] = buffer
    return replace(PLAN, buffers=tuple(buffers))


def test_a_sound_engine_is_accepted() -> None:
    verify_plans(HEADER, weights_bytes=len(affine_data()), code_bytes=len(code_image()[0]))


@pytest.mark.parametrize(
    ("operand", "words"),
    [
        (replace(view(0, BATCH, COLUMNS), offset=4), r"bytes 4 to 580 of buffer 0.*batch = 6"),
        (replace(view(0, BATCH, COLUMNS), offset=-4), "bytes -4 to"),
        (replace(view(0, BATCH, COLUMNS), strides=(COLUMNS + 1, 1)), "of buffer 0"),
        (replace(view(0, BATCH, COLUMNS), strides=(-COLUMNS, 1)), "bytes -"),
        (replace(view(0, BATCH, COLUMNS), halo=((0, 0), (0, 1))), "of buffer 0"),
        (replace(view(0, BATCH, COLUMNS), halo=((1, 0),)), "rank 2 has a halo of rank 1"),
        (replace(view(0, BATCH, COLUMNS), halo=((0, 0), (-1, 0))), "negative"),
        (replace(view(0, BATCH, COLUMNS), strides=(1,)), "view of rank 2 has 1 stride"),
        (
            replace(view(0, BATCH, COLUMNS), shape=(1,) * 65, strides=(1,) * 65),
            "MAX_VIEW_AXES is 64",
        ),
        (view(9, BATCH, COLUMNS), "buffer 9, which does not exist"),
        (view(0, BATCH + 1, COLUMNS), "of buffer 0"),
        (view(0, BATCH - 3, COLUMNS), "the extents"),
        (view(0, SymbolicDim.symbol("n"), COLUMNS), "needs a value for the symbol 'n'"),
        (view(0, 1 << 62, 1 << 62), "the extents"),
    ],
)
def test_an_operand_outside_its_buffer_is_refused(operand: View, words: str) -> None:
    refuse(with_first(operands=(operand, *FIRST.operands[1:])), words)


def test_a_view_that_only_small_batches_push_out_is_refused() -> None:
    """At the largest batch it is inside; at the smallest it starts before the buffer."""
    shifted = replace(view(0, 1, COLUMNS), offset=(BATCH - 2) * ROW)
    refuse(with_first(operands=(shifted, *FIRST.operands[1:])), "batch = 1")


def test_a_bindings_own_size_counts_for_small_batches() -> None:
    """The application's array has one row when the batch is one."""
    fixed = view(0, 6, COLUMNS)
    refuse(with_first(operands=(fixed, *FIRST.operands[1:])), "which has 96")


@pytest.mark.parametrize("target", [0, 1])
def test_inputs_and_weights_are_never_written(target: int) -> None:
    shape = (BATCH, COLUMNS) if target == 0 else (COLUMNS,)
    operands = (view(3, COLUMNS), view(2, COLUMNS), view(target, *shape))
    refuse(with_first(operands=operands), "writes to the (input|weights)")


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (Buffer(Space.ARENA, 1000, 6 * ROW), "extends beyond the end of the arena"),
        (Buffer(Space.ARENA, -1, 6 * ROW), "the offset -1 and the size"),
        (Buffer(Space.ARENA, 0, 1 << 60), "of buffer . must be from 0 to"),
        (Buffer(Space.WEIGHTS, 200, 6 * ROW), "extends beyond the end of the weights"),
        (Buffer(Space.INPUT, 1, 6 * ROW), "refers to binding 1, which is not an input"),
        (Buffer(Space.OUTPUT, 0, 6 * ROW), "binding 0, which is not an output"),
        (Buffer(Space.OUTPUT, 7, 6 * ROW), "binding 7, which is not an output"),
        (
            Buffer(Space.ERRORS, len(HEADER.layers) * ERROR_BYTES, 8),
            "is not within the index error records",
        ),
        (Buffer(Space.ERRORS, 8, 8), "is not within the index error records"),
    ],
)
def test_a_buffer_outside_its_space_is_refused(buffer: Buffer, words: str) -> None:
    refuse(with_buffer(3, buffer), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chunks": -1}, "chunks"),
        ({"chunks": 1 << 40}, "chunks"),
        ({"chunks": BATCH - 2}, "-1 chunks"),
        ({"scratch_bytes": 65}, "scratch"),
        ({"writes": (3,)}, "does not exist"),
        ({"writes": (-1,)}, "does not exist"),
        ({"layer": 2}, "layer 2, which does not exist"),
        ({"scalars": (BATCH * (1 << 62),)}, "does not fit into 64 bits"),
        ({"scalars": (SymbolicDim.symbol("n"),)}, "'n'"),
    ],
)
def test_wrong_numbers_of_a_launch_are_refused(change: dict[str, Any], words: str) -> None:
    refuse(with_first(**change), words)


def test_error_words_are_written_by_launches_alone() -> None:
    words = View(len(PLAN.buffers), 0, DType.INT64, (2,), (1,))
    buffers = (*PLAN.buffers, Buffer(Space.ERRORS, 0, ERROR_BYTES))
    operands = (*FIRST.operands, words)
    detail = replace(with_first(operands=operands, writes=(*FIRST.writes, 3)), buffers=buffers)
    verify(detail)
    refuse(replace(with_first(operands=operands), buffers=buffers), "reads an index error record")
    call = HostCall(None, (), (words,))
    refuse(replace(detail, steps=(*detail.steps, call)), "host step writes an index error record")


def test_a_launch_may_work_in_place_but_on_nothing_shifted() -> None:
    same = view(3, BATCH, COLUMNS)
    verify(with_first(operands=(view(0, BATCH, COLUMNS), same, same)))
    shifted = replace(view(3, BATCH - 1, COLUMNS), offset=4)
    operands = (shifted, view(1, COLUMNS), replace(view(3, BATCH - 1, COLUMNS), offset=8))
    refuse(with_first(operands=operands), "operands 0 and 2 overlap")


def channels(first: int, last: int, **changes: Any) -> View:
    """Columns of buffer 3, which interleave with its other columns."""
    whole = view(3, BATCH, last - first)
    return replace(whole, offset=first * 4, strides=(COLUMNS, 1), **changes)


def test_interleaved_windows_of_one_buffer_do_not_overlap() -> None:
    parts = (channels(0, 10), view(1, COLUMNS), channels(10, 24))
    verify(replace(PLAN, steps=(FIRST, replace(FIRST, operands=parts), SECOND)))
    meeting = (channels(0, 11), view(1, COLUMNS), channels(10, 24))
    refuse(replace(PLAN, steps=(FIRST, replace(FIRST, operands=meeting), SECOND)), "overlap")


def sharing(*steps: Step) -> Plan:
    """A plan with another buffer, 5, on half of buffer 3's bytes, and one, 6, beside it."""
    buffers = (
        *PLAN.buffers,
        Buffer(Space.ARENA, 64, 3 * ROW),
        Buffer(Space.ARENA, 640, 3 * ROW),
    )
    return replace(PLAN, buffers=buffers, steps=steps)


def launch(source: int, target: int, **changes: Any) -> Launch:
    return Launch(
        ADD, (view(source, COLUMNS), view(1, COLUMNS), view(target, COLUMNS)), (2,), **changes
    )


def test_a_value_that_is_overwritten_before_it_is_read_is_refused() -> None:
    verify(sharing(launch(0, 3), launch(3, 4), launch(0, 5), launch(5, 4)))
    refuse(sharing(launch(0, 3), launch(0, 5), launch(3, 4)), "buffer 5 while buffer 3")


def test_a_value_that_is_read_before_it_is_written_must_not_be_the_last_runs_rest() -> None:
    refuse(sharing(launch(3, 4), launch(0, 5)), "buffer 5 while buffer 3")


def test_bytes_are_reused_only_when_the_earlier_use_is_surely_over() -> None:
    steps = (launch(0, 3), launch(3, 4), launch(0, 5, waits=False), launch(5, 4))
    refuse(sharing(*steps), "steps 1 and 2 may run at once")
    verify(sharing(launch(0, 3), launch(3, 4), launch(0, 6, waits=False), launch(6, 4)))


def test_launches_at_once_write_nothing_that_the_other_touches() -> None:
    refuse(sharing(launch(0, 3), launch(0, 5, waits=False)), "at once")


def test_symbols_must_be_declared_once_and_in_order() -> None:
    refuse(replace(PLAN, symbols=(("batch", 3, 2),)), "range of the symbol 'batch'")
    refuse(replace(PLAN, symbols=(("batch", -1, 2),)), "range")
    refuse(replace(PLAN, symbols=(("batch", 1, 6), ("batch", 1, 6))), "twice")
    refuse(replace(PLAN, symbols=()), "'batch'")


def test_what_plans_share_is_checked() -> None:
    size = len(affine_data())
    for changes, words in (
        ({"symbols": (("k", 1 << 40),)}, "outside the engine's code"),
        ({"symbols": ((MULTIPLY.symbol, 0),)}, "no kernel"),
        ({"plans": ()}, "no plan"),
        ({"bindings": HEADER.bindings[:1] * 2}, "same name"),
        ({"weights": (PackedWeight("w", DType.FLOAT32, (1 << 40,), 0),)}, "outside its section"),
        ({"weights": (PackedWeight("w", DType.FLOAT32, (-1, -1), 0),)}, "outside its section"),
    ):
        with pytest.raises(EngineFormatError, match=words):
            verify_plans(replace(HEADER, **changes), weights_bytes=size, code_bytes=10_000)


@given(st.integers(0, 40), st.integers(1, 8), st.integers(0, 40), st.integers(1, 8))
def test_overlap_of_windows_is_found_exactly(a: int, m: int, b: int, n: int) -> None:
    """Two combs with the same distance between teeth meet where their teeth do."""
    distance, teeth = 9, 4
    first = View(3, a * 4, DType.FLOAT32, (teeth, min(m, distance)), (distance, 1))
    second = View(3, b * 4, DType.FLOAT32, (teeth, min(n, distance)), (distance, 1))
    cells = [
        {start + i * distance + j for i in range(teeth) for j in range(width)}
        for start, width in ((a, min(m, distance)), (b, min(n, distance)))
    ]
    plan = with_first(operands=(first, view(1, COLUMNS), second))
    if cells[0] & cells[1] and first != second:
        refuse(plan, "overlap")
    else:
        verify(plan)


def test_a_plan_whose_outputs_are_not_those_of_the_bindings_is_refused() -> None:
    plan = HEADER.plans[0]
    shapes = plan.shapes(HEADER.bindings)
    own = tuple(s for s, b in zip(shapes, HEADER.bindings, strict=True) if not b.is_input)
    wrong = {
        "differ from those of the bindings": ((*own, ()), ((), *own[1:])),
        "uses the undefined symbol 'what'": (
            ((SymbolicDim.symbol("what"),) * len(own[0]), *own[1:]),
        ),
    }
    for words, outputs in wrong.items():
        for one in outputs:
            header = replace(HEADER, plans=(replace(plan, outputs=one),))
            with pytest.raises(EngineFormatError, match=words):
                verify_plans(header, weights_bytes=len(affine_data()), code_bytes=10_000)
