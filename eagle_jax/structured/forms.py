"""The form that an answer must have, as an automaton over bytes."""

import dataclasses

import numpy as np

from eagle_jax.structured.automaton_builder import automaton_of
from eagle_jax.structured.automaton_marks import after_reasoning, framed
from eagle_jax.structured.automaton_parts import either, literal
from eagle_jax.structured.automaton_union import either_of
from eagle_jax.structured.byte_automaton import ByteAutomaton
from eagle_jax.structured.json_schema import schema_automaton
from eagle_jax.structured.regex_automaton import regex_automaton


@dataclasses.dataclass(frozen=True)
class Form:
    """The form that an answer must have.

    Attributes:
        name: name of the option: `choices`, `regex` or `json_schema`.
        value: value of the option.
        between: texts before and after it, in which what is written like a special token may be one.
        call: an alternative form: calls of functions.
        reasoning: marks that begin and end reasoning, which may come before; where the prompt has the first one, it is
            "" here, and reasoning comes.
        drops_space: the decoder drops the first space of such an answer, so it may have one more.
    """

    name: str
    value: str | tuple[str, ...]
    between: tuple[str, str] = ("", "")
    call: "Form | None" = None
    reasoning: tuple[str, str] | None = None
    drops_space: bool = False

    def automaton(self) -> ByteAutomaton:
        """Returns the automaton of matching answers. Raises ValueError if there is none, or if it is too large."""
        if self.drops_space:
            return _after_space(dataclasses.replace(self, drops_space=False).automaton())
        if self.reasoning is not None:
            return after_reasoning(dataclasses.replace(self, reasoning=None).automaton(), *self.reasoning, self.name)
        if self.call is not None:
            alone = dataclasses.replace(self, call=None).automaton()
            return either_of(alone, self.call.automaton(), f"{self.name} with calls")
        return framed(self._alone(), *self.between, self.name)

    def _alone(self) -> ByteAutomaton:
        if isinstance(self.value, tuple):
            return automaton_of(either(*map(literal, self.value)), "choices")
        return regex_automaton(self.value) if self.name == "regex" else schema_automaton(self.value)


def _after_space(automaton: ByteAutomaton) -> ByteAutomaton:
    """Returns the automaton of the same texts after one more space, which those that begin with none may lack."""
    following = np.where(automaton.next < 0, -1, automaton.next + 1)
    first = following[:1].copy()
    first[0, ord(" ")] = 1
    return ByteAutomaton(np.concatenate([first, following]), np.append(automaton.final[:1], automaton.final))
