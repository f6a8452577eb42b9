"""Backend interface: kernel families that offer tactics for nodes and lower the chosen ones.

A *family* is one generator of kernels. For a node it yields tactics (frozen data) or refuses with a
reason. Once the tuner has chosen, the builder plans memory and calls the family's *lower*, which
turns the tactic and the views of the node's tensors into launches. The code of a launch's kernel is
generated from its spec alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from smelt.engine import TypedParameters
from smelt.errors import InternalError
from smelt.types import DType, TensorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from smelt.backends._plan_passes import PlanPass
    from smelt.devices import DeviceKind
    from smelt.engine import Fingerprint, Halo, KernelSpec, Parameters, Step, View
    from smelt.errors import Argument
    from smelt.ir import Constant, Node, Value
    from smelt.types import Dim, Guard, TensorFormat


class Aliasing(Enum):
    """Whether the outputs of a tactic share memory with its inputs."""

    NONE = "none"
    """The outputs have their own memory, written by the launches."""
    VIEW = "view"
    """Each output is a strided window on input 0 (transpose, slice, split)."""
    SQUEEZE = "squeeze"
    """The output is input 0 with axes of extent 1 added or removed (squeeze, unsqueeze): a strided
    window that is contiguous wherever input 0 is contiguous."""
    RESHAPE = "reshape"
    """The output has the bytes of input 0, which must be contiguous (reshape, squeeze,
    identity)."""
    CONCAT = "concat"
    """Each input is a window on output 0, written in place by its producer (concatenation)."""


@dataclass(frozen=True, slots=True)
class Tactic:
    """One way to compute a node, as data that can be serialised, hashed, timed and printed."""

    family: str
    parameters: Parameters
    input_formats: tuple[TensorFormat | None, ...]
    """Format in which each input must be stored; None for a constant that the family packs, or an
    absent input."""
    output_formats: tuple[TensorFormat, ...]
    halos: tuple[Halo, ...] = ()
    """Halo that each input must have; () if no input needs one."""
    halo_value: int = 0
    """Value of the elements in the halos: zero, or the zero point of a quantised tensor."""
    workspace_bytes: Dim = 0
    """Scratch memory in bytes that the launches share, in addition to the operands."""
    aliasing: Aliasing = Aliasing.NONE
    uses_pdl: bool = False
    """Whether launches may start before the preceding ones have ended: see `Launch.uses_pdl`."""
    reversed_tile_order: bool = False
    """Whether launches process their tiles last to first, because the last tiles of their input are
    still in the cache."""
    is_host_step: bool = False
    """Whether the host runs the node, by the op's numpy reference or in an engine of another
    device. Such a tactic has no kernel to time."""
    estimated_seconds: float = field(default=0.0, compare=False)
    """Estimated seconds, by which slow candidates are discarded before any is timed."""

    @property
    def formats(self) -> tuple[TensorFormat | None, ...]:
        """Formats of the inputs, then of the results."""
        return (*self.input_formats, *self.output_formats)

    @property
    def options(self) -> TypedParameters:
        """Parameters by name."""
        return TypedParameters(self.parameters)

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.parameters)
        suffix = (" pdl" if self.uses_pdl else "") + (
            " reversed" if self.reversed_tile_order else ""
        )
        return f"{self.family}({options}){suffix}"


def with_storage_dtype(
    dtype: DType,
    node: Node,
    tactic: Tactic,
    *,
    narrows_constants: bool = False,
    narrows_all_outputs: bool = False,
) -> Tactic:
    """Return the tactic with every float32 tensor that it reads or writes stored as ``dtype``.

    Args:
        dtype: storage type.
        node: node of the tactic.
        tactic: tactic to change.
        narrows_constants: also store constants as ``dtype``. They are small and stay float32
            otherwise; a family that only moves its constants needs them converted.
        narrows_all_outputs: store all outputs as ``dtype``, not only those whose `Value.storage` it
            is. A family sets this if its outputs must have the type of its inputs.
    """

    def stored(value: Value | None, fmt: TensorFormat | None) -> TensorFormat | None:
        if value is None or fmt is None or fmt.dtype is not DType.FLOAT32:
            return fmt
        is_kept = value.constant is not None and not narrows_constants
        return fmt if is_kept else replace(fmt, dtype=dtype)

    inputs = map(stored, node.inputs, tactic.input_formats)
    output_formats = (
        replace(f, dtype=dtype)
        if f.dtype is DType.FLOAT32 and (v.storage is dtype or narrows_all_outputs)
        else f
        for v, f in zip(node.outputs, tactic.output_formats, strict=True)
    )
    return replace(tactic, input_formats=tuple(inputs), output_formats=tuple(output_formats))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a family cannot run a node."""

    family: str
    reason: str
    arguments: tuple[Argument, ...] = ()
    """Arguments of `build` that the reason names."""

    def __str__(self) -> str:
        return f"{self.family}: {self.reason}"


class NodeRefusedError(InternalError):
    """A family cannot run a node: a refusal while tactics are listed, and a bug afterwards."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a kernel family listed tactics for a node but cannot run it: {reason}")
        self.reason = reason


def refuse_if(reason: str | None) -> None:
    """Raise NodeRefusedError if there is a reason."""
    if reason:
        raise NodeRefusedError(reason)


def refusal_of(check: Callable[[], object]) -> str | None:
    """Return the reason for which a check refuses a node, or None."""
    try:
        check()
    except NodeRefusedError as error:
        return error.reason
    return None


@dataclass(frozen=True, slots=True)
class Operands:
    """Memory of one node, onto which its tactic is lowered."""

    inputs: tuple[View | None, ...]
    """A view for each input that the tactic gives a format; None for packed constants and absent
    inputs."""
    outputs: tuple[View, ...]
    packed: tuple[View, ...]
    """Constants returned by ``Family.pack``, in its order, contiguous in the weights."""
    workspace: View | None = None
    errors: View | None = None
    """Error words of the node, if its family reports index errors."""


class Target(Protocol):
    """Device that code is generated for. Two equal targets get equal code."""

    @property
    def name(self) -> str:
        """Name of the target in engines and caches."""
        ...

    @property
    def architecture(self) -> str:
        """Architecture that the code is for."""
        ...

    def storage(self, wanted: DType) -> DType:
        """Return the storage type of float32 tensors if ``wanted`` is requested."""
        ...


TargetT = TypeVar("TargetT", bound=Target)


class Family(ABC, Generic[TargetT]):
    """Kernel family: lists the tactics of the nodes that it can run, and generates kernels."""

    name: ClassVar[str]
    supports_reduced_precision: ClassVar[bool] = False
    """Whether kernels follow the element types of their views where a node has float32 tensors."""
    requires_contiguous: ClassVar[bool] = False
    """Whether operands must be contiguous and aligned, and therefore never windows on other
    tensors."""
    is_reference: ClassVar[bool] = False
    """Whether the family runs an op's numpy reference on the host."""

    @abstractmethod
    def tactics(self, node: Node, target: TargetT) -> Iterator[Tactic]:
        """Yield the tactics of a node, best guess first; nothing for other ops.

        Raises:
            NodeRefusedError: the family cannot run the node; tactics yielded before stay valid.
        """

    def reduced_precision_tactics(
        self, node: Node, tactic: Tactic, dtype: DType, target: TargetT
    ) -> tuple[Tactic, ...]:
        """Return the variants of a tactic whose float32 tensors are stored as ``dtype``."""
        del target
        return (
            with_storage_dtype(dtype, node, tactic) if self.supports_reduced_precision else tactic,
        )

    def storage_dtype_tactics(self, node: Node, storage: DType) -> Iterator[Tactic]:
        """Yield the tactics that exist only if float32 tensors are stored as ``storage``."""
        del node, storage
        yield from ()

    def pack(self, node: Node, tactic: Tactic) -> tuple[Constant, ...]:
        """Return the constants that the launches read, derived from the node's own by recipes."""
        del node, tactic
        return ()

    def reports_index_errors(self, node: Node) -> bool:
        """Return whether launches check index ranges; ``Operands.errors`` is set if so."""
        del node
        return False

    @abstractmethod
    def lower(self, node: Node, tactic: Tactic, operands: Operands) -> tuple[Step, ...]:
        """Return the steps that compute the node's outputs from its inputs."""

    def views(self, node: Node, tactic: Tactic, view: View) -> tuple[View, ...]:
        """Return outputs as windows on input 0; for ``CONCAT``, inputs as windows on output 0."""
        raise TypeError(
            f"{node}: the family {self.name} does not alias inputs and outputs, so the tactic "
            f"{tactic} has no views of {view}"
        )

    def generate(self, kernel: KernelSpec, target: TargetT) -> str:
        """Return the code of a kernel: LLVM IR on the CPU, Triton on the GPU; deterministic.

        Raises:
            InternalError: the family's nodes have no kernels of their own.
        """
        del target
        raise InternalError(f"{kernel.symbol}: the family {self.name} generates no kernels")


def _has_no_elements(node: Node) -> bool:
    """Return whether a non-constant tensor of the node is empty; empty constants are ignored."""
    types = [v.type for v in (*node.inputs, *node.outputs) if v is not None and v.constant is None]
    return any(isinstance(value_type, TensorType) and 0 in value_type.shape for value_type in types)


class Backend(ABC, Generic[TargetT]):
    """Compiler for one kind of device."""

    name: ClassVar[str]
    families: tuple[Family[TargetT], ...]
    supported_composite_ops: ClassVar[tuple[str, ...]] = ()
    """Composite ops that passes may form, because the backend has code for them."""
    non_fusable_ops: ClassVar[tuple[str, ...]] = ()
    """Elementwise ops that passes must not fuse, because the backend cannot generate code for them
    as part of a fused node."""
    plan_passes: tuple[PlanPass, ...] = ()
    """Passes over the steps of each plan, in their order."""
    source_language: ClassVar[str]
    """Language of the kernel sources."""
    supports_mixed_precision: ClassVar[bool] = False
    """Whether single layers can stay in float32 in a 16-bit build."""
    has_short_sources: ClassVar[bool] = False
    """Whether sources are short enough for a report that shows all of them."""

    @staticmethod
    @abstractmethod
    def target_named(name: str) -> Target:
        """Return a target by its name in device names. Raises UnsupportedError: there is none."""

    @staticmethod
    @abstractmethod
    def targets_of(fingerprint: Fingerprint) -> Sequence[Target]:
        """Return the targets of an engine's code, one for each architecture, without a compiler."""

    @staticmethod
    @abstractmethod
    def target_text(architecture: str, features: Sequence[str]) -> str:
        """Return a short description of what an engine requires."""

    def candidates(self, node: Node, target: TargetT) -> tuple[list[Tactic], list[Refusal]]:
        """Return every tactic of every family for the node, and every refusal.

        Float32 tensors are stored as the node's precision and its results' storage types say,
        wherever a family can read and write these. A node with a tensor that is known to be empty
        gets its reference only: speed does not matter there, and generated code need not handle a
        division by an extent of zero.
        """
        storage = node.precision
        tactics: list[Tactic] = []
        refusals: list[Refusal] = []
        is_empty = _has_no_elements(node)
        for family in self.families:
            if is_empty and not family.is_reference:
                refusals.append(
                    Refusal(family.name, "a tensor of the node is empty: an extent is 0")
                )
                continue
            if storage is not DType.FLOAT32:
                tactics.extend(family.storage_dtype_tactics(node, storage))
            try:
                for tactic in family.tactics(node, target):
                    if storage is DType.FLOAT32:
                        tactics.append(tactic)
                    else:
                        tactics += family.reduced_precision_tactics(node, tactic, storage, target)
            except NodeRefusedError as error:
                refusals.append(Refusal(family.name, error.reason))
        return list(dict.fromkeys(tactics)), refusals

    def can_fuse_pair(self, first: Node, second: Node) -> bool:
        """Return whether there is code for a node and a reader of its result as one ``FusedPair``.

        The tuner decides whether the pair or the two separate nodes are faster.
        """
        del first, second
        return False

    def launch_variants(self, tactic: Tactic) -> tuple[Tactic, ...]:
        """Return the ways to launch a tactic's kernels, itself included; () if there is one."""
        del tactic
        return ()

    def family(self, name: str) -> Family[TargetT]:
        """Return the family called ``name``. Raises KeyError."""
        return {family.name: family for family in self.families}[name]

    @abstractmethod
    def generate(self, kernel: KernelSpec, target: TargetT) -> str:
        """Return the code of a kernel in `source_language`. No compiler is needed."""

    @abstractmethod
    def reformat(self, source: View, destination: View) -> tuple[Step, ...]:
        """Return steps that copy a tensor between views of one shape, any strides and floats."""

    @abstractmethod
    def clear_halo(self, view: View, value: int = 0) -> tuple[Step, ...]:
        """Return steps that write ``value`` into the halo around a window and nowhere else."""

    def shape_guards(self, node: Node) -> tuple[Guard, ...]:
        """Return the conditions that kernels for a node impose on symbolic extents."""
        del node
        return ()

    @property
    def codegen_version(self) -> str:
        """Hash of what kernel code depends on besides spec and target."""
        return ""

    def precompile(self, kernels: Sequence[KernelSpec], target: TargetT) -> None:
        """Compile kernels of later images ahead of time, as many at once as the machine allows."""
        del kernels, target

    @abstractmethod
    def compile(self, kernels: Sequence[KernelSpec], target: TargetT) -> CodeImage:
        """Generate, compile and link kernels into one position-independent image."""


@dataclass(frozen=True, slots=True)
class CodeImage:
    """Linked native code: bytes to map, and the offset of each kernel."""

    code: bytes
    symbols: tuple[tuple[str, int], ...]


def backend_of(kind: DeviceKind) -> type[Backend[Any]]:
    """Return the class of the backend that compiles for a kind of device."""
    backend: type[Backend[Any]] = kind.load_part(kind.backend)
    return backend
