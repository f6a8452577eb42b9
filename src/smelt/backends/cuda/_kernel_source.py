"""Writer of Triton source, with everything that is known at build time as literals.

A kernel is a function of its operands' addresses (``p0``, ``p1``, …) and its run-time scalars
(``s0``, …). Every spec has these parameters: ``dtypes`` are the element types of the operands;
``aligned`` says which addresses are multiples of 16; ``scalars`` is the number of scalars;
``num_warps`` and ``num_stages`` are Triton's compile options.

A kernel may start before the preceding launch has ended (PDL). It waits for that launch before it
accesses anything but weights, and lets the next launch start after its own wait. One waiting launch
is enough to hide the launch latency; more would occupy registers and shared memory. Architectures
without PDL get the same text without these lines.
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
"""One level of indentation."""
_LAUNCH_DEPENDENTS: Final = "tl.extra.cuda.gdc_launch_dependents()"
"""Statement that lets the next launch start."""
_WAIT_FOR_DEPENDENCIES: Final = "tl.extra.cuda.gdc_wait()"
"""Statement that waits for the preceding launch."""
_LAYOUT: Final = ": gl.constexpr ="
"""Text that occurs in Gluon kernels only."""
ALIGNED_BYTES: Final = 16
"""Alignment in bytes that Triton needs for vector loads."""
VECTOR: Final = 8
"""Maximum number of 16-bit elements in one load of a thread."""
MIN_VECTOR: Final = 4
"""Minimum number of 16-bit elements in a load that Triton can pipeline."""
CLUSTER: Final = "cluster"
"""Parameter: thread block cluster size of kernels whose programs exchange data."""
REGISTERS: Final = "registers"
"""Parameter: maximum number of registers per thread, or 0 for no limit."""
_REVERSED_TILE_ORDER: Final = "reversed_tile_order"
"""Parameter: present if programs process their tiles last to first."""
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
"""Pointer element types in Triton's signatures; a bool is a byte that is 0 or 1."""
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
"""Element types in Triton source."""


def operand_parameters(views: Sequence[View], scalars: int) -> dict[str, Json]:
    """Return the parameters that describe the operands of any spec."""
    return {
        "dtypes": tuple(view.dtype.value for view in views),
        "aligned": tuple(is_aligned(view) for view in views),
        "scalars": scalars,
    }


def waits_for_dependencies(text: str) -> bool:
    """Return whether the kernel's text waits for the preceding launch itself."""
    return _WAIT_FOR_DEPENDENCIES in text


def cluster_of(kernel: KernelSpec) -> int:
    """Return the cluster size of a kernel, or 1."""
    return kernel.options.integer(CLUSTER, 1)


def max_registers(kernel: KernelSpec) -> int | None:
    """Return the maximum number of registers per thread, if the kernel limits it."""
    return kernel.options.integer(REGISTERS, 0) or None


def reverse_tile_order(kernel: KernelSpec) -> KernelSpec:
    """Return the kernel with its tiles processed last to first."""
    return replace(kernel, parameters=parameters(**kernel.options, **{_REVERSED_TILE_ORDER: True}))


def is_gluon(text: str) -> bool:
    """Return whether the text is in Gluon, Triton's lower-level language with explicit layouts."""
    return _LAYOUT in text


def without_pdl(text: str) -> str:
    """Return the text for an architecture without programmatic dependent launch."""
    lines = text.splitlines(keepends=True)
    return "".join(
        line for line in lines if line.strip() not in {_WAIT_FOR_DEPENDENCIES, _LAUNCH_DEPENDENTS}
    )


def is_aligned(view: View) -> bool:
    """Return whether the first element of a view is known to be aligned to 16 bytes."""
    return isinstance(view.offset, int) and view.offset % ALIGNED_BYTES == 0


class Source:
    """Text of one kernel while it is written."""

    def __init__(self, kernel: KernelSpec) -> None:
        """Begin the function."""
        self.dtypes = [DType(name) for name in kernel["dtypes"]]
        self.arguments = [f"p{k}" for k in range(len(self.dtypes))]
        self.scalar_count: int = kernel["scalars"]
        self.arguments += [f"s{k}" for k in range(self.scalar_count)]
        self.aligned: tuple[bool, ...] = kernel["aligned"]
        self._lines: list[str] = []
        self._depth = 1
        self._waits = False
        self._is_tile_order_reversed = _REVERSED_TILE_ORDER in kernel.options

    def line(self, text: str) -> None:
        """Write one statement."""
        self._lines.append(_INDENT * self._depth + text)

    def wait(self) -> None:
        """Write the wait for the preceding launch; without it the kernel waits at its start."""
        self._waits = True
        self.line(_WAIT_FOR_DEPENDENCIES)
        self.line(_LAUNCH_DEPENDENTS)

    @contextmanager
    def block(self, header: str) -> Generator[None]:
        """Indent what is written in the context below a header: a loop or a condition."""
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def program(self) -> str:
        """Number of the program, counted from the last one if tiles are processed in reverse."""
        number = "tl.program_id(0)"
        return f"(tl.num_programs(0) - 1 - {number})" if self._is_tile_order_reversed else number

    @contextmanager
    def for_each_tile(
        self, name: str, first: str, count: str, step: Json, range_options: str = ""
    ) -> Generator[None]:
        """Write a loop over the tiles of a program; in reverse if the kernel is reversed.

        Args:
            name: variable of the tile number.
            first: first tile of the program.
            count: number of tiles of all programs.
            step: distance between two tiles of a program.
            range_options: options of ``tl.range``, such as the number of pipeline stages.
        """
        loop = f"tl.range({first}, {count}, {step}, {range_options})" if range_options else ""
        variable = "walked" if self._is_tile_order_reversed else name
        with self.block(f"for {variable} in {loop or f'range({first}, {count}, {step})'}:"):
            if self._is_tile_order_reversed:
                self.line(f"{name} = {count} - 1 - walked")
            yield

    @staticmethod
    def extent(value: Json) -> str:
        """Return a number, or the name of the scalar that holds it."""
        if isinstance(value, tuple):
            return f"s{value[1]}"
        return str(value)

    def text(self) -> str:
        """Return the text of the function."""
        head = [f"def kernel({', '.join(self.arguments)}):"]
        if not self._waits:
            head += [_INDENT + _WAIT_FOR_DEPENDENCIES, _INDENT + _LAUNCH_DEPENDENTS]
        return "\n".join([*head, *self._lines, ""])

    # ---- expressions and statements

    def sum_of(self, *terms: tuple[str, Json]) -> str:
        """Return ``index * stride + …`` without the terms that are zero."""
        parts: list[str] = []
        for index, stride in terms:
            if stride == 0 or index == "0":
                continue
            parts.append(index if stride == 1 else f"({index}) * {self.extent(stride)}")
        return " + ".join(parts) or "0"

    @staticmethod
    def join(*terms: str) -> str:
        """Return the sum of terms, without those that are empty or zero."""
        return " + ".join(term for term in terms if term not in {"", "0"}) or "0"

    def product_of(self, extents: Iterable[Json]) -> str:
        """Return a product of extents: a number if all are known."""
        known, symbolic = 1, list[str]()
        for extent in extents:
            if isinstance(extent, int):
                known *= extent
            else:
                symbolic.append(self.extent(extent))
        if not symbolic:
            return str(known)
        return f"({' * '.join([*symbolic, str(known)] if known != 1 else symbolic)})"

    @staticmethod
    def divide_up(value: str, size: int) -> str:
        """Return an extent divided by a size, rounded up."""
        return (
            str(-(-int(value) // size))
            if value.isdigit()
            else f"(({value} + {size - 1}) // {size})"
        )

    def offset(
        self, names: Sequence[str], axes: Any, operand: int, *, uses_int64_offsets: bool = False
    ) -> str:
        """Return the offset of coordinates in an operand; each axis is an extent, then all strides.

        With ``uses_int64_offsets`` the first coordinate's term is computed in 64 bits.
        """
        terms = [(name, axis[1 + operand]) for name, axis in zip(names, axes, strict=True)]
        if uses_int64_offsets and terms:
            terms[0] = (f"{names[0]}.to(tl.int64)", terms[0][1])
        return self.sum_of(*terms)

    def unravel(self, index: str, extents: Sequence[Json], names: Sequence[str]) -> None:
        """Write the coordinates of a linear index, the last axis fastest."""
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
        """Return an expression that loads elements in the type they are computed in."""
        condition = "" if mask is None else f", mask={mask}, other={other}"
        value = f"tl.load(p{operand} + ({offset}){condition})"
        dtype = self.dtypes[operand]
        if dtype is DType.BOOL:
            return f"({value} != 0)"
        if dtype in {DType.FLOAT16, DType.BFLOAT16}:
            return f"{value}.to(tl.float32)"
        return value

    def extra_reader(
        self, first: int, place: Callable[[int], str], mask: str | None
    ) -> Callable[[int], str]:
        """Return a function from an epilogue operand's number to its variable, loaded on first use.

        Args:
            first: number of the operand that is epilogue operand 0.
            place: returns the offset of an operand, by its number.
            mask: condition of the elements that exist.
        """
        loaded: dict[int, str] = {}

        def read(extra: int) -> str:
            if extra not in loaded:
                name = loaded[extra] = f"x{extra}"
                operand = first + extra
                self.line(f"{name} = {self.load(operand, place(operand), mask)}")
            return loaded[extra]

        return read

    def write_index_error(
        self, operand: int, value: str, extent: str, is_out_of_range: str
    ) -> None:
        """Write the error words of `smelt.engine.ERROR_BYTES` where an index is out of range.

        Args:
            operand: number of the error words' operand.
            value: the index, a scalar or a block.
            extent: extent that the index must be below.
            is_out_of_range: condition that the index is out of range, of the shape of ``value``.
        """
        address = f"p{operand} + ({value}) * 0"
        self.line(f"tl.store({address}, {value}, mask={is_out_of_range})")
        self.line(f"tl.store({address} + 1, ({value}) * 0 - 1 - {extent}, mask={is_out_of_range})")

    def store(self, operand: int, offset: str, value: str, mask: str | None) -> None:
        """Write a store of elements in the type of their memory."""
        dtype = self.dtypes[operand]
        kind = "tl.uint8" if dtype is DType.BOOL else LANGUAGE_TYPES[dtype]
        condition = "" if mask is None else f", mask={mask}"
        self.line(f"tl.store(p{operand} + ({offset}), ({value}).to({kind}){condition})")
