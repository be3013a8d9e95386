"""Gemma 4's experts: they read the residual stream in parallel with an MLP.

y = norm_1(mlp(norm(x))) + norm_2(sum_e share_e * scale_e * expert_e(norm_3(x)))
x = x + norm(y)                                             the router reads x / rms(x) * scale / sqrt(h)
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax import ops
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.layers import MLP, Linear, norm
from eagle_jax.models.moe import ExpertStacks, mixed, route


class ExpertsBesideMLP(nn.Module):
    """A channel mixer (`models.moe`) of an MLP, `shared_experts`, and sparse experts, with norms of their own."""

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c, experts = self.config, self.config.experts
        assert experts is not None
        self.gate = Linear(experts.num_experts, dtype=self.dtype, result=jnp.float32)
        if experts.router_scale:
            self.gate_scale = self.param("gate_scale", nn.initializers.ones, (c.hidden_size,), self.dtype)
        if experts.expert_scale:
            self.expert_scale = self.param("expert_scale", nn.initializers.ones, (experts.num_experts,), self.dtype)
        self.experts = ExpertStacks(c.hidden_size, experts, self.dtype)
        gelu = c.activation == "gelu_tanh"
        self.shared_experts = MLP(c.hidden_size, c.intermediate_size, False, self.dtype, gelu)
        self.shared_norm, self.experts_norm, self.input_norm = (norm(c, self.dtype) for _ in range(3))

    def __call__(
        self, x: Float[Array, "b n h"], norms: tuple[ops.Norm | None, ops.Norm | None], num_valid: Int[Array, ""]
    ) -> Float[Array, "b n h"]:
        normed = x if norms[0] is None else ops.rms_norm(x, norms[0])
        dense = ops.feed_forward(normed, self.shared_experts.weights(None), num_valid)
        y = self.shared_norm(dense) + self.experts_norm(self._mixed(x))
        return ops.add_residual(x, y, norms[1], self.config.residual_multiplier)

    def _mixed(self, x: Float[Array, "b n h"]) -> Float[Array, "b n h"]:
        c, experts = self.config, self.config.experts
        assert experts is not None
        read = ops.rms_norm(x, ops.Norm(jnp.ones(c.hidden_size, self.dtype), c.rms_norm_eps))
        if experts.router_scale:
            read = read * self.gate_scale.astype(x.dtype)[None, None]
        logits = self.gate(read * c.hidden_size**-0.5)
        expert_ids, share = route(logits.reshape(-1, experts.num_experts), experts)
        if experts.expert_scale:
            share = share * self.expert_scale.astype(jnp.float32)[expert_ids]
        return mixed(self.input_norm(x), (expert_ids, share), self.experts(), experts, c.activation == "gelu_tanh")
