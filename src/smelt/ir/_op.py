"""What an op is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from smelt.errors import ShapeError
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
            raise TypeError(f"a tensor is needed, not {self.type}")
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

    @classmethod
    @abstractmethod
    def cases(cls) -> Iterator[Case]:
        """Examples, for the documentation and for the conformance tests of every backend."""

    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        """The elements of the first result as dimensions, where they follow from ``inputs``."""
        del inputs
        return None

    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        """Multiplications and additions of the op's products; no other arithmetic is counted.

        Taps on padding count. 0 for an op that is no product. Raises ShapeError: only a run tells,
        as how often a Loop goes round.
        """
        del inputs
        if self.regions:
            raise ShapeError(f"only a run tells what {self.name} computes")
        return 0

    @property
    def elementwise(self) -> bool:
        """Whether each output element depends only on the input elements that broadcast onto it."""
        return False

    @property
    def regions(self) -> tuple[Graph, ...]:
        """Graphs that the op runs (If, Loop); what they capture are explicit inputs of the node."""
        return ()


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
