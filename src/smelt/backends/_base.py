"""What a backend is: families of kernels that answer for nodes with tactics.

A *family* is one generator of kernels. For a node it yields tactics (frozen data) or refuses with a
reason. Once the tuner has chosen, the builder plans memory and asks the family to *lower* the node:
to turn the tactic and the views of the node's tensors into launches. The code of a launch's kernel
is generated from its spec alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from smelt.engine import Buffer, Halo, KernelSpec, Parameters, Step, View
    from smelt.ir import Constant, Node
    from smelt.types import Dim, TensorFormat


class Aliasing(Enum):
    """Whether a tactic moves data at all."""

    NONE = "none"
    """The outputs have their own memory, written by the launches."""
    VIEW = "view"
    """Each output is a strided window on input 0 (transpose, slice, split)."""
    UNIT = "unit"
    """The output is input 0 with other axes of extent 1 (squeeze, unsqueeze): a strided window that
    lies contiguously where input 0 does."""
    RESHAPE = "reshape"
    """The output has the bytes of input 0, which must lie contiguously (reshape, squeeze,
    identity)."""
    JOIN = "join"
    """Each input is a window on output 0, written in place by its producer (concatenation)."""


@dataclass(frozen=True, slots=True)
class Tactic:
    """A decision about one node, as data: it serialises, hashes, times and explains itself."""

    family: str
    parameters: Parameters
    inputs: tuple[TensorFormat | None, ...]
    """Format in which each input must be stored; None for a constant that the family packs, or an
    absent input."""
    outputs: tuple[TensorFormat, ...]
    halos: tuple[Halo, ...] = ()
    """For each input, the zeros that must lie around it; () when none wants any."""
    workspace_bytes: Dim = 0
    """Memory that the launches share between them, beside the operands."""
    aliasing: Aliasing = Aliasing.NONE
    is_reference: bool = False
    """Whether this runs the op's numpy reference: always right, never fast."""
    cost_hint: float = field(default=0.0, compare=False)
    """Estimated seconds, by which hopeless candidates are dropped before any is timed."""

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.parameters)
        return f"{self.family}({options})"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a family cannot run a node."""

    family: str
    reason: str

    def __str__(self) -> str:
        return f"{self.family}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Operands:
    """The memory of one node: what its tactic is lowered onto."""

    inputs: tuple[View | None, ...]
    """A view for each input that the tactic gives a format; None for packed constants and absent
    inputs."""
    outputs: tuple[View, ...]
    packed: tuple[View, ...]
    """The constants of ``Family.pack``, in its order, contiguous in the weights."""
    workspace: View | None = None


class Target(Protocol):
    """What code is generated for. Two equal targets get equal code."""

    @property
    def name(self) -> str:
        """The target's name in engines and caches."""
        ...


TargetT = TypeVar("TargetT", bound=Target)


class Family(ABC, Generic[TargetT]):
    """One generator of kernels."""

    name: ClassVar[str]

    @abstractmethod
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic | Refusal]:
        """The ways to run the node, best guess first, or why not; nothing for foreign ops."""

    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        """The constants that the launches read, derived (and so recorded) from the node's own."""
        del node, tactic
        return ()

    @abstractmethod
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        """The steps that compute the node's outputs from its inputs."""

    def views(self, node: Node, tactic: Tactic, view: View) -> tuple[View, ...]:
        """The outputs as windows on input 0; for ``JOIN``, the inputs as windows on output 0."""
        raise TypeError(f"{self.name} moves data: {tactic} of {node} on {view} is no view")

    @abstractmethod
    def generate(self, kernel: KernelSpec, target: TargetT) -> str:
        """The kernel's code, deterministic: LLVM IR on the CPU, Triton on the GPU."""


class Backend(ABC, Generic[TargetT]):
    """A kind of device to compile for."""

    name: ClassVar[str]
    families: tuple[Family[TargetT], ...]

    def candidates(self, node: Node, target: TargetT) -> tuple[list[Tactic], list[Refusal]]:
        """Every tactic of every family for the node, and every refusal."""
        answers = [a for family in self.families for a in family.tactics(node, target)]
        tactics = [a for a in answers if isinstance(a, Tactic)]
        return tactics, [a for a in answers if isinstance(a, Refusal)]

    def family(self, name: str) -> Family[TargetT]:
        """The family called ``name``. Raises KeyError."""
        return {family.name: family for family in self.families}[name]

    @abstractmethod
    def reformat(self, source: View, destination: View) -> tuple[Step, ...]:
        """Steps that copy a tensor between windows of one shape and dtype, of any strides."""

    @abstractmethod
    def clear_halo(self, view: View) -> tuple[Step, ...]:
        """Steps that write zeros into the halo around a window, and nowhere else."""

    def stream_weights(
        self, steps: Sequence[Step], buffers: Sequence[Buffer]
    ) -> tuple[tuple[Step, ...], tuple[Buffer, ...]]:
        """The steps of a plan, changed to ask for weights before they are needed; and its buffers.

        Results stay what they are.
        """
        return tuple(steps), tuple(buffers)

    @abstractmethod
    def compile(self, kernels: Sequence[KernelSpec], target: TargetT) -> CodeImage:
        """Generate, compile and link kernels into one position-independent image."""


@dataclass(frozen=True, slots=True)
class CodeImage:
    """Linked native code: bytes to map, and where each kernel starts."""

    code: bytes
    symbols: tuple[tuple[str, int], ...]
