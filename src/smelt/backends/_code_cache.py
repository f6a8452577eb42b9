"""Compiled kernels kept between builds, in a folder that is the user's alone.

What is in the cache is run, so each entry carries a MAC under a key of the user's. An entry that is
damaged, cut short or made by somebody else is not there; it is compiled and written again. Entries
appear whole or not at all, so processes may share the folder.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Final

from smelt import config
from smelt.engine import VERSION, cache_secret, remove_stale_drafts, replace_file
from smelt.errors import SmeltError
from smelt.types import Limit, read_file

if TYPE_CHECKING:
    from pathlib import Path

    from smelt.backends._base import Target
    from smelt.engine import KernelSpec

_LOG = logging.getLogger(__name__)
_MAGIC: Final = b"smeltobj"
_MAC_BYTES: Final = 32


class CodeCache:
    """A folder of compiled kernels, by kernel and target."""

    def __init__(self, folder: Path, secret: bytes, codegen_version: str) -> None:
        """Keep entries in ``folder``, sealed with ``secret``; see `open`."""
        self._folder = folder
        self._secret = secret
        self._codegen_version = codegen_version

    @classmethod
    def open(cls, codegen_version: str) -> CodeCache | None:
        """Return the user's cache; None where there is none, or the user wants none.

        Args:
            codegen_version: what code depends on beside kernel and target: generators, compiler.
        """
        if not config.code_cache_enabled():
            return None
        folder = config.cache_directory()
        secret = cache_secret()
        if folder is None or secret is None:
            _LOG.debug("the kernel cache is disabled: there is no private, writable home directory")
            return None
        code = config.private_directory(folder / "code")
        if code is None:
            return None
        remove_stale_drafts(code)
        return cls(code, secret, codegen_version)

    def get(self, kernel: KernelSpec, target: Target, /) -> bytes | None:
        """Return the kernel's code, if it is known and unharmed."""
        path = self._path(kernel, target)
        try:
            data = read_file(path, Limit.MAX_CODE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            _LOG.debug("%s cannot be read: %s", path, error.strerror)
            return None
        seal, content = data[: len(_MAGIC) + _MAC_BYTES], data[len(_MAGIC) + _MAC_BYTES :]
        if not hmac.compare_digest(seal, self._seal(path.name, content)):
            _LOG.debug("%s is damaged or was not written by smelt; it is replaced", path)
            return None
        return content

    def put(self, kernel: KernelSpec, target: Target, content: bytes, /) -> None:
        """Keep a kernel's code. That it cannot be kept is not an error."""
        path = self._path(kernel, target)
        try:
            replace_file(path, iter((self._seal(path.name, content), content)))
        except SmeltError as error:
            _LOG.debug("%s", error)

    def _path(self, kernel: KernelSpec, target: Target) -> Path:
        made_for = (kernel.symbol, repr(target), VERSION, self._codegen_version)
        digest = hashlib.sha256(repr(made_for).encode()).hexdigest()
        return self._folder / f"{kernel.symbol[:60]}-{digest[:32]}.o"

    def _seal(self, name: str, content: bytes) -> bytes:
        """What stands before an entry. The name is sealed too: entries cannot be exchanged."""
        message = len(name).to_bytes(4, "little") + name.encode() + content
        return _MAGIC + hmac.digest(self._secret, message, "sha256")
