"""Modules that make the tokens of a block depend on each other: a slot's logits given the previous token.

    Markov head (DSpark)       logits + W2 u         u = e            vanilla, e = W1[previous]
                                                     u = e sigmoid(G [h; e])                 gated
                                                     u = tanh(o), of a state along the path  rnn
    selector (DFlash 2)        logits[b] + <A[previous] * P h, B[b]>  for the slot's best tokens b alone
    confidence head (DSpark)   sigmoid(w [h; e]), or of h alone       how probable it is that the slot's token is right

h is the slot's output. Embeddings of the token before are over the target's vocabulary, W2 and B over the head's own.
In all shapes `rows` are rows of tokens; what belongs to slots is broadcast to them.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle_jax import ops
from eagle_jax.configs.dflash import ConfidenceConfig, MarkovConfig, SelectorConfig
from eagle_jax.models.layers import Embedding, Linear, parameter


class MarkovHead(nn.Module):
    """A bias of all logits by the token before (arXiv:2607.05147, section 3)."""

    config: MarkovConfig
    vocab_size: int
    draft_vocab_size: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        rank, kind = self.config.rank, self.config.kind
        self.markov_w1 = Embedding(self.vocab_size, rank, self.dtype)
        self.markov_w2 = Linear(self.draft_vocab_size, dtype=self.dtype, result=jnp.float32)
        if kind == "gated":
            self.gate_proj = Linear(rank, use_bias=True, dtype=self.dtype)
        elif kind == "rnn":
            self.joint_proj = Linear(3 * rank, use_bias=True, dtype=self.dtype)

    def embed(self, previous: Int[Array, "*rows"]) -> Float[Array, "*rows r"]:
        return self.markov_w1(previous)

    def __call__(
        self, out: Float[Array, "*slots h"], previous: Int[Array, "*rows"], state: Float[Array, "*rows s"]
    ) -> tuple[Float[Array, "*rows d"], Float[Array, "*rows s"]]:
        """Returns the bias, and the state for the next slot, which is empty but in `rnn`, where it starts at 0."""
        embedding = self.embed(previous).astype(out.dtype)
        if self.config.kind == "vanilla":
            return self.markov_w2(embedding), state
        out = jnp.broadcast_to(out, (*previous.shape, out.shape[-1]))
        if self.config.kind == "gated":
            gate = jax.nn.sigmoid(self.gate_proj(jnp.concatenate([out, embedding], axis=-1)))
            return self.markov_w2(gate * embedding), state
        joint = self.joint_proj(jnp.concatenate([state, embedding, out], axis=-1))
        gate, candidate, read = jnp.split(joint, 3, axis=-1)
        gate = jax.nn.sigmoid(gate)
        return self.markov_w2(jnp.tanh(read)), gate * state + (1 - gate) * jnp.tanh(candidate)


class CandidateSelector(nn.Module):
    """Scores pairs of consecutive tokens, given the slot's output (z-lab/dflash, DFlash 2)."""

    config: SelectorConfig
    vocab_size: int
    draft_vocab_size: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        rank, init = self.config.rank, nn.initializers.normal(0.02)
        self.hidden_projection = Linear(rank, dtype=self.dtype, result=jnp.float32)
        predecessors, successors = (self.vocab_size, rank), (self.draft_vocab_size, rank)
        self.predecessor_codebook = parameter(self, "predecessor_codebook", init, predecessors, self.dtype)
        self.successor_codebook = parameter(self, "successor_codebook", init, successors, self.dtype)

    def __call__(
        self, out: Float[Array, "*slots h"], previous: Int[Array, "*rows"], candidates: Int[Array, "*slots k"]
    ) -> Float[Array, "*rows k"]:
        """Returns the term that is added to the logits of the candidates."""
        code = ops.embed(self.predecessor_codebook, previous, jnp.float32) * self.hidden_projection(out)
        return jnp.einsum("...r,...kr->...k", code, ops.embed(self.successor_codebook, candidates, jnp.float32))


class ConfidenceHead(nn.Module):
    """Predicts the acceptance of a slot's token before it is drafted: equal for all children of a node."""

    config: ConfidenceConfig
    dtype: DTypeLike = jnp.float32

    def setup(self):
        self.proj = Linear(1, use_bias=True, dtype=self.dtype, result=jnp.float32)

    def __call__(
        self, out: Float[Array, "*slots h"], embedding: Float[Array, "*rows r"] | None
    ) -> Float[Array, "*rows"]:
        """Returns the logit of that probability.

        Args:
            embedding: the Markov head's of the token before; None if it is not read.
        """
        if embedding is not None:
            out = jnp.broadcast_to(out, (*embedding.shape[:-1], out.shape[-1]))
            out = jnp.concatenate([out, embedding.astype(out.dtype)], axis=-1)
        return self.proj(out)[..., 0]
