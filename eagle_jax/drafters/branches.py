"""Rows of a draft network over a tree that grows level by level, for one step."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle_jax.models.cache import joined
from eagle_jax.ops import LayerRows
from eagle_jax.struct import pytree

# run(tokens[b f], features[b f h], positions[b f], above[b f m], draft_kv, draft_positions[b p])
#     -> (out[b f h], kv, logits[b f v])
Run = Callable[[Array, Array, Array, Array, tuple[LayerRows, ...], Array], tuple[Array, tuple[LayerRows, ...], Array]]


@pytree
class Branches:
    """The levels so far (p rows in all, f in the last level).

    Attributes:
        kv: the network's K/V of all rows so far, per layer.
        above: which of these rows each row of the last level attends to: its ancestors and itself.
        out: the network's output at the last level.
        positions: position of each row so far.
    """

    kv: tuple[LayerRows, ...]
    above: Bool[Array, "b f p"]
    out: Float[Array, "b f h"]
    positions: Int[Array, "b p"]

    @staticmethod
    def at_root(out: Float[Array, "b h"]) -> "Branches":
        """Returns the root alone, whose row is in the network's cache; `out` is the network's output at the root."""
        batch = out.shape[0]
        return Branches(
            kv=(),
            above=jnp.zeros((batch, 1, 0), bool),
            out=out[:, None],
            positions=jnp.zeros((batch, 0), jnp.int32),
        )

    def grow(
        self, run: Run, position: Int[Array, "b"], tokens: Int[Array, "b f"], parent_row: Int[Array, "b f"]
    ) -> tuple["Branches", Float[Array, "b f v"]]:
        """Adds a level: `tokens` at `position`, below rows `parent_row` of the last level. Also returns its logits."""
        features = jnp.take_along_axis(self.out, parent_row[:, :, None], axis=1)
        ancestors = jnp.take_along_axis(self.above, parent_row[:, :, None], axis=1)
        itself = jnp.broadcast_to(jnp.eye(tokens.shape[1], dtype=bool)[None], (*tokens.shape, tokens.shape[1]))
        above = jnp.concatenate([ancestors, itself], axis=2)
        positions = jnp.broadcast_to(position[:, None], tokens.shape)
        out, kv, logits = run(tokens, features, positions, above, self.kv, self.positions)
        grown = Branches(
            kv=tuple(joined(old, new) for old, new in zip(self.kv, kv, strict=True)) if self.kv else kv,
            above=above,
            out=out,
            positions=jnp.concatenate([self.positions, positions], axis=1),
        )
        return grown, logits
