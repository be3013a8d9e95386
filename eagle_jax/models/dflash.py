"""The DFlash draft head (arXiv:2602.06036, section 3): one forward pass guesses a whole block of tokens.

    taps of the text --fc, hidden_norm--> context ----------> keys and values, of every layer
                                                                     |
    root, mask, mask, ...  --embedding--> x --+- input_layernorm --> queries, keys and values of the block
                                              |                      | attention over both
                                              x + attention, x + mlp, layer after layer
                                                                     | norm, output matrix
                                                        logits of slots 0, 1, 2, ...

The context is not changed from layer to layer: each layer's keys and values are projections of the same features, which
the target computed. The block's own keys and values are thrown away with the block. Slot k stands k places after the
root and guesses the token at its place, or the one after it (`sample_from_anchor`).

The slots of a DFlash head do not depend on each other's tokens. DSpark and DFlash 2 add to the logits of a slot what
follows from the token of the slot before (`edges`); DFlash 2 also has short convolutions in its layers (`short_conv`).

What block rows r (root) and m (masks) see of the block, bidirectional and causal:

             r m m m           r m m m
        r    1 1 1 1      r    1 . . .
        m    1 1 1 1      m    1 1 . .
        m    1 1 1 1      m    1 1 1 .
        m    1 1 1 1      m    1 1 1 1
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax import ops
from eagle_jax.configs.heads import DFlashConfig
from eagle_jax.configs.target import LlamaConfig
from eagle_jax.models.any_head import AnyHead
from eagle_jax.models.attention_inputs import attention_inputs
from eagle_jax.models.block_inputs import block_inputs
from eagle_jax.models.cache import Cache
from eagle_jax.models.dflash_module import DFlashModule
from eagle_jax.models.draft_head import check_vocabulary, first_ids, one_slot
from eagle_jax.models.lm import causal, empty_cache
from eagle_jax.models.random_params import random_params
from eagle_jax.models.target import Target
from eagle_jax.ops import KV, activation_dtype
from eagle_jax.struct import pytree, static


class BlockOutput(NamedTuple):
    """Output of the head for slots.

    Attributes:
        out: outputs of the last layer, after its norm.
        logits: over the draft vocabulary, in float32, regardless of the tokens before (marginals).
    """

    out: Float[Array, "*slots h"]
    logits: Float[Array, "*slots d"]


@pytree
class DFlash(AnyHead):
    """A DFlash head with its weights. Embedding and output matrix are the target's, unless it brings its own."""

    config: DFlashConfig = static()

    def __post_init__(self):
        check_vocabulary(self)

    @staticmethod
    def init(config: DFlashConfig, key: jax.Array, dtype: DTypeLike = jnp.float32) -> "DFlash":
        """Initialises random weights (normal, 0.02); a draft vocabulary of d tokens has the ids 0 .. d - 1."""
        taps = (jnp.zeros((1, 1, config.target_hidden_size), dtype),) * len(config.taps)
        inputs_and_cache = one_slot(config.layers, dtype)
        params = random_params(DFlashModule(config, dtype), key, taps, *inputs_and_cache)
        return DFlash(params=params, config=config, vocabulary=first_ids(config))

    def empty_cache(self, batch: int, slots: int, activations: DTypeLike | None = None) -> Cache:
        """Returns a cache for the context of `slots` tokens, in the target's activation dtype; None is the head's."""
        kind = activation_dtype(self.dtype) if activations is None else activations
        return empty_cache(self.config.layers, batch, slots, kind)

    def context(
        self, taps: tuple[Float[Array, "b r t"], ...], positions: Int[Array, "b r"], cache: Cache
    ) -> tuple[KV, ...]:
        """Returns keys and values per layer of rows of true text at `positions`, which `draft` reads.

        Args:
            taps: the target's residual streams at these rows, one for each of `config.taps`.
            cache: the cache that the rows are written to.
        """
        visible = causal(*positions.shape)[1]  # keys and values do not depend on it
        inputs = attention_inputs(self.config.layers, positions, visible, cache, positions)
        return self._apply(taps, inputs, method=DFlashModule.context)

    def draft(
        self, target: Target, root: Int[Array, "b"], length: Int[Array, "b"], cache: Cache, depth: int
    ) -> BlockOutput:
        """Computes the slots `[b p]` of the tokens 1 to `depth` (p) places after the root.

        The whole block is computed as it was trained, for any `depth`, unless its attention is causal: then what
        lies after the last slot that is read changes nothing.

        Args:
            root: the last token of the text.
            length: its position: the tokens before it, whose context is in `cache`.
            depth: at most `config.num_drafted`.
        """
        c = self.config
        first = 0 if c.sample_from_anchor else 1
        slots = first + depth if len(c.causal_layers) == c.layers.num_hidden_layers else c.block_size
        x, positions = self._blocks(target, root[:, None], length[:, None], slots)
        out = self._apply(x, block_inputs(c, positions, cache, slots), cache, slots)[:, first : first + depth]
        return BlockOutput(out, self.logits(target, out))

    def over_text(
        self,
        target: Target,
        tokens: Int[Array, "b n"],
        taps: tuple[Float[Array, "b n t"], ...],
        anchors: Int[Array, "b a"],
        depth: int,
    ) -> BlockOutput:
        """Runs `draft` below the tokens at `anchors` of whole sequences, `[b a p]`, in one pass without a cache.

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
        inputs = block_inputs(c, positions, cache, c.block_size, rows)
        out = self._apply(x, inputs, cache, c.block_size, context)
        read = out.reshape(batch, blocks, c.block_size, -1)[:, :, first : first + depth]
        logits = self.logits(target, read.reshape(batch, blocks * depth, -1)).reshape(batch, blocks, depth, -1)
        return BlockOutput(read, logits)

    def edge_logits(
        self,
        slots: BlockOutput,
        previous: Int[Array, "*rows"],
        state: Float[Array, "*rows s"],
        candidates: Int[Array, "*slots k"] | None = None,
    ) -> tuple[Float[Array, "*rows k"], Float[Array, "*rows s"]]:
        """Computes the logits of what follows given tokens, and the state of the paths that end with them.

        Args:
            slots: one slot for each row of tokens, or of shapes that broadcast to them.
            previous: the tokens before (target ids).
            state: of the paths above, as the slot before gave it; `path_state` for the first slot.
            candidates: with a selector, the tokens (draft ids) that the logits are of; None is `self.candidates`.
                Without one the logits are of the whole draft vocabulary.
        """
        if self.config.selector is not None:
            candidates = self.candidates(slots.logits) if candidates is None else candidates
            unary = jnp.take_along_axis(slots.logits, candidates, axis=-1)
            return unary + self._apply(slots.out, previous, candidates, method=DFlashModule.pair_scores), state
        if self.config.markov is not None:
            bias, state = self._apply(slots.out, previous, state, method=DFlashModule.edge_bias)
            return slots.logits + bias, state
        return jnp.broadcast_to(slots.logits, (*previous.shape, slots.logits.shape[-1])), state

    def path_state(self, rows: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "*rows s"]:
        """Returns the initial state of a path for a Markov head of kind `rnn`; empty (s = 0) for all others.

        Args:
            dtype: dtype of the slots' outputs.
        """
        markov = self.config.markov
        return jnp.zeros((*rows, markov.rank if markov is not None and markov.kind == "rnn" else 0), dtype)

    def candidates(self, logits: Float[Array, "*slots d"]) -> Int[Array, "*slots k"]:
        """Returns the slots' best tokens (draft ids), best first, which a selector chooses from."""
        return ops.top_k(logits, self.max_children)[1]

    def confidence_logits(self, slots: BlockOutput, previous: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Computes the logits of `confidence`, for a loss."""
        logits = self._apply(slots.out, previous, method=DFlashModule.confidence)
        return jnp.broadcast_to(logits, previous.shape)

    def confidence(self, slots: BlockOutput, previous: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Returns the probability that a slot's drafted token is accepted, given the tokens before (target ids)."""
        return jax.nn.sigmoid(self.confidence_logits(slots, previous))

    def embed(self, target: Target, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        """Returns the embeddings of the block's tokens (target ids)."""
        if self.config.own_embedding:
            x = self._apply(tokens, method=DFlashModule.embed).astype(target.activations)
        else:
            x = target.embed(tokens)
        return x * jnp.asarray(self.config.input_embedding_scale, x.dtype)

    def logits(self, target: Target, out: Float[Array, "b n h"]) -> Float[Array, "b n d"]:
        """Computes logits over the draft vocabulary, in float32, for outputs of slots."""
        c, has_output_matrix = self.config, self.config.draft_vocab_size is not None
        logits = self._apply(out, method=DFlashModule.logits) if has_output_matrix else target.logits(out)
        logits = logits * c.output_multiplier
        cap = c.final_logit_softcapping
        return logits if cap is None else jnp.tanh(logits / cap) * cap

    def _blocks(
        self, target: Target, roots: Int[Array, "b a"], at: Int[Array, "b a"], slots: int
    ) -> tuple[Float[Array, "b n h"], Int[Array, "b n"]]:
        """Returns embeddings and positions of blocks of `slots` each, one after the other, with roots at `at`."""
        batch, blocks = roots.shape
        masks = jnp.full((batch, blocks, slots - 1), self.config.mask_token_id, jnp.int32)
        tokens = jnp.concatenate([roots[..., None], masks], axis=2).reshape(batch, blocks * slots)
        positions = at[..., None] + jnp.arange(slots, dtype=jnp.int32)[None, None]
        x = self.embed(target, tokens)
        if self.config.own_mask_embedding:
            mask_embedding = self.params["mask_embedding"].astype(x.dtype) * jnp.asarray(
                self.config.input_embedding_scale, x.dtype
            )
            is_root = jnp.arange(blocks * slots) % slots == 0
            x = jnp.where(is_root[None, :, None], x, mask_embedding[None, None])
        return x, positions.reshape(batch, blocks * slots)

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
    def max_children(self) -> int:
        """Most tokens that it drafts after one."""
        selector = self.config.selector
        return self.draft_vocab_size if selector is None else selector.top_k

    @property
    def layers(self) -> LlamaConfig:
        return self.config.layers

    @property
    def head_dim(self) -> int:
        return self.layers.head_dim

    @property
    def module(self) -> DFlashModule:
        return DFlashModule(self.config, self.dtype)
