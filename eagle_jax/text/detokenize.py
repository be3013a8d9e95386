"""From token ids to text, whole characters at a time, and the search for stop strings."""

import copy
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

INCOMPLETE = "\ufffd"  # what a decoder makes of the bytes of an incomplete character
CONTEXT = 8  # tokens that new ones are decoded with, at least
# And at most: within so many bytes decoding finds the same characters as from the beginning; none has more than four.
MAX_CONTEXT_TOKENS = 4 * CONTEXT


@dataclasses.dataclass(frozen=True)
class StopHit:
    """Where a stop string was found: the text before it, and how many tokens it took to complete it."""

    text: str
    tokens: int


def decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """Returns the text of tokens; special tokens have none. Without a tokenizer there is no text.

    More tokens never change the text but for U+FFFD at its end, where a character is still incomplete.
    """
    if tokenizer is None:
        return ""
    return _decode(tokenizer, _complete_characters([*_spoken(tokenizer, token_ids)], _byte_tokens(tokenizer)))


def settled(text: str, stop: Sequence[str]) -> str:
    """Returns the part of an unfinished answer that no later token can change or take back.

    An incomplete character decodes to U+FFFD at the end, and an end that may turn out to begin a stop string is held
    back.
    """
    text = text.rstrip(INCOMPLETE)
    end = len(text)  # from where on it is held back
    for string in stop:
        place = text.find(string[:1], max(len(text) - len(string) + 1, 0), end)
        while place >= 0 and not string.startswith(text[place:]):
            place = text.find(string[:1], place + 1, end)
        end = place if place >= 0 else end
    return text[:end]


def special_ids(tokenizer: Any, texts: Sequence[str]) -> tuple[int, ...]:
    """Returns the ids of the special tokens that are written so, which no answer's text shows."""
    if not texts:
        return ()
    named = {tokenizer.added_tokens_decoder[id_].content: id_ for id_ in _silent(tokenizer)}
    return tuple(named[text] for text in texts if text in named)


def has_text(tokenizer: Any, token_ids: Sequence[int]) -> bool:
    """Returns whether any of the tokens is not a special one."""
    return not _silent(tokenizer).issuperset(token_ids)


class IncrementalDetokenizer:
    """The text that tokens add to a prompt's, as they come.

    A tokenizer's decoder does not decode a token alone as it does in a text (Llama 2's drops the space before a text's
    first word), so tokens are decoded together with a few before them, the prompt's at first. The cost of a token does
    not grow with the text.

    Attributes:
        length: characters that were returned.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()):
        self._tokenizer = tokenizer
        self._window = _context(tokenizer, prompt)  # tokens that the next ones are decoded with
        self._text = decode(tokenizer, self._window)
        # Characters of it that are the prompt's or were returned; -n if n U+FFFD before it were not.
        self._emitted = len(self._text)
        # The prompt's end where it may be within a character, which the answer completes, or does not.
        self._open = self._text if self._text.endswith(INCOMPLETE) else ""
        self.length = 0

    def add(self, token_id: int) -> str:
        """Returns the characters that this token completes; none for a special token or a character's first bytes."""
        return self.extend([token_id])

    def extend(self, token_ids: Sequence[int]) -> str:
        """Returns the characters that these tokens complete."""
        self._window = [*self._window, *_spoken(self._tokenizer, token_ids)]
        self._text = decode(self._tokenizer, self._window)
        new = self._complete_text(self._text)
        if new:
            self._open, self._emitted = "", len(self._text.rstrip(INCOMPLETE))
        if len(self._window) > 2 * CONTEXT and (not self._open or len(self._window) > 2 * MAX_CONTEXT_TOKENS):
            waiting = len(self._text) - self._begin(self._text)
            self._window = _context(self._tokenizer, self._window)
            self._text = decode(self._tokenizer, self._window)
            self._open, self._emitted = "", len(self._text) - waiting
        self.length += len(new)
        return new

    def would_add(self, token_id: int) -> str:
        """Returns what `add` would return for a token, without taking it."""
        return self._complete_text(decode(self._tokenizer, [*self._window, token_id]))

    @property
    def rest(self) -> str:
        """What a text that ends here has beyond what was returned: U+FFFD for a character that is not whole."""
        return self._from(self._begin(self._text), self._text)

    def _complete_text(self, text: str) -> str:
        """Returns the part of the window's text that was not yet returned, up to its last complete character."""
        begin, settled = self._begin(text), text.rstrip(INCOMPLETE)
        return self._from(begin, settled) if len(settled) > max(begin, 0) else ""

    @staticmethod
    def _from(begin: int, text: str) -> str:
        return INCOMPLETE * -begin + text[max(begin, 0) :]

    def _begin(self, text: str) -> int:
        """Returns where the part of the window's text that was not returned begins."""
        return len(os.path.commonprefix([self._open, text])) if self._open else self._emitted


class AnswerText:
    """The text of one answer, which a stop string may end.

    The answer ends with the first token that completes a stop string, however many tokens come at once. A U+FFFD at the
    end is not searched: it may yet become a character.

    Attributes:
        stop_hit: the earliest stop string so far; None if there is none.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str]):
        self._detokenizer, self._stop = IncrementalDetokenizer(tokenizer, prompt), stop
        self._overlap = max(map(len, stop), default=1) - 1  # characters that new ones are searched with
        self._pieces, self._length, self._end = list[str](), 0, ""  # the text so far, and its last characters
        self._tokens = 0
        self.stop_hit: StopHit | None = None

    def read(self, token_ids: Sequence[int]) -> None:
        """Reads on in an answer, whose tokens so far are all given."""
        if self.stop_hit is not None:
            return
        new, before = token_ids[self._tokens :], copy.copy(self._detokenizer)
        added = self._detokenizer.extend(new)
        if self._first_stop(added) is not None:
            self._detokenizer = before
            for self._tokens, token in enumerate(new, start=self._tokens + 1):
                added = self._detokenizer.add(token)
                if (place := self._first_stop(added)) is not None:
                    self.stop_hit = StopHit("".join([*self._pieces, added])[:place], self._tokens)
                    return
                self._append(added)
        self._append(added)
        self._tokens = len(token_ids)

    @property
    def text(self) -> str:
        """The answer's text, if it ends here."""
        return "".join([*self._pieces, self._detokenizer.rest]) if self.stop_hit is None else self.stop_hit.text

    def _append(self, added: str) -> None:
        self._pieces.append(added)
        self._length += len(added)
        self._end = (self._end + added)[-self._overlap :] if self._overlap else ""

    def _first_stop(self, added: str) -> int | None:
        """Returns where the first stop string begins that ends in `added`."""
        begin, searched = self._length - len(self._end), self._end + added
        return min((begin + searched.find(s) for s in self._stop if s in searched), default=None)


def _context(tokenizer: Any, token_ids: Sequence[int]) -> list[int]:
    """Returns the last tokens of a text, with which further ones are decoded as they are with all of it.

    One token with a character of its own is enough for decoders that treat a text's first token in another way, and one
    character in front of the last four bytes for those whose tokens are parts of characters.
    """
    size, context = CONTEXT, list[int]()
    while tokenizer is not None and size <= MAX_CONTEXT_TOKENS:
        context = [*itertools.islice(_spoken(tokenizer, reversed(token_ids)), size)][::-1]
        if len(context) < size or decode(tokenizer, context).rstrip(INCOMPLETE):
            break
        size *= 2
    return context


def _spoken(tokenizer: Any, token_ids: Iterable[int]) -> Iterator[int]:
    """Returns the tokens that are not special ones."""
    silent = frozenset() if tokenizer is None else _silent(tokenizer)
    return (id_ for id_ in token_ids if id_ not in silent)


def _decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@functools.lru_cache(maxsize=8)
def _silent(tokenizer: Any) -> frozenset[int]:
    """Returns special tokens, which decoding skips."""
    added = getattr(tokenizer, "added_tokens_decoder", {})  # a caller's own tokenizer may know of none
    return frozenset(id_ for id_, token in added.items() if token.special and not _decode(tokenizer, [id_]))


@dataclasses.dataclass(frozen=True)
class ByteTokens:
    """The tokens `<0x00>` ... `<0xFF>` of a tokenizer; none for one without byte fallback."""

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
    """Returns the tokens, with what is no UTF-8 in runs of byte tokens replaced by the bytes of U+FFFD.

    Llama 2's tokenizer spells rare characters with byte tokens, and of a run that ends within a character it decodes
    every byte to U+FFFD, the whole characters before it too: two emojis would lose the first while the second comes.
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
