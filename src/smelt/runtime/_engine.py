"""The engine: loads, runs, refits, signs and saves a compiled network."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import numpy as np

from smelt.engine import (
    EngineFile,
    check_signature,
    engine_parts,
    read_engine,
    user_signer,
    verify_partitions,
    verify_plans,
    verify_signature,
    write_engine,
)
from smelt.errors import (
    BindingError,
    ContextError,
    EngineFormatError,
    EngineMismatchError,
    InternalError,
    SmeltError,
    TrustError,
)
from smelt.runtime._context import ExecutionContext
from smelt.runtime._context_pool import ContextPool
from smelt.runtime._loaded_code import check_machine, load_code
from smelt.runtime._plan_executor import create_executor
from smelt.types import (
    Closeable,
    ForkLock,
    enough_memory_for,
    override,
    require_bool,
    require_choice,
    require_dict,
    require_method,
    require_str,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.engine import Binding, BytesLike, EngineHeader, LayerInfo, RuntimeChecks, SignerLike
    from smelt.runtime._loaded_code import LoadedCode

_LOG = logging.getLogger(__name__)

_RETUNE_ADVICE: Final = (
    "The engine contains its network: `smelt retune` builds it again for this machine."
)

Trust = Literal["signed", "always"]


class Engine(Closeable):
    """A network, optimised and compiled, ready to run.

    `run` may be called from any thread. Any number of contexts may run it at once; they share its
    weights.
    """

    def __init__(
        self,
        file: EngineFile,
        *,
        device: str | None = None,
        allow_other_machine: bool = False,
        is_vouched_for: bool = True,
    ) -> None:
        """Create an engine from a trusted file. Use `load` for files from elsewhere.

        Args:
            file: the engine file.
            device: device to run on, e.g. "cuda:1"; None for the device that the engine was built
                for, on a GPU the one that the calling thread has selected.
            allow_other_machine: whether the engine may be for another machine; it can then be saved
                and inspected, but not run.
            is_vouched_for: whether the engine was made here or is signed by a key that this user
                trusts. Other engines are saved without a signature unless `save` requests one.

        Raises:
            EngineMismatchError: the engine was built for another machine, device or smelt version.
            DeviceError: the device does not exist.
            EngineFormatError: the plans of the engine are invalid.
        """
        self._file = file
        self._is_vouched_for = is_vouched_for
        header = file.header
        self._device_name = device
        self._refusal: EngineMismatchError | None = None
        """Error that explains why the engine does not run on this machine; None if it does."""
        self._code: LoadedCode | None = None
        self._is_closed = False
        self.conditions = _verified_plans(file, is_from_file=not allow_other_machine)
        """Runtime checks of each plan, evaluated at the symbol values of a run."""
        self.partitions = tuple(
            Engine(part, allow_other_machine=allow_other_machine) for part in file.partitions
        )
        """Engines of other devices that run parts of this one."""
        with _verifying(file, is_from_file=not allow_other_machine):
            verify_partitions(header, [part.header for part in self.partitions])
        try:
            check_machine(header.fingerprint)
            self._code = self._load_code(requires_device=False)
        except EngineMismatchError as error:
            advice = (_RETUNE_ADVICE,) if header.network else ()
            # An error that is raised is not kept: it holds the frames of its callers.
            if not allow_other_machine:
                raise _copy_of(error, *advice) from error
            self._refusal = _copy_of(error, *advice)
        self._serialized: tuple[EngineFile, bytes] | None = None
        """The serialized engine, and the file of which it is the text."""
        self._lock = ForkLock()
        self._pool = ContextPool(self)

    @classmethod
    @enough_memory_for("loading an engine")
    def load(
        cls,
        source: str | os.PathLike[str] | BytesLike | BinaryIO,
        *,
        device: str | None = None,
        trust: Trust = "signed",
        mapped: bool = False,
    ) -> Engine:
        """Load an engine from a path, from bytes or from an open binary file.

        An engine contains machine code. With ``trust="signed"`` it is loaded only if it is signed
        by a key that this user trusts. ``"always"`` accepts any file; use it only for files that
        nobody else can have written. A GPU engine is bound to ``device``, or else to the GPU that
        the calling thread has selected. The file is copied, so later changes to it have no effect.
        With ``mapped=True`` its weights are mapped instead and shared between processes; writing to
        the file then changes results, and truncating it terminates the process.

        Raises:
            EngineFormatError: the file is damaged or is not an engine.
            TrustError: the engine is unsigned or signed by an untrusted key; or it is to be mapped
                and others may write to the file.
            EngineMismatchError: the engine was built for another machine, device or smelt version.
            DeviceError: the device does not exist.
        """
        require_choice(trust, "trust", SmeltError, ("signed", "always"))
        file = read_engine(source, mapped=require_bool(mapped, "mapped", SmeltError))
        if trust == "signed":
            _LOG.debug("%s is signed by %s", file.source, verify_signature(file).label)
        elif file.signature is not None:
            check_signature(file.signature, file.source)
        return cls(file, device=device, is_vouched_for=trust == "signed")

    @classmethod
    def create(
        cls,
        header: EngineHeader,
        weights: BytesLike,
        code: bytes,
        runtime_code: bytes,
        network_arrays: BytesLike = b"",
        partitions: tuple[EngineFile, ...] = (),
        *,
        device: str | None = None,
    ) -> Engine:
        """Create an engine from parts that this process has generated itself."""
        own_weights, own_arrays = (_read_only(part) for part in (weights, network_arrays))
        file = EngineFile(
            header, own_weights, code, runtime_code, None, "the engine", own_arrays, partitions
        )
        return cls(file, device=device, allow_other_machine=True)

    @property
    def file(self) -> EngineFile:
        """Content of the engine file, with the weights of the last refit."""
        return self._file

    @property
    def header(self) -> EngineHeader:
        """The engine's description: plans, layers, weights, fingerprint and build report."""
        return self._file.header

    @property
    def code(self) -> bytes:
        """Machine code of the kernels, as stored in the file."""
        return self._file.code

    @property
    def name(self) -> str:
        """The network's name."""
        return self.header.name

    @property
    def device(self) -> str:
        """The kind of device that the engine runs on."""
        return self.header.fingerprint.device

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Inputs and outputs, by binding index."""
        return self.header.bindings

    @property
    def inputs(self) -> tuple[Binding, ...]:
        """Inputs of a run; each has a name, a dtype and a shape."""
        return tuple(binding for binding in self.bindings if binding.is_input)

    @property
    def outputs(self) -> tuple[Binding, ...]:
        """Outputs of a run; each has a name, a dtype and a shape."""
        return tuple(binding for binding in self.bindings if not binding.is_input)

    @property
    def layers(self) -> tuple[LayerInfo, ...]:
        """The layers of the optimised network, as the profiler reports them."""
        return self.header.layers

    @property
    def max_batch_size(self) -> int | None:
        """Largest implicit batch; None where shapes are explicit."""
        return self.header.max_batch_size

    def binding_index(self, name: str) -> int:
        """Return the index of the input or output called ``name``.

        Raises:
            ContextError: there is no such binding; the message lists all.
        """
        require_str(name, "a binding's name", ContextError)
        for index, binding in enumerate(self.bindings):
            if binding.name == name:
                return index
        names = ", ".join(binding.name for binding in self.bindings)
        raise ContextError(f"the engine has no binding {name!r}; it has: {names}")

    @enough_memory_for("the context")
    def create_context(
        self, *, threads: int | None = None, tracker: AllocationTracker | None = None
    ) -> ExecutionContext:
        """Create a context, in which one inference runs at a time.

        Args:
            threads: how many threads a run uses at most; None for `SMELT_THREADS`, else
                `OMP_NUM_THREADS`, or else as many as this process may use processors, by its
                affinity and its cgroups' quota. Results do not depend on it.
            tracker: is notified of the context's allocations.

        Raises:
            ContextError: the engine is closed, or ``threads`` is not a positive number.
            DeviceError: the engine is for GPUs and there is none, or memory is insufficient.
        """
        for method in ("allocated", "released") if tracker is not None else ():
            require_method(tracker, method, "the tracker", ContextError)
        return ExecutionContext(self, create_executor(self, threads, tracker))

    def run(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, *, contexts: int = 2
    ) -> dict[str, Any]:
        """Run once and return the outputs, by name; from any thread, several at once.

        The engine keeps a few contexts for this, each with the number of threads of
        `create_context`. If all are busy, the call creates one while there are fewer than
        ``contexts``, and otherwise waits for one.

        Args:
            inputs: as for `ExecutionContext.run`.
            outputs: as for `ExecutionContext.run`.
            contexts: maximum number of contexts, and thereby of calls that run at the same time.

        Returns:
            New arrays, which are the caller's own.

        Raises:
            BindingError: a name is missing or unknown, or an array does not fit.
            ContextError: the engine is closed, the batch is too large, or ``contexts`` is no
                positive number.
            DeviceError: as for `create_context`.
        """
        return self._pool.run(contexts, inputs, outputs)

    @property
    def loaded_code(self) -> LoadedCode:
        """Code and weights that contexts share.

        Raises:
            ContextError: the engine is closed.
            EngineMismatchError: the engine was built for another machine.
            DeviceError: the engine is for GPUs and there is none.
        """
        if self._refusal is not None:
            raise _copy_of(self._refusal)
        if self._is_closed:
            raise ContextError("this engine is closed; load it again")
        code = self._code
        if code is None:
            code = self._code = self._load_code(requires_device=True)
        if code is None:
            raise InternalError("the code was not loaded, and no reason was recorded")
        return code

    def _load_code(self, *, requires_device: bool) -> LoadedCode | None:
        """Load code and weights onto the devices; None if one of these is not there."""
        code = load_code(self._file, self._device_name, requires_device=requires_device)
        if code is not None and self.partitions:
            codes = [p.loaded_code if requires_device else p._code for p in self.partitions]
            others = tuple(part.weights for part in codes if part is not None)
            if len(others) < len(codes):
                return None
            code.weights = replace(code.weights, partitions=others)
        return code

    @enough_memory_for("the refit")
    def refit(self, weights: Mapping[str, NDArray[np.generic]]) -> None:
        """Replace weights of the model by new arrays of the same shape and dtype.

        Contexts use them from their next run on. A retuned engine contains them, too. Constants
        from whose elements the build made a decision, such as shapes, axes and conditions, stay.

        Raises:
            BindingError: a name is unknown or that of a constant that stays, an array does not fit,
                or another weight that was folded together with one of these is not given.
        """
        # Imported here because refits are rare and load all ops.
        from smelt.runtime._refit import refitted_network_arrays, refitted_weights

        weights = require_dict(weights, "the argument weights of refit", BindingError)
        with self._lock:
            code, file = self.loaded_code, self._file
            headers = [file.header, *(part.header for part in file.partitions)]
            current = [code.weights, *code.weights.partitions]
            packed = refitted_weights(headers, [loaded.bytes for loaded in current], weights)
            network_arrays = refitted_network_arrays(file.header, file.network_arrays, weights)
            codes = [code, *(part.loaded_code for part in self.partitions)]
            uploaded, *others = (c.upload_weights(p) for c, p in zip(codes, packed, strict=True))
            uploaded = replace(uploaded, partitions=tuple(others))
            parts = zip(file.partitions, packed[1:], strict=True)
            refitted = replace(
                file,
                weights=packed[0],
                network_arrays=network_arrays,
                signature=None,
                partitions=tuple(replace(part, weights=own) for part, own in parts),
            )
            # No call between these: an interrupt would leave runs and files with different
            # weights.
            self._serialized = None
            code.weights, self._file = uploaded, refitted

    @enough_memory_for("the engine")
    def serialize(self, *, sign: bool | None = None) -> bytes:
        """Return the engine as bytes; ``sign`` and the errors are those of `save`."""
        with self._lock:
            file, cached = self._file, self._serialized
            if sign is None and cached is not None and cached[0] is file:
                return cached[1]
            serialized = b"".join(self._parts(file, sign=sign))
            if sign is None:
                self._serialized = file, serialized
            return serialized

    @enough_memory_for("the engine")
    def save(
        self, destination: str | os.PathLike[str] | BinaryIO, *, sign: bool | None = None
    ) -> None:
        """Write the engine to a path, atomically, or to an open binary file.

        Args:
            destination: path or file to write to.
            sign: with None, engines that were built here or signed by a trusted key are signed: an
                unchanged one keeps its signature, others are signed with this user's key if there
                is one. An engine loaded with ``trust="always"`` is not signed. True signs any
                engine; False signs none.

        Raises:
            SmeltError: the engine cannot be written.
            TrustError: ``sign`` is True and there is no signing key.
        """
        write_engine(destination, self._parts(self._file, sign=sign))

    def _parts(self, file: EngineFile, *, sign: bool | None) -> Iterator[bytes | memoryview]:
        """Return the parts of an engine file."""
        signer = self._signer(file, sign=sign)
        own = file.header, file.weights, file.code, file.runtime_code
        return engine_parts(*own, signer, file.network_arrays, file.partitions)

    def _signer(self, file: EngineFile, *, sign: bool | None) -> SignerLike | None:
        """Return the signer: the original of an unchanged engine, else this user's key, or None."""
        if sign is not None:
            sign = require_bool(sign, "sign", SmeltError)
        if sign is False or (sign is None and not self._is_vouched_for):
            return None
        original = file.signature
        if original is not None and self._is_vouched_for:
            return original
        signer = user_signer()
        if signer is None and sign:
            raise TrustError(
                "the engine is not signed: there is no private, writable home directory for a "
                "signing key; set SMELT_HOME to a directory of your own"
            )
        return signer

    @override
    def close(self) -> None:
        """Release code and weights. Existing contexts remain usable. Idempotent.

        The contexts of `run` are closed when their current runs are complete.
        """
        self._is_closed = True
        self._pool.close()
        for part in self.partitions:
            part.close()
        self._code = None
        self._serialized = None

    def __repr__(self) -> str:
        return f"<Engine {self.name!r} for {self.device}, {len(self.layers)} layers>"


def _copy_of(error: EngineMismatchError, *lines: str) -> EngineMismatchError:
    """Return an error of the same content and further lines.

    An error that is raised is not kept, and one that is kept is not raised: it holds the frames of
    its callers.
    """
    return EngineMismatchError(*error.args, lines=(*error.lines, *lines), arguments=error.arguments)


def _verified_plans(file: EngineFile, *, is_from_file: bool) -> tuple[RuntimeChecks | None, ...]:
    """Return the runtime checks of each plan. Raises EngineFormatError: a plan is invalid."""
    with _verifying(file, is_from_file=is_from_file):
        return verify_plans(
            file.header,
            weights_bytes=file.weights.size,
            code_bytes=len(file.code),
            network_arrays_bytes=file.network_arrays.size,
        )


@contextmanager
def _verifying(file: EngineFile, *, is_from_file: bool) -> Generator[None]:
    """Add the origin of the engine, and advice, to an error of a verifier if it is from a file."""
    try:
        yield
    except EngineFormatError as error:
        if not is_from_file:
            raise
        raise EngineFormatError(
            f"{file.source}: {error}; the file is damaged: copy or build it again"
        ) from error


def _read_only(data: BytesLike) -> NDArray[np.uint8]:
    """Return the bytes as a read-only array."""
    array = np.frombuffer(data, np.uint8).view()
    array.flags.writeable = False
    return array
