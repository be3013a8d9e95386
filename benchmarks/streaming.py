"""What does it cost to look at an answer while it is being made, and does it hang on the vocabulary?

Streams random models whose tables of tokens differ in size, with a look after every pass, every fourth and every 32nd.
Prints the least time of a token, the prompt's reading included.

    python benchmarks/streaming.py
"""

import argparse
import time

import jax
import jax.numpy as jnp
from common import table

import eagle_jax
from eagle_jax.config import LlamaConfig, Rope
from eagle_jax.models import layout
from eagle_jax.models.lm import LM

VOCABULARIES, LOOKS = (2048, 32000, 128256), (1, 4, 32)
PROMPT, TOKENS, RUNS = list(range(20)), 33, 4


def model(vocab_size: int, dtype: str) -> eagle_jax.Model:
    """Four layers; input and output tables are two."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope=Rope(theta=10000.0),
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=False,
    )
    params = layout.for_decoding(LM.init(config, jax.random.key(0), jnp.dtype(dtype)).params, config.head_dim)
    target = LM(params=params, config=config)
    return eagle_jax.Model(target=target, head=None, tokenizer=None, stop_ids=(), context=1024)


def milliseconds(streamed: eagle_jax.Model, cycles: int) -> float:
    """A token takes so long."""
    took = []
    for _ in range(RUNS):
        start = time.perf_counter()
        list(eagle_jax.stream(streamed, PROMPT, max_new_tokens=TOKENS, drafter="none", cycles=cycles))
        took.append(time.perf_counter() - start)
    return 1e3 * min(took) / TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    lines = []
    for size in VOCABULARIES:
        streamed = model(size, options.dtype)
        lines.append([f"{size:,}", *(f"{milliseconds(streamed, cycles):.2f} ms" for cycles in LOOKS)])
    header = [f"a look every {cycles} passes" if cycles > 1 else "a look every pass" for cycles in LOOKS]
    print(table(["tokens", *header], lines))


if __name__ == "__main__":
    main()
