"""The options of `generate` and `stream`, checked once at the door."""

import dataclasses
import functools
import math
import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle_jax.api.model import Model
from eagle_jax.decoding.policy import EAGLE1_TREE, DynamicTree, StaticTree, TreePolicy
from eagle_jax.decoding.sampling import Sampling, Settings, request_keys
from eagle_jax.drafters.base import Drafter, Plain
from eagle_jax.drafters.eagle import Eagle

# On accelerators a target pass over 60 rows should cost about what one over a single row does. On CPU cores every row
# costs, so little of a tree pays: of the nine that `benchmarks/against_hf.py --search` times, the two shortest
# chains were fastest, within a hundredth of each other; this is the longer one.
ACCELERATOR_TREE = DynamicTree(60, 7, 10)
CPU_TREE = DynamicTree(4, 2, 1)

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
        if not _is_whole(value) or not 0 <= value < 2**63:
            raise ValueError(f"seed={value!r}; expected a whole number from 0 to 2**63 - 1")
    return [int(value) for value in seeds]


def drafter_for(model: Model, drafter: str | Drafter, tree: Any) -> Drafter:
    """The drafter that was asked for; "auto" is the model's head if it has one."""
    if isinstance(drafter, Drafter):
        return _fitting(drafter, model)
    if not isinstance(drafter, str) or drafter not in ("auto", "none", "eagle"):
        raise ValueError(f'drafter={drafter!r} is not known; expected "auto", "eagle", "none", or a Drafter')
    policy = policy_for(tree)
    if model.head is None and drafter == "eagle":
        raise ValueError('drafter="eagle" needs a head, but the model was loaded without one; give load() a head')
    if model.head is None or drafter == "none":
        return Plain()
    return _fitting(Eagle(head=model.head, policy=policy), model)


def policy_for(tree: Any) -> TreePolicy:
    """The tree that was asked for: "auto", "eagle1", (nodes, depth, top_k), a list of parents, or a policy."""
    if isinstance(tree, TreePolicy):
        return tree
    if isinstance(tree, str) and tree == "auto":
        return CPU_TREE if jax.default_backend() == "cpu" else ACCELERATOR_TREE
    if isinstance(tree, str) and tree == "eagle1":
        return EAGLE1_TREE
    listed = tree.tolist() if isinstance(tree, np.ndarray) else tree
    if isinstance(listed, Sequence) and listed and all(_is_whole(number) for number in listed):
        given = tuple(int(number) for number in listed)
        if given[0] == -1:
            return StaticTree(given)
        if len(given) == 3:
            return DynamicTree(*given)
    raise ValueError(
        f'tree={tree!r} is not a tree; expected "auto", "eagle1", (nodes, depth, top_k) such as (60, 7, 10), '
        "or the parents of its nodes such as [-1, 0, 0, 1]"
    )


def _fitting(drafter: Drafter, model: Model) -> Drafter:
    """The drafter, if its tree can grow over the vocabulary that it drafts."""
    head = drafter.head if isinstance(drafter, Eagle) else None
    _grow_in_thought(drafter.policy, model.target.config.vocab_size if head is None else head.draft_vocab_size)
    return drafter


@functools.lru_cache(maxsize=64)
def _grow_in_thought(policy: TreePolicy, vocab_size: int) -> None:
    """Grows a tree of shapes alone: a policy that cannot says so here, before anything runs."""

    def extend(carry: None, level: int, tokens: jax.Array, parent_row: jax.Array) -> tuple[jax.Array, None]:
        return jnp.zeros((*tokens.shape, vocab_size)), carry

    jax.eval_shape(lambda: policy.grow(jnp.zeros(1, jnp.int32), jnp.zeros((1, vocab_size)), extend, None)[0])


def whole(name: str, value: Any, least: int) -> int:
    """`value` if it is a whole number (numpy's included) and not below `least`."""
    if not _is_whole(value) or value < least:
        raise ValueError(f"{name}={value!r}; expected a whole number, {least} or more")
    return int(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r}; expected a finite number")
    return float(value)
