"""Automata of the numbers between two bounds, digit by digit; the number of states is linear in the bounds' digits."""

import dataclasses
import functools
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from eagle_jax.structured.automaton_builder import Part
from eagle_jax.structured.automaton_parts import automaton, either, literal, sequence
from eagle_jax.structured.byte_automaton import ByteAutomaton, explore

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
    """State after some digits of a magnitude.

    Attributes:
        size: digits read of the current part (before or after the point), capped where more make no difference.
        low_relation, high_relation: -1, 0 or 1: the digits are below, equal to or above as many digits of the bound.
        remainder: remainder modulo the required divisor.
        has_point: whether the point was read.
        is_zero: whether the part before the point is 0, so that no further digit may follow it.
    """

    size: int = 0
    low_relation: int = 0
    high_relation: int = 0
    remainder: int = 0
    has_point: bool = False
    is_zero: bool = False


def numbers(
    low: Bound | None, high: Bound | None, *, integers: bool, multiple_of: Fraction | None = None
) -> Part | None:
    """Matches the integers or numbers of a range, without exponents; None if there are none.

    Args:
        low, high: bounds; None if there is none.
        multiple_of: required divisor, a finite decimal fraction.

    Raises:
        ValueError: there would be too many states.
    """
    signs = []
    if low is None or low.value < 0:
        min_magnitude = Bound(Decimal(int(integers)))  # integers have no -0
        min_magnitude = _tighter_lower_bound(min_magnitude, None if high is None else high.negated())
        signs.append(
            (
                literal("-"),
                _magnitudes(min_magnitude, None if low is None else low.negated(), integers, multiple_of),
            )
        )
    if high is None or high.value >= 0:
        signs.append(
            (literal(""), _magnitudes(_tighter_lower_bound(Bound(Decimal(0)), low), high, integers, multiple_of))
        )
    parts = [sequence(sign, automaton(magnitudes)) for sign, magnitudes in signs if magnitudes.final.any()]
    return either(*parts) if parts else None


def _tighter_lower_bound(first: Bound, second: Bound | None) -> Bound:
    """Returns the tighter of two lower bounds."""
    if second is None or second.value < first.value:
        return first
    return second if second.value > first.value or not second.is_included else first


@functools.lru_cache(maxsize=256)
def _magnitudes(low: Bound, high: Bound | None, integers: bool, multiple_of: Fraction | None) -> ByteAutomaton:
    """Matches unsigned numbers from `low` >= 0 to `high`, without leading zeros."""
    decimals = 0 if integers else None if multiple_of is None else _num_decimals(multiple_of)
    modulus = 1 if multiple_of is None else int(multiple_of * 10 ** (decimals or 0))
    rules = _NumberRules(low, high, decimals, modulus)
    return explore(_Digits(), rules.steps, rules.is_final, "numbers with these bounds and multipleOf")


@dataclasses.dataclass(frozen=True)
class _NumberRules:
    """The digits that may follow in a magnitude.

    Attributes:
        low, high: bounds.
        decimals: maximum number of digits after the point; None is no maximum.
        modulus: divisor of the magnitude times `10 ** decimals`.
    """

    low: Bound
    high: Bound | None
    decimals: int | None
    modulus: int

    def steps(self, digits: _Digits) -> Iterable[tuple[int, int, _Digits]]:
        for digit in range(10):
            next_digits = self._after_point(digits, digit) if digits.has_point else self._before_point(digits, digit)
            if next_digits is not None:
                yield ZERO + digit, ZERO + digit, next_digits
        if digits.size and not digits.has_point and self.decimals != 0:
            low, high = self._relations(digits)
            if low >= 0 >= high:
                yield POINT, POINT, _Digits(0, low, high, digits.remainder, True)

    def is_final(self, digits: _Digits) -> bool:
        low, high = self._relations(digits)
        num_decimals = digits.size if digits.has_point else 0
        reaches = low > 0 or low == 0 and num_decimals >= len(self.low.fraction) and self.low.is_included
        stays = (
            high < 0
            or self.high is not None
            and (high == 0 and (num_decimals < len(self.high.fraction) or self.high.is_included))
        )
        missing = (self.decimals or 0) - num_decimals
        return digits.size > 0 and reaches and stays and digits.remainder * 10 ** max(0, missing) % self.modulus == 0

    def _before_point(self, digits: _Digits, digit: int) -> _Digits | None:
        low, high = self.low.whole, self.high.whole if self.high else ""
        if digits.is_zero or self.high and digits.size >= len(high):
            return None
        count = min(digits.size + 1, max(len(low), len(high)) + 1)
        return self._append(digits, digit, count, low, high, is_zero=digits.size == 0 and digit == 0)

    def _after_point(self, digits: _Digits, digit: int) -> _Digits | None:
        low, high = self.low.fraction, self.high.fraction if self.high else ""
        if self.decimals is not None and digits.size >= self.decimals:
            return None
        count = min(digits.size + 1, max(len(low), len(high), self.decimals or 0, 1))
        next_digits = self._append(digits, digit, count, low, high)
        return next_digits if next_digits.low_relation >= 0 >= next_digits.high_relation else None

    def _append(self, digits: _Digits, digit: int, count: int, low: str, high: str, is_zero: bool = False) -> _Digits:
        remainder = (10 * digits.remainder + digit) % self.modulus
        low_digit, high_digit = (int(bound[digits.size]) if digits.size < len(bound) else 0 for bound in (low, high))
        low_relation = digits.low_relation or (digit > low_digit) - (digit < low_digit)
        high_relation = (digits.high_relation or (digit > high_digit) - (digit < high_digit)) if self.high else -1
        return _Digits(count, low_relation, high_relation, remainder, digits.has_point, is_zero)

    def _relations(self, digits: _Digits) -> tuple[int, int]:
        """Returns how the digits so far compare with the lower and the upper bound (-1, 0 or 1)."""
        if digits.has_point:
            return digits.low_relation, digits.high_relation
        return _relation(digits, digits.low_relation, self.low), _relation(digits, digits.high_relation, self.high)


def _relation(digits: _Digits, compared: int, bound: Bound | None) -> int:
    """Returns how an integer compares with a bound's whole part (-1, 0 or 1), given how the digits compare."""
    if bound is None:
        return -1
    return (digits.size > len(bound.whole)) - (digits.size < len(bound.whole)) or compared


def _num_decimals(multiple_of: Fraction) -> int:
    """Returns the number of decimals of the multiples of a number. Raises ValueError if there are more than 19."""
    decimals = next((decimals for decimals in range(20) if (multiple_of * 10**decimals).denominator == 1), None)
    if decimals is None:
        raise ValueError(f"multipleOf={float(multiple_of)}, which has too many decimal places; expected at most 19")
    return decimals
