"""What the model is given of a conversation: all of it, or as much of its end as fits."""

import dataclasses

from eagle_jax import api
from eagle_jax.api import encode

Message = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Token ids, and how many characters of the conversation they leave out."""

    ids: list[int]
    cut: int


@dataclasses.dataclass(frozen=True)
class Prompter:
    """Turns conversations into prompts that leave room for an answer in the context.

    Args:
        chat: wrap the messages in the model's chat template; otherwise they are joined as plain text.
        max_new_tokens: room for the answer.
        cut: leave out what does not fit, from the left; otherwise what is too long is no prompt at all.
    """

    model: api.Model
    chat: bool
    max_new_tokens: int
    cut: bool = False

    @property
    def room(self) -> int:
        """Tokens that a prompt may have."""
        return self.model.context - self.max_new_tokens

    def __call__(self, conversation: list[Message]) -> Prompt | None:
        """Returns the prompt; None if the conversation is too long, and cutting was not asked for or does not help."""
        ids = self._encode(conversation)
        if len(ids) <= self.room:
            return Prompt(ids, 0)
        if not self.cut:
            return None
        few, many = 0, sum(len(message["content"]) for message in conversation) - 1  # one character stays
        while few + 1 < many:
            middle = (few + many) // 2
            fits = len(self._encode(_without(conversation, middle))) <= self.room
            few, many = (few, middle) if fits else (middle, many)
        ids = self._encode(_without(conversation, many))
        return Prompt(ids, many) if len(ids) <= self.room else None

    def _encode(self, conversation: list[Message]) -> list[int]:
        prompt = list(conversation) if self.chat else "\n".join(message["content"] for message in conversation)
        return encode(self.model.tokenizer, prompt, self.model.target.config.vocab_size, "the prompt")


def _without(conversation: list[Message], characters: int) -> list[Message]:
    """Returns the conversation without its first `characters`.

    A question and its answer that are gone altogether go as one.
    """
    left = []
    for message in conversation:
        text = message["content"]
        left.append({**message, "content": text[characters:]})
        characters = max(characters - len(text), 0)
    while len(left) > 2 and not left[0]["content"] and not left[1]["content"]:
        left = left[2:]
    return left
