"""The token mixer of Qwen3-Next and Qwen3.5 in three of four layers: Gated DeltaNet (Yang et al. 2024).

A causal convolution over queries, keys and values, the gated delta rule, and a norm whose output a gate multiplies.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle_jax import ops
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.attention_inputs import num_valid
from eagle_jax.models.delta_state import DeltaState
from eagle_jax.models.layers import Linear, RMSNorm
from eagle_jax.ops import DeltaRows, FlatRows
from eagle_jax.struct import pytree

EPSILON = 1e-6  # added to the squared length of queries and keys


@pytree
class DeltaInputs:
    """Inputs of Gated DeltaNet layers about a forward pass's fresh tokens.

    Attributes:
        ancestors: ancestors of each token of a request, itself included; None for a chain.
        earlier: as in `ops.earlier_rows`.
        num_valid, cache_rows, flat: as in `ops.AttentionInputs`.
    """

    ancestors: Bool[Array, "y n n"] | None
    earlier: Int[Array, "y n w"]
    num_valid: Int[Array, ""]
    cache_rows: Int[Array, "y"] | None
    flat: FlatRows | None

    @staticmethod
    def of(
        config: LlamaConfig,
        positions: Int[Array, "b n"],
        visible: Bool[Array, "b n n"],
        cache_rows: Int[Array, "y"] | None,
        flat: FlatRows | None,
        is_chain: bool = False,
    ) -> "DeltaInputs":
        """Returns the inputs of all layers; `visible` names the ancestors of each token and itself."""
        assert config.delta_net is not None
        if is_chain:
            assert flat is None
            rows = ops.rows_before(visible.shape[1], config.delta_net.conv_kernel - 1)
            earlier = jnp.broadcast_to(rows, (len(visible), *rows.shape[1:]))
            return DeltaInputs(None, earlier, num_valid(positions >= 0), cache_rows, None)
        if flat is not None:
            visible = flat.visible_by_request(visible)
        earlier = ops.earlier_rows(visible, config.delta_net.conv_kernel - 1)
        return DeltaInputs(visible, earlier, num_valid(positions >= 0), cache_rows, flat)

    def by_request(self, rows: Float[Array, "b n e"]) -> Float[Array, "y m e"]:
        """Returns the rows of the pass, with padding where requests share one."""
        flat = self.flat
        return rows if flat is None else jnp.where(flat.is_token[..., None], rows[0][flat.token_indices], 0)

    def in_pass(self, rows: Float[Array, "y m e"]) -> Float[Array, "b n e"]:
        """Undoes `by_request`; padding is zeros."""
        return rows if self.flat is None else self.flat.in_row(rows)[None]

    def fresh(self, added: DeltaRows) -> DeltaRows:
        """Returns the rows that tokens add, laid out as the pass is."""
        flat = self.flat
        if flat is None:
            return added
        return jax.tree.map(lambda x: flat.in_row(x.swapaxes(1, 2)).swapaxes(0, 1)[None], added)


class GatedDeltaNet(nn.Module):
    """A token mixer (`models.attention`) whose state does not grow with the text."""

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        assert self.config.delta_net is not None
        c = self.net = self.config.delta_net
        if c.fused:
            self.in_proj_qkvz = Linear(c.channels + c.values, dtype=self.dtype)
            self.in_proj_ba = Linear(2 * c.num_value_heads, dtype=self.dtype)
        else:
            self.in_proj_qkv = Linear(c.channels, dtype=self.dtype)
            self.in_proj_z = Linear(c.values, dtype=self.dtype)
            self.in_proj_b = Linear(c.num_value_heads, dtype=self.dtype)
            self.in_proj_a = Linear(c.num_value_heads, dtype=self.dtype)
        self.conv1d = _Kernel(c.channels, c.conv_kernel, self.dtype)
        self.dt_bias = self.param("dt_bias", nn.initializers.ones, (c.num_value_heads,), self.dtype)
        self.A_log = self.param("A_log", nn.initializers.uniform(2.0), (c.num_value_heads,), self.dtype)
        self.norm = RMSNorm(self.config.rms_norm_eps, self.dtype)
        self.out_proj = Linear(self.config.hidden_size, dtype=self.dtype)

    def __call__(
        self,
        residual: Float[Array, "b n h"],
        x: Float[Array, "b n i"],
        norms: tuple[ops.Norm | None, ops.Norm | None],
        inputs: DeltaInputs,
        state: DeltaState,
        draft_kv: None,
    ) -> tuple[Float[Array, "b n h"], DeltaRows]:
        """Computes `residual + out(norm(delta(conv(in(x)))) * silu(z))`, and what the tokens add to the state."""
        normed = x if norms[0] is None else ops.rms_norm(x, norms[0])
        qkv, z, b, a = self._projected(normed, inputs.num_valid)
        qkv, b, a = (inputs.by_request(part) for part in (qkv, b, a))
        y, added = self._mixed(qkv, b, a, inputs, state)
        heads = *x.shape[:2], self.net.num_value_heads, self.net.value_head_dim
        y = self.norm(inputs.in_pass(y).reshape(heads).astype(x.dtype))
        gated = y.astype(jnp.float32) * jax.nn.silu(z.reshape(heads).astype(jnp.float32))
        y = self.out_proj(gated.reshape(*x.shape[:2], -1).astype(x.dtype), inputs.num_valid)
        return ops.add_residual(residual, y, norms[1], self.config.residual_multiplier), inputs.fresh(added)

    def _mixed(
        self,
        qkv: Float[Array, "y n e"],
        b: Float[Array, "y n g"],
        a: Float[Array, "y n g"],
        inputs: DeltaInputs,
        state: DeltaState,
    ) -> tuple[Float[Array, "y n o"], DeltaRows]:
        """Applies the delta rule to each token, in float32, by request."""
        c, before = self.net, state.at(inputs.cache_rows)
        rows = ops.convolved(qkv, before.window[:, 0], self.conv1d(), inputs.earlier)
        q, k, v = jnp.split(rows, (c.keys, 2 * c.keys), axis=-1)
        q, k = (_unit(_by_head(part, c.num_key_heads)) for part in (q, k))
        beta = jax.nn.sigmoid(b.astype(jnp.float32)).swapaxes(1, 2)
        rate = jax.nn.softplus(a.astype(jnp.float32) + self.dt_bias.astype(jnp.float32)[None, None])
        g = (-jnp.exp(self.A_log.astype(jnp.float32))[None, None] * rate).swapaxes(1, 2)
        v = _by_head(v, c.num_value_heads)
        operands = q * c.key_head_dim**-0.5, k, v, g, beta, before.memory
        if inputs.ancestors is None:
            out, u = ops.gated_delta_chain(*operands)
        else:
            out, u = ops.gated_delta(*operands, inputs.ancestors)
        added = DeltaRows(k=k, u=u, g=g[..., None], inputs=qkv[:, None])
        return out.swapaxes(1, 2).reshape(*qkv.shape[:2], -1), added

    def _projected(self, x: Float[Array, "b n h"], num_valid: Int[Array, ""]) -> tuple[Array, ...]:
        """Returns queries, keys and values side by side, the gate, and the logits of rate and decay."""
        if not self.net.fused:
            maps = self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a
            return tuple(linear(x, num_valid) for linear in maps)
        c, key = self.net, self.net.key_head_dim
        value = c.values // c.num_key_heads

        def parts(rows: Float[Array, "b n o"], *ends: int) -> list[Float[Array, "b n _"]]:
            """Parts of a row, in which every key head has its own, one after the other."""
            by_head = rows.reshape(*rows.shape[:2], c.num_key_heads, -1)
            return [part.reshape(*rows.shape[:2], -1) for part in jnp.split(by_head, ends, axis=-1)]

        q, k, v, z = parts(self.in_proj_qkvz(x, num_valid), key, 2 * key, 2 * key + value)
        b, a = parts(self.in_proj_ba(x, num_valid), c.num_value_heads // c.num_key_heads)
        return jnp.concatenate([q, k, v], axis=-1), z, b, a


class _Kernel(nn.Module):
    """The convolution's weights, of each channel."""

    channels: int
    size: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self) -> Float[Array, "e k"]:
        return self.param("weight", nn.initializers.normal(0.5), (self.channels, 1, self.size), self.dtype)[:, 0]


def _by_head(rows: Float[Array, "b n o"], heads: int) -> Float[Array, "b heads n c"]:
    return rows.reshape(*rows.shape[:2], heads, -1).swapaxes(1, 2)


def _unit(heads: Float[Array, "b j n c"]) -> Float[Array, "b j n c"]:
    return heads * jax.lax.rsqrt(jnp.sum(heads**2, axis=-1, keepdims=True) + EPSILON)
