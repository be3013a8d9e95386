"""Sparse experts instead of an MLP: a router sends each token through a few of them.

A channel mixer of a decoder layer, such as this one, is a module that is called with the residual stream and the norms
before and after it, and gives the stream with its part added.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax import ops
from eagle_jax.configs.target import Experts
from eagle_jax.models.layers import MLP, Linear
from eagle_jax.ops.experts import Activation, Stacks, apply_experts
from eagle_jax.sharding import MODEL, by_row, sum_over_model

# Every device has a slice of every expert's width: however tokens choose, loads are even.
_WIDTH: tuple[Any, ...] = (P(None, MODEL), P(None, MODEL), P(None, None, MODEL))
_BIASES: tuple[Any, ...] = (P(None, MODEL), P(None, MODEL))


class SparseMLP(nn.Module):
    """`sum_e share_e * down_e(silu(gate_e(x)) * up_e(x))` over the experts that the router chose for each token."""

    hidden_size: int
    config: Experts
    dtype: DTypeLike = jnp.float32
    multiplier: float = 1.0

    def setup(self):
        c = self.config
        self.gate = Linear(c.num_experts, c.router_bias, self.dtype, result=jnp.float32)
        self.experts = ExpertStacks(self.hidden_size, c, self.dtype)
        if c.correction_bias:
            zeros = nn.initializers.zeros
            self.correction_bias = self.param("correction_bias", zeros, (c.num_experts,), jnp.float32)
        if c.shared_intermediate_size:
            self.shared_experts = MLP(self.hidden_size, c.shared_intermediate_size, False, self.dtype)
        if c.shared_gate:
            self.shared_gate = Linear(1, dtype=self.dtype)

    def __call__(
        self, x: Float[Array, "b n h"], norms: tuple[ops.Norm | None, ops.Norm | None], num_valid: Int[Array, ""]
    ) -> Float[Array, "b n h"]:
        normed = x if norms[0] is None else ops.rms_norm(x, norms[0])
        y = self._mixed(normed)
        if self.config.shared_intermediate_size:
            shared = ops.feed_forward(normed, self.shared_experts.weights(None), num_valid)
            if self.config.shared_gate:
                shared = shared * jax.nn.sigmoid(self.shared_gate(normed))
            y = y + shared
        return ops.add_residual(x, y, norms[1], self.multiplier)

    def _mixed(self, x: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        c = self.config
        correction = self.correction_bias if c.correction_bias else None
        routed = route(self.gate(x).reshape(-1, c.num_experts), c, correction)
        return mixed(x, routed, self.experts(), c)


class ExpertStacks(nn.Module):
    """The weights of all experts of a layer."""

    hidden_size: int
    config: Experts
    dtype: DTypeLike

    @nn.compact
    def __call__(self) -> tuple[Stacks, Array | None]:
        """Returns the stacks, and the bias of the last projection."""
        experts, width = self.config.num_experts, self.config.moe_intermediate_size
        into, out = (experts, width, self.hidden_size), (experts, self.hidden_size, width)
        normal, zeros = nn.initializers.normal(0.02), nn.initializers.zeros
        matrices = {
            "gate": self.param("gate", normal, into, self.dtype),
            "up": self.param("up", normal, into, self.dtype),
            "down": self.param("down", normal, out, self.dtype),
        }
        if not self.config.bias:
            return Stacks(**matrices), None
        for name in ("gate_bias", "up_bias"):
            matrices[name] = self.param(name, zeros, (experts, width), self.dtype)
        return Stacks(**matrices), self.param("down_bias", zeros, (experts, self.hidden_size), self.dtype)


def mixed(
    x: Float[Array, "b n h"],
    routed: tuple[Int[Array, "r t"], Float[Array, "r t"]],
    weights: tuple[Stacks, Array | None],
    config: Experts,
    gelu: bool = False,
) -> Float[Array, "b n h"]:
    """Computes the weighted sum of each token's experts.

    Args:
        routed: of `route`, for the tokens one after the other.
        weights: of `ExpertStacks`.
    """
    by_token = tuple(part.reshape(*x.shape[:2], -1) for part in routed)
    stacks, down_bias = weights
    specs = Stacks(*_WIDTH, *(_BIASES if config.bias else ()))
    by_device = functools.partial(mix, activation=activation(config, gelu), scales_input=config.scales_input)
    y = sum_over_model(by_device, (x, *by_token), stacks, specs)
    if down_bias is not None:  # here, not in what devices add up
        y = y + jnp.einsum("bnt,bnth->bnh", by_token[1], down_bias.astype(jnp.float32)[by_token[0]])
    return y.astype(x.dtype)


def activation(config: Experts, gelu: bool = False) -> Activation:
    """Returns the activation between an expert's projections."""
    return Activation(config.swiglu_limit, config.swiglu_alpha, gelu)


def mix(
    tokens: tuple[Float[Array, "b n h"], Int[Array, "b n t"], Float[Array, "b n t"]],
    stacks: Stacks,
    activation: Activation = Activation(),
    scales_input: bool = False,
) -> Float[Array, "b n h"]:
    """Computes the weighted sum of each token's experts, in float32."""
    x, expert_ids, share = tokens
    if scales_input:  # each pair has a row of its own
        x, share = x[:, :, None] * share[..., None].astype(x.dtype), jnp.ones_like(share)
    pairs = apply_experts(x.reshape(-1, x.shape[-1]), expert_ids.reshape(-1), stacks, activation)
    return jnp.sum(pairs.reshape(*expert_ids.shape, -1) * share[..., None], axis=2)


def route(
    logits: Float[Array, "r e"], config: Experts, correction: Float[Array, "e"] | None = None
) -> tuple[Int[Array, "r t"], Float[Array, "r t"]]:
    """Returns the experts of each row, by descending score, and their weights.

    Args:
        correction: added to the scores for the choice, and not in the weights.
    """
    best = by_row(lambda rows: jax.lax.top_k(rows, config.num_experts_per_tok))
    if config.scores == "softmax":
        share, expert_ids = best(jax.nn.softmax(logits, axis=-1))
    else:
        scores = jax.nn.sigmoid(logits)
        ranked = scores if correction is None else scores + correction[None]
        _, expert_ids = best(_within_best_groups(ranked, config))
        share = jnp.take_along_axis(scores, expert_ids, axis=-1)
    if config.norm_topk_prob:  # of softmax the same as a softmax over the chosen logits alone
        share = share / jnp.sum(share, axis=-1, keepdims=True)
    return expert_ids, share if config.routed_scaling_factor == 1 else share * config.routed_scaling_factor


def _within_best_groups(ranked: Float[Array, "r e"], config: Experts) -> Float[Array, "r e"]:
    """Returns the scores, -inf outside the best groups of experts."""
    if config.topk_groups == config.num_groups:
        return ranked
    by_group = ranked.reshape(len(ranked), config.num_groups, -1)
    two = jnp.sum(by_row(lambda rows: jax.lax.top_k(rows, 2))(by_group)[0], axis=-1)
    _, groups = by_row(lambda rows: jax.lax.top_k(rows, config.topk_groups))(two)
    is_best = jnp.any(groups[:, :, None] == jnp.arange(config.num_groups)[None, None], axis=1)
    return jnp.where(is_best[:, :, None], by_group, -jnp.inf).reshape(ranked.shape)
