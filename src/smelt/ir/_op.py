"""Interface of an op, with operands for inference, evaluation and test cases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from smelt.errors import GraphError, IndexRangeError, ShapeError, SmeltError
from smelt.signal_errors import pass_on_handler_error
from smelt.types import Dim, DType, TensorType, ValueType, out_of_memory

if TYPE_CHECKING:
    from smelt.ir._graph import Graph

Array = NDArray[Any]

INTERPRETED_OPERATIONS: Final = 1 << 15
"""Operations in the time of a trip of a loop in Python around numpy: some 10 us on x86-64."""
TEMPORARY_OPERATIONS: Final = 64
"""Operations counted for an element of a temporary array, which has up to 8 bytes: the limit on
operations then allows 1 GB."""
_MAX_DIMS = 4096
"""Largest number of elements of a constant that are known as dimensions."""


class Operand:
    """Known facts about an input during type inference.

    What inference reads of the elements decides on the network, so ``value`` and ``dims`` exclude
    the constants that the elements come from from refits.
    """

    __slots__ = ("_dims", "_fix", "elements", "type")

    def __init__(
        self,
        kind: ValueType,
        value: Array | None = None,
        dims: tuple[Dim, ...] | None = None,
        fix: Callable[[], object] | None = None,
    ) -> None:
        self.type = kind
        self.elements = value
        """Elements of a constant input, for checks that a refit repeats."""
        self._dims = dims
        self._fix = fix

    @property
    def value(self) -> Array | None:
        """Elements of the input if it is constant."""
        if self.elements is not None and self._fix is not None:
            self._fix()
        return self.elements

    @property
    def dims(self) -> tuple[Dim, ...] | None:
        """Elements of an integer scalar or vector as dimensions, if known (also for constants)."""
        dims = self._dims if self.elements is None else _dims_of(self.elements)
        if dims is not None and self._fix is not None:
            self._fix()
        return dims

    def tentative(self, reads: list[Callable[[], object]]) -> Operand:
        """Return the operand of which each read adds to ``reads`` what excludes from refits."""
        fix = self._fix
        if fix is None:
            return self
        return Operand(self.type, self.elements, self._dims, lambda: reads.append(fix))

    @property
    def tensor(self) -> TensorType:
        """Type as a tensor type. Raises TypeError when it is another type."""
        if not isinstance(self.type, TensorType):
            raise TypeError(f"expected a tensor, not {self.type}")
        return self.type

    @staticmethod
    def constant(array: Array) -> Operand:
        """Return the operand of a constant input."""
        return Operand(TensorType(DType.from_numpy(array.dtype), array.shape), array)


def _dims_of(array: Array) -> tuple[int, ...] | None:
    """Return the elements of a short vector of integers or of an integer; None for others."""
    if array.ndim > 1 or array.size > _MAX_DIMS or not DType.from_numpy(array.dtype).is_integer:
        return None
    return tuple(int(x) for x in np.atleast_1d(array))


@dataclass(frozen=True)
class Op(ABC):
    """Operation; its fields are its attributes, with the names and newest semantics of ONNX."""

    name: ClassVar[str]
    """The ONNX name in snake_case; the class has the ONNX name itself."""
    is_recipe_step: ClassVar[bool] = False
    """Whether a file may contain the computation of a constant by this op, for refits and retunes.

    The reference must take time and memory in proportion to its inputs and results, apart from what
    `count_work` counts, because files are not trusted.
    """

    @abstractmethod
    def infer(self, inputs: Sequence[Operand | None], /) -> tuple[ValueType, ...]:
        """Return the types of the results; an absent optional input is None.

        Raises ShapeError when the inputs do not fit the op.
        """

    @abstractmethod
    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Compute the op in numpy; the reference defines the op and prefers clarity over speed."""

    def reference_within(
        self, most: Mapping[str, int], /, *inputs: Array | None
    ) -> tuple[Array, ...]:
        """Compute `reference`; ``most`` has upper bounds of the symbols that a run determines.

        An op whose amount of work depends on its data (Loop) checks the bound before the work.
        Raises ShapeError when a bound is exceeded.
        """
        del most
        return self.reference(*inputs)

    @classmethod
    @abstractmethod
    def cases(cls) -> Iterator[Case]:
        """Yield examples for the documentation and for the conformance tests of every backend."""

    def infer_dims(self, inputs: Sequence[Operand | None], /) -> tuple[Dim, ...] | None:
        """Return the elements of the first result as dimensions, or None if they are unknown."""
        del inputs
        return None

    def infer_results(
        self, inputs: Sequence[Operand | None], /
    ) -> tuple[tuple[ValueType, ...], tuple[Dim, ...] | None]:
        """Return the results of `infer` and `infer_dims`.

        An op with regions overrides this method to infer its regions once for both; otherwise the
        time would double with each level of nested regions.
        """
        types = self.infer(inputs)
        reads: list[Callable[[], object]] = []
        dims = self.infer_dims([None if o is None else o.tentative(reads) for o in inputs])
        # Of constants alone the result is a constant with a recipe, which a refit computes again.
        if dims is not None and any(o is not None and o.elements is None for o in inputs):
            for fix in reads:
                fix()
        return types, dims

    def count_flop(self, inputs: Sequence[Operand | None], /) -> Dim:
        """Return the multiplications and additions of matrix products and convolutions.

        Other arithmetic is not counted, so other ops return 0. Taps on padding are counted. Raises
        ShapeError when the number is known only at run time, such as for a Loop.
        """
        del inputs
        if self.regions:
            raise ShapeError(f"the number of operations of {self.name} is known only at run time")
        return 0

    def count_work(self, inputs: Sequence[Operand | None], results: Sequence[ValueType], /) -> Dim:
        """Return the operations of the reference beyond a few passes over inputs and results.

        It limits what is computed at build time, so it also counts what takes longer than a pass: a
        trip of a loop in Python as `INTERPRETED_OPERATIONS`, an element of a slow function or of a
        large temporary array as several. Raises ShapeError when the number is known only at run
        time.
        """
        del results
        return self.count_flop(inputs)

    @property
    def elementwise(self) -> bool:
        """Whether each result element depends only on the input elements that broadcast to it."""
        return False

    @property
    def regions(self) -> tuple[Graph, ...]:
        """Graphs that the op runs (If, Loop); values they capture are explicit node inputs."""
        return ()


def count_excess(name: str, found: int, most: int) -> str:
    """Return the message for a symbol whose value at run time exceeds its maximum."""
    return (
        f"the symbol {name} is {found}, above its maximum {most}, which is set by the network, by "
        "max_workspace_bytes or by the size of the output array given to execute"
    )


def evaluate(
    op: Op,
    arrays: Sequence[Array | None],
    where: str | None = None,
    most: Mapping[str, int] | None = None,
) -> tuple[Array, ...]:
    """Run the reference of an op on arrays, which are not checked.

    Infinity and NaN are valid results, so numpy's warnings about them are off. ``most`` has upper
    bounds of the symbols that a run determines. ``where`` is the node that errors name.

    Raises:
        GraphError: the reference fails on the arrays.
        IndexRangeError: an index among the arrays is out of range.
        DeviceError: the process is out of memory.
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
        pass_on_handler_error(error)
        reason = str(error) or type(error).__name__
        shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in arrays)
        message = f"the reference method of {op.name} failed on {shapes}: {reason}"
        raise GraphError(message, node=where) from error


@dataclass(frozen=True, slots=True)
class Case:
    """Test case: inputs on which every backend must agree with the reference."""

    name: str
    op: Op
    inputs: tuple[Array | None, ...]
    tolerance: float = 1e-4
    """Largest absolute error, relative to the largest magnitude of the output. Integers must always
    be equal."""
    constants: frozenset[int] = frozenset()
    """Positions of the inputs that are constants of the graph (weights, axes, shapes)."""
