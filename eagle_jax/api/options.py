"""The options of `generate` and `stream`, checked once at the door."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from eagle_jax.api.model import Model
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree, StaticTree, TreePolicy
from eagle_jax.decoding.sampling import Sampling, Settings, request_keys
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.eagle import Eagle

# On accelerators a target pass over 60 rows costs about as much as over one; on two CPU cores 5 rows cost 1.7 single
# ones and 60 cost 8, so a short chain is best there (`benchmarks/against_hf.py --search` prints the table this was
# chosen from).
ACCELERATOR_TREE = DynamicTree(60, 7, 10)
CPU_TREE = DynamicTree(6, 4, 1)


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
        _whole("max_new_tokens", self.max_new_tokens, 1)
        _whole("top_k", self.top_k, 0)
        _whole("num_samples", self.num_samples, 1)
        _whole("batch_size", self.batch_size, 1)
        _number("temperature", self.temperature)
        _number("top_p", self.top_p)
        _number("min_p", self.min_p)
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
            top_k=jnp.full(rows, self.top_k, jnp.int32),
            top_p=jnp.full(rows, self.top_p, jnp.float32),
            min_p=jnp.full(rows, self.min_p, jnp.float32),
            key=request_keys(seeds, samples),
        )


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """One stop string, several, or none."""
    return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


def seeds_for(seed: int | Sequence[int], prompts: int) -> list[int]:
    """A seed for each prompt: one for all of them, or one each."""
    if not isinstance(seed, Sequence):
        return [seed] * prompts
    if len(seed) != prompts:
        raise ValueError(f"{len(seed)} seeds for {prompts} prompts; give one for all of them, or one each")
    return list(seed)


def drafter_for(model: Model, drafter: str | Drafter, tree: Any) -> Drafter:
    """The drafter that was asked for; "auto" is the model's head if it has one."""
    if isinstance(drafter, Drafter):
        return drafter
    if drafter not in ("auto", "none", "eagle"):
        raise ValueError(f'drafter={drafter!r} is not known; expected "auto", "eagle", "none", or a Drafter')
    policy = policy_for(tree)
    if model.head is None and drafter == "eagle":
        raise ValueError('drafter="eagle" needs a head, but the model was loaded without one; give load() a head')
    if model.head is None or drafter == "none":
        return Plain()
    return Eagle(head=model.head, policy=policy)


def policy_for(tree: Any) -> TreePolicy:
    """The tree that was asked for: "auto", "eagle1", (nodes, depth, top_k), a list of parents, or a policy."""
    if isinstance(tree, TreePolicy):
        return tree
    if tree == "auto":
        return CPU_TREE if jax.default_backend() == "cpu" else ACCELERATOR_TREE
    if tree == "eagle1":
        return EAGLE1_TREE
    numbers = isinstance(tree, Sequence) and not isinstance(tree, str) and all(isinstance(n, int) for n in tree)
    if numbers and len(tree) > 0 and tree[0] == -1:
        return StaticTree(tuple(tree))
    if numbers and len(tree) == 3:
        return DynamicTree(*tree)
    raise ValueError(
        f'tree={tree!r} is not a tree; expected "auto", "eagle1", (nodes, depth, top_k) such as (60, 7, 10), '
        "or the parents of its nodes such as [-1, 0, 0, 1]"
    )


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}; expected a whole number, {least} or more")


def _number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r}; expected a number")
