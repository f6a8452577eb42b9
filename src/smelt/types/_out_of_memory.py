"""Conversion of a MemoryError to the error that smelt raises for insufficient memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from smelt.errors import DeviceError


def out_of_memory(task: str) -> DeviceError:
    """Return the error of a task, such as "the build", that ran out of memory."""
    return DeviceError(
        f"{task} needs more memory than this process can have; use a smaller model, batch or "
        "shapes, or fewer contexts at once"
    )


@contextmanager
def enough_memory_for(task: str) -> Generator[None]:
    """Convert a MemoryError in a block, or in a decorated function, to the error `out_of_memory`.

    numpy and the interpreter allocate memory nearly everywhere, so the public functions catch the
    MemoryError.

    Raises:
        DeviceError: the process is out of memory.
    """
    try:
        yield
    except MemoryError as error:
        raise out_of_memory(task) from error
