"""Texts that one of two automata accepts."""

import itertools

import pytest

from eagle_jax.structured import automaton_union
from eagle_jax.structured.automaton_union import union
from eagle_jax.structured.byte_automaton import ByteAutomaton
from eagle_jax.structured.regex_automaton import regex_automaton


def accepts(automaton: ByteAutomaton, text: str) -> bool:
    state = 0
    for byte in text.encode():
        state = int(automaton.next[state, byte]) if state >= 0 else -1
    return state >= 0 and bool(automaton.final[state])


@pytest.mark.parametrize("one, other", [("a+", "b"), ("ab*", "(a|b)b"), ("a|b", "a|b"), ("(ab)*", "a(a|b)?")])
def test_it_accepts_what_either_accepts(one, other, monkeypatch):
    first, second = map(regex_automaton, (one, other))
    both = union(first, second, "both")
    for length in range(5):
        for text in map("".join, itertools.product("ab", repeat=length)):
            assert accepts(both, text) == (accepts(first, text) or accepts(second, text)), text
    monkeypatch.setattr(automaton_union, "MAX_STATES", 1)
    with pytest.raises(ValueError, match="the automaton of both is too large"):
        union(first, second, "both")
