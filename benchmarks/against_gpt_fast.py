"""How fast is plain decoding beside gpt-fast's, and EAGLE beside both: same weights, same prompts, batch 1, greedy?

The target (the shipped one, one that is named, or a synthetic one of a published shape) is written as HuggingFace has
it, gpt-fast's own scripts make its file of it, and gpt-fast runs from a checkout in a process of its own, its decoding
step compiled by PyTorch. Both take turns prompt by prompt. gpt-fast has no EAGLE; ours stands beside its plain
decoding.
"""

import argparse
import json
from collections.abc import Mapping

from common import begin
from peer import Compared, Worker, arguments, compared, folder_for, write_target
from turns import Timed, in_turns, ours, ratios

from eagle_jax.config import LlamaConfig

NEEDS = """The checkout is one of https://github.com/meta-pytorch/gpt-fast. Its code needs PyTorch 2.4 or newer with a
C++ compiler or a GPU (or --eager), and safetensors; give a Python that has them as --python."""

THEIRS, PLAIN, OURS = "gpt-fast", "eagle_jax plain", "eagle_jax EAGLE"


def main() -> None:
    known = arguments(__doc__.splitlines()[0], NEEDS)
    known.add_argument("--eager", action="store_true", help="leave its decoding step uncompiled")
    known.add_argument("--int8", action="store_true", help="round its weights to 8 bits by its own script, too")
    options = known.parse_args()
    try:
        timed = measured(compared(options), options)
    except (RuntimeError, ValueError, FileNotFoundError) as error:
        raise SystemExit(str(error)) from error
    print(ratios(timed, {"against gpt-fast": THEIRS, "against ours, plain": PLAIN}))


def measured(both: Compared, options: argparse.Namespace) -> Mapping[str, Timed]:
    """Theirs and ours, in turns.

    Raises:
        RuntimeError: gpt-fast did not run.
        ValueError: it has no model of this kind.
    """
    new, sizes = options.new_tokens, json.dumps(described(both.target.config))
    how = "eager" if options.eager else "compile"
    with folder_for(options) as folder:
        write_target(both.target, folder / "target")
        given = (options, "gpt_fast.py", folder / "target", sizes, options.dtype, how)
        workers = {THEIRS: Worker(*given, "float")}
        try:
            if options.int8:
                workers[f"{THEIRS}, int8"] = Worker(*given, "int8")
            methods = {name: worker.method("plain", new) for name, worker in workers.items()}
            methods[PLAIN] = ours(both.model, new, "none")
            methods[OURS] = ours(both.model, new, "eagle")
            return in_turns(methods, both.asked, options.repeats)
        finally:
            for worker in workers.values():
                worker.close()


def described(config: LlamaConfig) -> dict[str, object]:
    """The dimensions as gpt-fast calls them.

    Raises:
        ValueError: it cannot say so.
    """
    if config.head_dim * config.num_attention_heads != config.hidden_size or config.rope.kind != "default":
        raise ValueError(
            f"gpt-fast knows heads of hidden_size / heads and plain rotary positions; the target has head_dim "
            f"{config.head_dim} and rope {config.rope.kind!r}, so choose another"
        )
    return {
        "block_size": config.max_position_embeddings,
        "vocab_size": config.vocab_size,
        "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads,
        "n_local_heads": config.num_key_value_heads,
        "dim": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "rope_base": config.rope.theta,
        "norm_eps": config.rms_norm_eps,
    }


if __name__ == "__main__":
    begin(main)
