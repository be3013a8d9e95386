"""Reasoning before answers: how families of models mark it, and how it is split off as the text comes."""

import abc
import dataclasses
import functools
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from eagle_jax.text.detokenize import settled
from eagle_jax.text.token_bytes import MARK

TAIL = 64  # tokens at a prompt's end in which a mark is looked for that ends it


@dataclasses.dataclass(frozen=True)
class Thought:
    """A piece of reasoning."""

    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """How a family of models marks its reasoning, which comes before the answer.

    Attributes:
        name: what options call it.
        marks: texts that chat templates of this format have, all of them.
        begin: text before it, which the template may have written already.
        end: text after it.
        answer: texts before and after the answer that follows; both may be missing.
        channels: whether it is a message of a channel, which `harmony` reads.
    """

    name: str
    marks: tuple[str, ...]
    begin: str = ""
    end: str = ""
    answer: tuple[str, str] = ("", "")
    channels: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts that it is written with."""
        return self.begin, self.end, *self.answer


_THINK: dict[str, Any] = {"begin": "<think>", "end": "</think>"}
_ANSWER: dict[str, Any] = {"answer": ("<answer>", "</answer>")}
# The first row whose marks a template has is its format.
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
        ReasoningFormat(
            name="minimax-m2", marks=("</think>", "<minimax:tool_call>"), **_THINK
        ),  # results are responses
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
NAMES = (*FORMATS, "none")  # what options call them; the last one leaves reasoning in the text
# Names of a message's earlier reasoning in chat templates, the likeliest first.
FIELDS = ("reasoning_content", "thinking", "reasoning")


def templates_of(tokenizer: Any) -> str:
    """Returns the text of all chat templates of a tokenizer."""
    templates = getattr(tokenizer, "chat_template", None) or ""
    return "\n".join(map(str, templates.values())) if isinstance(templates, Mapping) else str(templates)


def reasoning_format_for(tokenizer: Any, stated: str | None = None) -> ReasoningFormat | None:
    """Returns the format that a model's chat template has, or else its vocabulary; None if there is none.

    Args:
        stated: the name of a format to take instead, or "none".
    """
    if stated is not None:
        return FORMATS.get(stated)
    template, added = templates_of(tokenizer), getattr(tokenizer, "added_tokens_encoder", {})
    by_template = (one for one in FORMATS.values() if all(mark in template for mark in one.marks))
    by_tokens = (one for one in FORMATS.values() if all(mark in added for mark in one.marks))
    return next(by_template, None) or next(by_tokens, None)


def is_open(format: ReasoningFormat, tokenizer: Any, prompt: Sequence[int]) -> bool:
    """Returns whether a prompt's tokens end within reasoning, which an answer goes on with.

    The last message counts, which begins after the last special token; where there is none, the mark at the very end.
    """
    begin, end = format.begin.strip(), format.end.strip()
    turns = {id_ for id_, mark in _marks(tokenizer) if mark not in begin and mark not in end}
    start = next((place for place in reversed(range(1, len(prompt))) if prompt[place] in turns), None)
    if not begin or not prompt:
        return False
    message = tokenizer.decode([*prompt[-TAIL if start is None else start :]], skip_special_tokens=False)
    return message.rstrip().endswith(begin) if start is None else message.rfind(begin) > message.rfind(end)


@functools.lru_cache(maxsize=8)
def _marks(tokenizer: Any) -> tuple[tuple[int, str], ...]:
    """Returns the tokens of the vocabulary that are written as marks, of turns among others."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return tuple((id_, token.content) for id_, token in added.items() if MARK.fullmatch(token.content))


def reasoning_field(template: str) -> str | None:
    """Returns the name under which a chat template reads a message's earlier reasoning; None if it reads none."""
    read = (name for name in FIELDS if re.search(rf"\.{name}\b|['\"]{name}['\"]", template))
    return next(read, None)


def thinking(template: str, enabled: bool | None) -> dict[str, Any]:
    """Returns `enable_thinking` under a chat template's other names for it; empty if the template reads that name."""
    if enabled is None or _reads(template, "enable_thinking"):
        return {}
    by_name = {"thinking": enabled} if _reads(template, "thinking") else {}
    return by_name | ({"thinking_budget": 0} if not enabled and _reads(template, "thinking_budget") else {})


def _reads(template: str, variable: str) -> bool:
    return re.search(rf"(?<![\w.'\"]){variable}(?![\w'\"])", template) is not None


class PieceReader(abc.ABC):
    """Splits an answer as it comes into pieces of reasoning, of text, and calls.

    Attributes:
        is_thinking: whether what comes next is reasoning, as far as is known.
    """

    def __init__(self) -> None:
        self._text, self._is_last = "", False
        self._reading = self._read()
        self.is_thinking = False

    def add(self, text: str) -> list[Any]:
        """Reads more of the text and returns the pieces that are now certain."""
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
        """Yields the pieces; None where more of the text is needed, which is not asked for after the last."""

    def _skip_space(self) -> Iterator[None]:
        while not self._text.strip() and not self._is_last:
            yield None
        self._text = self._text.lstrip()

    def _upto_last(self, mark: str) -> Iterator[str | None]:
        """Reads to the answer's end, and drops white space at both edges and a mark that stands there."""
        yield from self._skip_space()
        while True:
            text = self._text.rstrip()
            if text.endswith(mark):
                text = text.removesuffix(mark)
            elif not self._is_last:
                text = settled(self._text, [mark])
            certain = text.rstrip()
            self._text = self._text[len(certain) :]
            if certain:
                yield certain
            if self._is_last:
                return
            yield None

    def _trimmed(self, mark: str) -> Iterator[str | None]:
        """Reads up to a mark, and drops white space at both edges."""
        space, is_begun = "", False
        while True:
            end = self._text.find(mark)
            certain = self._text if self._is_last else settled(self._text, [mark])
            certain = certain if end < 0 else self._text[:end]
            self._text = self._text[len(certain) + (len(mark) if end >= 0 else 0) :]
            text = space + certain if is_begun else certain.lstrip()
            stripped = text.rstrip()
            space, is_begun = text[len(stripped) :], is_begun or bool(stripped)
            if stripped:
                yield stripped
            if end >= 0 or self._is_last:
                return
            yield None


class ReasoningReader(PieceReader):
    """Splits reasoning off that is between two marks, where the answer begins.

    White space at its edges is dropped, and before the answer that follows it. An answer that ends within its reasoning
    has nothing else.

    Args:
        format: how the model marks it.
        is_open: whether the prompt ends within it.
    """

    def __init__(self, format: ReasoningFormat, is_open: bool):
        super().__init__()
        self._format, self.is_thinking = format, is_open

    def _read(self) -> Iterator[Any]:
        before, after = self._format.answer
        self.is_thinking = self.is_thinking or (yield from self._skipped(self._format.begin))
        if self.is_thinking:
            for piece in self._trimmed(self._format.end):
                yield piece and Thought(piece)
            self.is_thinking = False
            if before and (yield from self._skipped(before)):
                yield from self._upto_last(after)
                return
            yield from self._skip_space()
        while self._text or not self._is_last:
            text, self._text = self._text, ""
            yield text or None

    def _skipped(self, mark: str) -> Generator[None, None, bool]:
        """Takes a mark, with white space before it, if it comes."""
        while True:
            text = self._text.lstrip()
            if text.startswith(mark.strip()):
                self._text = text[len(mark.strip()) :]
                return True
            if self._is_last or not mark.startswith(text):
                return False
            yield None
