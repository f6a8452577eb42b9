"""Dimensions: an int, or a polynomial in symbols.

A ``SymbolicDim`` has one canonical form, a sum of integer multiples of products of atoms, so
that equal dimensions compare equal. An atom is a symbol or an exact floor division ``(p) // k``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from smelt.errors import Argument, GraphError, InternalError, ShapeError, UnboundSymbolError
from smelt.types._limits import Limit

if TYPE_CHECKING:
    Atom = "Symbol | FloorDiv"
    Monomial = tuple["Symbol | FloorDiv", ...]


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_GUESSED_EXTENT: Final = 8
"""Value assumed for a symbol in an estimate. Chosen without a measurement."""
_NO_NAMES: Final[frozenset[str]] = frozenset()
_MAX_VECTOR_ATOMS: Final = 1 << 11
"""Atoms of the elements of one vector that inference computes with: 30 ms of processor time."""
_MAX_BITS: Final = 1 << 13
"""Bits of the largest number in a dimension: Python converts at most 4,300 digits to text."""

_FORM: Final = (
    "it must be a sum of products of names, integers and quotients of the form `(sum) // integer`"
)
"""Description of the accepted grammar, for messages."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named extent whose value is not known yet."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """Floor division ``numerator // divisor`` that cannot be simplified."""

    numerator: SymbolicDim
    divisor: int
    text: str = field(init=False, compare=False, repr=False)
    """Text of the quotient, stored because nested quotients would format it again at each level."""
    depth: int = field(init=False, compare=False, repr=False)
    """Nesting depth of the quotient: 1 if its numerator has no quotient."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"(({self.numerator}) // {_text_of(self.divisor)})")
        object.__setattr__(self, "depth", self.numerator.depth + 1)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """Polynomial with integer coefficients, made by ``SymbolicDim.symbol`` and by arithmetic."""

    terms: tuple[tuple[Monomial, int], ...]
    symbols: frozenset[str] = field(init=False, repr=False, compare=False)
    """Names of the symbols that the dimension depends on."""
    size: int = field(init=False, repr=False, compare=False)
    """Number of atoms, including the atoms of numerators."""
    depth: int = field(init=False, repr=False, compare=False)
    """Largest nesting depth of quotients; 0 without quotients."""
    text: str = field(init=False, repr=False, compare=False)
    """Text of the dimension, as engine files store it; `dim_from_text` parses it."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Computed once: plans read them thousands of times, for nested quotients too.
        atoms = [atom for monomial, _ in self.terms for atom in monomial]
        size = sum(1 if isinstance(a, Symbol) else 1 + a.numerator.size for a in atoms)
        _require_within(size, Limit.MAX_DIM_ATOMS)
        depth = max((a.depth for a in atoms if isinstance(a, FloorDiv)), default=0)
        _require_within(depth, Limit.MAX_DIM_DEPTH)
        text = _text_of_sum(self.terms)
        _require_within(len(text), Limit.MAX_DIM_CHARACTERS)
        names = [{a.name} if isinstance(a, Symbol) else a.numerator.symbols for a in atoms]
        object.__setattr__(self, "symbols", _NO_NAMES.union(*names))
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def symbol(name: str) -> SymbolicDim:
        """Return the dimension of one symbol. Raises ShapeError: the name is not an identifier."""
        return SymbolicDim((((_symbol(name),), 1),))

    def __add__(self, other: Dim) -> Dim:
        return _canonical((*self.terms, *terms_of(other)))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _canonical((m, -c) for m, c in self.terms)

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        terms = terms_of(other)
        if isinstance(other, SymbolicDim):
            size = self.size * len(terms) + other.size * len(self.terms)
            _require_within(size, Limit.MAX_DIM_ATOMS)
        products = [(tuple(sorted(m + n, key=str)), c * d) for m, c in self.terms for n, d in terms]
        return _canonical(products)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Dim) -> Dim:
        """Floor division by a positive int, or exactly by an equal or factoring dimension."""
        if isinstance(divisor, SymbolicDim):
            return _divide_exactly(self, divisor)
        if divisor <= 0:
            raise ZeroDivisionError(
                f"{self} cannot be divided by {divisor}: the divisor must be positive"
            )
        if divisor == 1:
            return self
        divisible = [(m, c // divisor) for m, c in self.terms if c % divisor == 0]
        remainder = _canonical((m, c) for m, c in self.terms if c % divisor)
        if isinstance(remainder, int):
            return _canonical((*divisible, ((), remainder // divisor)))
        return _canonical((*divisible, ((FloorDiv(remainder, divisor),), 1)))

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


Dim = int | SymbolicDim
"""An extent: known, or a polynomial in symbols."""


def ceil_div(numerator: Dim, divisor: int) -> Dim:
    """Return the quotient rounded up; ``divisor`` must be positive."""
    return (numerator + (divisor - 1)) // divisor


def symbols_of(*dims: Dim) -> frozenset[str]:
    """Return the names of the symbols on which the dimensions depend."""
    return _NO_NAMES.union(*(d.symbols for d in dims if isinstance(d, SymbolicDim)))


def symbol_of(dim: Dim) -> str | None:
    """Return the name of the symbol if a dimension is a single symbol, otherwise None."""
    if isinstance(dim, SymbolicDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def guessed_extent(extent: Dim) -> int:
    """Return an extent for an estimate, with a guess for each symbol."""
    return evaluate_dim(extent, dict.fromkeys(symbols_of(extent), _GUESSED_EXTENT))


def evaluate_dim(dim: Dim, values: Mapping[str, int]) -> int:
    """Return the value of a dimension for the given symbol values.

    Raises UnboundSymbolError, which names the symbol, when ``values`` has no value for a symbol.
    """
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms:
        product = coefficient
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                product *= evaluate_dim(atom.numerator, values) // atom.divisor
            elif atom.name in values:
                product *= values[atom.name]
            else:
                raise UnboundSymbolError(
                    f"dimension {dim} needs a value for the symbol {atom.name!r}"
                )
        total += product
    return total


def substitute_dim(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """Return the dimension with symbols replaced by other dimensions."""
    if isinstance(dim, int):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for atom in monomial:
            if isinstance(atom, FloorDiv):
                product = product * (substitute_dim(atom.numerator, values) // atom.divisor)
            else:
                product = product * values.get(atom.name, _canonical([((atom,), 1)]))
        total = total + product
    return total


def fixed_extent(extent: Dim) -> int:
    """Return an extent that must be a number. Raises InternalError when it is symbolic."""
    if isinstance(extent, int):
        return extent
    raise InternalError(f"the extent {extent} is symbolic; it must be a number")


def fixed_shape(shape: Iterable[Dim]) -> tuple[int, ...]:
    """Return extents that must be numbers. Raises InternalError when one is symbolic."""
    return tuple(map(fixed_extent, shape))


@dataclass(slots=True)
class _FormulaCache:
    """Formulas of one file: the parsed ones by text, and their total length."""

    known: dict[str, Dim] = field(default_factory=dict[str, "Dim"])
    characters: int = 0

    def count(self, text: str) -> str:
        """Add the length of a formula; return the excess as text if the total exceeds its limit."""
        self.characters += len(text)
        limit = Limit.MAX_FORMULA_CHARACTERS
        return limit.excess(self.characters) if self.characters > limit.most else ""


_formulas: ContextVar[_FormulaCache | None] = ContextVar("formulas", default=None)


def shared_formula_limit(function: Callable[P, R]) -> Callable[P, R]:
    """Share one formula limit and cache among all formulas that calls of a function read or write.

    Each distinct text is parsed once and counted once. `dim_from_text` and `dim_to_text` raise when
    the total length exceeds ``MAX_FORMULA_CHARACTERS``. Without this limit, an engine header that
    respects all other limits could take minutes to read.
    """

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        if _formulas.get() is not None:
            return function(*args, **kwargs)
        return _call_with(_formulas, _FormulaCache(), lambda: function(*args, **kwargs))

    return limited


def _call_with(variable: ContextVar[T], value: T, function: Callable[[], R]) -> R:
    """Return what a function returns in a context in which a variable has the given value.

    A context manager that sets and resets the variable is not safe: a signal handler may raise
    between its two statements, and the thread would keep the value.
    """
    context = copy_context()
    context.run(variable.set, value)
    return context.run(function)


_followed_atoms: ContextVar[list[int] | None] = ContextVar("followed_atoms", default=None)


def followed_atoms_limit(function: Callable[P, R]) -> Callable[P, R]:
    """Limit the atoms of all elements that inference computes in a call, which imports a model.

    Engines have no such limit: what a build has followed, a load must follow too.
    """

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        return _call_with(_followed_atoms, [0], lambda: function(*args, **kwargs))

    return limited


def may_follow(dims: Iterable[Dim]) -> bool:
    """Return whether inference may compute with the elements of a vector, which are dimensions.

    Each op on a vector computes every element's formula in Python. A vector of long formulas is not
    followed, nor is any beyond `followed_atoms_limit`: a model of 441 bytes would take half a
    minute to import.
    """
    size = sum(dim.size for dim in dims if not isinstance(dim, int))
    total = _followed_atoms.get()
    if total is not None:
        total[0] += size
    is_within = total is None or total[0] <= Limit.MAX_FOLLOWED_ATOMS.most
    return size <= _MAX_VECTOR_ATOMS and is_within


def dim_from_text(text: str | int) -> Dim:
    """Parse a dimension that `dim_to_text` wrote. Raises ValueError when the text is invalid."""
    if isinstance(text, int):
        return text
    formulas = _formulas.get()
    if formulas is None:
        return _read_formula(text)
    if text not in formulas.known:
        if excess := formulas.count(text):
            raise ValueError(f"the formulas of extents have {excess}")
        formulas.known[text] = _read_formula(text)
    return formulas.known[text]


def dim_to_text(dim: Dim) -> str:
    """Return the text of a dimension for a file.

    Raises ShapeError when the formulas of the file exceed the limit that its reader enforces.
    """
    text = str(dim)
    formulas = _formulas.get()
    if formulas is not None and text not in formulas.known:
        if excess := formulas.count(text):
            raise _too_complex("the formulas of extents have", excess)
        formulas.known[text] = dim
    return text


def _read_formula(text: str) -> Dim:
    if len(text) > Limit.MAX_DIM_CHARACTERS.most:
        raise ValueError(f"a dimension has {Limit.MAX_DIM_CHARACTERS.excess(len(text))}")
    try:
        return _dim_from_ast(ast.parse(text, mode="eval").body)
    except (
        ValueError,
        SyntaxError,
        RecursionError,
        MemoryError,
        ZeroDivisionError,
        GraphError,
    ) as e:
        raise ValueError(f"{text[:200]!r} is not a dimension: {str(e)[:200]}") from e


def _dim_from_ast(node: ast.expr) -> Dim:
    """Return the dimension of a parsed sum.

    All terms are collected before they are sorted: adding them one by one would sort the sum after
    each term. A sum inside a sum or a product is refused: `dim_to_text` never writes one, and a
    text of a few hundred characters could take many milliseconds to expand.
    """
    terms: list[tuple[Monomial, int]] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        monomial, coefficient = _term_from_ast(node.right)
        terms.append((monomial, coefficient if isinstance(node.op, ast.Add) else -coefficient))
        node = node.left
    dim = _canonical((_term_from_ast(node), *reversed(terms)))
    if isinstance(dim, int):
        _text_of(dim)  # refuses a number too long to be shown in a message
    return dim


def _term_from_ast(node: ast.expr) -> tuple[Monomial, int]:
    """Return the monomial and the coefficient of a parsed product."""
    factors: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        factors.append(node.right)
        node = node.left
    atoms: list[Symbol | FloorDiv] = []
    coefficient = 1
    for factor in (node, *reversed(factors)):
        match factor:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                coefficient *= value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                coefficient *= -value
            case ast.Name(id=name):
                atoms.append(_symbol(name))
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=ast.Constant(value=int(divisor))):
                atoms.append(_quotient(_dim_from_ast(left), divisor))
            case _:
                raise ValueError(_FORM)
    return tuple(sorted(atoms, key=str)), coefficient


def _quotient(numerator: Dim, divisor: int) -> FloorDiv:
    """Return the quotient as one atom. Raises ValueError when it simplifies to anything else."""
    match numerator // divisor:
        case SymbolicDim(terms=((((FloorDiv() as atom),), 1),)):
            return atom
        case _:
            raise ValueError(_FORM)


def _symbol(name: str) -> Symbol:
    if not (name.isascii() and name.isidentifier()) or iskeyword(name):
        raise ShapeError(f"the name of a symbol must be an identifier, not {name[:200]!r}")
    return Symbol(name)


def _require_within(size: int, limit: Limit) -> None:
    """Check a measure of a dimension against its limit. Raises ShapeError.

    Repeated squaring and nested quotients of sums grow exponentially. The limits apply to every
    dimension, so that a file can hold any dimension that exists.
    """
    if size > limit.most:
        raise _too_complex("an extent's formula has", limit.excess(size))


def _too_complex(what: str, excess: str) -> ShapeError:
    shapes = Argument("shapes")
    return ShapeError(
        f"{what} {excess}; fix the values of some symbols with {shapes}", arguments=[shapes]
    )


def _text_of_sum(terms: Iterable[tuple[Monomial, int]]) -> str:
    parts = [
        "*".join([*([_text_of(c)] if c != 1 or not m else []), *(str(a) for a in m)])
        for m, c in terms
    ]
    return " + ".join(parts).replace("+ -", "- ")


def _text_of(number: int) -> str:
    """Return the digits of a number. Raises ShapeError when it has more than ``_MAX_BITS`` bits."""
    if number.bit_length() > _MAX_BITS:
        raise ShapeError(
            f"an extent's formula has a number of {number.bit_length():,} bits; at most "
            f"{_MAX_BITS:,} are allowed"
        )
    return str(number)


def terms_of(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    """Return the monomials and coefficients of a dimension; those of a number are its one term."""
    return dim.terms if isinstance(dim, SymbolicDim) else (((), dim),)


def _canonical(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    """Return the sum of terms in canonical form: like terms merged, sorted, the constant last."""
    sums: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        sums[monomial] = sums.get(monomial, 0) + coefficient
    kept = sorted(
        ((m, c) for m, c in sums.items() if c), key=lambda t: (not t[0], [str(a) for a in t[0]])
    )
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return SymbolicDim(tuple(kept))


def _divide_term(
    numerator: tuple[Monomial, int], divisor: tuple[Monomial, int]
) -> tuple[Monomial, int] | None:
    """Return the exact quotient of two terms, or None."""
    left = list(numerator[0])
    for atom in divisor[0]:
        if atom not in left:
            return None
        left.remove(atom)
    quotient, remainder = divmod(numerator[1], divisor[1])
    return None if remainder else (tuple(left), quotient)


def _divide_exactly(numerator: SymbolicDim, divisor: SymbolicDim) -> Dim:
    """Return the exact quotient of two dimensions. Raises UnboundSymbolError if none is found."""
    if numerator == divisor:
        return 1
    if len(divisor.terms) == 1:
        quotient = [_divide_term(term, divisor.terms[0]) for term in numerator.terms]
        exact = [term for term in quotient if term is not None]
        if len(exact) == len(quotient):
            return _canonical(exact)
    for factor in sorted({c for _, c in numerator.terms}):
        if factor > 1 and divisor * factor == numerator:
            return factor
    raise UnboundSymbolError(
        f"{numerator} cannot be divided by {divisor} before their symbols have values"
    )
