"""Incremental detokenization, by complete characters, and the search for stop strings."""

import copy
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

INCOMPLETE = "\ufffd"  # decoded from the bytes of an incomplete character
MIN_CONTEXT = 8  # minimum number of tokens before new ones with which these are decoded
MAX_CONTEXT = 4 * MIN_CONTEXT  # a character has at most four bytes


@dataclasses.dataclass(frozen=True)
class StopHit:
    """The text before a stop string, and the number of tokens up to its end."""

    text: str
    tokens: int


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """Returns the text of tokens without special tokens; "" without a tokenizer.

    More tokens only append to the text, or replace U+FFFD at its end, an incomplete character.
    """
    if tokenizer is None:
        return ""
    return _decode(tokenizer, _complete_characters([*_without_special(tokenizer, token_ids)], _byte_tokens(tokenizer)))


def settled(text: str, stop: Sequence[str]) -> str:
    """Returns the part of an unfinished answer that no later token can change.

    An incomplete character at the end, and an end that may begin a stop string, are held back.
    """
    text = text.rstrip(INCOMPLETE)
    end = len(text)  # start of the part that is held back
    for stop_string in stop:
        position = text.find(stop_string[:1], max(len(text) - len(stop_string) + 1, 0), end)
        while position >= 0 and not stop_string.startswith(text[position:]):
            position = text.find(stop_string[:1], position + 1, end)
        end = position if position >= 0 else end
    return text[:end]


def special_ids(tokenizer: Any, texts: Sequence[str]) -> tuple[int, ...]:
    """Returns the ids of the special tokens with these texts, which no answer's text contains."""
    if not texts:
        return ()
    id_of = {tokenizer.added_tokens_decoder[id_].content: id_ for id_ in _hidden_special_ids(tokenizer)}
    return tuple(id_of[text] for text in texts if text in id_of)


def has_text(tokenizer: Any, token_ids: Sequence[int]) -> bool:
    """Returns whether any of the tokens is not special."""
    return not _hidden_special_ids(tokenizer).issuperset(token_ids)


class IncrementalDetokenizer:
    """Returns the text that tokens add after a prompt.

    A token may decode differently at the beginning of a text (Llama 2's tokenizer drops the first space), so tokens are
    decoded with a few tokens before them, initially the prompt's. The cost per token does not grow with the text.

    Attributes:
        length: number of characters returned so far.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()):
        self._tokenizer = tokenizer
        self._window = _context(tokenizer, prompt)  # tokens before the next ones
        self._text = decode(tokenizer, self._window)
        # Number of its characters that were returned or belong to the prompt; -n if n U+FFFD before it are due.
        self._num_returned = len(self._text)
        # The prompt's text, if it ends inside a character, which the answer may complete.
        self._open_prompt = self._text if self._text.endswith(INCOMPLETE) else ""
        self.length = 0

    def add(self, token_id: int) -> str:
        """Returns the characters that this token completes."""
        return self.extend([token_id])

    def extend(self, token_ids: Sequence[int]) -> str:
        """Returns the characters that these tokens complete."""
        self._window = [*self._window, *_without_special(self._tokenizer, token_ids)]
        self._text = decode(self._tokenizer, self._window)
        new_text = self._complete_text(self._text)
        if new_text:
            self._open_prompt, self._num_returned = "", len(self._text.rstrip(INCOMPLETE))
        if len(self._window) > 2 * MIN_CONTEXT and (not self._open_prompt or len(self._window) > 2 * MAX_CONTEXT):
            num_unreturned = len(self._text) - self._new_start(self._text)
            self._window = _context(self._tokenizer, self._window)
            self._text = decode(self._tokenizer, self._window)
            self._open_prompt, self._num_returned = "", len(self._text) - num_unreturned
        self.length += len(new_text)
        return new_text

    def would_add(self, token_id: int) -> str:
        """Returns what `add` would return, without adding the token."""
        return self._complete_text(decode(self._tokenizer, [*self._window, token_id]))

    @property
    def rest(self) -> str:
        """The text not returned so far, if no token follows: U+FFFD for an incomplete character."""
        return self._text_from(self._new_start(self._text), self._text)

    def _complete_text(self, text: str) -> str:
        """Returns the part of the window's text that was not returned, up to its last complete character."""
        start, complete = self._new_start(text), text.rstrip(INCOMPLETE)
        return self._text_from(start, complete) if len(complete) > max(start, 0) else ""

    @staticmethod
    def _text_from(begin: int, text: str) -> str:
        return INCOMPLETE * -begin + text[max(begin, 0) :]

    def _new_start(self, text: str) -> int:
        """Returns the position in the window's text up to which it was returned."""
        return len(os.path.commonprefix([self._open_prompt, text])) if self._open_prompt else self._num_returned


class AnswerText:
    """The text of one answer, which the first token that completes a stop string ends.

    An incomplete character at the end is not searched.

    Attributes:
        stop_hit: the first stop string found; None if there is none.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str]):
        self._detokenizer, self._stop = IncrementalDetokenizer(tokenizer, prompt), stop
        self._overlap = max(map(len, stop), default=1) - 1  # characters that are searched again
        self._pieces, self._length, self._end = list[str](), 0, ""  # the text so far, and its last characters
        self._tokens = 0
        self.stop_hit: StopHit | None = None

    def read(self, token_ids: Sequence[int]) -> None:
        """Reads the new tokens among `token_ids`, all tokens of the answer so far."""
        if self.stop_hit is not None:
            return
        new_tokens, saved = token_ids[self._tokens :], copy.copy(self._detokenizer)
        new_text = self._detokenizer.extend(new_tokens)
        if self._first_stop(new_text) is not None:
            self._detokenizer = saved
            for self._tokens, token in enumerate(new_tokens, start=self._tokens + 1):
                new_text = self._detokenizer.add(token)
                if (position := self._first_stop(new_text)) is not None:
                    self.stop_hit = StopHit("".join([*self._pieces, new_text])[:position], self._tokens)
                    return
                self._append(new_text)
        self._append(new_text)
        self._tokens = len(token_ids)

    @property
    def text(self) -> str:
        """The answer's text, if no token follows."""
        return "".join([*self._pieces, self._detokenizer.rest]) if self.stop_hit is None else self.stop_hit.text

    def _append(self, added: str) -> None:
        self._pieces.append(added)
        self._length += len(added)
        self._end = (self._end + added)[-self._overlap :] if self._overlap else ""

    def _first_stop(self, added: str) -> int | None:
        """Returns the position of the first stop string that ends in `added`; None if there is none."""
        offset, searched = self._length - len(self._end), self._end + added
        return min((offset + searched.find(s) for s in self._stop if s in searched), default=None)


def _context(tokenizer: Any, token_ids: Sequence[int]) -> list[int]:
    """Returns the last tokens of a text that suffice to decode further ones as in the whole text.

    They contain a complete character, since decoders may treat the first token of a text differently.
    """
    size, context = MIN_CONTEXT, list[int]()
    while tokenizer is not None and size <= MAX_CONTEXT:
        context = [*itertools.islice(_without_special(tokenizer, reversed(token_ids)), size)][::-1]
        if len(context) < size or decode(tokenizer, context).rstrip(INCOMPLETE):
            break
        size *= 2
    return context


def _without_special(tokenizer: Any, token_ids: Iterable[int]) -> Iterator[int]:
    """Returns the tokens that are not special."""
    special = frozenset() if tokenizer is None else _hidden_special_ids(tokenizer)
    return (id_ for id_ in token_ids if id_ not in special)


def _decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@functools.lru_cache(maxsize=8)
def _hidden_special_ids(tokenizer: Any) -> frozenset[int]:
    """Returns the special tokens, which decoding skips."""
    added = getattr(tokenizer, "added_tokens_decoder", {})  # a caller's own tokenizer may have none
    return frozenset(id_ for id_, token in added.items() if token.special and not _decode(tokenizer, [id_]))


@dataclasses.dataclass(frozen=True)
class ByteTokens:
    """The tokens `<0x00>` ... `<0xFF>` of a tokenizer with byte fallback; empty for others."""

    byte_of: Mapping[int, int]
    token_of: Mapping[int, int]


@functools.lru_cache(maxsize=8)
def _byte_tokens(tokenizer: Any) -> ByteTokens:
    vocabulary = tokenizer.get_vocab()
    token_of = {byte: vocabulary.get(f"<0x{byte:02X}>") for byte in range(256)}
    letter = token_of[ord("A")]
    if None in token_of.values() or _decode(tokenizer, [letter]) != "A":  # without byte fallback they are text
        return ByteTokens({}, {})
    return ByteTokens({token: byte for byte, token in token_of.items()}, token_of)


def _complete_characters(token_ids: Sequence[int], byte_tokens: ByteTokens) -> list[int]:
    """Replaces invalid UTF-8 in runs of byte tokens by the bytes of U+FFFD.

    Llama 2's tokenizer encodes rare characters as byte tokens, and decodes all bytes of a run that ends inside a
    character to U+FFFD: of two emojis, the first would disappear until the second is complete.
    """
    byte_of, token_of = byte_tokens.byte_of, byte_tokens.token_of
    ids: list[int] = []
    for is_bytes, run in itertools.groupby(token_ids, byte_of.__contains__):
        if is_bytes:
            characters = bytes(byte_of[token] for token in run).decode(errors="replace")
            ids.extend(token_of[byte] for byte in characters.encode())
        else:
            ids.extend(run)
    return ids
