"""What an answer has to look like, as an automaton over bytes."""

import dataclasses

from eagle_jax.text.automaton_builder import automaton_of
from eagle_jax.text.automaton_parts import either, literal
from eagle_jax.text.byte_automaton import ByteAutomaton, regex_automaton
from eagle_jax.text.json_schema import schema_automaton


@dataclasses.dataclass(frozen=True)
class Form:
    """What an answer has to look like.

    Attributes:
        name: of the option that says so: `choices`, `regex` or `json_schema`.
        value: of the option.
        between: texts before and behind the JSON.
    """

    name: str
    value: str | tuple[str, ...]
    between: tuple[str, str] = ("", "")

    def automaton(self) -> ByteAutomaton:
        """The automaton of the answers that have it. Raises ValueError if there is none, or if it is too large."""
        if isinstance(self.value, tuple):
            return automaton_of(either(*map(literal, self.value)), "choices")
        if self.name == "regex":
            return regex_automaton(self.value)
        return schema_automaton(self.value, *self.between)
