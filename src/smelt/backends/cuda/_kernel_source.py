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

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

from smelt.backends._launch_scalars import LaunchScalars
from smelt.engine import Json, KernelSpec, Launch, parameters
from smelt.types import DType, SymbolicDim

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from smelt.engine import View
    from smelt.types import Dim

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
LANGUAGE_TYPES: Final = {d: f"tl.{d.value}" for d in DType} | {DType.BOOL: "tl.int1"}
"""Element types in Triton source."""
KernelField = Json | SymbolicDim | tuple["KernelField", ...]
"""Parameter of a kernel before its symbolic extents are replaced by the launch's scalars."""


def kernel_launch(
    family: str,
    views: Sequence[View],
    chunks: Dim,
    writes: Sequence[int] = (),
    /,
    **fields: KernelField,
) -> Launch:
    """Return the launch of a kernel on its operands.

    Args:
        family: family of the kernel.
        views: operands.
        chunks: number of programs.
        writes: numbers of the operands that are written; by default the last one.
        fields: parameters of the kernel; their symbols become scalars of the launch in this order.
            By default there are four warps, and no software pipeline.
    """
    scalars = LaunchScalars()
    values: dict[str, Json] = {"num_warps": 4, "num_stages": 1}
    values |= {name: _without_symbols(field, scalars) for name, field in fields.items()}
    values |= operand_parameters(views, len(scalars.values))
    written = tuple(writes) or (len(views) - 1,)
    spec = KernelSpec(family, parameters(**values))
    return Launch(spec, tuple(views), written, scalars.values, chunks)


def _without_symbols(field: KernelField, scalars: LaunchScalars) -> Json:
    """Return a field with each symbolic extent as a spec holds it."""
    if isinstance(field, tuple):
        return tuple(_without_symbols(part, scalars) for part in field)
    return scalars.json(field) if isinstance(field, SymbolicDim) else field


def operand_parameters(views: Sequence[View], scalars: int) -> dict[str, Json]:
    """Return the parameters that describe the operands of any spec."""
    return {
        "dtypes": tuple(view.dtype.value for view in views),
        "aligned": tuple(
            isinstance(view.offset, int) and view.offset % ALIGNED_BYTES == 0 for view in views
        ),
        "scalars": scalars,
    }


def waits_for_dependencies(text: str) -> bool:
    """Return whether the kernel's text waits for the preceding launch itself."""
    return _WAIT_FOR_DEPENDENCIES in text


def cluster_of(kernel: KernelSpec) -> int:
    """Return the cluster size of a kernel, or 1."""
    return kernel.options.integer(CLUSTER, 1)


def reverse_tile_order(kernel: KernelSpec) -> KernelSpec:
    """Return the kernel with its tiles processed last to first."""
    return replace(kernel, parameters=parameters(**kernel.options, **{_REVERSED_TILE_ORDER: True}))


def is_gluon(text: str) -> bool:
    """Return whether the text is in Gluon, Triton's lower-level language with explicit layouts."""
    return _LAYOUT in text


def without_pdl(text: str) -> str:
    """Return the text for an architecture without programmatic dependent launch."""
    statements = {_WAIT_FOR_DEPENDENCIES, _LAUNCH_DEPENDENTS}
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip() not in statements)


class KernelSource:
    """Triton source of one kernel while it is written."""

    def __init__(self, kernel: KernelSpec) -> None:
        """Begin the function."""
        self.dtypes = [DType(name) for name in kernel["dtypes"]]
        self.arguments = [f"p{k}" for k in range(len(self.dtypes))]
        self.scalars = [f"s{k}" for k in range(kernel["scalars"])]
        self.arguments += self.scalars
        self.aligned: tuple[bool, ...] = kernel["aligned"]
        self._lines: list[str] = []
        self._depth = 1
        self._waits = False
        self.is_tile_order_reversed = _REVERSED_TILE_ORDER in kernel.options

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
        return f"(tl.num_programs(0) - 1 - {number})" if self.is_tile_order_reversed else number

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

    def narrow_scalars(self) -> None:
        """Write the conversion of the scalars to 32 bits."""
        for scalar in self.scalars:
            self.line(f"{scalar} = {scalar}.to(tl.int32)")

    def sum_of(self, *terms: tuple[str, Json]) -> str:
        """Return ``index * stride + …`` without the terms that are zero."""
        parts = (
            index if stride == 1 else f"({index}) * {self.extent(stride)}"
            for index, stride in terms
            if stride != 0 and index != "0"
        )
        return " + ".join(parts) or "0"

    @staticmethod
    def join(*terms: str) -> str:
        """Return the sum of terms, without those that are empty or zero."""
        return " + ".join(term for term in terms if term not in {"", "0"}) or "0"

    def product_of(self, extents: Iterable[Json]) -> str:
        """Return a product of extents: a number if all are known."""
        factors = list(extents)
        known = prod(factor for factor in factors if isinstance(factor, int))
        symbolic = [self.extent(factor) for factor in factors if not isinstance(factor, int)]
        if not symbolic:
            return str(known)
        return f"({' * '.join([*symbolic, str(known)] if known != 1 else symbolic)})"

    @staticmethod
    def divide_up(value: str, size: int) -> str:
        """Return an extent divided by a size, rounded up."""
        if value.isdigit():
            return str(-(-int(value) // size))
        return f"(({value} + {size - 1}) // {size})"

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

    def find_tile(
        self, column: str, width: str, tile: tuple[int, int], program: str = "tl.program_id(0)"
    ) -> None:
        """Write the numbers of a tile's rows, ``i``, and of its columns, of ``width`` in total."""
        rows, columns = tile
        column_tiles = f"(({width} + {columns - 1}) // {columns})"
        self.line(f"program = {program}.to(tl.int64)")
        self.line(f"{column} = (program % {column_tiles}) * {columns} + tl.arange(0, {columns})")
        self.line(f"i = (program // {column_tiles}) * {rows} + tl.arange(0, {rows})")

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

    def coordinates(self, index: str, axes: Any, prefix: str) -> list[str]:
        """Write the coordinates of a linear index along axes, and return their names."""
        names = [f"{prefix}{number}" for number in range(len(axes))]
        self.unravel(index, [axis[0] for axis in axes], names)
        return names

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

    def extra_reader(self, first: int, load: Callable[[int], str]) -> Callable[[int], str]:
        """Return a function from an epilogue operand's number to its variable, loaded on first use.

        Args:
            first: number of the operand that is epilogue operand 0.
            load: returns the expression that loads an operand, by its number.
        """
        loaded: dict[int, str] = {}

        def read(extra: int) -> str:
            if extra not in loaded:
                name = loaded[extra] = f"x{extra}"
                self.line(f"{name} = {load(first + extra)}")
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


class KernelWriter(ABC):
    """Writer of the text of one kernel."""

    def __init__(self, kernel: KernelSpec) -> None:
        self.s = KernelSource(kernel)
        self.k: Any = kernel
        """Parameters of the kernel, by name."""
        self.last = len(self.s.dtypes) - 1
        """Number of the last operand, the result of most kernels."""

    @abstractmethod
    def write(self) -> str:
        """Return the text of the kernel."""
