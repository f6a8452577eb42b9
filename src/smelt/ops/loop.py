"""Loop: a region that runs repeatedly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smelt.errors import ShapeError
from smelt.ir import Case, Graph, Op, Operand, count_excess
from smelt.ops._region import infer_region, require_condition, run_region, truth, types_for_arrays
from smelt.ops._shape import INDICES, known, optional_type, require_dtype
from smelt.ops._shape_operands import known_dims, operand_at, optional_array
from smelt.ops.arithmetic import Add
from smelt.ops.identity import Identity
from smelt.ops.logic import Less
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
"""Approximate size in bytes of an array object without its elements."""


@dataclass(frozen=True)
class Loop(Op):
    """A region (the body) that runs repeatedly, each time on the states of the previous iteration.

    The loop ends when the condition is false or after a maximum number of iterations (trips).

    The inputs are the maximum number of trips (optional), the first condition (optional),
    ``state_count`` states (loop-carried values), then the captures. The inputs of the body are the
    number of the trip, the condition, the states and the captures. Its results are the next
    condition, the next states and the scan outputs, which the node stacks with one element for each
    trip. The number of trips is known if the maximum is constant and the condition stays true.
    Otherwise the extent of the stacks is the symbol ``count_symbol``, which a run determines; the
    graph declares its upper bound.

    Shapes: (trips?, condition?, states…, captures…) -> (states…, scan outputs with the trips as a
    first axis…).

    Dtypes: the trips are int64, conditions bool, the others any.

    Raises ShapeError: when the inputs do not match the body, a state changes its type between
    trips, or the loop exceeds MAX_LOOP_TRIPS or MAX_LOOP_BYTES, also in the reference.

    Source: ONNX Loop-21, with explicit captures.
    """

    name: ClassVar[str] = "loop"

    body: Graph
    """Region that each trip runs."""
    state_count: int
    """Number of loop-carried values."""
    count_symbol: str = "loop_count"
    """Symbol of the number of trips, if only a run determines it."""

    @property
    @override
    def regions(self) -> tuple[Graph, ...]:
        return (self.body,)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        start: bool | None = True
        if operand_at(inputs, 1) is not None:
            start = require_condition(operand_at(inputs, 1), self.name)
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
        types: list[ValueType] = []
        outside = _symbols_outside(inputs)
        for index, (before, after) in enumerate(zip(states, results[1:], strict=False)):
            types.append(_same_state(index, before, after, outside))
        count = self._count(inputs, start=start)
        if isinstance(count, int) and count > Limit.MAX_LOOP_TRIPS.most:
            raise ShapeError(f"loop has {Limit.MAX_LOOP_TRIPS.excess(count)}")
        for scan in results[1 + self.state_count :]:
            kind = scan.type
            if not isinstance(kind, TensorType):
                raise ShapeError(f"a scan output of loop must be a tensor, not {kind}")
            types.append(TensorType(kind.dtype, (count, *kind.shape)))
            size = element_count((count, *kind.shape)) * kind.dtype.size_bytes
            if isinstance(size, int) and size > Limit.MAX_LOOP_BYTES.most:
                raise ShapeError(
                    f"the scan outputs of loop have {Limit.MAX_LOOP_BYTES.excess(size)}"
                )
        return tuple(types)

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
        """Return whether the condition provably stays true."""
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
        is_running = condition is None or truth(condition)
        rows: list[list[Array]] = []
        if is_running and limit is not None and self._keeps_condition():
            self._check_trips(limit, most)
        inner_bounds = {
            name: maximum for name, maximum in most.items() if name != self.count_symbol
        }
        trip = held_bytes = 0
        while is_running and (limit is None or trip < limit):
            self._check_trips(trip + 1, most)
            flags = (np.asarray(trip, np.int64), np.asarray(is_running))
            results = run_region(self.body, [*flags, *states, *captures], inner_bounds)
            is_running = truth(results[0])
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
        """Check a number of trips against its limits. Raises ShapeError."""
        if trips > Limit.MAX_LOOP_TRIPS.most:
            raise ShapeError(f"a loop has {Limit.MAX_LOOP_TRIPS.excess(trips)}")
        if trips > (maximum := most.get(self.count_symbol, trips)):
            raise ShapeError(count_excess(self.count_symbol, trips, maximum))

    def _empty_stacks(self, arrays: list[Array | None]) -> list[Array]:
        """Return the empty stacks of a loop without trips, with the shapes of the scan outputs."""
        flags = (np.asarray(0, np.int64), np.asarray(0, np.bool_))
        kinds = types_for_arrays(self.body, [*flags, *arrays])[1 + self.state_count :]
        stacks: list[Array] = []
        for kind in kinds:
            if not isinstance(kind, TensorType):
                raise ShapeError(f"a scan output of loop must be a tensor, not {kind}")
            # An extent that only a trip determines is 0, because there was no trip.
            shape = [d if isinstance(d, int) else 0 for d in kind.shape]
            stacks.append(np.zeros((0, *shape), kind.dtype.numpy))
        return stacks

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
    """Check that the scan outputs of a trip have the shapes of the first. Raises ShapeError."""
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
    """Return the type of a state, which must not change between trips. Raises ShapeError.

    If symbols from ``outside`` the loop decide it, guards are recorded. Extents that only a trip
    determines are checked in each trip.
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
    """Return the symbols of the shapes and known elements of the inputs."""
    operands = [o for o in inputs if o is not None]
    shapes = [o.type.shape for o in operands if isinstance(o.type, TensorType)]
    return symbols_of(
        *(d for shape in shapes for d in shape), *(d for o in operands for d in o.dims or ())
    )


def _body(shape: tuple[int, ...]) -> Graph:
    body = Graph("body")
    body.add_input("trip", TensorType(DType.INT64, ()))
    body.add_input("condition", TensorType(DType.BOOL, ()))
    body.add_input("state", TensorType(DType.FLOAT32, shape))
    body.add_input("step", TensorType(DType.FLOAT32, shape))
    return body


def _summing_body() -> Graph:
    """Return a body that adds the capture to the state and returns each sum as a scan output."""
    body = _body((2,))
    _, condition, state, step = body.inputs
    flag = body.add(Identity(), condition, name="same condition").output
    total = body.add(Add(), state, step, name="sum").output
    body.outputs = [flag, total, body.add(Identity(), total, name="kept").output]
    return body


def _bounded_body() -> Graph:
    """Return a body that doubles the state while it is less than the capture."""
    body = _body(())
    _, _, state, bound = body.inputs
    double = body.add(Add(), state, state, name="double").output
    flag = body.add(Less(), double, bound, name="less").output
    body.outputs = [flag, double, body.add(Identity(), state, name="kept").output]
    return body
