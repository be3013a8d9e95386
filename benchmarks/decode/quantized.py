"""What do quantized weights save, and what do they change: logits, mean acceptance length, speed?

Logits are compared on prompts and the float model's greedy answers: root mean square of the difference over that of the
centred float logits, Kullback-Leibler divergence from the float model's distribution, and how often the likeliest token
is the same. Mean acceptance length and speed are those of greedy answers, drafted in EAGLE-1's tree; the texts of each
quantized target are compared with its own plain decoding.

    python -m benchmarks.decode.quantized --questions QUESTIONS.jsonl
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import eagle_jax
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.tables import show
from benchmarks.common.turns import Timed, in_turns, ours
from benchmarks.decode.step import weight_bytes
from eagle_jax.api import with_head

# What the target is quantized to, and the head.
CASES = (
    (None, None),
    ("int8", "int8"),
    ("int4", "int4"),
    ("int4-128", "int4-128"),
    ("int8", None),
    ("int4", None),
    (None, "int8"),
    (None, "int4"),
)
COLUMNS = ("target", "head", "weights, MB", "logit error", "KL, nats", "same likeliest token", "mean acceptance length")
COLUMNS += ("of float", "plain speed, of float", "EAGLE speed, of float", "same text as its plain")


def main() -> None:
    arguments = parser(__doc__, new_tokens=96)
    arguments.add_argument("--dtype", help="float32 or bfloat16; as stored by default")
    arguments.add_argument("--schemes", nargs="*", help="quantize target and head to these instead, such as int4/int4")
    options = arguments.parse_args()
    head = options.head or ("eagle1" if options.target is None else None)
    cases = CASES if options.schemes is None else ((None, None), *((one, one) for one in options.schemes))
    rows: list[tuple[object, ...]] = []
    for target, draft in cases:
        model = eagle_jax.load(options.target, head, dtype=options.dtype, quantize=target)
        if draft != target:
            model = with_head(model, head, quantize=draft)
        if not rows:
            asked = prompts(model, options.questions, options.limit or 16, options.new_tokens)
        timed = measured(model, asked, options)
        if not rows:
            floats = timed
            texts = [prompt + answer for prompt, answer in zip(asked, timed["plain"].texts, strict=True)]
            expected = logits(model, texts)
        size = weight_bytes((model.target.params, model.head.params), embedding=True)
        speeds = (timed[name].speed() / floats[name].speed() for name in timed)
        length, of_float = timed["EAGLE"].accepted, timed["EAGLE"].accepted / floats["EAGLE"].accepted
        same = timed["plain"].texts == timed["EAGLE"].texts
        changes = differences(logits(model, texts), expected)
        rows.append((target or "float", draft or "float", size / 1e6, *changes, length, of_float, *speeds, same))
    show(f"{len(asked)} questions, {model.dtype}", COLUMNS, rows)


def measured(model: eagle_jax.Model, asked: list[list[int]], options: argparse.Namespace) -> dict[str, Timed]:
    drafters = {"plain": ("none", "auto"), "EAGLE": ("eagle", "eagle1")}
    methods = {name: ours(model, options.new_tokens, *how, until_end=True) for name, how in drafters.items()}
    return in_turns(methods, asked, 1)


def differences(made: np.ndarray, exact: np.ndarray) -> tuple[str, str, str]:
    """Logit error, divergence, and how often the likeliest token is the same, from logits `[n, v]`."""
    off, centred = made - exact, exact - exact.mean(-1, keepdims=True)
    logs = [np.asarray(jax.nn.log_softmax(of, axis=-1)) for of in (exact, made)]
    error = np.sqrt((off - off.mean(-1, keepdims=True)).var() / centred.var())
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean()
    return f"{error:.2%}", f"{divergence:.1e}", f"{(exact.argmax(-1) == made.argmax(-1)).mean():.1%}"


_logits = jax.jit(lambda lm, tokens: lm(tokens)[1])


def logits(model: eagle_jax.Model, texts: list[list[int]]) -> np.ndarray:
    """Logits `[n, v]` behind every token of all texts, each padded to the longest."""
    size = max(map(len, texts))
    rows = [_logits(model.target, jnp.asarray([text + [0] * (size - len(text))]))[0, : len(text)] for text in texts]
    return np.concatenate([np.asarray(row) for row in rows])


if __name__ == "__main__":
    begin(main)
