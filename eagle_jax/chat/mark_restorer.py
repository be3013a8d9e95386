"""Restores special tokens that mark the parts of an answer, which detokenization hides."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from eagle_jax.text.detokenize import IncrementalDetokenizer, decode
from eagle_jax.text.token_bytes import MARK


class MarkRestorer:
    """Inserts hidden marks into the text of an answer.

    Args:
        tokenizer: the model's tokenizer.
        texts: texts that mark the parts of answers; the special tokens in them are restored.
        by_token: whether to return one piece per token even if no mark is hidden.
    """

    def __init__(self, tokenizer: Any, texts: Iterable[str], by_token: bool):
        self._marks = _hidden_marks(tokenizer, texts)
        self._by_token = by_token or bool(self._marks)
        before = tokenizer("a", add_special_tokens=False)["input_ids"]  # stands for the prompt
        self._detokenizer = IncrementalDetokenizer(tokenizer, before)
        self._pending: list[tuple[int, str]] = []  # positions and texts of the marks to insert
        self._length = 0  # length of the text so far

    def pieces(self, token_ids: Sequence[int], new: str) -> Iterator[str]:
        """Yields one piece per token, then the rest; `new` is the text of all tokens, without marks."""
        start, end = self._length, self._length + len(new)
        for id_ in token_ids if self._by_token else ():
            if id_ in self._marks:
                self._pending.append((self._detokenizer.length, self._marks[id_]))
            self._detokenizer.add(id_)
            yield self._text_up_to(min(self._detokenizer.length, end), start, new)
        yield self._text_up_to(end, start, new)

    def _text_up_to(self, end: int, start: int, new: str) -> str:
        """Returns the next text up to `end`, with its marks."""
        parts = list[str]()
        end = max(end, self._length)
        while self._pending and self._pending[0][0] <= end:
            position, mark = self._pending.pop(0)
            parts += [new[self._length - start : max(position, self._length) - start], mark]
            self._length = max(position, self._length)
        parts.append(new[self._length - start : end - start])
        self._length = end
        return "".join(parts)


def _hidden_marks(tokenizer: Any, texts: Iterable[str]) -> dict[int, str]:
    """Returns the marks in the texts that are special tokens without text, by token id."""
    marks = dict.fromkeys(mark for text in texts for mark in MARK.findall(text))
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in marks}
    mark_of_id = {id_: mark for mark, id_ in ids.items() if id_ is not None}  # may be the unknown token's id
    exact_marks = {id_: mark for id_, mark in mark_of_id.items() if tokenizer.convert_ids_to_tokens(id_) == mark}
    return {id_: mark for id_, mark in exact_marks.items() if decode(tokenizer, [id_]) == ""}
