"""What a node multiplies, described once for every schedule of products.

A *problem* answers what all families ask of a node: why no kernel computes it, in which formats its
operands are read, the sizes of its product and its packed weights. A *family* is a schedule: it
chooses parameters for the sizes, and leaves the rest to the problem and its lowering.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from smelt.backends._base import refusal_of
from smelt.backends._fused_programs import root_of
from smelt.backends._launch_scalars import LaunchScalars
from smelt.backends._node_operands import input_view, required_input
from smelt.backends.cuda.families._epilogue import FLOAT_NAMES, FLOATS, extra_views, plan_epilogue
from smelt.backends.cuda.families._product_launches import launches_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.backends._base import Operands, Tactic
    from smelt.backends.cuda._product_specs import ImplicitGemmKernel
    from smelt.backends.cuda._target import CudaTarget
    from smelt.backends.cuda._tile_configs import GemmShape
    from smelt.backends.cuda.families._epilogue import Epilogue
    from smelt.backends.cuda.families._product_launches import GemmIterationSpace
    from smelt.engine import Launch, View
    from smelt.ir import Constant, Node, Value
    from smelt.types import Dim, DType, Layout, TensorFormat

Formats = tuple["tuple[TensorFormat | None, ...]", "TensorFormat"]
"""Formats of a node's inputs, None for packed and absent ones, and of its result."""


class Problem(ABC):
    """One node with a bias and an epilogue: what is supported, and its operands."""

    layout: ClassVar[Layout]
    """Layout of the result, also of epilogue operands of its rank."""
    operand_count: int = 2
    """Number of images, matrices and weights; a bias follows them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.root_inputs = root_of(node)[1]

    @cached_property
    def reason(self) -> str | None:
        """Why no kernel for GPUs computes the node, or None."""
        if self.dtype not in FLOATS:
            return f"the input is {self.dtype.value}; only {FLOAT_NAMES} are supported"
        if reason := self.unsupported_reason():
            return reason
        return refusal_of(lambda: self.epilogue)

    @abstractmethod
    def unsupported_reason(self) -> str | None:
        """Return why no kernel computes the op, apart from its type and epilogue, or None."""

    @property
    def dtype(self) -> DType:
        """Element type of the first operand in the model."""
        return required_input(self.node, 0).tensor.dtype

    @property
    def bias(self) -> Value | None:
        """Bias of the root, or None."""
        count = self.operand_count
        return self.node.inputs[count] if self.root_inputs > count else None

    @property
    @abstractmethod
    def formats(self) -> Formats:
        """Formats of the operands and the result of a supported node."""

    @abstractmethod
    def bias_strides(self, view: View, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return the strides of the bias along the result's axes."""

    @cached_property
    def epilogue(self) -> Epilogue:
        """Epilogue of a supported node, after its bias."""
        return plan_epilogue(self.node, self.layout, int(self.bias is not None))

    def epilogue_fields(self) -> dict[str, Any]:
        """Return the kernel fields of the bias and the epilogue."""
        return {"bias": self.bias is not None, "stages": self.epilogue.stages}

    def extras(self, operands: Operands) -> list[tuple[View, tuple[Dim, ...]]]:
        """Return the bias and the epilogue operands, with strides along the result's axes."""
        extras = extra_views(self.node, operands)
        if self.bias is not None:
            view = input_view(operands, self.operand_count)
            extras.insert(0, (view, self.bias_strides(view, operands.outputs[0].shape)))
        return extras

    def constant_extras(self) -> Iterator[bool]:
        """Return whether each of these operands is a weight."""
        first = self.operand_count if self.bias is not None else self.root_inputs
        return (v.constant is not None for v in self.node.inputs[first:] if v is not None)


class ProductProblem(Problem):
    """A problem that tensor cores compute as a product."""

    supports_split_k: bool = True
    """Whether tiled schedules may split the reduction."""

    @property
    def dense_reason(self) -> str | None:
        """Why no kernel on tensor cores computes the node, or None."""
        return self.reason

    @property
    @abstractmethod
    def matrix_reason(self) -> str | None:
        """Why the weights are not one constant matrix that multiplies all rows, or None."""

    @abstractmethod
    def shape(self, target: CudaTarget) -> GemmShape:
        """Return the sizes of the product, with guesses for symbols."""

    @abstractmethod
    def pack(self, tactic: Tactic) -> tuple[Constant, ...]:
        """Return the weights as kernels read them."""


class ProductLowering(ABC):
    """Lowering of a product onto the memory of its operands, in the order of the kernels."""

    def __init__(self, problem: ProductProblem, tactic: Tactic, operands: Operands) -> None:
        """Gather the operands."""
        self.tactic, self.workspace = tactic, operands.workspace
        self.options: dict[str, Any] = tactic.options
        """Parameters of the tactic, which are fields of the kernel."""
        self.x, self.out = input_view(operands, 0), operands.outputs[0]
        self.is_packed = bool(operands.packed)
        self.weights = operands.packed[0] if operands.packed else input_view(operands, 1)
        self.extras = problem.extras(operands)
        self.images = [input_view(operands, n) for n in range(2, problem.operand_count, 2)]
        """Images that follow the weights."""
        extras = (view for view, _ in self.extras)
        self.views = [self.x, self.weights, *self.images, *extras, self.out]
        self.constants: tuple[bool, ...] = (
            *(False, self.is_packed, *[False] * len(self.images)),
            *(*problem.constant_extras(), False),
        )
        """Whether each operand is a weight."""
        self.scalars = LaunchScalars()

    def strides(self, axis: int | None) -> tuple[Dim, ...]:
        """Return the strides of epilogue operands and result along an axis; zeros without one."""
        if axis is None:
            return (0,) * (len(self.extras) + 1)
        return (*(strides[axis] for _, strides in self.extras), self.out.strides[axis])

    @abstractmethod
    def kernel(self) -> ImplicitGemmKernel:
        """Return the kernel; it still lacks rows, columns and operands."""

    @abstractmethod
    def iteration_space(self) -> GemmIterationSpace:
        """Return the result's axes."""

    def launches(self) -> tuple[Launch, ...]:
        """Return one launch, or those of a split-K product."""
        return launches_of(self)
