"""Prompts of conversations, truncated from the left on request."""

import dataclasses

from eagle_jax import api
from eagle_jax.api import encode

Message = dict[str, str]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Token ids, and the number of characters of the conversation that were left out."""

    ids: list[int]
    cut: int


@dataclasses.dataclass(frozen=True)
class Prompter:
    """Turns conversations into prompts that leave room for an answer in the context.

    Args:
        chat: whether to apply the model's chat template; otherwise messages are joined as plain text.
        max_new_tokens: maximum length of the answer.
        cut: whether to truncate long conversations from the left; otherwise they give no prompt.
    """

    model: api.Model
    chat: bool
    max_new_tokens: int
    cut: bool = False

    @property
    def room(self) -> int:
        """Maximum number of prompt tokens."""
        return self.model.context - self.max_new_tokens

    def __call__(self, conversation: list[Message]) -> Prompt | None:
        """Returns the prompt; None if the conversation is too long and cannot be truncated."""
        ids = self._encode(conversation)
        if len(ids) <= self.room:
            return Prompt(ids, 0)
        if not self.cut:
            return None
        low, high = 0, sum(len(message["content"]) for message in conversation) - 1  # one character stays
        while low + 1 < high:
            middle = (low + high) // 2
            fits = len(self._encode(_remove_start(conversation, middle))) <= self.room
            low, high = (low, middle) if fits else (middle, high)
        ids = self._encode(_remove_start(conversation, high))
        return Prompt(ids, high) if len(ids) <= self.room else None

    def _encode(self, conversation: list[Message]) -> list[int]:
        prompt = list(conversation) if self.chat else "\n".join(message["content"] for message in conversation)
        return encode(self.model.tokenizer, prompt, self.model.target.config.vocab_size, "the prompt")


def _remove_start(conversation: list[Message], characters: int) -> list[Message]:
    """Removes the first `characters` of a conversation, and then pairs of a question and an answer that are empty."""
    remaining = []
    for message in conversation:
        text = message["content"]
        remaining.append({**message, "content": text[characters:]})
        characters = max(characters - len(text), 0)
    while len(remaining) > 2 and not remaining[0]["content"] and not remaining[1]["content"]:
        remaining = remaining[2:]
    return remaining
