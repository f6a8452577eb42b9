"""What an op is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from smelt.errors import GraphError, IndexRangeError, ShapeError, SmeltError
from smelt.types import DType, TensorType, out_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from smelt.ir._graph import Graph
    from smelt.types import Dim, ValueType

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Operand:
    """What is known of an input while types are inferred."""

    type: ValueType
    value: Array | None = None
    """The elements, when they are constant."""
    dims: tuple[Dim, ...] | None = None
    """The elements of an integer scalar or vector, when they are known as dimensions (constants
    too)."""

    @property
    def tensor(self) -> TensorType:
        """The type, which must be a tensor's. Raises TypeError."""
        if not isinstance(self.type, TensorType):
            raise TypeError(f"expected a tensor, not {self.type}")
        return self.type

    @staticmethod
    def constant(array: Array) -> Operand:
        """The operand that is known to hold ``array``."""
        kind = TensorType(DType.from_numpy(array.dtype), array.shape)
        integral = kind.dtype.is_integer and array.ndim <= 1 and array.size <= 4096
        dims = tuple(int(x) for x in np.atleast_1d(array)) if integral else None
        return Operand(kind, array, dims)


@dataclass(frozen=True)
class Op(ABC):
    """An operation; its fields are its attributes, with ONNX's names and newest semantics."""

    name: ClassVar[str]
    """The ONNX name in snake_case; the class has the ONNX name itself."""

    @abstractmethod
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        """Types of the results; an absent optional input is None. Raises ShapeError."""

    @abstractmethod
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Meaning of the op, in numpy: clear before fast."""

    def reference_within(
        self, most: Mapping[str, int], /, *inputs: Array | None
    ) -> tuple[Array, ...]:
        """What `reference` gives, where ``most`` bounds the symbols that a run determines.

        An op that works as long as its data say refuses what is beyond before it does the work.
        Raises ShapeError.
        """
        del most
        return self.reference(*inputs)

    @classmethod
    @abstractmethod
    def cases(cls) -> Iterator[Case]:
        """Examples, for the documentation and for the conformance tests of every backend."""

    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        """The elements of the first result as dimensions, where they follow from ``inputs``."""
        del inputs
        return None

    def infer_results(
        self, inputs: Sequence[Operand | None], /
    ) -> tuple[tuple[ValueType, ...], tuple[Dim, ...] | None]:
        """What `infer` and `infer_dims` say; an op with regions infers these but once for both.

        Twice would be twice for each level of regions within regions.
        """
        return self.infer(inputs), self.infer_dims(inputs)

    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        """Multiplications and additions of the op's products; no other arithmetic is counted.

        Taps on padding count. 0 for an op that is no product. Raises ShapeError: only a run tells,
        as how often a Loop goes round.
        """
        del inputs
        if self.regions:
            raise ShapeError(f"the result type of {self.name} is known only at run time")
        return 0

    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        """Operations of the reference, but for those that go over inputs and results once or so.

        What is computed at build time is bounded by it. Raises ShapeError: only a run tells.
        """
        del results
        return self.count_flop(inputs)

    @property
    def elementwise(self) -> bool:
        """Whether each output element depends only on the input elements that broadcast onto it."""
        return False

    @property
    def regions(self) -> tuple[Graph, ...]:
        """Graphs that the op runs (If, Loop); what they capture are explicit inputs of the node."""
        return ()


def count_excess(name: str, found: int, most: int) -> str:
    """What an error says of a symbol that a run determines and that came out too large."""
    return (
        f"{name} is {found} and must be at most {most}: the maximum that the network declares, "
        "that max_workspace_bytes allows, or that the output array given to execute can hold"
    )


def evaluate(
    op: Op,
    arrays: Sequence[Array | None],
    where: str | None = None,
    most: Mapping[str, int] | None = None,
) -> tuple[Array, ...]:
    """What the reference of an op makes of arrays, which are not checked.

    What is infinite or not a number is an answer, and numpy does not warn of it. ``most`` has the
    largest values of symbols that a run determines.

    Raises GraphError: it fails on them. IndexRangeError: an index among them is out of range. Both
    name ``where``, the node. DeviceError: there is too little memory.
    """
    try:
        with np.errstate(all="ignore"):
            return op.reference_within(most or {}, *arrays)
    except (GraphError, IndexRangeError) as error:
        if where is None:
            raise
        named = f"{error.node} in {where}" if error.node else where
        known = next((k for k in (ShapeError, IndexRangeError) if isinstance(error, k)), GraphError)
        raise known(error.message, node=named) from error
    except SmeltError:
        raise
    except MemoryError as error:
        raise out_of_memory(where or op.name) from error
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        why = str(error) or type(error).__name__
        shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in arrays)
        message = f"the reference of {op.name} failed on {shapes}: {why}"
        raise GraphError(message, node=where) from error


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs on which every backend must agree with the reference."""

    name: str
    op: Op
    inputs: tuple[Array | None, ...]
    tolerance: float = 1e-4
    """Largest error allowed, relative to the output's largest magnitude; integers are always
    equal."""
    constants: frozenset[int] = frozenset()
    """Positions of the inputs that are constants of the graph (weights, axes, shapes)."""
