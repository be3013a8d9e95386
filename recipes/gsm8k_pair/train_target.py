"""Trains the pair's target, a small Llama, and writes it as an ordinary Hugging Face folder.

python recipes/gsm8k_pair/train_target.py --run runs/gsm8k_pair --out eagle_jax/pair/target
"""

import argparse
import functools
import itertools
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers

import eagle_jax  # noqa: F401  (sets XLA flags before JAX starts)
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.converters import save_target
from eagle_jax.models.lm import LM
from eagle_jax.training import data, optimizer
from eagle_jax.training.settings import OptimizerConfig

SHAPE = LlamaConfig(
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    max_position_embeddings=1024,
    rms_norm_eps=1e-5,
    rope=Rope(theta=10000.0),
    tie_word_embeddings=True,
)
UPDATES, BATCH, LENGTH = 1000, 8, 512
RULE = OptimizerConfig(
    name="muon", rate=5e-3, weight_decay=0.1, warmup=20, decay="cosine", final=0.02, clip="norm", clip_at=1.0
)
QUESTION_WEIGHT = 0.5  # of a question's token in the loss; an answer's token counts 1


def losses(target: LM, tokens: jax.Array) -> jax.Array:
    """Cross entropy of each token given those before it, in nats, `[b, n - 1]`."""
    logits = target.logits(target(tokens)[0])[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])


@functools.partial(jax.jit, static_argnames="rule", donate_argnames=("target", "state"))
def update(target: LM, state: optax.OptState, tokens, answer, filled, rule: optax.GradientTransformation):
    """One update: the new target, the new state of the optimizer, and the weighted loss per token."""

    def loss(target: LM) -> jax.Array:
        weight = jnp.where(answer, 1.0, QUESTION_WEIGHT)[:, 1:] * filled[:, 1:]
        return jnp.sum(losses(target, tokens) * weight) / jnp.sum(weight)

    value, gradients = jax.value_and_grad(loss)(target)
    changes, state = rule.update(gradients.params, state, target.params)
    return LM(params=optax.apply_updates(target.params, changes), config=target.config), state, value


@jax.jit
def answer_loss(target: LM, tokens, answer, filled) -> jax.Array:
    """(Summed loss, count) of the tokens of answers."""
    counted = answer[:, 1:] & filled[:, 1:]
    return jnp.stack([jnp.sum(losses(target, tokens) * counted), jnp.sum(counted)])


def batches(examples: list[data.Example], bos: int) -> Iterator[data.Rows]:
    """Batches for ever; every epoch packs anew."""
    for epoch in itertools.count():
        yield from data.pack(examples, LENGTH, seed=epoch, bos=bos).batches(BATCH, seed=epoch)


def train(training: list[data.Example], held_out: list[data.Example], bos: int, updates: int) -> LM:
    """A target trained from nothing; prints its progress and its loss on held-out answers."""
    target = LM.init(SHAPE, jax.random.key(0), jnp.dtype("float32"))
    rule = optimizer.make(RULE, updates)
    state, unseen = rule.init(target.params), data.pack(held_out, LENGTH, seed=0, bos=bos)
    start, tokens = time.monotonic(), 0
    for i, rows in enumerate(itertools.islice(batches(training, bos), updates), start=1):
        target, state, loss = update(target, state, rows.tokens, rows.answer, rows.filled, rule)
        tokens += int(rows.filled.sum())
        if i % 20 == 0 or i == updates:
            speed = tokens / (time.monotonic() - start)
            print(f"update {i}/{updates}  loss {float(loss):.3f}  {speed:,.0f} tokens/s", flush=True)
        if i % 200 == 0 or i == updates:
            sums = [answer_loss(target, r.tokens, r.answer, r.filled) for r in unseen.batches(BATCH, seed=0)]
            total, count = np.sum(sums, axis=0)
            print(f"held out: {total / count:.3f} nats per answer token after {tokens:,} tokens", flush=True)
    return target


def export(target: LM, tokenizer: Any, folder: pathlib.Path) -> None:
    """Writes `folder`: bfloat16 weights, config, tokenizer and chat template; files that are there are replaced."""
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    rounded = jax.tree.map(lambda p: p.astype(jnp.bfloat16), target)
    save_target(rounded, folder, extra=special)
    write_json(folder / "generation_config.json", special)
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    for machine_dependent in ("is_local", "local_files_only", "backend"):
        settings.pop(machine_dependent, None)
    write_json(folder / "tokenizer_config.json", settings | {"tokenizer_class": "PreTrainedTokenizerFast"})
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes files that only their owner reads


def write_json(path: pathlib.Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def examples(path: pathlib.Path, tokenizer: Any) -> list[data.Example]:
    """The tokenized conversations of a file that prepare.py wrote."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [data.tokenize(json.loads(line)["messages"], tokenizer) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the pair's target.")
    parser.add_argument("--run", type=pathlib.Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write the target to")
    parser.add_argument("--updates", type=int, default=UPDATES, help="updates of the optimizer")
    args = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.run / "tokenizer")
    parts = [examples(args.run / f"{name}.jsonl", tokenizer) for name in ("training", "held_out")]
    target = train(*parts, tokenizer.bos_token_id, args.updates)
    export(target, tokenizer, args.out)
    size = sum(file.stat().st_size for file in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
