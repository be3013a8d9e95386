"""The form that an answer must have, as an automaton over bytes."""

import dataclasses

import numpy as np

from eagle_jax.structured.automaton_builder import automaton_of
from eagle_jax.structured.automaton_marks import after_reasoning, surround
from eagle_jax.structured.automaton_parts import either, literal
from eagle_jax.structured.automaton_union import union
from eagle_jax.structured.byte_automaton import ByteAutomaton
from eagle_jax.structured.json_schema import schema_automaton
from eagle_jax.structured.regex_automaton import regex_automaton


@dataclasses.dataclass(frozen=True)
class Form:
    """The form that an answer must have.

    Attributes:
        name: name of the option: `choices`, `regex` or `json_schema`.
        value: value of the option.
        between: texts before and after the answer, whose marks may be special tokens.
        call: an alternative form, for tool calls.
        reasoning: marks that begin and end optional reasoning before the answer; the first is "" if the prompt ends
            with it, and the reasoning is required then.
        drops_space: whether the decoder drops the first space of the answer, so that one more is allowed.
    """

    name: str
    value: str | tuple[str, ...]
    between: tuple[str, str] = ("", "")
    call: "Form | None" = None
    reasoning: tuple[str, str] | None = None
    drops_space: bool = False

    def automaton(self) -> ByteAutomaton:
        """Returns the automaton of matching answers. Raises ValueError if no answer matches or it is too large."""
        if self.drops_space:
            return _with_optional_space(dataclasses.replace(self, drops_space=False).automaton())
        if self.reasoning is not None:
            return after_reasoning(dataclasses.replace(self, reasoning=None).automaton(), *self.reasoning, self.name)
        if self.call is not None:
            without_calls = dataclasses.replace(self, call=None).automaton()
            return union(without_calls, self.call.automaton(), f"{self.name} with calls")
        return surround(self._bare_automaton(), *self.between, self.name)

    def _bare_automaton(self) -> ByteAutomaton:
        if isinstance(self.value, tuple):
            return automaton_of(either(*map(literal, self.value)), "choices")
        return regex_automaton(self.value) if self.name == "regex" else schema_automaton(self.value)


def _with_optional_space(automaton: ByteAutomaton) -> ByteAutomaton:
    """Returns the automaton of the same texts with one more space before them, optional before a non-space."""
    transitions = np.where(automaton.next < 0, -1, automaton.next + 1)
    first = transitions[:1].copy()
    first[0, ord(" ")] = 1
    return ByteAutomaton(np.concatenate([first, transitions]), np.append(automaton.final[:1], automaton.final))
