"""Sparse experts in place of an MLP (Mixtral, Qwen3-MoE): a router sends each token through a few of many."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.config import Experts
from eagle_jax.models.layers import Linear
from eagle_jax.ops.experts import Stacks, apply_experts
from eagle_jax.sharding import MODEL, added_up, by_row

# Every device has a slice of every expert's width: however tokens choose, loads are even.
_SPECS: tuple[Any, ...] = (P(None, MODEL), P(None, MODEL), P(None, None, MODEL))
_WIDTH = Stacks(*_SPECS)


class SparseMLP(nn.Module):
    """`sum_e share_e * down_e(silu(gate_e(x)) * up_e(x))` over the experts that the router chose for each token."""

    hidden_size: int
    config: Experts
    dtype: DTypeLike = jnp.float32

    def setup(self):
        self.gate = Linear(self.config.num_experts, dtype=self.dtype, result=jnp.float32)
        self.experts = _ExpertStacks(self.hidden_size, self.config, self.dtype)

    def __call__(self, x: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        chosen, share = route(self.gate(x).reshape(-1, self.config.num_experts), self.config)
        by_token = tuple(part.reshape(*x.shape[:2], -1) for part in (chosen, share))
        return added_up(mix, (x, *by_token), self.experts(), _WIDTH).astype(x.dtype)


class _ExpertStacks(nn.Module):
    hidden_size: int
    config: Experts
    dtype: DTypeLike

    @nn.compact
    def __call__(self) -> Stacks:
        experts, wide = self.config.num_experts, self.config.moe_intermediate_size
        into, out = (experts, wide, self.hidden_size), (experts, self.hidden_size, wide)
        normal = nn.initializers.normal(0.02)
        return Stacks(
            gate=self.param("gate", normal, into, self.dtype),
            up=self.param("up", normal, into, self.dtype),
            down=self.param("down", normal, out, self.dtype),
        )


def mix(
    tokens: tuple[Float[Array, "b n h"], Int[Array, "b n t"], Float[Array, "b n t"]], stacks: Stacks
) -> Float[Array, "b n h"]:
    """What its experts make of each token, by their shares, in float32."""
    x, chosen, share = tokens
    pairs = apply_experts(x.reshape(-1, x.shape[-1]), chosen.reshape(-1), stacks)
    return jnp.sum(pairs.reshape(*chosen.shape, -1) * share[..., None], axis=2)


def route(logits: Float[Array, "r e"], config: Experts) -> tuple[Int[Array, "r t"], Float[Array, "r t"]]:
    """The experts of each row, the most probable first, and their shares in its result."""
    best = by_row(lambda rows: jax.lax.top_k(rows, config.num_experts_per_tok))
    share, chosen = best(jax.nn.softmax(logits, axis=-1))
    if config.norm_topk_prob:  # the same as a softmax over the chosen logits alone
        share = share / jnp.sum(share, axis=-1, keepdims=True)
    return chosen, share
