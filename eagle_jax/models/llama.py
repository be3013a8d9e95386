"""The decoder layer of the Llama family and the target model built from it.

x = x + o(attention(rope(qkv(norm(x)))))      `ops.attention_block`
x = x + down(silu(gate(norm(x))) * up(norm(x)))    `ops.mlp_block`
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle_jax import ops
from eagle_jax.configs.target import LlamaConfig, Rope
from eagle_jax.models.attention_inputs import attention_inputs
from eagle_jax.models.cache import Cache, joined
from eagle_jax.models.channel_mixer import channel_mixer
from eagle_jax.models.delta_state import DeltaState
from eagle_jax.models.gated_delta_net import DeltaInputs, GatedDeltaNet
from eagle_jax.models.layer_inputs import LayerInput, LayerInputs
from eagle_jax.models.layers import Embedding, Linear, norm, scaled
from eagle_jax.models.token_mixer import attention_mixer
from eagle_jax.models.traced_once import traced_once
from eagle_jax.ops import AttentionInputs, CachedKV, FlatRows, LayerRows
from eagle_jax.sharding import constrain

Inputs = AttentionInputs | DeltaInputs


class DecoderLayer(nn.Module):
    """Pre-norm residual block. EAGLE heads leave the first layer's input norm out (`input_norm=False`).

    A `sparse` layer has the config's experts in place of the MLP, a `recurrent` one Gated DeltaNet in place of
    attention. In Llama `post_attention_layernorm` is the norm before the MLP; where a family has norms after attention
    and MLP, it is what its name says. `config` is the layer's own (`LlamaConfig.layer`), and `kv` says which keys and
    values it computes, as in `Attention`.
    """

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32
    input_norm: bool = True
    sparse: bool = False
    recurrent: bool = False
    rotates: bool = True
    kv: str = "both"

    def setup(self):
        c = self.config
        if self.input_norm and c.norms != "after":
            self.input_layernorm = norm(c, self.dtype)
        if self.recurrent:
            self.linear_attn = GatedDeltaNet(c, self.dtype)
        else:
            self.self_attn = attention_mixer(c, self.dtype, self.rotates, self.kv)
        self.post_attention_layernorm = norm(c, self.dtype)
        if c.norms == "around":
            self.pre_feedforward_layernorm = norm(c, self.dtype)
        if c.norms != "before":
            self.post_feedforward_layernorm = norm(c, self.dtype)
        self.mlp = channel_mixer(c, self.sparse, self.dtype)
        if c.layer_input_size:
            self.layer_input = LayerInput(c, self.dtype)
        if c.scales_layers:
            self.layer_scalar = self.param("layer_scalar", nn.initializers.ones, (1,), self.dtype)

    def __call__(
        self,
        x: Float[Array, "b n h"],
        inputs: Inputs,
        state: CachedKV | DeltaState,
        draft_kv: LayerRows | None,
        layer_input: Float[Array, "b n p"] | None = None,
    ) -> tuple[Float[Array, "b n h"], LayerRows]:
        """Returns the residual stream after the layer, and what the tokens add to its state (`LayerState.operand`).

        Args:
            state, draft_kv: of the layer whose keys and values this one attends to; `draft_kv` are those of all fresh
                tokens where it is another one.
            layer_input: what the layer has of its own of each token (`models.layer_inputs`).
        """
        size, kind, after_attention, after_mlp = x.shape[-1], self.config.norms, None, None
        before_mlp: ops.Norm | None = self.post_attention_layernorm.weights(size)
        if kind != "before":
            after_attention, after_mlp = before_mlp, self.post_feedforward_layernorm.weights(size)
            before_mlp = self.pre_feedforward_layernorm.weights(size) if kind == "around" else None
        mixer: Any = self.linear_attn if self.recurrent else self.self_attn
        with jax.named_scope("attention"):
            x, added = mixer(x, x, (self._input_norm(size), after_attention), inputs, state, draft_kv)
        with jax.named_scope("mlp"):
            x = self.mlp(x, (before_mlp, after_mlp), inputs.num_valid)
        if layer_input is not None:
            x = self.layer_input(x, layer_input)
        if self.config.scales_layers:
            x = x * self.layer_scalar.astype(x.dtype)[None, None]
        return x, added

    def keys_and_values(self, x: Float[Array, "b n h"], inputs: AttentionInputs) -> LayerRows:
        """Computes the keys and values of its attention, without the rest of the layer."""
        return self.self_attn.keys_and_values(x, self._input_norm(x.shape[-1]), inputs)

    def _input_norm(self, size: int) -> ops.Norm | None:
        has_one = self.input_norm and self.config.norms != "after"
        return self.input_layernorm.weights(size) if has_one else None


class Llama(nn.Module):
    """The target: embedding, decoder layers, final norm, output matrix.

    Layers are unrolled: a scan would copy each one's weights.
    """

    config: LlamaConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c = self.config
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size, self.dtype)
        self.layers = [
            DecoderLayer(
                c.layer(i),
                self.dtype,
                sparse=c.is_sparse(i),
                recurrent=c.is_recurrent(i),
                rotates=c.rotates(i),
                kv=c.kv_of(i),
            )
            for i in range(c.num_hidden_layers)
        ]
        if c.layer_input_size:
            self.layer_inputs = LayerInputs(c, self.dtype)
        self.norm = norm(c, self.dtype)
        if not c.tie_word_embeddings:
            self.lm_head = Linear(c.vocab_size, dtype=self.dtype, result=jnp.float32)

    def embed(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        embeddings = constrain(self.embed_tokens(tokens))
        # transformers rounds Gemma's factor to the dtype of the weights, and so do the trained models; not Granite's
        dtype = self.dtype if self.config.norms == "around" else jnp.float32
        return scaled(embeddings, self.config.embedding_multiplier, dtype)

    def logits(self, hidden: Float[Array, "b n h"], num_valid: Int[Array, ""] | None = None) -> Float[Array, "b n v"]:
        output = self.embed_tokens.attend if self.config.tie_word_embeddings else self.lm_head
        logits = output(hidden, num_valid)
        if self.config.logits_scaling != 1:
            logits = logits / self.config.logits_scaling
        cap = self.config.final_logit_softcapping
        return logits if cap is None else jnp.tanh(logits / cap) * cap

    def __call__(
        self,
        tokens: Int[Array, "b n"],
        positions: Int[Array, "b n"],
        visible: Bool[Array, "b n m"],
        cache: Cache,
        taps: tuple[int, ...],
        draft_kv: tuple[LayerRows, ...] = (),
        draft_positions: Int[Array, "b p"] | None = None,
        flat: FlatRows | None = None,
        is_chain: bool = False,
    ) -> tuple[Float[Array, "b n h"], tuple[Float[Array, "b n h"], ...], tuple[LayerRows, ...]]:
        """Computes the final hidden states, the residual stream entering each layer in `taps`, and what the tokens add
        to the state of each layer.

        The tap `num_hidden_layers` is what leaves the last layer, before the final norm. With `is_chain` each token
        sees all before it, which spares recurrent layers the products of all pairs of tokens.
        """
        fresh = positions if draft_positions is None else jnp.concatenate([draft_positions, positions], axis=1)
        by_kind: dict[tuple[bool, int | None, Rope | None], Inputs] = {}
        x, c = self.embed(tokens), self.config
        layer_inputs = self.layer_inputs(tokens, x) if c.layer_input_size else (None,) * c.num_hidden_layers
        entering, added = [], list[LayerRows]()
        for i, layer in enumerate(self.layers):
            kind = layer.recurrent, c.window(i), c.rope_of(i)
            if kind not in by_kind and layer.recurrent:
                by_kind[kind] = DeltaInputs.of(c, positions, visible, cache.rows, flat, is_chain)
            elif kind not in by_kind:
                by_kind[kind] = attention_inputs(c, positions, visible, cache, fresh, i, flat)
            entering.append(x)
            source = c.kv_layer(i)
            draft_rows = draft_kv[source] if draft_kv else None
            if source != i:  # the layer attends to keys and values of an earlier one, and adds none
                draft_rows = joined(draft_rows, added[source])
            x, layer_added = traced_once(
                layer, x, by_kind[kind], cache.layers[source].operand, draft_rows, layer_inputs[i]
            )
            added.append(layer_added)
        entering.append(x)
        return constrain(self.norm(x)), tuple(entering[i] for i in taps), tuple(added)

    def initialise(self, tokens: Int[Array, "b n"], cache: Cache) -> Float[Array, "b n v"]:
        """Touches every parameter once."""
        visible = jnp.ones((*tokens.shape, tokens.shape[1]), bool)
        return self.logits(self(tokens, jnp.zeros_like(tokens), visible, cache, ())[0])
