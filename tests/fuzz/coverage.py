"""Which lines of chosen modules an input reaches, and in which order.

The tracer costs little outside the chosen files. What guides the fuzzer is pairs of lines, one
after the other in the chosen files; what is reported is lines of functions: what runs at import is
neither counted nor missed.
"""

from __future__ import annotations

import inspect
import sys
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType

    LineTracer = Callable[[FrameType, str, Any], Any]

_LINE_BITS: Final = 16
_PLACE_BITS: Final = 32
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1


class Coverage:
    """Collects what runs between ``start`` and ``stop``."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Watch ``files``, by module name."""
        self.files = dict(files)
        self._names = {str(path): name for name, path in files.items()}
        self._numbers = {name: number + 1 for number, name in enumerate(files)}
        self._tracers: dict[CodeType, LineTracer | None] = {}
        self._by_file: dict[str, LineTracer] = {}
        self._last = 0
        self._hits: set[int] = set()

    def start(self) -> None:
        """Begin with an empty record."""
        self._hits.clear()
        self._last = 0
        sys.settrace(self._enter)

    def stop(self) -> set[int]:
        """Return the pairs of lines that ran."""
        sys.settrace(None)
        return set(self._hits)

    def _enter(self, frame: FrameType, event: str, argument: object) -> LineTracer | None:
        del event, argument
        code = frame.f_code
        if code in self._tracers:
            return self._tracers[code]
        name = self._names.get(code.co_filename)
        tracer = None if name is None else self._tracer(name)
        self._tracers[code] = tracer
        return tracer

    def _tracer(self, name: str) -> LineTracer:
        if name in self._by_file:
            return self._by_file[name]
        base, hits = self._numbers[name] << _LINE_BITS, self._hits

        def trace(frame: FrameType, event: str, argument: object) -> LineTracer:
            del argument
            if event == "line":
                place = base | frame.f_lineno
                hits.add(self._last << _PLACE_BITS | place)
                self._last = place
            return trace

        self._by_file[name] = trace
        return trace

    def lines(self, hits: set[int]) -> dict[str, set[int]]:
        """The lines of each module among pairs."""
        names = {number: name for name, number in self._numbers.items()}
        found: dict[str, set[int]] = {name: set() for name in self.files}
        for place in {pair & _PLACE_MASK for pair in hits}:
            found[names[place >> _LINE_BITS]].add(place & ((1 << _LINE_BITS) - 1))
        return found


def function_lines(path: Path) -> dict[int, str]:
    """Each line of a file that only a call can run, with the function it is in."""
    code = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    return dict(_lines_of(code, ""))


def _lines_of(code: CodeType, function: str) -> Iterator[tuple[int, str]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            name = constant.co_qualname
            if constant.co_flags & inspect.CO_OPTIMIZED:
                lines = {line for _, _, line in constant.co_lines() if line}
                if not constant.co_name.startswith("<"):
                    lines.discard(constant.co_firstlineno)
                yield from ((line, function or name) for line in sorted(lines))
            yield from _lines_of(constant, function)
