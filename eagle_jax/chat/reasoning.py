"""Reasoning before answers: the formats of model families, and incremental parsing."""

import abc
import dataclasses
import functools
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from eagle_jax.text.detokenize import settled
from eagle_jax.text.token_bytes import MARK

TAIL = 64  # tokens at a prompt's end that are searched for a mark


@dataclasses.dataclass(frozen=True)
class ReasoningPiece:
    """A piece of reasoning."""

    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """How a family of models marks its reasoning, which precedes the answer.

    Attributes:
        name: name of the format in options.
        marks: texts that occur in every chat template of this format.
        begin: text before the reasoning, which the template may have written already.
        end: text after the reasoning.
        answer: texts before and after the answer, which models may omit.
        channels: whether reasoning is a message in a channel, which `harmony` parses.
    """

    name: str
    marks: tuple[str, ...]
    begin: str = ""
    end: str = ""
    answer: tuple[str, str] = ("", "")
    channels: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the format."""
        return self.begin, self.end, *self.answer


_THINK: dict[str, Any] = {"begin": "<think>", "end": "</think>"}
_ANSWER: dict[str, Any] = {"answer": ("<answer>", "</answer>")}
# A template has the first format whose marks it contains.
FORMATS = {
    one.name: one
    for one in (
        ReasoningFormat(name="harmony", marks=("<|channel|>", "<|message|>"), channels=True),
        ReasoningFormat(
            name="gemma4", marks=("<|channel>", "<channel|>"), begin="<|channel>thought\n", end="<channel|>"
        ),
        ReasoningFormat(name="seed-oss", marks=("<seed:think>",), begin="<seed:think>", end="</seed:think>"),
        ReasoningFormat(name="mistral", marks=("[THINK]",), begin="[THINK]", end="[/THINK]"),
        ReasoningFormat(name="hunyuan", marks=("</think>", "<answer>"), **_THINK, **_ANSWER),
        ReasoningFormat(name="hunyuan-a13b", marks=("</think>", "<|extra_0|>"), **_THINK, **_ANSWER),
        # before "response": its template has tool results between <response> and </response>
        ReasoningFormat(name="minimax-m2", marks=("</think>", "<minimax:tool_call>"), **_THINK),
        ReasoningFormat(
            name="response",
            marks=("</think>", "<response>", "</response>"),
            **_THINK,
            answer=("<response>", "</response>"),
        ),
        ReasoningFormat(
            name="granite",
            marks=("Here is my thought process:", "Here is my response:"),
            begin="Here is my thought process:",
            end="Here is my response:",
        ),
        ReasoningFormat(name="think", marks=("</think>",), **_THINK),
    )
}
NAMES = (*FORMATS, "none")  # values of options; "none" leaves reasoning in the text
# Field names of a message's reasoning in chat templates, the most common first.
FIELDS = ("reasoning_content", "thinking", "reasoning")


def templates_of(tokenizer: Any) -> str:
    """Returns the text of all chat templates of a tokenizer."""
    templates = getattr(tokenizer, "chat_template", None) or ""
    return "\n".join(map(str, templates.values())) if isinstance(templates, Mapping) else str(templates)


def reasoning_format_for(tokenizer: Any, stated: str | None = None) -> ReasoningFormat | None:
    """Returns the reasoning format of a model, by its chat template or else its vocabulary; None if it has none.

    Args:
        stated: name of the format to return instead, or "none".
    """
    if stated is not None:
        return FORMATS.get(stated)
    template, added = templates_of(tokenizer), getattr(tokenizer, "added_tokens_encoder", {})
    by_template = (format_ for format_ in FORMATS.values() if all(mark in template for mark in format_.marks))
    by_tokens = (format_ for format_ in FORMATS.values() if all(mark in added for mark in format_.marks))
    return next(by_template, None) or next(by_tokens, None)


def ends_inside_reasoning(format: ReasoningFormat, tokenizer: Any, prompt: Sequence[int]) -> bool:
    """Returns whether a prompt ends inside reasoning, which the answer continues.

    Only the last message counts, after the last special token; without special tokens, only a mark at the very end.
    """
    begin, end = format.begin.strip(), format.end.strip()
    turn_marks = {id_ for id_, mark in _marks(tokenizer) if mark not in begin and mark not in end}
    start = next((index for index in reversed(range(1, len(prompt))) if prompt[index] in turn_marks), None)
    if not begin or not prompt:
        return False
    message = tokenizer.decode([*prompt[-TAIL if start is None else start :]], skip_special_tokens=False)
    return message.rstrip().endswith(begin) if start is None else message.rfind(begin) > message.rfind(end)


@functools.lru_cache(maxsize=8)
def _marks(tokenizer: Any) -> tuple[tuple[int, str], ...]:
    """Returns the ids and texts of the vocabulary's tokens that are written as marks, such as those of turns."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return tuple((id_, token.content) for id_, token in added.items() if MARK.fullmatch(token.content))


def reasoning_field_of(template: str) -> str | None:
    """Returns the field name under which a chat template reads a message's reasoning; None if it reads none."""
    names = (name for name in FIELDS if re.search(rf"\.{name}\b|['\"]{name}['\"]", template))
    return next(names, None)


def thinking_variables(template: str, enabled: bool | None) -> dict[str, Any]:
    """Translates `enable_thinking` to a chat template's own variables; empty if the template reads that name."""
    if enabled is None or _reads_variable(template, "enable_thinking"):
        return {}
    by_name = {"thinking": enabled} if _reads_variable(template, "thinking") else {}
    return by_name | ({"thinking_budget": 0} if not enabled and _reads_variable(template, "thinking_budget") else {})


def _reads_variable(template: str, variable: str) -> bool:
    return re.search(rf"(?<![\w.'\"]){variable}(?![\w'\"])", template) is not None


class PieceReader(abc.ABC):
    """Splits a growing answer into pieces of reasoning, pieces of text, and calls.

    Attributes:
        is_thinking: whether the next text is reasoning, as far as is known.
    """

    def __init__(self) -> None:
        self._text, self._is_last = "", False
        self._reading = self._read()
        self.is_thinking = False

    def add(self, text: str) -> list[Any]:
        """Reads more text and returns the complete pieces."""
        self._text += text
        pieces = []
        while (piece := next(self._reading, None)) is not None:
            pieces.append(piece)
        return pieces

    def end(self) -> list[Any]:
        """Returns the remaining pieces once the answer is complete."""
        self._is_last = True
        return self.add("")

    @abc.abstractmethod
    def _read(self) -> Iterator[Any]:
        """Yields the pieces, and None whenever more text is needed."""

    def _skip_space(self) -> Iterator[None]:
        while not self._text.strip() and not self._is_last:
            yield None
        self._text = self._text.lstrip()

    def _read_to_end(self, mark: str) -> Iterator[str | None]:
        """Yields the text to the answer's end, without a final mark and white space at both ends."""
        yield from self._skip_space()
        while True:
            text = self._text.rstrip()
            if text.endswith(mark):
                text = text.removesuffix(mark)
            elif not self._is_last:
                text = settled(self._text, [mark])
            complete = text.rstrip()
            self._text = self._text[len(complete) :]
            if complete:
                yield complete
            if self._is_last:
                return
            yield None

    def _read_to_mark(self, mark: str) -> Iterator[str | None]:
        """Yields the text up to a mark, without white space at both ends."""
        space, is_begun = "", False
        while True:
            end = self._text.find(mark)
            complete = self._text if self._is_last else settled(self._text, [mark])
            complete = complete if end < 0 else self._text[:end]
            self._text = self._text[len(complete) + (len(mark) if end >= 0 else 0) :]
            text = space + complete if is_begun else complete.lstrip()
            stripped = text.rstrip()
            space, is_begun = text[len(stripped) :], is_begun or bool(stripped)
            if stripped:
                yield stripped
            if end >= 0 or self._is_last:
                return
            yield None


class ReasoningReader(PieceReader):
    """Splits off reasoning between two marks at the beginning of an answer.

    White space around reasoning is dropped. An answer that ends inside its reasoning has no text.

    Args:
        format: format of the model's reasoning.
        is_open: whether the prompt ends inside reasoning.
    """

    def __init__(self, format: ReasoningFormat, is_open: bool):
        super().__init__()
        self._format, self.is_thinking = format, is_open

    def _read(self) -> Iterator[Any]:
        before, after = self._format.answer
        self.is_thinking = self.is_thinking or (yield from self._skip_mark(self._format.begin))
        if self.is_thinking:
            for piece in self._read_to_mark(self._format.end):
                yield piece and ReasoningPiece(piece)
            self.is_thinking = False
            if before and (yield from self._skip_mark(before)):
                yield from self._read_to_end(after)
                return
            yield from self._skip_space()
        while self._text or not self._is_last:
            text, self._text = self._text, ""
            yield text or None

    def _skip_mark(self, mark: str) -> Generator[None, None, bool]:
        """Skips a mark, and white space before it, if it follows; returns whether it did."""
        while True:
            text = self._text.lstrip()
            if text.startswith(mark.strip()):
                self._text = text[len(mark.strip()) :]
                return True
            if self._is_last or not mark.startswith(text):
                return False
            yield None
