"""Emitter of LLVM IR: one ``Emitter`` writes the function of one kernel.

A kernel is ``void kernel(ptr args, i64 begin, i64 end, ptr scratch)`` and computes chunks ``begin``
to ``end`` of its work. ``args`` is an array of 64-bit words: the operands' addresses, then the
launch's scalars. Values that a plan fixes are constants in the code. Values that are known at run
time alone are ``("arg", k)`` in the kernel's parameters and are read from scalar ``k``.

Integers that are known at build time remain Python ints through ``add``, ``mul`` and the other
arithmetic, so generators need not distinguish the two.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from smelt.errors import InternalError
from smelt.types import DType


@dataclass(frozen=True, slots=True)
class Reg:
    """LLVM IR value: its name (virtual register) or literal, and its type."""

    text: str
    type: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


Int = int | Reg
"""An i64 that is either known at build time (int) or computed by the kernel (Reg)."""

FLOAT_BYTES: Final = 4
"""Size in bytes of a float32."""
LLVM_TYPES = {
    DType.FLOAT64: "double",
    DType.FLOAT32: "float",
    DType.FLOAT16: "half",
    DType.BFLOAT16: "bfloat",
    DType.INT64: "i64",
    DType.UINT64: "i64",
    DType.INT32: "i32",
    DType.UINT32: "i32",
    DType.INT16: "i16",
    DType.UINT16: "i16",
    DType.INT8: "i8",
    DType.UINT8: "i8",
    DType.BOOL: "i8",
}
"""LLVM type of an element in memory; a bool is a byte that is 0 or 1."""


def vector_type(element: str, lanes: int) -> str:
    """Return the LLVM type of ``lanes`` elements, which is a scalar for one lane."""
    return f"<{lanes} x {element}>" if lanes > 1 else element


def element_type(kind: str) -> str:
    """Return the element type of a vector type, or the scalar type itself."""
    return kind.split(" x ", 1)[1][:-1] if kind.startswith("<") else kind


def lane_count(kind: str) -> int:
    """Return the number of lanes of a vector type, or 1 for a scalar."""
    return int(kind[1:].split(" ", 1)[0]) if kind.startswith("<") else 1


@dataclass(slots=True)
class Loop:
    """A counted loop that is being written; the body sets ``carry`` to the next carried values."""

    index: Reg
    values: tuple[Reg, ...]
    """The carried values: those of the iteration inside the body, and the final ones after the
    loop."""
    carry: Sequence[Reg] = ()


@dataclass(slots=True)
class Emitter:
    """Writes the body of one kernel."""

    symbol: str
    operand_count: int
    lines: list[str] = field(default_factory=list[str])
    declarations: dict[str, str] = field(default_factory=dict[str, str])
    counter: int = 0
    block: str = "entry"
    begin: Reg = Reg("%begin", "i64")
    end: Reg = Reg("%end", "i64")
    scratch: Reg = Reg("%scratch", "ptr")
    _pointers: dict[int, Reg] = field(default_factory=dict[int, Reg])
    _words: list[str] = field(default_factory=list[str])
    _parts: list[str] = field(default_factory=list[str])

    # ---- text

    def fresh(self) -> str:
        """Return a new local name."""
        self.counter += 1
        return f"%v{self.counter}"

    def emit(self, kind: str, text: str) -> Reg:
        """Append ``%new = text``, whose type is ``kind``, and return the new register."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return Reg(name, kind)

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        """Start the basic block ``name``."""
        self.lines.append(f"{name}:")
        self.block = name

    def call(self, result: str, function: str, *arguments: Reg, fast_math_flags: str = "") -> Reg:
        """Call an intrinsic, which is declared on first use, and return its result.

        ``fast_math_flags`` are LLVM's fast-math flags, with a trailing space.
        """
        types = ", ".join(a.type for a in arguments)
        self.declarations[function] = f"declare {result} @{function}({types})"
        text = f"call {fast_math_flags}{result} @{function}({', '.join(map(str, arguments))})"
        if result == "void":
            self.do(text)
            return Reg("", "void")
        return self.emit(result, text)

    def module(self) -> str:
        """Return the LLVM module."""
        head = (
            f"define void @{self.symbol}(ptr %args, i64 %begin, i64 %end, ptr %scratch) nounwind {{"
        )
        body = [head, "entry:", *self._words, *self.lines, "  ret void", "}"]
        return "\n".join([*sorted(self.declarations.values()), *body, *self._parts, ""])

    def include(self, module: str) -> None:
        """Add the module of a kernel that this kernel calls with arguments of its own."""
        # The contents of the argument block differ between calls, so loads are not invariant.
        for line in module.replace(", !invariant.load !{}", "").splitlines():
            if line.startswith("declare"):
                self.declarations[line.partition("@")[2].partition("(")[0]] = line
            else:
                self._parts.append(line.replace("define void", "define internal void"))

    # ---- arguments

    def pointer(self, operand: int) -> Reg:
        """Return the address of an operand's element (0, …, 0)."""
        return self._word(operand, "ptr")

    def extent(self, parameter: Any) -> Int:
        """Return an extent or stride of the spec: an int, or scalar ``k`` for ``("arg", k)``."""
        if isinstance(parameter, int):
            return parameter
        marker, index = parameter
        if marker != "arg":
            raise InternalError(f"{self.symbol}: the parameter {parameter!r} is not an extent")
        return self._word(self.operand_count + index, "i64")

    def _word(self, index: int, kind: str) -> Reg:
        """Return word ``index`` of the arguments, which is loaded at the start of the kernel."""
        if index not in self._pointers:
            name = f"%word{index}"
            self._words += [
                f"  %at{index} = getelementptr i64, ptr %args, i64 {index}",
                f"  {name} = load {kind}, ptr %at{index}, align 8, !invariant.load !{{}}",
            ]
            self._pointers[index] = Reg(name, kind)
        return self._pointers[index]

    # ---- 64-bit integers

    def i64(self, value: Int) -> Reg:
        """Return the integer as a register or literal."""
        return Reg(str(value), "i64") if isinstance(value, int) else value

    def _integer(self, op: str, a: Int, b: Int) -> Reg:
        return self.emit("i64", f"{op} i64 {self.i64(a).text}, {self.i64(b).text}")

    def add(self, a: Int, b: Int) -> Int:
        """Return ``a + b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return a if b == 0 else b if a == 0 else self._integer("add nsw", a, b)

    def sub(self, a: Int, b: Int) -> Int:
        """Return ``a - b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self._integer("sub nsw", a, b)

    def mul(self, a: Int, b: Int) -> Int:
        """Return ``a * b``."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if 0 in (a, b):
            return 0
        return a if b == 1 else b if a == 1 else self._integer("mul nsw", a, b)

    def div(self, a: Int, b: Int) -> Int:
        """Return ``a // b`` for ``a >= 0`` and ``b > 0``."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if b == 1 else self._integer("udiv", a, b)

    def mod(self, a: Int, b: Int) -> Int:
        """Return ``a % b`` for ``a >= 0`` and ``b > 0``."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if b == 1 else self._integer("urem", a, b)

    def sum(self, terms: Iterable[Int]) -> Int:
        """Return the sum of all terms."""
        total: Int = 0
        for term in terms:
            total = self.add(total, term)
        return total

    def product(self, extents: Iterable[Int]) -> Int:
        """Return the product of all extents."""
        total: Int = 1
        for extent in extents:
            total = self.mul(total, extent)
        return total

    def minimum(self, a: Int, b: Int) -> Int:
        """Return the smaller of two signed integers."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.call("i64", "llvm.smin.i64", self.i64(a), self.i64(b))

    def maximum(self, a: Int, b: Int) -> Int:
        """Return the larger of two signed integers."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.call("i64", "llvm.smax.i64", self.i64(a), self.i64(b))

    def compare(self, predicate: str, a: Int, b: Int) -> Reg:
        """Return ``icmp predicate`` (eq, ne, slt, sle, sgt, sge, ult, uge, ...) as an i1."""
        return self.emit("i1", f"icmp {predicate} i64 {self.i64(a).text}, {self.i64(b).text}")

    def unravel(self, index: Int, extents: Sequence[Int]) -> list[Int]:
        """Return the coordinates of a flat index, last extent fastest."""
        coordinates: list[Int] = []
        for extent in reversed(extents[1:]):
            coordinates.append(self.mod(index, extent))
            index = self.div(index, extent)
        return [index, *reversed(coordinates)] if extents else []

    # ---- memory

    def at(self, pointer: Reg, byte_offset: Int) -> Reg:
        """Return the address ``byte_offset`` bytes after ``pointer``."""
        if byte_offset == 0:
            return pointer
        return self.emit("ptr", f"getelementptr i8, {pointer}, i64 {self.i64(byte_offset).text}")

    def advanced(
        self, pointers: Sequence[Reg], index: Int, strides: Sequence[Int], sizes: Sequence[int]
    ) -> list[Reg]:
        """Return each address after ``index`` strides, which count elements of ``sizes`` bytes."""
        return [
            self.at(pointer, self.mul(index, self.mul(stride, size)))
            for pointer, stride, size in zip(pointers, strides, sizes, strict=True)
        ]

    def load(self, kind: str, pointer: Reg, align: int = 1) -> Reg:
        """Load a scalar or vector."""
        return self.emit(kind, f"load {kind}, {pointer}, align {align}")

    def store(self, value: Reg, pointer: Reg, align: int = 1) -> None:
        """Store a scalar or vector."""
        self.do(f"store {value}, {pointer}, align {align}")

    def load_masked(self, kind: str, pointer: Reg, mask: Reg) -> Reg:
        """Load the lanes of a vector that are set in the mask; the others are zero."""
        function, filler = f"llvm.masked.load.{type_suffix(kind)}.p0", Reg("zeroinitializer", kind)
        return self.call(kind, function, pointer, Reg("1", "i32"), mask, filler)

    def store_masked(self, value: Reg, pointer: Reg, mask: Reg) -> None:
        """Store the lanes of a vector that are set in the mask."""
        function = f"llvm.masked.store.{type_suffix(value.type)}.p0"
        self.call("void", function, value, pointer, Reg("1", "i32"), mask)

    def tail_mask(self, count: Int, lanes: int) -> Reg:
        """Return a mask of the first ``count`` of ``lanes`` lanes."""
        if isinstance(count, int):
            bits = ", ".join(f"i1 {int(i < count)}" for i in range(lanes))
            return Reg(f"<{bits}>", f"<{lanes} x i1>")
        narrow = self.emit("i32", f"trunc {count} to i32")
        iota = ", ".join(f"i32 {i}" for i in range(lanes))
        splat = self.splat(narrow, lanes)
        return self.emit(f"<{lanes} x i1>", f"icmp slt <{lanes} x i32> <{iota}>, {splat.text}")

    def prefetch(self, pointer: Reg, locality: int = 2) -> None:
        """Prefetch the cache line at ``pointer`` (locality 3: into L1, 2: into L2)."""
        flags = (Reg("0", "i32"), Reg(str(locality), "i32"), Reg("1", "i32"))
        self.call("void", "llvm.prefetch.p0", pointer, *flags)

    # ---- values

    def constant(self, value: float | bool, kind: str) -> Reg:  # noqa: FBT001  (a bool is a value)
        """Return a literal; a vector type has it in every lane."""
        element, lanes = element_type(kind), lane_count(kind)
        text = _literal(value, element)
        if lanes == 1:
            return Reg(text, kind)
        return Reg("<" + ", ".join([f"{element} {text}"] * lanes) + ">", kind)

    def splat(self, scalar: Reg, lanes: int) -> Reg:
        """Return a vector with the scalar in every lane."""
        if lanes == 1:
            return scalar
        kind = f"<{lanes} x {scalar.type}>"
        one = self.emit(kind, f"insertelement {kind} poison, {scalar}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.emit(kind, f"shufflevector {one}, {kind} poison, {zeros}")

    def binary(self, op: str, a: Reg, b: Reg) -> Reg:
        """Apply ``op`` (fadd, fmul, and, shl, ...) to two registers of one type."""
        return self.emit(a.type, f"{op} {a.type} {a.text}, {b.text}")

    def unary_intrinsic(self, name: str, a: Reg) -> Reg:
        """Call ``llvm.name`` (sqrt, fabs, floor, ...) on one value; each is one instruction."""
        return self.call(a.type, f"llvm.{name}.{type_suffix(a.type)}", a)

    def compare_float(self, predicate: str, a: Reg, b: Reg) -> Reg:
        """Return ``fcmp predicate`` as an i1, or as a vector of i1."""
        kind = vector_type("i1", lane_count(a.type))
        return self.emit(kind, f"fcmp {predicate} {a.type} {a.text}, {b.text}")

    def compare_integers(self, predicate: str, a: Reg, b: Reg) -> Reg:
        """Return ``icmp predicate`` of integers of any type, as i1 for each lane."""
        kind = vector_type("i1", lane_count(a.type))
        return self.emit(kind, f"icmp {predicate} {a}, {b.text}")

    def shuffle(self, a: Reg, b: Reg, order: Sequence[int]) -> Reg:
        """Return lanes of two vectors in a constant order; those of ``b`` follow those of ``a``."""
        lanes = ", ".join(f"i32 {lane}" for lane in order)
        kind = vector_type(element_type(a.type), len(order))
        return self.emit(kind, f"shufflevector {a}, {b}, <{len(order)} x i32> <{lanes}>")

    def select(self, condition: Reg, yes: Reg, no: Reg) -> Reg:
        """Return ``condition ? yes : no``, lane by lane."""
        return self.emit(yes.type, f"select {condition}, {yes}, {no}")

    def convert(self, op: str, value: Reg, element: str) -> Reg:
        """Convert each lane by ``op``: fpext, fptrunc, sitofp, zext, bitcast, ...."""
        kind = vector_type(element, lane_count(value.type))
        return self.emit(kind, f"{op} {value} to {kind}")

    # ---- control

    @contextmanager
    def loop(
        self, start: Int, stop: Int, step: int = 1, carried: Sequence[Reg] = ()
    ) -> Generator[Loop]:
        """Write ``for index in range(start, stop, step)``, with no iteration if ``start >= stop``.

        Values that change between iterations are ``carried``. The body reads ``loop.values`` and
        sets ``loop.carry``; after the loop, ``loop.values`` are the final values.
        """
        self.counter += 1
        n = self.counter
        head, body, done = f"head{n}", f"body{n}", f"done{n}"
        before = self.block
        self.do(f"br label %{head}")
        self.label(head)
        index = Reg(f"%i{n}", "i64")
        loop = Loop(index, tuple(Reg(f"%c{n}_{k}", c.type) for k, c in enumerate(carried)))
        position = len(self.lines)
        inside = self.compare("slt", index, stop)
        self.do(f"br {inside}, label %{body}, label %{done}")
        self.label(body)
        yield loop
        if len(loop.carry) != len(carried):
            raise InternalError(
                f"{self.symbol}: a loop carries {len(carried)} values but updates {len(loop.carry)}"
            )
        following = self.emit("i64", f"add nsw i64 {index.text}, {step}")
        back = self.block
        self.do(f"br label %{head}")
        first = [Reg(str(self.i64(start).text), "i64"), *carried]
        latter = [following, *loop.carry]
        self.lines[position:position] = [
            f"  {phi.text} = phi {phi.type} [{a.text}, %{before}], [{b.text}, %{back}]"
            for phi, a, b in zip((index, *loop.values), first, latter, strict=True)
        ]
        self.label(done)

    def vector_steps(self, first: Int, last: Int, lanes: int) -> Generator[tuple[Reg, int]]:
        """Write loops over ``first`` to ``last``: one over full vectors, one over single elements.

        Each yields its index and the number of elements of a step. With one lane there is only the
        second loop.
        """
        full_end = first
        if lanes > 1:
            full_end = self.add(first, self.mul(self.div(self.sub(last, first), lanes), lanes))
            with self.loop(first, full_end, lanes) as steps:
                yield steps.index, lanes
        with self.loop(full_end, last) as steps:
            yield steps.index, 1

    def blocks(self, count: int, size: int) -> Generator[tuple[Int, int]]:
        """Write a loop over full blocks of ``size`` elements, and the rest of ``count`` elements.

        Each yields its first element and its number of elements.
        """
        full_end = count // size * size
        if full_end:
            with self.loop(0, full_end, size) as block:
                yield block.index, size
        if count > full_end:
            yield full_end, count - full_end

    @contextmanager
    def when(self, condition: Reg) -> Generator[None]:
        """Write ``if condition:``."""
        self.counter += 1
        yes, after = f"yes{self.counter}", f"after{self.counter}"
        self.do(f"br {condition}, label %{yes}, label %{after}")
        self.label(yes)
        yield
        self.do(f"br label %{after}")
        self.label(after)


def type_suffix(kind: str) -> str:
    """Return the name of a type in intrinsics, such as v16f32."""
    lanes, element = lane_count(kind), element_type(kind)
    names = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
    return (f"v{lanes}" if lanes > 1 else "") + names.get(element, element)


def _literal(value: float, element: str) -> str:
    """Return the text of a literal of an element type."""
    if element == "i1":
        return "true" if value else "false"
    if element.startswith("i"):
        return str(int(value))
    with np.errstate(over="ignore"):  # values beyond the type's range become infinite
        if element == "half":
            return f"0xH{np.float16(value).view(np.uint16):04X}"
        if element == "float":  # LLVM writes a float as the double of the same value
            value = float(np.float32(value))
    if element in {"float", "double"}:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    raise InternalError(f"LLVM IR literals of type {element} are not supported")
