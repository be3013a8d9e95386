"""EAGLE-3 from end to end, one answer at a time: how much faster than plain decoding, and is it the same text?"""

from collections.abc import Iterator

import numpy as np
from synthetic import Synthetic
from turns import Method, Timed, ours

from gpu.answers import answered, beside
from gpu.cycles import ROUNDED, with_rounded_head
from gpu.record import Record
from gpu.scale import Scale


def run(scale: Scale, record: Record) -> None:
    pair = scale.pair()
    more = {
        "auto": ours(pair.model, scale.tokens, "eagle"),
        f"tree {scale.tree}, {ROUNDED}": ours(with_rounded_head(pair.model), scale.tokens, "eagle", scale.tree),
    }
    for row in rows(pair, scale, more, repeats=max(2, scale.repeats // 2)):
        record("answers", **row)


def rows(pair: Synthetic, scale: Scale, more: dict[str, Method], repeats: int) -> Iterator[dict[str, object]]:
    """Plain decoding, the published tree, and other methods, each beside plain decoding, as answers come in."""
    published = f"EAGLE-3, tree {scale.tree}"
    methods = {
        "plain": ours(pair.model, scale.tokens, "none"),
        published: ours(pair.model, scale.tokens, "eagle", scale.tree),
        **{f"EAGLE-3, {name}": method for name, method in more.items()},
    }
    asked = scale.asked(pair.chart, scale.prompts)
    known = [pair.chart.answer(prompt, scale.tokens) for prompt in asked]
    lengths = [np.mean(pair.chart.passes(prompt, scale.tokens, scale.depth)) for prompt in asked]
    constructed = {"plain": 1.0, published: float(np.mean(lengths))}
    plain: Timed | None = None
    for name, one in answered(methods, asked, repeats):
        plain = one if plain is None or name == "plain" else plain
        yield _row(name, one, beside(plain, one), known[: len(one.requests)], constructed.get(name))


def _row(name: str, one: Timed, plain: Timed, known: list[list[int]], constructed: float | None) -> dict[str, object]:
    gained = one.speed("decoding") / plain.speed("decoding")
    return {
        "method": name,
        "tokens_per_s": one.speed("decoding"),
        "tokens_a_pass": one.length,
        "constructed": constructed,
        "speedup": gained,
        "with_prefill": one.speed() / plain.speed(),
        "speedup_per_token_a_pass": gained / one.length,
        "text_is_plain_decodings": one.texts == plain.texts,
        "text_is_the_charts": one.texts == known,
    }
