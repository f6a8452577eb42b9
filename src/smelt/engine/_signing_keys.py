"""Signing keys and the trust store.

Each user has a signing key, which is created when the first engine is built. A folder next to it
holds the public keys that the user trusts. A public key is one line of text,
``smelt-ed25519 <base64> <label>``. It can be copied to other machines and is not a secret. A
private key never leaves its folder.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from smelt import config
from smelt.engine._atomic_files import open_atomic_file, writing_to
from smelt.errors import EngineFormatError, SmeltError, TrustError, sanitize_name
from smelt.signal_errors import make_directory, pass_on_handler_error, path_mode, suppress_own
from smelt.types import Limit, open_file, require_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

    from smelt.engine._file import EngineFile, Signature

_LOG = logging.getLogger(__name__)
_KEY_TYPE: Final = "smelt-ed25519"
_SECRET_NAME: Final = "signing.key"  # noqa: S105  (a file's name)
_OWN: Final = "own"
"""Value of `TrustedKey.origin` for the user's own key."""
_CACHE_NAME: Final = "cache.key"
_PUBLIC_SUFFIX: Final = ".pub"
_TRUSTED_FOLDER: Final = "trusted"
_KEY_BYTES: Final = 32
"""Size of an ed25519 key in bytes."""
_MAX_LABEL: Final = 200
"""Largest length of a label in characters."""
_PRIME: Final = 2**255 - 19
"""Prime of the field of edwards25519 (RFC 8032, section 5.1)."""
_CURVE: Final = -121665 * pow(121666, -1, _PRIME) % _PRIME
"""Constant d of edwards25519: ``y**2 - x**2 == 1 + d * x**2 * y**2`` (RFC 8032)."""


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key; engines that it verifies are trusted."""

    public_key: bytes
    label: str
    origin: str
    """Path of the file that holds the key; "own" for the user's own key."""

    @property
    def key_id(self) -> str:
        """Short identifier of the key: 16 hexadecimal digits."""
        return key_id(self.public_key)

    @property
    def text(self) -> str:
        """The key as a line of text, as `smelt trust add` accepts it on another machine."""
        return f"{_KEY_TYPE} {base64.b64encode(self.public_key).decode()} {self.label}".rstrip()


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
    """Return the short identifier of a public key: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def user_signer() -> Signer | None:
    """Return the user's signing key, created at the first call; None and a warning without a home.

    Raises:
        TrustError: the key file is damaged, or other users can read it.
    """
    folder = config.keys_directory()
    if folder is None:
        _LOG.warning(
            "there is no private, writable home directory for a signing key, so the engine is not "
            "signed, and smelt does not run it where no compiler is installed. Set SMELT_HOME to a "
            "directory of your own"
        )
        return None
    try:
        return Signer(_user_secret(folder / _SECRET_NAME))
    except OSError as error:
        pass_on_handler_error(error)
        _LOG.warning(
            "a signing key cannot be stored in %s (%s), so the engine is not signed",
            folder,
            error.strerror,
        )
        return None


def cache_secret() -> bytes | None:
    """Return the key of the user's code cache, created at the first call; None without a home.

    Raises:
        TrustError: the key file is damaged, or other users can read it.
    """
    folder = config.keys_directory()
    if folder is None:
        return None
    try:
        return _user_secret(folder / _CACHE_NAME)
    except OSError as error:
        pass_on_handler_error(error)
        _LOG.debug("a key cannot be stored in %s: %s", folder, error.strerror)
        return None


def _user_secret(path: Path) -> bytes:
    """Return the 32 secret bytes in a file; create the file if it does not exist."""
    try:
        _create_private(path, secrets.token_bytes(_KEY_BYTES).hex())
        _LOG.info("a signing key was created: %s", path)
    except FileExistsError as error:
        pass_on_handler_error(error)  # the usual case, or another process has just created it
    return _read_secret(path)


def _create_private(path: Path, text: str) -> None:
    """Create a file atomically that other users cannot read. Raises FileExistsError."""
    if path_mode(path, follow_symlinks=False):
        raise FileExistsError(path)
    with open_atomic_file(path, 0o600) as draft:
        draft.file.write(text.encode())
        # Unlike a rename, a link never replaces a key that another process has just created.
        draft.link_target()


def _read_secret(path: Path) -> bytes:
    """Return the secret of a key file. Raises FileNotFoundError; TrustError: it is not safe."""
    with open_file(path, Limit.MAX_KEY_BYTES) as file:
        number = file.fileno()
        if os.name == "posix" and os.fstat(number).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise TrustError(
                f"{path} can be read by other users, who could sign engines in your name; delete "
                "it (a new key is created), and inform everyone who trusts it"
            )
        if problem := _other_owner(number, path):
            raise TrustError(
                f"{path} is not your key: {problem}; delete it, and a new key is created"
            )
        text = file.read(Limit.MAX_KEY_BYTES.most)
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError as error:
        pass_on_handler_error(error)
        raise TrustError(f"{path} is damaged; delete it, and a new key is created") from error
    if len(secret) != _KEY_BYTES:
        raise TrustError(f"{path} is damaged; delete it, and a new key is created")
    return secret


def _other_owner(number: int, path: Path) -> str:
    """Return why another user may have written an open key file; "" if none can have."""
    if stat.S_ISLNK(path_mode(path, follow_symlinks=False)):
        return "it is a symbolic link"
    return config.other_writers_of_open(number, path, num_parents=1)


def show_trusted_keys() -> tuple[TrustedKey, ...]:
    """Return all trusted keys: the user's own, recorded ones, and those of SMELT_TRUSTED_KEYS."""
    return tuple(_trusted_keys())


def _trusted_keys() -> Iterator[TrustedKey]:
    """Yield the trusted keys; warn about keys that are unreadable or that others can write."""
    folder = config.keys_directory()
    if folder is not None:
        if path_mode(folder / _SECRET_NAME):
            yield from _yield_or_warn(lambda: _own_key(folder / _SECRET_NAME))
        for path in _key_files(folder / _TRUSTED_FOLDER):
            yield from _yield_or_warn(partial(_read_trusted, path, _other_owner))
    for path in config.trusted_keys():
        try:
            require_path(path, "a key")
            path.stat()
        except FileNotFoundError as error:
            pass_on_handler_error(error)
            _warn(f"SMELT_TRUSTED_KEYS contains {path}, which does not exist")
            continue
        except (OSError, SmeltError) as error:
            pass_on_handler_error(error)
            _warn(f"SMELT_TRUSTED_KEYS: {error}")
            continue
        for file in _key_files(path) if stat.S_ISDIR(path_mode(path)) else (path,):
            yield from _yield_or_warn(
                partial(
                    _read_trusted, file, partial(config.other_writers_of_open, num_parents=None)
                )
            )


def _own_key(path: Path) -> TrustedKey:
    return TrustedKey(Signer(_read_secret(path)).public_key, _own_label(), _OWN)


def _yield_or_warn(read: Callable[[], TrustedKey]) -> Iterator[TrustedKey]:
    """Yield the key that ``read`` returns, or log a warning if it cannot be read or trusted."""
    try:
        yield read()
    except TrustError as error:
        _warn(str(error))
    except OSError as error:
        pass_on_handler_error(error)
        _warn(f"a trusted key is ignored: {error}")


def _warn(text: str) -> None:
    config.log_once(logging.WARNING, text)


def _own_label() -> str:
    """Return the label of the user's own key: user@host."""
    try:
        label = f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError, ImportError) as error:  # some containers have no name for the user
        pass_on_handler_error(error)
        return "this user"
    return sanitize_name(" ".join(label.split())[:_MAX_LABEL])


def _key_files(folder: Path) -> list[Path]:
    """Return the key files in a folder; none, with a warning, if other users can write to it."""
    try:
        if problem := config.other_writers(folder):
            _warn(f"the key folder {folder} is ignored: {problem}")
            return []
        names = sorted(os.listdir(folder))
        return [folder / name for name in names if name.endswith(_PUBLIC_SUFFIX)]
    except FileNotFoundError as error:
        pass_on_handler_error(error)
        return []
    except OSError as error:
        pass_on_handler_error(error)
        _warn(f"the key folder {folder} is ignored: {error}")
        return []


def _read_trusted(path: Path, find_other_writer: Callable[[int, Path], str]) -> TrustedKey:
    """Read a trusted key. Raises TrustError: ``find_other_writer`` reports another writer."""

    def require_own(file: BufferedReader) -> None:
        if problem := find_other_writer(file.fileno(), path):
            raise TrustError(f"the key {path} is not trusted: {problem}")

    return _read_public(path, require_own)


def _read_public(
    path: Path, check: Callable[[BufferedReader], None] = lambda _: None
) -> TrustedKey:
    try:
        with open_file(path, Limit.MAX_KEY_BYTES) as file:
            check(file)
            text = file.read(Limit.MAX_KEY_BYTES.most).decode("utf-8", "replace")
    except FileNotFoundError as error:
        pass_on_handler_error(error)
        raise TrustError(
            f"{str(path)!r} is neither a key nor a file with one; a key is a line '{_KEY_TYPE} "
            "<base64> <label>', as `smelt trust show` prints it"
        ) from error
    except (OSError, ValueError) as error:
        pass_on_handler_error(error)
        reason = getattr(error, "strerror", None) or str(error)
        raise TrustError(f"the trusted key {path} cannot be read: {reason}") from error
    return parse_public_key(text, str(path))


def parse_public_key(text: str, origin: str) -> TrustedKey:
    """Return the first public key in a text, e.g. in the output of `smelt trust show`.

    `smelt trust show` prints the user's own key first.

    Raises:
        TrustError: the text has no key, or the key is weak.
    """
    lines = [line.strip() for line in text.splitlines()]
    line = next((line for line in lines if line.startswith(_KEY_TYPE)), "")
    parts = line.split(maxsplit=2)
    if len(parts) >= 2 and parts[0] == _KEY_TYPE:
        try:
            public_key = base64.b64decode(parts[1], validate=True)
        except (binascii.Error, ValueError) as error:
            pass_on_handler_error(error)
            public_key = b""
        if len(public_key) == _KEY_BYTES:
            _reject_weak_key(public_key, origin)
            label = sanitize_name(parts[2][:_MAX_LABEL]) if len(parts) == 3 else ""
            return TrustedKey(public_key, label.strip(), origin)
    raise TrustError(
        f"{origin} has no public key; a key is a line '{_KEY_TYPE} <base64> <label>', as "
        "`smelt trust show` prints it"
    )


def _reject_weak_key(public_key: bytes, origin: str) -> None:
    """Check that a key is canonically encoded and is not a point of small order.

    For a point whose order divides 8, a forged signature verifies for at least one in eight
    messages. Doubling does not depend on the sign of x, so y alone determines the order.

    Raises:
        TrustError: the key is weak or not canonical.
    """
    y = int.from_bytes(public_key, "little") & ((1 << 255) - 1)
    is_canonical = y < _PRIME
    for _ in range(3):
        y = _double_y(y)
    if y == 1 or not is_canonical:
        raise TrustError(
            f"the key in {origin} is weak (anybody can sign with it), or is not encoded as an "
            "ed25519 key; ask its owner for the line that `smelt trust show` prints"
        )


def _double_y(y: int) -> int:
    """Return the y coordinate of twice a point of edwards25519."""
    y2 = y * y % _PRIME
    x2 = (y2 - 1) * _inverse(_CURVE * y2 + 1)
    return (y2 + x2) * _inverse(1 - _CURVE * x2 * y2) % _PRIME


def _inverse(number: int) -> int:
    """Return the inverse in the field; 0 for 0, which occurs only if y is not on the curve."""
    return pow(number, _PRIME - 2, _PRIME)


def add_trusted_key(source: str | os.PathLike[str], label: str = "") -> TrustedKey:
    """Trust a public key, given as its line of text or as the path of a file that holds it.

    Raises:
        TrustError: ``source`` is not a public key.
        SmeltError: there is no home directory to record the key in.
    """
    is_text = isinstance(source, str) and any(
        line.strip().startswith(_KEY_TYPE) for line in source.splitlines()
    )
    path = Path() if is_text else require_path(source, "a key", TrustError)
    key = parse_public_key(str(source), "the text") if is_text else _read_public(path)
    if any(character in label.strip() for character in "\r\n"):
        raise TrustError("a label must be one line")
    key = TrustedKey(key.public_key, sanitize_name(label.strip()[:_MAX_LABEL]) or key.label, "")
    folder = config.keys_directory()
    if folder is None:
        raise SmeltError(
            "there is no private, writable home directory to record keys in; set SMELT_HOME to a "
            "directory of your own, or SMELT_TRUSTED_KEYS to a file with the key's line"
        )
    path = folder / _TRUSTED_FOLDER / f"{key.key_id}{_PUBLIC_SUFFIX}"
    with writing_to(path):
        make_directory(path.parent, 0o700)
        with open_atomic_file(path, 0o600) as draft:
            draft.file.write(f"{key.text}\n".encode())
            draft.replace_target()
    return TrustedKey(key.public_key, key.label, str(path))


def remove_trusted_key(name: str) -> TrustedKey:
    """Remove a recorded key from the trusted keys, by its identifier or label.

    Raises:
        TrustError: no recorded key or several have this name, or it is the user's own key.
    """
    keys = [key for key in show_trusted_keys() if name in {key.key_id, key.label} and name]
    folder = config.keys_directory()
    recorded = [k for k in keys if folder and Path(k.origin).parent == folder / _TRUSTED_FOLDER]
    if len(recorded) == 1:
        try:
            with suppress_own(FileNotFoundError):
                os.unlink(recorded[0].origin)
        except OSError as error:
            pass_on_handler_error(error)
            raise SmeltError(f"{recorded[0].origin} cannot be removed: {error.strerror}") from error
        return recorded[0]
    if len(recorded) > 1:
        raise TrustError(
            f"{len(recorded)} trusted keys have the label {name!r}; give the id of one"
        )
    if folder and any(key.origin == _OWN for key in keys):
        raise TrustError(
            f"{name!r} is your own key, which is trusted as long as it exists in "
            f"{folder / _SECRET_NAME}: delete that file to remove it. The next build then creates "
            "another key, and engines signed with the old one are no longer trusted"
        )
    if keys:
        raise TrustError(
            f"{name!r} is not stored here; it comes from {keys[0].origin!r}, so remove it there"
        )
    raise TrustError(f"there is no trusted key {name!r}; `smelt trust show` lists the trusted keys")


def verify_signature(engine: EngineFile) -> TrustedKey:
    """Return the trusted key that signed an engine.

    Raises:
        TrustError: the engine is unsigned or signed by an untrusted key.
        EngineFormatError: the signature is invalid: the file was changed after signing.
    """
    if engine.signature is None:
        raise TrustError(
            f"{engine.source} is not signed, and smelt does not run machine code of unknown "
            "origin. Build it again on a machine that has a signing key, or install smelt's "
            "compiler here: smelt.load then recompiles it"
        )
    signer = check_signature(engine.signature, engine.source)
    for key in show_trusted_keys():
        if key.public_key == signer:
            return key
    raise TrustError(
        f"{engine.source} is signed by the key {key_id(signer)}, which is not trusted here. If "
        "you trust its owner, ask the owner for the line that `smelt trust show` prints, and add "
        "the key here with `smelt trust add LINE`, or set SMELT_TRUSTED_KEYS to a file with the "
        "line. Where smelt's compiler is installed, smelt.load recompiles the engine instead"
    )


def check_signature(signature: Signature, source: str) -> bytes:
    """Verify a signature and return its public key, whether trusted or not.

    Raises:
        EngineFormatError: the signature is invalid.
    """
    try:
        public = Ed25519PublicKey.from_public_bytes(signature.public_key)
        public.verify(signature.signature, signature.message)
    except (InvalidSignature, ValueError) as error:
        raise EngineFormatError(
            f"{source}: its signature is wrong; the file was changed after it was signed: copy or "
            "build it again"
        ) from error
    return signature.public_key
