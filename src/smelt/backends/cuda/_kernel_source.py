"""Writing a kernel in Triton: text, with what is known at build time written out as numbers.

A kernel is a function of its operands' addresses (``p0``, ``p1``, …) and its run-time scalars
(``s0``, …). Every spec says with ``dtypes`` what the addresses point to, with ``aligned`` which of
them are multiples of 16, and with ``scalars`` how many scalars follow; ``num_warps`` and
``num_stages``
say how the compiler is to spread it and how many loads it may run ahead.

A kernel may be started before the launch before it has ended, and lets the next one do the same; it
waits before it touches anything but weights. It lets the next one start once it has waited itself:
one waiting launch is enough to hide what a launch costs, and more of them take up room.
Architectures that know nothing of this get the text without those lines.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from smelt.engine import parameters
from smelt.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from smelt.engine import Json, KernelSpec, View

_INDENT: Final = "    "
_LAUNCH_DEPENDENTS: Final = "tl.extra.cuda.gdc_launch_dependents()"
_WAIT_FOR_DEPENDENCIES: Final = "tl.extra.cuda.gdc_wait()"
_LAYOUT: Final = ": gl.constexpr ="
ALIGNED_BYTES: Final = 16
VECTOR: Final = 8
"""Elements of 16 bits that a thread loads at once, at most."""
MIN_VECTOR: Final = 4
"""The same of a load that may run ahead, at least."""
CLUSTER: Final = "cluster"
"""Parameter of kernels whose programs wait for each other: how many run at the same time."""
REGISTERS: Final = "registers"
"""Parameter of kernels that say how many a thread may have; 0 for all that there are."""
_REVERSED_TILE_ORDER: Final = "reversed_tile_order"
"""Parameter of kernels whose programs begin with what is else done last."""
TRITON_TYPES: Final = {
    DType.FLOAT64: "fp64",
    DType.FLOAT32: "fp32",
    DType.FLOAT16: "fp16",
    DType.BFLOAT16: "bf16",
    DType.INT64: "i64",
    DType.INT32: "i32",
    DType.INT16: "i16",
    DType.INT8: "i8",
    DType.UINT64: "u64",
    DType.UINT32: "u32",
    DType.UINT16: "u16",
    DType.UINT8: "u8",
    DType.BOOL: "u8",
}
"""What an address points to; a bool is a byte that is 0 or 1."""
LANGUAGE_TYPES: Final = {
    DType.FLOAT64: "tl.float64",
    DType.FLOAT32: "tl.float32",
    DType.FLOAT16: "tl.float16",
    DType.BFLOAT16: "tl.bfloat16",
    DType.INT64: "tl.int64",
    DType.INT32: "tl.int32",
    DType.INT16: "tl.int16",
    DType.INT8: "tl.int8",
    DType.UINT64: "tl.uint64",
    DType.UINT32: "tl.uint32",
    DType.UINT16: "tl.uint16",
    DType.UINT8: "tl.uint8",
    DType.BOOL: "tl.int1",
}


def operand_parameters(views: Sequence[View], scalars: int) -> dict[str, Json]:
    """What every spec says of its operands."""
    return {
        "dtypes": tuple(view.dtype.value for view in views),
        "aligned": tuple(is_aligned(view) for view in views),
        "scalars": scalars,
    }


def waits_for_dependencies(text: str) -> bool:
    """Whether the kernel waits by itself for the launch before it."""
    return _WAIT_FOR_DEPENDENCIES in text


def cluster_of(kernel: KernelSpec) -> int:
    """How many programs of a kernel wait for each other, or 1."""
    return kernel.options.integer(CLUSTER, 1)


def most_registers(kernel: KernelSpec) -> int | None:
    """How many registers a thread may have at most, so that more programs run beside each other."""
    return kernel.options.integer(REGISTERS, 0) or None


def reverse_tile_order(kernel: KernelSpec) -> KernelSpec:
    """The same kernel, but for the order in which its tiles are done: the last one first."""
    return replace(kernel, parameters=parameters(**kernel.options, **{_REVERSED_TILE_ORDER: True}))


def is_gluon(text: str) -> bool:
    """Whether the kernel says itself how everything is laid out, in Triton's lower language."""
    return _LAYOUT in text


def without_pdl(text: str) -> str:
    """The kernel for an architecture on which no launch starts before another has ended."""
    lines = text.splitlines(keepends=True)
    return "".join(
        line for line in lines if line.strip() not in {_WAIT_FOR_DEPENDENCIES, _LAUNCH_DEPENDENTS}
    )


def is_aligned(view: View) -> bool:
    """Whether the window's first element surely lies at a multiple of 16 bytes."""
    return isinstance(view.offset, int) and view.offset % ALIGNED_BYTES == 0


class Source:
    """The text of one kernel while it is written."""

    def __init__(self, kernel: KernelSpec) -> None:
        """Begin the function."""
        self.dtypes = [DType(name) for name in kernel["dtypes"]]
        self.arguments = [f"p{k}" for k in range(len(self.dtypes))]
        self.arguments += [f"s{k}" for k in range(kernel["scalars"])]
        self._lines: list[str] = []
        self._depth = 1
        self._waits = False
        self._is_tile_order_reversed = _REVERSED_TILE_ORDER in kernel.options

    def line(self, text: str) -> None:
        """Write one statement."""
        self._lines.append(_INDENT * self._depth + text)

    def wait(self) -> None:
        """Let what was launched before end; without this, the whole kernel waits."""
        self._waits = True
        self.line(_WAIT_FOR_DEPENDENCIES)
        self.line(_LAUNCH_DEPENDENTS)

    @contextmanager
    def block(self, header: str) -> Generator[None]:
        """Write what follows under a header: a loop or a condition."""
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def program(self) -> str:
        """The program's number, from the last one down where the kernel goes backwards."""
        number = "tl.program_id(0)"
        return f"(tl.num_programs(0) - 1 - {number})" if self._is_tile_order_reversed else number

    @contextmanager
    def for_each_tile(
        self, name: str, first: str, count: str, step: Json, ahead: str = ""
    ) -> Generator[None]:
        """A loop over a program's tiles, each ``step`` behind the one before; backwards likewise.

        Args:
            name: of the variable that numbers them.
            first: the tile that the program begins with.
            count: of all programs' tiles.
            step: from a tile to the next.
            ahead: what the loop is told of loads for later tiles.
        """
        loop = f"tl.range({first}, {count}, {step}, {ahead})" if ahead else ""
        variable = "walked" if self._is_tile_order_reversed else name
        with self.block(f"for {variable} in {loop or f'range({first}, {count}, {step})'}:"):
            if self._is_tile_order_reversed:
                self.line(f"{name} = {count} - 1 - walked")
            yield

    @staticmethod
    def extent(value: Json) -> str:
        """A number, or the scalar that holds it."""
        if isinstance(value, tuple):
            return f"s{value[1]}"
        return str(value)

    def text(self) -> str:
        """The whole function."""
        head = [f"def kernel({', '.join(self.arguments)}):"]
        if not self._waits:
            head += [_INDENT + _WAIT_FOR_DEPENDENCIES, _INDENT + _LAUNCH_DEPENDENTS]
        return "\n".join([*head, *self._lines, ""])

    # ---- what every kernel says

    def sum_of(self, *terms: tuple[str, Json]) -> str:
        """``index * stride + …`` without what is zero."""
        parts: list[str] = []
        for index, stride in terms:
            if stride == 0 or index == "0":
                continue
            parts.append(index if stride == 1 else f"({index}) * {self.extent(stride)}")
        return " + ".join(parts) or "0"

    @staticmethod
    def join(*terms: str) -> str:
        """A sum of texts, without what is nothing."""
        return " + ".join(term for term in terms if term not in {"", "0"}) or "0"

    def product_of(self, extents: Iterable[Json]) -> str:
        """A product of extents: a number where all are known."""
        known, others = 1, list[str]()
        for extent in extents:
            if isinstance(extent, int):
                known *= extent
            else:
                others.append(self.extent(extent))
        if not others:
            return str(known)
        return f"({' * '.join([*others, str(known)] if known != 1 else others)})"

    @staticmethod
    def divide_up(value: str, by: int) -> str:
        """How many pieces of a size make up an extent."""
        return str(-(-int(value) // by)) if value.isdigit() else f"(({value} + {by - 1}) // {by})"

    def offset(
        self, names: Sequence[str], axes: Any, operand: int, *, uses_int64_offsets: bool = False
    ) -> str:
        """Where coordinates lie in an operand; each axis is an extent, then every stride.

        With ``uses_int64_offsets`` the first coordinate's part is computed in 64 bits.
        """
        terms = [(name, axis[1 + operand]) for name, axis in zip(names, axes, strict=True)]
        if uses_int64_offsets and terms:
            terms[0] = (f"{names[0]}.to(tl.int64)", terms[0][1])
        return self.sum_of(*terms)

    def unravel(self, index: str, extents: Sequence[Json], names: Sequence[str]) -> None:
        """Write coordinates of a running index, the last axis fastest."""
        rest = index
        for position in reversed(range(len(extents))):
            name, extent = names[position], self.extent(extents[position])
            if position == 0:
                self.line(f"{name} = {rest}")
                return
            self.line(f"{name} = ({rest}) % {extent}")
            self.line(f"{name}_rest = ({rest}) // {extent}")
            rest = f"{name}_rest"

    def load(self, operand: int, offset: str, mask: str | None, other: str = "0") -> str:
        """An expression for elements in the type that they are computed in."""
        condition = "" if mask is None else f", mask={mask}, other={other}"
        value = f"tl.load(p{operand} + ({offset}){condition})"
        dtype = self.dtypes[operand]
        if dtype is DType.BOOL:
            return f"({value} != 0)"
        if dtype in {DType.FLOAT16, DType.BFLOAT16}:
            return f"{value}.to(tl.float32)"
        return value

    def reading(
        self, first: int, place: Callable[[int], str], mask: str | None
    ) -> Callable[[int], str]:
        """What gives the variable of an extra operand, loaded when it is first asked for.

        Args:
            first: the operand that is extra operand 0.
            place: the offset of an operand, by its number.
            mask: condition of the elements that are there.
        """
        loaded: dict[int, str] = {}

        def read(extra: int) -> str:
            if extra not in loaded:
                name = loaded[extra] = f"x{extra}"
                operand = first + extra
                self.line(f"{name} = {self.load(operand, place(operand), mask)}")
            return loaded[extra]

        return read

    def write_index_error(self, operand: int, value: str, extent: str, is_wrong: str) -> None:
        """Write error words, as `smelt.engine.ERROR_BYTES` says, where a value is out of range.

        Args:
            operand: the error words.
            value: what may be out of range, a scalar or a block of them.
            extent: of what it should be inside.
            is_wrong: where it is not, as a block of the value's shape or a scalar.
        """
        place = f"p{operand} + ({value}) * 0"
        self.line(f"tl.store({place}, {value}, mask={is_wrong})")
        self.line(f"tl.store({place} + 1, ({value}) * 0 - 1 - {extent}, mask={is_wrong})")

    def store(self, operand: int, offset: str, value: str, mask: str | None) -> None:
        """Write elements back in the type of their memory."""
        dtype = self.dtypes[operand]
        kind = "tl.uint8" if dtype is DType.BOOL else LANGUAGE_TYPES[dtype]
        condition = "" if mask is None else f", mask={mask}"
        self.line(f"tl.store(p{operand} + ({offset}), ({value}).to({kind}){condition})")
