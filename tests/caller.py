"""Tiny models that say scripts, each token followed by the next one; CALLER's answers call functions."""

import dataclasses

import jax.numpy as jnp
from speller import CONFIG, END, SPELLER, make_tokenizer
from tokenizers import AddedToken

from eagle_jax.api import Model
from eagle_jax.models.lm import LM

# Hermes' format in a comment; what begins the answer chooses a script. Tools show as their number.
TEMPLATE = (
    "{# <tool_call> #}{{ tools | length if tools }}{% for m in messages %}<|user|>{{ m['name'] }}{{ m['content'] }}"
    "{% for c in m['tool_calls'] %}{{ c['function']['arguments']['at'] }}{% endfor %}{% endfor %}"
    "<|assistant|>{{ script }}"
)
PIECES = {
    "<|assistant|>": [
        "Let me",
        " see.\n",
        '<tool_call>\n{"name": "look", ',
        '"arguments": {"at": "sea"}}',
        "\n</tool_call>",
    ],
    "a": ['<tool_call>{"name": "shout"}', "</tool_call> ok"],
    "b": ["[TOOL_CALLS]", '[{"name": "look", "arguments": {}}, ', '{"name": "look"}]'],
}
ROOM = 128  # tokens: a call that is spelled in bytes is long
SPECIAL = ["[TOOL_CALLS]"]


def scripted(template: str, scripts: dict[str, list[str]], special: list[str]) -> Model:
    """A model that says a script after the token that it is named for; no token may occur twice."""
    tokenizer = make_tokenizer()
    new = [piece for pieces in scripts.values() for piece in pieces]
    tokenizer.add_tokens([AddedToken(piece, special=piece in special, normalized=False) for piece in new])
    tokenizer.chat_template = template

    target = SPELLER.target
    embedding = target.params["embed_tokens"]["embedding"]
    directions = embedding / jnp.linalg.norm(embedding, axis=1, keepdims=True)
    matrix = jnp.zeros_like(embedding)
    for begin, pieces in scripts.items():
        script = [*tokenizer.convert_tokens_to_ids([begin, *pieces]), END]
        matrix = matrix.at[jnp.array(script[1:])].add(8.0 * directions[jnp.array(script[:-1])])
    assert len(tokenizer) <= CONFIG.vocab_size
    config = dataclasses.replace(CONFIG, max_position_embeddings=ROOM)
    model = LM(params=target.params | {"lm_head": {"weight": matrix}}, config=config)
    return dataclasses.replace(SPELLER, target=model, tokenizer=tokenizer, context=ROOM)


CALLER = scripted(TEMPLATE, PIECES, SPECIAL)
