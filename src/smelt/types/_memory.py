"""Memory that a process cannot have: one error for all that asks for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from smelt.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Generator


def out_of_memory(task: str) -> DeviceError:
    """The error of a task for which the process has too little memory: "the build"."""
    return DeviceError(
        f"{task} needs more memory than this process can have; use a smaller model, batch or "
        "shapes, or fewer contexts at once"
    )


@contextmanager
def enough_memory_for(task: str) -> Generator[None]:
    """Turn a MemoryError of a block, or of a function that this decorates, into `out_of_memory`.

    numpy and the interpreter ask for memory nearly everywhere, so it is caught where the public
    functions are.

    Raises:
        DeviceError: the process can have no more memory.
    """
    try:
        yield
    except MemoryError as error:
        raise out_of_memory(task) from error
