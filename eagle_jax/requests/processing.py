"""The options of a request that adjust its logits, and their checks."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypedDict

import numpy as np

from eagle_jax.checks import finite, is_whole_number, whole_number
from eagle_jax.structured.checks import FORMS, check_choices, check_json_schema, check_regex, check_text_pair
from eagle_jax.structured.forms import Form
from eagle_jax.structured.table_sizes import Words

MAX_PENALTY, MAX_BIAS = 2, 100  # as in OpenAI's requests
MAX_MIN_TOKENS = 2**31 - 1
MAX_REPETITION = 100.0  # the minimum is its inverse; logits stay finite


class Processing(TypedDict, total=False):
    """Options that adjust logits, under the names of vLLM and transformers; each is one value for all prompts, or a
    list with one per prompt. They depend only on the request and the text so far, so no drafter changes their effect.

    Attributes:
        repetition_penalty: divides positive logits of tokens in the prompt or the answer, and multiplies negative ones;
            0.01 to 100, 1 is off.
        presence_penalty: subtracted from the logits of tokens in the answer, -2 to 2.
        frequency_penalty: subtracted for each occurrence of a token in the answer, -2 to 2.
        logit_bias: added to logits before the penalties, by token id, -100 to 100.
        min_tokens: number of tokens before which no stop token is allowed.
        ignore_eos: whether to ignore the model's own stop tokens.
        stop_token_ids: further tokens that end an answer; they are part of it.
        bad_words: texts that are not generated; the token that would complete one is banned.
        allowed_token_ids: the only tokens that are allowed.
        choices: the possible texts of the answer.
        regex: a regular expression that the whole answer matches, in the syntax of Rust's `regex`.
        json_schema: a JSON schema of the answer; `{"type": "object"}` is any JSON object with up to five levels. A
            request has at most one of these three.
        form_between: texts before and after the structured output.
        form_reasoning: marks that begin and end optional reasoning before it; the first is "" if the prompt ends with
            it already.
        call_schema: an alternative schema of the answer, for a tool call.
    """

    repetition_penalty: float | Sequence[float]
    presence_penalty: float | Sequence[float]
    frequency_penalty: float | Sequence[float]
    logit_bias: Mapping[int, float] | Sequence[Mapping[int, float] | None] | None
    min_tokens: int | Sequence[int]
    ignore_eos: bool | Sequence[bool]
    stop_token_ids: Sequence[int] | Sequence[Sequence[int] | None] | None
    bad_words: Sequence[str] | Sequence[Sequence[str] | None] | None
    allowed_token_ids: Sequence[int] | Sequence[Sequence[int] | None] | None
    choices: Sequence[str] | Sequence[Sequence[str] | None] | None
    regex: str | Sequence[str | None] | None
    json_schema: Mapping[str, Any] | str | bool | Sequence[Mapping[str, Any] | str | bool | None] | None
    form_between: Sequence[str] | Sequence[Sequence[str] | None] | None
    form_reasoning: Sequence[str] | Sequence[Sequence[str] | None] | None
    call_schema: Mapping[str, Any] | str | bool | Sequence[Mapping[str, Any] | str | bool | None] | None


LIST_OPTIONS = ("stop_token_ids", "bad_words", "allowed_token_ids", "choices", "form_between", "form_reasoning")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitsOptions:
    """The options of `Processing` for one request, as returned by `check_processing`."""

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    choices: tuple[str, ...] | None = None
    regex: str | None = None
    json_schema: str | None = None
    form_between: tuple[str, str] = ("", "")
    form_reasoning: tuple[str, str] | None = None
    call_schema: str | None = None

    @functools.cached_property
    def form(self) -> Form | None:
        """The form of the answer; None for free text. Raises ValueError if options contradict each other."""
        named = [(name, getattr(self, name)) for name in FORMS]
        forms = [Form(name, value) for name, value in named if value is not None]
        if len(forms) > 1:
            raise ValueError(f"{forms[0].name} and {forms[1].name} both give the form of the answer; give one of them")
        if forms and self.ignore_eos:
            raise ValueError(f"ignore_eos with {forms[0].name}, whose answers end when complete; leave one of them out")
        if (any(self.form_between) or self.form_reasoning or self.call_schema is not None) and not forms:
            raise ValueError(
                "form_between, form_reasoning and call_schema go with a form of the answer; give one, or leave them out"
            )
        call = None if self.call_schema is None else Form("json_schema", self.call_schema)
        parts: dict[str, Any] = dict(between=self.form_between, call=call, reasoning=self.form_reasoning)
        return dataclasses.replace(forms[0], **parts) if forms else None

    @functools.cached_property
    def changes_logits(self) -> bool:
        """Whether any option needs a `LogitsParams`."""
        neutral = {"ignore_eos": self.ignore_eos, "stop_token_ids": self.stop_token_ids}  # these only end answers
        return any(
            getattr(self, field.name) != neutral.get(field.name, field.default)
            for field in dataclasses.fields(LogitsOptions)
        )


def check_processing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the options of `Processing` among a request's options, makes them hashable, and drops those that are None.

    Raises:
        ValueError: a value is out of range or has the wrong type.
    """
    checked = {
        name: _CHECKS[name](name, value) for name, value in values.items() if name in _CHECKS and value is not None
    }
    return {name: value for name, value in values.items() if name not in _CHECKS} | checked


def _repetition_penalty(name: str, value: Any) -> float:
    if not 1 / MAX_REPETITION <= finite(name, value) <= MAX_REPETITION:
        low, high = 1 / MAX_REPETITION, MAX_REPETITION
        raise ValueError(f"{name}={value}; expected a number from {low:g} to {high:g}, 1 is off")
    return float(value)


def _penalty(name: str, value: Any) -> float:
    if abs(finite(name, value)) > MAX_PENALTY:
        raise ValueError(f"{name}={value}; expected a number from -{MAX_PENALTY} to {MAX_PENALTY}, 0 is off")
    return float(value)


def _min_tokens(name: str, value: Any) -> int:
    if whole_number(name, value, 0) > MAX_MIN_TOKENS:
        raise ValueError(f"{name}={value}; expected a whole number from 0 to {MAX_MIN_TOKENS}")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name}={value!r}; expected True or False")
    return bool(value)


def _logit_bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = dict(value)  # a mapping, or the pairs that this function returns
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r}; expected a mapping of token ids to numbers") from None
    biases: dict[int, float] = {}
    for key, bias in pairs.items():
        id_ = int(key) if isinstance(key, str) and key.isdecimal() else key  # keys of JSON's objects are text
        if not is_whole_number(id_) or id_ < 0:
            raise ValueError(f"{name} has the key {key!r}; expected a token id")
        if int(id_) in biases:
            raise ValueError(f"{name} has the token id {id_} twice; expected each once")
        bias = finite(f"{name}[{id_}]", bias)
        if abs(bias) > MAX_BIAS:
            raise ValueError(f"{name}[{id_}]={bias}; expected a number from -{MAX_BIAS} to {MAX_BIAS}")
        biases[int(id_)] = bias
    return tuple(biases.items())


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(ids, (str, bytes)) or not isinstance(ids, (Sequence, Set)):
        raise ValueError(f"{name}={ids!r}; expected a list of token ids")
    for id_ in ids:
        if not is_whole_number(id_) or id_ < 0:
            raise ValueError(f"{name} has {id_!r}; expected token ids, which are whole numbers from 0")
    return tuple(int(id_) for id_ in ids)


def _allowed_token_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = _token_ids(name, value)
    if not ids:
        raise ValueError(f"{name} is empty; expected at least one token id, or None to allow every token")
    return ids


def _bad_words(name: str, value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, Sequence) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(f"{name}={value!r}; expected a list of texts that are not blank")
    return tuple(words)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "repetition_penalty": _repetition_penalty,
    "presence_penalty": _penalty,
    "frequency_penalty": _penalty,
    "logit_bias": _logit_bias,
    "min_tokens": _min_tokens,
    "ignore_eos": _flag,
    "stop_token_ids": _token_ids,
    "bad_words": _bad_words,
    "allowed_token_ids": _allowed_token_ids,
    "choices": check_choices,
    "regex": check_regex,
    "json_schema": check_json_schema,
    "form_between": check_text_pair,
    "form_reasoning": check_text_pair,
    "call_schema": check_json_schema,
}


def bad_word_ids(words: Sequence[str], tokenizer: Any, vocab_size: int) -> Words:
    """Returns the token sequences of each word at the beginning of a text and after a space, without sequences that
    have a token beyond the vocabulary, which is never drawn.

    Raises:
        ValueError: there is no tokenizer, or a word has no tokens.
    """
    if words and tokenizer is None:
        raise ValueError("bad words need a tokenizer, but the model's folder has none; leave bad_words out")
    spellings: list[tuple[int, ...]] = []
    for word in words:
        bare, spaced = (tuple(tokenizer.encode(space + word.lstrip(), add_special_tokens=False)) for space in ("", " "))
        if not bare or not spaced:
            raise ValueError(f"bad word {word!r} has no token; leave it out")
        spellings.append(bare)
        if spaced[-len(bare) :] != bare:  # otherwise banning the bare word suffices
            spellings.append(spaced)
    return tuple(dict.fromkeys(word for word in spellings if max(word) < vocab_size))


def check_ids(options: LogitsOptions, vocab_size: int) -> None:
    """Raises ValueError for token ids that the model does not have."""
    ids_by_option = {
        "logit_bias": [id_ for id_, _ in options.logit_bias],
        "stop_token_ids": options.stop_token_ids,
        "allowed_token_ids": options.allowed_token_ids or (),
    }
    for name, ids in ids_by_option.items():
        for id_ in ids:
            if id_ >= vocab_size:
                raise ValueError(f"{name} has the token id {id_}; the model's vocabulary ends at {vocab_size - 1}")
