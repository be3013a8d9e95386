"""The DFlash draft head (arXiv:2602.06036, section 3): one forward pass guesses a whole block of tokens.

    taps of the text --fc, hidden_norm--> context ----------> keys and values, of every layer
                                                                     |
    root, mask, mask, ...  --embedding--> x --+- input_layernorm --> queries, keys and values of the block
                                              |                      | attention over both
                                              x + attention, x + mlp, layer after layer
                                                                     | norm, output matrix
                                                        logits of slots 0, 1, 2, ...

The context is not changed from layer to layer: each layer's keys and values are projections of the same features, which
the target computed. The block's own keys and values are thrown away with the block. Slot k stands k places behind the
root and guesses the token at its place, or the one behind it (`sample_from_anchor`).

What block rows r (root) and m (masks) see of the block, bidirectional and causal:

             r m m m           r m m m
        r    1 1 1 1      r    1 . . .
        m    1 1 1 1      m    1 1 . .
        m    1 1 1 1      m    1 1 1 .
        m    1 1 1 1      m    1 1 1 1
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax.head_configs import DFlashConfig
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.attention_inputs import attention_inputs
from eagle_jax.models.cache import Cache
from eagle_jax.models.draft_head import first_ids, one_slot
from eagle_jax.models.layers import Embedding, Linear, RMSNorm
from eagle_jax.models.llama import DecoderLayer
from eagle_jax.models.lm import causal, empty_cache
from eagle_jax.models.target import Target
from eagle_jax.ops import KV, AttentionInputs, activation_dtype
from eagle_jax.sharding import constrain
from eagle_jax.struct import pytree, static


class DFlashModule(nn.Module):
    """`fc` and its norm for the context, the layers, and what reads logits off them."""

    config: DFlashConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        c, layers = self.config, self.config.layers
        if c.own_embedding:
            self.embed_tokens = Embedding(layers.vocab_size, layers.hidden_size, self.dtype)
        if c.own_mask_embedding:
            normal = nn.initializers.normal(0.02)
            self.mask_embedding = self.param("mask_embedding", normal, (layers.hidden_size,), self.dtype)
        self.fc = Linear(layers.hidden_size, dtype=self.dtype)
        self.hidden_norm = RMSNorm(layers.rms_norm_eps, self.dtype)
        self.layers = [DecoderLayer(layers, self.dtype) for _ in range(layers.num_hidden_layers)]
        self.norm = RMSNorm(layers.rms_norm_eps, self.dtype)
        if c.draft_vocab_size is not None:
            self.lm_head = Linear(c.draft_vocab_size, dtype=self.dtype, result=jnp.float32)

    def embed(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        return self.embed_tokens(tokens)

    def context(self, taps: tuple[Float[Array, "b r t"], ...], inputs: AttentionInputs) -> tuple[KV, ...]:
        """Keys and values of rows of true text, per layer."""
        features = self.hidden_norm(self.fc(constrain(jnp.concatenate(taps, axis=-1))))
        return tuple(layer.self_attn.keys_and_values(features, None, inputs) for layer in self.layers)

    def __call__(
        self,
        x: Float[Array, "b n h"],
        inputs: tuple[AttentionInputs, ...],
        cache: Cache,
        context: tuple[KV, ...] = (),
    ) -> Float[Array, "b n h"]:
        """Normed outputs of the slots of blocks; `inputs` has an entry for each layer.

        Args:
            context: keys and values of rows of text that are not in the cache, per layer; `inputs` names them first.
        """
        for i, layer in enumerate(self.layers):
            x, _ = layer(x, inputs[i], (cache.k[i], cache.v[i]), context[i] if context else None)
        return self.norm(x)

    def logits(self, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        return self.lm_head(out)

    def initialise(self, taps: tuple[Float[Array, "b n t"], ...], inputs: AttentionInputs, cache: Cache) -> None:
        """Touches every parameter once."""
        c = self.config
        if c.own_embedding:
            self.embed(jnp.zeros(taps[0].shape[:2], jnp.int32))
        self.context(taps, inputs)
        row = jnp.zeros((*taps[0].shape[:2], c.layers.hidden_size), self.dtype)
        out = self(row, (inputs,) * c.layers.num_hidden_layers, cache)
        if c.draft_vocab_size is not None:
            self.logits(out)


@pytree
class DFlash(AnyHead):
    """A DFlash head with its weights. Embedding and output matrix are the target's, unless it brings its own."""

    config: DFlashConfig = static()

    def __post_init__(self):
        size, whole = self.draft_vocab_size, self.config.layers.vocab_size
        got = whole if self.vocabulary is None else self.vocabulary.shape[0]
        if got != size:
            raise ValueError(
                f"a head with draft_vocab_size={size} came with {got} target ids; give exactly those of "
                "its draft vocabulary, or None where that is the whole one"
            )

    @staticmethod
    def init(config: DFlashConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> "DFlash":
        """Random weights (normal, 0.02); a part of the vocabulary is that of the lowest ids."""
        taps = (jnp.zeros((1, 1, config.target_hidden_size), dtype),) * len(config.taps)
        at = one_slot(config.layers, dtype)
        params = DFlashModule(config, dtype).init(key, taps, *at, method=DFlashModule.initialise)["params"]
        return DFlash(params=params, config=config, vocabulary=first_ids(config))

    def empty_cache(self, batch: int, slots: int, activations: DTypeLike | None = None) -> Cache:
        """A cache for the context of `slots` tokens, in the dtype of the target's activations; None is the head's."""
        kind = activation_dtype(self.dtype) if activations is None else activations
        return empty_cache(self.config.layers, batch, slots, kind)

    def context(
        self, taps: tuple[Float[Array, "b r t"], ...], positions: Int[Array, "b r"], cache: Cache
    ) -> tuple[KV, ...]:
        """What `draft` reads of rows of true text at `positions`: their keys and values, per layer.

        Args:
            taps: the target's residual streams at these rows, one for each of `config.taps`.
            cache: the one that they are to be written to.
        """
        visible = causal(*positions.shape)[1]  # of no account to keys and values
        inputs = attention_inputs(self.config.layers, positions, visible, cache, positions)
        return self._apply(taps, inputs, method=DFlashModule.context)

    def draft(
        self, target: Target, root: Int[Array, "b"], length: Int[Array, "b"], cache: Cache, depth: int
    ) -> Float[Array, "b p d"]:
        """Logits in float32, over the draft vocabulary, of the tokens 1 to `depth` (p) places behind the root.

        The whole block is computed as it was trained, whatever `depth` is, unless its attention is causal: then what
        lies behind the last slot that is read changes nothing.

        Args:
            root: the last token of the text.
            length: its position: the tokens before it, whose context is in `cache`.
            depth: at most `config.num_drafted`.
        """
        c = self.config
        first = 0 if c.sample_from_anchor else 1
        slots = first + depth if len(c.causal_layers) == c.layers.num_hidden_layers else c.block_size
        x, positions = self._blocks(target, root[:, None], length[:, None], slots)
        out = self._apply(x, self._inputs(positions, cache, slots), cache)[:, first : first + depth]
        return self.logits(target, out)

    def over_text(
        self,
        target: Target,
        tokens: Int[Array, "b n"],
        taps: tuple[Float[Array, "b n t"], ...],
        anchors: Int[Array, "b a"],
        depth: int,
    ) -> Float[Array, "b a p d"]:
        """What `draft` gives below the tokens at `anchors` of whole sequences, all blocks in one pass, without a cache.

        Args:
            taps: the target's residual streams at all tokens; a block reads those before its anchor.
            anchors: positions of the roots.
            depth: at most `config.num_drafted` (p).
        """
        c, (batch, blocks) = self.config, anchors.shape
        first, cache = 0 if c.sample_from_anchor else 1, self.empty_cache(batch, 0, target.activations)
        rows = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
        context = self.context(tuple(tap.astype(target.activations) for tap in taps), rows, cache)
        x, positions = self._blocks(target, jnp.take_along_axis(tokens, anchors, axis=1), anchors, c.block_size)
        out = self._apply(x, self._inputs(positions, cache, c.block_size, rows), cache, context)
        read = out.reshape(batch, blocks, c.block_size, -1)[:, :, first : first + depth]
        return self.logits(target, read.reshape(batch, blocks * depth, -1)).reshape(batch, blocks, depth, -1)

    def embed(self, target: Target, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        """Embeddings of the block's tokens (target ids)."""
        if self.config.own_embedding:
            x = self._apply(tokens, method=DFlashModule.embed).astype(target.activations)
        else:
            x = target.embed(tokens)
        return x * jnp.asarray(self.config.input_embedding_scale, x.dtype)

    def logits(self, target: Target, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        """Logits over the draft vocabulary, in float32, for outputs of slots."""
        c, own = self.config, self.config.draft_vocab_size is not None
        logits = self._apply(out, method=DFlashModule.logits) if own else target.logits(out)
        logits = logits * c.output_multiplier
        cap = c.final_logit_softcapping
        return logits if cap is None else jnp.tanh(logits / cap) * cap

    def _blocks(
        self, target: Target, roots: Int[Array, "b a"], at: Int[Array, "b a"], slots: int
    ) -> tuple[Float[Array, "b n h"], Int[Array, "b n"]]:
        """Embeddings and positions of blocks of `slots` each, one behind the other, whose roots stand at `at`."""
        batch, blocks = roots.shape
        masks = jnp.full((batch, blocks, slots - 1), self.config.mask_token_id, jnp.int32)
        tokens = jnp.concatenate([roots[..., None], masks], axis=2).reshape(batch, blocks * slots)
        positions = at[..., None] + jnp.arange(slots, dtype=jnp.int32)[None, None]
        x = self.embed(target, tokens)
        if self.config.own_mask_embedding:
            own = self.params["mask_embedding"].astype(x.dtype) * jnp.asarray(
                self.config.input_embedding_scale, x.dtype
            )
            is_root = jnp.arange(blocks * slots) % slots == 0
            x = jnp.where(is_root[None, :, None], x, own[None, None])
        return x, positions.reshape(batch, blocks * slots)

    def _inputs(
        self, positions: Int[Array, "b n"], cache: Cache, slots: int, context: Int[Array, "b r"] | None = None
    ) -> tuple[AttentionInputs, ...]:
        """What the attention of each layer is given; computed once for all layers of a kind.

        A slot sees slots of its own block, and rows of the context that stand before the block. In a window of w a slot
        at position i sees positions above i - w, and below i + w: the same number both ways.

        Args:
            positions: of blocks of `slots` each.
            context: positions of rows of text that are not in the cache; None if there are none.
        """
        layers, by_kind = self.config.layers, dict[tuple[int | None, bool], AttentionInputs]()
        context = positions[:, :0] if context is None else context
        block, roots = jnp.arange(positions.shape[1]) // slots, jnp.repeat(positions[:, ::slots], slots, axis=1)
        before = context[:, None, :] < roots[:, :, None]
        own = (block[:, None] == block[None])[None]
        ahead = positions[:, None, :] - positions[:, :, None]  # [b, n, n]: how far the seen row is behind the row
        fresh_positions = jnp.concatenate([context, positions], axis=1)
        kinds = [(layers.window(i), i in self.config.causal_layers) for i in range(layers.num_hidden_layers)]
        for i, (window, is_causal) in enumerate(kinds):
            if (window, is_causal) not in by_kind:
                most = 0 if is_causal else slots if window is None else window - 1
                visible = jnp.concatenate([before, own & (ahead <= most)], axis=2)
                by_kind[window, is_causal] = attention_inputs(
                    layers, positions, visible, cache, fresh_positions, layer=i
                )
        return tuple(by_kind[kind] for kind in kinds)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    @property
    def num_drafted(self) -> int:
        """Tokens drafted ahead: the depth of the deepest tree."""
        return self.config.num_drafted

    @property
    def dtype(self) -> np.dtype:
        return self.params["hidden_norm"]["scale"].dtype

    @property
    def draft_vocab_size(self) -> int:
        size = self.config.draft_vocab_size
        return self.config.layers.vocab_size if size is None else size

    @property
    def head_dim(self) -> int:
        return self.config.layers.head_dim

    @property
    def module(self) -> DFlashModule:
        return DFlashModule(self.config, self.dtype)
