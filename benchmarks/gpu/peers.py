"""HuggingFace transformers on the same GPU, with the very same weights: `generate` and prompt lookup against ours."""

import hf
from synthetic import Shape, ready, stored
from turns import in_turns, ours

from gpu.record import Record
from gpu.scale import Scale


def run(scale: Scale, record: Record) -> None:
    chart, target, head = stored(Shape.of(scale.shape), scale.error, dtype=scale.dtype)
    new = min(scale.tokens, 64)
    methods = hf.methods(hf.shared(target), new, scale.dtype)
    model = ready(target, head)
    methods["eagle_jax plain"] = ours(model, new, "none")
    methods["eagle_jax EAGLE-3"] = ours(model, new, "eagle", scale.tree)
    timed = in_turns(methods, scale.asked(chart, min(scale.prompts, 2)), 2)
    known = timed["eagle_jax plain"].texts
    for name, one in timed.items():
        record(
            "answers",
            method=name,
            tokens_per_s=one.speed(),
            of_HF_generate=one.speed() / timed[next(iter(timed))].speed(),
            same_text=one.texts == known,
        )
