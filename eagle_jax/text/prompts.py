"""Prompts in the forms people have them: text, chat messages, token ids, or a list of those."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

ARRAYS = (np.ndarray, jax.Array)
Message = Mapping[str, str]
Prompt = str | Sequence[Message] | Sequence[int]


def split(prompts: Any) -> tuple[list[Prompt], bool]:
    """The prompts as a list, and whether a list is what was given (a list in gives a list out)."""
    if isinstance(prompts, str):
        return [prompts], False
    if isinstance(prompts, Mapping) and "input_ids" in prompts:  # what tokenizers make, and their chat templates
        prompts = prompts["input_ids"]
    if isinstance(prompts, ARRAYS):
        prompts = prompts.tolist()
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise TypeError(
            f"prompts of type {type(prompts).__name__}; expected a string, a list of chat messages, "
            "a list of token ids, or a list of those"
        )
    if not len(prompts):
        raise ValueError("no prompts: the list is empty")
    if all(isinstance(item, Mapping) for item in prompts) or all(_is_token(item) for item in prompts):
        return [list(prompts)], False
    return [item.tolist() if isinstance(item, ARRAYS) else item for item in prompts], True


class TooLong(ValueError):
    """A prompt, or a prompt with its answer, that there is no room for."""


class Unfit(ValueError):
    """Messages that the model's chat template refuses: some know no system message, or want roles to take turns."""


def encode(tokenizer: Any, prompt: Prompt | np.ndarray | jax.Array, vocab_size: int, where: str) -> list[int]:
    """Token ids of one prompt; `where` names it in messages."""
    if isinstance(prompt, ARRAYS):
        prompt = prompt.tolist()
    if isinstance(prompt, str):
        ids = _encode_text(tokenizer, prompt, where)
    elif isinstance(prompt, Sequence) and prompt and all(isinstance(item, Mapping) for item in prompt):
        ids = _encode_chat(tokenizer, prompt, where)
    elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes) and all(_is_token(item) for item in prompt):
        ids = [int(token) for token in prompt]  # type: ignore[arg-type]  # `_is_token` has seen to it
    else:
        raise TypeError(f"{where} is neither text, nor chat messages, nor token ids: {_short(prompt)}")
    if not ids:
        raise ValueError(f"{where} is empty; give it at least one token")
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if wrong:
        raise ValueError(f"{where} holds token id {wrong[0]}; the model's vocabulary is 0 to {vocab_size - 1}")
    return ids


def _is_token(item: Any) -> bool:
    return isinstance(item, (int, np.integer)) and not isinstance(item, bool)


def _encode_text(tokenizer: Any, prompt: str, where: str) -> list[int]:
    if not prompt:
        raise ValueError(f"{where} is empty; give it at least one token")
    return _tokenize(_needed(tokenizer, where), prompt, where)


def _encode_chat(tokenizer: Any, messages: Sequence[Any], where: str) -> list[int]:
    for message in messages:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ValueError(
                f'{where} has the message {_short(message)}; expected {{"role": "user", "content": "..."}}'
            )
    if not _needed(tokenizer, where).chat_template:
        raise ValueError(f"{where} is a chat, but the model's tokenizer has no chat template; give plain text instead")
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template([dict(m) for m in messages], tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise Unfit(f"{where} does not fit the model's chat template: {error}") from None
    return _tokenize(tokenizer, text, where, add_special_tokens=False)


def _tokenize(tokenizer: Any, text: str, where: str, **options: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds {text[error.start]!r}, half of a character (a lone surrogate), and is no text; "
            "was it read with the wrong encoding?"
        ) from None
    return list(tokenizer(text, **options)["input_ids"])


def _needed(tokenizer: Any, where: str) -> Any:
    if tokenizer is None:
        raise ValueError(f"{where} is text, but the model's folder holds no tokenizer; give token ids instead")
    return tokenizer


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
