"""Is a small model decoded faster by one CPU thread or by all of them, and from which size on by all?

Decodes random models of several sizes, plainly and checking four nodes a pass (prompt lookup), each size and number of
threads in a process of its own, and prints the least time of a pass. `platform.ONE_THREAD_BELOW` was chosen by it.

    python benchmarks/threads.py
"""

import argparse
import json
import os
import subprocess
import sys

from common import table

SIZES = {"256 x 8": (256, 8), "320 x 8": (320, 8), "384 x 8": (384, 8), "512 x 8": (512, 8), "768 x 8": (768, 8)}
PROMPT, TOKENS, RUNS = list(range(40)), 48, 5


def measure(width: int, layers: int) -> dict[str, float]:
    """MB of weights, and milliseconds of a pass in this process: over one token, and over four nodes."""
    import jax
    import jax.numpy as jnp

    import eagle_jax
    from eagle_jax.config import LlamaConfig, Rope
    from eagle_jax.drafters.prompt_lookup import PromptLookup
    from eagle_jax.models import layout
    from eagle_jax.models.lm import LM

    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        head_dim=64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope=Rope(theta=10000.0),
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
    )
    lm = LM.init(config, jax.random.key(0), jnp.bfloat16)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(lm.params))
    ready = LM(params=layout.for_decoding(lm.params, config.head_dim), config=config)
    model = eagle_jax.Model(target=ready, head=None, tokenizer=None, stop_ids=(), context=1024)
    found = {"MB": weights / 1e6}
    for name, drafter in (("one", "none"), ("four", PromptLookup(copied=3))):
        runs = [eagle_jax.generate(model, PROMPT, max_new_tokens=TOKENS, drafter=drafter) for _ in range(RUNS)]
        found[name] = min(1e3 * run.stats.decode_seconds / run.stats.cycles for run in runs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, help=argparse.SUPPRESS)  # what a process of its own measures
    size = parser.parse_args().size
    if size is not None:
        print(json.dumps(measure(*SIZES[size])))
        return
    cores, lines = str(os.cpu_count()), []
    for size in SIZES:
        found = {}
        for threads in ("1", cores):
            command = [sys.executable, __file__, "--size", size]
            ran = subprocess.run(command, env=os.environ | {"PJRT_NPROC": threads}, stdout=subprocess.PIPE, check=True)
            found[threads] = json.loads(ran.stdout)
        times = (f"{found[threads][nodes]:.2f} ms" for nodes in ("one", "four") for threads in ("1", cores))
        lines.append([f"{found['1']['MB']:.0f} MB", *times])
    header = [f"{nodes}, {threads} threads" for nodes in ("one token", "four nodes") for threads in ("1", cores)]
    print(table(["bfloat16 weights", *header], lines))


if __name__ == "__main__":
    main()
