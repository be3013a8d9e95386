"""Lossless speculative decoding with EAGLE draft heads in JAX.

Example:

    model = eagle_jax.load()                                    # SmolLM2-135M-Instruct, downloaded once
    result = eagle_jax.generate(model, "...", temperature=1.0)  # same seed, same text, with any drafter or none
    for chunk in eagle_jax.stream(model, "..."): ...
"""

from eagle_jax import starting

starting.begin()

from eagle_jax.workarounds import guard_cpu_reductions  # noqa: E402  # it imports jax

guard_cpu_reductions()

from eagle_jax.api import (  # noqa: E402  # after the guard
    Chunk,
    Model,
    PromptLogprobs,
    Result,
    Stats,
    describe,
    generate,
    load,
    prompt_logprobs,
    stream,
    warm_up,
    weights_of,
    with_weights,
)

starting.end()

__version__ = "0.1.0"

__all__ = [
    "Chunk",
    "Model",
    "PromptLogprobs",
    "Result",
    "Stats",
    "describe",
    "generate",
    "load",
    "prompt_logprobs",
    "stream",
    "warm_up",
    "weights_of",
    "with_weights",
]
