"""HuggingFace transformers on the same GPU, with the very same weights: `generate` and prompt lookup against ours."""

import hf
from synthetic import Shape, ready, stored
from turns import Timed, ours

from gpu.answers import answered, beside
from gpu.record import Record
from gpu.scale import Scale


def run(scale: Scale, record: Record) -> None:
    chart, target, head = stored(Shape.of(scale.shape), scale.error, dtype=scale.dtype)
    new = min(scale.tokens, 64)
    methods = hf.methods(hf.shared(target), new, scale.dtype)
    model = ready(target, head)
    methods["eagle_jax plain"] = ours(model, new, "none")
    methods["eagle_jax EAGLE-3"] = ours(model, new, "eagle", scale.tree)
    first = next(iter(methods))
    asked = scale.asked(chart, min(scale.prompts, 2))
    known = [chart.answer(prompt, new) for prompt in asked]
    timed: dict[str, Timed] = {}
    for name, one in answered(methods, asked, 2):
        timed[name] = one
        record(
            "answers",
            method=name,
            tokens_per_s=one.speed(),
            of_HF_generate=one.speed() / beside(timed[first], one).speed(),
            text_is_the_charts=one.texts == known[: len(one.requests)],
        )
