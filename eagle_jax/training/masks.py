"""Masks of the tokens in a rendered conversation that the assistant produced: its text and the end-of-turn token.

If the chat template marks answers with `{% generation %}`, its marks are used. Otherwise the template is rendered
twice, once with a placeholder for each answer: the text between placeholders is the template's own, and the rest of the
other rendering is the answers, with preceding spaces that are not part of the generation prompt:

    placeholders   <s>[INST] Hi [/INST] A0 </s><s>[INST] Why? [/INST] A1 </s>
    answers        <s>[INST] Hi [/INST] Hello. </s><s>[INST] Why? [/INST] Because. </s>
    mask                               ~~~~~~~~~~~~                      ~~~~~~~~~~~~~

Tokens are matched to characters by the tokenizer's offsets.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

MARK = re.compile(r"\{%-?\s*generation\b")


@dataclasses.dataclass(frozen=True)
class Example:
    """One conversation: token ids, and which of them the assistant produced (with the end-of-turn token)."""

    tokens: Int[np.ndarray, " n"]
    answer: Bool[np.ndarray, " n"]


def tokenize(conversation: Sequence[dict[str, str]], tokenizer: Any) -> Example:
    """Applies the chat template and marks the tokens that the assistant produced.

    Raises:
        ValueError: the tokenizer has no chat template or no offsets, or the template rejects the conversation or
            changes an answer.
    """
    if not tokenizer.chat_template:
        raise ValueError("the target's tokenizer has no chat template; name a file with one as data.chat_template")
    return (
        _by_marks(conversation, tokenizer)
        if MARK.search(tokenizer.get_chat_template())  # the default template, if there are several
        else _by_offsets(conversation, tokenizer)
    )


def _by_marks(conversation: Sequence[dict[str, str]], tokenizer: Any) -> Example:
    encoded = _render(conversation, tokenizer, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    answer = np.asarray(encoded["assistant_masks"], bool)
    if not answer.any():
        raise ValueError(
            "the chat template marks no token as the assistant's: "
            "put {% generation %} ... {% endgeneration %} around its text, or remove the marks"
        )
    return Example(np.asarray(encoded["input_ids"], np.int32), answer)


def _by_offsets(conversation: Sequence[dict[str, str]], tokenizer: Any) -> Example:
    if not tokenizer.is_fast:
        raise ValueError("the tokenizer gives no offsets; expected a fast tokenizer (tokenizer.json)")
    text = _render(conversation, tokenizer, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = np.asarray(encoded["input_ids"], np.int32)
    starts, ends = np.asarray(encoded["offset_mapping"], np.int32).reshape(-1, 2).T
    special = np.isin(tokens, list(tokenizer.all_special_ids))
    answer = np.zeros(len(tokens), bool)
    for first, last in answers(conversation, text, tokenizer):
        answer |= (starts < last) & (ends > first)
        answer |= _turn_end(text, last, starts, ends, special)
    return Example(tokens, answer)


def answers(conversation: Sequence[dict[str, str]], text: str, tokenizer: Any) -> list[tuple[int, int]]:
    """Returns the first and last character (exclusive) of each answer in the rendered `text`."""
    prompt = _generation_prompt(conversation, tokenizer)
    assistant_texts = [message["content"] for message in conversation if message["role"] == "assistant"]
    placeholders = iter([f"\x02{number}\x03" for number in range(len(assistant_texts))])
    with_placeholders = [dict(m, content=next(placeholders)) if m["role"] == "assistant" else m for m in conversation]
    between = re.split("\x02\\d+\x03", _render(with_placeholders, tokenizer, tokenize=False))
    spans, position = [], 0
    for content, before, after in zip(assistant_texts, between, between[1:]):
        position += len(before)
        variants = (content, content.strip(), content.rstrip(), content.lstrip())
        rendered = next((form for form in variants if text.startswith(form + after, position)), None)
        if rendered is None:
            raise ValueError("the chat template changes the text of an answer")
        spacing = before.rpartition(prompt)[2] if prompt else before[len(before.rstrip()) :]
        spaces = 0 if spacing.strip() else len(spacing)
        spans.append((position - spaces, position + len(rendered)))
        position += len(rendered)
    return spans


def _generation_prompt(conversation: Sequence[dict[str, str]], tokenizer: Any) -> str:
    """Returns the text that the template puts before an answer."""
    first = next(i for i, message in enumerate(conversation) if message["role"] == "assistant")
    rendered, prompted = (
        _render(conversation[:first], tokenizer, tokenize=False, add_generation_prompt=add_prompt)
        for add_prompt in (False, True)
    )
    return prompted.removeprefix(rendered)


def _turn_end(
    text: str,
    last: int,
    starts: Int[np.ndarray, " n"],
    ends: Int[np.ndarray, " n"],
    special: Bool[np.ndarray, " n"],
) -> Bool[np.ndarray, " n"]:
    """Returns the mask of the end-of-turn token after an answer, with spaces before it."""
    word = last + len(text[last:]) - len(text[last:].lstrip())
    end = np.flatnonzero(special & (starts == word) & (ends > starts))[:1]
    return (starts >= last) & (ends <= ends[end]) if len(end) else np.zeros(len(starts), bool)


def _render(conversation: Sequence[dict[str, str]], tokenizer: Any, **options: Any) -> Any:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(list(conversation), **options)
    except TemplateError as error:
        raise ValueError(f"the chat template rejects it: {error}") from None
