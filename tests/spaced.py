"""A tiny model over a tokenizer like Llama 2's, whose decoder drops the space before a text's first word."""

import dataclasses

from sentencepiece_like import LLAMA2
from speller import RANDOM
from transformers import PreTrainedTokenizerFast

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ '[' + m['role'][:1] + '] ' + m['content'] }}{% endfor %}"
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=LLAMA2.backend_tokenizer, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
)
SPACED = dataclasses.replace(RANDOM, tokenizer=TOKENIZER, stop_ids=(2,))
EMOJI = TOKENIZER.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in "😀".encode()])
WORDS = [*TOKENIZER.convert_tokens_to_ids(["▁", "a", "b", "é", "▁a", "ab"]), *EMOJI]  # the rest is broken bytes
BOS = 1


def plain(token_ids: list[int]) -> str:
    """Transformers' own text."""
    return TOKENIZER.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def added(prompt: list[int], answer: list[int]) -> str:
    """What transformers says that an answer adds to its prompt."""
    return plain(prompt + answer)[len(plain(prompt)) :]
