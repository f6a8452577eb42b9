"""Mathematical functions as LLVM IR on vectors of any length, since an image has no C library.

Every function takes and returns float32 (scalar or vector). NaN propagates, infinities and signed
zeros give the results of IEEE 754, and results underflow gradually through denormal numbers. The
largest errors over all arguments, in units in the last place of the exact result, are: exp 1.02,
erf 1.4, tanh 1.6, sigmoid 2.5; gelu 3.3 above zero and 6.1 below (70 on processors without fused
multiply-add). Others have up to 5. The polynomial coefficients are minimax fits made for this file.
Without fused multiply-add the same code rounds twice, so the argument reductions are split such
that this costs no accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Final

from smelt.backends.cpu._emit import Emitter, Reg, type_suffix

_LOG2_E: Final = 1.4426950408889634
"""log2(e)."""
_LN2_HIGH: Final = 0.693359375
"""Leading bits of ln 2, few enough that products with exponents are exact."""
_LN2_LOW: Final = -2.1219444005469057e-4
"""ln 2 minus `_LN2_HIGH`."""
_ROUND: Final = 12582912.0
"""1.5 * 2**23. Adding it to a float32 leaves the nearest integer in the low bits of the sum."""
_ROUND_BITS: Final = 0x4B400000
"""Bits of `_ROUND` as a float32."""
_PHASE: Final = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE51
"""First 208 bits of the fraction of 2 / pi."""
_PHASE_BITS: Final = 29
"""Bits of one factor of `_TWO_OVER_PI`: with the 24 of a float32 they fit the 53 of a float64."""
_TWO_OVER_PI: Final = tuple(
    (_PHASE >> 208 - last & (1 << _PHASE_BITS) - 1) * 2.0**-last
    for last in range(_PHASE_BITS, 208, _PHASE_BITS)
)
"""2 / pi as a sum of factors, long enough for the phase of the largest float32."""
_LAST_WITH_TURNS: Final = 4
"""Index of the last factor whose product can exceed a full turn."""
_EXP: Final = (0.5, 0.16666534543037415, 0.04166724532842636, 0.008367440663278103,
               0.00138631381560117)  # fmt: skip
"""Coefficients c of exp(r) = 1 + r + r**2 c(r) for |r| <= ln 2 / 2."""
_EXP_LIMIT: Final = 104.0
"""exp(-104) rounds to zero in float32."""
_LOG: Final = (0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053,
               0.14219550788402557, -0.12405591458082199, 0.11888174712657928,
               -0.11675640940666199, 0.06746601313352585)  # fmt: skip
"""Coefficients c of log(1 + f) = f - f**2 / 2 + f**3 c(f) for 1 + f in [sqrt(1/2), sqrt(2))."""
_TANH: Final = (-0.3333333134651184, 0.13333210349082947, -0.05394720286130905,
                0.021702967584133148, -0.008182673715054989, 0.0021475369576364756)  # fmt: skip
"""Coefficients c of tanh(x) = x + x**3 c(x**2) for |x| < 0.625."""
_TANH_LIMIT: Final = 10.0
"""tanh(x) is 1 in float32 from this value on."""
_ERF: Final = (0.12837916612625122, -0.37612637877464294, 0.11283782869577408,
               -0.02686544507741928, 0.005221074912697077, -0.00084847112884745,
               0.00011270544928265736, -9.680136827228125e-06)  # fmt: skip
"""Coefficients c of erf(x) = x + x c(x**2) for |x| < 1."""
_ERFC: Final = (-0.0002043598797172308, 1.129661202430725, 0.6330395936965942,
                0.10863899439573288, -0.025373555719852448, 0.004282382782548666,
                -0.0004637880192603916, 2.5314808226539753e-05, -2.513266110781842e-07)  # fmt: skip
"""Coefficients c of erfc(x) = exp(-c(x)) for x from 1 to 4."""
_SCALE_EXPONENT: Final = 64
"""Exponent of two by which `scaled_exp` multiplies."""
SCALED_EXP_INVERSE: Final = 2.0**-_SCALE_EXPONENT
"""Inverse of the factor of `scaled_exp`."""
_TAIL_TOP: Final = (0.8757675290107727, 0.3658606112003326, 0.08106080442667007,
                    0.008202054537832737)  # fmt: skip
"""Numerator of the normal distribution's tail; see `_TAIL_BOTTOM`."""
_TAIL_BOTTOM: Final = tuple(
    c / SCALED_EXP_INVERSE
    for c in (1.0, 1.6736524105072021, 1.2012374401092529, 0.46866583824157715,
              0.10160124301910400, 0.010279627516865730))  # fmt: skip
"""Denominator of the normal distribution's tail. At t, ``(t / 2 + t**2 / 2 * top) / bottom`` is
t exp(t**2 / 2) times the tail beyond t, and smaller by 2**64."""
_TAIL_LIMIT: Final = 14.3
"""The tail times t is zero in float32 from this value on."""
_SIN: Final = (-0.1666666716337204, 0.008333329111337662, -0.00019839256128761917,
               2.7175644845556235e-06)  # fmt: skip
"""Coefficients c of sin(r) = r + r**3 c(r**2) for |r| <= pi / 4."""
_COS: Final = (0.0416666679084301, -0.0013888883404433727, 2.479943577782251e-05,
               -2.720330201100296e-07)  # fmt: skip
"""Coefficients c of cos(r) = 1 - r**2 / 2 + r**4 c(r**2) for |r| <= pi / 4."""
_ASIN: Final = (0.16666659712791443, 0.07500510662794113, 0.04451572149991989,
                0.03181760758161545, 0.014402614906430244, 0.037565186619758606)  # fmt: skip
"""Coefficients c of asin(m) = m + m**3 c(m**2) for m from 0 to 1/2."""
_ATAN: Final = (-0.3333333134651184, 0.19999900460243225, -0.1428191065788269,
                0.11043383926153183, -0.08468423038721085, 0.04726783558728611)  # fmt: skip
"""Coefficients c of atan(u) = u + u**3 c(u**2) for |u| <= sqrt(2) - 1."""
_LOG2_DOUBLE: Final = (2.8853900817778495, 0.9617966941141782, 0.5770779421140241,
                       0.412209278353228, 0.31990461241380885, 0.2829158727810801)  # fmt: skip
"""Coefficients c of log2(m) = s c(s**2) with s = (m - 1) / (m + 1), in float64."""
_EXP2_DOUBLE: Final = (1.0, 0.6931471805459307, 0.24022650695468561, 0.05550410941210808,
                       0.009618129228257222, 0.0013333450565211472, 0.00015403411809414985,
                       1.531007980824198e-05, 1.326402838155473e-06)  # fmt: skip
"""Coefficients of 2**r for |r| <= 1/2, in float64."""


def multiply_add(e: Emitter, a: Reg, b: Reg, c: Reg) -> Reg:
    """Return ``a * b + c``, rounded once if the target has fused multiply-add."""
    return e.call(a.type, f"llvm.fmuladd.{type_suffix(a.type)}", a, b, c)


def polynomial(e: Emitter, x: Reg, coefficients: Sequence[float]) -> Reg:
    """Return the polynomial in ``x`` with these coefficients, lowest power first."""
    result = e.constant(coefficients[-1], x.type)
    for coefficient in reversed(coefficients[:-1]):
        result = multiply_add(e, result, x, e.constant(coefficient, x.type))
    return result


def absolute(e: Emitter, x: Reg) -> Reg:
    """Return the absolute value."""
    return e.unary_intrinsic("fabs", x)


def copysign(e: Emitter, magnitude: Reg, sign: Reg) -> Reg:
    """Return ``magnitude`` with the sign of ``sign``."""
    return e.call(sign.type, f"llvm.copysign.{type_suffix(sign.type)}", magnitude, sign)


def negative(e: Emitter, x: Reg) -> Reg:
    """Return ``-x``."""
    return e.emit(x.type, f"fneg {x}")


def clamp_min(e: Emitter, x: Reg, bound: float) -> Reg:
    """Return ``max(x, bound)``, or NaN for NaN. This is one instruction on x86."""
    limit = e.constant(bound, x.type)
    return e.select(e.compare_float("olt", x, limit), limit, x)


def clamp_max(e: Emitter, x: Reg, bound: float) -> Reg:
    """Return ``min(x, bound)``, or NaN for NaN. This is one instruction on x86."""
    limit = e.constant(bound, x.type)
    return e.select(e.compare_float("ogt", x, limit), limit, x)


def larger(e: Emitter, a: Reg, b: Reg) -> Reg:
    """Return the larger value, or NaN if either value is NaN."""
    return _extreme(e, "maximum", a, b)


def max_number(e: Emitter, a: Reg, b: Reg) -> Reg:
    """Return the larger value, or either value if one is NaN. This is one instruction on x86."""
    return e.select(e.compare_float("ogt", a, b), a, b)


def smaller(e: Emitter, a: Reg, b: Reg) -> Reg:
    """Return the smaller value, or NaN if either value is NaN."""
    return _extreme(e, "minimum", a, b)


def _extreme(e: Emitter, name: str, a: Reg, b: Reg) -> Reg:
    """Return the IEEE 754-2019 maximum or minimum; either of two zeros may be returned."""
    # The intrinsic without signed zeros takes three instructions on x86. Comparisons and selections
    # would take four, two of them on masks.
    return e.call(a.type, f"llvm.{name}.{type_suffix(a.type)}", a, b, fast_math_flags="nsz ")


def round_even(e: Emitter, x: Reg) -> Reg:
    """Return the nearest integer, halves to even.

    Old processors have no instruction for that, so the code adds and subtracts 2**23 (2**52 in
    float64).
    """
    big = e.constant(4503599627370496.0 if "double" in x.type else 8388608.0, x.type)
    magnitude = absolute(e, x)
    rounded = e.binary("fsub", e.binary("fadd", magnitude, big), big)
    small = e.compare_float("olt", magnitude, big)
    return copysign(e, e.select(small, rounded, magnitude), x)


def floor(e: Emitter, x: Reg) -> Reg:
    """Return the largest integer that is not larger than ``x``."""
    near = round_even(e, x)
    below = e.binary("fsub", near, e.constant(1.0, x.type))
    return copysign(e, e.select(e.compare_float("ogt", near, x), below, near), x)


def ceil(e: Emitter, x: Reg) -> Reg:
    """Return the smallest integer that is not smaller than ``x``."""
    return negative(e, floor(e, negative(e, x)))


def _power_of_two(e: Emitter, exponent: Reg) -> Reg:
    """Return 2**exponent, for exponents of normal numbers."""
    biased = e.binary("add", exponent, e.constant(127, exponent.type))
    bits = e.binary("shl", biased, e.constant(23, exponent.type))
    return e.convert("bitcast", bits, "float")


def _reduce_exp(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """Return (exp(r) - 1, n) with x = n ln 2 + r, for x within the range of exponents."""
    magic = e.constant(_ROUND, x.type)
    shifted = multiply_add(e, x, e.constant(_LOG2_E, x.type), magic)
    n = e.binary("fsub", shifted, magic)
    r = multiply_add(e, n, e.constant(-_LN2_HIGH, x.type), x)
    r = multiply_add(e, n, e.constant(-_LN2_LOW, x.type), r)
    square = e.binary("fmul", r, r)
    q = multiply_add(e, square, polynomial(e, r, _EXP), r)
    bits = e.convert("bitcast", shifted, "i32")
    return q, e.binary("sub", bits, e.constant(_ROUND_BITS, bits.type))


def _scale(e: Emitter, x: Reg, exponent: Reg) -> Reg:
    """Return ``x * 2**exponent`` in two steps, so that results may be denormal or infinite."""
    half = e.binary("ashr", exponent, e.constant(1, exponent.type))
    rest = e.binary("sub", exponent, half)
    return e.binary("fmul", e.binary("fmul", x, _power_of_two(e, half)), _power_of_two(e, rest))


def exp(e: Emitter, x: Reg) -> Reg:
    """Return the exponential."""
    x = clamp_max(e, clamp_min(e, x, -_EXP_LIMIT), 89.0)
    q, n = _reduce_exp(e, x)
    return _scale(e, e.binary("fadd", q, e.constant(1.0, x.type)), n)


def scaled_exp(e: Emitter, x: Reg) -> Reg:
    """Return 2**64 times the exponential of a value that is not positive.

    The result is never denormal, and cheaper than that of `exp`. A quotient of sums of such powers
    does not depend on the factor. Values for which `exp` underflows to zero give zero, so that a
    division does not turn them into denormal numbers, which are slow on some processors.
    """
    tiny = e.compare_float("olt", x, e.constant(-_EXP_LIMIT, x.type))
    return e.select(tiny, e.constant(0.0, x.type), _scaled_power(e, x))


def _scaled_power(e: Emitter, x: Reg, less: Reg | None = None, factor: Reg | None = None) -> Reg:
    """Return ``2**64 * factor * exp(x - less)``.

    ``x`` is from -`_EXP_LIMIT` to 0, and ``less`` the rounding error of x.
    """
    kind = x.type
    magic = e.constant(_ROUND + 127.0 + _SCALE_EXPONENT, kind)
    shifted = multiply_add(e, x, e.constant(_LOG2_E, kind), magic)
    n = e.binary("fsub", shifted, magic)
    r = multiply_add(e, n, e.constant(-_LN2_HIGH, kind), x)
    r = r if less is None else e.binary("fsub", r, less)
    r = multiply_add(e, n, e.constant(-_LN2_LOW, kind), r)
    q = multiply_add(e, e.binary("fmul", r, r), polynomial(e, r, _EXP), r)
    bits = e.convert("bitcast", shifted, "i32")
    # The shift drops the sum's own exponent bits; what remains are the bits of 2**(n + 64).
    scale = e.convert("bitcast", e.binary("shl", bits, e.constant(23, bits.type)), "float")
    scale = scale if factor is None else e.binary("fmul", scale, factor)
    return multiply_add(e, scale, q, scale)


def expm1(e: Emitter, x: Reg) -> Reg:
    """Return ``exp(x) - 1``, accurate near zero."""
    limited = clamp_max(e, clamp_min(e, x, -25.0), 88.0)
    q, n = _reduce_exp(e, limited)
    scale = _power_of_two(e, n)
    less = e.binary("fsub", scale, e.constant(1.0, x.type))
    near = multiply_add(e, scale, q, less)
    huge = e.compare_float("ogt", x, e.constant(88.0, x.type))
    result = e.select(huge, exp(e, x), near)
    return with_zero(e, x, result)


def with_zero(e: Emitter, x: Reg, result: Reg) -> Reg:
    """Return ``result``, or ``x`` where it is zero, so that odd functions keep the zero's sign."""
    zero = e.compare_float("oeq", x, e.constant(0.0, x.type))
    return e.select(zero, x, result)


def log(e: Emitter, x: Reg) -> Reg:
    """Return the natural logarithm."""
    tiny = e.compare_float("olt", x, e.constant(2.0**-126, x.type))
    normal = e.select(tiny, e.binary("fmul", x, e.constant(2.0**23, x.type)), x)
    bits = e.convert("bitcast", normal, "i32")
    above = e.binary("sub", bits, e.constant(0x3F3504F3, bits.type))
    exponent = e.binary("ashr", above, e.constant(23, bits.type))
    lowered = e.binary("sub", bits, e.binary("shl", exponent, e.constant(23, bits.type)))
    f = e.binary("fsub", e.convert("bitcast", lowered, "float"), e.constant(1.0, x.type))
    k = e.convert("sitofp", exponent, "float")
    k = e.binary("fsub", k, e.select(tiny, e.constant(23.0, x.type), e.constant(0.0, x.type)))
    result = _log_near_one(e, f, k)
    infinity = e.constant(math.inf, x.type)
    result = e.select(e.compare_float("oeq", x, infinity), infinity, result)
    minus = e.constant(-math.inf, x.type)
    result = e.select(e.compare_float("oeq", x, e.constant(0.0, x.type)), minus, result)
    is_negative = e.compare_float("ult", x, e.constant(0.0, x.type))
    return e.select(is_negative, e.constant(math.nan, x.type), result)


def _log_near_one(e: Emitter, f: Reg, k: Reg) -> Reg:
    """Return ``log(1 + f) + k ln 2``."""
    square = e.binary("fmul", f, f)
    cube = e.binary("fmul", square, f)
    tail = e.binary("fmul", cube, polynomial(e, f, _LOG))
    tail = multiply_add(e, k, e.constant(_LN2_LOW, f.type), tail)
    tail = multiply_add(e, square, e.constant(-0.5, f.type), tail)
    return multiply_add(e, k, e.constant(_LN2_HIGH, f.type), e.binary("fadd", f, tail))


def log1p(e: Emitter, x: Reg) -> Reg:
    """Return ``log(1 + x)``, accurate near zero."""
    one = e.constant(1.0, x.type)
    u = e.binary("fadd", one, x)
    rounding_error = e.binary("fsub", x, e.binary("fsub", u, one))
    plain = log(e, u)
    corrected = e.binary("fadd", plain, e.binary("fdiv", rounding_error, u))
    usable = e.compare_float("olt", absolute(e, plain), e.constant(math.inf, x.type))
    return with_zero(e, x, e.select(usable, corrected, plain))


def tanh(e: Emitter, x: Reg) -> Reg:
    """Return the hyperbolic tangent."""
    magnitude = absolute(e, x)
    square = e.binary("fmul", x, x)
    cube = e.binary("fmul", square, magnitude)
    near = multiply_add(e, cube, polynomial(e, square, _TANH), magnitude)
    doubled = e.binary("fmul", clamp_max(e, magnitude, _TANH_LIMIT), e.constant(-2.0, x.type))
    small, one = _scaled_power(e, doubled), e.constant(1 / SCALED_EXP_INVERSE, x.type)
    far = e.binary("fdiv", e.binary("fsub", one, small), e.binary("fadd", one, small))
    is_near = e.compare_float("olt", magnitude, e.constant(0.625, x.type))
    return copysign(e, e.select(is_near, near, far), x)


def sigmoid(e: Emitter, x: Reg) -> Reg:
    """Return ``1 / (1 + exp(-x))``."""
    small = scaled_exp(e, negative(e, absolute(e, x)))
    one = e.constant(1 / SCALED_EXP_INVERSE, x.type)
    top = e.select(e.compare_float("olt", x, e.constant(0.0, x.type)), small, one)
    return e.binary("fdiv", top, e.binary("fadd", one, small))


def softplus(e: Emitter, x: Reg) -> Reg:
    """Return ``log(1 + exp(x))``."""
    small = exp(e, negative(e, absolute(e, x)))
    return e.binary("fadd", clamp_min(e, x, 0.0), log1p(e, small))


def erf(e: Emitter, x: Reg) -> Reg:
    """Return the error function."""
    magnitude = absolute(e, x)
    square = e.binary("fmul", x, x)
    near = multiply_add(e, magnitude, polynomial(e, square, _ERF), magnitude)
    limited = clamp_max(e, magnitude, 4.0)
    decay = _scaled_power(e, negative(e, polynomial(e, limited, _ERFC)))
    one, lower = e.constant(1.0, x.type), e.constant(-SCALED_EXP_INVERSE, x.type)
    far = multiply_add(e, decay, lower, one)
    small = e.compare_float("olt", magnitude, e.constant(1.0, x.type))
    return copysign(e, e.select(small, near, far), x)


def gelu(e: Emitter, x: Reg) -> Reg:
    """Return ``x`` times the normal distribution up to ``x``: ``x (1 + erf(x / sqrt 2)) / 2``.

    Below zero, the sum with 1 would cancel all digits. The result is therefore computed from the
    tail of the distribution beyond t = |x|, which is exp(-t**2 / 2) times a quotient of
    polynomials. Positive values are x minus t times the tail. For minus infinity the result is NaN.
    """
    kind = x.type
    t = clamp_max(e, absolute(e, x), _TAIL_LIMIT)
    half = e.binary("fmul", t, e.constant(0.5, kind))
    # Half the square in two parts: its rounding would be an error of the power as large.
    square = e.binary("fmul", half, t)
    rest = multiply_add(e, half, t, negative(e, square))
    top = multiply_add(e, square, polynomial(e, t, _TAIL_TOP), half)
    bottom = polynomial(e, t, _TAIL_BOTTOM)
    power = _scaled_power(e, negative(e, square), rest, top)
    value = e.binary("fsub", clamp_min(e, x, -0.0), e.binary("fdiv", power, bottom))
    lowest = e.compare_float("oeq", x, e.constant(-math.inf, kind))
    return e.select(lowest, e.constant(math.nan, kind), value)


def _quarter_turns(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """Return (r, n) with x = n pi / 2 + r and |r| <= pi / 4, n modulo 4; computed in float64.

    Products with few bits of 2 / pi are exact, and so is what remains after subtracting full turns.
    The phase of large values is therefore as accurate as that of small ones.
    """
    wide = e.convert("fpext", x, "double")
    quarter, turn = e.constant(0.25, wide.type), e.constant(-4.0, wide.type)
    parts: list[Reg] = []
    for number, factor in enumerate(_TWO_OVER_PI):
        part = e.binary("fmul", wide, e.constant(factor, wide.type))
        if number <= _LAST_WITH_TURNS:
            part = multiply_add(e, round_even(e, e.binary("fmul", part, quarter)), turn, part)
        parts.append(part)
    magic = e.constant(6755399441055744.0, wide.type)
    shifted = e.binary("fadd", reduce(partial(e.binary, "fadd"), parts), magic)
    nearest = e.binary("fsub", shifted, magic)
    remainder = reduce(partial(e.binary, "fadd"), parts, negative(e, nearest))
    r = e.binary("fmul", remainder, e.constant(math.pi / 2, wide.type))
    turns = e.convert("trunc", e.convert("bitcast", shifted, "i64"), "i32")
    return e.convert("fptrunc", r, "float"), turns


def _sin_and_cos(e: Emitter, r: Reg) -> tuple[Reg, Reg]:
    """Return sine and cosine of a value in [-pi / 4, pi / 4]."""
    square = e.binary("fmul", r, r)
    cube = e.binary("fmul", square, r)
    sine = multiply_add(e, cube, polynomial(e, square, _SIN), r)
    fourth = e.binary("fmul", square, square)
    base = multiply_add(e, square, e.constant(-0.5, r.type), e.constant(1.0, r.type))
    return sine, multiply_add(e, fourth, polynomial(e, square, _COS), base)


def _circular(e: Emitter, x: Reg, quarters: int) -> Reg:
    """Return the sine of x plus a number of quarter turns."""
    r, turns = _quarter_turns(e, x)
    turns = e.binary("add", turns, e.constant(quarters, turns.type))
    sine, cosine = _sin_and_cos(e, r)
    odd = e.convert("trunc", turns, "i1")
    value = e.select(odd, cosine, sine)
    second = e.binary("and", turns, e.constant(2, turns.type))
    flip = e.compare_integers("ne", second, e.constant(0, turns.type))
    return e.select(flip, negative(e, value), value)


def sin(e: Emitter, x: Reg) -> Reg:
    """Return the sine."""
    return with_zero(e, x, _circular(e, x, 0))


def cos(e: Emitter, x: Reg) -> Reg:
    """Return the cosine."""
    return _circular(e, x, 1)


def tan(e: Emitter, x: Reg) -> Reg:
    """Return the tangent."""
    r, turns = _quarter_turns(e, x)
    sine, cosine = _sin_and_cos(e, r)
    odd = e.convert("trunc", turns, "i1")
    top = e.select(odd, negative(e, cosine), sine)
    value = e.binary("fdiv", top, e.select(odd, sine, cosine))
    return with_zero(e, x, value)


def power(e: Emitter, x: Reg, y: Reg) -> Reg:
    """Return ``x ** y``, computed in float64, with the special values of IEEE 754's pow."""
    one, zero = e.constant(1.0, x.type), e.constant(0.0, x.type)
    nan = e.constant(math.nan, x.type)
    half = e.binary("fmul", y, e.constant(0.5, y.type))
    is_integer = e.compare_float("oeq", floor(e, y), y)
    odd = e.binary("and", is_integer, e.compare_float("une", floor(e, half), half))
    result = _positive_power(e, absolute(e, x), y)
    result = e.select(odd, copysign(e, result, x), result)
    finite = e.compare_float("ogt", x, e.constant(-math.inf, x.type))
    below = e.binary("and", e.compare_float("olt", x, zero), finite)
    fraction = e.compare_float("une", floor(e, y), y)
    result = e.select(e.binary("and", below, fraction), nan, result)
    result = e.select(e.compare_float("uno", x, y), nan, result)
    trivial = e.binary("or", e.compare_float("oeq", y, zero), e.compare_float("oeq", x, one))
    return e.select(trivial, one, result)


def _positive_power(e: Emitter, x: Reg, y: Reg) -> Reg:
    """Return ``x ** y`` for x >= 0 as 2**(y log2 x), with logarithm and product in float64."""
    wide = e.convert("fpext", x, "double")
    exponent, mantissa = _split_double(e, wide)
    one = e.constant(1.0, wide.type)
    s = e.binary("fdiv", e.binary("fsub", mantissa, one), e.binary("fadd", mantissa, one))
    series = polynomial(e, e.binary("fmul", s, s), _LOG2_DOUBLE)
    logarithm = multiply_add(e, s, series, exponent)
    for special, value in ((0.0, -1e300), (math.inf, 1e300)):
        is_special = e.compare_float("oeq", wide, e.constant(special, wide.type))
        logarithm = e.select(is_special, e.constant(value, wide.type), logarithm)
    product = e.binary("fmul", logarithm, e.convert("fpext", y, "double"))
    at_one = e.compare_float("oeq", wide, one)  # infinity times zero
    product = e.select(at_one, e.constant(0.0, wide.type), product)
    return _exp2_double(e, clamp_max(e, clamp_min(e, product, -160.0), 160.0))


def _split_double(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """Return (k, m) with x = m * 2**k and m in [sqrt(1/2), sqrt(2)), for a positive float32."""
    bits = e.convert("bitcast", x, "i64")
    above = e.binary("sub", bits, e.constant(0x3FE6A09E667F3BCD, bits.type))
    exponent = e.binary("ashr", above, e.constant(52, bits.type))
    lowered = e.binary("sub", bits, e.binary("shl", exponent, e.constant(52, bits.type)))
    narrow = e.convert("trunc", exponent, "i32")
    return e.convert("sitofp", narrow, "double"), e.convert("bitcast", lowered, "double")


def _exp2_double(e: Emitter, x: Reg) -> Reg:
    """Return 2**x as float32, for |x| <= 160."""
    magic = e.constant(6755399441055744.0, x.type)
    shifted = e.binary("fadd", x, magic)
    r = e.binary("fsub", x, e.binary("fsub", shifted, magic))
    value = polynomial(e, r, _EXP2_DOUBLE)
    bits = e.convert("bitcast", shifted, "i64")
    shifted_up = e.binary("shl", bits, e.constant(52, bits.type))
    biased = e.binary("add", e.convert("bitcast", value, "i64"), shifted_up)
    return e.convert("fptrunc", e.convert("bitcast", biased, "double"), "float")


def asin(e: Emitter, x: Reg) -> Reg:
    """Return the inverse sine; NaN outside [-1, 1]."""
    magnitude = absolute(e, x)
    inner, far = _asin_parts(e, magnitude)
    folded = multiply_add(e, inner, e.constant(-2.0, x.type), e.constant(math.pi / 2, x.type))
    return copysign(e, e.select(far, folded, inner), x)


def acos(e: Emitter, x: Reg) -> Reg:
    """Return the inverse cosine; NaN outside [-1, 1]."""
    inner, far = _asin_parts(e, absolute(e, x))
    double = e.binary("fadd", inner, inner)
    minus = e.compare_float("olt", x, e.constant(0.0, x.type))
    folded = e.binary("fsub", e.constant(math.pi, x.type), double)
    quarter = e.constant(math.pi / 2, x.type)
    near = e.binary("fsub", quarter, copysign(e, inner, x))
    return e.select(far, e.select(minus, folded, double), near)


def _asin_parts(e: Emitter, magnitude: Reg) -> tuple[Reg, Reg]:
    """Return the inverse sine of m, or of sqrt((1 - m) / 2) if ``far``, which is m > 1/2."""
    half, one = e.constant(0.5, magnitude.type), e.constant(1.0, magnitude.type)
    far = e.compare_float("ogt", magnitude, half)
    turned = e.binary("fmul", e.binary("fsub", one, magnitude), half)
    square = e.select(far, turned, e.binary("fmul", magnitude, magnitude))
    base = e.select(far, e.unary_intrinsic("sqrt", turned), magnitude)
    cube = e.binary("fmul", square, base)
    return multiply_add(e, cube, polynomial(e, square, _ASIN), base), far


def atan(e: Emitter, x: Reg) -> Reg:
    """Return the inverse tangent."""
    magnitude = absolute(e, x)
    one = e.constant(1.0, x.type)
    above = e.compare_float("ogt", magnitude, one)
    folded = e.select(above, e.binary("fdiv", one, magnitude), magnitude)
    turned = e.binary("fdiv", e.binary("fsub", folded, one), e.binary("fadd", folded, one))
    middle = e.compare_float("ogt", folded, e.constant(math.sqrt(2) - 1, x.type))
    u = e.select(middle, turned, folded)
    square = e.binary("fmul", u, u)
    near = multiply_add(e, e.binary("fmul", square, u), polynomial(e, square, _ATAN), u)
    eighth = e.binary("fadd", near, e.constant(math.pi / 4, x.type))
    value = e.select(middle, eighth, near)
    beyond = e.binary("fsub", e.constant(math.pi / 2, x.type), value)
    return copysign(e, e.select(above, beyond, value), x)


def sinh(e: Emitter, x: Reg) -> Reg:
    """Return the hyperbolic sine."""
    magnitude = absolute(e, x)
    t = expm1(e, clamp_max(e, magnitude, 80.0))
    folded = e.binary("fdiv", t, e.binary("fadd", t, e.constant(1.0, x.type)))
    near = e.binary("fmul", e.binary("fadd", t, folded), e.constant(0.5, x.type))
    return copysign(e, _hyperbolic_far(e, magnitude, near), x)


def cosh(e: Emitter, x: Reg) -> Reg:
    """Return the hyperbolic cosine."""
    magnitude = absolute(e, x)
    half = e.constant(0.5, x.type)
    t = e.binary("fmul", exp(e, clamp_max(e, magnitude, 80.0)), half)
    near = e.binary("fadd", t, e.binary("fdiv", e.constant(0.25, x.type), t))
    return _hyperbolic_far(e, magnitude, near)


def _hyperbolic_far(e: Emitter, magnitude: Reg, near: Reg) -> Reg:
    """Return exp(m) / 2 for m > 20, which overflows only where the result does; else ``near``."""
    half = e.constant(0.5, magnitude.type)
    root = exp(e, e.binary("fmul", magnitude, half))
    far = e.binary("fmul", e.binary("fmul", root, half), root)
    return e.select(e.compare_float("ogt", magnitude, e.constant(20.0, magnitude.type)), far, near)


def asinh(e: Emitter, x: Reg) -> Reg:
    """Return the inverse hyperbolic sine."""
    magnitude = absolute(e, x)
    limited = clamp_max(e, magnitude, 1e9)
    one = e.constant(1.0, x.type)
    square = e.binary("fmul", limited, limited)
    root = e.unary_intrinsic("sqrt", e.binary("fadd", square, one))
    extra = e.binary("fdiv", square, e.binary("fadd", one, root))
    near = log1p(e, e.binary("fadd", limited, extra))
    return copysign(e, _area_far(e, magnitude, near), x)


def acosh(e: Emitter, x: Reg) -> Reg:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    t = e.binary("fsub", clamp_max(e, x, 1e9), e.constant(1.0, x.type))
    inner = multiply_add(e, t, t, e.binary("fadd", t, t))
    near = log1p(e, e.binary("fadd", t, e.unary_intrinsic("sqrt", inner)))
    # Far below 1 the radicand is positive again, so NaN must be selected explicitly.
    outside = e.compare_float("olt", x, e.constant(1.0, x.type))
    return e.select(outside, e.constant(math.nan, x.type), _area_far(e, x, near))


def _area_far(e: Emitter, magnitude: Reg, near: Reg) -> Reg:
    """Return log(2 m) for m >= 1e9, else ``near``."""
    far = e.binary("fadd", log(e, magnitude), e.constant(math.log(2), magnitude.type))
    big = e.compare_float("oge", magnitude, e.constant(1e9, magnitude.type))
    return e.select(big, far, near)


def atanh(e: Emitter, x: Reg) -> Reg:
    """Return the inverse hyperbolic tangent; NaN outside [-1, 1]."""
    magnitude = absolute(e, x)
    below = e.binary("fsub", e.constant(1.0, x.type), magnitude)
    ratio = e.binary("fdiv", e.binary("fadd", magnitude, magnitude), below)
    half = e.binary("fmul", log1p(e, ratio), e.constant(0.5, x.type))
    return copysign(e, half, x)
