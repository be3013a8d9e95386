"""The interface of target models; any JAX model with these functions can be one (docs/own-model.md)."""

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.cache import Cache
from eagle_jax.ops import LayerRows
from eagle_jax.struct import pytree

PADDING_POSITION = -1  # the rest of a prompt's last chunk, and nodes of a tree that are no guess


@pytree
class Output:
    """Output of a forward pass over fresh tokens.

    Attributes:
        hidden: after the final norm; what `logits` reads and what EAGLE-1/2 heads call the feature.
        taps: residual stream entering each layer that was asked for.
        kv: what the fresh tokens add to the state of each layer: their own keys and values, as `LayerState.write` takes
            them.
    """

    hidden: Float[Array, "b n h"]
    taps: tuple[Float[Array, "b n h"], ...]
    kv: tuple[LayerRows, ...]


@runtime_checkable
class Sizes(Protocol):
    """The sizes in a target's configuration: of the vocabulary and of a hidden state."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...


@runtime_checkable
class Target(Protocol):
    """A frozen target model with its weights: a pytree whose leaves are arrays and whose settings are static.

    Its functions are pure and are traced into the decoding loop. One promise makes everything else true: what
    `forward` computes for a token depends on the tokens that this one sees, not on the tree or batch around it, up to
    rounding.
    """

    @property
    def config(self) -> Sizes:
        """Sizes of vocabulary and hidden states."""
        ...

    @property
    def activations(self) -> np.dtype:
        """Dtype of embeddings and hidden states."""
        ...

    def empty_cache(self, batch: int, slots: int) -> Cache:
        """Returns an empty cache for `slots` tokens a row; the loop writes what `forward` returns as `kv`."""
        ...

    def embed(self, tokens: Int[Array, "b n"]) -> Float[Array, "b n h"]:
        """Returns token embeddings, for drafters that read them; without positions."""
        ...

    def logits(self, hidden: Float[Array, "b n h"], num_valid: Int[Array, ""] | None = None) -> Float[Array, "b n v"]:
        """Computes logits in float32 for final hidden states, or for a draft head's guess of them.

        Args:
            num_valid: leading rows of `[b * n]` that are not padding. The others' logits are not read, but have to be
                finite; a target may compute them all. None is all.
        """
        ...

    def forward(
        self,
        tokens: Int[Array, "b n"],
        positions: Int[Array, "b n"],
        ancestors: Bool[Array, "b n n"],
        cache: Cache,
        taps: tuple[int, ...] = (),
    ) -> Output:
        """Runs one forward pass over a tree of fresh tokens, or a chunk of a prompt, which is a tree without branches.

        Each token sees the committed slots of its row, `0 .. cache.length - 1`, and the fresh tokens that its row of
        `ancestors` names: those above it and itself. Siblings may stand at the same position. The cache is only read.

        A token at `PADDING_POSITION` is padding: its output is ignored but must be finite.

        Args:
            taps: layers whose entering residual stream is wanted; the number of layers means what leaves the last one.
        """
        ...
