"""Answers in the terminal: the text on stdout, reasoning dim on stderr."""

from typing import Annotated, Any

from eagle_jax import api
from eagle_jax.cli import options
from eagle_jax.cli.console import err, write

Thinking = Annotated[
    bool | None,
    options.model_option(
        "--thinking/--no-thinking",
        "Have the model reason before it answers, or not, where its chat template can be told so.",
    ),
]


def as_chat(messages: list[dict[str, str]], thinking: bool | None) -> Any:
    """Returns a conversation as a prompt that says whether the model is to reason."""
    return messages if thinking is None else api.Chat(messages, template={"enable_thinking": thinking})


class AnswerWriter:
    """Writes an answer as it comes.

    Args:
        model: that answers.
        prompt: the conversation, or plain text, whose answer is all text.

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
        """Writes what a chunk brings."""
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
