"""What a backend is: families of kernels that answer for nodes with tactics.

A *family* is one generator of kernels. For a node it yields tactics (frozen data) or refuses with a
reason. Once the tuner has chosen, the builder plans memory and asks the family to *lower* the node:
to turn the tactic and the views of the node's tensors into launches. The code of a launch's kernel
is generated from its spec alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from smelt.engine import Options
from smelt.errors import InternalError
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from smelt.engine import Buffer, Halo, KernelSpec, Parameters, Step, View
    from smelt.ir import Constant, Node, Value
    from smelt.types import Dim, Guard, TensorFormat


class Aliasing(Enum):
    """Whether a tactic moves data at all."""

    NONE = "none"
    """The outputs have their own memory, written by the launches."""
    VIEW = "view"
    """Each output is a strided window on input 0 (transpose, slice, split)."""
    SQUEEZE = "squeeze"
    """The output is input 0 with other axes of extent 1 (squeeze, unsqueeze): a strided window that
    lies contiguously where input 0 does."""
    RESHAPE = "reshape"
    """The output has the bytes of input 0, which must lie contiguously (reshape, squeeze,
    identity)."""
    CONCAT = "concat"
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
    """For each input, what must lie around it; () when nothing need."""
    halo_value: int = 0
    """What the elements of the halos hold: zero, or the integer that stands for it."""
    workspace_bytes: Dim = 0
    """Memory that the launches share between them, beside the operands."""
    aliasing: Aliasing = Aliasing.NONE
    uses_pdl: bool = False
    """Whether its launches may begin before those before have ended: see `Launch.uses_pdl`."""
    reversed_tile_order: bool = False
    """Whether its launches begin with what they else do last, for that is in the cache yet."""
    is_reference: bool = False
    """Whether this runs the op's numpy reference: always right, never fast."""
    cost_hint: float = field(default=0.0, compare=False)
    """Estimated seconds, by which hopeless candidates are dropped before any is timed."""

    @property
    def options(self) -> Options:
        """The parameters by name."""
        return Options(self.parameters)

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.parameters)
        ways = (" pdl" if self.uses_pdl else "") + (" reversed" if self.reversed_tile_order else "")
        return f"{self.family}({options}){ways}"


def with_storage_dtype(
    dtype: DType,
    node: Node,
    tactic: Tactic,
    *,
    constants: bool = False,
    outputs: bool = False,
) -> Tactic:
    """The tactic with every float32 tensor that it reads or writes stored as ``dtype``.

    Constants are small and stay as they are, unless a family only moves them (``constants``). So
    does what nothing but a binding of the network takes, unless it must be alike (``outputs``).
    """

    def stored(value: Value | None, fmt: TensorFormat | None) -> TensorFormat | None:
        if value is None or fmt is None or fmt.dtype is not DType.FLOAT32:
            return fmt
        kept = value.constant is not None and not constants
        return fmt if kept else replace(fmt, dtype=dtype)

    inputs = map(stored, node.inputs, tactic.inputs)
    made = (
        replace(f, dtype=dtype) if (v.users or outputs) and f.dtype is DType.FLOAT32 else f
        for v, f in zip(node.outputs, tactic.outputs, strict=True)
    )
    return replace(tactic, inputs=tuple(inputs), outputs=tuple(made))


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
    errors: View | None = None
    """The node's error words, where its family asks for them."""


class Target(Protocol):
    """What code is generated for. Two equal targets get equal code."""

    @property
    def name(self) -> str:
        """The target's name in engines and caches."""
        ...

    def storage(self, wanted: DType) -> DType:
        """How float32 tensors are stored where ``wanted`` is asked for."""
        ...


TargetT = TypeVar("TargetT", bound=Target)


class Family(ABC, Generic[TargetT]):
    """One generator of kernels."""

    name: ClassVar[str]
    supports_reduced_precision: ClassVar[bool] = False
    """Whether kernels go by the element types of views, where nodes have float32."""
    requires_contiguous: ClassVar[bool] = False
    """Whether operands must lie without holes, from round addresses on: never as windows."""
    is_reference: ClassVar[bool] = False
    """Whether it runs an op's reference on the host."""

    @abstractmethod
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic | Refusal]:
        """The ways to run the node, best guess first, or why not; nothing for foreign ops."""

    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: TargetT
    ) -> tuple[Tactic, ...]:
        """What becomes of the tactic when float32 tensors may be stored as ``dtype``."""
        del target
        return (
            with_storage_dtype(dtype, node, tactic) if self.supports_reduced_precision else tactic,
        )

    def storage_dtype_tactics(self, node: Node, storage: DType) -> Iterator[Tactic]:
        """Ways to run the node that there are only where float32 tensors are stored so."""
        del node, storage
        yield from ()

    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        """The constants that the launches read, derived (and so recorded) from the node's own."""
        del node, tactic
        return ()

    def reports_index_errors(self, node: Node) -> bool:
        """Whether launches look for indices out of range: ``Operands.errors`` is there then."""
        del node
        return False

    @abstractmethod
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        """The steps that compute the node's outputs from its inputs."""

    def views(self, node: Node, tactic: Tactic, view: View) -> tuple[View, ...]:
        """The outputs as windows on input 0; for ``CONCAT``, the inputs as windows on output 0."""
        raise TypeError(
            f"the backend {self.name} writes every output itself, and {tactic} of {node} on "
            f"{view} is not a view"
        )

    @abstractmethod
    def generate(self, kernel: KernelSpec, target: TargetT) -> str:
        """The kernel's code, deterministic: LLVM IR on the CPU, Triton on the GPU."""


def _has_no_elements(node: Node) -> bool:
    """Whether a tensor that a run makes has none; constants without any are absent arguments."""
    made = [v.type for v in (*node.inputs, *node.outputs) if v is not None and v.constant is None]
    return any(isinstance(kind, TensorType) and 0 in kind.shape for kind in made)


class Backend(ABC, Generic[TargetT]):
    """A kind of device to compile for."""

    name: ClassVar[str]
    families: tuple[Family[TargetT], ...]
    composite_ops: ClassVar[tuple[str, ...]] = ()
    """Ops made of several that passes may form, for there is code for them."""
    non_fusable_ops: ClassVar[tuple[str, ...]] = ()
    """Ops that passes must not fuse as elementwise ones, for there is no code for them so."""

    def candidates(
        self, node: Node, target: TargetT, storage: DType = DType.FLOAT32
    ) -> tuple[list[Tactic], list[Refusal]]:
        """Every tactic of every family for the node, and every refusal.

        Tensors of float32 are stored as ``storage`` wherever a family can read and write that.
        Where a tensor is known to have no elements there is nothing to be fast at: a node has its
        reference alone, and generated code need not divide by an extent of zero.
        """
        tactics: list[Tactic] = []
        refusals: list[Refusal] = []
        of_nothing = _has_no_elements(node)
        for family in self.families:
            if of_nothing and not family.is_reference:
                refusals.append(
                    Refusal(family.name, "a tensor of the node is empty: an extent is 0")
                )
                continue
            if storage is not DType.FLOAT32:
                tactics.extend(family.storage_dtype_tactics(node, storage))
            for answer in family.tactics(node, target):
                if isinstance(answer, Refusal):
                    refusals.append(answer)
                elif storage is DType.FLOAT32:
                    tactics.append(answer)
                else:
                    tactics.extend(family.reduced_precision_tactics(node, answer, storage, target))
        return list(dict.fromkeys(tactics)), refusals

    def mixed_precision_candidates(
        self, node: Node, target: TargetT, storage: DType, kept: Collection[str]
    ) -> tuple[list[Tactic], list[Refusal]]:
        """The same where the nodes whose names are ``kept`` compute in float32 all the same."""
        if kept:
            raise InternalError(
                f"the backend {self.name} does not support keeping single layers in float32"
            )
        return self.candidates(node, target, storage)

    def canonical_tactic(self, node: Node, tactic: Tactic) -> Tactic:
        """What tactics have in common that differ only by which nodes around them are kept."""
        del node
        return tactic

    def can_fuse_pair(self, first: Node, second: Node) -> bool:
        """Whether there is code for a node and one that reads its result as one ``FusedPair``.

        Which of the two ways is faster is the tuner's question.
        """
        del first, second
        return False

    def launch_variants(self, tactic: Tactic) -> tuple[Tactic, ...]:
        """The ways to launch the kernels of a tactic, itself among them; () if there is but one."""
        del tactic
        return ()

    def family(self, name: str) -> Family[TargetT]:
        """The family called ``name``. Raises KeyError."""
        return {family.name: family for family in self.families}[name]

    @abstractmethod
    def reformat(self, source: View, destination: View) -> tuple[Step, ...]:
        """Steps that copy a tensor between windows of one shape, of any strides and floats."""

    @abstractmethod
    def clear_halo(self, view: View, value: int = 0) -> tuple[Step, ...]:
        """Steps that write ``value`` into the halo around a window, and nowhere else."""

    def concurrent_groups(
        self, steps: Sequence[Step], largest: Mapping[str, int]
    ) -> list[list[int]] | None:
        """Which steps of a plan run at once: positions in a new order, each group after another.

        None leaves them as they are. ``largest`` has the largest value of each symbol.
        """
        del steps, largest
        return None

    def shape_guards(self, node: Node) -> tuple[Guard, ...]:
        """What kernels for a node require of extents that symbols leave open."""
        del node
        return ()

    def with_reversed_tiles(self, step: Step) -> Step:
        """A step of a tactic that goes backwards: what knows one order alone stays as it is."""
        return step

    def prefetch_weights(
        self, steps: Sequence[Step], buffers: Sequence[Buffer]
    ) -> tuple[tuple[Step, ...], tuple[Buffer, ...]]:
        """The steps of a plan, changed to ask for weights before they are needed; and its buffers.

        Results stay what they are.
        """
        return tuple(steps), tuple(buffers)

    @property
    def codegen_version(self) -> str:
        """What kernels' code depends on beside spec and target: another has other times."""
        return ""

    def precompile(self, kernels: Sequence[KernelSpec], target: TargetT) -> None:
        """Compile kernels that images will soon be made of, as many at once as the machine can."""
        del kernels, target

    @abstractmethod
    def compile(self, kernels: Sequence[KernelSpec], target: TargetT) -> CodeImage:
        """Generate, compile and link kernels into one position-independent image."""


@dataclass(frozen=True, slots=True)
class CodeImage:
    """Linked native code: bytes to map, and where each kernel starts."""

    code: bytes
    symbols: tuple[tuple[str, int], ...]
