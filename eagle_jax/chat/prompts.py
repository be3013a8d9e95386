"""Encodes prompts: text, chat messages, token ids, or a list of those."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eagle_jax.chat.messages import Message, is_message, template_messages
from eagle_jax.chat.reasoning import templates_of, thinking_variables
from eagle_jax.checks import cut


@dataclasses.dataclass(frozen=True)
class Text:
    """A prompt that is text.

    Attributes:
        text: the text.
        special_tokens: whether to add the special tokens that begin a text, without doubling a BOS token.
    """

    text: str
    special_tokens: bool = True


@dataclasses.dataclass(frozen=True)
class Chat:
    """A conversation, and how the model's chat template renders it.

    Attributes:
        messages: `{"role": ..., "content": ...}`, with further keys that the template reads, such as `tool_calls`.
        template: further variables of the template, such as `tools` or Qwen3's `{"enable_thinking": False}`; not other
            arguments of `apply_chat_template`, which include the template, a program.
        add_generation_prompt: whether the prompt begins the assistant's turn.
        continue_final_message: whether the answer continues the last message instead.
    """

    messages: Sequence[Message]
    template: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


Prompt = str | Text | Chat | Sequence[Message] | Sequence[int]


def split(prompts: Any) -> tuple[list[Prompt], bool]:
    """Returns the prompts as a list, and whether a list was given (the results are a list then)."""
    if isinstance(prompts, (str, Text, Chat)):
        return [prompts], False
    prompts = _as_lists(prompts)
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise TypeError(
            f"prompts of type {type(prompts).__name__}; expected a string, a list of chat messages, "
            "a list of token ids, or a list of those"
        )
    if not len(prompts):
        raise ValueError("no prompts: the list is empty")
    items: list[Any] = [item if isinstance(item, int) else _one_row(item) for item in prompts]
    if all(isinstance(item, Mapping) for item in items) or all(_is_token(item) for item in items):
        return [items], False
    return items, True


class TooLong(ValueError):
    """A prompt, or a prompt with its answer, is too long."""


class ChatTemplateError(ValueError):
    """The model's chat template rejects messages: some lack system messages, or require alternating roles."""


def encode(tokenizer: Any, prompt: Any, vocab_size: int, where: str) -> list[int]:
    """Returns the token ids of one prompt, a `Prompt` or an array of ids; `where` names it in error messages."""
    prompt = _one_row(prompt)
    if isinstance(prompt, (str, Text)):
        ids = _encode_text(tokenizer, prompt if isinstance(prompt, Text) else Text(prompt), where)
    elif isinstance(prompt, Chat):
        ids = _encode_chat(tokenizer, prompt, where)
    elif isinstance(prompt, Sequence) and prompt and all(isinstance(item, Mapping) for item in prompt):
        ids = _encode_chat(tokenizer, Chat(prompt), where)
    elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes) and all(_is_token(item) for item in prompt):
        ids = [int(token) for token in prompt]
    else:
        raise TypeError(f"{where} is neither text, nor chat messages, nor token ids: {cut(repr(prompt), 80)}")
    if not ids:
        raise ValueError(f"{where} is empty; give it at least one token")
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if wrong:
        raise ValueError(f"{where} holds token id {wrong[0]}; the model's vocabulary is 0 to {vocab_size - 1}")
    return ids


def _as_lists(prompts: Any) -> Any:
    """Converts arrays and tensors of any library to lists; returns other prompts unchanged.

    A tokenizer's output, a mapping with `input_ids`, becomes its token ids without those that its mask excludes.
    """
    if isinstance(prompts, Mapping) and "input_ids" in prompts:
        ids, mask = prompts["input_ids"], prompts.get("attention_mask")
        ids, mask = ([*map(_as_lists, item)] if isinstance(item, list) else _as_lists(item) for item in (ids, mask))
        return ids if mask is None else _without_padding(ids, mask)
    return prompts.tolist() if hasattr(prompts, "tolist") else prompts


def _without_padding(ids: Any, mask: Any) -> list[Any]:
    are_lists = isinstance(ids, Sequence) and isinstance(mask, Sequence)
    if not are_lists or len(ids) != len(mask):
        size = f"{len(mask)} entries for {len(ids)} of input_ids" if are_lists else f"type {type(mask).__name__}"
        raise ValueError(f"attention_mask has {size}; expected one for each token id, or none")
    if any(isinstance(row, Sequence) for row in ids):
        return [_without_padding(*row) for row in zip(ids, mask, strict=True)]
    return [id_ for id_, is_token in zip(ids, mask, strict=True) if is_token]


def _one_row(prompt: Any) -> Any:
    """Converts one prompt as `_as_lists`; a batch of one row, which tokenizers return, becomes that row."""
    rows = _as_lists(prompt)
    is_batch = rows is not prompt and isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], list)
    return rows[0] if is_batch else rows


def _is_token(item: Any) -> bool:
    return isinstance(item, (int, np.integer)) and not isinstance(item, bool)


def _encode_text(tokenizer: Any, prompt: Text, where: str) -> list[int]:
    if not prompt.text:
        raise ValueError(f"{where} is empty; give it at least one token")
    checked_tokenizer = _require_tokenizer(tokenizer, where)
    ids = _tokenize(checked_tokenizer, prompt.text, where, add_special_tokens=prompt.special_tokens)
    bos = getattr(checked_tokenizer, "bos_token_id", None)  # a caller's own tokenizer may have none
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] and prompt.special_tokens else ids


def _encode_chat(tokenizer: Any, chat: Chat, where: str) -> list[int]:
    if not chat.messages:
        raise ValueError(f"{where} is a chat without messages; give at least one")
    for message in chat.messages:
        if not is_message(message):
            raise ValueError(
                f'{where} has the message {cut(repr(message), 80)}; expected {{"role": "user", "content": "..."}}'
            )
    templates = _require_tokenizer(tokenizer, where).chat_template
    if not templates:
        raise ValueError(f"{where} is a chat, but the model's tokenizer has no chat template; give plain text instead")
    if isinstance(templates, Mapping) and "default" not in templates:
        names = ", ".join(templates)
        raise ChatTemplateError(f"{where} needs one of the chat templates {names}, and none is the default; name one")
    return _tokenize(tokenizer, render(tokenizer, chat, where), where, add_special_tokens=False)


def render(tokenizer: Any, chat: Chat, where: str) -> str:
    """Renders a conversation with the model's chat template.

    Raises:
        ValueError: `chat.template` has the name of an argument of `apply_chat_template`.
        ChatTemplateError: the template rejects the conversation, or fails.
    """
    from jinja2 import TemplateError

    reserved_names = {*inspect.signature(tokenizer.apply_chat_template).parameters} - {"tools", "documents"}
    conflicts = sorted(reserved_names & {*chat.template})
    if conflicts:
        raise ValueError(
            f"{where} sets {', '.join(conflicts)} for the chat template; expected only what the template reads"
        )
    template = templates_of(tokenizer)
    variables: dict[str, Any] = {**chat.template} | thinking_variables(template, chat.template.get("enable_thinking"))
    variables |= {"add_generation_prompt": chat.add_generation_prompt and not chat.continue_final_message}
    variables |= {"continue_final_message": True} if chat.continue_final_message else {}
    messages = template_messages(chat.messages, where, template)
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **variables)
    except TemplateError as error:
        raise ChatTemplateError(f"{where} does not fit the model's chat template: {error}") from None
    except Exception as error:  # a template is a program, which may divide by zero or recurse forever
        raise ChatTemplateError(
            f"the model's chat template fails at {where} ({type(error).__name__}: {cut(repr(str(error)), 80)})"
        ) from None


def _tokenize(tokenizer: Any, text: str, where: str, **options: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} has the lone surrogate {text[error.start]!r}; was it read with the wrong encoding?"
        ) from None
    return list(tokenizer(text, **options)["input_ids"])


def _require_tokenizer(tokenizer: Any, where: str) -> Any:
    if tokenizer is None:
        raise ValueError(f"{where} is text, but the model's folder has no tokenizer; give token ids instead")
    return tokenizer
