"""Version hash of a backend's compiler and code generators; a change invalidates cached code."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def codegen_version_of(folder: Path, compiler: str) -> str:
    """Return the SHA-256 of the compiler's name and version and the generators in a folder."""
    digest = hashlib.sha256(compiler.encode())
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
