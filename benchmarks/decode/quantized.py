"""What do quantized weights save, and what do they change: logits, mean acceptance length, texts?

Logits are compared on prompts and the float model's greedy answers: root mean square of the difference over that of the
centred float logits, Kullback-Leibler divergence from the float model's distribution, and how often the likeliest token
is the same. The mean acceptance length is that of greedy answers, drafted in EAGLE-1's tree; each target's texts are
compared with its own plain decoding. Speed: `decode.speedup --quantize`.

    python -m benchmarks.decode.quantized --questions QUESTIONS.jsonl
"""

import jax
import jax.numpy as jnp
import numpy as np

import eagle_jax
from benchmarks.common.command import begin, parser, prompts
from benchmarks.common.tables import show
from benchmarks.decode.acceptance import mean_length
from eagle_jax.api import with_head

KEPT = "kept"  # what the files hold
# What the target is quantized to, and the head; the first are floats.
CASES = (("none", "none"), ("int8", "int8"), ("int4", "int4"), ("int4-128", "int4-128"))
CASES += (("int8", "none"), ("int4", "none"), ("none", "int8"), ("none", "int4"))
COLUMNS = ("target", "head", "weights, MB", "logit error", "KL, nats", "same likeliest token", "mean acceptance length")
COLUMNS += ("same text as its plain",)


def main() -> None:
    arguments = parser(__doc__, new_tokens=96)
    arguments.add_argument("--dtype", help="float32 or bfloat16; as stored by default")
    arguments.add_argument(
        "--schemes",
        nargs="*",
        help="quantize target and head to these instead, such as int4/int4, or kept: what the files hold",
    )
    options = arguments.parse_args()
    head = options.head or options.target or "eagle1"  # a pair's name is its head's too
    cases = CASES if options.schemes is None else (CASES[0], *((one, one) for one in options.schemes))
    rows: list[tuple[object, ...]] = []
    for target, draft in cases:
        model = eagle_jax.load(options.target, head, dtype=options.dtype, quantize=None if target == KEPT else target)
        if draft != target:
            model = with_head(model, head, quantize=draft)
        if not rows:
            asked = prompts(model, options.questions, options.limit or 16, options.new_tokens, options.every)
        how = dict(max_new_tokens=options.new_tokens, batch_size=1)
        plain, drafted = (
            eagle_jax.generate(model, asked, drafter=drafter, tree="eagle1", **how) for drafter in ("none", "eagle")
        )
        same = [result.token_ids for result in plain] == [result.token_ids for result in drafted]
        if not rows:
            texts = [prompt + result.token_ids for prompt, result in zip(asked, plain, strict=True)]
            expected = logits(model, texts)
        leaves = jax.tree.leaves((model.target.params, model.head.params))
        size = sum(leaf.size * jax.dtypes.itemsize_bits(leaf.dtype) / 8 for leaf in leaves)
        changes = differences(logits(model, texts), expected)
        rows.append((target, draft, f"{size / 1e6:.1f}", *changes, mean_length(drafted), same))
    show(f"{len(asked)} questions, {model.dtype}", COLUMNS, rows)


def differences(rounded: np.ndarray, exact: np.ndarray) -> tuple[str, str, str]:
    """Logit error, divergence, and how often the likeliest token is the same, from logits `[n, v]`."""
    off, centred = rounded - exact, exact - exact.mean(-1, keepdims=True)
    logs = [np.asarray(jax.nn.log_softmax(of, axis=-1)) for of in (exact, rounded)]
    error = np.sqrt((off - off.mean(-1, keepdims=True)).var() / centred.var())
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean()
    return f"{error:.2%}", f"{divergence:.1e}", f"{(exact.argmax(-1) == rounded.argmax(-1)).mean():.1%}"


_logits = jax.jit(lambda lm, tokens: lm(tokens)[1])


def logits(model: eagle_jax.Model, texts: list[list[int]]) -> np.ndarray:
    """Logits `[n, v]` behind every token of all texts, each padded to the longest."""
    size = max(map(len, texts))
    rows = [_logits(model.target, jnp.asarray([text + [0] * (size - len(text))]))[0, : len(text)] for text in texts]
    return np.concatenate([np.asarray(row) for row in rows])


if __name__ == "__main__":
    begin(main)
