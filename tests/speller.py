"""Two tiny models over one real byte-level tokenizer, so that one set of compiled programs serves both.

SPELLER ignores everything but the last token and spells a known text, so every answer can be written down beforehand.
RANDOM depends on all it has read, never stops by itself, and talks in bytes that are mostly no UTF-8.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eagle_jax.api import Model
from eagle_jax.models.lm import LM
from eagle_jax.testing import TINY, synthetic_pair

# No token occurs twice in it: bytes, the two first bytes of the emoji as one token, and "th".
SPELLED = "abcdefg😀hijk€lmnopq\nrsthuvw한xyz."
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] != 'user' and m['role'] != 'assistant' %}"
    "{{ raise_exception('Only user and assistant may speak, not ' + m['role'] + '!') }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
CONFIG = dataclasses.replace(TINY, vocab_size=272, max_position_embeddings=56)  # the last ids have no token


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("t", "h"), ("ð", "Ł")]
    vocabulary |= {left + right: len(vocabulary) + i for i, (left, right) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE)


TOKENIZER = make_tokenizer()
END, _, ASSISTANT = TOKENIZER.convert_tokens_to_ids(SPECIAL)
SCRIPT: list[int] = TOKENIZER(SPELLED)["input_ids"] + [END]


def make_speller() -> Model:
    """The target's layers add nothing, and its output matrix has each token's embedding in the next token's column."""
    target, head = synthetic_pair(CONFIG, strength=0.0, error=0.15)
    rest = [token for token in range(CONFIG.vocab_size) if token not in (*SCRIPT, ASSISTANT)]
    follower = dict(zip(rest, [*rest[1:], rest[0]], strict=True))
    follower |= dict(zip([ASSISTANT, *SCRIPT], [*SCRIPT, ASSISTANT], strict=True))

    embedding = target.params["embed_tokens"]["embedding"]
    directions = embedding / jnp.linalg.norm(embedding, axis=1, keepdims=True)
    before = jnp.array(sorted(follower, key=follower.__getitem__))
    params = target.params | {"lm_head": {"weight": 8.0 * directions[before]}}
    return Model(LM(params=params, config=CONFIG), head, TOKENIZER, stop_ids=(END,), context=56)


def make_random() -> Model:
    target, head = synthetic_pair(CONFIG, seed=2, strength=0.6, error=0.15)
    return Model(target, head, TOKENIZER, stop_ids=(), context=56)


SPELLER, RANDOM = make_speller(), make_random()

# Every way to draft in these tests; what is not about drafting uses the dynamic tree.
DYNAMIC = {"tree": (8, 2, 2)}
DRAFTING = {"none": {"drafter": "none"}, "auto": {}, "dynamic": DYNAMIC, "own tree": {"tree": [-1, 0, 0, 1, 3]}}


@jax.jit
def _next_logits(target: LM, tokens: jax.Array, length: jax.Array) -> jax.Array:
    hidden = jax.lax.dynamic_slice_in_dim(target(tokens)[0], length - 1, 1, axis=1)
    return target.logits(hidden)[0, 0]


def next_logits(model: Model, text: Sequence[int]) -> np.ndarray:
    """The target's logits after a text, in one forward pass without a cache; padding makes it one program for all."""
    tokens = jnp.asarray([[*text, *[0] * (-len(text) % 64)]], jnp.int32)
    return np.asarray(_next_logits(model.target, tokens, jnp.int32(len(text))))


def asked(text: str) -> list[dict[str, str]]:
    """A chat; SPELLER answers with SPELLED, however it begins."""
    return [{"role": "user", "content": text}]


def spelled_from(last: str, tokens: int) -> list[int]:
    """What SPELLER says after a prompt that ends with the token `last`."""
    start = SCRIPT.index(TOKENIZER(last)["input_ids"][-1]) + 1
    return SCRIPT[start : start + tokens]


assert len(set(SCRIPT)) == len(SCRIPT)
