"""Cache of compiled kernels between builds, in a private folder of the user.

Cached code is executed, so each entry carries a MAC under a key of the user. An entry that is
damaged, truncated or written with another key is ignored, compiled again and replaced. Entries are
written atomically, so processes may share the folder.

Entries are valid for one version of a backend's compiler and code generators, given as a hash.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Final

from smelt import config
from smelt.engine import VERSION, cache_secret, remove_stale_drafts, replace_file
from smelt.errors import SmeltError
from smelt.signal_errors import pass_on_handler_error
from smelt.types import Limit, open_file

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.backends._base import Target
    from smelt.engine import KernelSpec


_LOG = logging.getLogger(__name__)
_MAGIC: Final = b"smeltobj"
"""First bytes of every entry."""
_MAC_BYTES: Final = 32
"""Size of the HMAC-SHA256 after the magic, in bytes."""


class CodeCache:
    """Folder of compiled kernels, by kernel and target."""

    def __init__(self, folder: Path, secret: bytes, codegen_version: str) -> None:
        """Keep entries in ``folder``, authenticated with ``secret``; see `open`."""
        self._folder = folder
        self._secret = secret
        self._codegen_version = codegen_version

    @classmethod
    def open(cls, codegen_version: str) -> CodeCache | None:
        """Return the user's cache; None if it is disabled or has no private folder.

        Args:
            codegen_version: hash of the generators and the compiler, on which code depends in
                addition to kernel and target.
        """
        if not config.code_cache_enabled():
            return None
        folder = config.cache_directory()
        secret = cache_secret()
        if folder is None or secret is None:
            _LOG.debug("the kernel cache is disabled: it has no private, writable directory")
            return None
        code = config.private_directory(folder / "code")
        if code is None:
            return None
        remove_stale_drafts(code)
        return cls(code, secret, codegen_version)

    def get(self, kernel: KernelSpec, target: Target, /) -> bytes | None:
        """Return the kernel's code; None if it is not cached or fails authentication."""
        path = self._path(kernel, target)
        try:
            with open_file(path, Limit.MAX_CODE_BYTES) as file:
                if not config.is_own_file(file.fileno()):
                    _LOG.debug("%s is owned by another user; it is replaced", path)
                    return None
                data = file.read(Limit.MAX_CODE_BYTES.most)
        except FileNotFoundError as error:
            pass_on_handler_error(error)
            return None
        except OSError as error:
            pass_on_handler_error(error)
            _LOG.debug("%s cannot be read: %s", path, error.strerror)
            return None
        seal, content = data[: len(_MAGIC) + _MAC_BYTES], data[len(_MAGIC) + _MAC_BYTES :]
        if not hmac.compare_digest(seal, self._seal(path.name, content)):
            _LOG.debug("%s is damaged or was not written by smelt; it is replaced", path)
            return None
        return content

    def put(self, kernel: KernelSpec, target: Target, content: bytes, /) -> None:
        """Store a kernel's code. A failure to write is logged and not an error."""
        path = self._path(kernel, target)
        try:
            replace_file(path, iter((self._seal(path.name, content), content)))
        except SmeltError as error:
            _LOG.debug("%s", error)

    def _path(self, kernel: KernelSpec, target: Target) -> Path:
        """Return the path of an entry, named after all that its code depends on."""
        key = (kernel.symbol, repr(target), VERSION, self._codegen_version)
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return self._folder / f"{kernel.symbol[:60]}-{digest[:32]}.o"

    def _seal(self, name: str, content: bytes) -> bytes:
        """Return the header of an entry. The MAC covers the name: entries cannot be exchanged."""
        message = len(name).to_bytes(4, "little") + name.encode() + content
        return _MAGIC + hmac.digest(self._secret, message, "sha256")


def codegen_version_of(folder: Path, compiler: str) -> str:
    """Return the SHA-256 of the compiler's name and version and the generators in a folder."""
    digest = hashlib.sha256(compiler.encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
