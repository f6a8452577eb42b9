"""Loop: a region run again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Graph, Op, Operand, count_excess
from smelt.ops._region import infer_region, require_condition, run_region, truth, types_for_arrays
from smelt.ops._shape import INDICES, known, optional_type, require_dtype
from smelt.ops._shape_operands import given, known_dims, optional_array
from smelt.ops.add import Add
from smelt.ops.identity import Identity
from smelt.ops.less import Less
from smelt.types import (
    DType,
    Limit,
    SymbolicDim,
    TensorType,
    assume_equal,
    element_count,
    override,
    symbols_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smelt.ir import Array
    from smelt.types import Dim, ValueType
_ARRAY_BYTES = 128
"""What an array takes beside its elements."""


@dataclass(frozen=True)
class Loop(Op):
    """A region run again and again, each time on the states that the last run left.

    It runs while its condition holds and at most a number of times.

    The inputs are the largest number of trips or nothing, the first condition or nothing,
    ``state_count`` states, then the captures. The body's inputs are the trip's number, the
    condition, the states and the captures; its results the next condition, the next states, and the
    scans, of which the node's results stack one element for each trip. How many trips there are is
    known when the number is constant and the condition stays true; else the extent of the stacks is
    the symbol ``count_symbol``, which a run determines and whose largest value the graph declares.

    Shapes: (trips?, condition?, states…, captures…) -> (states…, scans with the trips as a first
    axis…).

    Dtypes: the trips are int64, conditions bool, the rest any.

    Raises ShapeError: when the inputs do not fit the body, a state changes its type from trip to
    trip, or it runs or stacks more than MAX_LOOP_TRIPS or MAX_LOOP_BYTES; so does the reference.

    Source: ONNX Loop-21, with explicit captures.
    """

    name: ClassVar[str] = "loop"

    body: Graph
    state_count: int
    count_symbol: str = "loop_count"

    @property
    @override
    def regions(self) -> tuple[Graph, ...]:
        return (self.body,)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        start: bool | None = True
        if given(inputs, 1) is not None:
            start = require_condition(given(inputs, 1), self.name)
        trips = optional_type(self, inputs, 0)
        if trips is not None:
            require_dtype(trips, INDICES, "the number of trips of loop")
        states = inputs[2 : 2 + self.state_count]
        if self.state_count < 0 or len(states) < self.state_count:
            raise ShapeError(
                f"loop has {len(states)} loop-carried values, expected {self.state_count}"
            )
        results = self._infer_body(inputs)
        if len(results) < 1 + self.state_count:
            raise ShapeError(
                f"the body of loop has {len(results)} results, too few for {self.state_count} "
                "loop-carried values"
            )
        require_condition(results[0], f"{self.name}'s body")
        made: list[ValueType] = []
        outside = _symbols_outside(inputs)
        for index, (before, after) in enumerate(zip(states, results[1:], strict=False)):
            made.append(_same_state(index, before, after, outside))
        count = self._count(inputs, start=start)
        if isinstance(count, int) and count > Limit.MAX_LOOP_TRIPS.most:
            raise ShapeError(f"loop has {Limit.MAX_LOOP_TRIPS.excess(count)}")
        for scan in results[1 + self.state_count :]:
            kind = scan.type
            if not isinstance(kind, TensorType):
                raise ShapeError(f"a scan output of loop is a {kind}; it must be a tensor")
            made.append(TensorType(kind.dtype, (count, *kind.shape)))
            size = element_count((count, *kind.shape)) * kind.dtype.size_bytes
            if isinstance(size, int) and size > Limit.MAX_LOOP_BYTES.most:
                raise ShapeError(
                    f"the scan outputs of loop have {Limit.MAX_LOOP_BYTES.excess(size)}"
                )
        return tuple(made)

    def _infer_body(self, inputs: Sequence[Operand | None]) -> list[Operand]:
        states = [o and Operand(o.type) for o in inputs[2 : 2 + self.state_count]]
        counter = Operand(TensorType(DType.INT64, ()))
        flag = Operand(TensorType(DType.BOOL, ()))
        captures = inputs[2 + self.state_count :]
        return infer_region(self.name, self.body, [counter, flag, *states, *captures])

    def _count(self, inputs: Sequence[Operand | None], *, start: bool | None) -> Dim:
        dims = known_dims(inputs, 0)
        if start is False:
            return 0
        if dims and start and self._keeps_condition():
            return max(dims[0], 0) if isinstance(dims[0], int) else dims[0]
        return SymbolicDim.symbol(self.count_symbol)

    def _keeps_condition(self) -> bool:
        """Whether no trip ends the loop."""
        value = self.body.outputs[0]
        if value.operand.value is not None:
            return truth(value.operand.value)
        while value.producer is not None and isinstance(value.producer.op, Identity):
            source = value.producer.inputs[0]
            if source is None:
                return False
            value = source
        return value is self.body.inputs[1]

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return self.reference_within({}, *inputs)

    @override
    def reference_within(
        self, most: Mapping[str, int], /, *inputs: Array | None
    ) -> tuple[Array, ...]:
        trips, condition = optional_array(inputs, 0), optional_array(inputs, 1)
        limit = None if trips is None else int(trips.reshape(-1)[0])
        states = list(inputs[2 : 2 + self.state_count])
        captures = inputs[2 + self.state_count :]
        goes_on = condition is None or truth(condition)
        rows: list[list[Array]] = []
        if goes_on and limit is not None and self._keeps_condition():
            self._check_trips(limit, most)
        inside = {name: room for name, room in most.items() if name != self.count_symbol}
        trip = held_bytes = 0
        while goes_on and (limit is None or trip < limit):
            self._check_trips(trip + 1, most)
            flags = (np.asarray(trip, np.int64), np.asarray(goes_on))
            results = run_region(self.body, [*flags, *states, *captures], inside)
            goes_on = truth(results[0])
            states = list(results[1 : 1 + self.state_count])
            if scans := results[1 + self.state_count :]:
                rows.append(scans)
                _check_scans(rows[0], scans, trip)
            held_bytes += sum(array.nbytes + _ARRAY_BYTES for array in scans)
            if held_bytes > Limit.MAX_LOOP_BYTES.most:
                raise ShapeError(
                    f"the scan outputs of a loop have {Limit.MAX_LOOP_BYTES.excess(held_bytes)}"
                )
            trip += 1
        kept = [s for s in states if s is not None]
        if trip:
            stacks = [np.stack(column) for column in zip(*rows, strict=True)]
        else:
            stacks = self._empty_stacks([*states, *captures])
        return (*(s.copy() for s in kept), *stacks)

    def _check_trips(self, trips: int, most: Mapping[str, int]) -> None:
        """Refuse more trips than there may be. Raises ShapeError."""
        if trips > Limit.MAX_LOOP_TRIPS.most:
            raise ShapeError(f"a loop has {Limit.MAX_LOOP_TRIPS.excess(trips)}")
        if trips > (room := most.get(self.count_symbol, trips)):
            raise ShapeError(count_excess(self.count_symbol, trips, room))

    def _empty_stacks(self, arrays: list[Array | None]) -> list[Array]:
        """What a loop without a trip stacks: nothing, of the shape that a trip would have made."""
        flags = (np.asarray(0, np.int64), np.asarray(0, np.bool_))
        kinds = types_for_arrays(self.body, [*flags, *arrays])[1 + self.state_count :]
        made: list[Array] = []
        for kind in kinds:
            if not isinstance(kind, TensorType):
                raise ShapeError(f"a scan output of loop is a {kind}; it must be a tensor")
            # An extent that only a trip could tell is zero: there was none.
            shape = [d if isinstance(d, int) else 0 for d in kind.shape]
            made.append(np.zeros((0, *shape), kind.dtype.numpy))
        return made

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        state, step = np.asarray([1, 2], np.float32), np.asarray([0.5, -1], np.float32)
        yes = np.asarray(1, np.bool_)
        for trips in (4, 0):
            arrays = (np.asarray(trips, np.int64), yes, state, step)
            yield Case(
                f"{trips} trips", cls(_summing_body(), 1), arrays, constants=frozenset({0, 1})
            )
        counted = (np.asarray(3, np.int64), None, state, step)
        yield Case("trips only known when run", cls(_summing_body(), 1), counted)
        no = (np.asarray(3, np.int64), ~yes, state, step)
        yield Case("a condition that is false at once", cls(_summing_body(), 1), no)
        until = (None, yes, np.asarray(1, np.float32), np.asarray(10, np.float32))
        yield Case("until the body says so", cls(_bounded_body(), 1), until)


def _check_scans(first: Sequence[Array], scans: Sequence[Array], trip: int) -> None:
    """Refuse a trip whose scans cannot be stacked on those of the first. Raises ShapeError."""
    for index, (before, now) in enumerate(zip(first, scans, strict=True)):
        if now.shape == before.shape:
            continue
        for axis, (one, other) in enumerate(zip(before.shape, now.shape, strict=True)):
            if one != other:
                raise ShapeError(
                    f"axis {axis} of scan output {index} of loop has {one} elements in iteration "
                    f"0 and {other} in iteration {trip}; they must be equal"
                )


def _same_state(
    index: int, before: Operand | None, after: Operand, outside: frozenset[str]
) -> ValueType:
    """The type of a state, which no trip may change; of symbols from ``outside`` that is a guard.

    Of what only a trip decides, each trip finds out.
    """
    old, new = before and before.type, after.type
    if old == new:
        return new
    if isinstance(old, TensorType) and isinstance(new, TensorType) and old.rank == new.rank:
        pairs = tuple(zip(old.shape, new.shape, strict=True))
        if old.dtype is new.dtype and all(
            not symbols_of(b) <= outside
            or assume_equal(a, b, f"axis {axis} of state {index} before and after a trip")
            for axis, (a, b) in enumerate(pairs)
        ):
            return TensorType(new.dtype, tuple(known(a, b) for a, b in pairs))
    raise ShapeError(f"loop-carried value {index} changes its type from {old} to {new}")


def _symbols_outside(inputs: Sequence[Operand | None]) -> frozenset[str]:
    """The symbols in what is known of the inputs."""
    given_ = [o for o in inputs if o is not None]
    shapes = [o.type.shape for o in given_ if isinstance(o.type, TensorType)]
    return symbols_of(
        *(d for shape in shapes for d in shape), *(d for o in given_ for d in o.dims or ())
    )


def _body(shape: tuple[int, ...]) -> Graph:
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    body.add_input("condition", TensorType(DType.BOOL, ()))
    body.add_input("state", TensorType(DType.FLOAT32, shape))
    body.add_input("step", TensorType(DType.FLOAT32, shape))
    return body


def _summing_body() -> Graph:
    """Adds the capture to the state and keeps every sum."""
    body = _body((2,))
    _, condition, state, step = body.inputs
    flag = body.add(Identity(), condition, name="same condition").output
    total = body.add(Add(), state, step, name="sum").output
    body.outputs = [flag, total, body.add(Identity(), total, name="kept").output]
    return body


def _bounded_body() -> Graph:
    """Doubles the state while it is less than the capture."""
    body = _body(())
    _, _, state, bound = body.inputs
    double = body.add(Add(), state, state, name="double").output
    flag = body.add(Less(), double, bound, name="less").output
    body.outputs = [flag, double, body.add(Identity(), state, name="kept").output]
    return body
