"""Text of an answer with those special tokens that mark its parts, which have no text of their own."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from eagle_jax.text.detokenize import IncrementalDetokenizer, decode
from eagle_jax.text.token_bytes import MARK


class ShownMarks:
    """Puts hidden marks where they are in the text.

    Args:
        tokenizer: the model's.
        texts: what the parts of answers are marked with; special tokens within them are shown.
        by_token: whether each token is returned by itself, also where no mark is hidden.
    """

    def __init__(self, tokenizer: Any, texts: Iterable[str], by_token: bool):
        self._marks = _hidden(tokenizer, texts)
        self._by_token = by_token or bool(self._marks)
        before = tokenizer("a", add_special_tokens=False)["input_ids"]  # a chat that is answered has some text
        self._detokenizer = IncrementalDetokenizer(tokenizer, before)
        self._pending: list[tuple[int, str]] = []  # marks that were not shown, and where in the text they are
        self._length = 0  # of the text so far

    def pieces(self, token_ids: Sequence[int], new: str) -> Iterator[str]:
        """Yields each token's text as far as it is certain, then the rest; `new` is the text of all of them."""
        begin, end = self._length, self._length + len(new)
        for id_ in token_ids if self._by_token else ():
            if id_ in self._marks:
                self._pending.append((self._detokenizer.length, self._marks[id_]))
            self._detokenizer.add(id_)
            yield self._upto(min(self._detokenizer.length, end), begin, new)
        yield self._upto(end, begin, new)

    def _upto(self, place: int, begin: int, new: str) -> str:
        """Returns the text from where it was shown up to a place, with the marks between."""
        parts = list[str]()
        place = max(place, self._length)
        while self._pending and self._pending[0][0] <= place:
            at, mark = self._pending.pop(0)
            parts += [new[self._length - begin : max(at, self._length) - begin], mark]
            self._length = max(at, self._length)
        parts.append(new[self._length - begin : place - begin])
        self._length = place
        return "".join(parts)


def _hidden(tokenizer: Any, texts: Iterable[str]) -> dict[int, str]:
    """Returns the special tokens in these texts, by their ids."""
    marks = dict.fromkeys(mark for text in texts for mark in MARK.findall(text))
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in marks}
    mark_of_id = {id_: mark for mark, id_ in ids.items() if id_ is not None}  # of some tokenizers the unknown token's
    is_mark = {id_: mark for id_, mark in mark_of_id.items() if tokenizer.convert_ids_to_tokens(id_) == mark}
    return {id_: mark for id_, mark in is_mark.items() if decode(tokenizer, [id_]) == ""}
