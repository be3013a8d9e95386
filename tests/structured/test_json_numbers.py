"""Numbers between bounds, digit by digit: what the automaton holds is what arithmetic says."""

import random
import time
from decimal import Decimal
from fractions import Fraction

from eagle_jax.structured.automaton_builder import automaton_of
from eagle_jax.structured.json_numbers import Bound, numbers


def test_numbers_between_bounds():
    rng = random.Random(0)
    for _ in range(60):
        whole, places = rng.random() < 0.5, rng.choice([0, 1, 2])
        values = [Decimal(rng.randint(-1500, 1500)).scaleb(-places) for _ in range(6)]
        low, high = (None if rng.random() < 0.2 else Bound(value, rng.random() < 0.5) for value in sorted(values[:2]))
        multiple = None if rng.random() < 0.6 else Fraction(rng.randint(1, 12), 1 if whole else rng.choice([1, 4, 100]))
        part = numbers(low, high, integers=whole, multiple_of=multiple)
        automaton = part and automaton_of(part, "numbers")
        for _ in range(150):
            value = rng.choice(values) + rng.randint(-1, 1) * Decimal(1).scaleb(-rng.randint(0, 3))
            value = Decimal(int(value)) if rng.random() < 0.4 else value
            text = format(value, "f") if value else "0"
            fits = low is None or value > low.value or value == low.value and low.is_included
            fits &= high is None or value < high.value or value == high.value and high.is_included
            fits &= multiple is None or Fraction(value) % multiple == 0
            behind = len(text.partition(".")[2])
            if whole or multiple is not None:  # written with no more places than multiples have
                fits &= behind <= (0 if whole else {1: 0, 2: 1, 4: 2}.get(multiple.denominator, 2))
            accepts = automaton is not None and automaton.accepts(text.encode())
            assert accepts == fits, (low, high, whole, multiple, text)


def test_how_numbers_are_written():
    anything, above = numbers(None, None, integers=True), numbers(Bound(Decimal(-3)), None, integers=False)
    whole, fraction = (automaton_of(part, "numbers") for part in (anything, above))
    for text, is_whole, is_fraction in (
        ("0", True, True),
        ("-0", False, True),
        ("-0.5", False, True),
        ("007", False, False),
        ("1.", False, False),
        (".5", False, False),
        ("-3.000", False, True),
        ("-3.0001", False, False),
        ("1e2", False, False),
        ("-", False, False),
        ("", False, False),
    ):
        assert (whole.accepts(text.encode()), fraction.accepts(text.encode())) == (is_whole, is_fraction), text


def test_the_largest_bounds_take_milliseconds():
    for end in ("9007199254740991", "18446744073709551615", "1.7976931348623157e308"):
        start = time.process_time()
        part = numbers(Bound(-Decimal(end)), Bound(Decimal(end)), integers="e" not in end)
        automaton = automaton_of(part, "numbers")
        assert len(automaton.next) < 1000 and time.process_time() - start < 1
        digits = format(Decimal(end), "f")
        assert automaton.accepts(digits.encode()) and automaton.accepts(f"-{digits}".encode())
        assert not automaton.accepts(f"{digits}1".encode()) and not automaton.accepts(b"2" + digits[1:].encode() + b"0")
