"""The engine: code and weights in memory, and what they need to run."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

import numpy as np

from smelt.engine import (
    EngineFile,
    check_signature,
    read_engine,
    serialize_engine,
    user_signer,
    verify_plans,
    verify_signature,
    write_engine,
)
from smelt.errors import (
    BindingError,
    ContextError,
    EngineMismatchError,
    InternalError,
    SmeltError,
    TrustError,
)
from smelt.runtime._context_pool import ContextPool
from smelt.runtime._loaded_code import check_machine, load_code
from smelt.types import (
    Closeable,
    ForkLock,
    enough_memory_for,
    override,
    require_bool,
    require_callable,
    require_choice,
    require_dict,
    require_str,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from smelt.devices import AllocationTracker
    from smelt.engine import Binding, BytesLike, EngineHeader, LayerInfo, SignerLike
    from smelt.runtime._context import ExecutionContext
    from smelt.runtime._loaded_code import LoadedCode

_LOG = logging.getLogger(__name__)

_RETUNING: Final = "It contains its network, too: `smelt retune` builds it again for this machine."

Trust = Literal["signed", "always"]


@dataclass(frozen=True, slots=True)
class _OriginalSignature:
    """Gives an unchanged engine the signature that it came with."""

    public_key: bytes
    signature: bytes
    message: bytes

    def sign(self, message: bytes) -> bytes:
        if message != self.message:
            raise InternalError("the engine differs from its file after writing and reading")
        return self.signature


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
        elsewhere: bool = False,
        is_vouched_for: bool = True,
    ) -> None:
        """Take a file whose origin is known to be good. Use `load` for any other.

        Args:
            file: what the engine is made of.
            device: where it shall run, as "cuda:1"; None for whatever it was built for, on a GPU
                the one that the calling thread has selected.
            elsewhere: whether it may be for another machine: it can then be saved and inspected.
            is_vouched_for: whether it is made here or signed by a key that this user trusts; only
                then is it saved with a signature unless `save` is told otherwise.

        Raises:
            EngineMismatchError: it was built for another machine, device or smelt.
            DeviceError: there is no such device.
            EngineFormatError: its plans are not sound.
        """
        self._file = file
        self._is_vouched_for = is_vouched_for
        header = file.header
        self._device_name = device
        self._refusal: EngineMismatchError | None = None
        """Why the engine does not run here."""
        self._code: LoadedCode | None = None
        self._is_closed = False
        self.conditions = verify_plans(
            header,
            weights_bytes=file.weights.size,
            code_bytes=len(file.code),
            sources_bytes=file.sources.size,
        )
        """What a run must check of each plan, at its own values."""
        try:
            check_machine(header.fingerprint)
            self._code = load_code(file, device, is_needed=False)
        except EngineMismatchError as error:
            advice = (_RETUNING,) if header.network else ()
            self._refusal = EngineMismatchError(*error.args, lines=(*error.lines, *advice))
            if not elsewhere:
                raise self._refusal from error
        self._serialized: bytes | None = None
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

        An engine is machine code. ``trust="signed"`` runs it only if a key that this user trusts
        signed it; ``"always"`` runs anything, and is for files that nobody else can have written.
        An engine for GPUs is bound to ``device``, or else to the GPU that the calling thread has
        selected. The file is copied: what happens to it afterwards changes nothing. With
        ``mapped=True`` its weights are mapped instead, which processes share; whoever writes to
        the file then changes answers, and who truncates it ends the process.

        Raises:
            EngineFormatError: the file is damaged or no engine.
            TrustError: it is unsigned, or signed by nobody whom this user trusts; or it is to be
                mapped, and others may write to it.
            EngineMismatchError: it was built for another machine, device or smelt.
            DeviceError: there is no such device.
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
        sources: BytesLike = b"",
        *,
        device: str | None = None,
    ) -> Engine:
        """Make an engine of parts that this process has generated itself."""
        kept, given = (_read_only(part) for part in (weights, sources))
        file = EngineFile(header, kept, code, runtime_code, None, "the engine", given)
        return cls(file, device=device, elsewhere=True)

    @property
    def file(self) -> EngineFile:
        """What the engine is made of, its weights those that it was last refitted to."""
        return self._file

    @property
    def header(self) -> EngineHeader:
        """The engine's description: plans, layers, weights, fingerprint and build report."""
        return self._file.header

    @property
    def code(self) -> bytes:
        """The kernels' machine code, as the file has it."""
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
        """What a run is given: each has name, dtype and shape."""
        return tuple(binding for binding in self.bindings if binding.is_input)

    @property
    def outputs(self) -> tuple[Binding, ...]:
        """What a run gives: each has name, dtype and shape."""
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
            ContextError: there is none; the message lists all.
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
            tracker: hears of the context's allocations.

        Raises:
            ContextError: the engine is closed, or ``threads`` is not a positive number.
            DeviceError: the engine is for GPUs, and there is none, or too little memory.
        """
        for method in ("allocated", "released") if tracker is not None else ():
            hears = getattr(tracker, method, None)
            require_callable(hears, f"{method} of the tracker", ContextError)
        return self.loaded_code.create_context(self, threads, tracker)

    def run(
        self,
        inputs: Mapping[str, Any],
        outputs: Iterable[str] | None = None,
        *,
        contexts: int = 2,
    ) -> dict[str, Any]:
        """Run once and return the outputs, by name; from any thread, several at once.

        The engine keeps a few contexts for this, each with the number of threads of
        `create_context`, and makes one when all are busy and there are fewer than ``contexts``.
        Whoever finds neither waits for one.

        Args:
            inputs: as for `ExecutionContext.run`.
            outputs: as for `ExecutionContext.run`.
            contexts: how many contexts there may be at most: so many calls run at the same time.

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
        """What contexts share.

        Raises:
            ContextError: the engine is closed.
            EngineMismatchError: it was built for another machine.
            DeviceError: the engine is for GPUs, and there is none.
        """
        if self._refusal is not None:
            raise EngineMismatchError(*self._refusal.args, lines=self._refusal.lines)
        if self._is_closed:
            raise ContextError("this engine is closed; load it again")
        code = self._code
        if code is None:
            code = self._code = load_code(self._file, self._device_name)
        if code is None:
            raise InternalError("the code was not loaded, and no reason was recorded")
        return code

    @enough_memory_for("the refit")
    def refit(self, weights: Mapping[str, NDArray[np.generic]]) -> None:
        """Replace weights of the model by new ones of the same shape, packed as the old ones were.

        Contexts use them from their next run on, and so does what the engine is retuned to.

        Raises:
            BindingError: a name is unknown, an array does not fit, or another weight that was
                folded together with one of these is not given.
        """
        # Few need it, and it needs every op.
        from smelt.runtime._refit import refitted_sources, refitted_weights

        weights = require_dict(weights, "the weights of a refit", BindingError)
        with self._lock:
            code = self.loaded_code
            file = self._file
            fresh = refitted_weights(file.header, code.weights.bytes, weights)
            sources = refitted_sources(file.header, file.sources, weights)
            uploaded = code.upload_weights(fresh)
            refitted = replace(file, weights=fresh, sources=sources, signature=None)
            # No call stands between these: an interrupt would leave runs and files with different
            # weights.
            self._serialized = None
            code.weights, self._file = uploaded, refitted

    @enough_memory_for("the engine")
    def serialize(self, *, sign: bool | None = None) -> bytes:
        """Return the engine as bytes; ``sign`` and what is raised are those of `save`."""
        with self._lock:
            if sign is not None or self._serialized is None:
                made = serialize_engine(*self._parts(sign=sign))
                if sign is not None:
                    return made
                self._serialized = made
            return self._serialized

    @enough_memory_for("the engine")
    def save(
        self, destination: str | os.PathLike[str] | BinaryIO, *, sign: bool | None = None
    ) -> None:
        """Write the engine to a path, whole or not at all, or to an open binary file.

        Args:
            destination: where to.
            sign: None signs what is made here, and what a trusted key had signed: unchanged, with
                the signature that it came with, else with this user's key where there is one. What
                was loaded with ``trust="always"`` is then not signed, for nobody vouches for it.
                True signs it too; False signs nothing.

        Raises:
            SmeltError: it cannot be written.
            TrustError: it shall be signed, and there is no key.
        """
        write_engine(destination, *self._parts(sign=sign))

    def _parts(
        self, *, sign: bool | None
    ) -> tuple[EngineHeader, BytesLike, bytes, bytes, SignerLike | None, BytesLike]:
        """What a file of the engine is made of."""
        file = self._file
        signer = self._signer(sign=sign)
        return file.header, file.weights, file.code, file.runtime_code, signer, file.sources

    def _signer(self, *, sign: bool | None) -> SignerLike | None:
        """Who signs: the one who signed what has not changed, else this user, or nobody."""
        if sign is not None:
            sign = require_bool(sign, "sign", SmeltError)
        if sign is False or (sign is None and not self._is_vouched_for):
            return None
        kept = self._file.signature
        if kept is not None and self._is_vouched_for:
            return _OriginalSignature(kept.public_key, kept.signature, kept.message)
        signer = user_signer()
        if signer is None and sign:
            raise TrustError(
                "the engine is not signed: there is no private, writable home directory for a "
                "signing key; set SMELT_HOME to a directory of your own"
            )
        return signer

    @override
    def close(self) -> None:
        """Let go of code and weights. Contexts that exist go on; again is harmless.

        The contexts of `run` end when what runs in them is done.
        """
        self._is_closed = True
        self._pool.close()
        self._code = None
        self._serialized = None

    def __repr__(self) -> str:
        return f"<Engine {self.name!r} for {self.device}, {len(self.layers)} layers>"


def _read_only(data: BytesLike) -> NDArray[np.uint8]:
    """The bytes as an array that nobody writes to."""
    array = np.frombuffer(data, np.uint8).view()
    array.flags.writeable = False
    return array
