"""If and Loop: ops whose attributes are graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from smelt.errors import InternalError, ShapeError
from smelt.ir import Case, Graph, Operand, check_array, check_guards, clone, count_excess, evaluate
from smelt.ops._base import BuiltinOp
from smelt.ops._shape import INDICES, known, optional_type, require_dtype
from smelt.ops._shape_operands import input_at, known_dims, present, sample
from smelt.ops.arithmetic import Add, Mul, Sub
from smelt.ops.logic import Less
from smelt.ops.reshaping import Identity
from smelt.types import (
    DType,
    Limit,
    SymbolicDim,
    TensorType,
    assume_equal,
    counted,
    element_count,
    override,
    symbol_of,
    symbols_of,
)

if TYPE_CHECKING:
    from smelt.ir import Array, Value
    from smelt.types import Dim, ValueType


def infer_region(op_name: str, region: Graph, operands: Sequence[Operand | None]) -> list[Operand]:
    """Infer a region for operands and return those of its results. Raises ShapeError."""
    if len(operands) != len(region.inputs):
        raise ShapeError(
            f"op {op_name} passes {counted(len(operands), 'value')} to region {region.name!r}, "
            f"which has {counted(len(region.inputs), 'input')}"
        )
    for value, operand in zip(region.inputs, operands, strict=True):
        if operand is None:
            raise ShapeError(
                f"op {op_name} passes no value for input {value.name!r} of region {region.name!r}"
            )
        value.type, value.dims = operand.type, operand.dims
    region.infer()
    return [value.operand for value in region.outputs]


def results_for_arrays(region: Graph, arrays: Sequence[Array | None]) -> list[Value]:
    """Return a region's results, typed for arrays, without running or changing the region.

    A copy is inferred, because inference changes the types of a region and a reference must not
    change its op. Elements of inputs are known only if they were known in the last inference of the
    region, so that a region that is never run cannot fail because of other elements.
    """
    copy = clone(region)
    for value, array in zip(copy.inputs, arrays, strict=True):
        if array is not None:
            known = Operand.constant(array)
            value.type = known.type
            value.dims = None if value.dims is None else known.dims
    copy.infer()
    return copy.outputs


def run_region(
    region: Graph, arrays: Sequence[Array | None], most: Mapping[str, int]
) -> list[Array]:
    """Run a region node by node on references; ``most`` has upper bounds of runtime symbols.

    Raises ShapeError when an array differs from its inferred type or a guard does not hold.
    """
    arrays_of_values: dict[Value, Array] = {}
    symbols: dict[str, int] = {}
    for value, array in zip(region.inputs, arrays, strict=True):
        if array is not None:
            check_array(value, array, symbols, region.name)
            arrays_of_values[value] = array
    for node in region.nodes:
        inputs = [None if v is None else _read(v, arrays_of_values) for v in node.inputs]
        check_guards(node.guards, symbols)
        results = evaluate(node.op, inputs, str(node), most)
        for value, array in zip(node.outputs, results, strict=True):
            check_array(value, array, symbols, str(node))
            arrays_of_values[value] = array
    return [_read(value, arrays_of_values) for value in region.outputs]


def _read(value: Value, arrays_of_values: dict[Value, Array]) -> Array:
    if value in arrays_of_values:
        return arrays_of_values[value]
    if value.constant is None:
        raise InternalError(f"a region reads {value.name} before it is computed")
    return value.constant.array


def require_condition(operand: Operand | None, what: str) -> bool | None:
    """Check that a condition is one bool; return its value or None. Raises ShapeError."""
    kind = None if operand is None else operand.type
    if not isinstance(kind, TensorType) or kind.dtype is not DType.BOOL:
        raise ShapeError(f"the condition of {what} is {kind or 'absent'}; it must be a bool tensor")
    if any(d != 1 for d in kind.shape):
        raise ShapeError(f"the condition of {what} is {kind}; it must have one element")
    known = operand.value if operand is not None else None
    return None if known is None else bool(known.reshape(-1)[0])


def truth(array: Array) -> bool:
    """Return the element of a condition as a bool."""
    return bool(np.asarray(array).reshape(-1)[0])


class If(BuiltinOp):
    """The results of ``then_branch`` if the condition is true, otherwise those of ``else_branch``.

    The inputs are the condition, then the captures, which are the inputs of both branches in the
    same order. If the results of the branches differ in an extent and the condition is not
    constant, the extent is the symbol ``{count_symbol}_{result}_{axis}``, which a run determines;
    the graph declares its upper bound.

    Shapes: (condition of one element, captures…) -> the branches' results.

    Dtypes: the condition is bool; captures and results have any type.

    Raises ShapeError: when the captures do not match the branches, the results of the branches
    differ in number, type or rank, or an extent differs and ``count_symbol`` is empty.

    Source: ONNX If-21, with explicit captures.
    """

    then_branch: Graph
    """Region that runs if the condition is true."""
    else_branch: Graph
    """Region that runs if the condition is false."""
    count_symbol: str = ""
    """Start of the names of the symbols of extents in which the branches differ."""

    @property
    @override
    def regions(self) -> tuple[Graph, ...]:
        return (self.then_branch, self.else_branch)

    @override
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        return self.infer_results(inputs)[0]

    @override
    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        return self.infer_results(inputs)[1]

    @override
    def infer_results(
        self, inputs: Sequence[Operand | None], /
    ) -> tuple[tuple[ValueType, ...], tuple[Dim, ...] | None]:
        condition = require_condition(input_at(inputs, 0), self.name)
        results = [infer_region(self.name, region, inputs[1:]) for region in self.regions]
        if len(results[0]) != len(results[1]):
            counts = " and ".join(str(len(r)) for r in results)
            raise ShapeError(f"the branches have different numbers of results: {counts}")
        if condition is not None:
            selected = results[0 if condition else 1]
            return tuple(o.type for o in selected), selected[0].dims if selected else None
        pairs = list(zip(*results, strict=True))
        types = tuple(self._merge(i, a.type, b.type) for i, (a, b) in enumerate(pairs))
        same = bool(pairs) and pairs[0][0].dims == pairs[0][1].dims
        return types, pairs[0][0].dims if same else None

    def _merge(self, index: int, a: ValueType, b: ValueType) -> ValueType:
        """Return the common type of a result; extents that differ become symbols."""
        if a == b:
            return a
        text = f"result {index} is {a} in one branch and {b} in the other; both must be equal"
        if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype is not b.dtype:
            raise ShapeError(text)
        if a.rank != b.rank or not self.count_symbol:
            raise ShapeError(text)
        shape: list[Dim] = []
        for axis, (left, right) in enumerate(zip(a.shape, b.shape, strict=True)):
            symbol = SymbolicDim.symbol(f"{self.count_symbol}_{index}_{axis}")
            shape.append(left if left == right else symbol)
        return TensorType(a.dtype, tuple(shape))

    @override
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return self.reference_within({}, *inputs)

    @override
    def reference_within(
        self, most: Mapping[str, int], /, *inputs: Array | None
    ) -> tuple[Array, ...]:
        region = self.then_branch if truth(present(inputs, 0)) else self.else_branch
        return tuple(run_region(region, inputs[1:], self._inner_bounds(region, most)))

    def _inner_bounds(self, region: Graph, most: Mapping[str, int]) -> Mapping[str, int]:
        """Return the upper bounds of a branch's symbols, including those of the results."""
        inside = dict(most)
        for index, value in enumerate(region.outputs):
            for axis, extent in enumerate(value.tensor.shape):
                outer_name, inner_name = f"{self.count_symbol}_{index}_{axis}", symbol_of(extent)
                if outer_name in most and inner_name is not None:
                    inside[inner_name] = most[outer_name]
        return inside

    @override
    @classmethod
    def cases(cls) -> Iterator[Case]:
        for truth_value in (True, False):
            flag = np.asarray(truth_value)
            yield Case(f"{truth_value}", cls(*_branches()), (flag, sample(2, 3)))
            constant = frozenset({0})
            arrays = (flag.reshape(1), sample(2, 3))
            yield Case(f"constant {truth_value}", cls(*_branches()), arrays, constants=constant)


def _branches() -> tuple[Graph, Graph]:
    """Return regions that compute ``2 * x`` and ``2 - x`` for the captured matrix."""
    regions: list[Graph] = []
    for name, op in (("then", Mul()), ("else", Sub())):
        region = Graph(name)
        value = region.add_input("x", TensorType(DType.FLOAT32, (2, 3)))
        two = region.add_constant(np.asarray(2, np.float32), "two")
        region.outputs = [region.add(op, two, value, name=f"{name}_result").output]
        regions.append(region)
    return regions[0], regions[1]


_ARRAY_BYTES = 128
"""Approximate size in bytes of an array object without its elements."""


class Loop(BuiltinOp):
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
        if input_at(inputs, 1) is not None:
            start = require_condition(input_at(inputs, 1), self.name)
        trips = optional_type(self, inputs, 0)
        if trips is not None:
            require_dtype(trips, INDICES, "the number of trips of loop")
        states = inputs[2 : 2 + self.state_count]
        if self.state_count < 0 or len(states) < self.state_count:
            raise ShapeError(
                f"loop has {counted(len(states), 'loop-carried value')}; expected "
                f"{self.state_count}"
            )
        results = self._infer_body(inputs)
        if len(results) < 1 + self.state_count:
            raise ShapeError(
                f"the body of loop has {counted(len(results), 'result')}; it must have the "
                f"condition and {counted(self.state_count, 'loop-carried value')}"
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
        trips, condition = input_at(inputs, 0), input_at(inputs, 1)
        limit = None if trips is None else int(trips.reshape(-1)[0])
        states = list(inputs[2 : 2 + self.state_count])
        captures = inputs[2 + self.state_count :]
        is_running = condition is None or truth(condition)
        rows: list[list[Array]] = []
        if is_running and limit is not None and self._keeps_condition():
            self._check_trips(limit, most)
        inner_bounds = {name: bound for name, bound in most.items() if name != self.count_symbol}
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
        values = results_for_arrays(self.body, [*flags, *arrays])[1 + self.state_count :]
        stacks: list[Array] = []
        for kind in (value.tensor for value in values):
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
            op = cls(_summing_body(), 1)
            yield Case(f"{trips} trips", op, arrays, constants=frozenset({0, 1}))
        counted = (np.asarray(3, np.int64), None, state, step)
        yield Case("number of trips known only at run time", cls(_summing_body(), 1), counted)
        no = (np.asarray(3, np.int64), ~yes, state, step)
        yield Case("condition false before the first trip", cls(_summing_body(), 1), no)
        until = (None, yes, np.asarray(1, np.float32), np.asarray(10, np.float32))
        yield Case("until the body ends the loop", cls(_bounded_body(), 1), until)


def _check_scans(first: Sequence[Array], scans: Sequence[Array], trip: int) -> None:
    """Check that the scan outputs of a trip have the shapes of the first. Raises ShapeError."""
    for index, (before, now) in enumerate(zip(first, scans, strict=True)):
        if now.shape == before.shape:
            continue
        for axis, (one, other) in enumerate(zip(before.shape, now.shape, strict=True)):
            if one != other:
                raise ShapeError(
                    f"axis {axis} of scan output {index} of loop has {counted(one, 'element')} in "
                    f"iteration 0 and {other} in iteration {trip}; they must be equal"
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
        named = f"loop-carried value {index} before and after a trip"
        if old.dtype is new.dtype and all(
            not symbols_of(b) <= outside or assume_equal(a, b, f"axis {axis} of {named}")
            for axis, (a, b) in enumerate(pairs)
        ):
            return TensorType(new.dtype, tuple(known(a, b) for a, b in pairs))
    raise ShapeError(
        f"loop-carried value {index} enters the body as {old} and leaves it as {new}; its dtype "
        "and shape must stay the same (use a scan output for results that grow)"
    )


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
