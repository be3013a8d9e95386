"""The options of `generate` and `stream`, checked once at the door."""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from eagle_jax.decoding.sampling import Sampling, Settings, request_keys

LARGEST_INT32 = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Checked options; see `generate` for what they mean."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    stop: tuple[str, ...]
    logprobs: bool
    num_samples: int
    batch_size: int

    def __post_init__(self):
        for name, least in (("max_new_tokens", 1), ("top_k", 0), ("num_samples", 1), ("batch_size", 1)):
            object.__setattr__(self, name, whole(name, getattr(self, name), least))
        for name in ("temperature", "top_p", "min_p"):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        if not isinstance(self.logprobs, (bool, np.bool_)):
            raise ValueError(f"logprobs={self.logprobs!r}; expected True or False")
        object.__setattr__(self, "logprobs", bool(self.logprobs))
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 is greedy, 1 samples the model's own law")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is outside (0, 1]; 1 keeps every token")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p} is outside [0, 1]; 0 keeps every token")
        for string in self.stop:
            if not isinstance(string, str) or not string:
                raise ValueError(f"stop string {string!r}; expected text of at least one character")

    @property
    def mode(self) -> Sampling:
        """What has to be compiled for these options."""
        sampled = self.temperature > 0
        return Sampling(sampled=sampled, filtered=sampled and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0))

    def settings(self, seeds: Sequence[int], samples: Sequence[int]) -> Settings:
        """The same options for every row of a batch; each row has its own seed and number of answer."""
        rows = len(seeds)
        return Settings(
            temperature=jnp.full(rows, self.temperature, jnp.float32),
            top_k=jnp.full(rows, min(self.top_k, LARGEST_INT32), jnp.int32),
            top_p=jnp.full(rows, self.top_p, jnp.float32),
            min_p=jnp.full(rows, self.min_p, jnp.float32),
            key=request_keys(seeds, samples),
        )


def stop_strings(stop: str | Sequence[str] | None, tokenizer: Any) -> tuple[str, ...]:
    """One stop string, several, or none."""
    several = isinstance(stop, Sequence) and not isinstance(stop, (str, bytes))
    if stop is not None and not isinstance(stop, str) and not several:
        raise ValueError(f"stop={stop!r}; expected text, or a list of texts")
    if stop and tokenizer is None:
        raise ValueError(
            "stop strings need a tokenizer to find them, but the model's folder holds none; leave stop out"
        )
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def seeds_for(seed: int | Sequence[int], prompts: int) -> list[int]:
    """A seed for each prompt: one for all of them, or one each."""
    given: Any = seed.tolist() if isinstance(seed, np.ndarray) else seed
    several = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    seeds = list(given) if several else [given] * prompts
    if len(seeds) != prompts:
        raise ValueError(f"{len(seeds)} seeds for {prompts} prompts; give one for all of them, or one each")
    for value in seeds:
        if not is_whole(value) or not 0 <= value < 2**63:
            raise ValueError(f"seed={value!r}; expected a whole number from 0 to 2**63 - 1")
    return [int(value) for value in seeds]


def whole(name: str, value: Any, least: int) -> int:
    """`value` if it is a whole number (numpy's included) and not below `least`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name}={value!r}; expected a whole number, {least} or more")
    return int(value)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, numpy's included."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r}; expected a finite number")
    return float(value)
