"""Automata of the numbers between two bounds, digit by digit: as many states as the bounds have digits, times a few."""

import dataclasses
import functools
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from eagle_jax.structured.automaton_builder import Part
from eagle_jax.structured.automaton_parts import automaton, either, literal, sequence
from eagle_jax.structured.byte_automaton import ByteAutomaton, explored

ZERO, NINE, POINT = ord("0"), ord("9"), ord(".")


@dataclasses.dataclass(frozen=True)
class Bound:
    """An end of a range.

    Attributes:
        value: value of the end.
        is_included: whether the value is in the range.
    """

    value: Decimal
    is_included: bool = True

    def negated(self) -> "Bound":
        return Bound(-self.value, self.is_included)

    @functools.cached_property
    def whole(self) -> str:
        """The digits before the point."""
        return format(self.value, "f").partition(".")[0]

    @functools.cached_property
    def fraction(self) -> str:
        """The digits after the point, without trailing zeros."""
        return format(self.value, "f").partition(".")[2].rstrip("0")


class _Digits(NamedTuple):
    """The digits that were read of a magnitude.

    Attributes:
        size: digits of the part that is being read, as far as it matters.
        low, high: -1, 0 and 1 where they are below, at and above as many digits of the bounds.
        remainder: by what the number has to be a multiple of.
        has_point: whether the point was read.
        is_zero: whether the part before the point is 0, after which no digit comes.
    """

    size: int = 0
    low: int = 0
    high: int = 0
    remainder: int = 0
    has_point: bool = False
    is_zero: bool = False


def numbers(low: Bound | None, high: Bound | None, *, integers: bool, multiple: Fraction | None = None) -> Part | None:
    """Matches the numbers of a range without exponents, whole ones or all; None if there are none.

    Args:
        low, high: None where the range is open.
        multiple: what they are multiples of; its decimal fraction ends.

    Raises:
        ValueError: there would be too many states.
    """
    signs = []
    if low is None or low.value < 0:
        least = _larger(Bound(Decimal(int(integers))), None if high is None else high.negated())  # there is no -0
        signs.append((literal("-"), _magnitudes(least, None if low is None else low.negated(), integers, multiple)))
    if high is None or high.value >= 0:
        signs.append((literal(""), _magnitudes(_larger(Bound(Decimal(0)), low), high, integers, multiple)))
    parts = [sequence(sign, automaton(magnitudes)) for sign, magnitudes in signs if magnitudes.final.any()]
    return either(*parts) if parts else None


def _larger(one: Bound, other: Bound | None) -> Bound:
    """Returns the tighter one of two lower bounds."""
    if other is None or other.value < one.value:
        return one
    return other if other.value > one.value or not other.is_included else one


@functools.lru_cache(maxsize=256)
def _magnitudes(low: Bound, high: Bound | None, integers: bool, multiple: Fraction | None) -> ByteAutomaton:
    """Matches numbers from `low` >= 0 to `high` without a sign and without leading zeros."""
    places = 0 if integers else None if multiple is None else _places(multiple)
    modulus = 1 if multiple is None else int(multiple * 10 ** (places or 0))
    rules = _Rules(low, high, places, modulus)
    return explored(_Digits(), rules.steps, rules.is_final, "numbers with these bounds and multipleOf")


@dataclasses.dataclass(frozen=True)
class _Rules:
    """How a magnitude may go on.

    Attributes:
        low, high: its bounds.
        places: how many digits after the point it may have; None is any number of them.
        modulus: what divides it, without the point after so many digits.
    """

    low: Bound
    high: Bound | None
    places: int | None
    modulus: int

    def steps(self, digits: _Digits) -> Iterable[tuple[int, int, _Digits]]:
        for digit in range(10):
            further = self._after_point(digits, digit) if digits.has_point else self._before_point(digits, digit)
            if further is not None:
                yield ZERO + digit, ZERO + digit, further
        if digits.size and not digits.has_point and self.places != 0:
            low, high = self._relations(digits)
            if low >= 0 >= high:
                yield POINT, POINT, _Digits(0, low, high, digits.remainder, True)

    def is_final(self, digits: _Digits) -> bool:
        low, high = self._relations(digits)
        behind = digits.size if digits.has_point else 0
        reaches = low > 0 or low == 0 and behind >= len(self.low.fraction) and self.low.is_included
        stays = (
            high < 0
            or self.high is not None
            and (high == 0 and (behind < len(self.high.fraction) or self.high.is_included))
        )
        missing = (self.places or 0) - behind
        return digits.size > 0 and reaches and stays and digits.remainder * 10 ** max(0, missing) % self.modulus == 0

    def _before_point(self, digits: _Digits, digit: int) -> _Digits | None:
        low, high = self.low.whole, self.high.whole if self.high else ""
        if digits.is_zero or self.high and digits.size >= len(high):
            return None
        count = min(digits.size + 1, max(len(low), len(high)) + 1)
        return self._with(digits, digit, count, low, high, is_zero=digits.size == 0 and digit == 0)

    def _after_point(self, digits: _Digits, digit: int) -> _Digits | None:
        low, high = self.low.fraction, self.high.fraction if self.high else ""
        if self.places is not None and digits.size >= self.places:
            return None
        count = min(digits.size + 1, max(len(low), len(high), self.places or 0, 1))
        following = self._with(digits, digit, count, low, high)
        return following if following.low >= 0 >= following.high else None

    def _with(self, digits: _Digits, digit: int, count: int, low: str, high: str, is_zero: bool = False) -> _Digits:
        remainder = (10 * digits.remainder + digit) % self.modulus
        least, most = (int(bound[digits.size]) if digits.size < len(bound) else 0 for bound in (low, high))
        above = digits.low or (digit > least) - (digit < least)
        below = (digits.high or (digit > most) - (digit < most)) if self.high else -1
        return _Digits(count, above, below, remainder, digits.has_point, is_zero)

    def _relations(self, digits: _Digits) -> tuple[int, int]:
        """Returns whether what was read is below, at or above as much of the bounds."""
        if digits.has_point:
            return digits.low, digits.high
        return _relation(digits, digits.low, self.low), _relation(digits, digits.high, self.high)


def _relation(digits: _Digits, compared: int, bound: Bound | None) -> int:
    """Returns whether an integer whose digits compare so is below (-1), at (0) or above (1) a bound's whole part."""
    if bound is None:
        return -1
    return (digits.size > len(bound.whole)) - (digits.size < len(bound.whole)) or compared


def _places(multiple: Fraction) -> int:
    """Returns how many digits after the point the multiples of a number have. Raises ValueError if they do not end."""
    places = next((places for places in range(20) if (multiple * 10**places).denominator == 1), None)
    if places is None:
        raise ValueError(f"multipleOf={float(multiple)}, which has too many decimal places; expected 19 at most")
    return places
