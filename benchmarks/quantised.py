"""What do rounded weights save, and what do they change: logits, accepted length, speed?

Logits are compared on prompts and the float model's greedy answers: root mean square of the difference over that of the
centred float logits, Kullback-Leibler divergence from the float model's distribution, and how often the likeliest token
is the same. Accepted length and speed are those of greedy answers, drafted in EAGLE-1's tree; each rounded target's are
held against its own plain decoding, token by token. `--untie` gives a model with tied embeddings an output matrix of
its own, which is rounded too.
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import begin, parser, prompts, table

import eagle_jax
from eagle_jax.api import with_head
from eagle_jax.loading.folders import SHIPPED_HEADS
from eagle_jax.models import layout
from eagle_jax.models.lm import LM
from eagle_jax.models.quant import flat, quantise_params, scheme_of
from eagle_jax.ops.quantized import QuantArray

# What the target is rounded to, and what the head.
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


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], new_tokens=96)
    arguments.add_argument("--dtype", default=None, help="float32 or bfloat16; as stored by default")
    arguments.add_argument("--schemes", nargs="*", help="round target and head to these instead, such as int4/int4")
    arguments.add_argument("--untie", action="store_true", help="an output matrix of its own for tied embeddings")
    options = arguments.parse_args()
    cases = CASES if options.schemes is None else ((None, None), *((one, one) for one in options.schemes))
    head = options.head or SHIPPED_HEADS["eagle1"]
    exact = eagle_jax.load(options.target, head, dtype=options.dtype)
    asked = prompts(exact, options.questions, options.limit or 16, options.new_tokens)

    print(table(("target", "head", *HEADINGS), []), flush=True)
    baseline: Measured | None = None
    for target, draft in cases:
        model = loaded(exact, options, head, target, draft)
        if baseline is None:
            written = plain_answers(model, asked, options)
            texts = [prompt + answer for prompt, answer in zip(asked, written, strict=True)]
            wanted = logits(model.target, texts)
        found = measure(model, asked, options, texts, wanted)
        baseline = found if baseline is None else baseline
        print("| " + " | ".join((name_of(target), name_of(draft), *found.cells(baseline))) + " |", flush=True)


HEADINGS = (
    "weights",
    "logit error",
    "KL, nats",
    "same likeliest",
    "tokens a pass",
    "of float",
    "plain speed, of float",
    "EAGLE speed, of float",
    "same text as its plain",
)


@dataclasses.dataclass(frozen=True)
class Measured:
    """One case: bytes of all weights, differences from the float target, tokens a pass, tokens a second."""

    size: float
    error: float
    divergence: float
    agreement: float
    length: float
    plain: float
    speculative: float
    same: bool

    def cells(self, baseline: "Measured") -> tuple[str, ...]:
        return (
            f"{self.size / 1e6:.1f} MB",
            f"{self.error:.2%}",
            f"{self.divergence:.1e}",
            f"{self.agreement:.1%}",
            f"{self.length:.2f}",
            f"{self.length / baseline.length:.1%}",
            f"{self.plain / baseline.plain:.2f}",
            f"{self.speculative / baseline.speculative:.2f}",
            "yes" if self.same else "NO",
        )


def loaded(exact: eagle_jax.Model, options: Any, head: Any, target: str | None, draft: str | None) -> eagle_jax.Model:
    """The pair, target and head rounded on their own."""
    if not options.untie:
        model = eagle_jax.load(options.target, head, dtype=options.dtype, quantize=target)
        return model if draft == target else with_head(model, head, quantize=draft)
    stored = layout.as_stored(exact.target.params)
    params = stored | {"lm_head": {"weight": stored["embed_tokens"]["embedding"]}}
    if (scheme := scheme_of(target)) is not None:
        params = quantise_params(jax.tree.map(lambda leaf: leaf, params), scheme)
    config = dataclasses.replace(exact.target.config, tie_word_embeddings=False)
    lm = LM(params=layout.for_decoding(params, config.head_dim), config=config)
    return with_head(dataclasses.replace(exact, target=lm), head, quantize=draft)


def measure(
    model: eagle_jax.Model, asked: list[list[int]], options: Any, texts: list[list[int]], exact: np.ndarray
) -> Measured:
    plain = plain_answers(model, asked, options)
    started = time.perf_counter()
    again = plain_answers(model, asked, options)
    plain_seconds = time.perf_counter() - started
    speculative = answers(model, asked, options, "eagle")
    started = time.perf_counter()
    speculative = answers(model, asked, options, "eagle")
    seconds = time.perf_counter() - started
    tokens = sum(map(len, plain))
    cycles = sum(result.stats.cycles for result in speculative)
    committed = sum(result.stats.mean_accepted_length * result.stats.cycles for result in speculative)
    made = logits(model.target, texts)
    off, centred = made - exact, exact - exact.mean(-1, keepdims=True)
    logs = [np.asarray(jax.nn.log_softmax(of, axis=-1)) for of in (exact, made)]
    return Measured(
        size=sum(held(leaf) for params in (model.target.params, model.head.params) for _, leaf in flat(params)),
        error=float(np.sqrt((off - off.mean(-1, keepdims=True)).var() / centred.var())),
        divergence=float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1).mean()),
        agreement=float((exact.argmax(-1) == made.argmax(-1)).mean()),
        length=committed / cycles,
        plain=tokens / plain_seconds,
        speculative=sum(len(result.token_ids) for result in speculative) / seconds,
        same=plain == again == [result.token_ids for result in speculative],
    )


def plain_answers(model: eagle_jax.Model, asked: list[list[int]], options: Any) -> list[list[int]]:
    return [result.token_ids for result in answers(model, asked, options, "none")]


def answers(model: eagle_jax.Model, asked: list[list[int]], options: Any, drafter: str) -> list[eagle_jax.Result]:
    """Greedy answers, one request at a time."""
    return [
        eagle_jax.generate(model, prompt, max_new_tokens=options.new_tokens, drafter=drafter, tree="eagle1")
        for prompt in asked
    ]


_logits = jax.jit(lambda lm, tokens: lm(tokens)[1])


def logits(lm: LM, texts: list[list[int]]) -> np.ndarray:
    """Logits `[n, v]` behind every token of all texts, each padded to the longest."""
    size = max(map(len, texts))
    rows = [_logits(lm, jnp.asarray([text + [0] * (size - len(text))]))[0, : len(text)] for text in texts]
    return np.concatenate([np.asarray(row) for row in rows])


def held(leaf: Any) -> float:
    """Bytes of a parameter, where half bytes are held as such."""
    return leaf.size * leaf.bits / 8 + leaf.scales.nbytes if isinstance(leaf, QuantArray) else leaf.nbytes


def name_of(scheme: str | None) -> str:
    return scheme or "float"


if __name__ == "__main__":
    begin(main)
