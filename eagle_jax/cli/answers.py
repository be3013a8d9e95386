"""Streams answers to the terminal: text on stdout, reasoning dim on stderr."""

from typing import Annotated, Any

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import err, write

Thinking = Annotated[
    bool | None,
    options.model_option(
        "--thinking/--no-thinking",
        "Turn the model's reasoning on or off, if its chat template supports that.",
    ),
]


def as_chat(messages: list[dict[str, str]], thinking: bool | None) -> Any:
    """Returns a conversation as a prompt, with `enable_thinking` set for the chat template if `thinking` is."""
    return messages if thinking is None else api.Chat(messages, template={"enable_thinking": thinking})


class AnswerWriter:
    """Writes an answer as it streams.

    Args:
        model: the model that answers.
        prompt: a conversation; or text, whose answer is not searched for reasoning.

    Attributes:
        text: the answer so far, without reasoning.
        reasoning: the reasoning so far.
    """

    def __init__(self, model: api.Model, prompt: Any):
        self.text, self.reasoning = "", ""
        self._answer: api.ChatAnswer | None = None
        reasoning = None if isinstance(prompt, str) else api.reasoning_format_for(model.tokenizer)
        if reasoning is not None:
            ids = api.encode(model.tokenizer, prompt, model.target.config.vocab_size, "the prompt")
            self._answer = api.ChatAnswer(model.tokenizer, "", prompt=ids, reasoning=reasoning)

    def add(self, chunk: api.Chunk) -> None:
        """Writes the text of a chunk."""
        if self._answer is None:
            self.text += chunk.text
            write(chunk.text)
            return
        for delta in self._answer.add(chunk.token_ids, chunk.text, is_last=chunk.result is not None):
            if "content" in delta:
                if self.reasoning and not self.text:
                    err.print()
                self.text += delta["content"]
                write(delta["content"])
            else:
                self.reasoning += delta["reasoning_content"]
                how: dict[str, Any] = dict(style="dim", markup=False, highlight=False, emoji=False, end="")
                err.print(delta["reasoning_content"], **how)

    @property
    def message(self) -> dict[str, str]:
        """The answer as a turn of the conversation."""
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return {"role": "assistant", "content": self.text} | reasoning
