"""Keys: whose machine code this user runs.

Each user has a signing key, made when the first engine is built, and a folder of public keys that
he trusts beside it. A public key is one line of text, ``smelt-ed25519 <base64> <label>``, to be
carried to other machines; it is no secret. A private key never leaves its folder.
"""

from __future__ import annotations

import base64
import binascii
import getpass
import hashlib
import logging
import os
import secrets
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from smelt import config
from smelt.errors import EngineFormatError, SmeltError, TrustError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smelt.engine._file import EngineFile, Signature

_LOG = logging.getLogger(__name__)
_KIND: Final = "smelt-ed25519"
_SECRET_NAME: Final = "signing.key"  # noqa: S105  (a file's name)
_CACHE_NAME: Final = "cache.key"
_PUBLIC_SUFFIX: Final = ".pub"
_TRUSTED_FOLDER: Final = "trusted"
_KEY_BYTES: Final = 32
_MAX_KEY_FILE_BYTES: Final = 4096
_MAX_LABEL: Final = 200


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key whose engines may run."""

    public_key: bytes
    label: str
    origin: str
    """Where it is recorded; "own" for the user's own."""

    @property
    def key_id(self) -> str:
        """Sixteen hexadecimal digits, by which people name the key."""
        return key_id(self.public_key)

    @property
    def text(self) -> str:
        """The key as a line of text, for `smelt trust add` elsewhere."""
        return f"{_KIND} {base64.b64encode(self.public_key).decode()} {self.label}".rstrip()


class Signer:
    """Signs engines with a private key."""

    __slots__ = ("_key", "public_key")

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public_key: bytes = self._key.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )

    def sign(self, message: bytes) -> bytes:
        """Return the ed25519 signature of ``message``."""
        return self._key.sign(message)


def key_id(public_key: bytes) -> str:
    """Return the short name of a public key."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def user_signer() -> Signer | None:
    """Return the user's signing key, made at the first call; None, with a warning, without a home.

    Raises:
        TrustError: the key's file is damaged, or others may read it.
    """
    folder = config.keys_directory()
    if folder is None:
        _LOG.warning(
            "there is no private, writable home directory for a signing key, so the engine is not "
            "signed; the bare runtime will refuse it. Set SMELT_HOME to a directory of your own"
        )
        return None
    try:
        return Signer(_user_secret(folder / _SECRET_NAME))
    except OSError as error:
        _LOG.warning("no signing key can be kept in %s (%s); not signing", folder, error.strerror)
        return None


def cache_secret() -> bytes | None:
    """Return the key of the user's code cache, made at the first call; None without a home.

    Raises:
        TrustError: the key's file is damaged, or others may read it.
    """
    folder = config.keys_directory()
    if folder is None:
        return None
    try:
        return _user_secret(folder / _CACHE_NAME)
    except OSError as error:
        _LOG.debug("no key can be kept in %s: %s", folder, error.strerror)
        return None


def _user_secret(path: Path) -> bytes:
    """Thirty-two secret bytes, made when they are first asked for."""
    try:
        _create_private(path, secrets.token_bytes(_KEY_BYTES).hex())
        _LOG.info("made a key: %s", path)
    except FileExistsError:
        pass  # the usual case, or another process was faster
    return _read_secret(path)


def _create_private(path: Path, text: str) -> None:
    """Create a file that nobody else can read, complete from the moment when it has its name."""
    if path.exists():
        raise FileExistsError(path)
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
            file.write(text)
        # A link, unlike a rename, never replaces the key that another process has just made.
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _read_secret(path: Path) -> bytes:
    """The bytes of a key's file. Raises FileNotFoundError."""
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TrustError(
            f"{path} can be read by others, who could sign engines in your name; "
            "delete it (a new one is made), and tell those who trust it"
        )
    try:
        secret = bytes.fromhex(path.read_text())
    except ValueError as error:
        raise TrustError(f"{path} is damaged; delete it, and a new key is made") from error
    if len(secret) != _KEY_BYTES:
        raise TrustError(f"{path} is damaged; delete it, and a new key is made")
    return secret


def show_trusted_keys() -> tuple[TrustedKey, ...]:
    """Return every key that is trusted: the user's own, recorded ones, and the environment's."""
    return tuple(_trusted_keys())


def _trusted_keys() -> Iterator[TrustedKey]:
    folder = config.keys_directory()
    if folder is not None:
        if (folder / _SECRET_NAME).exists():
            public_key = Signer(_read_secret(folder / _SECRET_NAME)).public_key
            yield TrustedKey(public_key, _own_label(), "own")
        yield from _keys_in(folder / _TRUSTED_FOLDER)
    for path in config.trusted_keys():
        if path.is_dir():
            yield from _keys_in(path)
        elif path.exists():
            yield _read_public(path)
        else:
            _LOG.warning("SMELT_TRUSTED_KEYS names %s, which does not exist", path)


def _own_label() -> str:
    """Whose key it is, for those who are to trust it elsewhere: user@host."""
    try:
        label = f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError, ImportError):  # a user without a name, as in some containers
        return "this user"
    return " ".join(label.split())[:_MAX_LABEL]


def _keys_in(folder: Path) -> Iterator[TrustedKey]:
    for path in sorted(folder.glob(f"*{_PUBLIC_SUFFIX}")):
        yield _read_public(path)


def _read_public(path: Path) -> TrustedKey:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_KEY_FILE_BYTES).decode("utf-8", "replace")
    except FileNotFoundError as error:
        raise TrustError(
            f"{str(path)!r} is neither a key nor a file that holds one; a key is a line "
            f"'{_KIND} <base64> <label>', as `smelt trust show` prints it"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TrustError(f"the trusted key {path} cannot be read: {reason}") from error
    return parse_public_key(text, str(path))


def parse_public_key(text: str, origin: str) -> TrustedKey:
    """Return the key that a text holds: its line, or all that `smelt trust show` prints.

    Of several keys it is the first: `smelt trust show` begins with the user's own.

    Raises:
        TrustError: it holds none.
    """
    lines = [line.strip() for line in text.splitlines()]
    line = next((line for line in lines if line.startswith(_KIND)), "")
    parts = line.split(maxsplit=2)
    if len(parts) >= 2 and parts[0] == _KIND:
        try:
            public_key = base64.b64decode(parts[1], validate=True)
        except (binascii.Error, ValueError):
            public_key = b""
        if len(public_key) == _KEY_BYTES:
            label = parts[2][:_MAX_LABEL] if len(parts) == 3 else ""
            return TrustedKey(public_key, label.strip(), origin)
    raise TrustError(
        f"{origin} holds no public key; one is a line '{_KIND} <base64> <label>', "
        "as `smelt trust show` prints it"
    )


def add_trusted_key(source: str | os.PathLike[str], label: str = "") -> TrustedKey:
    """Trust a public key, given as its line of text or as the path of a file that holds it.

    Raises:
        TrustError: it is no public key.
        SmeltError: there is no home directory to record it in.
    """
    is_text = isinstance(source, str) and any(
        line.strip().startswith(_KIND) for line in source.splitlines()
    )
    key = parse_public_key(str(source), "the text") if is_text else _read_public(Path(source))
    key = TrustedKey(key.public_key, label.strip()[:_MAX_LABEL] or key.label, "")
    if any(character in key.label for character in "\r\n"):
        raise TrustError("a label is one line")
    folder = config.keys_directory()
    if folder is None:
        raise SmeltError("there is no home directory to record keys in; use SMELT_TRUSTED_KEYS")
    path = folder / _TRUSTED_FOLDER / f"{key.key_id}{_PUBLIC_SUFFIX}"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = path.with_suffix(f".{secrets.token_hex(6)}")
        draft.write_text(key.text + "\n")
        draft.replace(path)
    except OSError as error:
        raise SmeltError(f"{path} cannot be written: {error.strerror}") from error
    return TrustedKey(key.public_key, key.label, str(path))


def remove_trusted_key(name: str) -> TrustedKey:
    """Trust a recorded key no more, named by its id or its label.

    Raises:
        TrustError: no recorded key, or more than one, has that name; or it is the user's own.
    """
    keys = [key for key in show_trusted_keys() if name in {key.key_id, key.label} and name]
    folder = config.keys_directory()
    recorded = [k for k in keys if folder and Path(k.origin).parent == folder / _TRUSTED_FOLDER]
    if len(recorded) == 1:
        Path(recorded[0].origin).unlink(missing_ok=True)
        return recorded[0]
    if len(recorded) > 1:
        raise TrustError(f"{len(recorded)} trusted keys are called {name!r}; name one by its id")
    if keys:
        raise TrustError(f"{name!r} is not recorded here but comes from {keys[0].origin!r}")
    raise TrustError(f"no trusted key is called {name!r}; `smelt trust show` lists them")


def verify_signature(engine: EngineFile) -> TrustedKey:
    """Return the trusted key that signed an engine.

    Raises:
        TrustError: the engine is unsigned, or nobody whom this user trusts signed it.
        EngineFormatError: the signature is wrong: the file was changed after it was signed.
    """
    if engine.signature is None:
        raise TrustError(
            f"{engine.source} is not signed, and machine code of unknown origin is not run. "
            "Build it again where there is a home directory for a signing key, or load it with "
            "smelt.load where smelt's compiler is installed: it makes code of its own"
        )
    signer = check_signature(engine.signature, engine.source)
    for key in show_trusted_keys():
        if key.public_key == signer:
            return key
    raise TrustError(
        f"{engine.source} is signed by the key {key_id(signer)}, which you do not trust. If you "
        "know whose it is, get the line that `smelt trust show` prints there and run "
        "`smelt trust add` here, or set SMELT_TRUSTED_KEYS. Where smelt's compiler is installed, "
        "smelt.load runs it with code of its own making"
    )


def check_signature(signature: Signature, source: str) -> bytes:
    """Return the public key of whoever signed, trusted or not.

    Raises:
        EngineFormatError: the signature is wrong.
    """
    try:
        public = Ed25519PublicKey.from_public_bytes(signature.public_key)
        public.verify(signature.signature, signature.message)
    except (InvalidSignature, ValueError) as error:
        raise EngineFormatError(
            f"{source}: its signature is wrong; the file was changed after it was signed"
        ) from error
    return signature.public_key
